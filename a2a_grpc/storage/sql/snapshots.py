"""Recent tasks, folded, so that reading what was just written costs no look into the database.

Only tasks that were created while the storage is open are here, and only whole: each group that
this process wrote passes by. Where it is the only writer, an entry is always the task's newest
version; where others write, too, it is a version that the task had.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from a2a_grpc import pb
from a2a_grpc.storage.sql.group import Appended
from a2a_grpc.storage.values import (
    Scope,
    Snapshot,
)
from a2a_grpc.task import LogEntry, TaskFold, trim_history

ENTRY_OVERHEAD = 256
"""Bytes that an entry of the log is taken to cost besides its payload."""


class _Recent:
    """A task: what is folded already, and what is left to fold when somebody reads."""

    __slots__ = ("fold", "scope", "sequence", "size", "unfolded", "version")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.fold = TaskFold()
        self.unfolded: list[LogEntry] = []
        self.version = 0
        self.sequence = 0
        self.size = 0

    def append(self, entries: Iterable[LogEntry]) -> None:
        for entry in entries:
            self.unfolded.append(entry)
            self.version, self.sequence = entry.version, entry.sequence
            self.size += len(entry.payload) + ENTRY_OVERHEAD


class RecentSnapshots:
    """A bounded cache of the newest versions of tasks; for the event loop alone.

    Args:
        max_bytes: of all tasks together, counted as the payloads of their logs. The task that was
            read or written longest ago makes room. A task larger than a 64th of it is not kept:
            copying it would hold up the event loop.
        shared: whether other processes write, too: then it answers for exact versions alone.
    """

    def __init__(self, max_bytes: int, *, shared: bool = False) -> None:
        self._max_bytes = max_bytes
        self._shared = shared
        self._bytes = 0
        self._recent: OrderedDict[str, _Recent] = OrderedDict()

    def follow(self, appended: Appended) -> None:
        """Take in what a log gained."""
        task_id = appended.task_id
        if appended.after == 0:
            self.forget(task_id)
            recent = self._recent[task_id] = _Recent(appended.scope)
        else:
            known = self._recent.get(task_id)
            if known is None:
                return
            if known.version != appended.after:
                self.forget(task_id)  # somebody else went on with its log
                return
            recent = known
        before = recent.size
        recent.append(appended.entries)
        self._bytes += recent.size - before
        self._recent.move_to_end(task_id)
        if recent.size > self._max_bytes // 64:
            self.forget(task_id)
        while self._bytes > self._max_bytes:
            self.forget(next(iter(self._recent)))

    def forget(self, task_id: str) -> None:
        """Drop a task, if it is here."""
        recent = self._recent.pop(task_id, None)
        if recent is not None:
            self._bytes -= recent.size

    def load(
        self, task_id: str, scope: Scope | None, version: int | None, history_length: int | None
    ) -> Snapshot | None:
        """The task as `Storage.load_snapshot` returns it, or None if it is not here."""
        recent = self._recent.get(task_id)
        if recent is None or (scope is not None and recent.scope != scope):
            return None
        if version is None and self._shared:
            return None
        if version is not None and version != recent.version:
            return None
        recent.fold.apply(recent.unfolded)
        recent.unfolded.clear()
        self._recent.move_to_end(task_id)
        task = pb.Task()
        task.CopyFrom(recent.fold.task)
        trim_history(task, history_length)
        return Snapshot(task, recent.version, recent.sequence)
