"""`python -m benchmarks --cluster`: measure replicas, hold the figures against the targets."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.cluster.cancels import Cancels
from benchmarks.cluster.deployment import Ground, Kind
from benchmarks.cluster.events import Events
from benchmarks.cluster.figures import Table
from benchmarks.cluster.million import Million
from benchmarks.cluster.scenario import ClusterScenario, Run, Settings
from benchmarks.cluster.sends import Sends
from benchmarks.cluster.takeover import Takeover
from benchmarks.environment import cache_directory, sdk_python
from benchmarks.report import machine
from benchmarks.services import MissingServerError, PostgreSQL

SCENARIOS: dict[str, type[ClusterScenario]] = {
    scenario.name: scenario for scenario in (Events, Cancels, Takeover, Sends, Million)
}
Say = Callable[[str], None]


def main(arguments: Sequence[str], say: Say, progress: Say) -> int:
    """Run the command; returns its exit status: 1 if a2a-grpc lost something or failed.

    `say` writes a line for the person who waits, `progress` one that the next may overwrite.
    """
    options = _options(arguments)
    quick: bool = options.quick
    sdk: str | None = options.sdk_python
    if sdk is None and not options.without_sdk:
        sdk = str(sdk_python(say))
    settings = Settings(
        quick=quick,
        rounds=options.rounds or (2 if quick else 5),
        with_sdk=not options.without_sdk,
        leases=options.leases or ((2.0,) if quick else (2.0, 5.0, 15.0)),
        tasks=options.tasks or ((2_000, 20_000) if quick else (10_000, 1_000_000)),
        calls=options.calls,
        statistics_delay=options.statistics_delay,
    )
    log = cache_directory() / "servers.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    here = machine()
    say(
        f"{here['cpu']}, {here['cpus']} CPUs, {here['system']}, Python {here['python']}\n"
        f"every server and the load generator on {options.loop}; {settings.rounds} rounds; "
        f"servers log to {log}"
    )

    def python(kind: Kind) -> str:
        return sdk if kind.own_environment and sdk is not None else sys.executable

    names: list[str] = options.scenario or list(SCENARIOS)
    measuring = _measure(names, settings, python, options.loop, log, progress)
    try:
        if options.loop == "uvloop":
            import uvloop

            tables = uvloop.run(measuring)
        else:
            tables = asyncio.run(measuring)
    except MissingServerError as error:
        say(str(error))
        return 1
    except asyncio.CancelledError:
        say("ended by SIGTERM")
        return 1
    print(summary(tables))
    if options.json is not None:
        figures = {
            "settings": {"quick": quick, "rounds": settings.rounds, "loop": options.loop},
            "machine": here,
            "scenarios": [table.as_json() for table in tables],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    clean = all(line.is_clean for table in tables for line in table.lines.values() if line.ours)
    return 0 if clean else 1


async def _measure(
    names: Sequence[str],
    settings: Settings,
    python: Callable[[Kind], str],
    loop: str,
    log: Path,
    progress: Say,
) -> list[Table]:
    # Whoever ends the run leaves no database behind.
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    tables = []
    async with PostgreSQL() as postgres:
        for name in names:
            scenario = SCENARIOS[name]()
            table = scenario.table(settings)
            tables.append(table)
            table.load_before = os.getloadavg()[0]
            await scenario.run(Run(Ground(postgres, python, loop, log), settings, progress, table))
            progress("")
            print(table.text(), flush=True)
    return tables


def summary(tables: Sequence[Table]) -> str:
    """Every target in one line."""
    verdicts = [verdict for table in tables for verdict in table.verdicts()]
    met = sum(verdict.met for verdict in verdicts)
    lines = [f"\nTargets: {met} of {len(verdicts)} met"]
    lines += (f"  {verdict.scenario:10}{verdict.text()}" for verdict in verdicts)
    return "\n".join(lines)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks --cluster",
        description="Measure replicas of a2a-grpc on PostgreSQL and NATS beside those of a2a-sdk.",
    )
    parser.add_argument("--quick", action="store_true", help="less work, fewer rounds")
    parser.add_argument(
        "--scenario", action="append", choices=SCENARIOS, help="only this one; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each scenario (5; quick: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--without-sdk", action="store_true", help="leave a2a-sdk out")
    parser.add_argument(
        "--leases",
        type=_numbers,
        metavar="SECONDS,...",
        help="leases of the takeover scenario (2,5,15; quick: 2)",
    )
    parser.add_argument(
        "--tasks",
        type=_two_counts,
        metavar="SMALL,LARGE",
        help="finished tasks of the million scenario (10000,1000000; quick: 2000,20000)",
    )
    parser.add_argument(
        "--calls", type=int, help="calls of a round of the send scenario (2000; quick: 400)"
    )
    parser.add_argument(
        "--statistics-delay",
        type=float,
        default=PostgreSQL.STATISTICS_DELAY,
        metavar="SECONDS",
        help="until PostgreSQL has counted all transactions; with less, the counts are wrong",
    )
    parser.add_argument(
        "--loop",
        choices=("uvloop", "asyncio"),
        default="asyncio" if find_spec("uvloop") is None else "uvloop",
        help="event loop of every server and of the load generator (uvloop where there is one)",
    )
    parser.add_argument(
        "--sdk-python",
        metavar="PATH",
        help="an interpreter that has a2a-sdk[grpc,postgresql]; otherwise pip makes an environment",
    )
    return parser.parse_args(arguments)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _two_counts(text: str) -> tuple[int, int]:
    small, large = (int(part) for part in text.split(","))
    if not 0 < small < large:
        raise argparse.ArgumentTypeError(f"{text!r} is not a small number and a large one")
    return small, large
