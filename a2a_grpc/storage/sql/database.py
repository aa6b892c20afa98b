"""What `SqlStorage` asks of a database, whichever it is.

Work is a plain function on a SQLAlchemy connection; it runs as one transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql.numbers import Numbers

ResultT = TypeVar("ResultT")
Work = Callable[[Connection], ResultT]


class DatabaseFullError(UnavailableError):
    """There is no room for the write, on the disk or within the bound."""


class ContentionError(UnavailableError):
    """Another process was at the same rows: nothing was kept, and trying again may do."""

    default_message = "too many write the same at once; try again"


class Run(Protocol):
    """Runs work as one transaction that may write."""

    def __call__(self, work: Work[ResultT], /) -> Coroutine[Any, Any, ResultT]: ...


class Database(ABC):
    """A database that is open.

    Guarantees:

    - `write` runs work as a transaction that is on disk when `write` returns; if the work raises,
      nothing of it is kept.
    - `read` runs on a consistent state, never waits for a write, and sees every write that returned
      before.
    - Errors of the driver come as UnavailableError: DatabaseFullError where there is no room,
      ContentionError where other processes were in the way; the database stays usable.
    - A cancelled caller does not stop work that runs.
    """

    lease: float | None = None
    """Seconds, where several processes share the database."""

    timeout: float | None = None
    """Seconds after which the outcome of a transaction is given up, where it may be lost."""

    patience: float = 0.0
    """Seconds for which a single write is tried again while others are in the way."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the database to the current schema.

        Raises StorageOpenError, which names the database and the remedy.
        """

    @abstractmethod
    async def close(self) -> None:
        """Wait for the work that runs, and let go; nothing if it is not open."""

    @abstractmethod
    async def write(self, work: Work[ResultT]) -> ResultT:
        """Run work as one transaction that may write."""

    @abstractmethod
    async def read(self, work: Work[ResultT], *, single: bool = False) -> ResultT:
        """Run work on the state as it is now; `single` says that it is a single statement."""

    @abstractmethod
    async def check(self, work: Work[ResultT]) -> ResultT:
        """Run a single statement that reads, whatever else there is to read meanwhile."""

    @abstractmethod
    def sweeping(self) -> AbstractAsyncContextManager[Run | None]:
        """What runs the steps of a sweep; None while another process sweeps."""

    @abstractmethod
    def numbers(self, connection: Connection) -> Numbers:
        """Where the numbers of new rows come from."""


def opened(resource: ResultT | None) -> ResultT:
    """What is there while the database is open; raises UnavailableError while it is not."""
    if resource is None:
        raise UnavailableError("the storage is not open: use it within `async with`")
    return resource
