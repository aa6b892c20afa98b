"""`a2a-grpc` as a process of its own, whose lines a test can wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.environments import ROOT

PATIENCE = 30.0
"""Seconds after which a test that waits for a process fails."""


def environment_of(**variables: str) -> dict[str, str]:
    """This process's environment with nothing in it that our command or Python would read."""
    ours = ("A2A_GRPC_", "PYTHON", "GRPC_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    path = os.pathsep.join([str(ROOT), str(ROOT / "generated")])
    return {**inherited, "PYTHONPATH": path, **variables}


class Process:
    """A running `a2a-grpc`; a context manager that leaves none behind.

    Args:
        arguments: of the command.
        cwd: where it starts.
        variables: added to the environment.
        command: in place of `python -m a2a_grpc`.
        process_group: 0 makes it a job of its own, as a shell with a terminal does.
    """

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path,
        variables: dict[str, str] | None = None,
        command: Sequence[str | Path] = (sys.executable, "-W", "error", "-m", "a2a_grpc"),
        process_group: int | None = None,
    ) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [str(part) for part in (*command, *arguments)],
            cwd=cwd,
            env=environment_of(**(variables or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=process_group,
        )
        self._readers = [
            threading.Thread(target=self._read_errors, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        self._output = ""
        for reader in self._readers:
            reader.start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        self._output = self._process.stdout.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """What it has written to stderr so far."""
        with self._changed:
            return list(self._lines)

    @property
    def output(self) -> str:
        """What it has written to stdout, once it has ended."""
        return self._output

    def line(self, text: str) -> str:
        """The first line on stderr with `text` in it, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                for line in self._lines:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                assert left > 0, f"no line with {text!r} in {self._lines}"
                assert not self._ended, f"ended without a line with {text!r}: {self._lines}"
                self._changed.wait(left)

    @property
    def address(self) -> str:
        """Where it serves, as soon as it does."""
        return self.line("serving ").split("serving ")[1].split('"')[0]

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once it has ended and all it wrote is in `lines`."""
        code = self._process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; returns the exit code."""
        self.line("serving ")
        self.send_signal(number)
        return self.wait()
