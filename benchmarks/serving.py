"""The frame of every server process: its event loop, and the lines it exchanges with the runner.

The one argument is a JSON object (`ServerOptions`). When the port is bound, a line of JSON goes to
standard output. Then each line from standard input is a command: `usage` is answered with the CPU
time of the whole process, all its threads included, `gate` opens the next gate; the end of input
stops the server. What agents note goes to standard output too.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Self

from benchmarks.agent import Gates, Plan


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server process is told.

    Attributes:
        plan: what the agent does.
        loop: the event loop, `uvloop` or `asyncio`.
        store: URL of the store, for servers that have several.
        broker: URL of the broker, likewise.
        lease: seconds after which others take over from a silent replica; None for the default.
        restarts: whether tasks of a process that died begin again.
    """

    plan: Plan
    loop: str
    store: str = "memory:"
    broker: str = "memory:"
    lease: float | None = None
    restarts: bool = False

    def to_json(self) -> str:
        """As the argument of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From the argument of the process."""
        values = json.loads(text)
        plan = values.pop("plan")
        segments = tuple(plan.pop("segments"))
        return cls(plan=Plan(segments, **plan), **values)


OpenServer = Callable[[ServerOptions, Gates], AbstractAsyncContextManager[int]]
"""Starts a server on a free port of 127.0.0.1; yields the port."""


def serve(open_server: OpenServer, *packages: str) -> None:
    """Run the server of this process until standard input ends.

    `packages` are those whose versions belong to the result.
    """
    options = ServerOptions.from_json(sys.argv[1])
    if options.loop == "uvloop":
        import uvloop

        uvloop.run(_serve(open_server, options, packages))
    else:
        asyncio.run(_serve(open_server, options, packages))


async def _serve(
    open_server: OpenServer, options: ServerOptions, packages: tuple[str, ...]
) -> None:
    gates = Gates()
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with open_server(options, gates) as port:
        _say(
            port=port,
            loop=type(loop).__module__.partition(".")[0],
            versions={name: version(name) for name in packages},
        )
        async for line in commands:
            match line.strip():
                case b"gate":
                    gates.open_next()
                case b"usage":
                    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                    _say(cpu=time.process_time(), peak_kib=peak)


def note(what: str, task_id: str) -> None:
    """Tell the runner what happened to a task just now."""
    _say(note=what, task=task_id, at=time.monotonic_ns())


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()
