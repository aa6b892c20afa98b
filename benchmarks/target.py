"""The servers that are compared, and a server process under the runner's control."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.agent import Plan
from benchmarks.load import Client, Requests
from benchmarks.serving import ServerOptions

ROOT = Path(__file__).resolve().parent.parent

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
    if find_spec("a2a_grpc.storage.sql") is None:
        names.remove("sqlite")
    return names


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server process used since it began: seconds of CPU time, KiB at its peak."""

    cpu: float
    peak_kib: int


class Target:
    """A running server of one kind; an async context manager.

    Args:
        kind: which one.
        plan: what its agent does.
        python: the interpreter.
        loop: the event loop of the server.
        log: where its standard error goes.
    """

    START_TIMEOUT = 60.0
    SETTLE_INTERVAL = 0.02
    SETTLED_CPU = 0.001

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
        options = ServerOptions(self._plan, self._loop, store)
        paths = [str(ROOT)]
        if not self.kind.own_environment:
            paths += [path for path in sys.path if path]
        log = self._log.open("ab") if self._log is not None else None
        try:
            self._process: Process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                self.kind.module,
                options.to_json(),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log or DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        finally:
            if log is not None:
                log.close()
        try:
            async with asyncio.timeout(self.START_TIMEOUT):
                self.ready = await self._hear()
        except BaseException:
            await self._stop()
            raise
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
        await self._stop()

    async def _stop(self) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(5.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._directory.cleanup()

    @property
    def pid(self) -> int:
        """The id of the server process."""
        return self._process.pid

    def connect(self, *, narrow: bool = False) -> Client:
        """A further connection, closed with the target."""
        client = Client(f"127.0.0.1:{self.ready['port']}", narrow=narrow)
        self._clients.append(client)
        return client

    async def usage(self) -> Usage:
        """What the server used, once it has come to rest: what it does after answering counts."""
        latest = await self._usage_now()
        while True:
            await asyncio.sleep(self.SETTLE_INTERVAL)
            before, latest = latest, await self._usage_now()
            if latest.cpu - before.cpu < self.SETTLED_CPU:
                return latest

    async def _usage_now(self) -> Usage:
        self._tell(b"usage\n")
        return Usage(**await self._hear())

    def open_gate(self) -> None:
        """Let agents that wait go on."""
        self._tell(b"gate\n")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    async def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server {self.name} ended; see its log")
        answer: dict[str, Any] = json.loads(line)
        return answer
