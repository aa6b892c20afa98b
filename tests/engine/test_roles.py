"""Front ends and workers; and parts that do not go together, which are refused with the remedy."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import create_autospec

import grpc
import pytest

from a2a_grpc import Middleware, ServerCallContext, pb
from a2a_grpc.broker.base import Broker
from a2a_grpc.storage.memory import InMemoryStorage
from tests.servers.nats import NatsServer
from tests.servers.postgres import shared_postgres
from tests.support import (
    COMPLETED,
    Agent,
    Gated,
    a_server,
    a_task,
    chunk,
    collect,
    connected,
    echo,
    outline,
    refused,
    serving,
    status_update,
    take,
    text,
    within,
)


class Opened(Exception):
    """The parts were accepted."""


class Shared(InMemoryStorage[Any]):
    """Has a lease, as a storage has that replicas share."""

    lease = 15.0

    async def __aenter__(self) -> Any:
        raise Opened


def between_processes() -> Broker:
    """A broker that is not in memory; nobody gets as far as using it."""
    broker: Broker = create_autospec(Broker, instance=True)
    return broker


class Leaving(Middleware):
    async def before(self, request: Any, call: ServerCallContext) -> None:
        call.request_context["user"] = "alice"


class Looking(Middleware):
    async def before(self, request: Any, call: ServerCallContext) -> None:
        assert call.method


async def entered(**how: Any) -> None:
    await within(a_server(echo, **how).__aenter__())


@pytest.mark.parametrize("role", ["frontend", "worker"])
@pytest.mark.parametrize(
    "parts",
    [{}, {"storage": Shared()}, {"storage": "sqlite:///x.db"}],
    ids=["none", "store", "sql"],
)
async def test_role_needs_parts_that_processes_share(role: str, parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use postgresql:// and nats://"):
        await entered(role=role, **parts)


async def test_broker_between_processes_needs_such_a_store() -> None:
    with pytest.raises(ValueError, match="needs a store that they share; use postgresql://"):
        await entered(broker=between_processes())


async def test_frontend_takes_no_middleware_that_leaves_something_for_the_agent() -> None:
    parts = {"storage": Shared(), "broker": between_processes()}
    with pytest.raises(ValueError, match="Leaving uses request_context"):
        await entered(role="frontend", middleware=[Looking(), Leaving()], **parts)
    with pytest.raises(Opened):
        await entered(role="frontend", middleware=[Looking()], **parts)
    with pytest.raises(Opened):
        await entered(role="all", middleware=[Leaving()], **parts)


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"role": "both"}, "use all, frontend or worker"),
        ({"lease": 0.5}, "use 1 second or more"),
        ({"concurrency": 0}, "use 1 or more"),
    ],
)
def test_settings_that_can_not_be_are_refused(setting: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        a_server(echo, **setting)


# Front ends and workers as they are.


async def test_front_end_that_stops_lets_calls_end_whose_tasks_run_elsewhere(
    postgres: str, nats_url: str
) -> None:
    agent = Gated()
    parts = {"storage": postgres, "broker": nats_url, "grace": 30.0}
    worker = a_server(agent, role="worker", **parts)
    frontend = a_server(Gated(), role="frontend", **parts)
    async with worker:
        await frontend.__aenter__()
        async with connected(frontend.address) as client:
            stream = client.stream()
            await take(stream, 1)
            stopping = asyncio.create_task(frontend.__aexit__(None, None, None))
            status = await refused(client.call("ListTasks", pb.ListTasksRequest()))
            assert status.code is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(1.2)  # longer than calls get whose tasks run here
            assert not stopping.done()
            agent.go.set()
            assert outline(await collect(stream))[-1:] == ["status COMPLETED"]
            await within(stopping)


async def test_services_that_share_nats_and_no_database_are_kept_apart(
    nats_server: NatsServer,
) -> None:
    broker = nats_server.url().partition("?")[0]
    with shared_postgres().database() as one, shared_postgres().database() as other:
        async with (
            serving(says("one"), storage=one, broker=broker) as first,
            serving(says("other"), storage=other, broker=broker) as second,
        ):
            for _ in range(5):
                # At once: not by way of what is submitted again after a while.
                tasks = await within(asyncio.gather(first.send(), second.send()), 1.5)
                assert [text(task.artifacts[0]) for task in tasks] == ["one", "other"]


def says(word: str) -> Agent:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk(word))
        await queue.enqueue_event(status_update(COMPLETED))

    return Agent(execute)
