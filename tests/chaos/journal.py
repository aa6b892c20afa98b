"""What the agents of all replicas write down, and what can be read from it afterwards.

A process appends one line at a time to a file of its own. The clock is the machine's monotonic one,
so the lines of all processes have one order.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal

JOURNAL = "CHAOS_JOURNAL"
"""The environment variable that names the directory."""

What = Literal["start", "step", "end", "cancelled", "told to cancel"]

AT_WORK: tuple[What, ...] = ("start", "step", "end")
"""What only an agent writes that executes; the others are written while it is being stopped."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line: at `at` (seconds of the monotonic clock), process `pid` did `what`."""

    at: float
    pid: int
    task: str
    message: str
    attempt: int
    what: What
    number: int = 0

    def __str__(self) -> str:
        number = f" {self.number}" if self.what == "step" else ""
        return (
            f"{self.at:.3f} pid {self.pid} task {self.task[:8]} message {self.message[:8]} "
            f"attempt {self.attempt}: {self.what}{number}"
        )


@dataclass(frozen=True, slots=True)
class Thaw:
    """Process `pid` had stood still and went on at `at`."""

    pid: int
    at: float


class Writer:
    """The journal of this process."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(
            directory / f"{os.getpid()}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY
        )

    def write(self, task: str, message: str, attempt: int, what: What, number: int = 0) -> None:
        """Append a line; it is there even if the process is killed right afterwards."""
        line = Line(time.monotonic(), os.getpid(), task, message, attempt, what, number)
        os.write(self._file, json.dumps(asdict(line)).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of `execute()`: the lines that it wrote while it was at work."""

    lines: Sequence[Line]

    @property
    def first(self) -> Line:
        return self.lines[0]

    @property
    def last(self) -> Line:
        return self.lines[-1]

    @property
    def has_ended(self) -> bool:
        """Whether it came to its own end."""
        return self.last.what == "end"


class Journal:
    """The journals of all processes, read together.

    Args:
        directory: where they write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._offsets: dict[Path, int] = defaultdict(int)
        self._lines: dict[str, list[Line]] = defaultdict(list)

    def _read(self) -> None:
        for path in self.directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._offsets[path] += len(whole)
            for data in whole.splitlines():
                line = Line(**json.loads(data))
                self._lines[line.task].append(line)

    def forget(self) -> None:
        """Leave out what is there by now."""
        self._read()
        self._lines.clear()

    def lines(self, task: str) -> list[Line]:
        """The lines about a task, in the order of time."""
        self._read()
        return sorted(self._lines.get(task, ()))

    def starts(self) -> list[Line]:
        """The starts of all tasks."""
        self._read()
        lines = (line for lines in self._lines.values() for line in lines)
        return sorted(line for line in lines if line.what == "start")

    def tasks(self) -> list[str]:
        """All tasks that an agent was started for."""
        self._read()
        return sorted(self._lines)

    def executions(self, task: str) -> list[Execution]:
        """The runs of `execute()` for a task, in the order in which they began."""
        runs: dict[tuple[int, str, int], list[Line]] = defaultdict(list)
        for line in self.lines(task):
            if line.what in AT_WORK:
                runs[line.pid, line.message, line.attempt].append(line)
        return sorted((Execution(run) for run in runs.values()), key=lambda run: run.first.at)

    def told_to_cancel(self, task: str) -> list[Line]:
        """The calls of `cancel()` for a task."""
        return [line for line in self.lines(task) if line.what == "told to cancel"]


def summary(lines: Iterable[Line]) -> list[str]:
    """The lines, with the first and the last of many steps in a row."""
    found: list[str] = []
    for _, group in groupby(lines, lambda line: (line.pid, line.message, line.attempt, line.what)):
        first, *more = group
        found.append(str(first))
        if more:
            found.append(f"{more[-1]} ({len(more)} more)")
    return found


def assert_one_at_a_time(
    journal: Journal, tasks: Iterable[str], thaws: Sequence[Thaw] = ()
) -> None:
    """No task was ever executed twice at once, and no execution was counted as another.

    A process that was frozen in the middle of its agent's step, and not while that waited, ends
    this one step after it was thawed; those in `thaws` may.
    """
    for task in tasks:
        runs = journal.executions(task)
        for run in runs:
            starts = sum(line.what == "start" for line in run.lines)
            assert starts == 1, f"task {task}: one attempt was started {starts} times\n{run.first}"
        for before, after in pairwise(runs):
            late = [line for line in before.lines if line.at >= after.first.at]
            if len(late) == 1 and any(
                thaw.pid == late[0].pid and after.first.at <= thaw.at <= late[0].at
                for thaw in thaws
            ):
                continue
            assert not late, (
                f"task {task} was executed by two at once: after this one had begun\n"
                f"{after.first}\nthis one went on\n" + "\n".join(map(str, late[:5]))
            )


def assert_attempts_grow(journal: Journal, tasks: Iterable[str]) -> None:
    """Every new try of a message says so: `attempt` grows."""
    for task in tasks:
        attempts: dict[str, list[Execution]] = defaultdict(list)
        for run in journal.executions(task):
            attempts[run.first.message].append(run)
        for message, runs in attempts.items():
            counted = [run.first.attempt for run in runs]
            assert counted == sorted(set(counted)), f"task {task}, {message}: attempts {counted}"
