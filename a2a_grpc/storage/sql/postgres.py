"""A PostgreSQL database, which several processes share: its connections and transactions.

Work runs on SQLAlchemy's connections over asyncpg, in asyncio tasks of its own: a caller who goes
away never leaves a connection in the middle of a query.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql.address import PostgresAddress
from a2a_grpc.storage.sql.database import ContentionError, Database, Run, Work, opened
from a2a_grpc.storage.sql.deadline import Deadline
from a2a_grpc.storage.sql.failures import failure_of, is_lost, open_failure, reason_of
from a2a_grpc.storage.sql.migrations import alembic_lock, migrate
from a2a_grpc.storage.sql.numbers import Numbers, SequenceNumbers
from a2a_grpc.storage.values import StorageOpenError

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

WRITERS = 4
"""Connections for writing: for groups of writes, for the lease, for submitting again, for a sweep.
They are made when they are needed; one more tells whether the server is there."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect, at the most, unless the URL has a `connect_timeout`."""

RECONNECT_AFTER = 0.5
"""Seconds after a connection failed in which no other is tried."""

STATEMENT_TIMEOUT = 30.0
"""Seconds for a statement, by the server, at the most."""

LOCK_TIMEOUT = 1.0
"""Seconds to wait for a row that another process has locked, at the most."""

WAIT_TIMEOUT = 10.0
"""Seconds to wait for a connection that others use."""

MIGRATION_LOCK = 0x61326100
SWEEP_LOCK = 0x61326101
"""Numbers of advisory locks."""

_lock_migration = text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
_lock_sweep = text(f"SELECT pg_try_advisory_lock({SWEEP_LOCK})")
_unlock_sweep = text(f"SELECT pg_advisory_unlock({SWEEP_LOCK})")
_without_timeouts = text(
    "SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)"
)


class PostgresDatabase(Database):
    """A database on PostgreSQL 13 or later.

    Beyond what `Database` promises: it recovers by itself after the server was away, and tries to
    connect no more often than every RECONNECT_AFTER seconds meanwhile; a session that is frozen in
    a transaction holds its locks for a third of the lease at the most. A transaction that the
    server does not end in that time, or in a second, fails and costs its connection.

    Args:
        url: as libpq takes it.
        lease: seconds.
        readers: connections for reading; more readers wait for one of them.
    """

    timeout: float

    def __init__(self, url: str, *, lease: float, readers: int) -> None:
        self.address = PostgresAddress(url)
        self.lease = lease
        self.timeout = max(1.0, lease / 3)
        self.patience = self.timeout + 1.0
        self._readers = readers
        self._writing: _Pool | None = None
        self._reading: _Pool | None = None
        self._checking: _Pool | None = None
        self._away_until = 0.0
        self._connected_at = 0.0
        self._is_away = False
        self._working: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        self._away_until = 0.0
        deadline = Deadline(self.timeout)
        self._writing = _Pool(self._connect, WRITERS, deadline)
        self._reading = _Pool(self._connect, self._readers, deadline)
        self._checking = _Pool(self._connect, 1, deadline)
        try:
            await self._prepare(self._writing)
        except BaseException:
            await self.close()
            raise

    async def _prepare(self, pool: _Pool) -> None:
        # Alembic keeps its state in globals; and this must not stand still with the loop.
        while not alembic_lock.acquire(blocking=False):  # noqa: ASYNC110 - it is of threads
            await asyncio.sleep(0.01)
        try:
            await self._apart(pool.run_unbounded(_migrate), alembic_lock.release)
        except StorageOpenError as error:
            raise StorageOpenError(f"can't open {self.address}: {error}") from error
        except Exception as error:
            # Without what led to it: that may quote a piece of a password.
            raise open_failure(str(self.address), error) from None

    async def close(self) -> None:
        pools = [one for one in (self._checking, self._reading, self._writing) if one is not None]
        self._checking = self._reading = self._writing = None
        closing = asyncio.create_task(self._close(pools), name="postgres-close")
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait((closing,))
            raise

    async def _close(self, pools: list[_Pool]) -> None:
        while self._working:
            await asyncio.wait(self._working)
        for pool in pools:
            await pool.engine.dispose()

    async def _connect(self) -> asyncpg.Connection[Any]:
        now = time.monotonic()
        if now < self._away_until:
            raise _away()
        lease = self.lease or 0.0
        try:
            connection: asyncpg.Connection[Any] = await self.address.connect(
                connect_timeout=min(CONNECT_TIMEOUT, self.timeout),
                command_timeout=STATEMENT_TIMEOUT + 5.0,
                settings={
                    "application_name": "a2a-grpc",
                    "idle_in_transaction_session_timeout": _milliseconds(lease / 3),
                    "lock_timeout": _milliseconds(min(LOCK_TIMEOUT, self.timeout / 2)),
                    "statement_timeout": _milliseconds(min(STATEMENT_TIMEOUT, self.timeout)),
                    "tcp_keepalives_idle": "30",
                    "tcp_keepalives_interval": "10",
                    "tcp_keepalives_count": "3",
                    # While rows go to a process that is frozen, no other timeout counts.
                    "tcp_user_timeout": _milliseconds(lease / 3),
                    # Nothing here is worth compiling.
                    "jit": "off",
                },
            )
        except Exception as error:
            if now < self._connected_at:
                raise  # another attempt has found it there since
            self._away_until = time.monotonic() + RECONNECT_AFTER
            if not self._is_away:
                logger.error("can't connect to %s: %s", self.address, reason_of(error))
                self._is_away = True
            raise
        self._connected_at, self._away_until = time.monotonic(), 0.0
        if self._is_away:
            logger.info("connected to %s again", self.address)
            self._is_away = False
        return connection

    async def write(self, work: Work[ResultT]) -> ResultT:
        pool = opened(self._writing)
        place = await pool.place()
        return await self._apart(self._guarded(pool.run, work), place)

    async def read(self, work: Work[ResultT], *, single: bool = False) -> ResultT:
        pool = opened(self._reading)
        place = await pool.place()
        return await self._apart(self._read(pool.look if single else pool.read, work), place)

    async def check(self, work: Work[ResultT]) -> ResultT:
        pool = opened(self._checking)
        place = await pool.place()
        return await self._apart(self._read(pool.look, work), place)

    async def _read(self, read: Run, work: Work[ResultT]) -> ResultT:
        try:
            return await read(work)
        except Exception as error:
            if not is_lost(error):
                raise self._failure(error) from error
        # The server had closed it; a fresh one tells whether it is there.
        return await self._guarded(read, work)

    async def _guarded(self, run: Run, work: Work[ResultT]) -> ResultT:
        try:
            return await run(work)
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        """The driver's error as ours; itself, if the database is not at fault."""
        failure = failure_of(error)
        if failure is None or failure is error:
            return error
        if not isinstance(failure, ContentionError) and not self._is_away:
            logger.error("the database %s fails: %s", self.address, reason_of(error))
        return failure

    async def _apart(
        self, running: Coroutine[Any, Any, ResultT], place: Callable[[], None] | None = None
    ) -> ResultT:
        """Run something that a cancelled caller does not cancel; then give its place back."""
        task = asyncio.create_task(running, name="postgres-work")
        self._working.add(task)

        def done(task: asyncio.Task[ResultT]) -> None:
            self._working.discard(task)
            if place is not None:
                place()
            if not task.cancelled():
                task.exception()  # nobody asks for it if the caller was cancelled

        task.add_done_callback(done)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[Run | None]:
        pool = opened(self._writing)
        place = await pool.place()
        try:
            connection = await pool.engine.connect()
        except BaseException as error:
            place()
            if isinstance(error, Exception):
                raise self._failure(error) from error
            raise

        async def run(work: Work[ResultT]) -> ResultT:
            return await self._apart(self._guarded(partial(pool.transact, connection), work))

        try:
            # A lock of the session: it goes with the connection, however that ends.
            locked = await run(lambda plain: bool(plain.execute(_lock_sweep).scalar_one()))
            yield run if locked else None
            if locked:
                await run(lambda plain: plain.execute(_unlock_sweep).close())
        except BaseException:
            await self._apart(connection.invalidate())
            raise
        finally:
            await self._apart(connection.close(), place)

    def numbers(self, connection: Connection) -> Numbers:
        return SequenceNumbers()


