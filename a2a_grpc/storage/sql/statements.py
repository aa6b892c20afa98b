"""What is asked of the tables, statement by statement, named and described.

Which of them run, when and with what is decided in `group`, `reader` and `replicas`; what is asked
to forget is in `forgetting`, and what keeps the totals in `counts`. Upserts are in PostgreSQL's
dialect of SQLAlchemy, which SQLite's compiler takes as well. SQLite leaves out FOR UPDATE: there is
one writer.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert

from a2a_grpc.storage.sql.clock import clock
from a2a_grpc.storage.sql.counts import PERIOD, period_of
from a2a_grpc.storage.sql.rows import column_time
from a2a_grpc.storage.sql.schema import (
    CREATED,
    PENDING,
    UNFINISHED,
    contexts,
    forgotten,
    log,
    operation_numbers,
    operations,
    push_configs,
    replicas,
    requests,
    snapshots,
    task_counts,
    task_numbers,
    tasks,
)
from a2a_grpc.storage.values import OperationState, TaskQuery
from a2a_grpc.task import EntryKind

KEY_LOCK_CLASS = 0x61326B
"""Class of the advisory locks for deduplication keys."""

# --- Operations.

_operation = select(operations, requests).join(
    requests, requests.c.operation_number == operations.c.number
)
# What groups decide on. A request or an answer may be large, and while it is sent to a process that
# is frozen, no timeout ends the transaction and its locks.
_facts: Select[Any] = select(
    operations.c.number,
    operations.c.id,
    operations.c.task_id,
    operations.c.deduplication_key,
    operations.c.created_at,
    operations.c.attempts,
    operations.c.handed_back,
    operations.c.home,
    operations.c.state,
    operations.c.outcome_kind,
)

# Whole operations by their `ids`.
operations_by_id = _operation.where(operations.c.id.in_(bindparam("ids", expanding=True)))

# The oldest unfinished operation of a task, whole.
oldest_operation = _operation.where(
    operations.c.number
    == select(func.min(operations.c.number))
    .where(operations.c.task_id == bindparam("task_id"), UNFINISHED)
    .scalar_subquery()
)

# Operations by their `ids`, and the oldest unfinished one of each of the tasks `of_tasks`; locked.
# The conditions are not looked at again behind a lock that somebody else held: one of them may be
# done by then.
operations_for_update: Select[Any] = (
    _facts.where(
        operations.c.number.in_(
            union_all(
                select(operations.c.number).where(
                    operations.c.id.in_(bindparam("ids", expanding=True))
                ),
                select(func.min(operations.c.number))
                .where(operations.c.task_id.in_(bindparam("of_tasks", expanding=True)), UNFINISHED)
                .group_by(operations.c.task_id),
            )
        )
    )
    .order_by(operations.c.number)
    .with_for_update(of=operations)
)

# The newest operation for each of the deduplication `keys`.
newest_operations_by_key = _facts.where(
    operations.c.number.in_(
        select(func.max(operations.c.number))
        .where(operations.c.deduplication_key.in_(bindparam("keys", expanding=True)))
        .group_by(operations.c.deduplication_key)
    )
)

# Keeps other processes from looking for the same deduplication keys until the transaction ends;
# PostgreSQL only. `locks` are numbers made of the keys, in ascending order, as text.
lock_keys = text(
    f"SELECT pg_advisory_xact_lock({KEY_LOCK_CLASS}, number) "
    "FROM unnest(string_to_array(:locks, ',')::int[]) AS number"
)

# Which operations of the tasks `ids` are not done.
unfinished_of_tasks = select(operations.c.task_id, operations.c.id).where(
    operations.c.task_id.in_(bindparam("ids", expanding=True)), UNFINISHED
)

# How far the operations with these `ids` are.
progress = select(
    operations.c.id,
    operations.c.state,
    operations.c.outcome_kind,
    operations.c.outcome_version,
    operations.c.outcome_payload,
).where(operations.c.id.in_(bindparam("ids", expanding=True)))

# The number that the newest operation has; the next `count` ones where processes share them.
last_operation_number = select(func.coalesce(func.max(operations.c.number), 0))
next_operation_numbers = select(operation_numbers.next_value()).select_from(
    func.generate_series(1, bindparam("count", type_=Integer))
)

insert_operation = insert(operations).values(submitted_at=clock())
insert_request = insert(requests)

# Count an attempt, or that one was handed back.
count_attempt = (
    update(operations)
    .where(operations.c.number == bindparam("of"))
    .values(
        attempts=bindparam("attempts"),
        handed_back=bindparam("handed_back"),
        state=int(OperationState.STARTED),
    )
)

# End an operation; the first outcome stays.
finish_operation = (
    update(operations)
    .where(operations.c.id == bindparam("of"), operations.c.state < int(OperationState.DONE))
    .values(
        state=int(OperationState.DONE),
        done_at=clock(),
        outcome_kind=bindparam("kind"),
        outcome_version=bindparam("version"),
        outcome_payload=bindparam("payload"),
    )
)

# --- Tasks and their logs.

# The rows of tasks by their `ids`, also of those that are not created yet; locked.
tasks_for_update = (
    select(tasks)
    .where(tasks.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(tasks.c.id)
    .with_for_update()
)

# Which of the replicas `ids` live.
living_replicas = select(replicas.c.id).where(
    replicas.c.id.in_(bindparam("ids", expanding=True)), replicas.c.lease_until > clock()
)


def lives(replica: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the lease of a replica has time left."""
    return exists().where(replicas.c.id == replica, replicas.c.lease_until > clock())


