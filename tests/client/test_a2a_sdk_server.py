"""A2AClient calls a server of another implementation: that of a2a-sdk, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from a2a_grpc import (
    A2AClient,
    InvalidParamsError,
    StreamInterruptedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
    UnsupportedOperationError,
    pb,
)
from tests.client.proxy import Proxy
from tests.client.support import FAST, eventually, failing, read, read_some, sent
from tests.environments import environment
from tests.interop.test_a2a_sdk_client import REQUIREMENTS, Running, running
from tests.support import CANCELED, COMPLETED, INPUT_REQUIRED, WORKING, fold, outline, text

# The server's environment is made on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

PROGRAM = Path(__file__).with_name("a2a_sdk_server.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    python = environment("a2a-sdk-client", REQUIREMENTS)
    log = tmp_path_factory.mktemp("a2a-sdk") / "stderr"
    with running([python, "-I", PROGRAM], log) as found:
        yield found


@pytest.fixture
async def client(server: Running) -> AsyncIterator[A2AClient]:
    async with A2AClient(server.address, retry=FAST) as found:
        yield found


async def test_send_get_and_list(client: A2AClient) -> None:
    task = await sent(client, "do one two", context_id="listed")
    assert task.status.state == COMPLETED
    assert text(task.artifacts[0]) == "onetwo"
    assert (await client.get_task(task.id)).id == task.id
    page = await client.list_tasks(context_id="listed", include_artifacts=True)
    assert [one.id for one in page.tasks] == [task.id]
    assert [one.id async for one in client.iter_tasks(context_id="listed", page_size=1)] == [
        task.id
    ]
    assert isinstance(await failing(client.get_task("other")), TaskNotFoundError)


async def test_a_direct_message(client: A2AClient) -> None:
    reply = await client.send("reply hello")
    assert isinstance(reply, pb.Message)
    assert text(reply) == "hello"
    assert outline(await read(client.stream("reply hello"))) == ["message hello"]


async def test_streams_and_turns(client: A2AClient) -> None:
    stream = client.stream("ask")
    assert outline(await read(stream))[-1] == "status INPUT_REQUIRED"
    assert stream.sequence == 0
    task = await client.get_task(stream.task_id)
    assert task.status.state == INPUT_REQUIRED
    second = client.stream("do one two", task_id=task.id)
    assert fold(await read(second)) == ("COMPLETED", {"a": "onetwo"})
    assert second.task_id == task.id


async def test_cancel_and_subscribe(client: A2AClient) -> None:
    task = await sent(client, "wait one", return_immediately=True)
    assert task.status.state == WORKING
    stream = client.subscribe(task.id)
    assert outline(await read_some(stream, 1)) == ["task WORKING"]
    assert (await client.cancel_task(task.id)).status.state == CANCELED
    assert outline(await read(stream))[-1] == "status CANCELED"
    assert isinstance(await failing(client.cancel_task(task.id)), TaskNotCancelableError)


async def test_push_configurations(client: A2AClient) -> None:
    task = await sent(client, "ask")
    made = await client.create_push_config(task.id, "https://example.com/hook")
    assert (await client.get_push_config(task.id, made.id)).url == "https://example.com/hook"
    assert [one.id for one in await client.list_push_configs(task.id)] == [made.id]
    await client.delete_push_config(task.id, made.id)
    assert await client.list_push_configs(task.id) == []


async def test_errors(client: A2AClient) -> None:
    assert isinstance(await failing(client.list_tasks(page_size=-1)), InvalidParamsError)
    error = await failing(client.get_card())
    assert isinstance(error, UnsupportedOperationError)
    assert "does not offer its card over gRPC" in error.message


async def test_a_broken_stream_is_told_since_it_can_not_be_taken_up(server: Running) -> None:
    async with (
        Proxy(server.address) as proxy,
        A2AClient(proxy.address, retry=FAST) as client,
    ):
        stream = client.stream("wait one two")
        seen = await read_some(stream, 3)
        assert outline(seen)[1:] == ["artifact one", "artifact two"]
        proxy.cut()
        error = await failing(anext(stream))
        assert isinstance(error, StreamInterruptedError)
        assert (error.task_id, error.sequence) == (stream.task_id, 0)
        # What its text says to do.
        assert (await client.get_task(error.task_id)).status.state == WORKING
        followed = client.subscribe(error.task_id)
        assert outline(await read_some(followed, 1)) == ["task WORKING"]
        proxy.cut()
        assert isinstance(await failing(anext(followed)), StreamInterruptedError)
        await client.cancel_task(error.task_id)


async def test_a_message_is_not_sent_again_to_it(server: Running) -> None:
    async with (
        Proxy(server.address) as proxy,
        A2AClient(proxy.address, retry=FAST) as client,
    ):
        assert await client.list_tasks()
        proxy.hold_answers()
        before = (await _count(server)) + 1
        stream = client.stream("wait once")
        reading = asyncio.create_task(read(stream))

        async def arrived() -> bool:
            return await _count(server) == before

        await eventually(arrived)
        proxy.cut()
        proxy.release_answers()
        error = await failing(reading)
        assert isinstance(error, UnavailableError)
        assert "was not sent again" in error.message
        assert await _count(server) == before


async def _count(server: Running) -> int:
    async with A2AClient(server.address) as client:
        return len([task async for task in client.iter_tasks()])
