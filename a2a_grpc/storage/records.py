"""Tasks as the memory storage holds them, one by one and as the lists of their scopes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from a2a_grpc import pb
from a2a_grpc.storage.values import Head, Scope
from a2a_grpc.task import EntryKind, LogEntry, TaskFold

_Key = tuple[int, str]


class Record:
    """One task: its head, its log, and a fold that follows the log when somebody reads.

    There are many of these, so a log is no more than the payloads of its entries: which of them are
    messages of the user is kept aside, and events have a list of their own only if there are any.
    """

    __slots__ = (
        "cancel_requested",
        "context_id",
        "events",
        "fence",
        "fold",
        "folded",
        "listed",
        "log",
        "messages",
        "owner",
        "running",
        "scope",
        "state",
        "status_at",
        "task_id",
    )

    def __init__(self, task_id: str, context_id: str, scope: Scope) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.state = 0
        self.status_at = 0
        self.fence = 0
        self.running = False
        self.owner = 0  # which opening of the storage the turn belongs to
        self.cancel_requested = False
        self.log: list[bytes] = []
        self.messages: list[int] | None = None  # versions
        self.events = self.log
        self.fold: TaskFold | None = None
        self.folded = 0
        self.listed: tuple[_Key, int] | None = None

    def head(self) -> Head:
        return Head(
            self.task_id,
            self.context_id,
            self.scope,
            self.state,
            self.status_at,
            len(self.log),
            len(self.events),
            self.fence,
            self.running,
        )

    def append(self, entry: LogEntry) -> None:
        if entry.kind is EntryKind.MESSAGE:
            if self.messages is None:
                self.messages, self.events = [], self.log.copy()
            self.messages.append(entry.version)
        elif self.messages is not None:
            self.events.append(entry.payload)
        self.log.append(entry.payload)

    def sequence_at(self, version: int) -> int:
        return version - bisect_right(self.messages or (), version)

    def entries(self, start: int, stop: int) -> Iterator[LogEntry]:
        messages = self.messages or ()
        for version in range(start + 1, stop + 1):
            kind = EntryKind.MESSAGE if version in messages else EntryKind.EVENT
            yield LogEntry(version, self.sequence_at(version), kind, self.log[version - 1])

    def task_at(self, version: int) -> pb.Task:
        if version < self.folded:
            fold = TaskFold()
            fold.apply(self.entries(0, version))
            return fold.task
        if self.fold is None:
            self.fold = TaskFold()
        if version > self.folded:
            self.fold.apply(self.entries(self.folded, version))
            self.folded = version
        result = pb.Task()
        result.CopyFrom(self.fold.task)
        return result


class TaskList:
    """The tasks of one scope in the order of ListTasks, by context and state.

    Sorted lean lists: what changes is nearly always the newest, so an insertion moves little.
    """

    __slots__ = ("_keys", "stale")

    def __init__(self) -> None:
        # "" and 0 stand for any context and any state.
        self._keys: dict[tuple[str, int], list[_Key]] = {}
        self.stale: dict[str, Record] = {}

    @property
    def is_empty(self) -> bool:
        return not self._keys and not self.stale

    def refresh(self) -> None:
        for record in self.stale.values():
            self.remove(record)
            key = (record.status_at, record.task_id)
            for place in self._places(record.context_id, record.state):
                insort(self._keys.setdefault(place, []), key)
            record.listed = (key, record.state)
        self.stale.clear()

    def remove(self, record: Record) -> None:
        if record.listed is None:
            return
        key, state = record.listed
        for place in self._places(record.context_id, state):
            keys = self._keys[place]
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._keys[place]
        record.listed = None

    def keys(self, context_id: str, state: int) -> list[_Key]:
        return self._keys.get((context_id, state), [])

    @staticmethod
    def _places(context_id: str, state: int) -> set[tuple[str, int]]:
        return {("", 0), ("", state), (context_id, 0), (context_id, state)}
