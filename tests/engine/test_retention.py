"""Tasks that ended long ago are forgotten, others never."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from a2a_grpc import pb
from a2a_grpc.server import A2AServer
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.sql.storage import SqlStorage
from tests.support import (
    Agent,
    Client,
    Gated,
    asking,
    assert_error,
    collect,
    echo,
    outline,
    refused,
    request,
    serving,
    take,
    within,
)


@pytest.fixture(autouse=True)
def swept(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """What each sweep returned, of a server that sweeps all the time."""
    monkeypatch.setattr(A2AServer, "SWEEP_INTERVAL", 0.01)
    found: asyncio.Queue[int] = asyncio.Queue()
    for storage in (InMemoryStorage, SqlStorage):

        async def sweep(self: Any, original: Any = storage.sweep, **before: float) -> int:
            forgotten: int = await original(self, **before)
            found.put_nowait(forgotten)
            return forgotten

        monkeypatch.setattr(storage, "sweep", sweep)
    return found


async def run_to_its_end(s: Client, text: str = "done") -> str:
    """The id of a task that ends; the stream tells it, however soon the task is forgotten."""
    events = await collect(s.stream(text))
    return events[0].task.id


async def forgotten(s: Client, task_id: str) -> None:
    """Wait until the task is."""

    async def ask() -> None:
        while True:
            await s.get(task_id)

    assert_error(await refused(ask()), "TASK_NOT_FOUND")


async def test_finished_task_is_forgotten_and_unfinished_ones_are_not(
    serve: Callable[..., Any],
) -> None:
    gated = Gated()

    async def execute(context: Any, queue: Any) -> None:
        await (gated.execute if context.context_id == "busy" else asking)(context, queue)

    async with serve(Agent(execute), retain_tasks=0.0) as s:
        waiting = await s.send("one")
        stream = s.stream("two", context_id="busy")
        running = (await take(stream, 1))[0].task
        ended = await run_to_its_end(s)
        await forgotten(s, ended)
        # Both are older than the one that is forgotten.
        assert await s.get(waiting.id) == waiting
        assert (await s.list()).total_size == 2
        # They go on as if nothing had happened, and are forgotten in their turn.
        gated.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]
        reader = s.subscribe(waiting.id)
        await take(reader, 1)
        with contextlib.suppress(grpc.aio.AioRpcError):  # the answer may be forgotten by now
            await s.send("done", task_id=waiting.id)
        assert outline(await collect(reader)) == ["status COMPLETED"]
        for task in (running, waiting):
            await forgotten(s, task.id)
        assert (await s.list()).total_size == 0


async def test_task_is_kept_as_long_as_the_settings_say(
    serve: Callable[..., Any], swept: asyncio.Queue[int]
) -> None:
    async with serve(echo, retain_tasks=3600.0) as s:
        task = await s.send()
        while not swept.empty():
            swept.get_nowait()
        for _ in range(3):
            assert await within(swept.get()) == 0
        assert await s.get(task.id) == task


async def test_task_is_kept_for_ever_if_the_settings_say_so(
    serve: Callable[..., Any], swept: asyncio.Queue[int]
) -> None:
    async with serve(echo, retain_tasks=float("inf")) as s:
        task = await s.send()
        for _ in range(3):
            assert await within(swept.get()) == 0
        assert await s.get(task.id) == task


async def test_forgotten_task_is_not_found_whatever_the_call(serve: Callable[..., Any]) -> None:
    async with serve(echo, retain_tasks=0.0) as s:
        task_id = await run_to_its_end(s)
        await forgotten(s, task_id)
        for call in (
            s.call("SendMessage", request(task_id=task_id)),
            s.stream(task_id=task_id),
            s.subscribe(task_id),
            s.subscribe(task_id, call_metadata=(("last-event-id", "1"),)),
            s.cancel(task_id),
            s.call(
                "ListTaskPushNotificationConfigs",
                pb.ListTaskPushNotificationConfigsRequest(task_id=task_id),
            ),
        ):
            assert_error(await refused(call), "TASK_NOT_FOUND")


async def test_forgotten_task_stays_forgotten_after_a_restart(sqlite: str) -> None:
    async with serving(asking, storage=sqlite, retain_tasks=0.0) as s:
        waiting = await s.send("one")
        ended = await run_to_its_end(s)
        await forgotten(s, ended)
    async with serving(asking, storage=sqlite) as s:
        assert_error(await refused(s.get(ended)), "TASK_NOT_FOUND")
        assert await s.get(waiting.id) == waiting


async def test_reader_of_a_task_that_ends_gets_its_end_though_it_is_forgotten(
    serve: Callable[..., Any],
) -> None:
    agent = Gated()
    async with serve(agent, retain_tasks=0.0) as s:
        stream = s.stream()
        task = (await take(stream, 1))[0].task
        reader = s.subscribe(task.id)
        await take(reader, 1)
        agent.go.set()
        await forgotten(s, task.id)
        assert outline(await collect(stream)) == ["status COMPLETED"]
        assert outline(await collect(reader)) == ["status COMPLETED"]


async def test_sweep_that_failed_is_tried_again() -> None:
    class Failing(InMemoryStorage[Any]):
        failed = 0

        async def sweep(self, **before: float) -> int:  # type: ignore[override]
            if self.failed < 2:
                self.failed += 1
                raise OSError("the disk is away")
            return await super().sweep(**before)

    storage = Failing()
    async with serving(echo, storage=storage, retain_tasks=0.0) as s:
        await forgotten(s, await run_to_its_end(s))
        assert storage.failed == 2
        assert outline(await collect(s.stream()))[-1] == "status COMPLETED"
