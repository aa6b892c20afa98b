"""The first schema: tasks with their logs, operations, contexts, push configurations.

Written out in full, without the tables of `storage.schema`, since those go on changing.
"""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Create everything."""
    if op.get_bind().dialect.supports_sequences:
        op.execute("CREATE SEQUENCE operation_numbers")
        op.execute("CREATE SEQUENCE task_numbers INCREMENT BY 64")
    op.create_table(
        "tasks",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("context_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("principal", ID, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("status_at", sa.BigInteger),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("running", sa.SmallInteger, nullable=False),
        sa.Column("owner", ID),
        sa.Column("cancel_requested", sa.SmallInteger, nullable=False),
        sa.Column("compacted", sa.SmallInteger, nullable=False),
        sa.Column("log_bytes", sa.BigInteger, nullable=False),
        sa.Column("renew_at", sa.BigInteger, nullable=False),
    )
    op.create_index("tasks_by_id", "tasks", ["id"], unique=True)
    order, created = ["status_at", "id"], "status_at IS NOT NULL"
    _partial("tasks_by_scope", "tasks", ["tenant", "principal", *order], created)
    by_context = ["tenant", "principal", "context_id", *order, "state"]
    _partial("tasks_by_context", "tasks", by_context, created)
    _partial("tasks_by_state", "tasks", ["tenant", "principal", "state", *order], created)
    ended = "state IN (3, 4, 5, 7)"
    _partial("tasks_ended", "tasks", ["running", "status_at"], ended)
    _partial("tasks_to_compact", "tasks", order, f"{ended} AND compacted = 0")
    _partial("tasks_to_cancel", "tasks", ["owner"], "cancel_requested = 1")
    _partial("tasks_not_created", "tasks", ["number"], "status_at IS NULL")
    op.create_table(
        "task_counts",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("principal", ID, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("shard", sa.SmallInteger, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "principal", "state", "period", "shard"),
        sqlite_with_rowid=False,
    )
    _partial("task_counts_to_fold", "task_counts", ["period"], "shard > 0")
    op.create_table(
        "log",
        sa.Column("task_number", NUMBER, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("task_number", "version"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "snapshots",
        sa.Column("task_number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("artifacts", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "forgotten",
        sa.Column("task_number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("next", sa.Integer, nullable=False),
        sa.Column("last", sa.Integer, nullable=False),
    )
    op.create_table(
        "operations",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("task_id", ID, nullable=False),
        sa.Column("deduplication_key", sa.LargeBinary),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("handed_back", sa.Integer, nullable=False),
        sa.Column("home", ID),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("submitted_by", ID, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("done_at", sa.Double),
        sa.Column("outcome_kind", sa.SmallInteger),
        sa.Column("outcome_version", sa.Integer),
        sa.Column("outcome_payload", sa.LargeBinary),
    )
    op.create_index("operations_by_id", "operations", ["id"], unique=True)
    _partial(
        "operations_by_key",
        "operations",
        ["deduplication_key", "number"],
        "deduplication_key IS NOT NULL",
    )
    _partial("operations_unfinished", "operations", ["task_id", "number"], "state < 2")
    _partial("operations_submitted", "operations", ["number"], "state < 2")
    _partial("operations_done", "operations", ["done_at"], "state = 2")
    op.create_table(
        "replicas",
        sa.Column("id", ID, primary_key=True),
        sa.Column("lease_until", sa.Double, nullable=False),
    )
    op.create_table(
        "requests",
        sa.Column("operation_number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("context_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("principal", ID, nullable=False),
        sa.Column("creates_task", sa.SmallInteger, nullable=False),
        sa.Column("deadline", sa.Double),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("extensions", sa.Text, nullable=False),
    )
    deployment = op.create_table("deployment", sa.Column("id", ID, primary_key=True))
    op.bulk_insert(deployment, [{"id": uuid.uuid4().hex}])
    op.create_table(
        "contexts",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("principal", ID, nullable=False),
        sa.Column("context_id", ID, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "principal", "context_id"),
    )
    op.create_table(
        "push_configs",
        sa.Column("task_id", ID, nullable=False),
        sa.Column("config_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("principal", ID, nullable=False),
        sa.Column("config", sa.LargeBinary, nullable=False),
        sa.Column("delivered", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", sa.Double, nullable=False),
        sa.Column("disabled", sa.SmallInteger, nullable=False),
        sa.Column("pending", sa.SmallInteger, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "config_id"),
    )
    _partial("push_configs_pending", "push_configs", ["next_attempt_at"], "pending = 1")


def downgrade() -> None:
    """There is no way back: the data would be lost."""
    raise RuntimeError("the first schema has nothing before it; delete the database instead")


def _partial(name: str, table: str, columns: list[str], condition: str) -> None:
    op.create_index(
        name,
        table,
        columns,
        sqlite_where=sa.text(condition),
        postgresql_where=sa.text(condition),
    )
