"""Runs scenarios: the servers of one scenario side by side, their rounds interleaved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.delivery import Faults
from benchmarks.scenarios import Measured, Sample, Scenario
from benchmarks.target import Kind, Target

ROUND_TIMEOUT = 300.0
"""Seconds that one round, or its preparation, may take."""


@dataclass(slots=True)
class Result:
    """What one server did in one scenario.

    Attributes:
        rows: the samples of each row, one for each round.
        faults: those of all rounds together.
        failure: why it could not go on, if so.
        peak_kib: the most memory its process had, in KiB.
        ready: what the server said of itself when it started: its event loop, versions.
    """

    rows: dict[str, list[Sample]] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    failure: str | None = None
    peak_kib: int = 0
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether everything came, in order."""
        return not self.faults and self.failure is None

    def take(self, measured: Measured) -> None:
        """Add a round."""
        self.faults.add(measured.faults)
        for row, sample in measured.samples.items():
            self.rows.setdefault(row, []).append(sample)


@dataclass(frozen=True, slots=True)
class Runner:
    """How scenarios are run.

    Attributes:
        kinds: the servers, in the order of the report.
        python: the interpreter of a kind.
        loop: the event loop of all servers.
        rounds: how many rounds, unless a scenario has an upper bound.
        log: where the servers' standard error goes.
        say: shows progress.
    """

    kinds: Sequence[Kind]
    python: Callable[[Kind], str]
    loop: str
    rounds: int
    log: Path | None
    say: Callable[[str], None]

    async def run(self, scenario: Scenario) -> dict[str, Result]:
        """Every server's result, by name; a server that fails is left out from then on."""
        results = {kind.name: Result() for kind in self.kinds}
        async with AsyncExitStack() as stack:
            running: list[Target] = []
            for kind in self.kinds:
                target = Target(
                    kind, scenario.plan, python=self.python(kind), loop=self.loop, log=self.log
                )
                try:
                    await stack.enter_async_context(target)
                except (OSError, RuntimeError, TimeoutError) as error:
                    self._failed(scenario, kind.name, results, error)
                    continue
                results[kind.name].ready = target.ready
                running.append(target)
            for stage in range(scenario.stages):
                await self._stage(scenario, stage, running, results)
            for target in running:
                results[target.name].peak_kib = (await target.usage()).peak_kib
        return results

    async def _stage(
        self, scenario: Scenario, stage: int, running: list[Target], results: dict[str, Result]
    ) -> None:
        for target in list(running):
            self.say(f"{scenario.name}: preparing {target.name}")
            try:
                async with asyncio.timeout(ROUND_TIMEOUT):
                    faults = await scenario.prepare(stage, target)
            except Exception as error:
                self._failed(scenario, target.name, results, error)
                running.remove(target)
            else:
                results[target.name].faults.add(faults)
        rounds = min(self.rounds, scenario.most_rounds)
        for number in range(rounds):
            # Each round begins with another server, so that none is always the first.
            first = number % len(running) if running else 0
            for target in running[first:] + running[:first]:
                self.say(f"{scenario.name}: round {number + 1} of {rounds}, {target.name}")
                try:
                    async with asyncio.timeout(ROUND_TIMEOUT):
                        results[target.name].take(await scenario.measure(stage, target))
                except Exception as error:
                    self._failed(scenario, target.name, results, error)
                    running.remove(target)

    def _failed(
        self, scenario: Scenario, name: str, results: dict[str, Result], error: Exception
    ) -> None:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        results[name].failure = reason
        self.say(f"{scenario.name}: {name} failed: {reason}\n")
