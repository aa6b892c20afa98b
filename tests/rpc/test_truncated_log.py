"""Readers whose task's log no longer reaches back to them: they get a reset (promises 2 and 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from a2a_grpc import pb
from a2a_grpc.bus.base import TaskChannel
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.values import (
    LogTruncatedError,
)
from a2a_grpc.subscription import Subscription
from tests.support import (
    CHANNEL_OPTIONS,
    COMPLETED,
    SEQUENCED,
    Client,
    Serving,
    a_task,
    chunk,
    collect,
    fold,
    outline,
    sequence_of,
    serving,
    status_update,
    take,
    text,
    within,
)

KEPT = 5
"""Entries that the store keeps of every log."""


class Growing:
    """Appends to one artifact until the store has forgotten event `lost` + 1; waits; completes.

    `begin` lets it start, `grown` says that the event is forgotten, `go` lets it go on.
    """

    def __init__(self, storage: AnyStorage, *, lost: int, size: int = 5000) -> None:
        self._storage = storage
        self._lost = lost
        self.size = size
        self.whole = ""
        self.begin, self.grown, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def execute(self, context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await self.begin.wait()
        while not await self._has_lost_it(context.task_id):
            await self._append(queue)
        self.grown.set()
        await self.go.wait()
        for _ in range(3):
            await self._append(queue)
        await queue.enqueue_event(status_update(COMPLETED))

    async def cancel(self, context: Any, queue: Any) -> None: ...

    async def _append(self, queue: Any) -> None:
        piece = f"{len(self.whole)},".ljust(self.size, ".")
        self.whole += piece
        await queue.enqueue_event(chunk(piece, append=True))

    async def _has_lost_it(self, task_id: str) -> bool:
        try:
            await self._storage.load_events(task_id, self._lost, 1)
        except LogTruncatedError:
            return True
        return False


@asynccontextmanager
async def growing(sqlite: str, **how: Any) -> AsyncIterator[tuple[Growing, Serving]]:
    storage = SqlStorage(sqlite, keep_entries=KEPT)
    agent = Growing(storage, **how)
    async with serving(agent, storage=storage) as s:
        yield agent, s


@asynccontextmanager
async def reader(s: Serving) -> AsyncIterator[Client]:
    """A client that takes in no more than one window of what it does not read."""
    options = (
        *CHANNEL_OPTIONS,
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
    )
    async with grpc.aio.insecure_channel(s.server.address, options=options) as channel:
        yield Client(channel)


def last_event(sequence: int) -> tuple[tuple[str, str], ...]:
    return (*SEQUENCED, ("last-event-id", str(sequence)))


def is_reset(event: pb.StreamResponse) -> bool:
    """Whether it is a Task that is marked as a reset."""
    metadata = event.task.metadata.fields
    return "reset" in metadata[SEQUENCE_EXTENSION].struct_value if metadata else False


def assert_numbered(events: list[pb.StreamResponse], first: int) -> None:
    """The events are `first`, `first` + 1, ..., and none of them is a reset."""
    assert [sequence_of(event) for event in events] == list(range(first, first + len(events)))
    assert not any(is_reset(event) for event in events)


async def test_reader_that_comes_back_too_late_gets_the_full_task_marked_as_a_reset(
    sqlite: str,
) -> None:
    async with growing(sqlite, lost=3) as (agent, s):
        agent.begin.set()
        stream = s.stream(call_metadata=SEQUENCED)
        seen = await take(stream, 3)
        stream.cancel()
        await within(agent.grown.wait())
        resumed = s.subscribe(seen[0].task.id, call_metadata=last_event(3))
        (first,) = await take(resumed, 1)
        assert is_reset(first)
        assert sequence_of(first) > 3 + KEPT
        # Whole, though what the agent published last may not be committed yet.
        pieces = sequence_of(first) - 1
        assert text(first.task.artifacts[0]) == agent.whole[: pieces * agent.size]
        agent.go.set()
        rest = await collect(resumed)
        assert_numbered(rest, sequence_of(first) + 1)
        assert fold([first, *rest]) == ("COMPLETED", {"a": agent.whole})


async def test_reader_that_comes_back_too_late_after_the_end_gets_the_full_task(
    sqlite: str,
) -> None:
    async with growing(sqlite, lost=3) as (agent, s):
        agent.begin.set()
        agent.go.set()
        task = await s.send()
        (only,) = await collect(s.subscribe(task.id, call_metadata=last_event(3)))
        assert is_reset(only)
        assert fold([only]) == ("COMPLETED", {"a": agent.whole})
        # Whoever is less far behind gets what is still there, and no reset.
        head = sequence_of(only)
        for seen in (head, head - 1, head - KEPT):
            first, *more = await collect(s.subscribe(task.id, call_metadata=last_event(seen)))
            assert outline([first]) == ["task COMPLETED"]
            assert not first.task.artifacts, "it has the content already"
            assert not is_reset(first)
            assert len(more) == head - seen
            assert_numbered(more, seen + 1)


@pytest.mark.parametrize("method", ["SendStreamingMessage", "SubscribeToTask"])
async def test_slow_reader_behind_a_truncated_log_gets_a_reset_and_then_the_rest(
    method: str, sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the process holds for a reader, and what is under way to it, is less than what is lost.
    monkeypatch.setattr(TaskChannel, "MAX_EVENTS", 4)
    monkeypatch.setattr(Subscription, "READ_LIMIT", 4)
    async with growing(sqlite, lost=30, size=2**16) as (agent, s), reader(s) as client:
        slow = client.stream(call_metadata=SEQUENCED)
        before = await take(slow, 1)
        if method == "SubscribeToTask":
            slow = client.subscribe(before[0].task.id, call_metadata=SEQUENCED)
            before = await take(slow, 1)
        agent.begin.set()
        await within(agent.grown.wait(), 30)
        reset, *_ = await take(slow, 1)
        while not is_reset(reset):
            before.append(reset)
            (reset,) = await take(slow, 1)
        assert_numbered(before, 1)
        assert sequence_of(reset) > sequence_of(before[-1]) + 1
        agent.go.set()
        rest = await collect(slow)
        assert_numbered(rest, sequence_of(reset) + 1)
        assert fold([reset, *rest]) == ("COMPLETED", {"a": agent.whole})
