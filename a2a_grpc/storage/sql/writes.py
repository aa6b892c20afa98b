"""The kinds of writes, and what each of them decides on the rows of its group.

A write says first what it needs to see, then either changes the group's state or raises before it
changed anything. Payloads are serialized in the caller, so a message that can't be is the caller's
error alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Executable

from a2a_grpc import pb
from a2a_grpc.storage.sql import statements
from a2a_grpc.storage.sql.group import (
    Group,
    LaterError,
    OldestChangedError,
    Values,
    Wanted,
)
from a2a_grpc.storage.sql.rows import SNAPSHOT_FLOOR, TaskRow, column_time
from a2a_grpc.storage.values import (
    Commit,
    FenceLostError,
    Operation,
    OperationState,
    Outcome,
    Scope,
    VersionConflictError,
    check_related,
    finished_task_outcome,
)
from a2a_grpc.task import TERMINAL_STATES, EntryKind, LogEntry, message_entry

ResultT = TypeVar("ResultT")


class Write(ABC, Generic[ResultT]):
    """One caller's write."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """About how many bytes it writes, where that can be much."""
        return 0

    def collect(self, wanted: Wanted) -> None:
        """Name what `apply` needs to see."""

    @abstractmethod
    def apply(self, group: Group) -> ResultT:
        """Change the group's state, or raise a StorageError or A2AError and change nothing."""


@dataclass(slots=True)
class SavePushConfig(Write[None]):
    """Create or replace a push configuration; its cursor starts at the task's newest event."""

    values: Values

    def collect(self, wanted: Wanted) -> None:
        wanted.tasks.add(self.values["task_id"])

    def apply(self, group: Group) -> None:
        task_id = self.values["task_id"]
        row = group.tasks.get(task_id)
        delivered = 0 if row is None else row.sequence
        values = {**self.values, "delivered": delivered}
        group.push(statements.put_push_config, task_id, values)


@dataclass(slots=True)
class ChangePushConfig(Write[None]):
    """Run an update or a deletion of a push configuration."""

    statement: Executable
    task_id: str
    values: Values

    def collect(self, wanted: Wanted) -> None:
        # Whether the target waits is said anew, so nobody may append to the task meanwhile.
        wanted.tasks.add(self.task_id)

    def apply(self, group: Group) -> None:
        group.push(self.statement, self.task_id, self.values)


@dataclass(slots=True)
class Admit(Write[Operation | str]):
    """Record an operation, unless there is a duplicate; then the id of that."""

    operation: Operation
    request: Values
    duplicates_since: float | None
    push_config: SavePushConfig | None

    @property
    def size(self) -> int:
        return len(self.request["request"])

    def collect(self, wanted: Wanted) -> None:
        wanted.numbers += 1
        wanted.operations.add(self.operation.id)
        if self.operation.deduplication_key:
            # Locked by all, so that whoever looks finds also what is not committed yet.
            wanted.new_keys.add(self.operation.deduplication_key)
            if self.duplicates_since is not None:
                wanted.deduplication_keys.add(self.operation.deduplication_key)
        if self.push_config is not None:
            self.push_config.collect(wanted)

    def apply(self, group: Group) -> Operation | str:
        # A caller may try again what it got no answer to.
        known = group.operations.get(self.operation.id)
        if known is None and self.duplicates_since is not None:
            known = group.newest_by_key.get(self.operation.deduplication_key)
            if known is not None and (known.is_refused or known.created_at < self.duplicates_since):
                known = None
        if known is not None:
            return known.id
        group.admit(self.operation, self.request)
        if self.push_config is not None:
            self.push_config.apply(group)
        return self.operation


@dataclass(slots=True)
class RefuseOperation(Write[bool]):
    """End an operation that never started."""

    operation_id: str
    outcome: Outcome

    def collect(self, wanted: Wanted) -> None:
        wanted.operations.add(self.operation_id)

    def apply(self, group: Group) -> bool:
        found = group.operations.get(self.operation_id)
        if found is None or found.state is not OperationState.QUEUED:
            return False
        group.finish(self.operation_id, self.outcome)
        return True


class StartedTurn(NamedTuple):
    """A turn that was started; `version` is the task's, with the message in its history."""

    operation: Operation
    fence: int
    version: int
    cancel_requested: bool


