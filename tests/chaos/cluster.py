"""Server processes that share one store and one broker, and what can be done to them.

A replica that comes back after its death listens where it did before.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.chaos.journal import JOURNAL, Journal, Thaw
from tests.cli.process import environment_of
from tests.environments import ROOT

PATIENCE = 40.0
"""Seconds after which whatever is waited for counts as stuck."""

TARGET = "tests.chaos.agent:server"


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = PATIENCE
) -> None:
    """Wait for what shows nowhere but in a file or in the answer of a call."""
    deadline = time.monotonic() + seconds
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.01)


def unused_port() -> int:
    """A port that no outgoing connection takes while the replica that has it is away."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Replica:
    """One server process at a time, under one name and at one address.

    Args:
        name: in logs.
        arguments: of `a2a-grpc serve`, without the target and the port.
        directory: for its logs.
        journal: the directory of the journal.
    """

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, journal: Path) -> None:
        self.name = name
        self.port = unused_port()
        self.thaws: list[Thaw] = []
        self._arguments = arguments
        self._directory = directory
        self._journal = journal
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False
        self._lives = 0

    def __repr__(self) -> str:
        return f"<{self.name}, pid {self.pid}, port {self.port}>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last; 0 if there was none."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def takes_calls(self) -> bool:
        """Whether it is more than a worker."""
        return "worker" not in self._arguments

    @property
    def is_frozen(self) -> bool:
        return self._frozen

    @property
    def log(self) -> str:
        """What its process, the last one, has written."""
        return self.logs(since=self._lives).get(self._lives, "")

    @property
    def lives(self) -> int:
        """How many processes there were so far, the one that runs included."""
        return self._lives

    def logs(self, *, since: int = 0) -> dict[int, str]:
        """What its processes have written, from the one with this number on."""
        return {
            life: self._log_path(life).read_text(encoding="utf-8", errors="replace")
            for life in range(max(1, since), self._lives + 1)
        }

    def _log_path(self, life: int) -> Path:
        return self._directory / f"{self.name}.{life}.log"

    # Starting.

    def start(self) -> None:
        """Start the process; `ready` waits until it serves."""
        assert not self.is_running, f"{self!r} runs already"
        self._lives += 1
        self._frozen = False
        with self._log_path(self._lives).open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "error", "-m", "a2a_grpc", "serve", TARGET),
                    *("--port", str(self.port), *self._arguments),
                ],
                cwd=ROOT,
                env=environment_of(**{JOURNAL: str(self._journal)}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        """Wait until it serves."""

        def serves() -> bool:
            assert self.is_running, f"{self!r} ended before it served:\n{self.log}"
            return "serving " in self.log

        await until(serves, f"{self!r} serves")

    # What may happen to it.

    def kill(self) -> float:
        """kill -9; returns when that was."""
        assert self._process is not None
        self._process.kill()
        at = time.monotonic()
        self._process.wait()
        return at

    def freeze(self) -> None:
        """SIGSTOP; returns when it stands still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._frozen = True
        stat = Path(f"/proc/{self.pid}/stat")
        while stat.exists() and stat.read_text().rpartition(") ")[2][0] != "T":
            pass

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self.thaws.append(Thaw(self.pid, time.monotonic()))
        self._process.send_signal(signal.SIGCONT)
        self._frozen = False

    def ask_to_stop(self) -> float:
        """SIGTERM; returns when that was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return time.monotonic()

    async def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, f"{self!r} ends")
        return process.returncode

    def dispose(self) -> None:
        """End it, whatever state it is in."""
        if self.is_running:
            self.kill()


class Cluster:
    """Replicas of one service; a context manager that leaves no process behind.

    Args:
        directory: for logs and the journal; made if missing.
        arguments: of every replica: store, broker, and the rest.
        roles: a name for each replica, and its own arguments.
    """

    def __init__(
        self, directory: Path, arguments: Sequence[str], roles: dict[str, Sequence[str]]
    ) -> None:
        self.directory = directory
        self.journal = Journal(directory / "journal")
        self.journal.directory.mkdir(parents=True, exist_ok=True)
        self.replicas = [
            Replica(name, [*arguments, *own], directory, self.journal.directory)
            for name, own in roles.items()
        ]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.dispose()

    @property
    def living(self) -> list[Replica]:
        """Those that run and are not frozen."""
        return [one for one in self.replicas if one.is_running and not one.is_frozen]

    @property
    def thaws(self) -> list[Thaw]:
        """All that were frozen and went on."""
        return [thaw for replica in self.replicas for thaw in replica.thaws]

    def others(self, *but: Replica) -> list[Replica]:
        """The living ones without these."""
        return [one for one in self.living if one not in but]

    def of(self, pid: int) -> Replica:
        """The replica with this process."""
        return next(one for one in self.replicas if one.pid == pid)

    @property
    def doors(self) -> list[Replica]:
        """The living ones that take calls."""
        return [one for one in self.living if one.takes_calls]

    async def heal(self) -> None:
        """Every replica runs."""
        for replica in self.replicas:
            if replica.is_frozen and replica.is_running:
                replica.thaw()
            if not replica.is_running:
                replica.start()
        for replica in self.replicas:
            await replica.ready()
