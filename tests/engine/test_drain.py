"""Stopping the server (promise 10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from a2a_grpc import pb
from tests.support import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    Agent,
    Client,
    Gated,
    a_server,
    a_task,
    asking,
    assert_error,
    chunk,
    collect,
    connected,
    echo,
    outline,
    refused,
    request,
    status_update,
    take,
    text,
    within,
)

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


class Stopping:
    """A running server that the test stops when it likes."""

    def __init__(self, client: Client, stop: asyncio.Event, stopped: asyncio.Task[None]) -> None:
        self.client = client
        self._stop = stop
        self.stopped = stopped

    async def begin(self) -> None:
        """Begin to stop; returns when the server's health says so."""
        self._stop.set()
        health = health_pb2_grpc.HealthStub(self.client.channel)
        async with asyncio.timeout(5):
            while (
                await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
            ).status == SERVING:
                pass

    async def over(self) -> None:
        self._stop.set()
        await within(asyncio.shield(self.stopped))


@asynccontextmanager
async def stopping(agent: Any, **how: Any) -> AsyncIterator[Stopping]:
    server = a_server(agent, **how)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def run() -> None:
        async with server:
            started.set_result(server.address)
            await stop.wait()

    running = asyncio.create_task(run())
    await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    try:
        async with connected(await started) as client:
            yield Stopping(client, stop, running)
    finally:
        stop.set()
        await within(running)


async def test_health_turns_not_serving_for_everybody_who_watches() -> None:
    agent = Gated()
    async with stopping(agent, grace=5) as s:
        task = s.client.stream()
        await take(task, 1)
        health = health_pb2_grpc.HealthStub(s.client.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="lf.a2a.v1.A2AService"))
        assert (await within(watch.read())).status == SERVING
        await s.begin()
        assert (await within(watch.read())).status == NOT_SERVING
        agent.go.set()


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage", "GetTask", "ListTasks"])
async def test_new_calls_are_unavailable_and_may_be_retried(method: str) -> None:
    agent = Gated()
    async with stopping(agent, grace=5) as s:
        running = s.client.stream()
        await take(running, 1)
        await s.begin()
        requests = {
            "GetTask": pb.GetTaskRequest(id="x"),
            "ListTasks": pb.ListTasksRequest(),
        }
        status = await refused(s.client.call(method, requests.get(method, request())))
        assert_error(status, "UNAVAILABLE")
        assert status.retry_after is not None
        assert len(agent.contexts) == 1
        agent.go.set()


async def test_running_task_ends_within_grace_and_everybody_hears_of_it(store: str) -> None:
    agent = Gated()
    async with stopping(agent, storage=store, grace=5) as s:
        blocked = s.client.call("SendMessage", request(context_id="c"))
        task = await s.client.appeared(context_id="c")
        reader = s.client.subscribe(task.id)
        await take(reader, 1)
        streamed = s.client.stream()
        await take(streamed, 1)
        await s.begin()
        agent.go.set()
        assert (await within(blocked)).task.status.state == COMPLETED
        assert outline(await collect(reader)) == ["status COMPLETED"]
        assert outline(await collect(streamed)) == ["status COMPLETED"]
        await s.over()


async def test_large_answer_of_a_task_that_ends_within_grace_arrives_whole(store: str) -> None:
    agent = Gated()

    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        agent.started.set()
        await agent.go.wait()
        for number in range(100):
            await queue.enqueue_event(chunk("x" * 50_000, f"{number}"))
        await queue.enqueue_event(status_update(COMPLETED))

    async with stopping(Agent(execute), storage=store, grace=5) as s:
        streamed = s.client.stream()
        await take(streamed, 1)
        await s.begin()
        agent.go.set()
        assert len(await collect(streamed)) == 101


async def test_drain_takes_no_longer_than_the_last_task() -> None:
    agent = Gated()
    async with stopping(agent, grace=30) as s:
        streamed = s.client.stream()
        await take(streamed, 1)
        await s.begin()
        began = time.monotonic()
        agent.go.set()
        await s.over()
        assert time.monotonic() - began < 3


async def test_idle_server_stops_at_once() -> None:
    async with stopping(echo, grace=30) as s:
        await s.client.send()
        began = time.monotonic()
        await s.over()
        assert time.monotonic() - began < 3


async def test_what_is_left_after_grace_fails_and_says_why(store: str) -> None:
    agent = Gated()
    # As long as the grace, up to a second, callers get to read the end.
    async with stopping(agent, storage=store, grace=0.5) as s:
        blocked = s.client.call("SendMessage", request())
        await within(agent.started.wait())
        streamed = s.client.stream()
        await take(streamed, 1)
        await s.over()
        await within(agent.cancelled.wait())
        answer = (await within(blocked)).task
        assert answer.status.state == FAILED
        assert text(answer.status.message)
        assert outline(await collect(streamed)) == ["status FAILED"]


async def test_what_is_left_is_failed_in_the_store(sqlite: str) -> None:
    agent = Gated()
    async with stopping(agent, storage=sqlite, grace=0.05) as s:
        task = await s.client.send(immediately=True)
        await s.over()
    async with stopping(echo, storage=sqlite) as s:
        found = await s.client.get(task.id)
        assert found.status.state == FAILED
        assert text(found.status.message)