# The largest number that a task has, and that a log has which is still being deleted.
last_task_number = select(func.coalesce(func.max(tasks.c.number), 0))
last_forgotten_number = select(func.coalesce(func.max(forgotten.c.task_number), 0))

# The first of the next numbers that a process takes, where processes share them.
next_task_numbers = select(task_numbers.next_value())

insert_task = insert(tasks)

# A turn was started or ended, or a message entered: no list changes.
update_turn = (
    update(tasks)
    .where(tasks.c.number == bindparam("of"))
    .values(
        {
            name: bindparam(name)
            for name in (
                *("version", "sequence", "fence", "running", "owner", "cancel_requested"),
                *("compacted", "log_bytes", "renew_at"),
            )
        }
    )
)

# The same and a status, which moves the task in all lists.
update_task = update_turn.values({name: bindparam(name) for name in ("state", "status_at")})

insert_entry = insert(log)


def _replacing(table: Table, *keys: str, kept: tuple[str, ...] = ()) -> Insert:
    """Insert a row; where there is one already, replace all columns but the `kept` ones."""
    statement = upsert(table)
    return statement.on_conflict_do_update(
        index_elements=keys,
        set_={
            column.name: statement.excluded[column.name]
            for column in table.columns
            if column.name not in keys and column.name not in kept
        },
    )


put_snapshot = _replacing(snapshots, "task_number")
delete_snapshot = delete(snapshots).where(snapshots.c.task_number == bindparam("of"))

# Forget the log up to `version`, but no event that a push target still waits for.
truncate_log = delete(log).where(
    log.c.task_number == bindparam("of"),
    log.c.version <= bindparam("upto"),
    log.c.sequence
    <= func.coalesce(
        select(func.min(push_configs.c.delivered))
        .where(push_configs.c.task_id == bindparam("task_id"), PENDING)
        .scalar_subquery(),
        bindparam("sequence", type_=Integer),
    ),
)

# --- Reading tasks.

# Whether a process that lives holds the task in a turn.
HELD = and_(tasks.c.running == 1, lives(tasks.c.owner))

# The head of a created task with its stored snapshot, if there is one.
task_with_snapshot = (
    select(
        tasks,
        snapshots.c.version.label("snapshot_version"),
        snapshots.c.sequence.label("snapshot_sequence"),
        snapshots.c.body,
        snapshots.c.artifacts,
    )
    .outerjoin_from(tasks, snapshots, snapshots.c.task_number == tasks.c.number)
    .where(tasks.c.id == bindparam("task_id"), CREATED)
)
_head = select(tasks, HELD.label("held")).where(CREATED)
head = _head.where(tasks.c.id == bindparam("task_id"))
heads = _head.where(tasks.c.id.in_(bindparam("ids", expanding=True)))

# The entries with versions above `after`, up to `upto`.
log_between = (
    select(log)
    .where(
        log.c.task_number == bindparam("of"),
        log.c.version > bindparam("after"),
        log.c.version <= bindparam("upto"),
    )
    .order_by(log.c.version)
)

# Events after a sequence number, as many as are `max_bytes` together, but one at least. A version
# is at least its sequence number, so the search starts close to them. The driver fetches all that a
# statement finds; the length of a payload is known without reading it.
_lengths = (
    select(log.c.version, func.length(log.c.payload).label("length"))
    .where(
        log.c.task_number == bindparam("of"),
        log.c.version > bindparam("after"),
        log.c.sequence > bindparam("after"),
        log.c.kind == int(EntryKind.EVENT),
    )
    .order_by(log.c.version)
    .limit(bindparam("limit"))
    .cte("lengths")
)
_up_to = select(
    _lengths.c.version,
    func.sum(_lengths.c.length).over(order_by=_lengths.c.version).label("total"),
    func.row_number().over(order_by=_lengths.c.version).label("place"),
).cte("up_to")
events = (
    select(log.c.sequence, log.c.payload)
    .join(_up_to, and_(log.c.task_number == bindparam("of"), log.c.version == _up_to.c.version))
    .where(
        or_(
            _up_to.c.total <= bindparam("max_bytes", type_=BigInteger),
            _up_to.c.place == 1,
        )
    )
    .order_by(log.c.version)
)

# Snapshots of several tasks, and without the artifacts, which may be nearly all of it.
snapshots_by_number = select(snapshots).where(
    snapshots.c.task_number.in_(bindparam("numbers", expanding=True))
)
bodies_by_number = select(
    snapshots.c.task_number, snapshots.c.version, snapshots.c.sequence, snapshots.c.body
).where(snapshots.c.task_number.in_(bindparam("numbers", expanding=True)))

