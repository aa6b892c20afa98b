"""Replicas are stopped in order and started again, one after the other, under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import grpc
import pytest

from a2a_grpc import A2AClient, RetryPolicy, pb
from tests.chaos.clients import RECONNECTING
from tests.chaos.cluster import Cluster, Replica
from tests.chaos.conftest import MakeCluster
from tests.chaos.orders import ARTIFACT, numbers
from tests.chaos.scene import Scene, a_scene
from tests.support import CHANNEL_OPTIONS, COMPLETED, FAILED, fold, text

LEASE = 15.0
AT_ONCE = 5.0
"""Seconds in which what was handed back goes on elsewhere: far less than a lease."""


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", f"{LEASE:g}", "--grace", "0.2")


async def _restart(replica: Replica) -> float:
    """Stop it in order and start it again; returns when it was stopped."""
    stopped_at = replica.ask_to_stop()
    assert await replica.ended() == 0, replica.log
    replica.start()
    await replica.ready()
    return stopped_at


@asynccontextmanager
async def _again_and_again(
    *work: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[list[int]]:
    """Does each of these over and over until the block is left; yields how often."""
    counts = [0] * len(work)
    stopping = False

    async def repeat(number: int) -> None:
        while not stopping:
            await work[number]()
            counts[number] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(len(work)):
            group.create_task(repeat(number), name=f"load {number}")
        try:
            yield counts
        finally:
            stopping = True


async def test_a_rolling_restart_under_load_fails_no_call_and_loses_no_task(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:

        async def send() -> None:
            """SendMessage, until the task is complete."""
            order = scene.message(steps=20, pause=0.01, immediately=False)
            task = await scene.clients.send_somewhere(scene.anywhere, order)
            assert task.status.state == COMPLETED, task
            assert text(task.artifacts[0]) == numbers(20)

        async def stream() -> None:
            """SendStreamingMessage, taken up again elsewhere."""
            streaming = scene.stream(scene.message(steps=60, pause=0.02), scene.anywhere)
            assert (await streaming.ended()).knows == {ARTIFACT: numbers(60)}

        async def subscribe() -> None:
            """SendMessage, and SubscribeToTask at others."""
            order = scene.message(steps=60, pause=0.02)
            task = await scene.clients.send_somewhere(scene.anywhere, order)
            followers = [scene.follow(task, scene.anywhere, hops=10) for _ in range(3)]
            for follower in followers:
                assert (await follower.ended()).state == "COMPLETED"

        long = [
            await scene.clients.send(replica, scene.message(gate="go", pause=0.02))
            for replica in cluster.replicas
        ]
        async with _again_and_again(*(send, stream, subscribe) * 2) as counts:
            for replica in cluster.replicas:
                await _restart(replica)
        assert all(counts), counts
        scene.open_gate("go")
        for task in long:
            await scene.task_when(task.id, COMPLETED)
        _assert_taken_over_at_once(scene)


def _assert_taken_over_at_once(scene: Scene) -> None:
    for task_id in scene.clients.told:
        runs = scene.journal.executions(task_id)
        for before, after in pairwise(runs):
            gap = after.first.at - before.last.at
            assert gap < AT_ONCE, f"task {task_id} stood still for {gap:.1f} s:\n{after.first}"


async def test_a_task_that_is_handed_back_more_often_than_it_may_fail_is_completed(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        following = scene.stream(scene.message(gate="go"), scene.anywhere)
        for attempt in range(1, 6):  # max_attempts is 3
            await following.more(10)
            owner = await scene.owner(following.task_id, attempt)
            stopped_at = await _restart(owner)
            again = await scene.started(following.task_id, attempt + 1)
            assert again.at - stopped_at < AT_ONCE
        scene.open_gate("go")
        assert (await following.ended()).state == "COMPLETED"


async def test_a_task_that_may_not_restart_is_finished_within_the_grace_or_failed_at_once(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        following = scene.stream(scene.message(tenant="fail", gate="never"), scene.anywhere)
        await following.saw(10)
        stopped_at = time.monotonic()
        await _restart(await scene.owner(following.task_id))
        assert (await following.ended()).state == "FAILED"
        assert time.monotonic() - stopped_at < LEASE
        assert text((await scene.task_when(following.task_id, FAILED)).status.message)


async def test_our_client_on_all_replicas_does_not_notice_a_rolling_restart(
    cluster: Cluster,
) -> None:
    policy = RetryPolicy(attempts=100, initial_backoff=0.05, max_backoff=0.3)
    target = "ipv4:" + ",".join(replica.address for replica in cluster.replicas)
    options = (*CHANNEL_OPTIONS, *RECONNECTING, ("grpc.lb_policy_name", "round_robin"))
    async with (
        a_scene(cluster) as scene,
        grpc.aio.insecure_channel(target, options=options) as channel,
        A2AClient("all:1", tenant="restart", retry=policy, channel=channel) as client,
    ):

        async def send() -> None:
            task = await client.send(scene.message(steps=20, pause=0.01).message)
            assert isinstance(task, pb.Task)
            assert task.status.state == COMPLETED
            scene.clients.told[task.id] = "restart"

        async def stream() -> None:
            events = client.stream(scene.message(steps=60, pause=0.02).message)
            state, artifacts = fold([event async for event in events])
            assert (state, artifacts) == ("COMPLETED", {ARTIFACT: numbers(60)})
            scene.clients.told[events.task_id] = "restart"

        async with _again_and_again(*(send, stream) * 3) as counts:
            for replica in cluster.replicas:
                await _restart(replica)
        assert all(counts), counts
