"""What goes wrong in an agent: an error that names the call, and a task that has an end."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from a2a_grpc import A2AServer, TaskContext, Worker, pb
from tests.conftest import Serve
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    assert_error,
    collect,
    outline,
    refused,
    request,
    serving,
    text,
    within,
)
from tests.worker.workers import direct, raised, worker

ENDS: dict[str, tuple[Any, ...]] = {
    "complete": ("x",),
    "complete_json": ({"x": 1},),
    "respond": ("x",),
    "reply_directly": ("x",),
    "fail": ("x",),
    "reject": ("x",),
    "request_input": ("x",),
    "request_auth": ("x",),
}
SAYS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ENDS},
    "send_status": {},
    "emit_text_artifact": {"text": "late"},
    "emit_data_artifact": {"data": 1},
    "emit_artifact": {"artifact_id": "late", "text": "late"},
}


# Exactly one end.


@pytest.mark.parametrize("second", SAYS)
@pytest.mark.parametrize("first", ["complete", "respond", "fail", "reject"])
async def test_nothing_can_be_said_after_the_end_and_the_first_stands(
    first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await getattr(ctx, first)("first")
        arguments = ENDS.get(second, ())
        await getattr(ctx, second)(*arguments, **SAYS[second])

    async with serving(worker(handle)) as s:
        task = await s.send()
        wanted = {"fail": "FAILED", "reject": "REJECTED"}.get(first, "COMPLETED")
        assert pb.TaskState.Name(task.status.state) == f"TASK_STATE_{wanted}"
        said = text(task.artifacts[0]) if first == "complete" else text(task.status.message)
        assert said == "first"
        assert len(task.artifacts) == (first == "complete")
    assert f"RuntimeError: {second}() after {first}(): {first}() has ended the turn" in (
        raised(caplog)
    )


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", ["request_input", "request_auth"])
async def test_second_end_after_a_question_fails_the_task(
    first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await getattr(ctx, first)("first")
        await getattr(ctx, second)(*ENDS[second])

    async with serving(worker(handle)) as s:
        stream = await collect(s.stream())
        task = await s.get(stream[0].task.id)
        assert task.status.state == FAILED
    assert f"{second}() after {first}()" in raised(caplog)


@pytest.mark.parametrize("second", ENDS)
async def test_second_end_after_a_direct_reply_fails(
    second: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.reply_directly("first")
        await getattr(ctx, second)(*ENDS[second])

    async with serving(worker(handle)) as s:
        assert (await s.send()).status.state == FAILED
    assert f"{second}() after reply_directly()" in raised(caplog)


async def test_second_end_that_the_agent_catches_changes_nothing(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.request_input("what?")
        with pytest.raises(RuntimeError, match=r"complete\(\) after request_input\(\)"):
            await ctx.complete()

    async with serve(worker(handle)) as s:
        assert (await s.send()).status.state == INPUT_REQUIRED


async def test_two_ends_at_once_are_one_end(serve: Serve) -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        found.extend(await asyncio.gather(ctx.complete("a"), ctx.fail("b"), return_exceptions=True))

    async with serve(worker(handle)) as s:
        task = await s.send()
        assert (task.status.state, [text(one) for one in task.artifacts]) == (COMPLETED, ["a"])
    assert [type(one) for one in found] == [type(None), RuntimeError]


@pytest.mark.parametrize("said", [False, True])
async def test_return_without_an_end_fails_with_an_explanation_in_the_log(
    serve: Serve, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        if said:
            await ctx.emit_text_artifact("half")

    async with serve(worker(handle)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert text(task.status.message) == "The agent failed; the server's log says why."
        assert [text(one) for one in task.artifacts] == (["half"] if said else [])
    assert (
        "Tested.handle() returned without ending the turn: it has to await one of complete(), "
        "complete_json(), respond(), reply_directly(), fail(), reject(), request_input(), "
        "request_auth()"
    ) in raised(caplog)


async def test_exception_keeps_what_was_said_and_its_text_from_the_client(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("half")
        raise LookupError("s3cret")

    async with serve(worker(handle)) as s:
        events = await collect(s.stream())
        assert outline(events) == ["task WORKING", "artifact half", "status FAILED"]
        assert "s3cret" not in str(await s.get(events[0].task.id))
    assert "LookupError: s3cret" in raised(caplog)


async def test_exception_after_the_end_changes_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete("x")
        raise LookupError("too late")

    async with serve(worker(handle)) as s:
        task = await s.send()
        assert (task.status.state, [text(one) for one in task.artifacts]) == (COMPLETED, ["x"])
    # The server has stopped, so the turn is over.
    assert "LookupError: too late" in raised(caplog)


# What can't be sent.


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = {"a": made}
    return made


def a_circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


BAD_TEXTS: list[Any] = [None, 5, b"x", ["x"], "\ud800"]
BAD_DATA: dict[str, Any] = {
    "nan": math.nan,
    "nested infinity": {"a": [math.inf]},
    "huge": 10**400,
    "set": {1},
    "bytes": {"a": b"x"},
    "object": object(),
    "key": {1: 2},
    "surrogate": ["\ud800"],
    "surrogate key": {"\ud800": 1},
    "circle": a_circle(),
    "deep": nested(32),
    "very deep": nested(5000),
}
CONTENTS = ("data", "file_bytes", "file_url")
Call = Callable[[TaskContext], Any]
WRONG: dict[str, tuple[str, Call]] = {
    **{
        f"{method} {value!r}": (
            f"{method}({argument})",
            lambda ctx, m=method, v=value: getattr(ctx, m)(v),
        )
        for method, argument in {
            "complete": "text",
            "respond": "text",
            "reply_directly": "text",
            "fail": "reason",
            "reject": "reason",
            "request_input": "question",
            "request_auth": "details",
            "send_status": "message",
            "emit_text_artifact": "text",
        }.items()
        for value in BAD_TEXTS
        if value is not None
        or method in ("reply_directly", "fail", "request_input", "emit_text_artifact")
    },
    **{
        f"{method} {name}": (f"{method}(data)", lambda ctx, m=method, v=value: getattr(ctx, m)(v))
        for method in ("complete_json", "emit_data_artifact")
        for name, value in BAD_DATA.items()
    },
    **{
        f"{method} artifact_id {value!r}": (
            f"{method}(artifact_id)",
            lambda ctx, m=method, v=value: getattr(ctx, m)("x", artifact_id=v),
        )
        for method in ("complete", "complete_json", "emit_text_artifact", "emit_data_artifact")
        for value in ("", None, 5, "\ud800")
    },
    **{
        f"emit_artifact {name} {value!r:.20}": (
            f"emit_artifact({name})",
            lambda ctx, n=name, v=value: ctx.emit_artifact(
                **{
                    "artifact_id": "a",
                    **({} if n in ("data", "file_bytes", "file_url") else {"text": "x"}),
                    n: v,
                }
            ),
        )
        for name, values in {
            "artifact_id": ["", None, 5],
            "text": [5, "\ud800"],
            "data": [math.nan, nested(32)],
            "file_bytes": ["x", 5],
            "file_url": [5, b"https://example.org"],
            "media_type": [5, "\ud800"],
            "filename": [5, "\ud800"],
            "name": [5, "\ud800"],
            "description": [5, "\ud800"],
            "metadata": [
                [("a", 1)],
                {"a": object()},
                {1: 2},
                {"a": math.nan},
                "x",
                {"a": nested(31)},
            ],
            "extensions": ["urn:x", [5], 5, ["\ud800"]],
        }.items()
        for value in values
    },
    **{
        f"request_auth {name} {value!r}": (
            f"request_auth({name})",
            lambda ctx, n=name, v=value: ctx.request_auth("log in", **{n: v}),
        )
        for name, values in {
            "schemes": ["bearer", [5], 5],
            "credentials_hint": [5, "\ud800"],
            "auth_url": [5],
        }.items()
        for value in values
    },
    "emit_data_artifact media_type": (
        "emit_data_artifact(media_type)",
        lambda ctx: ctx.emit_data_artifact(1, media_type=None),
    ),
}


async def test_what_can_not_be_sent_is_refused_at_the_call_and_named() -> None:
    """And nothing was said: the agent may say something else."""
    problems: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        for name, (call, bad) in WRONG.items():
            try:
                await bad(ctx)
            except (TypeError, ValueError) as error:
                if not str(error).startswith(f"{call} must "):
                    problems.append(f"{name}: {error}")
            else:
                problems.append(f"{name}: was taken")
            if ctx.turn_ended:
                problems.append(f"{name}: has ended the turn")
                return
        await ctx.reply_directly("still here")

    async with serving(worker(handle)) as s:
        message = await direct(s)
    assert problems == []
    assert text(message) == "still here"


@pytest.mark.parametrize("method", ["complete_json", "emit_data_artifact", "complete"])
async def test_what_can_not_be_sent_fails_the_task_and_is_named(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await getattr(ctx, method)({"a": math.nan})
        await ctx.complete()

    async with serving(worker(handle)) as s:
        assert (await s.send()).status.state == FAILED
    assert f"{method}({'text' if method == 'complete' else 'data'}) must be a" in raised(caplog)


async def test_deepest_data_that_readers_can_parse_is_taken(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", text="x", metadata=nested(31))
        await ctx.complete_json(nested(31))

    async with serve(worker(handle)) as s:
        task = await s.send()
        assert task.status.state == COMPLETED
        (listed,) = (await s.list(include_artifacts=True)).tasks
        assert listed.artifacts == task.artifacts


async def test_large_and_strange_texts_arrive(serve: Serve) -> None:
    strange = "\x00\u202e\U0001f600e\u0301" + "x" * 5_000_000

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(strange)

    async with serve(worker(handle)) as s:
        assert [text(one) for one in (await s.send()).artifacts] == [strange]


async def test_text_of_a_subclass_is_text(serve: Serve) -> None:
    class Name(str):
        __slots__ = ()

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(Name("x"))

    async with serve(worker(handle)) as s:
        assert [text(one) for one in (await s.send()).artifacts] == ["x"]


# What the agent left behind.


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("call", ["complete", "send_status", "emit_text_artifact"])
async def test_task_that_was_left_behind_is_told_so(serve: Serve, call: str, ended: bool) -> None:
    found: list[BaseException | None] = []
    go, done = asyncio.Event(), asyncio.Event()
    left: set[asyncio.Task[None]] = set()

    async def later(ctx: TaskContext) -> None:
        await go.wait()
        try:
            await getattr(ctx, call)("late")
        except RuntimeError as error:
            found.append(error)
        done.set()

    async def handle(ctx: TaskContext) -> None:
        left.add(asyncio.create_task(later(ctx)))
        if ended:
            await ctx.complete("x")

    async with serve(worker(handle)) as s:
        task = await s.send()
        go.set()
        await within(done.wait())
        assert await s.get(task.id) == task
    assert task.status.state == (COMPLETED if ended else FAILED)
    after = "after complete()" if ended else "after the turn: the agent has returned"
    assert f"{call}() {after}" in str(found[0])


async def test_task_that_was_left_behind_can_not_save_the_turn() -> None:
    """Not even in the moment in which `handle` returns."""
    left: list[asyncio.Task[None]] = []

    async def later(ctx: TaskContext) -> None:
        await asyncio.sleep(0)
        await ctx.complete("late")

    async def handle(ctx: TaskContext) -> None:
        left.append(asyncio.create_task(later(ctx)))
        await asyncio.sleep(0)

    async with serving(worker(handle)) as s:
        task = await s.send()
        assert (task.status.state, list(task.artifacts)) == (FAILED, [])
        (error,) = await asyncio.gather(*left, return_exceptions=True)
        assert "complete() after the turn" in str(error)


async def test_deaf_agent_can_say_nothing_after_it_was_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go, done, found = asyncio.Event(), asyncio.Event(), []

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("at it")
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        try:
            await ctx.complete("late")
        except RuntimeError as error:
            found.append(str(error))
        done.set()

    async with serving(worker(handle), cancel_timeout=0.05) as s:
        task = await s.send(immediately=True)
        task = await s.cancel(task.id)
        assert task.status.state == CANCELED
        go.set()
        await within(done.wait())
        assert await s.get(task.id) == task
    assert found == [
        "complete() after the turn: the agent has returned, or was given up; await everything "
        "that it starts"
    ]


# Workers that are none.


class NeedsArguments(Worker):
    def __init__(self, model: str) -> None:
        self.model = model

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(self.model)


class Lacking(Worker):
    pass


class Generating(Worker):
    async def handle(self, ctx: TaskContext) -> AsyncIterator[str]:  # type: ignore[override]
        yield "x"


class Blocking(Worker):
    def handle(self, ctx: TaskContext) -> Any:
        yield "x"


class Strange(Worker):
    on_interruption = "retry"

    async def handle(self, ctx: TaskContext) -> None: ...


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        (
            NeedsArguments,
            r"the agent NeedsArguments can't be made without arguments \(missing a required "
            r"argument: 'model'\); give an object, NeedsArguments\(...\), in place of the class",
        ),
        (Lacking, "the agent Lacking lacks handle; define it"),
        (Generating, r"Generating.handle\(\) is a generator; take out the yield"),
        (Generating(), r"Generating.handle\(\) is a generator; take out the yield"),
        (Blocking, r"Blocking.handle\(\) is a generator; take out the yield"),
        (Strange, "is 'retry'; use 'fail' or 'restart'"),
    ],
)
def test_worker_that_can_not_work_is_refused_with_the_remedy(agent: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        A2AServer(agent)


async def test_worker_class_is_made_into_an_object() -> None:
    class Echo(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(ctx.user_text)

    async with serving(Echo) as s:
        assert [text(one) for one in (await s.send("hi")).artifacts] == ["hi"]


async def test_handle_that_is_not_async_fails_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Sync(Worker):
        def handle(self, ctx: TaskContext) -> None:  # type: ignore[override]
            return None

    async with serving(Sync()) as s:
        assert (await s.send()).status.state == FAILED
    assert "Sync.handle() returned a NoneType: it must be an `async def` without a yield" in (
        raised(caplog)
    )


def with_wraps(handle: Any) -> Any:
    @functools.wraps(handle)
    async def decorated(self: Worker, ctx: TaskContext) -> None:
        await handle(self, ctx)

    return decorated


def without_wraps(handle: Any) -> Any:
    def decorated(*arguments: Any) -> Any:
        return handle(*arguments)

    return decorated


class Base(Worker):
    @with_wraps
    async def handle(self, ctx: TaskContext) -> None:
        await self.answer(ctx)

    async def answer(self, ctx: TaskContext) -> None:
        await ctx.complete("base")


class Child(Base):
    async def answer(self, ctx: TaskContext) -> None:
        await ctx.complete("child")


class Decorated(Worker):
    @without_wraps
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("decorated")


@pytest.mark.parametrize(
    ("agent", "said"), [(Base, "base"), (Child, "child"), (Decorated, "decorated")]
)
async def test_inherited_and_decorated_handles_work(agent: Any, said: str) -> None:
    async with serving(agent()) as s:
        assert [text(one) for one in (await s.send()).artifacts] == [said]


async def test_cancellation_in_the_middle_of_complete_leaves_one_end(serve: Serve) -> None:
    """The agent waits in complete() for the commit of a large artifact, and is cancelled there."""
    inside = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("at it")
        completing = asyncio.create_task(ctx.complete("x" * 3_000_000))
        await asyncio.sleep(0)
        inside.set()
        await completing

    async with serve(worker(handle)) as s:
        sent = asyncio.ensure_future(s.call("SendMessage", request()))
        await within(inside.wait())
        (task,) = (await s.list()).tasks
        status = await refused(s.cancel(task.id))
        assert_error(status, "TASK_NOT_CANCELABLE")
        task = (await within(sent)).task
        assert task.status.state == COMPLETED
        assert [len(text(one)) for one in task.artifacts] == [3_000_000]
        assert await s.get(task.id) == task


async def test_agent_that_cancels_its_own_complete_has_completed(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        completing = asyncio.create_task(ctx.complete("x" * 3_000_000))
        await asyncio.sleep(0)
        completing.cancel()
        await asyncio.gather(completing, return_exceptions=True)
        assert ctx.turn_ended

    async with serve(worker(handle)) as s:
        task = await s.send()
        assert task.status.state == COMPLETED
        assert [len(text(one)) for one in task.artifacts] == [3_000_000]


async def test_misuse_is_logged_once_per_turn(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(5)  # type: ignore[arg-type]

    async with serving(worker(handle)) as s:
        await s.send()
    assert [r.levelno for r in caplog.records if r.levelno >= logging.WARNING] == [logging.ERROR]
