"""The bus seam: tells this process's readers what was committed, wherever it was committed.

The bus wakes and carries fresh events; the truth is in storage. A `TaskChannel` is this process's
window on one task, shared by all who read that task here, and has a bound.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from a2a_grpc import pb
from a2a_grpc.storage.values import (
    Outcome,
)

_INPUT_REQUIRED = pb.TaskState.TASK_STATE_INPUT_REQUIRED


class BusOpenError(Exception):
    """The bus can't be opened; the message names it and the remedy, and no secret."""


class Committed(NamedTuple):
    """What one commit did to a task, as told to readers after it was stored.

    `payloads` are serialized StreamResponses, the last of them with sequence number `sequence`;
    `version` and `state` are the task's after them. `operation_id` is the operation whose turn it
    was ("" outside a turn). `starts` marks the beginning of a turn, which has no events; `settles`
    says that the turn has brought the task to an end or an interruption; `outcome` is set by the
    commit that ends the operation.
    """

    task_id: str
    version: int
    sequence: int
    state: int
    payloads: Sequence[bytes] = ()
    operation_id: str = ""
    starts: bool = False
    settles: bool = False
    outcome: Outcome | None = None


OnCommit = Callable[[Committed, int], None]
"""Called after a commit that this process made, with the state that the task had before it."""


def ignore_commit(committed: Committed, state_before: int) -> None:
    """An `OnCommit` that does nothing."""


class OperationWatch:
    """What an operation came to, as far as the bus told.

    `started` is the beginning of its turn on a task that existed before; `settled` the first commit
    that ended the task, interrupted it, or ended the operation; `asked` the first that left the
    task in INPUT_REQUIRED; `ended` the one that ended the operation.
    """

    __slots__ = ("asked", "ended", "settled", "started")

    def __init__(self) -> None:
        self.settled: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self.started: Committed | None = None
        self.asked: Committed | None = None
        self.ended: Committed | None = None

    def tell(self, committed: Committed) -> None:
        """Take in a commit of the operation's turn."""
        if committed.starts:
            self.started = committed
        if committed.outcome is not None:
            self.ended = committed
        if committed.settles and committed.state == _INPUT_REQUIRED:
            self.asked = self.asked or committed
        if (committed.settles or committed.outcome is not None) and not self.settled.done():
            self.settled.set_result(committed)