class _Pool:
    """Connections of one kind; whoever wants one takes a place first."""

    def __init__(self, connect: Any, size: int, deadline: Deadline) -> None:
        self._places = asyncio.Semaphore(size)
        self._deadline = deadline
        self.engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            connect_args={"prepared_statement_cache_size": 512},
            hide_parameters=True,  # what messages say, and the tokens of webhooks
            pool_size=size,
            max_overflow=0,
            pool_use_lifo=True,
        )
        self._consistent = self.engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._single = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        deadline.watch(self.engine)

    async def place(self) -> Callable[[], None]:
        """Room for one more connection; returns what gives it back.

        Raises UnavailableError if there is none for long.
        """
        try:
            async with asyncio.timeout(WAIT_TIMEOUT):
                await self._places.acquire()
        except TimeoutError:
            raise UnavailableError(
                "the storage has too much to do; try again", retry_after=1.0
            ) from None
        return self._places.release

    async def run(self, work: Work[ResultT]) -> ResultT:
        """Run work as a transaction that may write; READ COMMITTED."""
        return await self._on(self.engine, work)

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Run work on one consistent state."""
        return await self._on(self._consistent, work)

    async def look(self, work: Work[ResultT]) -> ResultT:
        """Run work of a single statement."""
        return await self._on(self._single, work)

    async def run_unbounded(self, work: Work[ResultT]) -> ResultT:
        """Run work that may take long as a transaction that may write."""
        async with self.engine.connect() as connection:
            return await _transact(connection, work)

    async def _on(self, engine: AsyncEngine, work: Work[ResultT]) -> ResultT:
        async with engine.connect() as connection:
            return await self.transact(connection, work)

    async def transact(self, connection: AsyncConnection, work: Work[ResultT]) -> ResultT:
        """Run work as a transaction on a connection of this pool."""
        raw = await connection.get_raw_connection()
        with self._deadline.over(raw.driver_connection):
            return await _transact(connection, work)


async def _transact(connection: AsyncConnection, work: Work[ResultT]) -> ResultT:
    try:
        async with connection.begin():
            return await connection.run_sync(work)
    except Exception as error:
        failure = failure_of(error)
        if failure is not None and not isinstance(failure, ContentionError):
            # Whatever state it is in; the server may be another one now.
            await connection.invalidate()
        raise


def _migrate(connection: Connection) -> None:
    connection.execute(_without_timeouts)
    connection.execute(_lock_migration)
    migrate(connection)


def _milliseconds(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))


def _away() -> UnavailableError:
    return UnavailableError("the storage can't be reached now; try again", retry_after=1.0)
