"""The methods that end a turn: what goes over the wire, what stays, what the next turn finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_grpc import SqlStorage, TaskContext, pb
from tests.conftest import Serve
from tests.support import (
    AUTH_REQUIRED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
    assert_error,
    collect,
    kinds,
    outline,
    refused,
    request,
    serving,
    text,
    texts,
    within,
)
from tests.worker.workers import Handle, Recording, direct, json_of, raised, worker


def ending(method: str, *arguments: Any, **named: Any) -> Handle:
    """Ends every turn in this way."""

    async def handle(ctx: TaskContext) -> None:
        await getattr(ctx, method)(*arguments, **named)
        assert ctx.turn_ended

    return handle


async def streamed_and_kept(
    serve: Serve, handle: Handle
) -> tuple[list[pb.StreamResponse], pb.Task]:
    """The events of a stream and the task afterwards, which SendMessage answers with as well."""
    async with serve(worker(handle)) as s:
        events = await collect(s.stream("hello"))
        task = await s.get(events[0].task.id)
        assert [one.id for one in (await s.list()).tasks] == [task.id]
        answer = await s.send("hello")
        assert answer.status.state == task.status.state
        assert texts(answer.artifacts) == texts(task.artifacts)
        assert texts([answer.status.message]) == texts([task.status.message])
        return events, task


async def test_complete_is_an_artifact_and_then_completed(serve: Serve) -> None:
    events, task = await streamed_and_kept(serve, ending("complete", "42"))
    assert outline(events) == ["task WORKING", "artifact 42", "status COMPLETED"]
    update = events[1].artifact_update
    assert (update.artifact.artifact_id, update.append, update.last_chunk) == (
        "final-answer",
        False,
        True,
    )
    assert not events[2].status_update.status.HasField("message")
    assert task.status.state == COMPLETED
    assert [(one.artifact_id, text(one)) for one in task.artifacts] == [("final-answer", "42")]
    assert not task.status.HasField("message")
    assert texts(task.history) == ["hello"]


async def test_complete_names_its_artifact(serve: Serve) -> None:
    _, task = await streamed_and_kept(serve, ending("complete", "42", artifact_id="answer-1"))
    assert [one.artifact_id for one in task.artifacts] == ["answer-1"]


async def test_complete_without_text_has_no_artifact(serve: Serve) -> None:
    events, task = await streamed_and_kept(serve, ending("complete"))
    assert outline(events) == ["task WORKING", "status COMPLETED"]
    assert not task.artifacts
    assert not task.status.HasField("message")


async def test_complete_with_an_empty_text_has_an_artifact(serve: Serve) -> None:
    events, task = await streamed_and_kept(serve, ending("complete", ""))
    assert kinds(events) == ["task", "artifact_update", "status_update"]
    assert task.artifacts[0].parts[0].HasField("text")


@pytest.mark.parametrize(
    "data",
    [{"a": [1, {"b": None}]}, [1, 2.5, "x"], "text", 7, True, None, {}, []],
    ids=repr,
)
async def test_complete_json_is_a_data_artifact(data: Any) -> None:
    async with serving(worker(ending("complete_json", data))) as s:
        events = await collect(s.stream("hello"))
        assert kinds(events) == ["task", "artifact_update", "status_update"]
        task = await s.get(events[0].task.id)
        assert task.status.state == COMPLETED
        (artifact,) = task.artifacts
        assert artifact.artifact_id == "final-answer"
        (part,) = artifact.parts
        assert part.media_type == "application/json"
        assert json_of(part) == data
        assert events[1].artifact_update.artifact == artifact
        assert events[1].artifact_update.last_chunk


async def test_complete_json_names_its_artifact(serve: Serve) -> None:
    _, task = await streamed_and_kept(serve, ending("complete_json", {"a": 1}, artifact_id="table"))
    assert [one.artifact_id for one in task.artifacts] == ["table"]


async def test_respond_is_a_message_and_no_artifact(serve: Serve) -> None:
    events, task = await streamed_and_kept(serve, ending("respond", "done"))
    assert outline(events) == ["task WORKING", "status COMPLETED"]
    message = events[1].status_update.status.message
    assert text(message) == "done"
    assert message.role == pb.Role.ROLE_AGENT
    assert message.message_id
    assert (message.task_id, message.context_id) == (task.id, task.context_id)
    assert not task.artifacts
    assert text(task.status.message) == "done"
    assert texts(task.history) == ["hello"]


async def test_respond_without_text_has_no_message(serve: Serve) -> None:
    _, task = await streamed_and_kept(serve, ending("respond"))
    assert task.status.state == COMPLETED
    assert not task.status.HasField("message")


@pytest.mark.parametrize(
    ("method", "arguments", "state", "said"),
    [
        ("fail", ("no paper",), FAILED, "no paper"),
        ("reject", ("not my job",), REJECTED, "not my job"),
        ("reject", (), REJECTED, ""),
    ],
)
async def test_fail_and_reject_end_the_task_and_say_why(
    serve: Serve, method: str, arguments: tuple[str, ...], state: pb.TaskState, said: str
) -> None:
    events, task = await streamed_and_kept(serve, ending(method, *arguments))
    assert kinds(events) == ["task", "status_update"]
    assert events[0].task.status.state == WORKING
    assert events[1].status_update.status.state == task.status.state == state
    assert text(events[1].status_update.status.message) == text(task.status.message) == said
    assert task.status.HasField("message") is bool(said)
    assert not task.artifacts


async def test_reply_directly_is_one_message_and_leaves_no_task(serve: Serve) -> None:
    async with serve(worker(ending("reply_directly", "hi"))) as s:
        (event,) = await collect(s.stream("hello", context_id="c"))
        assert event.WhichOneof("payload") == "message"
        assert text(event.message) == "hi"
        assert event.message.role == pb.Role.ROLE_AGENT
        assert event.message.message_id
        assert event.message.context_id == "c"
        message = await direct(s, "hello")
        assert text(message) == "hi"
        assert not (await s.list()).tasks
        if message.task_id:
            assert_error(await refused(s.get(message.task_id)), "TASK_NOT_FOUND")


async def test_reply_directly_on_a_task_that_exists_is_a_response(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input("what?")
        else:
            await ctx.reply_directly("hi")

    async with serve(worker(handle)) as s:
        task = await s.send("ask")
        events = await collect(s.stream("this", task_id=task.id))
        assert outline(events)[-1] == "status COMPLETED"
        assert text((await s.get(task.id)).status.message) == "hi"


async def test_request_input_asks_and_the_answer_finds_the_history(serve: Serve) -> None:
    found: list[list[tuple[str, str]]] = []

    async def handle(ctx: TaskContext) -> None:
        found.append([(one.role, one.text) for one in ctx.history])
        if ctx.user_text == "to Rome":
            await ctx.complete(f"{ctx.history[0].text} {ctx.user_text}")
        else:
            await ctx.request_input("where to?")

    async with serve(worker(handle)) as s:
        events = await collect(s.stream("a trip"))
        assert outline(events) == ["task WORKING", "status INPUT_REQUIRED"]
        assert text(events[1].status_update.status.message) == "where to?"
        task = await s.get(events[0].task.id)
        assert task.status.state == INPUT_REQUIRED
        assert text(task.status.message) == "where to?"
        assert texts(task.history) == ["a trip"]

        events = await collect(s.stream("to Rome", task_id=task.id))
        assert outline(events) == [
            "task INPUT_REQUIRED",
            "status WORKING",
            "artifact a trip to Rome",
            "status COMPLETED",
        ]
        assert texts(events[0].task.history) == ["a trip", "where to?", "to Rome"]
        task = await s.get(task.id)
        assert task.status.state == COMPLETED
        assert texts(task.history) == ["a trip", "where to?", "to Rome"]
    assert found == [[], [("user", "a trip"), ("agent", "where to?")]]


@pytest.mark.parametrize(
    ("named", "said", "wanted"),
    [
        ({}, "Authentication is required.", {}),
        ({"details": "log in"}, "log in", {}),
        (
            {
                "details": "log in",
                "schemes": ["bearer", "basic"],
                "credentials_hint": "your mail account",
                "auth_url": "https://example.org/login",
            },
            "log in",
            {
                "schemes": ["bearer", "basic"],
                "credentialsHint": "your mail account",
                "authUrl": "https://example.org/login",
            },
        ),
    ],
)
async def test_request_auth_is_a_text_part_and_a_data_part(
    serve: Serve, named: dict[str, Any], said: str, wanted: dict[str, Any]
) -> None:
    events, task = await streamed_and_kept(serve, ending("request_auth", **named))
    assert outline(events) == ["task WORKING", "status AUTH_REQUIRED"]
    assert task.status.state == AUTH_REQUIRED
    assert events[1].status_update.status == task.status
    written, data = task.status.message.parts
    assert written.text == said
    assert data.media_type == "application/json"
    assert json_of(data) == wanted


async def test_request_auth_goes_on_with_the_next_message(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        if not ctx.history:
            await ctx.request_auth("who are you?")
        else:
            await ctx.complete(ctx.history[-1].text + " " + ctx.user_text)

    async with serve(worker(handle)) as s:
        task = await s.send("hello")
        assert task.status.state == AUTH_REQUIRED
        task = await s.send("Ann", task_id=task.id)
        assert (task.status.state, texts(task.artifacts)) == (COMPLETED, ["who are you? Ann"])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("complete", ("x",)),
        ("complete_json", ({"x": 1},)),
        ("respond", ("x",)),
        ("fail", ("x",)),
        ("reject", ("x",)),
        ("request_input", ("x",)),
        ("request_auth", ("x",)),
    ],
)
async def test_every_end_is_the_same_after_a_restart(
    sqlite: str, method: str, arguments: tuple[Any, ...]
) -> None:
    async with serving(worker(ending(method, *arguments)), storage=sqlite) as s:
        task = await s.send("hello")
    async with serving(worker(ending("complete", "never")), storage=sqlite) as s:
        assert await s.get(task.id) == task
        if task.status.state in (INPUT_REQUIRED, AUTH_REQUIRED):
            events = await collect(s.stream("again", task_id=task.id))
            assert outline(events)[1:] == [
                "status WORKING",
                "artifact never",
                "status COMPLETED",
            ]
        else:
            again = await refused(s.call("SendMessage", request("again", task_id=task.id)))
            assert_error(again, "UNSUPPORTED_OPERATION")
            assert await s.get(task.id) == task


# One commit.


@pytest.mark.parametrize(
    ("method", "arguments", "last"),
    [
        ("complete", ("x",), ["artifact x", "status COMPLETED"]),
        ("complete_json", ("x",), ["artifact ", "status COMPLETED"]),
        ("respond", ("x",), ["status COMPLETED"]),
        ("fail", ("x",), ["status FAILED"]),
        ("reject", ("x",), ["status REJECTED"]),
        ("request_input", ("x",), ["status INPUT_REQUIRED"]),
        ("request_auth", ("x",), ["status AUTH_REQUIRED"]),
    ],
)
async def test_end_commits_what_is_pending_with_it(
    method: str, arguments: tuple[Any, ...], last: list[str]
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("begun")  # stored by now, so the rest is not the first commit
        await ctx.emit_text_artifact("a", artifact_id="one")
        await ctx.emit_text_artifact("b", artifact_id="one", append=True)
        await ctx.emit_data_artifact({"c": 1}, artifact_id="two")
        await getattr(ctx, method)(*arguments)

    storage = Recording()
    async with serving(worker(handle), storage=storage) as s:
        await s.send()
    assert storage.commits == [
        ["task WORKING", "status WORKING"],
        ["artifact a", "artifact b", "artifact ", *last],
    ]


async def test_no_reader_sees_the_final_artifact_without_the_end(sqlite: str) -> None:
    """A reader of its own, which looks at every moment at which the store answers."""
    begun, looking = asyncio.Event(), asyncio.Event()
    seen: list[tuple[bool, int]] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("begun")
        begun.set()
        await looking.wait()
        # Larger than a batch, so that the agent waits for the commit within complete().
        await ctx.complete("x" * 3_000_000)

    storage = SqlStorage(sqlite)
    async with serving(worker(handle), storage=storage) as s:
        call = asyncio.ensure_future(s.send())
        await within(begun.wait())
        (task,) = (await s.list()).tasks
        looking.set()
        while not call.done():
            await asyncio.sleep(0)  # the store answers from memory, without a wait
            found = await storage.load_task(task.id)
            assert found is not None
            seen.append((found.status.state == COMPLETED, len(found.artifacts)))
        assert (await within(call)).status.state == COMPLETED
    assert set(seen) <= {(False, 0), (True, 1)}


async def test_send_status_is_stored_when_it_returns(serve: Serve) -> None:
    """GetTask, called by the agent itself over the wire, sees each status."""
    found: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        for number in range(20):
            await ctx.send_status(f"step {number}")
            task = await s.get(ctx.task_id)
            assert task.status.state == WORKING
            found.append(text(task.status.message))
        await ctx.complete()

    async with serve(worker(handle)) as s:
        task = await s.send()
    assert found == [f"step {number}" for number in range(20)]
    assert task.status.state == COMPLETED
    assert texts(task.history) == ["hello", *found]


async def test_send_status_without_a_message_shows_the_task(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        await ctx.send_status()
        await ctx.complete()

    async with serve(worker(handle)) as s:
        assert outline(await collect(s.stream())) == ["task WORKING", "status COMPLETED"]


async def test_send_status_with_a_message_is_streamed(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("looking")
        assert not ctx.turn_ended
        await ctx.respond("found")

    async with serve(worker(handle)) as s:
        events = await collect(s.stream())
        assert outline(events) == ["task WORKING", "status WORKING", "status COMPLETED"]
        assert text(events[1].status_update.status.message) == "looking"
        assert texts((await s.get(events[0].task.id)).history) == ["hello", "looking"]


async def test_reply_directly_after_a_word_is_refused(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("looking")
        await ctx.reply_directly("hi")

    async with serve(worker(handle)) as s:
        assert (await s.send()).status.state == FAILED
    assert "reply_directly() after send_status(): the task exists by now" in raised(caplog)
