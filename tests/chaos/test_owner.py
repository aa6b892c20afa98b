"""The replica that executes a task dies, or stands still for too long."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.chaos.clients import in_turn
from tests.chaos.cluster import Cluster, Replica, until
from tests.chaos.conftest import MakeCluster
from tests.chaos.scene import Scene, a_scene
from tests.chaos.services import Services
from tests.support import COMPLETED, FAILED, INPUT_REQUIRED, WORKING, text

LEASE = 3.0
BOUND = LEASE + 2.0
"""Seconds after the death of its owner in which a task goes on elsewhere or is FAILED."""


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster("--lease", f"{LEASE:g}", "--grace", "0.3")


@pytest.mark.parametrize("begin_again", [False, True], ids=["goes-on", "begins-again"])
async def test_a_task_whose_owner_is_killed_goes_on_elsewhere_before_all_eyes(
    cluster: Cluster, begin_again: bool
) -> None:
    async with a_scene(cluster) as scene:
        streaming = scene.stream(scene.message(gate="go", begin_again=begin_again))
        await streaming.saw(20)
        owner = await scene.owner(streaming.task_id)
        for replica in cluster.replicas:  # one stays, those of the owner have to move on
            scene.follow(streaming.task_id, in_turn([replica, *cluster.others(replica)]))
        restless = scene.follow(streaming.task_id, scene.anywhere, hops=15)
        late = scene.follow(streaming.task_id, in_turn(cluster.others(owner)), after=None)
        await restless.saw(20)
        await late.more(5)
        killed_at = owner.kill()
        again = await scene.started(streaming.task_id, 2)
        assert again.at - killed_at <= BOUND
        assert again.attempt == 2
        await streaming.more(20)
        scene.open_gate("go")
        await streaming.ended()
        assert streaming.state == "COMPLETED"


async def test_a_task_that_may_not_restart_is_failed_when_its_owner_is_killed(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        streaming = scene.stream(scene.message(tenant="fail", gate="never"), scene.anywhere)
        await streaming.saw(20)
        owner = await scene.owner(streaming.task_id)
        following = scene.follow(streaming.task_id, in_turn(cluster.others(owner)))
        await following.saw(20)
        killed_at = owner.kill()
        await following.ended()
        assert time.monotonic() - killed_at <= BOUND
        task = await scene.task_when(streaming.task_id, FAILED)
        assert "stopped" in text(task.status.message), task.status
        assert len(scene.journal.executions(task.id)) == 1


async def test_every_task_goes_on_when_two_of_three_replicas_die_at_once(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        tasks = [
            await scene.clients.send(replica, scene.message(gate="go"))
            for replica in cluster.replicas * 6
        ]
        followers = [scene.follow(task, scene.anywhere) for task in tasks]
        for follower in followers:
            await follower.saw(5)
        survivor, *victims = cluster.replicas
        owners = {task.id: await scene.owner(task.id) for task in tasks}
        killed_at = max([victim.kill() for victim in victims])
        for task in tasks:
            if owners[task.id] in victims:
                again = await scene.started(task.id, 2)
                assert again.at - killed_at <= BOUND
                assert again.pid == survivor.pid
        scene.open_gate("go")
        for follower in followers:
            assert (await follower.ended()).state == "COMPLETED"


async def test_messages_that_wait_for_a_task_are_worked_on_in_order_when_its_owner_dies(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        task = await scene.clients.send(cluster.replicas[0], scene.message(do="ask"))
        await scene.task_when(task.id, INPUT_REQUIRED)
        held = scene.message(task_id=task.id, do="ask", gate="go")
        await scene.clients.send(cluster.replicas[0], held)
        await scene.task_when(task.id, WORKING)
        orders = [scene.message(task_id=task.id, do="ask") for _ in range(5)]
        orders += [scene.message(task_id=task.id, do="ask", stop=True)]
        for order, replica in zip(orders, cluster.replicas * 3, strict=False):
            await scene.clients.send(replica, order)
        (await scene.owner(task.id)).kill()
        await scene.started(task.id, 2)
        scene.open_gate("go")
        await scene.task_when(task.id, COMPLETED)
        runs = scene.journal.executions(task.id)[1:]
        worked_on = list(dict.fromkeys(run.first.message for run in runs))
        assert worked_on == [order.message.message_id for order in (held, *orders)]


async def test_an_owner_that_stood_still_past_its_lease_writes_nothing_and_serves_again(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        # It rests between its steps, so that it stands still while it rests.
        order = scene.message(gate="go", pause=1.5, later_pause=0.005)
        streaming = scene.stream(order, scene.somewhere, silence=LEASE)
        await streaming.saw(2)
        owner = await scene.owner(streaming.task_id)
        # One that waits for the owner, however long it takes, and one that does not.
        waiting = scene.follow(streaming.task_id, lambda: owner)
        following = scene.follow(streaming.task_id, in_turn(cluster.others(owner)))
        await waiting.saw(2)
        await following.more(2)
        owner.freeze()
        frozen_at = time.monotonic()
        again = await scene.started(streaming.task_id, 2)
        assert again.at - frozen_at <= BOUND
        assert again.pid != owner.pid
        await following.more(20)
        owner.thaw()
        await waiting.saw(following.sequence)
        scene.open_gate("go")
        await waiting.ended()
        assert waiting.state == "COMPLETED"
        assert waiting.connections == [owner], "its connection lasted"
        last = [run.last for run in scene.journal.executions(streaming.task_id)]
        assert last[0].pid == owner.pid
        assert last[0].at < frozen_at
        await _works_again(scene, owner)


async def test_an_owner_that_stood_still_for_less_than_its_lease_keeps_its_task(
    cluster: Cluster,
) -> None:
    async with a_scene(cluster) as scene:
        streaming = scene.stream(scene.message(tenant="fail", gate="go"), scene.somewhere)
        await streaming.saw(10)
        owner = await scene.owner(streaming.task_id)
        following = scene.follow(streaming.task_id, in_turn(cluster.others(owner)))
        owner.freeze()
        await asyncio.sleep(LEASE / 4)  # which is what happens, and not waited for
        owner.thaw()
        await following.more(20)
        scene.open_gate("go")
        await following.ended()
        assert following.state == "COMPLETED"
        (run,) = scene.journal.executions(streaming.task_id)
        assert run.first.attempt == 1


async def test_tasks_are_taken_up_again_when_the_database_was_away_for_longer_than_the_lease(
    cluster: Cluster, services: Services
) -> None:
    async with a_scene(cluster) as scene:
        tasks = {
            tenant: await scene.clients.send(replica, scene.message(tenant=tenant, gate="go"))
            for tenant, replica in zip(("restart", "fail"), cluster.replicas, strict=False)
        }
        followers = [scene.follow(task, scene.anywhere) for task in tasks.values()]
        for follower in followers:
            await follower.saw(10)
        await asyncio.to_thread(services.stop_postgres, "immediate")
        try:
            for task in tasks.values():
                await until(
                    lambda it=task.id: any(  # type: ignore[misc]
                        line.what == "cancelled" for line in scene.journal.lines(it)
                    ),
                    f"the agent of {task.id} is stopped, since nobody knows whose the task is",
                    seconds=BOUND,
                )
        finally:
            await asyncio.to_thread(services.start_postgres)
        await scene.started(tasks["restart"].id, 2)
        scene.open_gate("go")
        assert [(await follower.ended()).state for follower in followers] == ["COMPLETED", "FAILED"]


async def _works_again(scene: Scene, replica: Replica) -> None:
    async def works() -> bool:
        task = await scene.clients.send(replica, scene.message(immediately=False, steps=1))
        return (await scene.started(task.id)).pid == replica.pid

    await until(works, f"{replica!r} executes tasks")


async def test_a_task_that_asked_for_input_outlives_its_replica(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        task = await scene.clients.send(cluster.replicas[0], scene.message(do="ask"))
        await scene.task_when(task.id, INPUT_REQUIRED)
        owner = await scene.owner(task.id)
        owner.kill()
        here, there = cluster.living
        asked = await scene.clients.get(here, task.id)
        assert asked.status.state == INPUT_REQUIRED
        # No lease has to run out: nobody holds the task.
        async with asyncio.timeout(LEASE * 2 / 3):
            order = scene.message(task_id=task.id, do="ask", stop=True, immediately=False)
            done = await scene.clients.send(there, order)
        assert done.status.state == COMPLETED
        assert (await scene.started(task.id)).pid in (here.pid, there.pid)


async def test_a_message_that_kills_whoever_takes_it_is_given_up_and_put_aside(
    cluster: Cluster, services: Services
) -> None:
    async with a_scene(cluster) as scene:

        async def supervise() -> None:
            while True:
                await cluster.heal()
                await asyncio.sleep(0.1)

        bystander = await scene.clients.send(cluster.replicas[1], scene.message(gate="go"))
        # The replica that is asked may be the first to die of it, before it has answered.
        task = await scene.clients.send_somewhere(scene.anywhere, scene.message(do="die"))
        following = scene.follow(task, scene.anywhere)
        supervisor = asyncio.create_task(supervise(), name="supervisor")
        try:
            await following.ended()
        finally:
            supervisor.cancel()
        assert following.state == "FAILED"
        starts = [line for line in scene.journal.lines(task.id) if line.what == "start"]
        assert [line.attempt for line in starts] == [1, 2, 3]
        assert len({line.pid for line in starts}) == 3
        ended = await scene.task_when(task.id, FAILED)
        assert "every attempt" in text(ended.status.message), ended.status
        (letter,) = [one for one in await services.dead_letters() if one["task_id"] == task.id]
        assert letter["reason"], letter
        scene.open_gate("go")
        await scene.task_when(bystander.id, COMPLETED, FAILED)