# How large they are, in bytes.
sizes = select(
    snapshots.c.task_number,
    func.length(snapshots.c.body).label("body"),
    func.length(snapshots.c.artifacts).label("artifacts"),
).where(snapshots.c.task_number.in_(bindparam("numbers", expanding=True)))

# What the logs of several tasks hold after their snapshots. The outer joins keep the planner from
# reading the logs from their beginning.
tails_by_number = (
    select(tasks.c.number, log)
    .outerjoin_from(tasks, snapshots, snapshots.c.task_number == tasks.c.number)
    .outerjoin(
        log,
        and_(
            log.c.task_number == tasks.c.number,
            log.c.version > func.coalesce(snapshots.c.version, 0),
        ),
    )
    .where(tasks.c.number.in_(bindparam("numbers", expanding=True)))
    .order_by(tasks.c.number, log.c.version)
)


def page(query: TaskQuery) -> Select[Any]:
    """The heads of one page of ListTasks, and one more if another page follows."""
    statement = select(tasks).where(*_matching(query))
    if query.after is not None:
        statement = statement.where(tuple_(tasks.c.status_at, tasks.c.id) < tuple_(*query.after))
    newest_first = tasks.c.status_at.desc(), tasks.c.id.desc()
    return statement.order_by(*newest_first).limit(query.page_size + 1)


def total(query: TaskQuery) -> Select[int]:
    """How many tasks the query matches on all its pages.

    Counts the tasks of a context, or those of the rest of a period; the others are counted already.
    """
    matching = select(func.count()).select_from(tasks).where(*_matching(query))
    if query.context_id:
        return matching
    counted = select(func.coalesce(func.sum(task_counts.c.total), 0)).where(
        task_counts.c.tenant == query.scope.tenant,
        task_counts.c.principal == query.scope.principal,
    )
    if query.state:
        counted = counted.where(task_counts.c.state == query.state)
    if not query.updated_since:
        return counted
    period = period_of(query.updated_since)
    rest = matching.where(tasks.c.status_at <= column_time((period + 1) * PERIOD - 1))
    later = counted.where(task_counts.c.period > period)
    return select(later.scalar_subquery() + rest.scalar_subquery())


def _matching(query: TaskQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        tasks.c.tenant == query.scope.tenant,
        tasks.c.principal == query.scope.principal,
        CREATED,
    ]
    if query.context_id:
        conditions.append(tasks.c.context_id == query.context_id)
    if query.state:
        conditions.append(tasks.c.state == query.state)
    if query.updated_since:
        conditions.append(tasks.c.status_at >= query.updated_since)
    return conditions


# --- Contexts.

put_context = _replacing(contexts, "tenant", "principal", "context_id")
context = select(contexts.c.value).where(
    contexts.c.tenant == bindparam("tenant"),
    contexts.c.principal == bindparam("principal"),
    contexts.c.context_id == bindparam("context_id"),
)

# --- Push configurations.

_this_config = (
    push_configs.c.task_id == bindparam("of_task"),
    push_configs.c.config_id == bindparam("of_config"),
)

# A replaced configuration keeps its cursor.
put_push_config = _replacing(push_configs, "task_id", "config_id", kept=("delivered",))
delete_push_config = delete(push_configs).where(*_this_config)
delete_push_configs = delete(push_configs).where(push_configs.c.task_id == bindparam("of"))
update_push_config = (
    update(push_configs)
    .where(*_this_config)
    .values(
        {name: bindparam(name) for name in ("delivered", "attempts", "next_attempt_at", "disabled")}
    )
)

# The same for the next attempt alone, if that is still as it was `seen`.
claim_push_config = (
    update(push_configs)
    .where(*_this_config, push_configs.c.next_attempt_at == bindparam("seen"))
    .values(next_attempt_at=bindparam("until"))
)

# After the writes above, and after events: which targets of these tasks wait for an attempt.
renew_pending = (
    update(push_configs)
    .where(push_configs.c.task_id.in_(bindparam("ids", expanding=True)))
    .values(
        pending=case(
            (
                and_(
                    push_configs.c.disabled == 0,
                    push_configs.c.delivered
                    < select(tasks.c.sequence)
                    .where(tasks.c.id == push_configs.c.task_id)
                    .scalar_subquery(),
                ),
                1,
            ),
            else_=0,
        )
    )
)

push_configs_of_task = (
    select(push_configs)
    .where(push_configs.c.task_id == bindparam("task_id"))
    .order_by(push_configs.c.config_id)
)
due_push_configs = (
    select(push_configs)
    .where(PENDING, push_configs.c.next_attempt_at <= bindparam("now"))
    .order_by(push_configs.c.next_attempt_at)
    .limit(bindparam("limit"))
)
next_push_attempt = select(func.min(push_configs.c.next_attempt_at)).where(PENDING)
