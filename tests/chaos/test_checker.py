"""The checker itself: it notices what must never happen."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.chaos.journal import (
    Journal,
    Line,
    Thaw,
    What,
    assert_attempts_grow,
    assert_one_at_a_time,
)

A, B = 1, 2


def _journal(directory: Path, *lines: Line) -> Journal:
    for line in lines:
        with (directory / f"{line.pid}.jsonl").open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
    return Journal(directory)


def _line(at: float, pid: int, attempt: int, what: What, number: int = 0) -> Line:
    return Line(at, pid, "task", "message", attempt, what, number)


def test_two_executions_at_once_are_noticed(tmp_path: Path) -> None:
    journal = _journal(
        tmp_path,
        _line(1, A, 1, "start"),
        _line(2, B, 2, "start"),
        _line(3, A, 1, "step"),
    )
    with pytest.raises(AssertionError, match="executed by two at once"):
        assert_one_at_a_time(journal, ["task"])


def test_a_frozen_process_ends_one_step_at_the_most(tmp_path: Path) -> None:
    journal = _journal(
        tmp_path, _line(1, A, 1, "start"), _line(3, B, 2, "start"), _line(5.1, A, 1, "step", 7)
    )
    assert_one_at_a_time(journal, ["task"], [Thaw(A, 5)])
    for thaws in ([], [Thaw(A, 2)], [Thaw(A, 6)], [Thaw(B, 5)]):
        with pytest.raises(AssertionError, match="executed by two at once"):
            assert_one_at_a_time(journal, ["task"], thaws)
    _journal(tmp_path, _line(5.2, A, 1, "step", 8))
    with pytest.raises(AssertionError, match="executed by two at once"):
        assert_one_at_a_time(journal, ["task"], [Thaw(A, 5)])


def test_one_attempt_that_is_started_twice_is_noticed(tmp_path: Path) -> None:
    journal = _journal(tmp_path, _line(1, A, 1, "start"), _line(2, A, 1, "start"))
    with pytest.raises(AssertionError, match="started 2 times"):
        assert_one_at_a_time(journal, ["task"])


def test_an_attempt_that_is_not_counted_is_noticed(tmp_path: Path) -> None:
    journal = _journal(tmp_path, _line(1, A, 1, "start"), _line(2, B, 1, "start"))
    with pytest.raises(AssertionError, match="attempts"):
        assert_attempts_grow(journal, ["task"])


def test_what_is_written_while_an_agent_is_stopped_is_no_work(tmp_path: Path) -> None:
    journal = _journal(
        tmp_path, _line(1, A, 1, "start"), _line(2, B, 2, "start"), _line(3, A, 1, "cancelled")
    )
    assert_one_at_a_time(journal, ["task"])


def test_a_line_that_is_not_written_to_its_end_is_read_later(tmp_path: Path) -> None:
    journal = _journal(tmp_path, _line(1, A, 1, "start"))
    with (tmp_path / "1.jsonl").open("a") as file:
        whole = json.dumps(asdict(_line(2, A, 1, "step"))) + "\n"
        file.write(whole[:10])
        file.flush()
        assert [line.what for line in journal.lines("task")] == ["start"]
        file.write(whole[10:])
    assert [line.what for line in journal.lines("task")] == ["start", "step"]
