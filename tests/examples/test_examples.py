"""The programs in examples/, each served by the command line and called over a real connection."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2a_grpc import pb
from tests.cli.process import PATIENCE, Process, environment_of
from tests.environments import ROOT
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    assert_error,
    assert_invalid,
    collect,
    connected,
    outline,
    refused,
    take,
    text,
    texts,
)

EXAMPLES = ROOT / "examples"
AGENTS = ["echo.py", "long_job.py", "trip.py", "writer.py"]
NO_AGENTS = ["call.py"]


@contextmanager
def example(name: str, cwd: Path) -> Iterator[Process]:
    """A running example, which must end well."""
    with Process("serve", EXAMPLES / name, "--port", "0", "--grace", "0", cwd=cwd) as process:
        yield process
        assert process.stop() == 0


def test_every_example_is_tested() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(AGENTS + NO_AGENTS)


async def test_echo_says_what_it_was_told(tmp_path: Path) -> None:
    with example("echo.py", tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("hello")
            assert task.status.state == COMPLETED
            assert texts(task.history) == ["hello"]
            assert [text(artifact) for artifact in task.artifacts] == ["Echo: hello"]


async def test_writer_streams_word_by_word(tmp_path: Path) -> None:
    with example("writer.py", tmp_path) as process:
        async with connected(process.address) as client:
            events = await collect(client.stream("the sea"))
            assert outline(events[:3]) == ["task WORKING", "artifact Here ", "artifact is "]
            assert outline(events[-2:]) == ["artifact sublime. ", "status COMPLETED"]
            words = [text(event.artifact_update.artifact) for event in events[1:-1]]
            rhyme = "Here is a rhyme, though short of time, on the sea: it is quite sublime. "
            assert "".join(words) == rhyme
            task = await client.get(events[0].task.id)
            assert [text(artifact) for artifact in task.artifacts] == [rhyme]


async def test_trip_asks_back_until_it_knows_enough(tmp_path: Path) -> None:
    said = ["Plan a trip", "Lisbon", "Friday", "two"]
    asked = ["Where do you want to go?", "On which day?", "How many of you travel?"]
    with example("trip.py", tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send(said[0])
            for question, reply in zip(asked, said[1:], strict=True):
                assert task.status.state == INPUT_REQUIRED
                assert text(task.status.message) == question
                task = await client.send(reply, task_id=task.id)
            assert task.status.state == COMPLETED
            assert text(task.artifacts[0]) == "A trip to Lisbon on Friday for two."
            history = texts(task.history)
            assert history == [
                line for pair in zip(said, [*asked, None], strict=True) for line in pair if line
            ]


async def test_trip_goes_on_after_a_restart(tmp_path: Path) -> None:
    with example("trip.py", tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("Plan a trip")
            task = await client.send("Lisbon", task_id=task.id)
    with example("trip.py", tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("Friday", task_id=task.id)
            assert text(task.status.message) == "How many of you travel?"


async def test_long_job_tells_its_progress_and_can_be_canceled(tmp_path: Path) -> None:
    with example("long_job.py", tmp_path) as process:
        async with connected(process.address) as client, connected(process.address) as other:
            stream = client.stream("1000")
            started = (await take(stream, 1))[0].task
            progress = (await take(stream, 1))[0].status_update
            assert text(progress.status.message) == "1 of 1000 steps done"
            canceled = await other.cancel(started.id)
            assert canceled.status.state == CANCELED
            assert text(canceled.status.message).startswith("Stopped after ")
            rest = await collect(stream)
            assert outline(rest[-1:]) == ["status CANCELED"]
            assert rest[-1].status_update.status == canceled.status
            assert_error(
                await refused(other.call("CancelTask", pb.CancelTaskRequest(id=started.id))),
                "TASK_NOT_CANCELABLE",
            )


async def test_long_job_that_is_short_completes(tmp_path: Path) -> None:
    with example("long_job.py", tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("1")
            assert task.status.state == COMPLETED
            assert text(task.status.message) == "All done"
            assert_invalid(await refused(client.send("many")), "message.parts[0].text")


async def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, EXAMPLES / "call.py", *arguments],
        env=environment_of(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


async def test_call_prints_what_the_agent_does(tmp_path: Path) -> None:
    with example("trip.py", tmp_path) as process:
        first = await call("--target", process.address, "Plan", "a", "trip")
        assert first.returncode == 0, first.stderr
        started, asked = first.stdout.splitlines()
        assert started.startswith("task ")
        assert started.endswith(" WORKING")
        assert asked == "status INPUT_REQUIRED Where do you want to go?"
        task_id = started.split()[1]
        answers = ("--target", process.address, "--task", task_id)
        for said in ("Lisbon", "Friday"):
            assert (await call(*answers, said)).returncode == 0
        last = await call(*answers, "two")
        assert last.stdout.splitlines()[-2:] == [
            "artifact A trip to Lisbon on Friday for two.",
            "status COMPLETED",
        ]
        again = await call(*answers, "three")
        assert again.returncode == 1
        assert again.stdout == ""
        assert len(again.stderr.splitlines()) == 1
        assert task_id in again.stderr
