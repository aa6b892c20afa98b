"""NATS goes away, and comes back with or without what it had."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chaos.clients import in_turn
from tests.chaos.cluster import Cluster, until
from tests.chaos.conftest import MakeCluster
from tests.chaos.health import A2A, BROKER, BUS, NOT_SERVING, SERVING, STORAGE, WHOLE, health_is
from tests.chaos.scene import a_scene
from tests.chaos.senders import sending
from tests.chaos.services import Services
from tests.support import COMPLETED

LEASE = 3.0


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", f"{LEASE:g}", "--grace", "0.3")


@pytest.fixture(autouse=True)
def nats_is_back(services: Services) -> Iterator[None]:
    """Whatever the test did."""
    yield
    services.start_nats()


@pytest.mark.parametrize("wipe", [False, True], ids=["same-store", "empty-store"])
async def test_nats_dies_and_nothing_acknowledged_is_lost(
    cluster: Cluster, services: Services, wipe: bool
) -> None:
    async with a_scene(cluster) as scene:
        tasks = [
            await scene.clients.send(replica, scene.message(gate="go", pause=0.02))
            for replica in cluster.replicas
        ]
        followers = [
            scene.follow(task, in_turn([replica])) for task in tasks for replica in cluster.replicas
        ]
        async with sending(scene) as senders:
            await until(lambda: len(senders.taken) >= 10, "messages are taken")
            for follower in followers:
                await follower.saw(5)
            services.kill_nats()
            # What runs goes on, and is seen everywhere, though nobody is woken up.
            for follower in followers:
                await follower.more(20)
            services.start_nats(wipe=wipe)
            taken = len(senders.taken)
            await until(lambda: len(senders.taken) >= taken + 30, "messages are taken again")
        senders.assert_refused_politely()
        for task_id in senders.taken:
            await scene.task_when(task_id, COMPLETED)
        scene.open_gate("go")
        for follower in followers:
            assert (await follower.ended()).state == "COMPLETED"
        for task in tasks:
            (run,) = scene.journal.executions(task.id)
            assert run.has_ended, "it lost its turn, though the store was there"


async def test_an_owner_dies_while_nats_is_away(cluster: Cluster, services: Services) -> None:
    async with a_scene(cluster) as scene:
        task = await scene.clients.send(cluster.replicas[0], scene.message(gate="go"))
        following = scene.follow(task, scene.anywhere)
        await following.saw(10)
        owner = await scene.owner(task.id)
        services.kill_nats()
        owner.kill()
        services.start_nats(wipe=True)
        back_at = time.monotonic()
        again = await scene.started(task.id, 2)
        assert again.at - back_at <= LEASE + 2.0
        scene.open_gate("go")
        await following.ended()
        assert following.state == "COMPLETED"


async def test_health_tells_that_nats_is_away_and_that_it_is_back(
    cluster: Cluster, services: Services
) -> None:
    async with a_scene(cluster) as scene:
        for replica in cluster.replicas:
            await health_is(scene.clients, replica, SERVING, WHOLE, A2A, STORAGE, BROKER, BUS)
        services.kill_nats()
        for replica in cluster.replicas:
            await health_is(scene.clients, replica, NOT_SERVING, WHOLE, A2A, BROKER, BUS)
            await health_is(scene.clients, replica, SERVING, STORAGE)
        services.start_nats()
        for replica in cluster.replicas:
            await health_is(scene.clients, replica, SERVING, WHOLE, A2A, STORAGE, BROKER, BUS)
