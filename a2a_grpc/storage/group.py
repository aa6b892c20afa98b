"""A group of writes that become one transaction.

What the writes of a group need is read at its beginning, a few statements for all of them; they are
decided one after the other on the rows in memory; what came out is written at the end. So a group
costs about as many statements as a single write, and a refused write leaves no trace. Which writes
there are, and what they decide, is in `writes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Executable, Select

from a2a_grpc import pb
from a2a_grpc.errors import A2AError
from a2a_grpc.storage import statements
from a2a_grpc.storage.base import Operation, OperationState, Outcome, Scope, StorageError
from a2a_grpc.storage.rows import OperationRow, TaskRow, operation_values
from a2a_grpc.task import EntryKind, LogEntry

if TYPE_CHECKING:
    from a2a_grpc.storage.writes import Write

KeyT = TypeVar("KeyT", bound=Hashable)
Values = dict[str, Any]

IN_LIMIT = 500
"""Values in one IN list; older builds of SQLite take 999 variables in a statement."""


class Numbers:
    """The numbers given to new tasks and operations.

    They are counted here, since the storage is the only one to write to its database.
    """

    def __init__(self, connection: Connection) -> None:
        self._task: int = max(
            connection.execute(statements.last_task_number).scalar_one(),
            connection.execute(statements.last_forgotten_number).scalar_one(),
        )
        self._operation: int = connection.execute(statements.last_operation_number).scalar_one()

    def next_task(self) -> int:
        """The next task's."""
        self._task += 1
        return self._task

    def next_operation(self) -> int:
        """The next operation's."""
        self._operation += 1
        return self._operation


@dataclass(slots=True)
class Wanted:
    """The ids of what a group's writes need to see."""

    operations: set[str] = field(default_factory=set)
    deduplication_keys: set[bytes] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)


class Appended(NamedTuple):
    """What a task's log gained: `entries` after version `after`."""

    task_id: str
    scope: Scope
    after: int
    entries: Sequence[LogEntry]


class GroupResult(NamedTuple):
    """What became of a group.

    `outcomes` has a result or a refusal for each write, in their order; `appended` is what the logs
    gained; `due` are the tasks whose snapshot should be renewed.
    """

    outcomes: list[Any]
    appended: list[Appended]
    due: list[str]