async def test_what_is_left_runs_again_if_the_agent_says_so(sqlite: str) -> None:
    agent = Gated()
    attempts: list[int] = []

    async def again(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        await queue.enqueue_event(chunk("second life"))
        await queue.enqueue_event(status_update(COMPLETED))

    first = Agent(agent.execute, on_interruption="restart")
    async with stopping(first, storage=sqlite, grace=0.05) as s:
        task = await s.client.send("once", immediately=True)
        await s.over()
        await within(agent.cancelled.wait())
    async with stopping(Agent(again, on_interruption="restart"), storage=sqlite) as s:
        async with asyncio.timeout(5):
            while (found := await s.client.get(task.id)).status.state != COMPLETED:
                pass
        assert [text(artifact) for artifact in found.artifacts] == ["second life"]
        assert [text(m) for m in found.history] == ["once"]
        assert attempts == [2]


async def test_being_handed_back_is_no_failed_attempt(sqlite: str) -> None:
    """However often a long task is, it is not given up; its agent knows that it ran before."""
    attempts: list[int] = []
    begun = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        begun.set()
        if context.attempt == 5:
            await queue.enqueue_event(status_update(COMPLETED))
        else:
            await asyncio.Event().wait()

    agent = Agent(execute, on_interruption="restart")
    async with stopping(agent, storage=sqlite, grace=0.02, max_attempts=2) as s:
        task = await s.client.send("long", immediately=True)
        await s.over()
    for _ in range(3):
        begun.clear()
        async with stopping(agent, storage=sqlite, grace=0.02, max_attempts=2) as s:
            await within(begun.wait())
            await s.over()
    async with stopping(agent, storage=sqlite, max_attempts=2) as s:
        async with asyncio.timeout(5):
            while (await s.client.get(task.id)).status.state != COMPLETED:
                pass
    assert attempts == [1, 2, 3, 4, 5]


async def test_waiting_messages_of_an_interrupted_task_are_not_lost(sqlite: str) -> None:
    """They were acknowledged: after the restart each of them runs, in order, at attempt 1."""
    agent = Gated()
    seen: list[tuple[str, int]] = []

    async def again(context: Any, queue: Any) -> None:
        seen.append((context.get_user_input(), context.attempt))
        end = COMPLETED if context.get_user_input() == "3" else INPUT_REQUIRED
        await queue.enqueue_event(status_update(end))

    first = Agent(agent.execute, on_interruption="restart")
    async with stopping(first, storage=sqlite, grace=0.05) as s:
        task = await s.client.send("0", immediately=True)
        for number in ("1", "2", "3"):
            await s.client.send(number, task_id=task.id, immediately=True)
        await s.over()
    async with stopping(Agent(again, on_interruption="restart"), storage=sqlite) as s:
        async with asyncio.timeout(5):
            while (await s.client.get(task.id)).status.state != COMPLETED:
                pass
    assert seen == [("0", 2), ("1", 1), ("2", 1), ("3", 1)]


async def test_agent_that_ignores_everything_does_not_keep_the_server(store: str) -> None:
    release, over = asyncio.Event(), asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        over.set()

    try:
        async with stopping(Agent(execute), storage=store, grace=0.5, cancel_timeout=0.1) as s:
            streamed = s.client.stream()
            await take(streamed, 1)
            began = time.monotonic()
            await s.over()
            assert time.monotonic() - began < 4
            assert outline(await collect(streamed)) == ["status FAILED"]
    finally:
        release.set()
    await within(over.wait())


async def test_subscription_to_a_waiting_task_ends_with_a_status_that_clients_retry() -> None:
    async with stopping(asking, grace=0.05) as s:
        task = await s.client.send()
        reader = s.client.subscribe(task.id)
        await take(reader, 1)
        await s.over()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await collect(reader)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_waiting_task_survives_a_restart_untouched(sqlite: str) -> None:
    async with stopping(asking, storage=sqlite) as s:
        task = await s.client.send("one")
        assert task.status.state == INPUT_REQUIRED
    async with stopping(asking, storage=sqlite) as s:
        assert await s.client.get(task.id) == task
        done = await s.client.send("done", task_id=task.id)
        assert done.status.state == COMPLETED
        assert [text(m) for m in done.history] == ["one", "what else?", "done"]


async def test_task_can_be_canceled_while_the_server_drains() -> None:
    agent = Gated()
    called = asyncio.Event()
    go = asyncio.Event()

    async def cancel(context: Any, queue: Any) -> None:
        called.set()
        await go.wait()

    async with stopping(Agent(agent.execute, cancel), grace=5) as s:
        task = await s.client.send(immediately=True)
        await within(agent.started.wait())
        canceling = s.client.call("CancelTask", pb.CancelTaskRequest(id=task.id))
        waiting = asyncio.ensure_future(canceling)
        await within(called.wait())
        await s.begin()
        go.set()
        assert (await within(waiting)).id == task.id


async def test_taken_port_is_an_error() -> None:
    async with a_server(echo) as server:
        other = a_server(echo, port=server.port)
        with pytest.raises(OSError, match=str(server.port)):
            await within(other.__aenter__())


async def test_server_that_fails_to_start_leaves_nothing_open(sqlite: str) -> None:
    async with a_server(echo) as server:
        with pytest.raises(OSError, match="port"):
            await within(a_server(echo, port=server.port, storage=sqlite).__aenter__())
    async with stopping(echo, storage=sqlite) as s:
        assert (await s.client.send()).status.state == COMPLETED
