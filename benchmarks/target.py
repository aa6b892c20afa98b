"""The servers that are compared, and a server process under the runner's control."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.agent import Plan
from benchmarks.load import Client, Requests
from benchmarks.processes import ServerProcess, Usage, at_rest
from benchmarks.serving import ServerOptions

BARE = "bare grpc.aio"
OWN = "a2a-grpc"
OWN_SQLITE = "a2a-grpc sqlite"
SDK = "a2a-sdk"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server: the module it runs, in which interpreter, on which store."""

    name: str
    module: str
    on_disk: bool = False
    own_environment: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is a2a-grpc."""
        return self.name.startswith(OWN)


KINDS = {
    "bare": Kind(BARE, "benchmarks.bare_server"),
    "memory": Kind(OWN, "benchmarks.own_server"),
    "sqlite": Kind(OWN_SQLITE, "benchmarks.own_server", on_disk=True),
    "sdk": Kind(SDK, "benchmarks.sdk_server", own_environment=True),
}


def available_kinds() -> list[str]:
    """Those that this checkout can run."""
    names = list(KINDS)
    if find_spec("a2a_grpc.storage.sql.storage") is None:
        names.remove("sqlite")
    return names


class Target:
    """A running server of one kind; an async context manager.

    Args:
        kind: which one.
        plan: what its agent does.
        python: the interpreter.
        loop: the event loop of the server.
        log: where its standard error goes.
    """

    def __init__(
        self,
        kind: Kind,
        plan: Plan,
        *,
        python: str,
        loop: str,
        log: Path | None = None,
    ) -> None:
        self.kind = kind
        self.requests = Requests()
        self.ready: dict[str, Any] = {}
        self._plan = plan
        self._python = python
        self._loop = loop
        self._log = log
        self._clients: list[Client] = []

    @property
    def name(self) -> str:
        """The name in the report."""
        return self.kind.name

    async def __aenter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="a2a-grpc-benchmark-")
        store = "memory:"
        if self.kind.on_disk:
            store = f"sqlite:///{self._directory.name}/tasks.db"
        self._server = ServerProcess(
            self.name,
            self.kind.module,
            ServerOptions(self._plan, self._loop, store),
            python=self._python,
            ours=not self.kind.own_environment,
            log=self._log,
        )
        try:
            await self._server.__aenter__()
        except BaseException:
            self._directory.cleanup()
            raise
        self.ready = self._server.ready
        self.client = self.connect()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.close()
        await self._server.__aexit__(exc_type, exc, traceback)
        self._directory.cleanup()

    @property
    def pid(self) -> int:
        """The id of the server process."""
        return self._server.pid

    def connect(self, *, narrow: bool = False) -> Client:
        """A further connection, closed with the target."""
        client = Client(self._server.address, narrow=narrow)
        self._clients.append(client)
        return client

    async def usage(self) -> Usage:
        """What the server used, once it has come to rest: what it does after answering counts."""
        return await at_rest(self._server.usage)

    def open_gate(self) -> None:
        """Let agents that wait go on."""
        self._server.open_gate()
