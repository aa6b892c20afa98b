"""Many tasks of one Worker, and several Workers behind one port."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_grpc import A2AServer, TaskContext, Worker
from tests.conftest import Serve
from tests.support import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    Gated,
    assert_error,
    assert_invalid,
    collect,
    fold,
    refused,
    request,
    serving,
    text,
    texts,
    within,
)
from tests.worker.workers import raised, worker


async def test_one_worker_keeps_200_tasks_apart(serve: Serve) -> None:
    """All of them are at work at once, in two turns each, and none sees another's."""
    at_work, everybody = 0, asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        nonlocal at_work
        number = ctx.user_text.split()[0]
        if not ctx.history:
            at_work += 1
            if at_work == 200:
                everybody.set()
            await everybody.wait()
            for chunk in range(5):
                await ctx.emit_text_artifact(f"{number}.{chunk} ", append=True)
                await asyncio.sleep(0)
            await ctx.update_context(number)
            await ctx.request_input(f"{number}?")
        else:
            assert await ctx.load_context() == number
            assert [one.text for one in ctx.history] == [number, f"{number}?"]
            (artifact,) = ctx.previous_artifacts
            assert artifact.text == "".join(f"{number}.{chunk} " for chunk in range(5))
            await ctx.complete(f"{number}!")

    async def one(number: int) -> None:
        task = await s.send(f"{number}")
        assert task.status.state == INPUT_REQUIRED
        assert text(task.status.message) == f"{number}?"
        state, artifacts = fold(await collect(s.stream(f"{number} again", task_id=task.id)))
        assert (state, artifacts["final-answer"]) == ("COMPLETED", f"{number}!")

    async with serve(worker(handle)) as s:
        await within(asyncio.gather(*(one(number) for number in range(200))), 60)
        assert (await s.list(status=COMPLETED)).total_size == 200


async def test_worker_never_runs_twice_at_once_for_one_task(serve: Serve) -> None:
    running, most = 0, 0

    async def handle(ctx: TaskContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ctx.send_status()
        await asyncio.sleep(0)
        running -= 1
        await ctx.request_input("more?")

    async with serve(worker(handle)) as s:
        task = await s.send()
        await asyncio.gather(*(s.send(f"{n}", task_id=task.id) for n in range(20)))
    assert most == 1


# Several agents.


class Named(Worker):
    def __init__(self, name: str) -> None:
        self.name = name

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input(f"{self.name}?")
        else:
            await ctx.complete(f"{self.name} for {ctx.call.tenant}")


async def test_agents_behind_one_port_answer_by_tenant_and_after_a_restart(sqlite: str) -> None:
    agents = {"a": Named("A"), "b": Named("B"), "": Named("default")}
    async with serving(agents=agents, storage=sqlite) as s:
        for tenant, said in (("a", "A for a"), ("b", "B for b"), ("", "default for ")):
            task = await s.send(tenant=tenant)
            assert [text(one) for one in task.artifacts] == [said]
            other = "b" if tenant == "a" else "a"
            assert (await s.get(task.id, tenant=tenant)) == task
            assert_error(await refused(s.get(task.id, tenant=other)), "TASK_NOT_FOUND")
        assert_invalid(await refused(s.call("SendMessage", request(tenant="c"))), "tenant")
        asked = await s.send("ask", tenant="b")
        assert text(asked.status.message) == "B?"
    async with serving(agents=agents, storage=sqlite) as s:
        wrong = request("go on", task_id=asked.id, tenant="a")
        assert_error(await refused(s.call("SendMessage", wrong)), "TASK_NOT_FOUND")
        task = await s.send("go on", task_id=asked.id, tenant="b")
        assert [text(one) for one in task.artifacts] == ["B for b"]
        assert texts(task.history) == ["ask", "B?", "go on"]


async def test_forms_of_agents_may_be_mixed() -> None:
    async def function(context: Any) -> str:
        return "function"

    gated = Gated()
    gated.go.set()
    async with serving(agents={"w": Named("W"), "f": function, "x": gated}) as s:
        assert [text(one) for one in (await s.send(tenant="f")).artifacts] == ["function"]
        assert (await s.send(tenant="x")).status.state == COMPLETED


async def test_agents_have_an_on_interruption_of_their_own(
    sqlite: str, caplog: pytest.LogCaptureFixture
) -> None:
    started = {"fail": asyncio.Event(), "restart": asyncio.Event()}

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        if ctx.attempt == 1:
            started[ctx.call.tenant].set()
            await asyncio.Event().wait()
        await ctx.complete()

    agents = {name: worker(handle, on_interruption=name) for name in ("fail", "restart")}
    async with serving(agents=agents, storage=sqlite) as s:
        tasks = {name: await s.send(tenant=name, immediately=True) for name in agents}
        for event in started.values():
            await within(event.wait())
    async with serving(agents=agents, storage=sqlite) as s:

        async def ended(name: str) -> int:
            while (task := await s.get(tasks[name].id, tenant=name)).status.state not in (
                COMPLETED,
                FAILED,
            ):
                pass
            return task.status.state

        assert await within(ended("fail")) == FAILED
        assert await within(ended("restart")) == COMPLETED
    assert raised(caplog) == ""


def test_server_without_an_agent_is_refused() -> None:
    with pytest.raises(TypeError, match="names no agent; give a dict of them, by tenant"):
        A2AServer(agents={})
