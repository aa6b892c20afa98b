"""What a Worker reads: the message, the call, and what the client accepts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from a2a_grpc import FileInfo, HistoryMessage, PreviousArtifact, Principal, TaskContext, pb
from tests.conftest import Serve
from tests.support import COMPLETED, Client, message, request, serving, texts
from tests.worker.workers import json_of, worker


class Noting:
    """A Worker that notes what `read` makes of its context, and asks for more until told "end"."""

    def __init__(self, read: Any) -> None:
        self.found: list[Any] = []
        self._read = read
        self.worker = worker(self._handle)

    async def _handle(self, ctx: TaskContext) -> None:
        self.found.append(self._read(ctx))
        if ctx.user_text == "end":
            await ctx.complete("artifact", artifact_id="a")
        else:
            await ctx.emit_artifact(artifact_id="a", text="part", name="A")
            await ctx.request_input("more?")


async def sent(client: Client, made: pb.SendMessageRequest, **how: Any) -> pb.Task:
    answer = await client.call("SendMessage", made, **how)
    task: pb.Task = answer.task
    return task


PARTS = [
    pb.Part(text="one"),
    pb.Part(raw=b"\x00png", filename="a.png", media_type="image/png"),
    pb.Part(url="https://example.org/b"),
    pb.Part(text="two"),
]
DATA = pb.Part()
DATA.data.struct_value.update({"n": 3, "f": 2.5, "list": [1, {"deep": 7}], "none": None})


async def test_parts_come_as_plain_values(serve: Serve) -> None:
    noting = Noting(lambda ctx: (ctx.user_text, ctx.files, ctx.data_parts, list(ctx.parts)))
    parts = [*PARTS, DATA]
    async with serve(noting.worker) as s:
        await s.send(pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=parts))
    ((text, files, data, found),) = noting.found
    assert text == "one\ntwo"
    assert files == [
        FileInfo(content=b"\x00png", url=None, filename="a.png", media_type="image/png"),
        FileInfo(content=None, url="https://example.org/b", filename=None, media_type=None),
    ]
    assert data == [{"n": 3, "f": 2.5, "list": [1, {"deep": 7}], "none": None}]
    assert [type(data[0]["n"]), type(data[0]["list"][0]), type(data[0]["list"][1]["deep"])] == (
        [int] * 3
    )
    assert found == parts


async def test_message_of_data_alone_has_no_text(serve: Serve) -> None:
    noting = Noting(lambda ctx: (ctx.user_text, ctx.files, len(ctx.data_parts)))
    async with serve(noting.worker) as s:
        await s.send(pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=[DATA]))
    assert noting.found == [("", [], 1)]


async def test_empty_file_is_a_file(serve: Serve) -> None:
    noting = Noting(lambda ctx: ctx.files)
    async with serve(noting.worker) as s:
        await s.send(pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=[pb.Part(raw=b"")]))
    assert noting.found == [[FileInfo(b"", None, None, None)]]


async def test_ids_and_metadata_are_those_of_the_request(serve: Serve) -> None:
    noting = Noting(
        lambda ctx: (ctx.task_id, ctx.context_id, ctx.message_id, ctx.metadata, ctx.attempt)
    )
    made = request("hi", message_id="m-1", context_id="c-1", metadata={"a": 1, "both": "request"})
    made.message.metadata.update({"both": "message", "deep": {"n": 2}})
    async with serve(noting.worker) as s:
        task = await sent(s, made)
        assert task.context_id == "c-1"
    ((task_id, context_id, message_id, metadata, attempt),) = noting.found
    assert (task_id, context_id, message_id, attempt) == (task.id, "c-1", "m-1", 1)
    assert metadata == {"a": 1, "both": "message", "deep": {"n": 2}}
    assert type(metadata["a"]) is type(metadata["deep"]["n"]) is int


async def test_call_says_who_calls_and_until_when() -> None:
    class ByName:
        async def authenticate(self, call: Any) -> Principal:
            return Principal(call.metadata["name"])

    noting = Noting(lambda ctx: (ctx.call.principal.id, ctx.call.deadline, ctx.call.tenant))
    async with serving(noting.worker, authenticator=ByName()) as s:
        await sent(s, request("hi"), metadata=(("name", "ann"),), timeout=8)
        await sent(s, request("hi"), metadata=(("name", "bob"),), timeout=None)
    (first, deadline, tenant), (second, none, _) = noting.found
    assert (first, second, tenant, none) == ("ann", "bob", "", None)
    assert deadline == pytest.approx(time.time() + 8, abs=5)


@pytest.mark.parametrize(
    ("listed", "asked", "accepted"),
    [
        ([], "anything/at-all", True),
        (["text/plain"], "text/plain", True),
        (["Text/Plain; charset=utf-8"], "text/plain", True),
        (["text/plain"], "TEXT/PLAIN;charset=latin-1", True),
        ([" text/plain "], "text/plain", True),
        (["text/plain"], "text/html", False),
        (["text/plain", "application/json"], "application/json", True),
        (["text/*"], "text/html", True),
        (["text"], "text/html", True),
        (["*/*"], "image/png", True),
        (["application/json"], "application/json+ld", False),
        (["text/plain"], "", False),
    ],
)
async def test_accepts_compares_media_types(listed: list[str], asked: str, accepted: bool) -> None:
    noting = Noting(lambda ctx: ctx.accepts(asked))
    made = request("hi")
    made.configuration.accepted_output_modes.extend(listed)
    async with serving(noting.worker) as s:
        await sent(s, made)
    assert noting.found == [accepted]


async def test_second_turn_after_a_restart_sees_what_was_said_and_made(sqlite: str) -> None:
    noting = Noting(lambda ctx: (ctx.history, ctx.previous_artifacts))
    async with serving(noting.worker, storage=sqlite) as s:
        task = await s.send("first", message_id="m-1")
    async with serving(noting.worker, storage=sqlite) as s:
        task = await s.send("second", task_id=task.id, message_id="m-2")
    async with serving(noting.worker, storage=sqlite) as s:
        task = await s.send("end", task_id=task.id, message_id="m-3")
        assert task.status.state == COMPLETED
        assert texts(task.history) == ["first", "more?", "second", "more?", "end"]
    (history, artifacts), (second, after), (third, _) = noting.found
    assert (history, artifacts) == ([], [])
    question = second[1]
    assert question.message_id
    assert second == [
        HistoryMessage("user", "first", [pb.Part(text="first")], "m-1", task.id),
        HistoryMessage("agent", "more?", [pb.Part(text="more?")], question.message_id, task.id),
    ]
    assert after == [PreviousArtifact("a", "A", "part", [pb.Part(text="part")])]
    assert [one.text for one in third] == ["first", "more?", "second", "more?"]


async def test_message_id_that_is_used_again_hides_nothing(serve: Serve) -> None:
    noting = Noting(lambda ctx: [one.text for one in ctx.history])
    async with serve(noting.worker) as s:
        task = await s.send("first", message_id="m")
        await s.send("second", task_id=task.id, message_id="m")
    assert noting.found == [[], ["first", "more?"]]


NAMES = [
    *("message", "user_text", "parts", "files", "data_parts", "task_id", "context_id"),
    *("message_id", "metadata", "history", "previous_artifacts", "is_cancelled", "turn_ended"),
    *("deps", "request_context", "call", "attempt", "related_tasks"),
]


@pytest.mark.parametrize("name", NAMES)
async def test_what_came_in_is_read_only(name: str) -> None:
    def read(ctx: TaskContext) -> Any:
        before = getattr(ctx, name)
        with pytest.raises(AttributeError):
            setattr(ctx, name, None)
        return before == getattr(ctx, name)

    noting = Noting(read)
    async with serving(noting.worker) as s:
        await s.send("end")
    assert noting.found == [True]


async def test_agent_that_changes_what_came_in_changes_nothing_that_is_kept(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        ctx.message.parts[0].text = "changed"
        ctx.metadata["a"] = 2
        await ctx.complete(ctx.user_text)

    async with serve(worker(handle)) as s:
        task = await sent(s, request(message("hi"), metadata={"a": 1}))
        assert texts((await s.get(task.id)).history) == ["hi"]


async def test_file_is_handed_on_as_it_came(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        for number, file in enumerate(ctx.files):
            await ctx.emit_artifact(
                artifact_id=str(number),
                file_bytes=file.content,
                file_url=file.url,
                filename=file.filename,
                media_type=file.media_type,
            )
        await ctx.complete_json(ctx.data_parts[0])

    async with serve(worker(handle)) as s:
        task = await s.send(
            pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=[*PARTS[1:3], DATA])
        )
        assert [list(one.parts) for one in task.artifacts[:2]] == [[PARTS[1]], [PARTS[2]]]
        assert json_of(task.artifacts[2].parts[0]) == json_of(DATA)
