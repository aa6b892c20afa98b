"""Several server processes on one port: starts them, replaces those that die, stops them in order.

Each is started afresh, as the command that started this process; see `parent` for what they say to
each other. This process keeps the port reserved and serves nothing itself: it makes no gRPC object
and never imports the agent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from a2a_grpc.commands.address import Reservation
from a2a_grpc.commands.parent import VARIABLE, Started

logger = logging.getLogger(__name__)

_LAST_WORDS = 0.2
"""Seconds in which the end of a process that has ended closes."""


class ProcessesError(Exception):
    """The processes can't be started, or none can any more; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """When a process that died is replaced.

    Attributes:
        first: seconds before the first replacement; doubled for each that dies soon.
        longest: seconds that the delay grows up to.
        settled: seconds after which a process that dies did not die soon.
        tries: starts in a row of each process that may fail while none serves.
    """

    first: float = 0.5
    longest: float = 30.0
    settled: float = 60.0
    tries: int = 5


@dataclass(eq=False, slots=True)
class _Place:
    """One of the processes, and those that take its place."""

    process: asyncio.subprocess.Process | None = None
    started_at: float | None = None
    """When it began to serve; None before."""
    failures: int = 0
    """Starts in a row that led to nothing."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether it has served, or will not."""


def this_command() -> list[str]:
    """The command that this process was started with: interpreter, its flags, and arguments."""
    return [sys.executable, *sys.orig_argv[1:]]


class Supervisor:
    """Keeps `count` processes of a command running.

    - The first is started alone: what is wrong with the command is said once, by it.
    - One that dies before all have started ends the others; one that dies later is replaced.
    - Each SIGTERM and SIGINT goes to every process, as SIGTERM; this one ends when all have.
    - If this process dies, its processes find out and stop.

    Args:
        command: with the variable `parent.VARIABLE` in its environment, it is one of the processes.
        count: how many.
        on_started: called once, when all serve.
        backoff: when a process that died is replaced.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        on_started: Callable[[Started], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._command = list(command)
        self._places = [_Place() for _ in range(count)]
        self._on_started = on_started
        self._backoff = backoff or Backoff()
        self._stop = asyncio.Event()
        self._announced = False
        self._code = 0
        self._error: str | None = None
        self._started: Started | None = None
        self._asked: tuple[str, int] | None = None
        self._reservation: Reservation | None = None

    async def run(self) -> int:
        """Run them until a signal stops them; returns the exit code.

        It is 0 when all stopped in order, and that of the process that could not start, which has
        said why itself.

        Raises ProcessesError.
        """
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with asyncio.TaskGroup() as group:
                for count, place in enumerate(self._places):
                    group.create_task(self._keep(place), name=f"process-{count}")
                    if count == 0:
                        await place.settled.wait()
                for place in self._places:
                    await place.settled.wait()
                if self._started is not None and not self._stop.is_set():
                    self._announced = True
                    self._on_started(self._started)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            if self._reservation is not None:
                self._reservation.close()
        if self._error is not None:
            raise ProcessesError(self._error)
        return self._code

    def _on_signal(self) -> None:
        self._stop.set()
        self._terminate()

    def _terminate(self) -> None:
        """Send SIGTERM to all, for SIGINT too: Python reports that one if it has just started."""
        for place in self._places:
            if place.process is not None and place.process.returncode is None:
                # By its id: the method of the process would look whether it has ended, and take
                # its exit code from the event loop, which then knows none.
                with suppress(ProcessLookupError):
                    os.kill(place.process.pid, signal.SIGTERM)

    def _give_up(self, code: int, error: str | None) -> None:
        """End them all, for the first reason there is."""
        if not self._stop.is_set():
            self._code, self._error = code, error
            self._stop.set()
            self._terminate()

    async def _keep(self, place: _Place) -> None:
        """Start a process, and another one in its place whenever it has ended."""
        now = asyncio.get_running_loop().time
        delay = self._backoff.first
        try:
            while not self._stop.is_set():
                code, how = await self._run_one(place)
                if self._stop.is_set():
                    # Before it minds the signal, that ends it, which is as good.
                    if code not in (None, 0, -signal.SIGTERM):
                        logger.error("%s when it was to stop", how)
                        self._code = self._code or 1
                    return
                if not self._announced:
                    if code in (1, 2):  # and has said why
                        self._give_up(code, None)
                    else:
                        self._give_up(1, f"can't start: {how} before all served")
                    return
                if place.started_at is None:
                    place.failures += 1
                else:
                    soon = now() - place.started_at < self._backoff.settled
                    delay = delay if soon else self._backoff.first
                    place.failures, place.started_at = 0, None
                if all(p.failures >= self._backoff.tries for p in self._places):
                    self._give_up(1, "no process can be started any more; the lines above say why")
                    return
                logger.warning("%s; another is started in %gs", how, delay)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay)
                delay = min(2 * delay, self._backoff.longest)
        finally:
            place.settled.set()

    async def _run_one(self, place: _Place) -> tuple[int | None, str]:
        """Start a process and wait until it has ended; returns its exit code, and that in words."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = theirs.fileno()
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    # A terminal's Ctrl-C is for this process, which passes it on; and what is no
                    # job of the terminal must not read from it.
                    process_group=0,
                    stdin=asyncio.subprocess.DEVNULL,
                    env={**os.environ, VARIABLE: str(number)},
                    pass_fds=(number,),
                )
            except OSError as error:  # no memory, no more processes, another Python installed
                return None, f"a process could not be started ({error})"
            theirs.close()
            place.process = process
            if self._stop.is_set():  # while it was started
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
            listener = asyncio.create_task(
                self._listen(place, ours), name=f"listen-to-{process.pid}"
            )
            try:
                code = await process.wait()
                # What it said last; its end of the socket may live on in what it has forked.
                await asyncio.wait({listener}, timeout=_LAST_WORDS)
            finally:
                place.process = None
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)
        return code, f"process {process.pid} {_ended(code)}"

    async def _listen(self, place: _Place, connection: socket.socket) -> None:
        """Answer what a process asks, and learn that it serves."""
        reader, writer = await asyncio.open_connection(sock=connection.dup())
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "reserve" in message:
                    host, port = message["reserve"]
                    writer.write(json.dumps(self._reserve(host, port)).encode() + b"\n")
                elif "started" in message:
                    self._started = Started(**message["started"])
                    place.started_at = asyncio.get_running_loop().time()
                    place.failures = 0
                    place.settled.set()
                    if self._announced and place.process is not None:
                        logger.info("process %d serves", place.process.pid)
        except ConnectionError:
            pass  # it was killed with an answer unread
        finally:
            writer.close()

    def _reserve(self, host: str, port: int) -> dict[str, Any]:
        """The port that all processes listen on, or what is wrong with it."""
        if self._reservation is None:
            try:
                self._reservation = Reservation(host, port)
            except OSError as error:
                return {"error": str(error)}
            self._asked = (host, port)
        if (host, port) != self._asked:
            return {"error": f"{host}:{port} is another address than the first process had"}
        return {"port": self._reservation.port}


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
