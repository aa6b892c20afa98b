"""One SQLite database file: its lock, its threads and connections, its errors.

Everything that only SQLite needs is here. Work runs in a thread of this database, so a transaction
of many statements costs one change of threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql.database import Database, DatabaseFullError, Run, Work, opened
from a2a_grpc.storage.sql.migrations import alembic_lock, migrate
from a2a_grpc.storage.sql.numbers import CountedNumbers, Numbers
from a2a_grpc.storage.values import StorageOpenError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

READERS = 4
"""Threads, and connections, for reading; more readers wait for one of them. One more tells whether
the file is there."""

BUSY_TIMEOUT = 10.0
"""Seconds to wait for other programs that look into the file, a backup for example."""

_SHARED_PRAGMAS = (
    f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA cache_size = -16384",  # KiB
    "PRAGMA temp_store = MEMORY",
)
_WRITER_PRAGMAS = (
    *_SHARED_PRAGMAS,
    # NORMAL would not sync the write-ahead log on commit, so a power loss could take back what was
    # acknowledged. FULL costs one sync per transaction, shared by all writes of a group.
    "PRAGMA synchronous = FULL",
    # On macOS a plain fsync leaves the data in the drive's cache.
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    # Pages: pages that many transactions change go to the file once.
    "PRAGMA wal_autocheckpoint = 4000",
    f"PRAGMA journal_size_limit = {64 * 2**20}",
)
_READER_PRAGMAS = (*_SHARED_PRAGMAS, "PRAGMA query_only = ON")


_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
"""What the operating systems say of a lock that somebody else has."""


def database_path(url: str) -> str:
    """The absolute path, symbolic links resolved, of the file in a SQLite URL.

    Raises ValueError for other URLs, and for databases in memory.
    """
    try:
        parsed: URL = make_url(url)
    except ArgumentError as error:
        # Not what it is: there may be a password in it.
        raise ValueError(
            "the database URL can't be read; use sqlite:///file.db or "
            "postgresql://user:password@host/database"
        ) from error
    if parsed.drivername not in ("sqlite", "sqlite+aiosqlite", "sqlite+pysqlite"):
        raise ValueError(
            f"SqlStorage does not know the database {parsed.drivername!r}; use sqlite:///file.db "
            "or postgresql://user:password@host/database"
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.query or parsed.host:
        raise ValueError(
            f"{url!r} names no database file; use sqlite:///file.db, sqlite:////absolute/file.db, "
            "or InMemoryStorage if nothing shall be kept"
        )
    return os.path.realpath(parsed.database)


class FileLock:
    """The right to use a database file, held through `<file>.lock` while this process lives.

    The operating system ends it with the process, however that dies. The lock file stays: to delete
    it would let two processes lock two files of the same name.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock_path = f"{path}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise StorageOpenError at once if somebody has it."""
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageOpenError(
                f"can't create {self._lock_path}: {error.strerror}; the directory of a database "
                "must exist and be writable"
            ) from error
        try:
            self._lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _TAKEN:
                raise StorageOpenError(
                    f"can't lock {self._lock_path}: {error.strerror}; put the database on a local "
                    "disk"
                ) from error
            raise StorageOpenError(
                f"the database {self._path} is in use by another process, or by another "
                "SqlStorage of this one: stop it first, or choose another file; several processes "
                "can't share a SQLite database"
            ) from error
        self._descriptor = descriptor

    @staticmethod
    def _lock(descriptor: int) -> None:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            # Belongs to the open file, so it also keeps out a second storage in this process.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Give the lock back; nothing if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class SqliteDatabase(Database):
    """A database file that this object alone uses.

    Work runs in threads of its own; that which writes runs one piece at a time, and is on disk,
    power loss included, when `write` returns.

    Args:
        path: the file, created if need be.
        max_bytes: how large the file may grow; None for as large as the disk allows.
    """

    def __init__(self, path: str, *, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = FileLock(path)
        self._writer: Engine | None = None
        self._reader: Engine | None = None
        self._write_thread: ThreadPoolExecutor | None = None
        self._read_threads: ThreadPoolExecutor | None = None
        self._check_thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        self._lock.acquire()
        self._write_thread = ThreadPoolExecutor(1, "a2a-grpc-sqlite-writer")
        self._read_threads = ThreadPoolExecutor(READERS, "a2a-grpc-sqlite-reader")
        self._check_thread = ThreadPoolExecutor(1, "a2a-grpc-sqlite-check")
        try:
            self._writer = self._engine("BEGIN IMMEDIATE", self._writer_pragmas(), 1)
            self._reader = self._engine("BEGIN", _READER_PRAGMAS, READERS + 1)
            await _in_thread(self._write_thread, self._prepare)
        except BaseException:
            await self.close()
            raise

    def _writer_pragmas(self) -> tuple[str, ...]:
        if self._max_bytes is None:
            return _WRITER_PRAGMAS
        # max_page_count counts pages of 4096 bytes, the size that SQLite gives new files.
        return (*_WRITER_PRAGMAS, f"PRAGMA max_page_count = {max(1, self._max_bytes // 4096)}")

    def _engine(self, begin: str, pragmas: tuple[str, ...], connections: int) -> Engine:
        engine = create_engine(
            URL.create("sqlite", database=self.path),
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            connect_args={"isolation_level": None, "timeout": BUSY_TIMEOUT},
            hide_parameters=True,  # what messages say, and the tokens of webhooks
        )

        @event.listens_for(engine, "connect")
        def configure(connection: Any, record: Any) -> None:
            for pragma in pragmas:
                connection.execute(pragma)

        @event.listens_for(engine, "begin")
        def begin_transaction(connection: Connection) -> None:
            # The driver itself would begin late, and not at all for reads.
            connection.exec_driver_sql(begin)

        return engine

    def _prepare(self) -> None:
        engine = opened(self._writer)
        try:
            raw = engine.raw_connection()
            try:
                (mode,) = raw.cursor().execute("PRAGMA journal_mode = WAL").fetchone()
            finally:
                raw.close()
            if mode != "wal":
                raise StorageOpenError(
                    f"the file system of {self.path} has no write-ahead log for SQLite "
                    f"(journal mode {mode!r}): put the database on a local disk"
                )
            with alembic_lock, engine.begin() as connection:
                migrate(connection)
        except StorageOpenError as error:
            raise StorageOpenError(f"can't open {self.path}: {error}") from error
        except (DBAPIError, sqlite3.Error) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise StorageOpenError(
                f"can't open {self.path} ({reason}): it must be a database that this user may "
                "write, with room on its disk"
            ) from error

    async def close(self) -> None:
        writing, self._write_thread = self._write_thread, None
        reading, self._read_threads = self._read_threads, None
        checking, self._check_thread = self._check_thread, None
        if writing is None or reading is None or checking is None:
            return
        # In the writer's thread, behind what runs there.
        released = asyncio.get_running_loop().run_in_executor(
            writing, self._release, reading, checking
        )
        writing.shutdown(wait=False)
        try:
            await asyncio.shield(released)
        except asyncio.CancelledError:
            # One transaction at the most; a cancelled caller finds the file free, too.
            await asyncio.wait((released,))
            raise

    def _release(self, *readers: ThreadPoolExecutor) -> None:
        for threads in readers:
            threads.shutdown()
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        self._reader = self._writer = None
        self._lock.release()

    async def write(self, work: Work[ResultT]) -> ResultT:
        return await _in_thread(opened(self._write_thread), self._run, self._writer, work)

    async def read(self, work: Work[ResultT], *, single: bool = False) -> ResultT:
        return await _in_thread(opened(self._read_threads), self._run, self._reader, work)

    async def check(self, work: Work[ResultT]) -> ResultT:
        return await _in_thread(opened(self._check_thread), self._run, self._reader, work)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[Run | None]:
        yield self.write

    def numbers(self, connection: Connection) -> Numbers:
        return CountedNumbers(connection)

    def _run(self, engine: Engine | None, work: Work[ResultT]) -> ResultT:
        with opened(engine).connect() as connection:
            try:
                with connection.begin():
                    return work(connection)
            except DBAPIError as error:
                failure = self._failure(error)
                if failure is None:
                    raise
                connection.invalidate()
                raise failure from error

    def _failure(self, error: DBAPIError) -> UnavailableError | None:
        """What the driver's error means; None if the work is at fault and not the database."""
        cause = error.orig
        if not isinstance(cause, sqlite3.OperationalError) and type(cause) is not (
            sqlite3.DatabaseError
        ):
            return None
        logger.error("the database %s fails: %s", self.path, cause)
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            return DatabaseFullError("the storage is full; try again later", retry_after=5.0)
        return UnavailableError("the storage can't be reached now; try again", retry_after=1.0)


async def _in_thread(
    threads: ThreadPoolExecutor, function: Callable[..., ResultT], *arguments: Any
) -> ResultT:
    return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
