"""Brings a database to the schema of this version, through Alembic.

The steps in `versions/` are only ever added to. They run when the storage opens, in one
transaction: a process that dies meanwhile leaves the database as it was.
"""

from __future__ import annotations

import threading

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from a2a_grpc.storage.values import StorageOpenError

alembic_lock = threading.Lock()
"""To be held during `migrate`: Alembic's `op` and `context` are global to the process."""


def migrate(connection: Connection) -> None:
    """Run the missing steps, within the connection's transaction.

    Raises StorageOpenError if the database has a step that this version does not know.
    """
    config = Config()
    config.set_main_option("script_location", "a2a_grpc.storage.sql:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StorageOpenError(
            "the database was written by a later version of a2a-grpc, whose schema this one "
            "does not know: install that version, or choose another database"
        ) from error
