"""Nothing that the server does waits in the event loop's own thread for the disk or a resolver.

Calls are watched rather than time, which on a busy machine says nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from a2a_grpc import pb
from a2a_grpc.server import A2AServer
from tests.support import (
    CANCELED,
    COMPLETED,
    Agent,
    Gated,
    Serving,
    asking,
    collect,
    concurrently,
    echo,
    message,
    request,
    serving,
    take,
    within,
)

BLOCKING = [
    (socket, "getaddrinfo"),
    (socket, "gethostbyname"),
    (socket, "create_connection"),
    (time, "sleep"),
    (os, "fsync"),
    (os, "fdatasync"),
]


class Watched:
    """The calls that may wait: how many there were in other threads, and where in this one."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.elsewhere = 0
        self.here: list[str] = []

    def note(self, what: str) -> None:
        if threading.get_ident() == self._thread:
            self.here.append(f"{what}\n{''.join(traceback.format_stack(limit=12))}")
        else:
            self.elsewhere += 1


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    found = Watched()

    def watching(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.note(name)
            return function(*args, **kwargs)

        return call

    for module, name in BLOCKING:
        if hasattr(module, name):
            full = f"{module.__name__}.{name}"
            monkeypatch.setattr(module, name, watching(full, getattr(module, name)))
    # A statement may wait for the disk, and a commit does.
    listeners = {
        "before_cursor_execute": lambda *args: found.note(args[2]),
        "commit": lambda _: found.note("COMMIT"),
        "rollback": lambda _: found.note("ROLLBACK"),
    }
    for name, listener in listeners.items():
        event.listen(Engine, name, listener)
    yield found
    for name, listener in listeners.items():
        event.remove(Engine, name, listener)


async def use_everything(s: Serving, hook: str, gated: Gated) -> None:
    """Each method at least once, several at a time."""
    push = pb.TaskPushNotificationConfig(url=hook)
    tasks = await concurrently(*(s.send(str(number), push=push) for number in range(20)))
    await concurrently(*(s.send("done", task_id=task.id) for task in tasks[:10]))
    await concurrently(*(collect(s.stream("done")) for _ in range(10)))
    sent = message("done")
    await s.send(sent)
    await s.send(sent, call_metadata=(("a2a-grpc-retry", "1"),))
    assert (await s.list(page_size=5, include_artifacts=True)).next_page_token
    assert (await s.list(status=COMPLETED)).total_size >= 10
    await s.get(tasks[0].id)
    for method, made in {
        "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig(
            task_id=tasks[-1].id, id="c", url=hook
        ),
        "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest(
            task_id=tasks[-1].id, id="c"
        ),
        "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest(
            task_id=tasks[-1].id
        ),
        "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest(
            task_id=tasks[-1].id, id="c"
        ),
        "GetExtendedAgentCard": pb.GetExtendedAgentCardRequest(),
    }.items():
        await within(s.call(method, made))
    running = await s.send("wait", context_id="busy", immediately=True)
    await within(gated.started.wait())
    for task in (running, tasks[-1]):
        reader = s.subscribe(task.id, call_metadata=(("last-event-id", "0"),))
        await take(reader, 1)
        assert (await s.cancel(task.id)).status.state == CANCELED
        await collect(reader)
    await s.call("SendMessage", request("wait", context_id="busy", immediately=True))


async def test_nothing_blocks_the_event_loop(
    sqlite: str, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(A2AServer, "SWEEP_INTERVAL", 0.01)
    gated, delivered = Gated(), asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        await (gated.execute if context.context_id == "busy" else asking)(context, queue)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        delivered.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as webhook:
        hook = f"http://localhost:{webhook.sockets[0].getsockname()[1]}/"
        how: dict[str, Any] = {
            "storage": sqlite,
            "extended_card": pb.AgentCard(),
            "allow_private_webhooks": True,
            "retain_tasks": 3600.0,
        }
        async with serving(Agent(execute), **how) as s:
            await use_everything(s, hook, gated)
            await within(delivered.wait())
        # What the first one left is found when the next one starts.
        async with serving(Agent(execute), **how) as s:
            assert (await s.list(context_id="busy")).total_size == 2
    assert watched.elsewhere > 1000
    assert not watched.here, watched.here[0]


async def test_blocking_call_would_be_noticed(watched: Watched) -> None:
    async def execute(context: Any, queue: Any) -> None:
        time.sleep(0)  # noqa: ASYNC251  what is to be noticed
        await echo(context, queue)

    async with serving(Agent(execute)) as s:
        await s.send()
    (call,) = watched.here
    assert call.startswith("time.sleep")
    assert "in execute" in call
