"""A task is canceled at a replica that does not execute it."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from tests.chaos.clients import answered
from tests.chaos.cluster import Cluster
from tests.chaos.conftest import MakeCluster
from tests.chaos.scene import Scene, a_scene
from tests.chaos.services import Services
from tests.support import CANCELED, COMPLETED, INPUT_REQUIRED, Status, refused, within

LEASE = 3.0
BOUND = LEASE + 2.0


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", f"{LEASE:g}", "--grace", "0.3")


async def _assert_told_once(scene: Scene, task_id: str) -> float:
    """The agent was told once; returns when."""
    (told,) = scene.journal.told_to_cancel(task_id)
    return told.at


async def test_a_cancel_at_another_replica_reaches_the_agent_at_once(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        for replica in cluster.replicas:
            task = await scene.clients.send(replica, scene.message(do="wait"))
            owner = await scene.owner(task.id)
            followers = [scene.follow(task, lambda it=it: it) for it in cluster.replicas]
            for follower in followers:
                await follower.saw(1)
            elsewhere, _ = cluster.others(owner)
            asked_at = time.monotonic()
            canceled = await scene.clients.cancel(elsewhere, task.id)
            assert canceled.status.state == CANCELED
            assert await _assert_told_once(scene, task.id) - asked_at < 1.0
            for follower in followers:
                assert (await follower.ended()).state == "CANCELED"


async def test_concurrent_cancels_at_all_replicas_get_the_same_task(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        # The first does not end before the last is there.
        order = scene.message(do="wait", linger=0.8)
        task = await scene.clients.send(cluster.replicas[0], order)
        await scene.started(task.id)
        calls = [scene.clients.cancel(one, task.id) for one in cluster.replicas * 5]
        answers = await within(asyncio.gather(*calls))
        assert answers[0].status.state == CANCELED
        assert all(answer == answers[0] for answer in answers)
        await _assert_told_once(scene, task.id)


async def test_a_task_that_nobody_executes_is_canceled_at_any_replica(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        for replica in cluster.replicas:
            task = await scene.clients.send(replica, scene.message(do="ask", immediately=False))
            assert task.status.state == INPUT_REQUIRED
            elsewhere, *_ = cluster.others(replica)
            canceled = await scene.clients.cancel(elsewhere, task.id)
            assert canceled.status.state == CANCELED
            assert not scene.journal.told_to_cancel(task.id)


async def test_a_finished_task_is_not_cancelable_at_any_replica(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        order = scene.message(steps=1, immediately=False)
        task = await scene.clients.send(cluster.replicas[0], order)
        assert task.status.state == COMPLETED
        for replica in cluster.replicas:
            status = await refused(scene.clients.cancel(replica, task.id))
            assert status.reason == "TASK_NOT_CANCELABLE", status


async def test_a_cancel_while_the_bus_is_down_is_remembered(
    cluster: Cluster, services: Services
) -> None:
    async with a_scene(cluster) as scene:
        task = await scene.clients.send(cluster.replicas[0], scene.message(do="wait"))
        owner = await scene.owner(task.id)
        elsewhere, _ = cluster.others(owner)
        services.kill_nats()
        try:
            asked_at = time.monotonic()
            calling = asyncio.create_task(answered(scene.clients.cancel(elsewhere, task.id)))
            canceled = await scene.task_when(task.id, CANCELED, at=elsewhere)
            assert time.monotonic() - asked_at < BOUND
            assert await _assert_told_once(scene, task.id) - asked_at < LEASE
            answer = await within(calling)
        finally:
            services.start_nats()
        if isinstance(answer, Status):
            assert answer.code is grpc.StatusCode.UNAVAILABLE, answer
            assert answer.retry_after is not None, answer
        else:
            assert answer == canceled


@pytest.mark.parametrize("tenant", ["restart", "fail"])
async def test_a_task_whose_owner_was_just_killed_can_be_canceled(
    cluster: Cluster, tenant: str
) -> None:
    async with a_scene(cluster) as scene:
        task = await scene.clients.send(
            cluster.replicas[0], scene.message(tenant=tenant, gate="never")
        )
        following = scene.follow(task, scene.somewhere)
        await following.saw(10)
        owner = await scene.owner(task.id)
        elsewhere, _ = cluster.others(owner)
        killed_at = owner.kill()
        canceled = await scene.clients.cancel(elsewhere, task.id)
        assert time.monotonic() - killed_at < BOUND
        assert canceled.status.state == CANCELED
        (run,) = scene.journal.executions(task.id)
        assert run.last.at < killed_at, "a canceled task was executed again"


async def test_a_cancel_that_races_with_the_end_has_one_outcome_everywhere(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        a, b, _ = cluster.replicas

        async def race() -> None:
            task = await scene.clients.send(a, scene.message(steps=3, pause=0.001))
            answer = await answered(scene.clients.cancel(b, task.id))
            here, there = await scene.clients.get(a, task.id), await scene.clients.get(b, task.id)
            assert here == there
            if isinstance(answer, Status):
                assert answer.reason == "TASK_NOT_CANCELABLE", answer
                assert here.status.state == COMPLETED
            else:
                assert answer == here
                assert here.status.state == CANCELED

        await within(asyncio.gather(*(race() for _ in range(30))), 30)