class TaskChannel:
    """One task's newest events, read through cursors, and what its operations came to.

    Holds at most `MAX_EVENTS` events and about `MAX_BYTES` bytes; what falls out at the old end is
    read from storage by whoever still needs it. Nobody ever waits for a reader.
    """

    MAX_EVENTS = 1024
    MAX_BYTES = 4 * 2**20

    __slots__ = (
        "_bytes",
        "_events",
        "_readers",
        "_wakers",
        "_watches",
        "heard_at",
        "sequence",
        "state",
        "users",
        "version",
    )

    def __init__(self) -> None:
        self.users = 0
        self.heard_at = time.monotonic()
        """When it was told something, or else was opened; seconds of `time.monotonic`."""
        self.version = 0
        self.sequence = 0
        self.state = 0
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._readers = 0
        self._wakers: list[asyncio.Future[None]] = []
        self._watches: dict[str, list[OperationWatch]] = {}

    def append(self, committed: Committed) -> None:
        """Take in a commit; the bus calls it, in the order of the commits as far as it knows it."""
        self.heard_at = time.monotonic()
        if committed.version > self.version:
            if committed.sequence - len(committed.payloads) != self.sequence:
                # Something was not told here; whoever needs it reads storage.
                self._events.clear()
                self._bytes = 0
            if self._readers:
                self._keep(committed)
            self.version = committed.version
            self.sequence = committed.sequence
            self.state = committed.state
        elif committed.outcome is None and not (committed.starts or committed.settles):
            return  # told twice
        for watch in self._watches.get(committed.operation_id, ()):
            watch.tell(committed)
        self.wake()

    def _keep(self, committed: Committed) -> None:
        events = self._events
        for payload in committed.payloads:
            events.append(payload)
            self._bytes += len(payload)
        while len(events) > self.MAX_EVENTS or (self._bytes > self.MAX_BYTES and len(events) > 1):
            self._bytes -= len(events.popleft())

    def wake(self) -> None:
        """Wake every reader that waits."""
        if self._wakers:
            wakers, self._wakers = self._wakers, []
            for waker in wakers:
                if not waker.done():
                    waker.set_result(None)

    def read(self, after: int) -> list[bytes] | None:
        """The events with sequence numbers `after` + 1, ... as far as they are known here.

        None if event `after` + 1 exists and is not held here: read storage.
        """
        missing = self.sequence - after
        if missing <= 0:
            return []
        held = len(self._events)
        if missing > held:
            return None
        if missing == held:
            return list(self._events)
        return [self._events[index] for index in range(held - missing, held)]

    @contextmanager
    def reader(self) -> Iterator[None]:
        """While open, the channel keeps events."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._events.clear()
                self._bytes = 0

    def waiting(self) -> dict[str, int]:
        """The operations that are watched and neither ended nor asked for input, as far as is known
        here; and the version at which their turn began, 0 unless all who watch know it."""
        return {
            operation_id: min(0 if one.started is None else one.started.version for one in watches)
            for operation_id, watches in self._watches.items()
            if any(watch.ended is None and watch.asked is None for watch in watches)
        }

    async def changed(self) -> None:
        """Wait for the next commit.

        Whoever looks at the channel and then waits, without waiting for anything in between, misses
        none.
        """
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers.append(waker)
        try:
            await waker
        finally:
            if waker.cancelled() and waker in self._wakers:
                self._wakers.remove(waker)

    @contextmanager
    def watch(self, operation_id: str) -> Iterator[OperationWatch]:
        """Hear what the operation comes to."""
        watch = OperationWatch()
        watches = self._watches.setdefault(operation_id, [])
        watches.append(watch)
        try:
            yield watch
        finally:
            watches.remove(watch)
            if not watches:
                self._watches.pop(operation_id, None)


class EventBus(ABC):
    """Carries commits from the process that made them to readers everywhere.

    Guarantees, each held by the contract suite for every backend:

    - `publish` never waits for a reader, and costs next to nothing when nobody listens.
    - A channel that is open when `publish` is called hears of it, at least once unless the bus lost
      it; a reader finds out by the sequence numbers and reads storage.
    - Commits of one task published by one process arrive in order.

    `loses` says whether commits can get lost on the way; then `CatchUp` looks after the channels.
    """

    loses: ClassVar[bool] = False

    on_missed: Callable[[str], None] = staticmethod(lambda task_id: None)
    """Called with a task's id when something of it was not told; with "" when that may be so for
    every task."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @abstractmethod
    async def publish(self, committed: Committed) -> None:
        """Tell all channels of the task, here and elsewhere; what can't be told now is lost."""

    @abstractmethod
    def tell(self, committed: Committed) -> None:
        """Tell this process's channel of the task alone."""

    @abstractmethod
    def channels(self) -> Iterator[tuple[str, TaskChannel]]:
        """The channels that are open, by task."""

    @abstractmethod
    async def attached(self, task_id: str) -> None:
        """Wait until the task's open channel hears of what is published elsewhere.

        Whoever opens a channel waits for this before it reads storage, or submits what it wants to
        follow. Returns early if the bus can't be reached: `CatchUp` makes up for it.
        """

    @abstractmethod
    async def check(self) -> None:
        """Raises UnavailableError if the bus can't be reached."""

    @abstractmethod
    def open(self, task_id: str) -> TaskChannel:
        """The process's channel of the task; every `open` needs its `close`."""

    @abstractmethod
    def close(self, task_id: str) -> None:
        """Let go of the channel; the last one to do so removes it."""

    @contextmanager
    def channel(self, task_id: str) -> Iterator[TaskChannel]:
        """The task's channel, for as long as the block runs."""
        channel = self.open(task_id)
        try:
            yield channel
        finally:
            self.close(task_id)
