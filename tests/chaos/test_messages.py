"""Messages to one task through several replicas: their order, their number, and large ones."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from a2a_grpc import pb
from tests.chaos.clients import in_turn
from tests.chaos.cluster import Cluster
from tests.chaos.conftest import MakeCluster
from tests.chaos.scene import Scene, a_scene
from tests.support import COMPLETED, INPUT_REQUIRED, within


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", "3", "--grace", "0.3", "--deduplicate", "always")


async def test_fifty_messages_to_one_task_through_three_replicas_keep_their_order(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        replica_for = in_turn(cluster.replicas)
        first = scene.message(do="ask", immediately=False)
        task = await scene.clients.send(replica_for(), first)
        following = scene.follow(task, scene.anywhere, hops=7)
        orders = [scene.message(task_id=task.id, do="ask") for _ in range(49)]
        orders.append(scene.message(task_id=task.id, do="ask", stop=True))
        for order in orders:
            assert (await scene.clients.send(replica_for(), order)).id == task.id
        await following.ended()
        assert following.state == "COMPLETED"
        sent = [order.message.message_id for order in (first, *orders)]
        runs = scene.journal.executions(task.id)
        assert [run.first.message for run in runs] == sent
        assert all(run.has_ended and run.first.attempt == 1 for run in runs)
        done = await scene.clients.get(replica_for(), task.id)
        asked = [one.message_id for one in done.history if one.role == pb.Role.ROLE_USER]
        assert asked == sent


async def test_messages_that_come_to_all_replicas_at_once_run_one_at_a_time(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        task = await scene.clients.send(
            cluster.replicas[0], scene.message(do="ask", immediately=False)
        )
        orders = [scene.message(task_id=task.id, do="ask") for _ in range(30)]
        replica_for = in_turn(cluster.replicas)
        await within(
            asyncio.gather(*(scene.clients.send(replica_for(), order) for order in orders)), 30
        )
        stop = scene.message(task_id=task.id, do="ask", stop=True)
        await scene.clients.send(replica_for(), stop)
        await scene.task_when(task.id, COMPLETED)
        worked_on = [run.first.message for run in scene.journal.executions(task.id)[1:]]
        assert sorted(worked_on[:-1]) == sorted(order.message.message_id for order in orders)
        assert worked_on[-1] == stop.message.message_id


async def test_a_message_that_two_replicas_get_at_once_runs_once(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:

        async def send_twice(order: pb.SendMessageRequest) -> None:
            here, there = random.sample(cluster.replicas, 2)
            one, other = await asyncio.gather(
                scene.clients.send(here, order), scene.clients.send(there, order)
            )
            assert one.id == other.id
            await scene.task_when(one.id, COMPLETED)
            (run,) = scene.journal.executions(one.id)
            assert run.first.message == order.message.message_id

        orders = [
            scene.message(steps=3, immediately=random.choice((True, False))) for _ in range(50)
        ]
        await within(asyncio.gather(*(send_twice(order) for order in orders)), 60)
        _assert_one_run_each(scene, orders)


def _assert_one_run_each(scene: Scene, orders: list[pb.SendMessageRequest]) -> None:
    wanted = {order.message.message_id for order in orders}
    started = [line.message for line in scene.journal.starts() if line.message in wanted]
    assert sorted(started) == sorted(wanted)


async def test_two_streams_of_one_message_at_two_replicas_show_one_task(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        for _ in range(10):
            order = scene.message(steps=20)
            here, there = random.sample(cluster.replicas, 2)
            streams = [scene.stream(order, in_turn([one])) for one in (here, there)]
            one, other = [await stream.ended() for stream in streams]
            assert one.task_id == other.task_id
            assert one.state == other.state == "COMPLETED"
            _assert_one_run_each(scene, [order])


async def test_a_direct_reply_comes_back_through_any_replica_and_is_given_once(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        orders = [scene.message(do="reply", immediately=False) for _ in range(20)]

        async def ask(order: pb.SendMessageRequest) -> None:
            calls = [
                scene.clients.at(replica).call("SendMessage", order) for replica in cluster.replicas
            ]
            for answer in await asyncio.gather(*calls):
                assert answer.message.message_id == f"reply to {order.message.message_id}", answer

        await within(asyncio.gather(*(ask(order) for order in orders)), 30)
        _assert_one_run_each(scene, orders)
        for replica in cluster.replicas:
            order = scene.message(do="reply")
            stream = scene.clients.at(replica).call("SendStreamingMessage", order)
            (event,) = [event async for event in stream]
            assert event.message.message_id == f"reply to {order.message.message_id}"


async def test_a_raw_part_of_sixteen_megabytes_goes_in_and_out_at_different_replicas(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        content = random.randbytes(16 * 2**20)

        def order() -> pb.SendMessageRequest:
            found = scene.message(do="echo", gate="go")
            found.message.parts.add(raw=content)
            return found

        for replica in cluster.replicas:
            task = await scene.clients.send(replica, order())
            elsewhere, other = cluster.others(await scene.owner(task.id))
            following = scene.follow(task, in_turn([elsewhere]))
            await following.saw(1)
            scene.open_gate("go")
            await following.ended()
            updates = [e.artifact_update for e in following.events if e.HasField("artifact_update")]
            assert [_raw(update.artifact) == content for update in updates] == [True]
            found = await scene.clients.get(other, task.id)
            assert _raw(found.artifacts[0]) == content
            assert found.status.state != INPUT_REQUIRED


def _raw(artifact: Any) -> bytes:
    raw: bytes = artifact.parts[0].raw
    return raw
