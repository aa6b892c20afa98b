"""What a client raises: the server's errors as they were, and its own for what is no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from a2a_grpc import (
    A2AClient,
    A2AError,
    DeadlineExceededError,
    FieldViolation,
    InternalError,
    InvalidParamsError,
    NotAnA2AServerError,
    ResourceExhaustedError,
    RetryPolicy,
    UnavailableError,
    UnsupportedOperationError,
    errors,
)
from a2a_grpc.wire.status import abort
from tests.client.support import client_of, failing, listening, read, scripted, sent
from tests.support import Gated, echo, serving, within

NONE = RetryPolicy.none()
TREE = [
    value
    for value in vars(errors).values()
    if isinstance(value, type)
    and issubclass(value, A2AError)
    and value not in (A2AError, errors.ServerError, errors.RetryableError)
]


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)
@pytest.mark.parametrize("how", ["unary", "stream"])
async def test_an_error_of_the_server_is_raised_as_it_was(error: type[A2AError], how: str) -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        await abort(context, error("what is wrong", metadata={"task_id": "t"}))
        return b""

    async def events(method: str, request: bytes, context: Any) -> Any:
        await respond(method, request, context)
        yield b""

    answer: Any = events if how == "stream" else respond
    async with (
        scripted(answer, streaming=how == "stream") as (_, address),
        A2AClient(address, retry=NONE) as client,
    ):
        call: Any = read(client.stream("x")) if how == "stream" else client.get_task("t")
        found = await failing(call)
        assert type(found) is error
        assert found.message == "what is wrong"
        assert found.metadata == {"task_id": "t"}


async def test_violations_name_their_fields() -> None:
    async with serving(echo) as s, client_of(s) as client:
        error = await failing(client.list_tasks(page_size=101))
        assert isinstance(error, InvalidParamsError)
        assert [violation.field for violation in error.violations] == ["page_size"]
        assert isinstance(error.violations[0], FieldViolation)
        error = await failing(client.list_tasks(page_token="nonsense"))
        assert isinstance(error, InvalidParamsError)


async def test_a_time_to_come_back_is_kept() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        await abort(context, ResourceExhaustedError(retry_after=2.5))
        return b""

    async with (
        scripted(respond) as (_, address),
        A2AClient(address, retry=NONE) as client,
    ):
        error = await failing(client.get_task("t"))
        assert isinstance(error, ResourceExhaustedError)
        assert error.retry_after == 2.5


@pytest.mark.parametrize("of", ["call", "client"])
async def test_a_timeout_is_a_timeout_error(of: str) -> None:
    agent = Gated()
    default = 0.1 if of == "client" else None
    async with serving(agent) as s, client_of(s, timeout=default) as client:
        error = await failing(sent(client, "hello", timeout=None if default else 0.1))
        assert isinstance(error, DeadlineExceededError)
        assert isinstance(error, TimeoutError)
        assert s.server.address in error.message
        task = (await client.list_tasks()).tasks[0]
        agent.go.set()
        assert task.id, "the task goes on"


async def test_a_server_that_is_not_there_is_named() -> None:
    async with A2AClient("127.0.0.1:1", retry=NONE) as client:
        for call in (client.get_task("t"), sent(client, "hello"), read(client.stream("hello"))):
            error = await failing(call)
            assert isinstance(error, UnavailableError)
            assert "127.0.0.1:1" in error.message
            assert "refused" in error.message


async def test_a_name_that_there_is_not_is_named() -> None:
    async with A2AClient("nobody.invalid:50051", retry=NONE) as client:
        error = await failing(client.get_task("t"))
        assert isinstance(error, UnavailableError)
        assert "nobody.invalid:50051" in error.message


async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_an_http_1_server_is_no_agent() -> None:
    async with listening(http1) as address, A2AClient(address) as client:
        error = await failing(client.get_task("t"))
        assert isinstance(error, NotAnA2AServerError)
        assert address in error.message


def http2(status: bytes) -> Any:
    """A web server: HTTP/2, and nothing of gRPC."""
    # SETTINGS; then HEADERS of stream 1, its end, with :status as a literal (HPACK, RFC 7541).
    block = b"\x08" + bytes([len(status)]) + status
    answer = len(block).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x01" + block

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        received = b""
        while b"GetTask" not in received and b"te\x08trailers" not in received:
            received += await reader.read(65536)
            if len(received) > 200:
                break
        writer.write(answer)
        await writer.drain()

    return handle


async def test_an_http_2_server_that_knows_no_grpc_is_no_agent() -> None:
    async with listening(http2(b"404")) as address, A2AClient(address, timeout=5) as client:
        error = await failing(client.get_task("t"))
        assert isinstance(error, NotAnA2AServerError), error


async def test_a_proxy_whose_server_is_away_is_unavailable() -> None:
    async with (
        listening(http2(b"503")) as address,
        A2AClient(address, timeout=5, retry=NONE) as client,
    ):
        error = await failing(client.get_task("t"))
        assert isinstance(error, UnavailableError), error


async def test_a_grpc_server_of_another_service_is_no_agent() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with A2AClient(f"127.0.0.1:{port}") as client:
            for call in (client.get_task("t"), read(client.stream("hello"))):
                error = await failing(call)
                assert isinstance(error, NotAnA2AServerError)
                assert "lf.a2a.v1.A2AService" in error.message
            assert isinstance(await failing(client.get_card()), UnsupportedOperationError)
    finally:
        await server.stop(None)


async def test_a_method_that_is_not_implemented_is_unsupported() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")
        return b""

    async with scripted(respond) as (_, address), A2AClient(address) as client:
        error = await failing(client.get_task("t"))
        assert isinstance(error, UnsupportedOperationError)
        assert "GetTask" in error.message


async def test_a_server_that_fails_without_saying_how_is_named() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        raise RuntimeError("boom")

    async with scripted(respond) as (_, address), A2AClient(address) as client:
        error = await failing(client.get_task("t"))
        assert type(error) is InternalError
        assert address in error.message
        assert "UNKNOWN" in error.message


async def test_a_call_that_is_open_when_the_client_is_closed_is_told_so() -> None:
    agent = Gated()
    async with serving(agent) as s:
        async with client_of(s) as client:
            sending = asyncio.create_task(sent(client, "hello"))
            await within(agent.started.wait())
        error = await failing(sending)
        assert isinstance(error, UnavailableError)
        assert "closed" in error.message
        agent.go.set()


async def test_cancelling_a_call_cancels_it() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        sending = asyncio.create_task(sent(client, "hello"))
        await within(agent.started.wait())
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(sending)
        agent.go.set()


async def test_a_client_that_is_not_open_says_so() -> None:
    client = A2AClient("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="async with"):
        await client.get_task("t")
    with pytest.raises(RuntimeError, match="async with"):
        client.stream("hello")
    async with client:
        stream = client.stream("hello")
        with pytest.raises(RuntimeError, match="open"):
            await client.__aenter__()
    with pytest.raises(RuntimeError, match="closed"):
        await client.get_task("t")
    with pytest.raises(RuntimeError, match="closed"):
        await anext(stream)
    with pytest.raises(RuntimeError, match="another"):
        await client.__aenter__()
