"""Artifacts: chunks as they are streamed, and the whole as it is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_grpc import TaskContext, pb
from a2a_grpc.agent.values import from_struct
from a2a_grpc.storage.memory import InMemoryStorage
from tests.conftest import Serve
from tests.support import (
    COMPLETED,
    FAILED,
    collect,
    kinds,
    outline,
    serving,
    text,
    within,
)
from tests.worker.workers import eventually, json_of, raised, worker


async def kept(serve: Serve, *emits: dict[str, Any]) -> tuple[list[pb.StreamResponse], pb.Task]:
    """The artifact events of these calls of emit_artifact, and the task afterwards."""

    async def handle(ctx: TaskContext) -> None:
        for emit in emits:
            await ctx.emit_artifact(**emit)
        await ctx.complete()

    async with serve(worker(handle)) as s:
        events = await collect(s.stream())
        assert kinds(events) == ["task", *("artifact_update" for _ in emits), "status_update"]
        return events[1:-1], await s.get(events[0].task.id)


@pytest.mark.parametrize("first", [False, True])
async def test_first_chunk_starts_the_artifact_and_others_add_to_it(
    serve: Serve, first: bool
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("a", append=first)
        await ctx.emit_text_artifact("b", append=True)
        await ctx.emit_text_artifact("x", artifact_id="other", append=first)
        await ctx.emit_text_artifact("c", append=True, last_chunk=True)
        await ctx.complete()

    async with serve(worker(handle)) as s:
        events = await collect(s.stream())
        assert outline(events) == [
            "task WORKING",
            *("artifact a", "artifact b", "artifact x", "artifact c"),
            "status COMPLETED",
        ]
        chunks = [event.artifact_update for event in events[1:-1]]
        assert [one.append for one in chunks] == [False, True, False, True]
        assert [one.last_chunk for one in chunks] == [False, False, False, True]
        task = await s.get(events[0].task.id)
        assert [(one.artifact_id, text(one)) for one in task.artifacts] == [
            ("answer", "abc"),
            ("other", "x"),
        ]


async def test_chunk_that_does_not_append_replaces(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("draft")
        await ctx.emit_text_artifact("final")
        await ctx.complete()

    async with serve(worker(handle)) as s:
        assert [text(one) for one in (await s.send()).artifacts] == ["final"]


async def test_data_chunks_keep_their_media_type(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_data_artifact({"a": 1})
        await ctx.emit_data_artifact(None, append=True)
        await ctx.emit_data_artifact(
            [2], artifact_id="geo", media_type="application/geo+json", last_chunk=True
        )
        await ctx.complete()

    async with serve(worker(handle)) as s:
        events = await collect(s.stream())
        assert [event.artifact_update.last_chunk for event in events[1:-1]] == [False, False, True]
        answer, geo = (await s.get(events[0].task.id)).artifacts
        assert [json_of(part) for part in answer.parts] == [{"a": 1}, None]
        assert [part.media_type for part in answer.parts] == ["application/json"] * 2
        assert (geo.artifact_id, geo.parts[0].media_type) == ("geo", "application/geo+json")
        assert json_of(geo.parts[0]) == [2]


async def test_emit_artifact_carries_everything(serve: Serve) -> None:
    events, task = await kept(
        serve,
        {
            "artifact_id": "report",
            "file_bytes": b"\x00\x01",
            "media_type": "application/pdf",
            "filename": "report.pdf",
            "name": "Report",
            "description": "of the year",
            "last_chunk": True,
            "metadata": {"pages": 3, "by": {"who": ["Ann"]}},
            "extensions": ["urn:x"],
        },
    )
    (artifact,) = task.artifacts
    assert events[0].artifact_update.artifact == artifact
    assert events[0].artifact_update.last_chunk
    assert (artifact.artifact_id, artifact.name, artifact.description) == (
        "report",
        "Report",
        "of the year",
    )
    assert from_struct(artifact.metadata) == {"pages": 3, "by": {"who": ["Ann"]}}
    assert list(artifact.extensions) == ["urn:x"]
    assert artifact.parts == [
        pb.Part(raw=b"\x00\x01", media_type="application/pdf", filename="report.pdf")
    ]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"text": "t"}, pb.Part(text="t")),
        (
            {"text": "t", "media_type": "text/markdown"},
            pb.Part(text="t", media_type="text/markdown"),
        ),
        ({"file_bytes": b""}, pb.Part(raw=b"", media_type="application/octet-stream")),
        ({"file_bytes": bytearray(b"x"), "media_type": "a/b"}, pb.Part(raw=b"x", media_type="a/b")),
        ({"file_url": "https://example.org/a"}, pb.Part(url="https://example.org/a")),
        # As FileInfo has them, so that a file can be handed on.
        (
            {"file_bytes": b"x", "filename": None, "media_type": None},
            pb.Part(raw=b"x", media_type="application/octet-stream"),
        ),
    ],
)
async def test_every_content_arrives(content: dict[str, Any], part: pb.Part, store: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", **content)
        await ctx.complete()

    async with serving(worker(handle), storage=store) as s:
        (artifact,) = (await s.send()).artifacts
        assert list(artifact.parts) == [part]


async def test_data_content_has_its_media_type(serve: Serve) -> None:
    _, task = await kept(serve, {"artifact_id": "a", "data": {"x": [1]}})
    assert json_of(task.artifacts[0].parts[0]) == {"x": [1]}
    assert task.artifacts[0].parts[0].media_type == "application/json"


CONTENTS: dict[str, Any] = {
    "text": "t",
    "data": {"a": 1},
    "file_bytes": b"b",
    "file_url": "https://example.org",
}


@pytest.mark.parametrize(
    "given",
    [(), *(tuple(p) for p in (("text", "data"), ("data", "file_url"), tuple(CONTENTS)))],
    ids="+".join,
)
async def test_emit_artifact_takes_exactly_one_content(
    given: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(ValueError, match="takes exactly one of text, data"):
            await ctx.emit_artifact(artifact_id="a", **{name: CONTENTS[name] for name in given})
        assert not ctx.turn_ended
        if given:
            await ctx.emit_artifact(artifact_id="a", **{name: CONTENTS[name] for name in given})

    async with serving(worker(handle)) as s:
        task = await s.send()
        assert (task.status.state, list(task.artifacts)) == (FAILED, [])
    if given:
        assert "emit_artifact() takes exactly one of text, data, file_bytes and file_url, not " in (
            raised(caplog)
        )
        assert " and ".join(given) in raised(caplog)


async def test_second_turn_adds_to_an_artifact_or_replaces_it_after_a_restart(sqlite: str) -> None:
    found: list[list[tuple[str, str]]] = []

    async def handle(ctx: TaskContext) -> None:
        found.append([(one.artifact_id, one.text) for one in ctx.previous_artifacts])
        if not ctx.previous_artifacts:
            await ctx.emit_text_artifact("one ", artifact_id="added")
            await ctx.emit_text_artifact("old", artifact_id="replaced")
            await ctx.request_input("more?")
        else:
            await ctx.emit_text_artifact("two", artifact_id="added", append=True)
            await ctx.emit_text_artifact("new", artifact_id="replaced")
            await ctx.complete("end")

    async with serving(worker(handle), storage=sqlite) as s:
        task = await s.send()
    async with serving(worker(handle), storage=sqlite) as s:
        assert await s.get(task.id) == task
        events = await collect(s.stream("yes", task_id=task.id))
        assert outline(events)[1:] == [
            "status WORKING",
            *("artifact two", "artifact new", "artifact end"),
            "status COMPLETED",
        ]
        assert [event.artifact_update.append for event in events[2:5]] == [True, False, False]
        task = await s.get(task.id)
        assert {one.artifact_id: text(one) for one in task.artifacts} == {
            "added": "one two",
            "replaced": "new",
            "final-answer": "end",
        }
    assert found == [[], [("added", "one "), ("replaced", "old")]]


async def test_chunks_are_seen_while_the_agent_works(serve: Serve) -> None:
    go = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("early")
        await go.wait()
        await ctx.complete()

    async with serve(worker(handle)) as s:
        stream = s.stream()
        first = await within(stream.read())
        assert text((await within(stream.read())).artifact_update.artifact) == "early"
        assert [text(one) for one in (await s.get(first.task.id)).artifacts] == ["early"]
        go.set()
        await collect(stream)


async def test_concurrent_chunks_keep_the_order_of_each_and_lose_none(serve: Serve) -> None:
    async def one_of(ctx: TaskContext, name: str) -> None:
        for number in range(100):
            await ctx.emit_text_artifact(f"{number} ", artifact_id=name, append=True)
            if not number % 7:
                await asyncio.sleep(0)

    async def handle(ctx: TaskContext) -> None:
        await asyncio.gather(*(one_of(ctx, name) for name in "abc"))
        await ctx.complete()

    wanted = "".join(f"{number} " for number in range(100))
    async with serve(worker(handle)) as s:
        events = await collect(s.stream())
        assert events[0].WhichOneof("payload") == "task"
        assert len(events) == 302
        task = await s.get(events[0].task.id)
        assert {one.artifact_id: text(one) for one in task.artifacts} == dict.fromkeys(
            "abc", wanted
        )


class Slow(InMemoryStorage[Any]):
    """A store whose commits take a while."""

    waits = True

    async def commit(self, commit: Any) -> bool:
        await asyncio.sleep(0.002)
        return await super().commit(commit)


async def test_send_status_does_not_wait_for_what_is_said_meanwhile() -> None:
    """An agent that streams all the time, and slower than a batch fills up."""
    begun = asyncio.Event()

    async def stream(ctx: TaskContext) -> None:
        while True:
            await ctx.emit_text_artifact("x", append=True)
            await asyncio.sleep(0.0005)
            begun.set()

    async def handle(ctx: TaskContext) -> None:
        streaming = asyncio.create_task(stream(ctx))
        await begun.wait()
        try:
            await asyncio.wait_for(ctx.send_status("still at it"), 5)
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)
        await ctx.complete()

    async with serving(worker(handle), storage=Slow()) as s:
        task = await s.send(immediately=True)
        task = await eventually(s, task.id, COMPLETED, FAILED)
        assert task.status.state == COMPLETED
