"""What is read from a SQL database, each function on one consistent state of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, literal_column, select

from a2a_grpc import pb
from a2a_grpc.storage.sql import statements
from a2a_grpc.storage.sql.lists import in_parts, padded
from a2a_grpc.storage.sql.rows import (
    SNAPSHOT_FLOOR,
    TaskRow,
    column_time,
    operation_of,
    outcome_of,
    push_target,
)
from a2a_grpc.storage.sql.writes import PutSnapshot
from a2a_grpc.storage.values import (
    Head,
    LogTruncatedError,
    Operation,
    OperationState,
    Progress,
    PushTarget,
    Scope,
    Snapshot,
    TaskPage,
    TaskQuery,
)
from a2a_grpc.task import EntryKind, LogEntry, TaskFold, trim_history

PART_BYTES = 16 * 2**20
"""Serialized tasks that are read at once for a page of a list."""


def load_operation(connection: Connection, operation_id: str) -> Operation | None:
    """See `Storage.load_operation`."""
    row = connection.execute(statements.operations_by_id, {"ids": [operation_id]}).first()
    return None if row is None else operation_of(row)


def oldest_operation(connection: Connection, task_id: str) -> Operation | None:
    """The oldest operation of a task that is not done."""
    row = connection.execute(statements.oldest_operation, {"task_id": task_id}).first()
    return None if row is None else operation_of(row)


def load_progress(connection: Connection, operation_ids: Sequence[str]) -> list[Progress]:
    """See `Storage.load_progress`."""
    rows = in_parts(connection, statements.progress, "ids", operation_ids)
    return [Progress(row.id, OperationState(row.state), outcome_of(row)) for row in rows]


def load_head(connection: Connection, task_id: str, scope: Scope | None) -> Head | None:
    """See `Storage.load_head`."""
    found = connection.execute(statements.head, {"task_id": task_id}).first()
    return None if found is None or not _visible(found, scope) else _head(found)


def load_heads(connection: Connection, task_ids: Sequence[str]) -> list[Head]:
    """See `Storage.load_heads`."""
    return [_head(row) for row in in_parts(connection, statements.heads, "ids", task_ids)]


def _head(row: Row[Any]) -> Head:
    return TaskRow.load(row).head(held=bool(row.held))


def _visible(row: Row[Any], scope: Scope | None) -> bool:
    return scope is None or (row.tenant, row.principal) == scope


def load_snapshot(
    connection: Connection,
    task_id: str,
    scope: Scope | None,
    version: int | None,
    history_length: int | None,
) -> Snapshot | None:
    """See `Storage.load_snapshot`."""
    found = connection.execute(statements.task_with_snapshot, {"task_id": task_id}).first()
    if found is None or not _visible(found, scope):
        return None
    wanted = found.version if version is None else min(version, found.version)
    snapshot = _fold(connection, found, wanted)
    trim_history(snapshot.task, history_length)
    return snapshot


def _fold(connection: Connection, found: Row[Any], wanted: int) -> Snapshot:
    fold, folded, sequence = TaskFold(), 0, 0
    if found.snapshot_version is not None and found.snapshot_version <= wanted:
        fold = TaskFold(pb.Task.FromString(found.body + found.artifacts))
        folded, sequence = found.snapshot_version, found.snapshot_sequence
    entries = [
        _entry(entry)
        for entry in connection.execute(
            statements.log_between, {"of": found.number, "after": folded, "upto": wanted}
        )
    ]
    if len(entries) < wanted - folded:
        raise LogTruncatedError(
            f"the log of task {found.id!r} does not reach back to version {wanted}"
        )
    fold.apply(entries)
    if entries:
        sequence = entries[-1].sequence
    return Snapshot(fold.task, wanted, sequence)


def renewed_snapshot(
    connection: Connection,
    task_id: str,
    keep_entries: int | None = None,
    *,
    compacts: bool = False,
) -> PutSnapshot | None:
    """The write that brings a task's stored snapshot up to now; None if the task is gone."""
    found = connection.execute(statements.task_with_snapshot, {"task_id": task_id}).first()
    if found is None:
        return None
    task, version, sequence = _fold(connection, found, found.version)
    artifacts = pb.Task(artifacts=task.artifacts)
    task.ClearField("artifacts")
    return PutSnapshot(
        task_id=task_id,
        number=found.number,
        version=version,
        sequence=sequence,
        log_bytes=found.log_bytes,
        body=task.SerializeToString(),
        artifacts=artifacts.SerializeToString(),
        keep_entries=keep_entries,
        compacts=compacts,
    )


