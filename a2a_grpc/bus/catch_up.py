"""Looks into storage for channels that have heard nothing for a while.

A bus may lose what it is told; what is lost on the way comes late by this, and nobody waits for
ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from a2a_grpc import pb
from a2a_grpc.bus.base import Committed, EventBus, TaskChannel
from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    Head,
    LogTruncatedError,
    OperationState,
    Outcome,
    OutcomeKind,
    Progress,
    Snapshot,
)
from a2a_grpc.task import INTERRUPTED_STATES

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_AUTH_REQUIRED = pb.TaskState.TASK_STATE_AUTH_REQUIRED


class CatchUp:
    """Tells channels what storage has and they have not heard; an async context manager.

    It tells the newest version without its events, which readers then read from storage; that a
    watched operation has begun, asked for input, or ended, and with what.

    One task, owned here. A channel is looked at when it has heard nothing for `interval`; at once
    when the bus says that it missed something; not while the storage is away, and again after that.

    Args:
        interval: seconds.
    """

    CHUNK = 500
    """Tasks, or operations, that are looked up at a time."""

    MAX_SEEN = 10_000
    """Turns that were seen not to have interrupted their task so far."""

    def __init__(self, storage: AnyStorage, bus: EventBus, *, interval: float = 1.0) -> None:
        self._storage = storage
        self._bus = bus
        self._interval = interval
        self._missed: set[str] = set()
        self._missed_all = False
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_away = False
        self._seen: dict[str, int] = {}  # the version, by operation

    async def __aenter__(self) -> Self:
        self._bus.on_missed = self._note
        self._task = asyncio.create_task(self._run(), name="catch-up")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bus.on_missed = _ignore
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _note(self, task_id: str) -> None:
        if task_id:
            self._missed.add(task_id)
        else:
            self._missed_all = True
        self._stir.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval / 4):
                    await self._stir.wait()
            self._stir.clear()
            if not await self._look():
                await asyncio.sleep(self._interval)

    async def _look(self) -> bool:
        """Look at the channels that are due; False if that can't be done now."""
        due = self._due()
        try:
            for chunk in _chunks(due, self.CHUNK):
                await self._look_at(chunk)
        except Exception as error:
            self._missed.update(task_id for task_id, _ in due)
            if not self._is_away:
                self._is_away = True
                logger.warning(
                    "readers can't be told what the bus may have lost: %s",
                    error,
                    exc_info=None if isinstance(error, UnavailableError) else error,
                )
            return False
        self._is_away = False
        return True

    def _due(self) -> list[tuple[str, TaskChannel]]:
        everything, self._missed_all = self._missed_all, False
        missed, self._missed = self._missed, set()
        latest = time.monotonic() - self._interval
        return [
            (task_id, channel)
            for task_id, channel in self._bus.channels()
            if everything or channel.heard_at <= latest or task_id in missed
        ]

    async def _look_at(self, chunk: Sequence[tuple[str, TaskChannel]]) -> None:
        operation_ids = [one for _, channel in chunk for one in channel.waiting()]
        # First how far the operations are, then the tasks: so a head is never older than the
        # outcomes that are told with it.
        progress: dict[str, Progress] = {}
        for some in _chunks(operation_ids, self.CHUNK):
            progress.update(
                (one.operation_id, one) for one in await self._storage.load_progress(some)
            )
        heads = {
            head.task_id: head
            for head in await self._storage.load_heads([task_id for task_id, _ in chunk])
        }
        for task_id, channel in chunk:
            head = heads.get(task_id)
            news = [
                one
                for operation_id, began in channel.waiting().items()
                if operation_id in progress
                and (one := await self._news(task_id, head, progress[operation_id], began))
            ]
            channel.heard_at = time.monotonic()
            # Together, so that no reader sees the one without the other.
            if head is not None and head.version > channel.version:
                self._bus.tell(_now(head))
            for committed in news:
                self._bus.tell(committed)

    async def _news(
        self, task_id: str, head: Head | None, progress: Progress, began: int
    ) -> Committed | None:
        """What whoever waits for the operation has not heard, as far as that can be told.

        `began` is the version at which its turn began, 0 if that was not heard.
        """
        operation_id = progress.operation_id
        if progress.state is OperationState.DONE and progress.outcome is not None:
            return await self._end(task_id, head, operation_id, progress.outcome)
        if head is None or progress.state is not OperationState.STARTED:
            return None
        if head.state in INTERRUPTED_STATES:
            interruption = await self._interruption(head, operation_id, began)
            if interruption is not None:
                return interruption._replace(starts=not began)
        return None if began else _now(head)._replace(operation_id=operation_id, starts=True)

    async def _interruption(self, head: Head, operation_id: str, began: int) -> Committed | None:
        """The commit that interrupted the task, if it was of the operation's own turn."""
        if self._seen.get(operation_id) == head.version:
            return None
        snapshot = await self._storage.load_snapshot(head.task_id, history_length=0)
        # Read last: what is under way now was so when the snapshot was taken.
        operation = await self._storage.load_operation(operation_id)
        if snapshot is None or operation is None or operation.outcome is not None:
            return None
        status = snapshot.task.status
        if status.state not in INTERRUPTED_STATES:
            return None
        # A turn begins by moving the question before it into the history.
        found = operation.creates_task or status.HasField("message")
        if not found and began:
            before = await self._at(head.task_id, began)
            found = before is not None and before.task.status.timestamp != status.timestamp
        elif not found and status.state == _AUTH_REQUIRED:
            # By the clocks of two processes. Who asks for input without a word is about to end the
            # turn, which tells more.
            found = status.timestamp.ToNanoseconds() >= operation.created_at * 1e9
        if not found:
            if len(self._seen) >= self.MAX_SEEN:
                self._seen.clear()
            self._seen[operation_id] = snapshot.version
            return None
        return Committed(
            head.task_id,
            snapshot.version,
            snapshot.sequence,
            status.state,
            operation_id=operation_id,
            settles=True,
        )

    async def _at(self, task_id: str, version: int) -> Snapshot | None:
        try:
            return await self._storage.load_snapshot(task_id, version=version, history_length=0)
        except LogTruncatedError:
            return None

    async def _end(
        self, task_id: str, head: Head | None, operation_id: str, outcome: Outcome
    ) -> Committed:
        """The commit that ended the operation; its sequence number ends the streams of it."""
        version, sequence, state = outcome.version, 0, 0
        if head is not None:
            state = head.state
            sequence = head.sequence
            if version and version < head.version:
                # The task has moved on since.
                snapshot = await self._at(task_id, version)
                if snapshot is not None:  # or else readers get the task as it is now
                    sequence = snapshot.sequence
                    state = snapshot.task.status.state
        return Committed(
            task_id,
            # Without a version of its own, it is told beside the task's commits.
            version,
            sequence,
            state,
            operation_id=operation_id,
            settles=outcome.kind is OutcomeKind.TASK,
            outcome=outcome,
        )


def _now(head: Head) -> Committed:
    return Committed(head.task_id, head.version, head.sequence, head.state)


def _chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _ignore(task_id: str) -> None: ...
