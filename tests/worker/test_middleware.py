"""Middleware around every operation, and the request context that it fills for the agent."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc import (
    A2AServer,
    Middleware,
    PermissionDeniedError,
    ServerCallContext,
    TaskContext,
    pb,
)
from a2a_grpc.storage.values import (
    Operation,
)
from tests.conftest import Serve
from tests.support import (
    COMPLETED,
    FAILED,
    WORKING,
    assert_error,
    collect,
    outline,
    refused,
    request,
    serving,
    text,
    within,
)
from tests.worker.workers import eventually, worker

SECRET = "s3cret-of-the-caller"


async def quiet(ctx: TaskContext) -> None:
    await ctx.complete()


class Noting(Middleware):
    """Notes what it sees, under a name."""

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name = name
        self.log = log
        self.left = asyncio.Event()

    async def before(self, request: Any, call: ServerCallContext) -> None:
        self.log.append((self.name, "before", call.method))

    async def after(
        self, request: Any, call: ServerCallContext, result: Any, error: BaseException | None
    ) -> None:
        self.log.append((self.name, "after", type(result).__name__, type(error).__name__))
        self.left.set()


async def test_middleware_surrounds_an_operation_the_first_outermost() -> None:
    log: list[Any] = []
    async with serving(worker(quiet), middleware=[Noting("a", log), Noting("b", log)]) as s:
        task = await s.send()
        assert log == [
            ("a", "before", "SendMessage"),
            ("b", "before", "SendMessage"),
            ("b", "after", "Task", "NoneType"),
            ("a", "after", "Task", "NoneType"),
        ]
        log.clear()
        await s.get(task.id)
        assert [entry[1:] for entry in log] == [
            *[("before", "GetTask")] * 2,
            *[("after", "Task", "NoneType")] * 2,
        ]
        log.clear()
        assert_error(await refused(s.get("nobody's")), "TASK_NOT_FOUND")
        assert log[2:] == [
            ("b", "after", "NoneType", "TaskNotFoundError"),
            ("a", "after", "NoneType", "TaskNotFoundError"),
        ]
        log.clear()
        await collect(s.stream())
        assert log[0] == ("a", "before", "SendStreamingMessage")
        assert log[2:] == [
            ("b", "after", "NoneType", "NoneType"),
            ("a", "after", "NoneType", "NoneType"),
        ]


async def test_every_method_is_surrounded() -> None:
    log: list[Any] = []
    card = pb.AgentCard(capabilities=pb.AgentCapabilities(push_notifications=True, streaming=True))
    async with serving(worker(quiet), card=card, middleware=[Noting("a", log)]) as s:
        config = pb.TaskPushNotificationConfig(task_id="t", url="https://example.org")
        for method, made in {
            "SendMessage": request(),
            "SendStreamingMessage": request(),
            "GetTask": pb.GetTaskRequest(id="t"),
            "ListTasks": pb.ListTasksRequest(),
            "CancelTask": pb.CancelTaskRequest(id="t"),
            "SubscribeToTask": pb.SubscribeToTaskRequest(id="t"),
            "CreateTaskPushNotificationConfig": config,
            "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest(
                task_id="t", id="c"
            ),
            "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest(
                task_id="t"
            ),
            "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest(
                task_id="t", id="c"
            ),
            "GetExtendedAgentCard": pb.GetExtendedAgentCardRequest(),
        }.items():
            log.clear()
            call = s.call(method, made)
            if "Stream" in method or "Subscribe" in method:
                await asyncio.gather(collect(call), return_exceptions=True)
            else:
                await asyncio.gather(call, return_exceptions=True)
            assert log[0] == ("a", "before", method)
            assert [entry[1] for entry in log] == ["before", "after"]


@pytest.mark.parametrize("stream", [False, True])
async def test_middleware_may_refuse_and_later_ones_see_nothing(stream: bool) -> None:
    log: list[Any] = []
    handled: list[str] = []

    class Refusing(Middleware):
        async def before(self, request: Any, call: ServerCallContext) -> None:
            raise PermissionDeniedError("not on Sundays")

    async def handle(ctx: TaskContext) -> None:
        handled.append(ctx.user_text)
        await ctx.complete()

    middleware = [Noting("a", log), Refusing(), Noting("b", log)]
    async with serving(worker(handle), middleware=middleware) as s:
        status = await refused(s.stream() if stream else s.call("SendMessage", request()))
        assert_error(status, "PERMISSION_DENIED")
        assert status.message == "not on Sundays"
        assert [entry[:2] for entry in log] == [("a", "before"), ("a", "after")]
        assert log[1] == ("a", "after", "NoneType", "PermissionDeniedError")
        assert handled == []


async def test_middleware_that_fails_is_internal_before_and_harmless_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Middleware):
        def __init__(self) -> None:
            self.when = "before"

        async def before(self, request: Any, call: ServerCallContext) -> None:
            if self.when == "before":
                raise ValueError(SECRET)

        async def after(self, *_: Any) -> None:
            raise ValueError("in after")

    failing, log = Failing(), []
    async with serving(worker(quiet), middleware=[Noting("a", log), failing]) as s:
        status = await refused(s.call("SendMessage", request()))
        assert_error(status, "INTERNAL")
        assert SECRET not in status.message
        failing.when = "after"
        assert (await s.send()).status.state == COMPLETED
        assert outline(await collect(s.stream()))[-1] == "status COMPLETED"
    assert caplog.text.count("Failing.after() failed for Send") == 2
    assert [entry[1] for entry in log] == ["before", "after"] * 3


@pytest.mark.parametrize("kind", ["unary", "waiting stream", "stream between two events"])
async def test_caller_who_goes_away_is_a_cancelled_error(kind: str) -> None:
    log: list[Any] = []
    noting, started, go = Noting("a", log), asyncio.Event(), asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        started.set()
        while kind == "stream between two events" and not go.is_set():
            await ctx.emit_text_artifact("x" * 500_000)  # more than a client takes unread
        await go.wait()
        await ctx.complete()

    async with serving(worker(handle), middleware=[noting]) as s:
        if kind == "unary":
            call = s.call("SendMessage", request())
            calling = asyncio.ensure_future(call)
        else:
            call = s.stream()
            await within(call.read())
        await within(started.wait())
        call.cancel()
        await within(noting.left.wait())
        go.set()
        if kind == "unary":
            await asyncio.gather(calling, return_exceptions=True)
        assert log[1] == ("a", "after", "NoneType", "CancelledError")


async def test_after_is_called_though_the_caller_goes_away_in_that_of_another() -> None:
    log: list[Any] = []
    outer, waiting = Noting("outer", log), asyncio.Event()

    class Slow(Middleware):
        async def after(self, *seen: Any) -> None:
            waiting.set()
            await asyncio.Event().wait()

    async with serving(worker(quiet), middleware=[outer, Slow()]) as s:
        call = s.call("SendMessage", request())
        calling = asyncio.ensure_future(call)
        await within(waiting.wait())
        call.cancel()
        await within(outer.left.wait())
        await asyncio.gather(calling, return_exceptions=True)
    assert log[1] == ("outer", "after", "Task", "NoneType")


@pytest.mark.parametrize(
    ("middleware", "problem"),
    [
        (Middleware(), "middleware is a Middleware; give a list"),
        ([Middleware], r"middleware takes objects: give Middleware\(\) in place of"),
        ([object()], r"is no middleware: subclass a2a_grpc.Middleware"),
    ],
)
def test_what_is_no_middleware_is_refused(middleware: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        A2AServer(worker(quiet), middleware=middleware)


async def test_middleware_may_change_the_request() -> None:
    class Shouting(Middleware):
        async def before(self, request: Any, call: ServerCallContext) -> None:
            if call.method == "SendMessage":
                request.message.parts[0].text = request.message.parts[0].text.upper()

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(ctx.user_text)

    async with serving(worker(handle), middleware=[Shouting()]) as s:
        assert [text(one) for one in (await s.send("hi")).artifacts] == ["HI"]


# The request context.


class Secretive(Middleware):
    """Gives the agent what the caller sent as a credential."""

    async def before(self, request: Any, call: ServerCallContext) -> None:
        if "token" in call.metadata:
            call.request_context["token"] = call.metadata["token"]
            call.state["seen"] = True


TOKEN = (("token", SECRET),)


async def test_agent_gets_what_middleware_found_out(serve: Serve) -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        found.append((dict(ctx.request_context), ctx.call.state, dict(ctx.call.metadata)))
        with pytest.raises(TypeError):
            ctx.request_context["other"] = 1  # type: ignore[index]
        assert SECRET not in repr(ctx.call)
        await (ctx.request_input("more?") if ctx.user_text == "ask" else ctx.complete())

    async with serve(worker(handle), middleware=[Secretive()]) as s:
        task = await s.send("ask", call_metadata=TOKEN)
        await s.send("no token", task_id=task.id)
        await collect(s.stream("hi", call_metadata=TOKEN))
    token = ({"token": SECRET}, {}, {})
    assert found == [token, ({}, {}, {}), token]


async def test_concurrent_calls_never_get_the_context_of_another(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await asyncio.sleep(0)
        await ctx.reply_directly(f"{ctx.user_text} {ctx.request_context['token']}")

    async with serve(worker(handle), middleware=[Secretive()]) as s:

        async def one(number: int) -> None:
            answer = await s.call(
                "SendMessage", request(f"{number}"), metadata=[("token", f"{number}")]
            )
            assert text(answer.message) == f"{number} {number}"

        await asyncio.gather(*(one(number) for number in range(50)))


def bytes_of(sqlite: str) -> bytes:
    """Everything that the store has written, in all of its files."""
    path = Path(sqlite.removeprefix("sqlite:///"))
    found = b"".join(one.read_bytes() for one in path.parent.glob(path.name + "*"))
    assert b"look for me" in found
    return found


async def test_request_context_is_never_written_to_the_store(
    sqlite: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def handle(ctx: TaskContext) -> None:
        assert ctx.request_context["token"] == SECRET
        await ctx.send_status("look for me")
        if ctx.user_text == "fail":
            raise RuntimeError("of the agent")
        await ctx.complete()

    async with serving(worker(handle), storage=sqlite, middleware=[Secretive()]) as s:
        assert (await s.send(call_metadata=TOKEN)).status.state == COMPLETED
        assert (await s.send("fail", call_metadata=TOKEN)).status.state == FAILED
        assert SECRET.encode() not in bytes_of(sqlite)
    assert SECRET.encode() not in bytes_of(sqlite)
    assert SECRET not in caplog.text


async def test_redelivery_comes_without_it_and_counts(sqlite: str) -> None:
    """The process ends in the midst of the turn, and another takes it up."""
    found: list[Any] = []
    started = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        found.append((ctx.attempt, dict(ctx.request_context)))
        await ctx.send_status("look for me")
        started.set()
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        await ctx.complete(f"attempt {ctx.attempt}")

    agent = worker(handle, on_interruption="restart")
    async with serving(agent, storage=sqlite, middleware=[Secretive()]) as s:
        task = await s.send(immediately=True, call_metadata=TOKEN)
        await within(started.wait())
        assert task.status.state == WORKING
    assert SECRET.encode() not in bytes_of(sqlite)
    async with serving(agent, storage=sqlite, middleware=[Secretive()]) as s:
        task = await eventually(s, task.id, COMPLETED, FAILED)
        assert [text(one) for one in task.artifacts] == ["attempt 2"]
    assert found == [(1, {"token": SECRET}), (2, {})]
    assert SECRET.encode() not in bytes_of(sqlite)


async def test_nothing_of_it_is_left_in_the_process(serve: Serve) -> None:
    """Whatever becomes of an operation: ended, refused, repeated, canceled before its turn."""
    from a2a_grpc.transient import TransientContexts

    kept: list[TransientContexts] = []
    init = TransientContexts.__init__

    def noting(self: TransientContexts) -> None:
        init(self)
        kept.append(self)

    go = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "wait":
            await ctx.send_status()
            await go.wait()
        await ctx.complete()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransientContexts, "__init__", noting)
        async with serve(worker(handle), middleware=[Secretive()], deduplicate="always") as s:
            for _ in range(2):
                await s.send("hi", message_id="again", call_metadata=TOKEN)
            task = await s.send("wait", immediately=True, call_metadata=TOKEN)
            behind = s.stream("behind it", task_id=task.id, call_metadata=TOKEN)
            await within(behind.read())
            await s.cancel(task.id)
            await asyncio.gather(collect(behind), return_exceptions=True)
            await asyncio.gather(
                s.send("late", task_id=task.id, call_metadata=TOKEN), return_exceptions=True
            )
        assert kept
        assert not any(vars(transient)["_kept"] for transient in kept)


async def test_broker_is_told_of_the_operation_by_its_id_alone() -> None:
    from a2a_grpc import InMemoryBroker

    submitted: list[Any] = []

    class Noticing(InMemoryBroker):
        async def run_task(self, params: Any) -> None:
            submitted.append(params)
            await super().run_task(params)

    async with serving(worker(quiet), broker=Noticing(), middleware=[Secretive()]) as s:
        await s.send(call_metadata=TOKEN)
    assert len(submitted) == 1
    assert SECRET not in repr(submitted)
    assert "request_context" not in Operation.__slots__