@dataclass(slots=True, eq=False)
class StartTurn(Write[StartedTurn | Operation | None]):
    """Begin an attempt at the oldest operation of a task.

    `operation` is that one as it was read before: a request never changes, and may be large.
    `started` is what became of the last try, also if nobody can tell whether that was kept;
    `given_up` is for whoever submitted it.
    """

    task_id: str
    operation: Operation | None = None
    started: StartedTurn | None = None
    given_up: bool = False

    @property
    def size(self) -> int:
        return 0 if self.operation is None else self.operation.request.ByteSize()

    def collect(self, wanted: Wanted) -> None:
        self.started = None
        wanted.tasks.add(self.task_id)
        wanted.starting.add(self.task_id)

    def apply(self, group: Group) -> StartedTurn | Operation | None:
        found = group.oldest.get(self.task_id)
        if found is None:
            return None
        if self.operation is None or (
            found.id != self.operation.id or found.state is OperationState.DONE
        ):
            raise OldestChangedError(f"task {self.task_id!r} goes on with another operation")
        operation, row = self.operation.copy(), group.tasks.get(self.task_id)
        operation.attempts, operation.handed_back = found.attempts, found.handed_back
        operation.state = found.state
        if row is not None and row.owner != group.replica and group.is_held(row):
            return None
        if found.home not in (None, group.replica) and group.lives(found.home):
            return None  # also if the task has ended: its process forgets what it keeps for it
        if row is not None and row.state in TERMINAL_STATES:
            if row.running:
                row.release()
                group.touch(row)
            outcome = finished_task_outcome(row.head(held=False), operation.attempts)
            group.finish(operation.id, outcome)
            operation.state, operation.outcome = OperationState.DONE, outcome
            operation.request = pb.SendMessageRequest()
            return operation
        if row is None:
            row = group.add_task(operation.task_id, operation.context_id, operation.scope)
        # After that it is there already, or in the Task that the first attempt created.
        if row.version and operation.state is OperationState.QUEUED:
            message = operation.request.message
            entry = message_entry(message, version=row.version + 1, sequence=row.sequence)
            group.append(row, [entry])
        group.count_attempt(found, 1)
        operation.attempts, operation.state = found.attempts, found.state
        row.fence += 1
        row.running, row.owner = True, group.replica
        group.touch(row)
        self.started = StartedTurn(operation, row.fence, row.version, row.cancel_requested)
        return self.started


@dataclass(slots=True)
class RequestCancel(Write[None]):
    """Remember that a task is to be canceled, while a turn holds it."""

    task_id: str

    def collect(self, wanted: Wanted) -> None:
        wanted.tasks.add(self.task_id)

    def apply(self, group: Group) -> None:
        row = group.tasks.get(self.task_id)
        if row is not None and row.running:
            row.cancel_requested = True
            group.touch(row)


@dataclass(slots=True)
class HandBack(Write[None]):
    """Undo what is kept of a turn whose `execute()` never began; the message stays in the task."""

    start: StartTurn

    def collect(self, wanted: Wanted) -> None:
        # Known by now: the group of the start is over.
        if self.start.started is not None:
            wanted.operations.add(self.start.started.operation.id)
            wanted.tasks.add(self.start.task_id)

    def apply(self, group: Group) -> None:
        started, row = self.start.started, group.tasks.get(self.start.task_id)
        if started is None:
            return
        found = group.operations.get(started.operation.id)
        if found is not None and found.state is not OperationState.STARTED:
            found = None
        if row is None and found is not None:
            if found.attempts >= started.operation.attempts:
                # The start ended between the two reads of this group; its row is new.
                raise LaterError(f"task {self.start.task_id!r} is there by now")
            return
        if row is None or not row.running:
            return
        if row.owner != group.replica or row.fence != started.fence:
            return
        row.release()
        group.touch(row)
        if found is not None:
            group.count_attempt(found, -1)


