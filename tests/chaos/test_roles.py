"""Front ends and workers as processes of their own."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.chaos.cluster import Cluster, Replica
from tests.chaos.conftest import MakeCluster
from tests.chaos.scene import a_scene
from tests.support import CANCELED, COMPLETED, INPUT_REQUIRED, within

LEASE = 3.0
BOUND = LEASE + 2.0

ROLES = {
    "front-1": ["--role", "frontend"],
    "front-2": ["--role", "frontend"],
    "worker-1": ["--role", "worker"],
    "worker-2": ["--role", "worker"],
}


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", f"{LEASE:g}", "--grace", "0.3", roles=ROLES)


def _fronts(cluster: Cluster) -> list[Replica]:
    return cluster.replicas[:2]


def _workers(cluster: Cluster) -> list[Replica]:
    return cluster.replicas[2:]


async def test_workers_execute_what_front_ends_take_in(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        orders = [scene.message(steps=20, immediately=False) for _ in range(20)]
        sends = [
            scene.clients.send(front, order)
            for front, order in zip(_fronts(cluster) * 10, orders, strict=True)
        ]
        for task in await within(asyncio.gather(*sends), 30):
            assert task.status.state == COMPLETED
        executed_by = {line.pid for line in scene.journal.starts()}
        assert executed_by <= {worker.pid for worker in _workers(cluster)}


async def test_a_front_end_cancels_and_continues_what_a_worker_holds(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        here, there = _fronts(cluster)
        task = await scene.clients.send(here, scene.message(do="wait"))
        await scene.started(task.id)
        assert (await scene.clients.cancel(there, task.id)).status.state == CANCELED
        assert len(scene.journal.told_to_cancel(task.id)) == 1

        asked = await scene.clients.send(here, scene.message(do="ask", immediately=False))
        assert asked.status.state == INPUT_REQUIRED
        order = scene.message(do="ask", stop=True, task_id=asked.id, immediately=False)
        assert (await scene.clients.send(there, order)).status.state == COMPLETED


async def test_the_death_of_a_front_end_does_not_touch_the_task(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        here, _ = _fronts(cluster)
        streaming = scene.stream(scene.message(gate="go"), scene.anywhere)
        following = scene.stream(scene.message(gate="go"), scene.anywhere)
        await streaming.saw(10)
        await following.saw(10)
        here.kill()
        await streaming.more(20)
        await following.more(20)
        scene.open_gate("go")
        for follower in (streaming, following):
            assert (await follower.ended()).state == "COMPLETED"
            (run,) = scene.journal.executions(follower.task_id)
            assert run.first.attempt == 1


async def test_the_death_of_a_worker_moves_its_tasks_to_the_other(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        streaming = scene.stream(scene.message(gate="go"), scene.anywhere)
        await streaming.saw(10)
        worker = await scene.owner(streaming.task_id)
        killed_at = worker.kill()
        again = await scene.started(streaming.task_id, 2)
        assert again.at - killed_at < BOUND
        assert again.pid in {one.pid for one in _workers(cluster)} - {worker.pid}
        scene.open_gate("go")
        assert (await streaming.ended()).state == "COMPLETED"


async def test_messages_wait_for_the_first_worker(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        here, there = _fronts(cluster)
        for worker in _workers(cluster):
            worker.ask_to_stop()
            assert await worker.ended() == 0
        sends = [
            asyncio.create_task(scene.clients.send(front, scene.message(immediately=False)))
            for front in (here, there)
        ]
        started_at = time.monotonic()
        _workers(cluster)[0].start()
        for task in await within(asyncio.gather(*sends), 30):
            assert task.status.state == COMPLETED
            assert (await scene.started(task.id)).at > started_at
