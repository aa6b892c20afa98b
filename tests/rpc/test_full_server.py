"""A full server refuses messages, says when to come back, and serves the rest (promise 4)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.values import Stranded
from tests.support import (
    CANCELED,
    COMPLETED,
    PATIENCE,
    WORKING,
    Agent,
    Gated,
    Serving,
    Status,
    asking,
    assert_error,
    collect,
    echo,
    outline,
    refused,
    request,
    serving,
    status_of,
    take,
    texts,
    within,
)

METHODS = ("SendMessage", "SendStreamingMessage")


def opened(store: str) -> AnyStorage:
    return InMemoryStorage() if store == "memory:" else SqlStorage(store)


def small_broker() -> InMemoryBroker:
    """Room for one operation that runs and one that waits."""
    return InMemoryBroker(max_queued=1, max_unacknowledged=1)


async def left_for_a_restart(storage: AnyStorage) -> list[Stranded]:
    """What a process would run that opens the storage next."""
    async with storage:
        return await storage.stranded_operations(10)


async def error_of(call: Any) -> Status | None:
    """The error with which a call ends, None if it succeeds."""
    try:
        await (collect(call) if hasattr(call, "__aiter__") else call)
    except grpc.aio.AioRpcError as error:
        return status_of(error)
    return None


class Overfull:
    """Four messages at once, "0" to "3", for the one place that is left.

    `status` is the error of each that was refused; `waiting` is the text of the one that was not.
    """

    def __init__(self, s: Serving, method: str = "SendMessage") -> None:
        self._calls = {
            asyncio.ensure_future(error_of(s.call(method, request(text)))): text for text in "0123"
        }
        self.status: dict[str, Status] = {}
        self.waiting = ""

    async def full(self) -> None:
        """Wait until there is no place left."""
        pending = set(self._calls)
        while len(pending) > 1:
            done, pending = await asyncio.wait(
                pending, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            assert done, "more than one of them waits"
            for call in done:
                status = call.result()
                assert status is not None
                self.status[self._calls[call]] = status
        (last,) = pending
        self.waiting = self._calls[last]

    async def over(self) -> None:
        """Wait until the one that waits has succeeded."""
        assert await within(asyncio.gather(*self._calls)) == [
            self.status.get(text) for text in self._calls.values()
        ]


@pytest.mark.parametrize("method", METHODS)
async def test_full_broker_refuses_and_what_it_refused_never_runs(method: str, store: str) -> None:
    agent, storage = Gated(), opened(store)
    async with serving(agent, storage=storage, broker=small_broker()) as s:
        await s.send("first", immediately=True)
        messages = Overfull(s, method)
        await messages.full()
        for status in messages.status.values():
            assert_error(status, "RESOURCE_EXHAUSTED")
            assert status.retry_after == 1.0
        agent.go.set()
        await messages.over()
        assert (await s.send("last")).status.state == COMPLETED
        ran = ["first", messages.waiting, "last"]
        assert [context.get_user_input() for context in agent.contexts] == ran
        assert (await s.list()).total_size == 3
    assert await left_for_a_restart(storage) == []


async def test_server_with_a_full_broker_serves_everything_else(store: str) -> None:
    agent = Gated()
    async with serving(agent, storage=store, broker=small_broker()) as s:
        stream = s.stream("first")
        task = (await take(stream, 1))[0].task
        messages = Overfull(s)
        await messages.full()
        assert (await s.get(task.id)).status.state == WORKING
        assert (await s.list()).total_size == 1
        reader = s.subscribe(task.id)
        assert outline(await take(reader, 1)) == ["task WORKING"]
        # To cancel is what makes room.
        assert (await s.cancel(task.id)).status.state == CANCELED
        assert outline(await collect(reader)) == outline(await collect(stream))
        agent.go.set()
        await messages.over()


async def test_message_that_a_full_broker_refused_leaves_its_task_as_it_was(store: str) -> None:
    agent = Gated()

    async def execute(context: Any, queue: Any) -> None:
        await (agent.execute if context.context_id == "busy" else asking)(context, queue)

    async with serving(Agent(execute), storage=store, broker=small_broker()) as s:
        task = await s.send("one")
        await s.send(context_id="busy", immediately=True)
        messages = Overfull(s)
        await messages.full()
        call = s.call("SendMessage", request("two", task_id=task.id))
        assert_error(await refused(call), "RESOURCE_EXHAUSTED")
        assert await s.get(task.id) == task
        agent.go.set()
        await messages.over()
        done = await s.send("done", task_id=task.id)
        assert texts(done.history) == ["one", "what else?", "done"]


@pytest.mark.parametrize("method", METHODS)
async def test_full_store_refuses_and_what_it_refused_never_runs(method: str) -> None:
    agent, storage = Gated(), InMemoryStorage(max_tasks=2)  # a task, and the message it works on
    async with serving(agent, storage=storage) as s:
        stream = s.stream("first")
        task = (await take(stream, 1))[0].task
        status = await refused(s.call(method, request("too many")))
        assert_error(status, "RESOURCE_EXHAUSTED")
        assert status.retry_after is not None
        assert (await s.get(task.id)).status.state == WORKING
        assert (await s.list()).total_size == 1
        agent.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]
        assert (await s.send("last")).status.state == COMPLETED
        assert [context.get_user_input() for context in agent.contexts] == ["first", "last"]
    assert await left_for_a_restart(storage) == []


async def test_task_in_a_full_store_can_be_canceled() -> None:
    async with serving(Gated(), storage=InMemoryStorage(max_tasks=2)) as s:
        task = await s.send(immediately=True)
        assert_error(await refused(s.call("SendMessage", request())), "RESOURCE_EXHAUSTED")
        assert (await s.cancel(task.id)).status.state == CANCELED
        await s.send(immediately=True)


async def test_full_store_forgets_the_tasks_that_ended_first() -> None:
    async with serving(echo, storage=InMemoryStorage(max_tasks=3)) as s:
        tasks = [await s.send(str(number)) for number in range(5)]
        for task in tasks[:2]:
            call = s.get(task.id)
            assert_error(await refused(call), "TASK_NOT_FOUND")
        for task in tasks[2:]:
            assert await s.get(task.id) == task
