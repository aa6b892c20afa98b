"""Calls that are formed or timed awkwardly get the answer that they would get otherwise."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Operation,
)
from tests.support import (
    COMPLETED,
    WORKING,
    Agent,
    a_task,
    asking,
    assert_error,
    assert_invalid,
    echo,
    message,
    refused,
    request,
    serving,
    status_update,
    take,
    texts,
    within,
)

# Messages.


async def test_message_that_refers_to_too_many_tasks_is_refused() -> None:
    async with serving(echo) as s:
        most = [f"t{number}" for number in range(32)]
        assert (await s.send(reference_task_ids=most)).status.state == COMPLETED
        call = s.call("SendMessage", request(reference_task_ids=[*most, "one more"]))
        assert_invalid(await refused(call), "message.reference_task_ids")


async def test_message_is_in_the_task_that_is_returned_at_once_though_somebody_subscribes(
    serve: Callable[..., Any],
) -> None:
    async with serve(asking) as s:
        task = await s.send("one")
        reader = s.subscribe(task.id)
        await take(reader, 1)
        await s.send("two", task_id=task.id)
        await take(reader, 1)
        answer = await s.send("three", task_id=task.id, immediately=True)
        assert "three" in texts(answer.history)
        reader.cancel()


async def test_retry_that_returns_immediately_waits_for_the_task_and_no_longer() -> None:
    started, looked, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Watched(InMemoryStorage):  # type: ignore[type-arg]
        async def load_operation(self, operation_id: str) -> Operation | None:
            if started.is_set():
                looked.set()
            return await super().load_operation(operation_id)

    async def execute(_: Any, queue: Any) -> None:
        started.set()
        await looked.wait()
        await queue.enqueue_event(a_task())
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute), storage=Watched()) as s:
        sent = message("once")
        first = asyncio.ensure_future(s.send(sent))
        await within(started.wait())
        again = await within(
            s.send(sent, immediately=True, call_metadata=(("a2a-grpc-retry", "1"),)), 5
        )
        assert again.status.state == WORKING
        go.set()
        done = await within(first)
        assert (done.id, done.status.state) == (again.id, COMPLETED)


# Page tokens.


def decoded(token: str) -> list[Any]:
    found: list[Any] = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return found


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def with_id(task_id: str) -> Callable[[str], str]:
    def change(token: str) -> str:
        at, _, fingerprint = decoded(token)
        return encoded(json.dumps([at, task_id, fingerprint]).encode())

    return change


AWKWARD_TOKENS: dict[str, Callable[[str], str]] = {
    "lone surrogate": with_id("\ud800"),
    "deep": lambda _: encoded(b"[" * 3000),
    "deeper": lambda _: encoded(b"[" * 200_000),
    "long": with_id("x" * 100_000),
}


@pytest.mark.parametrize("name", AWKWARD_TOKENS)
async def test_awkward_page_token_is_refused(name: str, serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        await s.send()
        await s.send()
        token = AWKWARD_TOKENS[name]((await s.list(page_size=1)).next_page_token)
        call = s.call("ListTasks", pb.ListTasksRequest(page_size=1, page_token=token))
        assert_invalid(await refused(call), "page_token")


# Versions.


@pytest.mark.parametrize("version", ["1" * 4400 + ".0", "1." + "0" * 4400])
async def test_version_of_thousands_of_digits_is_not_supported(version: str) -> None:
    async with serving(echo) as s:
        call = s.raw.ListTasks(
            pb.ListTasksRequest(), metadata=(("a2a-version", version),), timeout=5
        )
        assert_error(await refused(call), "VERSION_NOT_SUPPORTED")
