"""A group of writes that become one transaction.

What the writes of a group need is read at its beginning, a few statements for all of them; they are
decided one after the other on the rows in memory; what came out is written at the end. So a group
costs about as many statements as a single write, and a refused write leaves no trace. Which writes
there are, and what they decide, is in `writes`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Executable, Select

from a2a_grpc.errors import A2AError
from a2a_grpc.storage.sql import counts, forgetting, statements
from a2a_grpc.storage.sql.counts import Counted
from a2a_grpc.storage.sql.lists import IN_LIMIT, in_parts, padded
from a2a_grpc.storage.sql.numbers import Numbers
from a2a_grpc.storage.sql.rows import OperationRow, TaskRow, operation_values
from a2a_grpc.storage.values import (
    Operation,
    OperationState,
    Outcome,
    OutcomeKind,
    Scope,
    StorageError,
)
from a2a_grpc.task import EntryKind, LogEntry

if TYPE_CHECKING:
    from a2a_grpc.storage.sql.writes import Write

Values = dict[str, Any]

KEY_LOCKS = 4096
"""Advisory locks that deduplication keys share."""


class LaterError(Exception):
    """A write can't be decided in this group, and has changed nothing: it belongs into the next."""


class OldestChangedError(StorageError):
    """The oldest operation of a task is not the one that was read for a start; read it again."""


@dataclass(slots=True)
class Wanted:
    """The ids of what a group's writes need to see.

    `new_keys` are those that new operations have, `deduplication_keys` those to look for among
    earlier ones. `starting` are tasks whose oldest unfinished operation is needed, `ending` those
    of which all unfinished operations have to be known.
    """

    numbers: int = 0  # for new operations
    operations: set[str] = field(default_factory=set)
    new_keys: set[bytes] = field(default_factory=set)
    deduplication_keys: set[bytes] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    starting: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)


class Standing(NamedTuple):
    """What a writer knows beside the database.

    `replica` is the id under which this process holds tasks; `shard` is where it counts them.
    """

    numbers: Numbers
    replica: str
    shard: int


class Appended(NamedTuple):
    """What a task's log gained: `entries` after version `after`."""

    task_id: str
    scope: Scope
    after: int
    entries: Sequence[LogEntry]


class GroupResult(NamedTuple):
    """What became of a group.

    `outcomes` has a result, a refusal or a LaterError for each write, in their order; `appended` is
    what the logs gained; `due` are the tasks whose snapshot should be renewed.
    """

    outcomes: list[Any]
    appended: list[Appended]
    due: list[str]


