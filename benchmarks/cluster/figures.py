"""Tables of figures, folded over the rounds, and the targets they are held against."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.delivery import Faults

Fold = Callable[[Sequence[float]], float]

BUSY = 3.0
"""Load average from which on the figures are doubted; a scenario before has its part in it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of every line.

    Attributes:
        name: its heading, with the unit.
        digits: after the point.
        fold: makes one figure of those of all rounds.
    """

    name: str
    digits: int = 2
    fold: Fold = statistics.median


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure of one line must not exceed."""

    line: str
    column: str
    most: float
    label: str


@dataclass(slots=True)
class Line:
    """One deployment in one situation.

    Attributes:
        rounds: the figures of each round, by column.
        faults: those of all rounds together.
        failure: why it could not go on, if so.
        remarks: what the figures do not say.
    """

    rounds: list[Mapping[str, float]] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    failure: str | None = None
    remarks: dict[str, None] = field(default_factory=dict)
    ours: bool = False

    def value(self, column: Column) -> float | None:
        """The figure; None if there is none."""
        known = [one[column.name] for one in self.rounds if column.name in one]
        return column.fold(known) if known else None

    @property
    def is_clean(self) -> bool:
        """Whether everything came, in order."""
        return not self.faults and self.failure is None


class Table:
    """The figures of one scenario.

    Args:
        name, title: of the scenario.
        columns: the figures of every line.
        targets: for some of them.

    `load_before` is the machine's load average when the scenario began: where that is not near 0,
    something else keeps the machine busy, and times are too long.
    """

    LABEL = 44

    def __init__(
        self, name: str, title: str, columns: Sequence[Column], targets: Sequence[Target] = ()
    ) -> None:
        self.name = name
        self.title = title
        self.columns = list(columns)
        self.targets = list(targets)
        self.lines: dict[str, Line] = {}
        self.load_before = 0.0

    def line(self, label: str, *, ours: bool) -> Line:
        """The line with this label, made if there is none."""
        return self.lines.setdefault(label, Line(ours=ours))

    def value(self, label: str, column: str) -> float | None:
        """A figure."""
        wanted = next(one for one in self.columns if one.name == column)
        return self.lines[label].value(wanted) if label in self.lines else None

    def text(self) -> str:
        """As it is printed."""
        widths = [max(len(column.name) + 2, 10) for column in self.columns]
        heads = "".join(
            f"{column.name:>{width}}" for column, width in zip(self.columns, widths, strict=True)
        )
        said = [f"\n{self.name}: {self.title}", f"  {'':{self.LABEL}}{heads}{'lost':>7}"]
        for label, line in self.lines.items():
            cells = "".join(
                f"{_number(line.value(column), column.digits):>{width}}"
                for column, width in zip(self.columns, widths, strict=True)
            )
            said.append(f"  {label:{self.LABEL}}{cells}{line.faults.lost:>7,}")
        for label, line in self.lines.items():
            said += (f"  {label}: {remark}" for remark in [*line.remarks, *_faults(line)])
        said += (f"  {verdict.text()}" for verdict in self.verdicts())
        if self.load_before > BUSY:
            said.append(f"  the machine was busy before (load {self.load_before:.1f}): run again")
        return "\n".join(said)

    def verdicts(self) -> list[Verdict]:
        """The targets, each with what was measured."""
        return [
            Verdict(target, self.name, self.value(target.line, target.column))
            for target in self.targets
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything, every round included."""
        return {
            "name": self.name,
            "title": self.title,
            "load_before": self.load_before,
            "lines": {
                label: {
                    "figures": {column.name: line.value(column) for column in self.columns},
                    "rounds": [dict(one) for one in line.rounds],
                    "faults": {**asdict(line.faults), "errors": dict(line.faults.errors)},
                    "failure": line.failure,
                    "remarks": list(line.remarks),
                }
                for label, line in self.lines.items()
            },
            "targets": [
                {
                    "label": verdict.target.label,
                    "most": verdict.target.most,
                    "measured": verdict.measured,
                    "met": verdict.met,
                }
                for verdict in self.verdicts()
            ],
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured."""

    target: Target
    scenario: str
    measured: float | None

    @property
    def met(self) -> bool:
        """Whether the figure is there and small enough."""
        return self.measured is not None and self.measured <= self.target.most

    def text(self) -> str:
        """In one line."""
        word = "met   " if self.met else "MISSED"
        measured = _number(self.measured, 2)
        return f"{word} {self.target.label}: {measured} (at most {self.target.most:g})"


def _faults(line: Line) -> list[str]:
    faults, found = line.faults, []
    if faults.lost:
        found.append(f"lost {faults.lost:,}; silently in {faults.silent} streams")
    if faults.repeated:
        found.append(f"{faults.repeated:,} events came twice")
    if faults.disordered:
        found.append(f"{faults.disordered:,} events came out of order")
    found += (f"{count:,} x {error}" for error, count in faults.errors.most_common(5))
    if line.failure:
        found.append(f"failed: {line.failure}")
    return found


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
