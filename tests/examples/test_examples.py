"""The programs in examples/, each served by the command line and called over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2a_grpc import pb
from tests.cli.process import Process
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
AGENTS = ["echo.py:Echo", "long_job.py", "trip.py", "writer.py"]


@contextmanager
def example(name: str, cwd: Path) -> Iterator[Process]:
    """A running example, which must end well."""
    with Process("serve", f"{EXAMPLES}/{name}", "--port", "0", "--grace", "0", cwd=cwd) as process:
        yield process
        assert process.stop() == 0


def test_every_example_is_tested() -> None:
    tested = [name.partition(":")[0] for name in AGENTS]
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(tested)


async def test_echo_says_what_it_was_told(tmp_path: Path) -> None:
    with example("echo.py:Echo", tmp_path) as process:
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
