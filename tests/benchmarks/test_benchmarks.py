"""The benchmark runs, checks what it gets, and says when something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from a2a_grpc import pb
from benchmarks.agent import Plan, chunk_event, first_task, last_status, user_message
from benchmarks.delivery import check_stream

ROOT = Path(__file__).resolve().parents[2]


def test_quick_run_of_one_scenario_reports_both_servers(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1"),
            *("--scenario", "send", "--servers", "bare,memory", "--json", str(figures)),
        ],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (scenario,) = json.loads(figures.read_text())["scenarios"]
    bare, own = scenario["servers"]["bare grpc.aio"], scenario["servers"]["a2a-grpc"]
    assert bare["rows"][""]["median"]["cpu_us"] > 0
    assert own["rows"][""]["median"]["to_bare"] > 1
    assert own["faults"]["lost"] == 0
    sizes = [server["rows"][""]["median"]["payload"] for server in (bare, own)]
    assert sizes[0] == pytest.approx(sizes[1], abs=4)  # timestamps differ


def _stream(numbers: list[int], *, completed: bool = True) -> list[bytes]:
    events = [pb.StreamResponse(task=first_task(pb, "t", "c", user_message(pb, 1)))]
    for number in numbers:
        update = chunk_event(pb, "t", "c", number, 16)
        events.append(pb.StreamResponse(artifact_update=update))
    if completed:
        events.append(pb.StreamResponse(status_update=last_status(pb, "t", "c")))
    return [event.SerializeToString() for event in events]


def test_what_is_lost_repeated_or_out_of_order_is_counted() -> None:
    plan = Plan((4,))
    assert not check_stream(_stream([0, 1, 2, 3]), plan)
    lossy = check_stream(_stream([0, 3], completed=False), plan)
    assert (lossy.lost, lossy.silent) == (3, 1)
    assert check_stream(_stream([0, 1, 3], completed=True), plan, "UNAVAILABLE").silent == 0
    assert check_stream(_stream([0, 1, 1, 2, 3]), plan).repeated == 1
    assert check_stream(_stream([0, 2, 1, 3]), plan).disordered == 1
