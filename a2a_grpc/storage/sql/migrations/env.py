"""What Alembic runs to migrate: the steps, on the connection that `migrate` gave it."""

from __future__ import annotations

from alembic import context

from a2a_grpc.storage.sql.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
