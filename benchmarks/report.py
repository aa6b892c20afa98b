"""The figures: medians over the rounds, and ratios taken within each round."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.runner import Result
from benchmarks.scenarios import Sample, Scenario
from benchmarks.target import BARE, OWN, SDK

CLIENT_BOUND = 0.9
"""From this share of the time on, the load generator was the limit and not the server."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One server in one row.

    Attributes:
        cpu_us: microseconds of server CPU per unit.
        spread: half the distance between the rounds with the least and the most, as a share of it.
        rate: units per second.
        latency_ms: milliseconds.
        payload: bytes per unit.
        client_share: how much of the time the load generator was busy.
        to_bare, to_own: CPU per unit, as multiples of the bare server's and of a2a-grpc's.
    """

    cpu_us: float
    spread: float
    rate: float
    latency_ms: float
    payload: float
    client_share: float
    to_bare: float | None
    to_own: float | None


def figures(samples: list[Sample], bare: list[Sample], own: list[Sample]) -> Figures | None:
    """The medians; None if nothing was delivered."""
    filled = [sample for sample in samples if sample.units]
    if not filled:
        return None
    costs = [_cpu(sample) for sample in filled]
    return Figures(
        cpu_us=statistics.median(costs) * 1e6,
        spread=(max(costs) - min(costs)) / 2 / statistics.median(costs),
        rate=_median(filled, lambda sample: sample.units / sample.wall),
        latency_ms=_median(filled, lambda sample: sample.latency) * 1e3,
        payload=_median(filled, lambda sample: sample.payload / sample.units),
        client_share=_median(filled, lambda sample: sample.client / sample.wall),
        to_bare=_ratio(samples, bare),
        to_own=_ratio(samples, own),
    )


def _cpu(sample: Sample) -> float:
    return sample.cpu / sample.units


def _median(samples: list[Sample], value: Callable[[Sample], float]) -> float:
    return statistics.median(map(value, samples))


def _ratio(samples: list[Sample], base: list[Sample]) -> float | None:
    pairs = [
        (mine, other)
        for mine, other in zip(samples, base, strict=False)
        if mine.units and other.units and other.cpu
    ]
    return statistics.median(_cpu(mine) / _cpu(other) for mine, other in pairs) if pairs else None


class Report:
    """Collects results and puts them into words."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._scenarios: list[tuple[Scenario, dict[str, Result]]] = []

    def add(self, scenario: Scenario, results: dict[str, Result]) -> str:
        """Take in a scenario's results; returns its table."""
        self._scenarios.append((scenario, results))
        lines = [f"\n{scenario.name}: {scenario.title}"]
        lines.append(
            f"  {'':28}{'CPU µs/' + scenario.unit:>14}{'':>6}{'x bare':>9}{'x a2a-grpc':>12}"
            f"{scenario.unit + 's/s':>12}{'p50 ms':>10}{'bytes':>8}{'lost':>9}"
        )
        rows = dict.fromkeys(row for result in results.values() for row in result.rows)
        for row in rows or {"": None}:
            for name, result in results.items():
                lines.append(_line(row, name, result, self._figures(results, row, name)))
        for name, result in results.items():
            lines += (f"  {name}: {fault}" for fault in _faults(result))
        return "\n".join(lines)

    @staticmethod
    def _figures(results: dict[str, Result], row: str, name: str) -> Figures | None:
        def samples(of: str) -> list[Sample]:
            return results[of].rows.get(row, []) if of in results else []

        found = figures(samples(name), samples(BARE), samples(OWN))
        if found is not None and results[name].faults.lost:
            # Who delivers less does less: that is no figure to compare.
            return replace(found, to_bare=None, to_own=None)
        return found

    def summary(self) -> str:
        """Every row in one line: the ratios."""
        names = list(dict.fromkeys(name for _, results in self._scenarios for name in results))
        lines = [
            "\nServer CPU per unit, as a multiple of the bare server's (see benchmarks/README.md)"
        ]
        heads = "".join(f"{name:>18}" for name in names)
        lines.append(f"  {'':32}{heads}{'sdk : own':>14}")
        for scenario, results in self._scenarios:
            for row in dict.fromkeys(row for result in results.values() for row in result.rows):
                line = f"  {scenario.name + ' ' + row:32}"
                for name in names:
                    line += f"{self._cell(results, row, name):>18}"
                sdk = self._figures(results, row, SDK) if SDK in results else None
                complete = sdk is not None and results[SDK].is_clean
                line += f"{_number(sdk.to_own if sdk and complete else None, 2):>14}"
                lines.append(line.rstrip())
        if SDK in names and OWN in names:
            lines.append(f"  sdk : own is the CPU of {SDK} as a multiple of {OWN}'s")
        return "\n".join(lines)

    def _cell(self, results: dict[str, Result], row: str, name: str) -> str:
        result = results.get(name)
        if result is None:
            return "-"
        if result.faults.lost:
            return f"lost {result.faults.lost:,}"
        if not result.is_clean:
            return "failed"
        found = self._figures(results, row, name)
        return _number(found.to_bare if found else None, 2)

    def own_is_clean(self) -> bool:
        """Whether a2a-grpc delivered everything, in order and without errors."""
        return all(
            result.is_clean
            for _, results in self._scenarios
            for name, result in results.items()
            if name.startswith(OWN)
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, every round included."""
        return {
            "settings": self._settings,
            "machine": machine(),
            "scenarios": [
                {
                    "name": scenario.name,
                    "title": scenario.title,
                    "unit": scenario.unit,
                    "latency": scenario.latency,
                    "servers": {name: self._result_as_json(results, name) for name in results},
                }
                for scenario, results in self._scenarios
            ],
        }

    def _result_as_json(self, results: dict[str, Result], name: str) -> dict[str, Any]:
        result = results[name]
        rows: dict[str, Any] = {}
        for row, samples in result.rows.items():
            found = self._figures(results, row, name)
            rows[row] = {
                "median": None if found is None else asdict(found),
                "rounds": [asdict(sample) for sample in samples],
            }
        faults = result.faults
        return {
            "rows": rows,
            "faults": {**asdict(faults), "errors": dict(faults.errors)},
            "failure": result.failure,
            "peak_kib": result.peak_kib,
            "loop": result.ready.get("loop"),
            "versions": result.ready.get("versions", {}),
        }


def _line(row: str, name: str, result: Result, found: Figures | None) -> str:
    label = f"{row + ': ' if row else ''}{name}"
    if found is None:
        return f"  {label:28}{'failed' if result.failure else 'nothing delivered':>14}"
    bound = "*" if found.client_share >= CLIENT_BOUND else " "
    spread = f"±{found.spread:.0%}"
    return (
        f"  {label:28}{found.cpu_us:>14,.1f}{spread:>6}{_number(found.to_bare, 2):>9}"
        f"{_number(found.to_own, 2):>12}{found.rate:>11,.0f}{bound}{found.latency_ms:>10,.2f}"
        f"{found.payload:>8,.0f}{result.faults.lost:>9,}"
    )


def _faults(result: Result) -> list[str]:
    faults = result.faults
    found = []
    if faults.lost:
        streams = f", in {faults.readers} streams" if faults.readers else ""
        silent = f", {faults.silent} of which ended with OK" if faults.silent else ""
        found.append(f"lost {faults.lost:,} events{streams}{silent}")
    if faults.repeated:
        found.append(f"{faults.repeated:,} events came twice")
    if faults.disordered:
        found.append(f"{faults.disordered:,} events came out of order")
    found += (f"{count:,} x {error}" for error, count in faults.errors.most_common(5))
    if result.failure:
        found.append(f"failed: {result.failure}")
    return found


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "system": platform.platform(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
