"""The contract of `EventBus`, which every backend passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.bus.base import Committed, EventBus, TaskChannel
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.storage.base import Outcome, OutcomeKind
from tests.support import COMPLETED, INPUT_REQUIRED, WORKING, within

BACKENDS: dict[str, Callable[[], EventBus]] = {"memory": InMemoryBus}


@pytest.fixture(params=BACKENDS)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[EventBus]:
    async with BACKENDS[request.param]() as opened:
        yield opened


def commit(number: int, *, task_id: str = "t", state: int = WORKING, **kw: Any) -> Committed:
    """The commit of event `number`."""
    return Committed(task_id, number, number, state, [b"%d" % number], **kw)


async def arrived(channel: TaskChannel, version: int) -> None:
    async with asyncio.timeout(5):
        while channel.version < version:
            await channel.changed()


async def test_open_channel_hears_of_every_commit_in_order(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        for number in range(1, 101):
            await bus.publish(commit(number))
        await arrived(channel, 100)
        assert channel.read(0) == [b"%d" % number for number in range(1, 101)]
        assert channel.read(97) == [b"98", b"99", b"100"]
        assert channel.read(100) == []
        assert (channel.version, channel.sequence, channel.state) == (100, 100, WORKING)


async def test_channel_hears_of_its_own_task_only(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        await bus.publish(commit(1, task_id="other"))
        await bus.publish(commit(1))
        await arrived(channel, 1)
        assert channel.read(0) == [b"1"]


async def test_all_who_open_a_task_share_one_channel(bus: EventBus) -> None:
    with bus.channel("t") as one:
        with bus.channel("t") as two:
            assert one is two
        await bus.publish(commit(1))
        await arrived(one, 1)


async def test_channel_is_forgotten_with_its_last_user(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        await bus.publish(commit(1))
        await arrived(channel, 1)
    with bus.channel("t") as channel:
        assert channel.version == 0


async def test_publishing_without_anybody_there_is_fine(bus: EventBus) -> None:
    await within(bus.publish(commit(1)))


async def test_channel_has_a_bound_and_sends_late_readers_to_storage(bus: EventBus) -> None:
    count = TaskChannel.MAX_EVENTS + 10
    with bus.channel("t") as channel, channel.reader():
        for number in range(1, count + 1):
            await within(bus.publish(commit(number)))
        await arrived(channel, count)
        assert channel.read(0) is None
        assert channel.read(9) is None
        newest = channel.read(10)
        assert newest is not None
        assert len(newest) == TaskChannel.MAX_EVENTS


async def test_channel_has_a_bound_in_bytes(bus: EventBus) -> None:
    large = b"x" * (TaskChannel.MAX_BYTES // 2)
    with bus.channel("t") as channel, channel.reader():
        for number in range(1, 5):
            await bus.publish(Committed("t", number, number, WORKING, [large]))
        await arrived(channel, 4)
        assert channel.read(0) is None
        assert channel.read(3) == [large]


async def test_gap_is_found_by_the_numbers(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        await bus.publish(commit(1))
        await bus.publish(commit(3))
        await arrived(channel, 3)
        assert channel.read(0) is None
        assert channel.read(1) is None
        assert channel.read(2) == [b"3"]


async def test_commit_that_is_told_twice_counts_once(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        for number in (1, 2, 2, 1, 3):
            await bus.publish(commit(number))
        await arrived(channel, 3)
        assert channel.read(0) == [b"1", b"2", b"3"]


async def test_waiting_reader_that_is_cancelled_leaves_nothing_behind(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        waiting = asyncio.create_task(channel.changed())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await within(bus.publish(commit(1)))
        await arrived(channel, 1)


async def test_every_waiting_reader_is_woken(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        waiting = [asyncio.create_task(channel.changed()) for _ in range(5)]
        await asyncio.sleep(0)
        await bus.publish(commit(1))
        await within(asyncio.gather(*waiting))


async def test_watch_settles_with_its_operations_end(bus: EventBus) -> None:
    outcome = Outcome(OutcomeKind.TASK, 2)
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.publish(commit(1, operation_id="other", outcome=outcome))
        await bus.publish(commit(2, operation_id="mine"))
        await arrived(channel, 2)
        assert not watch.settled.done()
        await bus.publish(commit(3, operation_id="mine", outcome=outcome, state=COMPLETED))
        assert (await within(watch.settled)).outcome == outcome
        assert watch.ended is not None


async def test_outcome_without_events_is_heard(bus: EventBus) -> None:
    outcome = Outcome(OutcomeKind.MESSAGE, payload=pb.Message().SerializeToString())
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.publish(Committed("t", 0, 0, 0, operation_id="mine", outcome=outcome))
        assert (await within(watch.settled)).outcome == outcome


async def test_watch_settles_when_its_turn_asks_for_input(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.publish(commit(1, state=INPUT_REQUIRED, operation_id="mine", settles=True))
        assert (await within(watch.settled)).state == INPUT_REQUIRED
        assert watch.ended is None


async def test_watch_does_not_settle_by_a_state_that_is_not_its_turns(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.publish(commit(1, state=INPUT_REQUIRED, operation_id="mine"))
        await arrived(channel, 1)
        assert not watch.settled.done()


async def test_reader_that_comes_later_finds_the_older_events_in_storage(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        await bus.publish(commit(1))
        await arrived(channel, 1)
        with channel.reader():
            await bus.publish(commit(2))
            await arrived(channel, 2)
            assert channel.read(0) is None
            assert channel.read(1) == [b"2"]


async def test_gap_that_is_told_without_events_is_found_too(bus: EventBus) -> None:
    """As at the start of a turn, after somebody wrote to the task without publishing."""
    with bus.channel("t") as channel, channel.reader():
        await bus.publish(commit(1))
        await bus.publish(commit(2))
        await bus.publish(Committed("t", 4, 4, WORKING, operation_id="o", starts=True))
        await arrived(channel, 4)
        assert channel.read(0) is None
        assert channel.read(2) is None
        assert channel.read(4) == []
        await bus.publish(commit(5))
        await arrived(channel, 5)
        assert channel.read(2) is None
        assert channel.read(4) == [b"5"]
