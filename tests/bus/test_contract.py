"""The contract of `EventBus`, which every backend passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from a2a_grpc import pb
from a2a_grpc.bus.base import Committed, EventBus, TaskChannel
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.bus.nats import NatsBus
from a2a_grpc.storage.values import (
    Outcome,
    OutcomeKind,
)
from tests.support import COMPLETED, INPUT_REQUIRED, WORKING, within


class ApartBus(NatsBus):
    """Reads here and publishes in another process, as far as NATS can tell."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._other = NatsBus(url)

    async def __aenter__(self) -> Self:
        await self._other.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        await super().__aexit__(*exc_info)
        await self._other.__aexit__(*exc_info)

    async def publish(self, committed: Committed) -> None:
        await self._other.publish(committed)


@pytest.fixture(params=["memory", "nats", "nats apart"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[EventBus]:
    if request.param == "memory":
        made: EventBus = InMemoryBus()
    else:
        url = request.getfixturevalue("nats_url")
        made = NatsBus(url) if request.param == "nats" else ApartBus(url)
    async with made as opened:
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
        await bus.attached("t")
        for number in range(1, 101):
            await bus.publish(commit(number))
        await arrived(channel, 100)
        assert channel.read(0) == [b"%d" % number for number in range(1, 101)]
        assert channel.read(97) == [b"98", b"99", b"100"]
        assert channel.read(100) == []
        assert (channel.version, channel.sequence, channel.state) == (100, 100, WORKING)


async def test_channel_hears_of_its_own_task_only(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        await bus.attached("t")
        await bus.publish(commit(1, task_id="other"))
        await bus.publish(commit(1))
        await arrived(channel, 1)
        assert channel.read(0) == [b"1"]


async def test_all_who_open_a_task_share_one_channel(bus: EventBus) -> None:
    with bus.channel("t") as one:
        await bus.attached("t")
        with bus.channel("t") as two:
            assert one is two
        await bus.publish(commit(1))
        await arrived(one, 1)


async def test_channel_is_forgotten_with_its_last_user(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        await bus.attached("t")
        await bus.publish(commit(1))
        await arrived(channel, 1)
    with bus.channel("t") as channel:
        await bus.attached("t")
        assert channel.version == 0


async def test_publishing_without_anybody_there_is_fine(bus: EventBus) -> None:
    await within(bus.publish(commit(1)))


async def test_channel_has_a_bound_and_sends_late_readers_to_storage(bus: EventBus) -> None:
    count = TaskChannel.MAX_EVENTS + 10
    with bus.channel("t") as channel, channel.reader():
        await bus.attached("t")
        for number in range(1, count + 1):
            await within(bus.publish(commit(number)))
        await arrived(channel, count)
        assert channel.read(0) is None
        assert channel.read(9) is None
        newest = channel.read(10)
        assert newest is not None
        assert len(newest) == TaskChannel.MAX_EVENTS


async def test_channel_has_a_bound_in_bytes(bus: EventBus) -> None:
    large = b"x" * (TaskChannel.MAX_BYTES // 8)
    with bus.channel("t") as channel, channel.reader():
        await bus.attached("t")
        for number in range(1, 13):
            await bus.publish(Committed("t", number, number, WORKING, [large]))
        await arrived(channel, 12)
        assert channel.read(0) is None
        assert channel.read(11) == [large]


async def test_gap_is_found_by_the_numbers(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        await bus.attached("t")
        await bus.publish(commit(1))
        await bus.publish(commit(3))
        await arrived(channel, 3)
        assert channel.read(0) is None
        assert channel.read(1) is None
        assert channel.read(2) == [b"3"]


async def test_commit_that_is_told_twice_counts_once(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.reader():
        await bus.attached("t")
        for number in (1, 2, 2, 1, 3):
            await bus.publish(commit(number))
        await arrived(channel, 3)
        assert channel.read(0) == [b"1", b"2", b"3"]


async def test_waiting_reader_that_is_cancelled_leaves_nothing_behind(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        await bus.attached("t")
        waiting = asyncio.create_task(channel.changed())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await within(bus.publish(commit(1)))
        await arrived(channel, 1)


async def test_every_waiting_reader_is_woken(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        await bus.attached("t")
        waiting = [asyncio.create_task(channel.changed()) for _ in range(5)]
        await asyncio.sleep(0)
        await bus.publish(commit(1))
        await within(asyncio.gather(*waiting))


async def test_watch_settles_with_its_operations_end(bus: EventBus) -> None:
    outcome = Outcome(OutcomeKind.TASK, 2)
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.attached("t")
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
        await bus.attached("t")
        await bus.publish(Committed("t", 0, 0, 0, operation_id="mine", outcome=outcome))
        assert (await within(watch.settled)).outcome == outcome


async def test_watch_settles_when_its_turn_asks_for_input(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.attached("t")
        await bus.publish(commit(1, state=INPUT_REQUIRED, operation_id="mine", settles=True))
        assert (await within(watch.settled)).state == INPUT_REQUIRED
        assert watch.ended is None


async def test_watch_does_not_settle_by_a_state_that_is_not_its_turns(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.attached("t")
        await bus.publish(commit(1, state=INPUT_REQUIRED, operation_id="mine"))
        await arrived(channel, 1)
        assert not watch.settled.done()


async def test_reader_that_comes_later_finds_the_older_events_in_storage(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        await bus.attached("t")
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
        await bus.attached("t")
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


async def test_settling_that_is_told_late_is_heard(bus: EventBus) -> None:
    """What the newest version means for an operation may be known after the version itself."""
    with bus.channel("t") as channel, channel.watch("mine") as watch:
        await bus.attached("t")
        await bus.publish(commit(1, state=INPUT_REQUIRED))
        await arrived(channel, 1)
        await bus.publish(Committed("t", 1, 1, INPUT_REQUIRED, operation_id="mine", settles=True))
        assert (await within(watch.settled)).version == 1
        assert watch.asked is not None


async def test_everything_that_is_said_arrives(bus: EventBus) -> None:
    outcome = Outcome(OutcomeKind.ERROR, 7, b"\x00error\xff")
    full = Committed(
        "t", 7, 5, INPUT_REQUIRED, [b"", b"\x00a", b"bc"], "operation ü", True, True, outcome
    )
    with bus.channel("t") as channel, channel.watch("operation ü") as watch, channel.reader():
        await bus.attached("t")
        await bus.publish(full)
        told = await within(watch.settled)
        assert told._replace(payloads=list(told.payloads)) == full
        assert watch.started == watch.ended == told
        assert channel.read(2) == [b"", b"\x00a", b"bc"]


@pytest.mark.parametrize("task_id", ["a.b", "*", ">", "a b", "ü\r\n", "x" * 5000, "=", " "])
async def test_task_ids_may_be_any_text(bus: EventBus, task_id: str) -> None:
    with bus.channel(task_id) as channel, bus.channel("b") as other, channel.reader():
        await bus.attached(task_id)
        await bus.attached("b")
        await bus.publish(commit(1, task_id=task_id))
        await arrived(channel, 1)
        assert channel.read(0) == [b"1"]
        assert other.version == 0


async def test_channel_is_told_here_alone(bus: EventBus) -> None:
    with bus.channel("t") as channel:
        bus.tell(commit(1))
        assert channel.version == 1
        bus.tell(commit(1, task_id="other"))


async def test_open_channels_are_known(bus: EventBus) -> None:
    with bus.channel("t") as one, bus.channel("u") as two:
        assert dict(bus.channels()) == {"t": one, "u": two}
    assert not list(bus.channels())


async def test_channel_knows_when_it_heard_something_and_who_waits(bus: EventBus) -> None:
    with bus.channel("t") as channel, channel.watch("a"), channel.watch("b"):
        await bus.attached("t")
        opened = channel.heard_at
        assert channel.waiting() == {"a": 0, "b": 0}
        await bus.publish(commit(1, operation_id="a", starts=True))
        await arrived(channel, 1)
        assert channel.heard_at > opened
        assert channel.waiting() == {"a": 1, "b": 0}
        outcome = Outcome(OutcomeKind.TASK, 2)
        await bus.publish(commit(2, operation_id="a", outcome=outcome))
        await bus.publish(commit(3, operation_id="b", settles=True, state=INPUT_REQUIRED))
        await arrived(channel, 3)
        assert channel.waiting() == {}


async def test_attaching_returns_for_whoever_asks(bus: EventBus) -> None:
    with bus.channel("t"), bus.channel("u"):
        await within(asyncio.gather(*(bus.attached(id) for id in "tutu")))
        await within(bus.attached("t"))
    await within(bus.attached("t"))  # closed already


async def test_channel_that_is_opened_again_and_again_hears_each_time(bus: EventBus) -> None:
    for number in range(1, 101):
        with bus.channel("t") as channel:
            if number % 3 == 0:
                await asyncio.sleep(0)
            await bus.attached("t")
            await bus.publish(commit(number))
            await arrived(channel, number)


async def test_open_bus_passes_its_check(bus: EventBus) -> None:
    await bus.check()
