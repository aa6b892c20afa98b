"""What the errors of the PostgreSQL driver mean: for callers, for the log, and at the start."""

from __future__ import annotations

import ssl

import asyncpg
from sqlalchemy.exc import DBAPIError

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql.database import ContentionError, DatabaseFullError
from a2a_grpc.storage.values import StorageOpenError

# SQLSTATEs. What other processes did at the same time: serialization failure, deadlock, lock
# timeout, unique violation.
_CONTENTION = frozenset(("40001", "40P01", "55P03", "23505"))
_DISK_FULL = "53100"

# Classes of them, their first characters: connections, resources, an operator's interventions, the
# server's system; a transaction that was idle for too long, a server that only reads, a password
# that was changed, a database that is gone.
_UNAVAILABLE = ("08", "53", "57", "58", "25P03", "25006", "28", "3D000")

# Those after which the connection is no more.
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03")


def _driver_error(error: BaseException) -> BaseException:
    if isinstance(error, DBAPIError) and error.orig is not None:
        # SQLAlchemy's adapter raises its own errors from those of the driver.
        return error.orig.__cause__ or error.orig
    return error


def _sqlstate(error: BaseException) -> str:
    return str(getattr(_driver_error(error), "sqlstate", None) or "")


def _is_connection_error(error: BaseException) -> bool:
    cause = _driver_error(error)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(cause, OSError | TimeoutError) or (
        isinstance(cause, asyncpg.InterfaceError) and "clos" in str(cause)
    )


def is_lost(error: BaseException) -> bool:
    """Whether the connection was dead, so that another one may do."""
    if isinstance(_driver_error(error), TimeoutError):
        return False
    return _is_connection_error(error) or _sqlstate(error).startswith(_LOST)


def failure_of(error: BaseException) -> UnavailableError | None:
    """The error for callers; None if the work is at fault, and not the database."""
    if isinstance(error, UnavailableError):
        return error
    state = _sqlstate(error)
    if state in _CONTENTION:
        return ContentionError(retry_after=1.0)
    if state == _DISK_FULL:
        return DatabaseFullError("the storage is full; try again later", retry_after=5.0)
    if state.startswith(_UNAVAILABLE) or _is_connection_error(error):
        return UnavailableError("the storage can't be reached now; try again", retry_after=1.0)
    return None


def reason_of(error: BaseException) -> str:
    """What the driver says, on one line."""
    cause = _driver_error(error)
    said = str(cause).partition("\n")[0]
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__


def open_failure(address: str, error: BaseException) -> StorageOpenError:
    """Why the database can't be opened, and what to do."""
    cause = _driver_error(error)
    state = _sqlstate(error)
    if isinstance(cause, asyncpg.ClientConfigurationError | ValueError):
        # Its text may quote what it takes for a port, which may be a piece of a password.
        return StorageOpenError(
            f"can't open {address}: its URL can't be read; use "
            "postgresql://user:password@host:5432/database, with special characters in the "
            "password percent-encoded, and files that exist for passfile and sslrootcert"
        )
    remedy = "look into the log of the server"
    if state.startswith("28"):
        remedy = "check user and password in the URL, PGPASSWORD or the passfile, and pg_hba.conf"
    elif state == "3D000":
        remedy = "create the database first: CREATE DATABASE, or createdb"
    elif state == "42501":
        remedy = "let the user create tables: GRANT CREATE ON SCHEMA public"
    elif state == "25006":
        remedy = "it only reads; name the primary server, or add target_session_attrs=read-write"
    elif state.startswith("53"):
        remedy = "free connections or space on the server"
    elif isinstance(cause, ssl.SSLError):
        remedy = "check sslmode and sslrootcert in the URL"
    elif _is_connection_error(error) or state.startswith(("08", "57P03")):
        remedy = "check that the server runs, accepts connections and can be reached from here"
    return StorageOpenError(f"can't open {address} ({reason_of(error)}): {remedy}")
