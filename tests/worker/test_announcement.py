"""A silent Worker's task becomes visible, unless it may still reply directly."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from a2a_grpc import TaskContext, Worker
from tests.conftest import Serve
from tests.support import (
    CANCELED,
    COMPLETED,
    WORKING,
    collect,
    outline,
    request,
    serving,
    text,
    within,
)
from tests.worker.workers import Recording, direct, worker


async def test_silent_worker_gets_its_task_so_that_callers_can_cancel_it(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        await asyncio.Event().wait()

    async with serve(worker(handle)) as s:
        stream = s.stream()
        (first,) = [await within(stream.read())]
        assert first.task.status.state == WORKING
        assert (await s.get(first.task.id)).status.state == WORKING
        assert (await s.cancel(first.task.id)).status.state == CANCELED
        assert outline(await collect(stream)) == ["status CANCELED"]
        task = await s.send(immediately=True)
        assert (await s.cancel(task.id)).status.state == CANCELED


async def test_announcement_is_no_second_task(serve: Serve) -> None:
    async def handle(ctx: TaskContext) -> None:
        while not (await s.list()).tasks:
            pass
        await ctx.send_status()
        await ctx.complete("x")

    async with serve(worker(handle)) as s:
        assert outline(await collect(s.stream())) == [
            *("task WORKING", "artifact x", "status COMPLETED"),
        ]


async def test_quick_worker_needs_no_announcement() -> None:
    """Everything goes into one commit."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete("x")

    storage = Recording()
    async with serving(worker(handle), storage=storage) as s:
        await s.send()
    assert storage.commits == [["task WORKING", "artifact x", "status COMPLETED"]]


async def test_second_turn_is_announced_at_once(serve: Serve) -> None:
    go = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input("what?")
        else:
            await go.wait()
            await ctx.complete()

    async with serve(worker(handle)) as s:
        task = await s.send("ask")
        stream = s.stream("this", task_id=task.id)
        await within(stream.read())
        assert outline([await within(stream.read())]) == ["status WORKING"]
        assert (await s.get(task.id)).status.state == WORKING
        go.set()
        await collect(stream)


# Workers that may reply directly. Each waits until others would have been announced.

LONG = 0.12


class Plain(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await ctx.reply_directly("hi")


class Inherited(Plain):
    pass


class InAMethod(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await self.answer(ctx)

    async def answer(self, ctx: TaskContext) -> None:
        await ctx.reply_directly("hi")


class Answers:
    async def answer(self, ctx: TaskContext) -> None:
        await ctx.reply_directly("hi")


class InAMixin(Answers, Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await self.answer(ctx)


async def answer_it(ctx: TaskContext) -> None:
    await ctx.reply_directly("hi")


class InAFunction(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await answer_it(ctx)


class InAStaticMethod(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await self.answer(ctx)

    @staticmethod
    async def answer(ctx: TaskContext) -> None:
        await ctx.reply_directly("hi")


class InAClosure(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        async def answer() -> None:
            await ctx.reply_directly("hi")

        await asyncio.sleep(LONG)
        await answer()


def wrapped(handle: Any) -> Any:
    @functools.wraps(handle)
    def call(*arguments: Any) -> Any:
        return handle(*arguments)

    return call


def hidden(handle: Any) -> Any:
    def call(*arguments: Any) -> Any:
        return handle(*arguments)

    return call


class Wrapped(Worker):
    @wrapped
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await ctx.reply_directly("hi")


class Hidden(Worker):
    @hidden
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await ctx.reply_directly("hi")


class Declared(Worker):
    replies_directly = True

    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(LONG)
        await getattr(ctx, "reply_" + "directly")("hi")


@pytest.mark.parametrize(
    "agent",
    [
        *(Plain, Inherited, InAMethod, InAMixin, InAFunction, InAStaticMethod, InAClosure),
        *(Wrapped, Hidden, Declared),
    ],
)
async def test_worker_that_may_reply_directly_is_not_announced(agent: type[Worker]) -> None:
    async with serving(agent()) as s:
        (event,) = await collect(s.stream())
        assert text(event.message) == "hi"
        assert not (await s.list()).tasks


class Undeclared(Worker):
    """Calls reply_directly in a way that can't be seen."""

    def __init__(self, before: float, after: float) -> None:
        self.before, self.after = before, after

    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep(self.before)
        await getattr(ctx, "reply_" + "directly")("hi")
        await asyncio.sleep(self.after)


async def test_reply_that_comes_after_the_announcement_is_a_response_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Undeclared(LONG, 0)) as s:
        task = await s.send()
        assert (task.status.state, text(task.status.message)) == (COMPLETED, "hi")
    assert "set replies_directly = True on the Worker" in caplog.text


async def test_reply_before_the_announcement_is_not_followed_by_one() -> None:
    """The agent goes on for longer than the announcement would have taken."""
    async with serving(Undeclared(0, LONG)) as s:
        assert text(await direct(s)) == "hi"
        assert not (await s.list()).tasks


async def test_worker_that_says_it_does_not_reply_is_announced() -> None:
    class Silent(Worker):
        replies_directly = False

        async def handle(self, ctx: TaskContext) -> None:
            if ctx.user_text == "never":
                await ctx.reply_directly("hi")
            await asyncio.Event().wait()

    async with serving(Silent()) as s:
        answer = await within(s.call("SendMessage", request(immediately=True)))
        assert answer.task.status.state == WORKING
