"""`python -m benchmarks`: measure, compare, report. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.environment import cache_directory, sdk_python
from benchmarks.report import Report, machine
from benchmarks.runner import Runner
from benchmarks.scenarios import SCENARIOS
from benchmarks.target import KINDS, Kind, available_kinds

CLUSTER = "--cluster"


def main() -> int:
    """Run the command; returns its exit status: 1 if a2a-grpc lost something or failed."""
    if CLUSTER in sys.argv[1:]:
        from benchmarks.cluster.command import main as measure_cluster

        arguments = [argument for argument in sys.argv[1:] if argument != CLUSTER]
        return measure_cluster(arguments, _say, _progress)
    options = _options()
    loop: str = options.loop
    kinds = [KINDS[name] for name in KINDS if name in (options.servers or available_kinds())]
    sdk: str | None = options.sdk_python
    if sdk is None and any(kind.own_environment for kind in kinds):
        sdk = str(sdk_python(_say))
    rounds: int = options.rounds or (2 if options.quick else 5)
    log = cache_directory() / "servers.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)

    def python(kind: Kind) -> str:
        return sdk if kind.own_environment and sdk is not None else sys.executable

    here = machine()
    _say(
        f"{here['cpu']}, {here['cpus']} CPUs, {here['system']}, Python {here['python']}\n"
        f"every server and the load generator on {loop}; {rounds} rounds; servers log to {log}"
    )
    runner = Runner(kinds, python, loop, rounds, log, _progress)
    report = Report({"quick": options.quick, "rounds": rounds, "loop": loop})
    measuring = _measure(runner, report, options.scenario or list(SCENARIOS), options.quick)
    if loop == "uvloop":
        import uvloop

        uvloop.run(measuring)
    else:
        asyncio.run(measuring)
    print(report.summary())
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    return 0 if report.own_is_clean() else 1


async def _measure(runner: Runner, report: Report, names: list[str], quick: bool) -> None:
    for name in names:
        scenario = SCENARIOS[name](quick)
        results = await runner.run(scenario)
        _progress("")
        print(report.add(scenario, results), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure a2a-grpc beside a bare grpc.aio server and a2a-sdk.",
    )
    parser.add_argument(
        CLUSTER,
        action="store_true",
        help="measure replicas on PostgreSQL and NATS instead; with --help, its own options",
    )
    parser.add_argument("--quick", action="store_true", help="less work, fewer rounds")
    parser.add_argument(
        "--scenario", action="append", choices=SCENARIOS, help="only this one; may be repeated"
    )
    parser.add_argument("--rounds", type=_positive, help="rounds of each scenario (5; quick: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--servers", type=_kinds, metavar="LIST", help=f"only these of {','.join(KINDS)}"
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
        help="an interpreter that has a2a-sdk[grpc]; otherwise pip makes an environment",
    )
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _kinds(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in KINDS]:
        raise argparse.ArgumentTypeError(
            f"no server {', '.join(unknown)}; there are {', '.join(KINDS)}"
        )
    return names


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _progress(line: str) -> None:
    # On a terminal one line that is overwritten; elsewhere the tables show how far it is.
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