class Group:
    """The state of a group's transaction: rows by their ids, and what is to be written."""

    def __init__(self, connection: Connection, standing: Standing) -> None:
        self._connection = connection
        self._numbers, self.replica, self._shard = standing
        self.operations: dict[str, OperationRow] = {}
        self.newest_by_key: dict[bytes, OperationRow] = {}
        self.oldest: dict[str, OperationRow] = {}  # of each task; done, if it ended meanwhile
        self.tasks: dict[str, TaskRow] = {}
        self._new_numbers: deque[int] = deque()
        self._living: set[str] = {self.replica}
        self._unfinished: dict[str, str] = {}  # operations, and their tasks
        self._left: Counter[str] = Counter()  # how many there are of a task
        self._appended: list[Appended] = []
        self._admitted: list[Values] = []
        self._requests: list[Values] = []
        self._counted: dict[int, OperationRow] = {}
        self._finished: dict[str, Outcome] = {}
        self._changed: dict[int, TaskRow] = {}
        self._entries: list[Values] = []
        self._snapshots: list[Values] = []
        self._truncations: list[Values] = []
        self._compacted: list[Values] = []
        self._contexts: dict[tuple[Scope, str], tuple[str, float]] = {}
        self._push: list[tuple[Executable, Values]] = []
        self._events_changed: set[str] = set()

    def run(self, writes: Sequence[Write[Any]]) -> GroupResult:
        """Read, decide, write."""
        wanted = Wanted()
        for write in writes:
            write.collect(wanted)
        self._read(wanted)
        outcomes: list[Any] = []
        for write in writes:
            try:
                outcomes.append(write.apply(self))
            except (StorageError, A2AError, LaterError) as refusal:
                outcomes.append(refusal)
        self._flush()
        due = [row.id for row in self._changed.values() if row.log_bytes > row.renew_at]
        return GroupResult(outcomes, self._appended, due)

    def _read(self, wanted: Wanted) -> None:
        # Tasks first, then operations, everywhere in the same order: where several processes write,
        # the rows are locked from here on, and two groups never wait for one another.
        self._lock_keys(wanted.new_keys)
        for found in self._rows(statements.tasks_for_update, "ids", wanted.tasks):
            self.tasks[found.id] = TaskRow.load(found)
        self._read_operations(wanted)
        keys = wanted.deduplication_keys
        for found in self._rows(statements.newest_operations_by_key, "keys", keys):
            row = OperationRow.load(found)
            self.newest_by_key[row.deduplication_key] = row
        for found in self._rows(statements.unfinished_of_tasks, "ids", wanted.ending):
            self._unfinished[found.id] = found.task_id
            self._left[found.task_id] += 1
        self._read_living()
        if wanted.numbers:
            self._new_numbers.extend(self._numbers.operations(self._connection, wanted.numbers))

    def _read_operations(self, wanted: Wanted) -> None:
        ids, of_tasks = list(wanted.operations), list(wanted.starting)
        for start in range(0, max(len(ids), len(of_tasks)), IN_LIMIT):
            part = slice(start, start + IN_LIMIT)
            values = {"ids": padded(ids[part]), "of_tasks": padded(of_tasks[part])}
            for found in self._connection.execute(statements.operations_for_update, values):
                row = OperationRow.load(found)
                self.operations[row.id] = row
        for row in sorted(self.operations.values(), key=lambda row: row.number):
            self.oldest.setdefault(row.task_id, row)

    def _read_living(self) -> None:
        named = {row.owner for row in self.tasks.values() if row.running and row.owner is not None}
        named |= {row.home for row in self.oldest.values() if row.home is not None}
        for found in self._rows(statements.living_replicas, "ids", named - self._living):
            self._living.add(found.id)

    def _lock_keys(self, keys: Iterable[bytes]) -> None:
        if self._connection.dialect.name == "postgresql":
            locks = sorted({int.from_bytes(key[:8], "big") % KEY_LOCKS for key in keys})
            if locks:
                self._connection.execute(statements.lock_keys, {"locks": ",".join(map(str, locks))})

    def _rows(self, statement: Select[Any], name: str, values: Collection[Any]) -> Iterator[Any]:
        return in_parts(self._connection, statement, name, values)

    # What writes decide.

    def admit(self, operation: Operation, request: Values) -> None:
        """Record an operation."""
        home = self.replica if operation.runs_here else None
        number = self._new_numbers.popleft()
        row = OperationRow(
            number,
            operation.id,
            operation.task_id,
            operation.deduplication_key,
            operation.created_at,
            home,
        )
        self.operations[operation.id] = row
        self.oldest.setdefault(operation.task_id, row)
        self._unfinished[operation.id] = operation.task_id
        self._left[operation.task_id] += 1
        if operation.deduplication_key:
            self.newest_by_key[operation.deduplication_key] = row
        self._admitted.append({"number": row.number, **operation_values(operation, self.replica)})
        self._requests.append({"operation_number": row.number, **request})

    def count_attempt(self, row: OperationRow, by: int) -> None:
        """Count an attempt, or take it back."""
        row.attempts += by
        row.state = OperationState.STARTED
        self._counted[row.number] = row

    def count_handed_back(self, operation_id: str) -> None:
        """Count that an attempt was handed back; nothing if the operation is unknown or over."""
        row = self.operations.get(operation_id)
        if row is not None and row.state is not OperationState.DONE:
            row.handed_back += 1
            self._counted[row.number] = row

    def finish(self, operation_id: str, outcome: Outcome) -> None:
        """End an operation; nothing if it is over or unknown."""
        self._finished.setdefault(operation_id, outcome)
        if operation_id in self._unfinished:
            self._left[self._unfinished.pop(operation_id)] -= 1
        row = self.operations.get(operation_id)
        if row is not None and row.state is not OperationState.DONE:
            row.state, row.is_refused = OperationState.DONE, outcome.kind is OutcomeKind.REFUSED

    def has_unfinished(self, task_id: str) -> bool:
        """Whether a task, one of the `ending` ones, has operations that are not done."""
        return self._left[task_id] > 0

    def lives(self, replica: str | None) -> bool:
        """Whether a replica lives that a task or an operation names."""
        return replica in self._living

    def is_held(self, row: TaskRow) -> bool:
        """Whether a turn of a replica that lives holds a task."""
        return row.running and self.lives(row.owner)

    def add_task(self, task_id: str, context_id: str, scope: Scope) -> TaskRow:
        """A task that nobody sees yet, at version 0."""
        number = self._numbers.next_task(self._connection)
        row = TaskRow(number, task_id, context_id, scope)
        self.tasks[task_id] = row
        self.touch(row)
        return row

    def touch(self, row: TaskRow) -> None:
        """Have a changed row written."""
        self._changed[row.number] = row

    def append(self, row: TaskRow, entries: Sequence[LogEntry]) -> None:
        """Add to a task's log."""
        row.compacted = False
        self._appended.append(Appended(row.id, row.scope, row.version, entries))
        for version, sequence, kind, payload in entries:
            row.version, row.sequence = version, sequence
            row.log_bytes += len(payload)
            if kind is EntryKind.EVENT:
                self._events_changed.add(row.id)
            self._entries.append(
                {
                    "task_number": row.number,
                    "version": version,
                    "sequence": sequence,
                    "kind": int(kind),
                    "payload": payload,
                }
            )
        self.touch(row)

    def compact(self, row: TaskRow) -> None:
        """Forget a task's log, slice by slice, later: a snapshot has replaced all of it."""
        row.compacted = True
        self._compacted.append({"task_number": row.number, "next": 1, "last": row.version})
        self.touch(row)

    def put_snapshot(self, row: TaskRow, values: Values, *, forget_upto: int = 0) -> None:
        """Store a task's snapshot, and forget its log up to a version."""
        self._snapshots.append({"task_number": row.number, **values})
        if forget_upto > 0:
            truncation = {"of": row.number, "upto": forget_upto, "task_id": row.id}
            self._truncations.append({**truncation, "sequence": row.sequence})
        self.touch(row)

    def put_context(self, scope: Scope, context_id: str, value: str, updated_at: float) -> None:
        """Keep a context's value."""
        self._contexts[scope, context_id] = value, updated_at

    def push(self, statement: Executable, task_id: str, values: Values) -> None:
        """Have a statement run on a task's push configurations."""
        self._push.append((statement, values))
        self._events_changed.add(task_id)

    # Writing.

    def _flush(self) -> None:
        self._flush_operations()
        self._flush_tasks()
        self._many(statements.insert_entry, self._entries)
        self._many(statements.put_snapshot, self._snapshots)
        self._many(forgetting.put_forgotten, self._compacted)
        self._flush_contexts()
        for statement, steps in groupby(self._push, key=lambda step: step[0]):
            self._many(statement, [values for _, values in steps])
        # The rest looks at what was written so far.
        changed = sorted(self._events_changed)
        for start in range(0, len(changed), IN_LIMIT):
            values = {"ids": padded(changed[start : start + IN_LIMIT])}
            self._connection.execute(statements.renew_pending, values)
        self._many(statements.truncate_log, self._truncations)

    def _flush_operations(self) -> None:
        self._many(statements.insert_operation, self._admitted)
        self._many(statements.insert_request, self._requests)
        self._many(
            statements.count_attempt,
            [
                {
                    "of": number,
                    "attempts": row.attempts,
                    "handed_back": row.handed_back,
                }
                for number, row in self._counted.items()
            ],
        )
        self._many(
            statements.finish_operation,
            [
                {
                    "of": operation_id,
                    "kind": int(outcome.kind),
                    "version": outcome.version,
                    "payload": outcome.payload,
                }
                for operation_id, outcome in self._finished.items()
            ],
        )

    def _flush_tasks(self) -> None:
        new: list[Values] = []
        relisted: list[Values] = []
        touched: list[Values] = []
        changes: Counter[Counted] = Counter()
        for row in self._changed.values():
            listing = row.listing
            if listing is not None:
                changes[counts.counted(row.scope, *listing)] += 1
            if not row.stored:
                new.append(row.values())
            elif listing != row.listed:
                relisted.append(row.status_values())
            else:
                touched.append(row.changing_values())
            if row.listed is not None:
                changes[counts.counted(row.scope, *row.listed)] -= 1
        self._many(statements.insert_task, new)
        self._many(statements.update_task, relisted)
        self._many(statements.update_turn, touched)
        counts.add(self._connection, self._shard, changes)

    def _flush_contexts(self) -> None:
        self._many(
            statements.put_context,
            [
                {
                    "tenant": tenant,
                    "principal": principal,
                    "context_id": context_id,
                    "value": value,
                    "updated_at": updated_at,
                }
                for ((tenant, principal), context_id), (value, updated_at) in sorted(
                    self._contexts.items()
                )
            ],
        )

    def _many(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._connection.execute(statement, rows)
