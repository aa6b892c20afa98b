"""PostgreSQL goes away for less, and for more, than a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import grpc
import pytest

from tests.chaos.clients import in_turn
from tests.chaos.cluster import Cluster, Replica, until
from tests.chaos.conftest import MakeCluster
from tests.chaos.health import A2A, BROKER, BUS, NOT_SERVING, SERVING, STORAGE, WHOLE, health_is
from tests.chaos.scene import Scene, a_scene
from tests.chaos.senders import sending
from tests.chaos.services import Services
from tests.support import COMPLETED, refused

LEASE = 12.0
"""Longer than PostgreSQL takes to come back on a busy machine."""


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", f"{LEASE:g}", "--grace", "0.3")


@pytest.fixture(autouse=True)
def postgres_is_back(services: Services) -> Iterator[None]:
    """Whatever the test did."""
    yield
    services.start_postgres()


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_postgresql_restarts_and_no_task_loses_its_turn(
    cluster: Cluster, services: Services, how: str
) -> None:
    async with a_scene(cluster) as scene:
        tasks = [
            await scene.clients.send(replica, scene.message(tenant=tenant, gate="go", pause=0.02))
            for replica in cluster.replicas
            for tenant in ("restart", "fail")
        ]
        followers = [
            scene.follow(task, in_turn([replica])) for task in tasks for replica in cluster.replicas
        ]
        async with sending(scene) as senders:
            await until(lambda: len(senders.taken) >= 10, "messages are taken")
            for follower in followers:
                await follower.saw(5)
            await asyncio.to_thread(services.stop_postgres, how)
            before = len(senders.refused)
            await until(lambda: len(senders.refused) > before, "a message is refused")
            await asyncio.to_thread(services.start_postgres)
            taken = len(senders.taken)
            await until(lambda: len(senders.taken) >= taken + 30, "messages are taken again")
        senders.assert_refused_politely()
        for task_id in senders.taken:
            await scene.task_when(task_id, COMPLETED)
        for follower in followers:
            await follower.more(10)
        scene.open_gate("go")
        for follower in followers:
            assert (await follower.ended()).state == "COMPLETED"
        for task in tasks:
            (run,) = scene.journal.executions(task.id)
            assert run.has_ended


async def test_every_call_says_when_to_come_back_while_postgresql_is_away(
    cluster: Cluster, services: Services
) -> None:
    async with a_scene(cluster) as scene:
        order = scene.message(steps=1, immediately=False)
        task = await scene.clients.send(cluster.replicas[0], order)
        await asyncio.to_thread(services.stop_postgres, "immediate")
        for replica in cluster.replicas:
            for call in (
                scene.clients.get(replica, task.id),
                scene.clients.cancel(replica, task.id),
                scene.clients.send(replica, scene.message(steps=1)),
                scene.clients.log(replica, task.id),
            ):
                status = await refused(call)
                assert status.code is grpc.StatusCode.UNAVAILABLE, status
                assert status.retry_after is not None, status
        await asyncio.to_thread(services.start_postgres)
        await scene.heal()
        # A replica asks twice a second whether the database is back.
        for replica in cluster.replicas:
            await until(partial(_has_completed, scene, replica, task.id), "the task is COMPLETED")


async def _has_completed(scene: Scene, replica: Replica, task_id: str) -> bool:
    try:
        return (await scene.clients.get(replica, task_id)).status.state == COMPLETED
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


async def test_health_tells_that_postgresql_is_away_and_that_it_is_back(
    cluster: Cluster, services: Services
) -> None:
    async with a_scene(cluster) as scene:
        for replica in cluster.replicas:
            await health_is(scene.clients, replica, SERVING, WHOLE, A2A, STORAGE, BROKER, BUS)
        await asyncio.to_thread(services.stop_postgres, "fast")
        for replica in cluster.replicas:
            await health_is(scene.clients, replica, NOT_SERVING, WHOLE, A2A, STORAGE)
            await health_is(scene.clients, replica, SERVING, BROKER, BUS)
        await asyncio.to_thread(services.start_postgres)
        for replica in cluster.replicas:
            await health_is(scene.clients, replica, SERVING, WHOLE, A2A, STORAGE, BROKER, BUS)