def _entry(row: Row[Any]) -> LogEntry:
    return LogEntry(row.version, row.sequence, EntryKind(row.kind), row.payload)


def load_events(
    connection: Connection, task_id: str, after: int, limit: int, max_bytes: int
) -> list[bytes]:
    """See `Storage.load_events`."""
    head = connection.execute(statements.head, {"task_id": task_id}).first()
    if head is None or after >= head.sequence:
        return []
    values = {"of": head.number, "after": after, "limit": limit, "max_bytes": max_bytes}
    rows = connection.execute(statements.events, values).all()
    if limit > 0 and (not rows or rows[0].sequence != after + 1):
        raise LogTruncatedError(
            f"the log of task {task_id!r} does not reach back to event {after + 1}"
        )
    return [row.payload for row in rows]


def list_tasks(connection: Connection, query: TaskQuery) -> TaskPage:
    """See `Storage.list_tasks`."""
    query = query._replace(updated_since=column_time(query.updated_since))
    if query.after is not None:
        query = query._replace(after=(column_time(query.after[0]), query.after[1]))
    rows = connection.execute(statements.page(query)).all()
    total = connection.execute(statements.total(query)).scalar_one()
    page = rows[: query.page_size]
    next_after = None
    if len(rows) > query.page_size:
        next_after = (page[-1].status_at, page[-1].id)
    tasks = []
    for part in _parts(connection, page, query.include_artifacts):
        folds = _folds(connection, [row.number for row in part], query.include_artifacts)
        for row in part:
            task = folds.pop(row.number).task
            if not query.include_artifacts:
                task.ClearField("artifacts")
            trim_history(task, query.history_length)
            tasks.append(task)
    return TaskPage(tasks, next_after, int(total))


def _parts(
    connection: Connection, page: Sequence[Row[Any]], include_artifacts: bool
) -> Iterator[Sequence[Row[Any]]]:
    """A page's tasks, in parts that can be read at once."""
    if sum(row.log_bytes for row in page) <= PART_BYTES:
        yield page  # a task is no larger than its log
        return
    listed = {"numbers": padded([row.number for row in page])}
    stored = {row.task_number: row for row in connection.execute(statements.sizes, listed)}
    part: list[Row[Any]] = []
    room = PART_BYTES
    for row in page:
        body, artifacts = stored[row.number][1:] if row.number in stored else (0, 0)
        # The log since the snapshot: `renew_at` was counted from there.
        tail = row.log_bytes - row.renew_at + max(SNAPSHOT_FLOOR, body + artifacts)
        size = tail + body + (artifacts if include_artifacts else 0)
        if part and size > room:
            yield part
            part, room = [], PART_BYTES
        part.append(row)
        room -= size
    yield part


def _folds(
    connection: Connection, numbers: Sequence[int], include_artifacts: bool
) -> dict[int, TaskFold]:
    stored: dict[int, bytes] = {}
    listed = {"numbers": padded(numbers)}
    if include_artifacts:
        for row in connection.execute(statements.snapshots_by_number, listed):
            stored[row.task_number] = row.body + row.artifacts
    else:
        for row in connection.execute(statements.bodies_by_number, listed):
            stored[row.task_number] = row.body
    tails: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for row in connection.execute(statements.tails_by_number, listed):
        if row.version is not None:
            tails[row.number].append(_entry(row))
    folds = {}
    for number in numbers:
        folds[number] = TaskFold(pb.Task.FromString(stored.get(number, b"")))
        folds[number].apply(tails[number])
    return folds


def load_context(connection: Connection, scope: Scope, context_id: str) -> Any:
    """See `Storage.load_context`."""
    key = {"tenant": scope.tenant, "principal": scope.principal, "context_id": context_id}
    value = connection.execute(statements.context, key).scalar_one_or_none()
    return None if value is None else json.loads(value)


def load_push_configs(connection: Connection, task_id: str) -> list[PushTarget]:
    """See `Storage.load_push_configs`."""
    rows = connection.execute(statements.push_configs_of_task, {"task_id": task_id})
    return [push_target(row) for row in rows]


def due_push_targets(connection: Connection, now: float, limit: int) -> list[PushTarget]:
    """See `Storage.due_push_targets`."""
    rows = connection.execute(statements.due_push_configs, {"now": now, "limit": limit})
    return [push_target(row) for row in rows]


def next_push_attempt(connection: Connection) -> float | None:
    """See `Storage.next_push_attempt`."""
    return connection.execute(statements.next_push_attempt).scalar_one_or_none()


def check(connection: Connection) -> None:
    """See `Storage.check`."""
    connection.execute(select(literal_column("1")))