class Group:
    """The state of a group's transaction: rows by their ids, and what is to be written."""

    def __init__(self, connection: Connection, numbers: Numbers) -> None:
        self._connection = connection
        self._numbers = numbers
        self.operations: dict[str, OperationRow] = {}
        self.newest_by_key: dict[bytes, OperationRow] = {}
        self.tasks: dict[str, TaskRow] = {}
        self._appended: list[Appended] = []
        self._admitted: list[Values] = []
        self._requests: list[Values] = []
        self._started: dict[int, OperationRow] = {}
        self._finished: dict[str, Outcome] = {}
        self._changed: dict[int, TaskRow] = {}
        self._entries: list[Values] = []
        self._snapshots: list[Values] = []
        self._truncations: list[Values] = []
        self._contexts: dict[tuple[Scope, str], tuple[str, float]] = {}
        self._push: list[tuple[Executable, Values]] = []
        self._events_changed: set[str] = set()

    def run(self, writes: Sequence[Write[Any]]) -> GroupResult:
        """Read, decide, write."""
        self._read(writes)
        outcomes: list[Any] = []
        for write in writes:
            try:
                outcomes.append(write.apply(self))
            except (StorageError, A2AError) as refusal:
                outcomes.append(refusal)
        self._flush()
        due = [row.id for row in self._changed.values() if row.log_bytes > row.renew_at]
        return GroupResult(outcomes, self._appended, due)

    def _read(self, writes: Iterable[Write[Any]]) -> None:
        wanted = Wanted()
        for write in writes:
            write.collect(wanted)
        for found in self._rows(statements.operations_by_id, "ids", wanted.operations):
            row = OperationRow.load(found)
            self.operations[row.operation.id] = row
            wanted.tasks.add(row.operation.task_id)
        keys = wanted.deduplication_keys
        for found in self._rows(statements.newest_operations_by_key, "keys", keys):
            row = OperationRow.load(found)
            self.newest_by_key[row.operation.deduplication_key] = row
        for found in self._rows(statements.tasks_by_id, "ids", wanted.tasks):
            self.tasks[found.id] = TaskRow.load(found)

    def _rows(self, statement: Select[Any], name: str, values: set[KeyT]) -> Iterator[Any]:
        ordered = list(values)
        for start in range(0, len(ordered), IN_LIMIT):
            chunk = ordered[start : start + IN_LIMIT]
            yield from self._connection.execute(statement, {name: chunk})

    # What writes decide.

    def admit(self, operation: Operation, request: Values) -> None:
        """Record an operation."""
        row = OperationRow(self._numbers.next_operation(), operation)
        self.operations[operation.id] = row
        if operation.deduplication_key:
            self.newest_by_key[operation.deduplication_key] = row
        self._admitted.append({"number": row.number, **operation_values(operation)})
        self._requests.append({"operation_number": row.number, **request})

    def count_attempt(self, row: OperationRow, by: int) -> None:
        """Count an attempt, or take it back."""
        row.operation.attempts += by
        row.operation.state = OperationState.STARTED
        self._started[row.number] = row

    def finish(self, operation_id: str, outcome: Outcome) -> None:
        """End an operation; nothing if it is over or unknown."""
        self._finished.setdefault(operation_id, outcome)
        row = self.operations.get(operation_id)
        if row is not None and row.operation.state is not OperationState.DONE:
            row.operation.state, row.operation.outcome = OperationState.DONE, outcome
            row.operation.request = pb.SendMessageRequest()

    def add_task(self, task_id: str, context_id: str, scope: Scope) -> TaskRow:
        """A task that nobody sees yet, at version 0."""
        row = TaskRow(self._numbers.next_task(), task_id, context_id, scope)
        self.tasks[task_id] = row
        self.touch(row)
        return row

    def touch(self, row: TaskRow) -> None:
        """Have a changed row written."""
        self._changed[row.number] = row

    def append(self, row: TaskRow, entries: Sequence[LogEntry]) -> None:
        """Add to a task's log."""
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

    def put_snapshot(self, row: TaskRow, values: Values, *, forget_upto: int) -> None:
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
        self._flush_contexts()
        for statement, steps in groupby(self._push, key=lambda step: step[0]):
            self._many(statement, [values for _, values in steps])
        # The rest looks at what was written so far.
        changed = list(self._events_changed)
        for start in range(0, len(changed), IN_LIMIT):
            chunk = changed[start : start + IN_LIMIT]
            self._connection.execute(statements.renew_pending, {"ids": chunk})
        self._many(statements.truncate_log, self._truncations)

    def _flush_operations(self) -> None:
        self._many(statements.insert_operation, self._admitted)
        self._many(statements.insert_request, self._requests)
        self._many(
            statements.start_operation,
            [
                {"of": number, "attempts": row.operation.attempts}
                for number, row in self._started.items()
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
        counts: defaultdict[tuple[Scope, int], int] = defaultdict(int)
        for row in self._changed.values():
            listing = row.listing
            if listing is not None:
                counts[row.scope, listing[0]] += 1
            if not row.stored:
                new.append(row.values())
            elif listing != row.listed:
                relisted.append(row.status_values())
            else:
                touched.append(row.changing_values())
            if row.listed is not None:
                counts[row.scope, row.listed[0]] -= 1
        self._many(statements.insert_task, new)
        self._many(statements.update_task, relisted)
        self._many(statements.update_turn, touched)
        self._many(
            statements.add_to_count,
            [
                {"tenant": tenant, "principal": principal, "state": state, "total": count}
                for ((tenant, principal), state), count in counts.items()
                if count
            ],
        )

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
                for ((tenant, principal), context_id), (value, updated_at) in self._contexts.items()
            ],
        )

    def _many(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._connection.execute(statement, rows)
