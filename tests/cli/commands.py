"""Client commands as processes: with pipes, or on a terminal of their own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.process import PATIENCE, environment_of

COMMAND = (sys.executable, "-W", "error", "-m", "a2a_grpc")
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """The lines on stdout, each an object in JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The only line on stderr, without its first word."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: "), line
        return line.removeprefix("error: ")

    @property
    def error_object(self) -> Any:
        """The only line on stderr, as JSON."""
        (line,) = self.err.splitlines()
        return json.loads(line)


async def a2a(
    *arguments: str | Path,
    target: str | None = None,
    stdin: str | bytes = b"",
    cwd: Path | None = None,
    **variables: str,
) -> Ran:
    """Run `a2a-grpc` to its end, with pipes.

    `target` is given in the environment.
    """
    if target is not None:
        variables["A2A_GRPC_TARGET"] = target
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=environment_of(**variables),
    )
    given = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate(given)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


class Terminal:
    """A command on a terminal; what it wrote is read while it runs."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self._process = process
        self._master = master
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.raw = ""
        self._at = 0  # up to where `expect` has read
        self._loop.add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other side is closed
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
        self.raw += data.decode()
        self._changed.set()

    @property
    def shown(self) -> str:
        """Everything written so far, without colours and cursor movements."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    async def expect(self, text: str) -> str:
        """Wait until `text` comes, after what was expected before; what came with it, raw."""
        async with asyncio.timeout(PATIENCE):
            while (found := self.raw.find(text, self._at)) < 0:
                self._changed.clear()
                await self._changed.wait()
        start, self._at = self._at, found + len(text)
        return self.raw[start : self._at]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.send_signal(signal.SIGINT)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def wait(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._loop.remove_reader(self._master)
        os.close(self._master)


@asynccontextmanager
async def on_a_terminal(
    *arguments: str | Path, target: str, columns: int = 160, **variables: str
) -> AsyncIterator[Terminal]:
    """`a2a-grpc` with a terminal for stdin, stdout and stderr."""
    environment = environment_of(
        **{"A2A_GRPC_TARGET": target, "TERM": "xterm-256color", **variables}
    )
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CI", "COLUMNS"):
        if name not in variables:
            environment.pop(name, None)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *map(str, arguments), stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    terminal = Terminal(process, master)
    try:
        yield terminal
    finally:
        await terminal.close()
