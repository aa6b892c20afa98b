"""A server process under the runner's control: what it says, what it is told, what it used.

The other end of the pipes is `serving.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from benchmarks.serving import ServerOptions

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server process used since it began: seconds of CPU time, KiB at its peak."""

    cpu: float
    peak_kib: int


class Note(NamedTuple):
    """What an agent told the runner: what happened to which task, and when.

    `at` is in nanoseconds of the clock that all processes of the machine share
    (`time.monotonic_ns`); `pid` is the agent's process.
    """

    what: str
    task_id: str
    at: int
    pid: int


def ignore_note(note: Note) -> None:
    """Does nothing."""


class ServerProcess:
    """A running server; an async context manager.

    Args:
        name: the name in error messages.
        module: what the process runs.
        options: what it is told.
        python: the interpreter.
        ours: whether that sees the packages of this process.
        log: where its standard error goes.
        on_note: called with what its agents note.
    """

    START_TIMEOUT = 60.0
    STOP_TIMEOUT = 10.0

    def __init__(
        self,
        name: str,
        module: str,
        options: ServerOptions,
        *,
        python: str,
        ours: bool,
        log: Path | None = None,
        on_note: Callable[[Note], None] = ignore_note,
    ) -> None:
        self.name = name
        self.ready: dict[str, Any] = {}
        self._command = (python, "-m", module, options.to_json())
        self._ours = ours
        self._log = log
        self._on_note = on_note
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        paths = [str(ROOT)]
        if self._ours:
            paths += [path for path in sys.path if path]
        log = self._log.open("ab") if self._log is not None else None
        try:
            self._process: Process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log or DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        finally:
            if log is not None:
                log.close()
        self._listening = asyncio.create_task(self._listen(), name=f"listen to {self.name}")
        try:
            async with asyncio.timeout(self.START_TIMEOUT):
                self.ready = await self._hear()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(self.STOP_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await self._listening

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.ready['port']}"

    def kill(self) -> None:
        """End it as a power failure would."""
        self._process.send_signal(signal.SIGKILL)

    async def usage(self) -> Usage:
        """What it has used so far."""
        self._tell(b"usage\n")
        return Usage(**await self._hear())

    def open_gate(self) -> None:
        """Let agents that wait go on."""
        self._tell(b"gate\n")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    async def _hear(self) -> dict[str, Any]:
        answer = await self._answers.get()
        if answer is None:
            self._answers.put_nowait(None)
            status = await self._process.wait()
            raise RuntimeError(f"the server {self.name} ended with status {status}; see its log")
        return answer

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "note" in said:
                self._on_note(Note(said["note"], said["task"], said["at"], self.pid))
            else:
                self._answers.put_nowait(said)
        self._answers.put_nowait(None)


async def at_rest(
    usage: Callable[[], Awaitable[Usage]], *, interval: float = 0.02, settled_cpu: float = 0.001
) -> Usage:
    """What `usage` says, once it says nearly the same twice, `interval` seconds apart."""
    latest = await usage()
    while True:
        await asyncio.sleep(interval)
        before, latest = latest, await usage()
        if latest.cpu - before.cpu < settled_cpu:
            return latest


def cpu_of_tree(pid: int) -> float:
    """Seconds of CPU time of a process and its children, ended ones included; 0 where unknown.

    An ended child counts once its parent has taken note of it.
    """
    ticks = _ticks(pid, ended_children=True)
    children: Sequence[str] = ()
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks += sum(_ticks(int(child), ended_children=False) for child in children)
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int, *, ended_children: bool) -> int:
    try:
        # The name, in brackets, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    user, system, ended_user, ended_system = (int(value) for value in fields[11:15])
    return user + system + (ended_user + ended_system if ended_children else 0)
