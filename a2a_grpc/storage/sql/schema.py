"""The tables of the SQL storage, as SQLAlchemy Core metadata.

`migrations/` brings a database to this shape, and a test compares the two. What is asked of the
tables is in `statements`. Tasks and operations have a number beside their id: rows and log entries
that arrive together then lie together on disk, and numbers are in the order of arrival.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    and_,
    literal_column,
)

from a2a_grpc.storage.values import OperationState
from a2a_grpc.task import TERMINAL_STATES

metadata = MetaData()

# SQLite makes only a column called INTEGER the row's own number; flags are small integers, since
# the dialects disagree on how a partial index names a truth value.
_Number = BigInteger().with_variant(Integer, "sqlite")
# Ordered by code points everywhere: pages go on behind an id that this process compares, too.
_Id = Text().with_variant(Text(collation="C"), "postgresql")

# Where several processes share a database, numbers come from these.
operation_numbers = Sequence("operation_numbers", metadata=metadata)
TASK_NUMBERS = 64
"""Numbers of tasks that a process takes at once."""
task_numbers = Sequence("task_numbers", increment=TASK_NUMBERS, metadata=metadata)

# The small facts about each task. A row at version 0 is a task that its agent has not created yet:
# it holds the fence of the turn, and no reader sees it. Nothing large is in this table, since each
# commit rewrites its row.
tasks = Table(
    "tasks",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=False),
    Column("id", _Id, nullable=False),
    Column("context_id", _Id, nullable=False),
    Column("tenant", _Id, nullable=False),
    Column("principal", _Id, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("status_at", BigInteger),  # nanoseconds since the epoch; null at version 0
    Column("version", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("running", SmallInteger, nullable=False),
    Column("owner", _Id),  # the replica that began the running turn
    Column("cancel_requested", SmallInteger, nullable=False),
    Column("compacted", SmallInteger, nullable=False),  # the snapshot has replaced the log
    Column("log_bytes", BigInteger, nullable=False),  # payloads ever appended
    Column("renew_at", BigInteger, nullable=False),  # log_bytes at which a new snapshot is due
)
# Partial indexes serve a query only if it repeats their condition, with the same literals. The
# conditions speak of what changes seldom, since a change of it is a change of the index.
CREATED = tasks.c.status_at.is_not(None)
NOT_CREATED = tasks.c.status_at.is_(None)
TO_CANCEL = tasks.c.cancel_requested == literal_column("1")
ENDED = tasks.c.state.in_([literal_column(str(int(state))) for state in sorted(TERMINAL_STATES)])
LOGGED = and_(ENDED, tasks.c.compacted == literal_column("0"))

Index("tasks_by_id", tasks.c.id, unique=True)


def _list_index(
    name: str, *narrowing: Column[str] | Column[int], counted: tuple[Column[int], ...] = ()
) -> None:
    """An index for ListTasks: the scope, what narrows it down, then the order of the pages.

    `counted` is what a total may be narrowed by besides, in the index alone.
    """
    Index(
        name,
        tasks.c.tenant,
        tasks.c.principal,
        *narrowing,
        tasks.c.status_at,
        tasks.c.id,
        *counted,
        sqlite_where=CREATED,
        postgresql_where=CREATED,
    )


_list_index("tasks_by_scope")
_list_index("tasks_by_context", tasks.c.context_id, counted=(tasks.c.state,))
_list_index("tasks_by_state", tasks.c.state)
Index("tasks_ended", tasks.c.running, tasks.c.status_at, sqlite_where=ENDED, postgresql_where=ENDED)
Index(
    "tasks_to_compact",
    tasks.c.status_at,
    tasks.c.id,
    sqlite_where=LOGGED,
    postgresql_where=LOGGED,
)
Index("tasks_to_cancel", tasks.c.owner, sqlite_where=TO_CANCEL, postgresql_where=TO_CANCEL)
Index("tasks_not_created", tasks.c.number, sqlite_where=NOT_CREATED, postgresql_where=NOT_CREATED)

# How many tasks a scope has in each state and period: the totals of lists without counting. Each
# process adds to a shard of its own, from 1 on, so that they do not queue for a row; sweeps fold
# them into shard 0. One row alone may be negative.
COUNT_SHARDS = 16
task_counts = Table(
    "task_counts",
    metadata,
    Column("tenant", _Id, nullable=False),
    Column("principal", _Id, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("period", BigInteger, nullable=False),  # of the status
    Column("shard", SmallInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant", "principal", "state", "period", "shard"),
    sqlite_with_rowid=False,
)
SHARDED = task_counts.c.shard > literal_column("0")

Index("task_counts_to_fold", task_counts.c.period, sqlite_where=SHARDED, postgresql_where=SHARDED)

# The append-only log of each task.
log = Table(
    "log",
    metadata,
    Column("task_number", _Number, nullable=False),
    Column("version", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    PrimaryKeyConstraint("task_number", "version"),
    sqlite_with_rowid=False,
)

# The fold of a task's log up to `version`: reading a task is this and the log after it. Both parts
# are serialized Tasks; one after the other they are the whole task.
snapshots = Table(
    "snapshots",
    metadata,
    Column("task_number", _Number, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),  # all but the artifacts
    Column("artifacts", LargeBinary, nullable=False),  # nothing else
)

# Logs of forgotten and of compacted tasks, deleted in slices: entries before `next` are gone
# already, those after `last` stay.
forgotten = Table(
    "forgotten",
    metadata,
    Column("task_number", _Number, primary_key=True, autoincrement=False),
    Column("next", Integer, nullable=False),
    Column("last", Integer, nullable=False),
)

# The changing facts about each operation.
operations = Table(
    "operations",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=False),
    Column("id", _Id, nullable=False),
    Column("task_id", _Id, nullable=False),
    Column("deduplication_key", LargeBinary),
    Column("created_at", Double, nullable=False),  # seconds since the epoch
    Column("attempts", Integer, nullable=False),
    Column("handed_back", Integer, nullable=False),
    Column("home", _Id),  # the only replica to run it, while that lives
    Column("submitted_at", Double, nullable=False),  # by the clock of the database
    Column("submitted_by", _Id, nullable=False),  # a replica
    Column("state", SmallInteger, nullable=False),
    Column("done_at", Double),  # by the clock of the database
    Column("outcome_kind", SmallInteger),
    Column("outcome_version", Integer),
    Column("outcome_payload", LargeBinary),
)
UNFINISHED = operations.c.state < literal_column(str(int(OperationState.DONE)))
DONE = operations.c.state == literal_column(str(int(OperationState.DONE)))
MARKED = operations.c.deduplication_key.is_not(None)

Index("operations_by_id", operations.c.id, unique=True)
Index(
    "operations_by_key",
    operations.c.deduplication_key,
    operations.c.number,
    sqlite_where=MARKED,
    postgresql_where=MARKED,
)
Index(
    "operations_unfinished",
    operations.c.task_id,
    operations.c.number,
    sqlite_where=UNFINISHED,
    postgresql_where=UNFINISHED,
)
Index(
    "operations_submitted",
    operations.c.number,
    sqlite_where=UNFINISHED,
    postgresql_where=UNFINISHED,
)
Index("operations_done", operations.c.done_at, sqlite_where=DONE, postgresql_where=DONE)

# One row: the name of this database, given when it was made, and kept by its copies.
deployment = Table("deployment", metadata, Column("id", _Id, primary_key=True))

# The processes that use the database; one whose lease is over, or that is not here, is gone.
replicas = Table(
    "replicas",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("lease_until", Double, nullable=False),  # by the clock of the database
)

# What an operation asks for. It never changes, so attempts and outcomes don't rewrite it.
requests = Table(
    "requests",
    metadata,
    Column("operation_number", _Number, primary_key=True, autoincrement=False),
    Column("request", LargeBinary, nullable=False),
    Column("context_id", _Id, nullable=False),
    Column("tenant", _Id, nullable=False),
    Column("principal", _Id, nullable=False),
    Column("creates_task", SmallInteger, nullable=False),
    Column("deadline", Double),  # seconds since the epoch
    Column("metadata", Text, nullable=False),  # a JSON object
    Column("extensions", Text, nullable=False),  # a JSON array
)

contexts = Table(
    "contexts",
    metadata,
    Column("tenant", _Id, nullable=False),
    Column("principal", _Id, nullable=False),
    Column("context_id", _Id, nullable=False),
    Column("value", Text, nullable=False),  # JSON
    Column("updated_at", Double, nullable=False),  # seconds since the epoch
    PrimaryKeyConstraint("tenant", "principal", "context_id"),
)

# `pending` is whether the target waits for an attempt: it is enabled, and its task has events after
# `delivered`.
push_configs = Table(
    "push_configs",
    metadata,
    Column("task_id", _Id, nullable=False),
    Column("config_id", _Id, nullable=False),
    Column("tenant", _Id, nullable=False),
    Column("principal", _Id, nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("delivered", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", Double, nullable=False),  # seconds since the epoch
    Column("disabled", SmallInteger, nullable=False),
    Column("pending", SmallInteger, nullable=False),
    PrimaryKeyConstraint("task_id", "config_id"),
)
PENDING = push_configs.c.pending == literal_column("1")

Index(
    "push_configs_pending",
    push_configs.c.next_attempt_at,
    sqlite_where=PENDING,
    postgresql_where=PENDING,
)
