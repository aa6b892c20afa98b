"""Readers of a task: the one place that serves them.

A subscription yields the events after a given one, exactly once each and in commit order, wherever
they were committed: from the channel of the bus while it keeps up, from storage where it does not.
What its reader has seen is one number, so a reader costs the writer nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from a2a_grpc import pb
from a2a_grpc.bus.base import EventBus, OperationWatch, TaskChannel
from a2a_grpc.errors import TaskNotFoundError
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    LogTruncatedError,
    OutcomeKind,
    Snapshot,
)
from a2a_grpc.task import TERMINAL_STATES, EntryKind, LogEntry


class Streamed(NamedTuple):
    """What a reader gets: a serialized StreamResponse, and the sequence number it then has seen.

    The number is 0 for a direct Message, which is no event of a task.
    `reset` says that it is a whole Task that replaces all the reader had.
    """

    sequence: int
    payload: bytes
    reset: bool = False

    @property
    def is_task(self) -> bool:
        """Whether it is a whole Task."""
        return self.payload[:1] == b"\x0a"  # the tag of StreamResponse.task

    def entry(self) -> LogEntry:
        """The event, to be folded into the task that came before it."""
        return LogEntry(0, self.sequence, EntryKind.EVENT, self.payload)

    def stamped(self) -> bytes:
        """The event with its sequence number in its metadata, under `SEQUENCE_EXTENSION`."""
        event = pb.StreamResponse.FromString(self.payload)
        kind = event.WhichOneof("payload")
        if kind is not None and kind != "message":
            value = getattr(event, kind).metadata.fields[SEQUENCE_EXTENSION].struct_value
            value["sequence"] = self.sequence
            if self.reset:
                value["reset"] = True
        return event.SerializeToString()


class Subscription:
    """One reader of one task; an async context manager.

    Open it before the snapshot is taken, or before the operation is submitted, whose events it is
    to follow; then nothing is missed in between.
    """

    READ_LIMIT = 512
    """Events that are read from storage at a time."""

    def __init__(self, storage: AnyStorage, bus: EventBus, task_id: str) -> None:
        self._storage = storage
        self._bus = bus
        self._task_id = task_id
        self._after = 0
        self._newest = 0
        self._version = 0
        self._state = 0
        self._watch: OperationWatch | None = None
        self._stack = ExitStack()

    async def __aenter__(self) -> Self:
        self._channel: TaskChannel = self._bus.open(self._task_id)
        self._stack.callback(self._bus.close, self._task_id)
        self._stack.enter_context(self._channel.reader())
        try:
            await self._bus.attached(self._task_id)
        except BaseException:
            self._stack.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def channel(self) -> TaskChannel:
        """The channel it reads."""
        return self._channel

    def watch(self, operation_id: str) -> OperationWatch:
        """Let the subscription end with this operation, or when it asks for input."""
        self._watch = self._stack.enter_context(self._channel.watch(operation_id))
        return self._watch

    async def begin(self, version: int | None = None) -> Snapshot:
        """The task now, or as it was at `version`; the events that follow begin after it.

        Raises TaskNotFoundError, LogTruncatedError.
        """
        snapshot = await self._storage.load_snapshot(self._task_id, version=version)
        if snapshot is None:
            raise TaskNotFoundError.of(self._task_id)
        self.start_from(snapshot)
        return snapshot

    def start_from(self, snapshot: Snapshot, *, after: int | None = None) -> None:
        """Begin after the snapshot, or after the earlier event `after`."""
        self._after = snapshot.sequence if after is None else after
        self._newest, self._version = snapshot.sequence, snapshot.version
        self._state = snapshot.task.status.state

    async def events(self) -> AsyncIterator[Streamed]:
        """The events, until the task or the operation ends.

        A reader who fell behind what storage still has gets the whole Task, marked as a reset. An
        operation that is watched and comes to a direct Message yields that; if it comes to an
        error, that is raised.
        """
        channel = self._channel
        while True:
            batch = channel.read(self._after)
            if batch is None or (not batch and self._after < self._newest):
                try:
                    batch = await self._storage.load_events(
                        self._task_id, self._after, self.READ_LIMIT
                    )
                except LogTruncatedError:
                    snapshot = await self._storage.load_snapshot(self._task_id)
                    if snapshot is not None:
                        self.start_from(snapshot)
                        whole = pb.StreamResponse(task=snapshot.task).SerializeToString()
                        yield Streamed(snapshot.sequence, whole, True)
                        continue
                    batch = []
                if not batch:
                    return  # there was an event to read, and now there is none: the task is gone
            end = self._end()
            # Nothing, if the operation's end was behind a reset.
            for payload in batch if end is None else batch[: max(0, end - self._after)]:
                self._after += 1
                yield Streamed(self._after, payload)
            if batch and (end is None or self._after < end):
                continue
            if self._is_over():
                break
            await channel.changed()

        ended = None if self._watch is None else self._watch.ended
        outcome = None if ended is None else ended.outcome
        if outcome is not None and (error := outcome.error()) is not None:
            raise error
        if outcome is not None and outcome.kind is OutcomeKind.MESSAGE:
            reply = pb.StreamResponse(message=pb.Message.FromString(outcome.payload))
            yield Streamed(0, reply.SerializeToString())

    def _end(self) -> int | None:
        """The last event of the operation that is watched, once it is known."""
        if self._watch is None:
            return None
        last = self._watch.asked or self._watch.ended
        return None if last is None else last.sequence

    def _is_over(self) -> bool:
        end = self._end()
        if end is not None and end <= self._after:
            return True
        channel = self._channel
        state = channel.state if channel.version >= self._version else self._state
        return state in TERMINAL_STATES and channel.sequence <= self._after
