"""A deployment: an agent on one replica or several, with its database and its NATS."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from benchmarks.agent import Plan
from benchmarks.load import Client, Requests
from benchmarks.processes import Note, ServerProcess, Usage
from benchmarks.services import Nats, PostgreSQL
from benchmarks.serving import ServerOptions


@dataclass(frozen=True, slots=True)
class Kind:
    """What is deployed: the server, how many replicas, and the store."""

    name: str
    module: str = "benchmarks.own_server"
    replicas: int = 1
    store: Literal["memory", "sqlite", "postgresql"] = "postgresql"
    own_environment: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is a2a-grpc."""
        return self.module == "benchmarks.own_server"


def own(replicas: int) -> Kind:
    """a2a-grpc on PostgreSQL and NATS."""
    return Kind(f"a2a-grpc x{replicas}", replicas=replicas)


def sdk(replicas: int) -> Kind:
    """a2a-sdk in its cluster mode: versioned stores and the polled stream, on PostgreSQL."""
    return Kind(
        f"a2a-sdk x{replicas}", "benchmarks.sdk_server", replicas=replicas, own_environment=True
    )


@dataclass(frozen=True, slots=True)
class Ground:
    """What every deployment of a run needs.

    Attributes:
        postgres: the database server.
        python: the interpreter for a kind.
        loop: the event loop of all servers.
        log: where the servers' standard error goes.
    """

    postgres: PostgreSQL
    python: Callable[[Kind], str]
    loop: str
    log: Path | None


class Notes:
    """What the agents of a deployment noted, by task."""

    def __init__(self) -> None:
        self._notes: dict[str, list[Note]] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def take(self, note: Note) -> None:
        """A note has come."""
        self._notes.setdefault(note.task_id, []).append(note)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def of(self, task_id: str) -> list[Note]:
        """Those of a task, in the order in which they came."""
        return self._notes.get(task_id, [])

    async def first(
        self, task_id: str, matches: Callable[[Note], bool], *, patience: float
    ) -> Note | None:
        """The first note of the task that matches; None if there is none in time (seconds)."""
        try:
            async with asyncio.timeout(patience):
                while True:
                    for note in self.of(task_id):
                        if matches(note):
                            return note
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiter)
                    await waiter
        except TimeoutError:
            return None


class Replica:
    """A server process of a deployment, and a connection to it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = Client(server.address)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.server.pid

    async def close(self) -> None:
        """End the connection and the process."""
        await self.client.close()
        await self.server.__aexit__(None, None, None)


class Deployment:
    """Runs a kind; an async context manager.

    Args:
        kind: what.
        plan: what its agent does.
        ground: what it stands on.
        lease: seconds after which others take over from a silent replica; None for the default.
        restarts: whether tasks of a process that died begin again.
        database: one that exists already, instead of a new one.
    """

    BEGIN_TIMEOUT = 30.0
    """Seconds that a task may take to begin."""

    def __init__(
        self,
        kind: Kind,
        plan: Plan,
        ground: Ground,
        *,
        lease: float | None = None,
        restarts: bool = False,
        database: str = "",
    ) -> None:
        self.kind = kind
        self.plan = plan
        self.requests = Requests()
        self.notes = Notes()
        self.replicas: list[Replica] = []
        self.database = database
        self.nats: Nats | None = None
        self._ground = ground
        self._lease = lease
        self._restarts = restarts
        self._stack = AsyncExitStack()

    @property
    def name(self) -> str:
        """The name in the report."""
        return self.kind.name

    @property
    def postgres(self) -> PostgreSQL:
        """The database server."""
        return self._ground.postgres

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_replicas)
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def _open(self, stack: AsyncExitStack) -> None:
        kind, postgres = self.kind, self._ground.postgres
        store, broker = "memory:", "memory:"
        services = AsyncExitStack()
        if kind.store == "sqlite":
            directory = services.enter_context(tempfile.TemporaryDirectory(prefix="a2a-grpc-"))
            store = f"sqlite:///{directory}/tasks.db"
        elif kind.store == "postgresql":
            if not self.database:
                self.database = await postgres.create_database("bench")
            store = postgres.url(self.database)
            if kind.is_ours:
                self.nats = await services.enter_async_context(Nats())
                broker = self.nats.url
        # The replicas go first.
        services.push_async_exit(stack.pop_all())
        stack.push_async_exit(services)
        self._options = ServerOptions(
            self.plan, self._ground.loop, store, broker, self._lease, self._restarts
        )
        for _ in range(kind.replicas):
            # One after the other: not everybody can make tables while others do.
            await self.add_replica()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    async def _close_replicas(self) -> None:
        replicas, self.replicas = self.replicas, []
        await asyncio.gather(*(replica.close() for replica in replicas))

    async def add_replica(self) -> Replica:
        """Start one more."""
        kind = self.kind
        server = ServerProcess(
            self.name,
            kind.module,
            self._options,
            python=self._ground.python(kind),
            ours=not kind.own_environment,
            log=self._ground.log,
            on_note=self.notes.take,
        )
        await server.__aenter__()
        replica = Replica(server)
        self.replicas.append(replica)
        return replica

    async def kill(self, replica: Replica) -> None:
        """End one as a power failure would, and forget it."""
        replica.server.kill()
        self.replicas.remove(replica)
        await replica.close()

    def clients(self) -> Iterator[Client]:
        """The connections, in turn, for ever."""
        while True:
            yield from [replica.client for replica in self.replicas]

    async def runs(self, task_id: str) -> Replica:
        """The replica that runs a task, once it does."""
        began = await self.notes.first(
            task_id, lambda note: note.what == "began", patience=self.BEGIN_TIMEOUT
        )
        if began is None:
            raise TimeoutError(f"{self.name}: the task {task_id} did not begin")
        return next(replica for replica in self.replicas if replica.pid == began.pid)

    def other(self, replica: Replica) -> Replica:
        """One that is not `replica`."""
        return next(other for other in self.replicas if other is not replica)

    def open_gate(self) -> None:
        """Let agents that wait go on."""
        for replica in self.replicas:
            replica.server.open_gate()

    async def usage(self) -> Usage:
        """What the replicas have used so far, together."""
        used = await asyncio.gather(*(replica.server.usage() for replica in self.replicas))
        return Usage(sum(one.cpu for one in used), sum(one.peak_kib for one in used))
