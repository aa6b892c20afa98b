"""What lasts beyond a task: the context's value, and the conversation, after a restart too."""

from __future__ import annotations

import math
from typing import Any

import pytest

from a2a_grpc import Principal, TaskContext
from tests.conftest import Serve
from tests.support import COMPLETED, FAILED, request, serving
from tests.worker.workers import direct, raised, worker


class ByName:
    """Takes the caller's word for its name."""

    async def authenticate(self, call: Any) -> Principal:
        return Principal(call.metadata["name"])


def keeping(found: list[Any], value: Any) -> Any:
    """Notes what was kept, and keeps this value."""

    async def handle(ctx: TaskContext) -> None:
        found.append(await ctx.load_context())
        await ctx.update_context(value)
        await ctx.complete()

    return handle


VALUES: list[Any] = [
    {"a": [1, 2.5, {"b": None}], "big": 2**70, "ü": "\U0001f600\x00", "": True},
    [1, [2]],
    "text",
    7,
    0,
    False,
    "",
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
async def test_any_json_value_is_kept_per_context_and_over_a_restart(
    sqlite: str, value: Any
) -> None:
    found: list[Any] = []
    for _ in range(2):
        async with serving(worker(keeping(found, value)), storage=sqlite) as s:
            await s.send(context_id="c")
            await s.send(context_id="other")
    assert found == [None, None, value, value]
    assert type(found[2]) is type(value)


async def test_context_is_none_again_if_none_is_kept(serve: Serve) -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        found.append(await ctx.load_context())
        await ctx.update_context({"a": 1} if ctx.user_text == "set" else None)
        await ctx.complete()

    async with serve(worker(handle)) as s:
        for text in ("set", "unset", "look"):
            await s.send(text, context_id="c")
    assert found == [None, {"a": 1}, None]


async def test_contexts_of_callers_and_tenants_are_apart(serve: Serve) -> None:
    found: list[tuple[str, Any]] = []

    async def handle(ctx: TaskContext) -> None:
        who = f"{ctx.call.principal.id}@{ctx.call.tenant}"
        found.append((who, await ctx.load_context()))
        await ctx.update_context(who)
        await ctx.complete()

    async with serve(worker(handle), authenticator=ByName()) as s:
        for _ in range(2):
            for name in ("ann", "bob"):
                for tenant in ("", "t"):
                    await s.identified(("name", name)).send(context_id="c", tenant=tenant)
    everybody = ["ann@", "ann@t", "bob@", "bob@t"]
    assert found == [*((who, None) for who in everybody), *((who, who) for who in everybody)]


async def test_what_the_agent_changes_later_is_not_kept(serve: Serve) -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        value = await ctx.load_context() or {"n": []}
        found.append(list(value["n"]))
        await ctx.update_context(value)
        value["n"].append(1)
        (await ctx.load_context())["n"].append(2)
        await ctx.complete()

    async with serve(worker(handle)) as s:
        for _ in range(2):
            await s.send(context_id="c")
    assert found == [[], []]


async def test_every_store_gives_back_the_same_json(serve: Serve) -> None:
    found: list[Any] = []
    async with serve(worker(keeping(found, {1: (2, 3)}))) as s:
        for _ in range(2):
            await s.send(context_id="c")
    assert found == [None, {"1": [2, 3]}]


def a_circle() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["again"] = made
    return made


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "value",
    [math.nan, {"a": math.inf}, {1, 2}, b"x", object(), a_circle(), nested(100_000), 10**5000],
    ids=["nan", "inf", "set", "bytes", "object", "circle", "deep", "huge"],
)
async def test_what_is_no_json_is_refused_and_named(
    value: Any, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        found.append(await ctx.load_context())
        await ctx.update_context("before")
        await ctx.update_context(value)
        await ctx.complete()

    async with serve(worker(handle)) as s:
        assert (await s.send(context_id="c")).status.state == FAILED
        await s.send(context_id="c")
    assert found == [None, "before"]
    assert "ValueError: update_context(context) must be a JSON value: " in raised(caplog)


async def test_context_of_a_direct_reply_is_kept_too(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        count = (await ctx.load_context() or 0) + 1
        await ctx.update_context(count)
        await ctx.reply_directly(str(count))

    async with serve(worker(handle)) as s:
        said = [(await direct(s, context_id="c")).parts[0].text for _ in range(3)]
    assert said == ["1", "2", "3"]


async def test_context_without_a_server_is_none_and_a_no_op() -> None:
    """As in a unit test of a Worker, which makes the context itself."""
    from a2a_grpc import RequestContext, ServerCallContext

    class Queue:
        async def enqueue_event(self, event: Any) -> None: ...
        def is_closed(self) -> bool:
            return False

    context = RequestContext(ServerCallContext(), request("hi"))
    ctx = TaskContext(context, Queue())
    assert await ctx.load_context() is None
    await ctx.update_context({"a": 1})
    assert await ctx.load_context() is None
    assert await ctx.conversation() == []


# The conversation.


def talking(found: list[Any]) -> Any:
    """Notes the conversation, says something in every way there is, and ends."""

    async def handle(ctx: TaskContext) -> None:
        found.append([(one.role, one.text) for one in await ctx.conversation()])
        await ctx.send_status(f"{ctx.user_text}: status")
        if ctx.user_text == "ask":
            await ctx.request_input("ask: what?")
        else:
            await ctx.complete(f"{ctx.user_text}: artifact")

    return handle


async def test_conversation_spans_the_tasks_of_a_context_and_a_restart(sqlite: str) -> None:
    found: list[Any] = []
    async with serving(worker(talking(found)), storage=sqlite) as s:
        await s.send("one", context_id="c")
        await s.send("elsewhere", context_id="d")
        await s.send("two", context_id="c")
    async with serving(worker(talking(found)), storage=sqlite) as s:
        await s.send("three", context_id="c")
    one = [("user", "one"), ("agent", "one: status"), ("agent", "one: artifact")]
    two = [("user", "two"), ("agent", "two: status"), ("agent", "two: artifact")]
    assert found == [[], [], one, [*one, *two]]


async def test_conversation_ends_with_this_task_without_this_turn(serve: Serve) -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("of this turn")
        await ctx.emit_text_artifact("of this turn")
        await ctx.send_status("again of this turn")
        found.append([(one.role, one.text) for one in await ctx.conversation()])
        if ctx.user_text == "ask":
            await ctx.request_input("what?")
        else:
            await ctx.complete()

    async with serve(worker(handle)) as s:
        first = await s.send("ask", context_id="c", message_id="m")
        await s.send("between", context_id="c", message_id="m")
        await s.send("answer", task_id=first.id, message_id="m")
    said = ["ask", "of this turn", "again of this turn", "what?", "of this turn"]
    assert [[text for _, text in one] for one in found] == [
        [],
        said,
        [
            *("between", "of this turn", "again of this turn", "of this turn"),
            *said,
        ],
    ]


async def test_conversation_is_the_callers_own(serve: Serve) -> None:
    found: list[Any] = []
    async with serve(worker(talking(found)), authenticator=ByName()) as s:
        await s.identified(("name", "ann")).send("one", context_id="c")
        await s.identified(("name", "bob")).send("two", context_id="c")
    assert found == [[], []]


@pytest.mark.parametrize("limit", [-1, 0, 1, 3, 4, 44, 45, 1000])
async def test_conversation_is_cut_to_the_newest(limit: int) -> None:
    """Over several pages of storage."""
    found: list[list[str]] = []

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "look":
            found.append([one.text for one in await ctx.conversation(limit=limit)])
        await ctx.complete(f"to {ctx.user_text}")

    async with serving(worker(handle)) as s:
        for number in range(22):
            task = await s.send(f"{number}", context_id="c")
            assert task.status.state == COMPLETED
        await s.send("look", context_id="c")
    said = [text for number in range(22) for text in (f"{number}", f"to {number}")]
    assert found == [said[-limit:] if limit > 0 else []]


async def test_conversation_is_bounded_unless_asked_otherwise(serve: Serve) -> None:
    found: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        found.append(len(await ctx.conversation()))
        for number in range(150):
            await ctx.send_status(f"{number}")
        await ctx.complete()

    async with serve(worker(handle)) as s:
        for _ in range(2):
            await s.send(context_id="c")
    assert found == [0, 100]