class CommitTask(Write[bool]):
    """Apply a commit."""

    __slots__ = ("commit", "related")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.related = [
            (task, pb.StreamResponse(task=task).SerializeToString()) for task in commit.related
        ]

    @property
    def size(self) -> int:
        entries = sum(len(entry.payload) for entry in self.commit.entries)
        return entries + sum(len(payload) for _, payload in self.related)

    def collect(self, wanted: Wanted) -> None:
        wanted.tasks.add(self.commit.task_id)
        wanted.tasks.update(task.id for task, _ in self.related)
        if self.commit.ends_turn:
            wanted.ending.add(self.commit.task_id)
        if self.commit.hands_back:
            wanted.operations.add(self.commit.hands_back)

    def apply(self, group: Group) -> bool:
        commit = self.commit
        row = group.tasks.get(commit.task_id)
        self._check(group, row)
        if row is not None and row.running and not commit.fence:
            row.release()  # from a turn of a replica that is gone
            group.touch(row)
        if commit.entries:
            if row is None:
                row = group.add_task(commit.task_id, commit.context_id, commit.scope)
            row.state, row.status_at = commit.state, column_time(commit.status_at)
            group.append(row, commit.entries)
        for task, payload in self.related:
            self._store_related(group, task, payload)
        for operation_id, outcome in commit.finished:
            group.finish(operation_id, outcome)
        if commit.ends_turn and row is not None:
            # A row that was never created stays with its fence, so that a late commit of this turn
            # does not pass for one of the next.
            row.release()
            if commit.finished:
                row.cancel_requested = False
            group.touch(row)
        if commit.hands_back:
            group.count_handed_back(commit.hands_back)
        return commit.ends_turn and group.has_unfinished(commit.task_id)

    def _check(self, group: Group, row: TaskRow | None) -> None:
        commit = self.commit
        task_id = commit.task_id
        if commit.fence:
            if row is None or not row.running or row.fence != commit.fence:
                raise FenceLostError(f"the turn no longer holds task {task_id!r}")
            if row.owner != group.replica:
                raise FenceLostError(f"this process has given up task {task_id!r}")
        elif row is not None and group.is_held(row):
            raise FenceLostError(f"a turn holds task {task_id!r}")
        version = 0 if row is None else row.version
        if version != commit.expected_version:
            raise VersionConflictError(
                f"task {task_id!r} is at version {version}, not {commit.expected_version}"
            )
        if commit.entries and row is not None and row.state in TERMINAL_STATES:
            raise VersionConflictError(f"task {task_id!r} has ended")
        for task, _ in self.related:
            other = group.tasks.get(task.id)
            owner, running = (other.scope, group.is_held(other)) if other else (None, False)
            check_related(task, commit.task_id, commit.scope, owner, running)

    def _store_related(self, group: Group, task: pb.Task, payload: bytes) -> None:
        row = group.tasks.get(task.id)
        if row is None:
            row = group.add_task(task.id, task.context_id, self.commit.scope)
        row.state = task.status.state
        row.status_at = column_time(task.status.timestamp.ToNanoseconds())
        group.append(row, [LogEntry(row.version + 1, row.sequence + 1, EntryKind.EVENT, payload)])


@dataclass(slots=True)
class PutSnapshot(Write[None]):
    """Store a task's snapshot, folded from its log.

    `log_bytes` are those of the log up to `version`. With `keep_entries` the log is forgotten as
    far as the snapshot replaces it, but for that many of its newest entries. With `compacts` all of
    it is forgotten, if the task has still ended and is at that version.
    """

    task_id: str
    number: int
    version: int
    sequence: int
    log_bytes: int
    body: bytes
    artifacts: bytes
    keep_entries: int | None = None
    compacts: bool = False

    @property
    def size(self) -> int:
        return len(self.body) + len(self.artifacts)

    def collect(self, wanted: Wanted) -> None:
        wanted.tasks.add(self.task_id)

    def apply(self, group: Group) -> None:
        row = group.tasks.get(self.task_id)
        if row is None or row.number != self.number:
            return  # forgotten meanwhile
        if self.compacts and (
            row.version != self.version or row.state not in TERMINAL_STATES or group.is_held(row)
        ):
            return
        row.renew_at = self.log_bytes + max(SNAPSHOT_FLOOR, self.size)
        values = {
            "version": self.version,
            "sequence": self.sequence,
            "body": self.body,
            "artifacts": self.artifacts,
        }
        forget_upto = 0
        if self.keep_entries is not None:
            forget_upto = min(self.version, row.version - self.keep_entries)
        group.put_snapshot(row, values, forget_upto=forget_upto)
        if self.compacts:
            group.compact(row)


@dataclass(slots=True)
class PutContext(Write[None]):
    """Keep a context's value."""

    scope: Scope
    context_id: str
    value: str
    updated_at: float

    @property
    def size(self) -> int:
        return len(self.value)

    def apply(self, group: Group) -> None:
        group.put_context(self.scope, self.context_id, self.value, self.updated_at)
