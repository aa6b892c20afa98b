"""The pure parts of the client commands: plain text, safe names, what is new, content."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_grpc import pb
from a2a_grpc.commands.client import describe
from a2a_grpc.commands.client.content import data_part
from a2a_grpc.commands.client.novelty import Novelty
from a2a_grpc.commands.client.outcome import CommandError
from a2a_grpc.commands.client.plain import one_line, plain
from a2a_grpc.commands.client.saving import FileSaver, safe_name
from tests.support import COMPLETED, WORKING

WILD = st.text(st.characters(codec="utf-8"))
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(WILD)
def test_plain_text_has_no_control_characters(text: str) -> None:
    for shown, allowed in ((plain(text), "\n\t"), (one_line(text), "")):
        for character in shown:
            assert unicodedata.category(character) != "Cc" or character in allowed
            assert unicodedata.bidirectional(character) not in DIRECTIONS


@given(st.text("abc äöü 😀👩‍👩‍👧\n\t"))
def test_plain_text_is_left_alone(text: str) -> None:
    assert plain(text) == text


def test_one_line_is_cut() -> None:
    assert one_line("a  b\n\tc\u2028d") == "a b c d"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"


@given(WILD)
def test_a_safe_name_stays_in_its_directory(name: str) -> None:
    safe = safe_name(name)
    assert Path(safe).name == safe
    assert safe not in (".", "..")
    assert not safe.startswith((".", "-"))
    assert not set(safe) & set('/\\<>:"|?*\x00\n\r\x1b\u202e')
    assert len(safe.encode()) <= 200


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\dir\\x.txt", "x.txt"),
        ("..", ""),
        ("a/", ""),
        ("-rf", "rf"),
        ("CON.txt", "_CON.txt"),
        ("über uns.txt", "über uns.txt"),
        ("x" * 300 + ".tar", "x" * 196 + ".tar"),
        ("\u202egpj.exe", "_gpj.exe"),
    ],
)
def test_safe_names(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_files_of_one_name_are_numbered(tmp_path: Path) -> None:
    saver = FileSaver(tmp_path / "new")
    part = pb.Part(raw=b"x", filename="a.txt")
    first, second = saver.save(part, "f"), saver.save(part, "f")
    assert first is not None
    assert second is not None
    assert (first.path.name, first.instead_of) == ("a.txt", "")
    assert (second.path.name, second.instead_of, second.size) == ("a-2.txt", "a.txt", 1)
    assert saver.save(pb.Part(text="only text"), "f") is None
    assert saver.save(pb.Part(url="https://x"), "f") is None
    nameless = saver.save(pb.Part(raw=b"x", media_type="text/html; charset=x"), "../..")
    assert nameless is not None
    assert nameless.path.name == "file.html"


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(CommandError, match="--output names another directory"):
        FileSaver(tmp_path / "taken")  # before anything is sent
    saver = FileSaver(tmp_path / "there")
    (tmp_path / "there").rmdir()
    with pytest.raises(CommandError, match="--output names another directory"):
        saver.save(pb.Part(raw=b"x"), "f")


def a_task(state: pb.TaskState, *texts: str) -> pb.Task:
    parts = [pb.Part(text=text) for text in texts]
    return pb.Task(
        id="t",
        status=pb.TaskStatus(state=state),
        artifacts=[pb.Artifact(artifact_id="a", parts=parts)],
    )


def update(*texts: str, append: bool) -> pb.TaskArtifactUpdateEvent:
    return pb.TaskArtifactUpdateEvent(
        task_id="t",
        artifact=pb.Artifact(artifact_id="a", parts=[pb.Part(text=text) for text in texts]),
        append=append,
    )


def texts_of(novelty: Novelty, task: pb.Task, *, is_reset: bool = False) -> list[str]:
    found = novelty.of_task(task, is_reset=is_reset)
    return [part.text for _, parts in found for part in parts]


def test_what_was_shown_is_not_new() -> None:
    novelty = Novelty()
    assert texts_of(novelty, a_task(WORKING, "1")) == ["1"]
    assert novelty.of_update(update("2", append=True))[0] is False
    assert texts_of(novelty, a_task(WORKING, "1", "2", "3")) == ["3"]
    assert novelty.of_update(update("x", append=False))[0] is True
    assert texts_of(novelty, a_task(COMPLETED, "x")) == []
    assert texts_of(novelty, a_task(COMPLETED, "x", "y"), is_reset=True) == ["x", "y"]


def test_a_continued_task_begins_where_it_was() -> None:
    novelty = Novelty()
    novelty.new_turn(continued=True)
    assert novelty.is_old(a_task(WORKING, "1"))
    assert texts_of(novelty, a_task(WORKING, "1")) == []
    assert texts_of(novelty, a_task(WORKING, "1", "2")) == ["2"]
    novelty.new_turn(continued=True)
    # It ended before we could watch: all there is to see is in the task.
    assert not novelty.is_old(a_task(COMPLETED, "1", "2", "3"))
    assert texts_of(novelty, a_task(COMPLETED, "1", "2", "3")) == ["3"]


def test_sizes_and_states_in_words() -> None:
    assert [describe.size(n) for n in (0, 999, 1000, 12_345, 5_000_000)] == [
        "0 bytes", "999 bytes", "1.0 kB", "12.3 kB", "5.0 MB",
    ]  # fmt: skip
    assert describe.state_name(3) == "COMPLETED"
    assert describe.state_name(99) == "state 99"
    assert describe.part(pb.Part()) == "[an empty part]"


def test_a_time_beyond_the_calendar_is_left_out() -> None:
    status = pb.TaskStatus()
    status.timestamp.seconds = 10**15
    assert describe.time(status) == ""


@pytest.mark.parametrize("text", ["", "nul", "{'a': 1}", "Infinity", "1" * 5000])
def test_wrong_data_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.UsageError):
        data_part(text)
