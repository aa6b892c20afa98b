"""A process that ends in the midst of a turn: what its Worker's task becomes in the next one."""

from __future__ import annotations

import asyncio
from typing import Any

from a2a_grpc import TaskContext
from tests.support import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    a_server,
    collect,
    connected,
    outline,
    serving,
    text,
    texts,
    within,
)
from tests.worker.workers import eventually, worker


class Interrupted:
    """Says something, then waits for ever at its first attempt, and completes at the next."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.found: list[Any] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.found.append(
            (
                ctx.attempt,
                ctx.user_text,
                [one.text for one in ctx.history],
                [one.text for one in ctx.previous_artifacts],
            )
        )
        if ctx.user_text == "ask":
            await ctx.request_input("what?")
            return
        await ctx.send_status(f"attempt {ctx.attempt}")
        await ctx.emit_text_artifact(f"chunk {ctx.attempt}")
        if ctx.attempt == 1:
            await ctx.send_status("now")  # so that the chunk is stored
            self.started.set()
            await asyncio.Event().wait()
        await ctx.complete("end")


async def test_worker_fails_by_default(sqlite: str) -> None:
    agent = Interrupted()
    async with serving(worker(agent.handle), storage=sqlite) as s:
        task = await s.send("once", immediately=True)
        await within(agent.started.wait())
    async with serving(worker(agent.handle), storage=sqlite) as s:
        task = await s.get(task.id)
        assert task.status.state == FAILED
        assert "The server stopped" in text(task.status.message)
        assert texts(task.history) == ["once", "attempt 1", "now"]
        assert [text(one) for one in task.artifacts] == ["chunk 1"]
    assert [one[0] for one in agent.found] == [1]


async def test_restarted_worker_runs_again_and_starts_its_artifacts_anew(sqlite: str) -> None:
    agent = Interrupted()
    tested = worker(agent.handle, on_interruption="restart")
    async with serving(tested, storage=sqlite) as s:
        task = await s.send("once", immediately=True)
        await within(agent.started.wait())
        assert (await s.get(task.id)).status.state == WORKING
    async with serving(tested, storage=sqlite) as s:
        task = await eventually(s, task.id, COMPLETED, FAILED)
        assert task.status.state == COMPLETED
        assert texts(task.history)[0] == "once"
        assert texts(task.history).count("once") == 1
        assert [text(one) for one in task.artifacts] == ["chunk 2", "end"]
    assert agent.found == [
        (1, "once", [], []),
        (2, "once", ["attempt 1"], ["chunk 1"]),
    ]


async def test_restarted_second_turn_still_has_its_history(sqlite: str) -> None:
    agent = Interrupted()
    tested = worker(agent.handle, on_interruption="restart")
    async with serving(tested, storage=sqlite) as s:
        task = await s.send("ask")
        assert task.status.state == INPUT_REQUIRED
        await s.send("this", task_id=task.id, immediately=True)
        await within(agent.started.wait())
    async with serving(tested, storage=sqlite) as s:
        task = await eventually(s, task.id, COMPLETED, FAILED)
        assert task.status.state == COMPLETED
        assert texts(task.history)[:3] == ["ask", "what?", "this"]
    assert [(attempt, said, history[:2]) for attempt, said, history, _ in agent.found] == [
        (1, "ask", []),
        (1, "this", ["ask", "what?"]),
        (2, "this", ["ask", "what?"]),
    ]


async def test_silent_worker_runs_again_before_its_task_was_ever_seen(sqlite: str) -> None:
    """One that may reply directly, so there is no task yet when the process ends."""
    started, found = asyncio.Event(), []

    async def handle(ctx: TaskContext) -> None:
        found.append(ctx.attempt)
        started.set()
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        if ctx.user_text == "never":
            await ctx.reply_directly("x")
        await ctx.complete("end")

    tested = worker(handle, on_interruption="restart")
    async with a_server(tested, storage=sqlite) as server, connected(server.address) as client:
        call = client.stream("once", context_id="c")
        await within(started.wait())
        assert not (await client.list()).tasks
    call.cancel()
    async with serving(tested, storage=sqlite) as s:
        task = await s.appeared(context_id="c")
        task = await eventually(s, task.id, COMPLETED)
        assert [text(one) for one in task.artifacts] == ["end"]
    assert found == [1, 2]


async def test_misuse_while_the_server_stops_is_no_failure_of_the_task(sqlite: str) -> None:
    """Being cut off is not the agent's fault, whatever it raises then."""
    started = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        if ctx.attempt > 1:
            await ctx.complete("end")
            return
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # contrary to the rules, and without an end

    tested = worker(handle, on_interruption="restart")
    async with serving(tested, storage=sqlite) as s:
        task = await s.send(immediately=True)
        await within(started.wait())
    async with serving(tested, storage=sqlite) as s:
        assert (await eventually(s, task.id, COMPLETED, FAILED)).status.state == COMPLETED


async def test_stream_of_a_restarted_task_begins_with_the_task(sqlite: str) -> None:
    agent, go = Interrupted(), asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        if ctx.attempt > 1:
            await go.wait()
        await agent.handle(ctx)

    tested = worker(handle, on_interruption="restart")
    async with serving(tested, storage=sqlite) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
    async with serving(tested, storage=sqlite) as s:
        stream = s.subscribe(task.id)
        first = await within(stream.read())
        assert [text(one) for one in first.task.artifacts] == ["chunk 1"]
        go.set()
        assert outline(await collect(stream))[-3:] == [
            *("artifact chunk 2", "artifact end", "status COMPLETED"),
        ]
