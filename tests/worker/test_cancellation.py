"""Canceling a Worker: `cancel` is asked once, then `handle` is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from a2a_grpc import Principal, TaskContext
from tests.conftest import Serve
from tests.support import (
    CANCELED,
    COMPLETED,
    assert_error,
    collect,
    outline,
    refused,
    serving,
    status_of,
    text,
    texts,
    within,
)
from tests.worker.workers import eventually, worker


class Waiting:
    """A `handle` that waits until it is cancelled."""

    def __init__(self) -> None:
        self.ctx: TaskContext | None = None
        self.log: list[Any] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.ctx = ctx
        await ctx.send_status("at it")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append(("handle cancelled", ctx.is_cancelled, ctx.turn_ended))
            raise


async def test_cancel_says_the_last_word(serve: Serve) -> None:
    waiting = Waiting()

    async def cancel(ctx: TaskContext) -> str:
        assert waiting.ctx is not None
        waiting.log.append(("cancel", ctx.is_cancelled, waiting.ctx.is_cancelled))
        await ctx.emit_text_artifact("so far")
        return "stopped at 3"

    async with serve(worker(waiting.handle, cancel=cancel)) as s:
        stream = s.stream("hello")
        first = await within(stream.read())
        task = await s.cancel(first.task.id)
        assert task.status.state == CANCELED
        assert text(task.status.message) == "stopped at 3"
        assert [text(one) for one in task.artifacts] == ["so far"]
        assert texts(task.history) == ["hello", "at it"]
        assert outline(await collect(stream)) == [
            *("status WORKING", "artifact so far", "status CANCELED"),
        ]
        assert await s.get(task.id) == task
        assert_error(await refused(s.cancel(task.id)), "TASK_NOT_CANCELABLE")
    assert waiting.log == [("cancel", True, True), ("handle cancelled", True, False)]


async def test_cancel_that_says_nothing_is_canceled_too(serve: Serve) -> None:
    waiting = Waiting()
    async with serve(worker(waiting.handle)) as s:
        task = await s.send(immediately=True)
        task = await s.cancel(task.id)
        assert task.status.state == CANCELED
        assert not task.status.HasField("message")


async def test_cancel_is_called_once_for_concurrent_callers(serve: Serve) -> None:
    waiting, called = Waiting(), []

    async def cancel(ctx: TaskContext) -> str:
        called.append(ctx.task_id)
        await asyncio.sleep(0)
        return "stopped"

    async with serve(worker(waiting.handle, cancel=cancel)) as s:
        task = await s.send(immediately=True)
        answers = await asyncio.gather(
            *(s.cancel(task.id) for _ in range(10)), return_exceptions=True
        )
        canceled = await s.get(task.id)
        assert text(canceled.status.message) == "stopped"
        assert canceled in answers
        for answer in answers:
            if isinstance(answer, grpc.aio.AioRpcError):  # one that came when all was over
                assert_error(status_of(answer), "TASK_NOT_CANCELABLE")
            else:
                assert answer == canceled
    assert called == [task.id]


@pytest.mark.parametrize("result", [5, "\ud800", RuntimeError], ids=repr)
async def test_cancel_that_goes_wrong_is_logged_and_the_task_canceled(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting()

    async def cancel(ctx: TaskContext) -> Any:
        if result is RuntimeError:
            raise result("of cancel")
        return result

    async with serving(worker(waiting.handle, cancel=cancel)) as s:
        task = await s.send(immediately=True)
        task = await s.cancel(task.id)
        assert task.status.state == CANCELED
        assert not task.status.HasField("message")
    assert "cancel() raised" in caplog.text
    if result is not RuntimeError:
        assert "Tested.cancel(its result) must be" in caplog.text


async def test_cancel_may_end_the_turn_itself(serve: Serve) -> None:
    waiting = Waiting()

    async def cancel(ctx: TaskContext) -> str:
        await ctx.complete("in time")
        return "not said"

    async with serve(worker(waiting.handle, cancel=cancel)) as s:
        task = await s.send(immediately=True)
        assert_error(await refused(s.cancel(task.id)), "TASK_NOT_CANCELABLE")
        task = await eventually(s, task.id, COMPLETED)
        assert [text(one) for one in task.artifacts] == ["in time"]


async def test_cancel_sees_the_task_and_its_owner_but_no_message(serve: Serve) -> None:
    class Ann:
        async def authenticate(self, call: Any) -> Principal:
            return Principal("ann")

    found: dict[str, Any] = {}
    waiting = Waiting()

    async def cancel(ctx: TaskContext) -> None:
        found.update(
            ids=(ctx.task_id, ctx.context_id, ctx.message_id),
            message=(ctx.user_text, list(ctx.parts), ctx.files, ctx.data_parts, ctx.metadata),
            history=[one.text for one in ctx.history],
            caller=(ctx.call.principal.id, ctx.call.tenant),
            kept=await ctx.load_context(),
            accepts=ctx.accepts("text/plain"),
            talk=[one.text for one in await ctx.conversation()],
        )

    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context("kept")
        await waiting.handle(ctx)

    async with serve(worker(handle, cancel=cancel), authenticator=Ann()) as s:
        task = await s.send("hello", immediately=True, tenant="t")
        await eventually_said(s, task.id, "at it", tenant="t")
        await s.cancel(task.id, tenant="t")
    assert found == {
        "ids": (task.id, task.context_id, ""),
        "message": ("", [], [], [], {}),
        "history": ["hello"],
        "caller": ("ann", "t"),
        "kept": "kept",
        "accepts": True,
        "talk": ["hello", "at it"],
    }


async def eventually_said(s: Any, task_id: str, said: str, **how: Any) -> None:
    async with asyncio.timeout(10):
        while text((await s.get(task_id, **how)).status.message) != said:
            pass


async def test_agent_that_swallows_its_cancellation_is_canceled_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # contrary to the rules

    async with serving(worker(handle)) as s:
        task = await s.send(immediately=True)
        assert (await s.cancel(task.id)).status.state == CANCELED
    assert not [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")]


async def test_agent_may_end_by_itself_while_it_is_cancelled(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        try:
            await asyncio.Event().wait()
        finally:
            await ctx.complete("rescued")

    async with serve(worker(handle)) as s:
        task = await s.send(immediately=True)
        assert_error(await refused(s.cancel(task.id)), "TASK_NOT_CANCELABLE")
        assert [text(one) for one in (await s.get(task.id)).artifacts] == ["rescued"]


async def test_interrupted_task_is_canceled_without_the_agent(serve: Serve) -> None:
    called: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.request_input("what?")

    async def cancel(ctx: TaskContext) -> None:
        called.append(ctx.task_id)

    async with serve(worker(handle, cancel=cancel)) as s:
        task = await s.send()
        assert (await s.cancel(task.id)).status.state == CANCELED
    assert called == []
