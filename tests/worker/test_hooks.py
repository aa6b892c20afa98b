"""Lifecycle hooks: called after the commit, in order, and without any power over the task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_grpc import LifecycleHooks, StateChange, TaskContext, pb
from tests.conftest import Serve
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    collect,
    outline,
    request,
    serving,
    state_name,
    text,
    within,
)
from tests.worker.workers import worker


class Heard:
    """Hooks that note what they hear."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.changes: list[StateChange] = []
        self.hooks = LifecycleHooks(
            on_state_change=self.note("change"),
            on_working=self.note("working"),
            on_turn_end=self.note("turn end"),
            on_terminal=self.note("terminal"),
        )
        self.ended = asyncio.Event()

    def note(self, name: str) -> Any:
        async def hook(change: StateChange) -> None:
            self.log.append((name, state_name(change.state)))
            self.changes.append(change)
            if name == "terminal":
                self.ended.set()

        return hook


async def talk(ctx: TaskContext) -> None:
    """Two turns, with what is no change of state in between."""
    if ctx.user_text == "ask":
        await ctx.send_status("at it")
        await ctx.emit_text_artifact("x")
        await ctx.request_input("what?")
    else:
        await ctx.respond("done")


async def test_hooks_hear_every_change_of_state_in_order(serve: Serve) -> None:
    heard = Heard()
    async with serve(worker(talk), hooks=heard.hooks) as s:
        task = await s.send("ask", context_id="c")
        await s.send("this", task_id=task.id)
        await within(heard.ended.wait())
    assert heard.log == [
        *(("change", "WORKING"), ("working", "WORKING")),
        *(("change", "INPUT_REQUIRED"), ("turn end", "INPUT_REQUIRED")),
        *(("change", "WORKING"), ("working", "WORKING")),
        *(("change", "COMPLETED"), ("terminal", "COMPLETED")),
    ]
    assert {(change.task_id, change.context_id) for change in heard.changes} == {(task.id, "c")}
    said = [text(change.message) if change.message else None for change in heard.changes[::2]]
    assert said == [None, "what?", None, "done"]


async def test_hooks_are_called_after_the_commit(serve: Serve) -> None:
    found: list[pb.TaskState] = []
    called = asyncio.Event()

    async def hook(change: StateChange) -> None:
        found.append((await s.get(change.task_id)).status.state)
        if change.state == COMPLETED:
            called.set()

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("at it")
        await ctx.complete()

    async with serve(worker(handle), hooks=LifecycleHooks(on_terminal=hook)) as s:
        await s.send()
        await within(called.wait())
    assert found == [COMPLETED]


async def test_hook_that_fails_is_logged_and_changes_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    async def failing(change: StateChange) -> None:
        if change.state == WORKING:
            raise RuntimeError("of the hook")
        if change.state == INPUT_REQUIRED:
            raise asyncio.CancelledError
        heard.log.append(("called", state_name(change.state)))

    hooks = LifecycleHooks(on_state_change=failing, on_terminal=heard.note("terminal"))
    async with serve(worker(talk), hooks=hooks) as s:
        task = await s.send("ask")
        assert task.status.state == INPUT_REQUIRED
        events = await collect(s.stream("this", task_id=task.id))
        assert outline(events)[1:] == ["status WORKING", "status COMPLETED"]
        await within(heard.ended.wait())
    assert heard.log == [("called", "COMPLETED"), ("terminal", "COMPLETED")]
    assert caplog.text.count("a hook failed for task") == 2
    assert caplog.text.count("RuntimeError: of the hook") == 2
    assert caplog.text.count("a hook was cancelled for task") == 1


async def test_slow_hook_holds_nobody_up_and_is_waited_for_at_the_end(serve: Serve) -> None:
    go, done = asyncio.Event(), []

    async def slow(change: StateChange) -> None:
        await go.wait()
        done.append(change.state)

    async with serve(worker(talk), hooks=LifecycleHooks(on_terminal=slow)) as s:
        for _ in range(3):
            assert (await s.send("hi")).status.state == COMPLETED
        assert done == []
        go.set()
    assert done == [COMPLETED] * 3


async def test_hook_that_never_ends_does_not_stop_the_server_from_stopping(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from a2a_grpc.hooks import HookRunner

    monkeypatch.setattr(HookRunner, "PATIENCE", 0.05)
    deaf, go = [], asyncio.Event()

    async def never(change: StateChange) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                deaf.append(change.state)

    async with (
        asyncio.timeout(5),
        serving(worker(talk), hooks=LifecycleHooks(on_terminal=never)) as s,
    ):
        await s.send("hi")
    assert deaf == [COMPLETED]
    assert "hooks that did not end in time, and were cancelled: 1" in caplog.text
    go.set()
    await asyncio.sleep(0)


async def test_hooks_that_are_called_count_among_those_that_wait(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from a2a_grpc.hooks import HookRunner

    monkeypatch.setattr(HookRunner, "MAX_DUE", 2)
    go, called = asyncio.Event(), []

    async def slow(change: StateChange) -> None:
        called.append(change.task_id)
        await go.wait()

    async with serving(worker(talk), hooks=LifecycleHooks(on_terminal=slow)) as s:
        tasks = [(await s.send("hi")).id for _ in range(3)]
        go.set()
    assert called == tasks[:2]
    assert f"no hook is called for task {tasks[2]}: 2 changes wait already" in caplog.text


async def test_hooks_hear_of_failures_and_cancellations(serve: Serve) -> None:
    heard = Heard()

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "fail":
            raise RuntimeError("of the agent")
        if ctx.user_text == "ask":
            await ctx.request_input("what?")
        else:
            await ctx.send_status()
            await asyncio.Event().wait()

    async with serve(worker(handle), hooks=heard.hooks) as s:
        assert (await s.send("fail")).status.state == FAILED
        await s.cancel((await s.send("ask")).id)  # while no turn runs
        task = await s.send("wait", immediately=True)
        assert (await s.cancel(task.id)).status.state == CANCELED
    ends = [entry for entry in heard.log if entry[0] == "terminal"]
    assert ends == [("terminal", name) for name in ("FAILED", "CANCELED", "CANCELED")]


async def test_direct_reply_is_no_change_of_state() -> None:
    heard = Heard()

    async def handle(ctx: TaskContext) -> None:
        await ctx.reply_directly("hi")

    async with serving(worker(handle), hooks=heard.hooks) as s:
        await s.call("SendMessage", request())
    assert heard.log == []


@pytest.mark.parametrize("name", ["on_state_change", "on_working", "on_turn_end", "on_terminal"])
def test_what_is_no_hook_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be an async function, not 'x'"):
        LifecycleHooks(**{name: "x"})
