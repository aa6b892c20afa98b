"""What the tests of the client share: clients of a test's server, and a server that is no agent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from a2a_grpc import A2AClient, A2AError, EventStream, RetryPolicy, pb
from a2a_grpc.extensions import RETRY_EXTENSION
from tests.client.proxy import Proxy
from tests.support import PATIENCE, Serving, within

FAST = RetryPolicy(attempts=20, initial_backoff=0.01, max_backoff=0.2)
"""Tries again soon, and for long enough for a busy machine."""

LATE = RetryPolicy(attempts=5, initial_backoff=10**6, max_backoff=10**6)
"""Tries again, but so late that nobody lives to see it."""


def a_card(address: str, *, window: float | None = 300.0, **fields: Any) -> pb.AgentCard:
    """The card of an agent there, which deduplicates unless `window` is None."""
    card = pb.AgentCard(name="test", description="An agent.", version="1", **fields)
    card.supported_interfaces.add(url=address, protocol_binding="GRPC", protocol_version="1.0")
    if window is not None:
        extension = card.capabilities.extensions.add(uri=RETRY_EXTENSION)
        extension.params["windowSeconds"] = window
    return card


@asynccontextmanager
async def client_of(s: Serving, **how: Any) -> AsyncIterator[A2AClient]:
    async with A2AClient(s.server.address, **how) as client:
        yield client


@asynccontextmanager
async def behind_proxy(
    s: Serving, *, window: float | None = 300.0, **how: Any
) -> AsyncIterator[tuple[A2AClient, Proxy]]:
    """A client that reaches the server through a proxy, and knows whether it deduplicates."""
    async with Proxy(s.server.address) as proxy:
        how = {"retry": FAST, **how}
        async with A2AClient(a_card(proxy.address, window=window), **how) as client:
            await client.list_tasks()  # it is connected now
            yield client, proxy


async def sent(client: A2AClient, content: Any, **how: Any) -> pb.Task:
    """The Task with which a message is answered."""
    task = await client.send(content, **how)
    assert isinstance(task, pb.Task)
    return task


async def read(stream: EventStream) -> list[pb.StreamResponse]:
    """Everything until the stream ends; fails if that takes too long."""

    async def all_of_it() -> list[pb.StreamResponse]:
        return [event async for event in stream]

    return await within(all_of_it())


async def read_some(stream: EventStream, count: int) -> list[pb.StreamResponse]:
    """The next `count` events."""
    return [await within(anext(stream)) for _ in range(count)]


async def failing(call: Awaitable[Any]) -> A2AError:
    """The error of a call that must fail."""
    try:
        answer = await within(call)
    except A2AError as error:
        return error
    raise AssertionError(f"the call succeeded with {answer!r}")


async def eventually(condition: Callable[[], Any]) -> None:
    """Returns as soon as the condition, which may be async, holds; for what nobody signals."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.001)


class Scripted(grpc.GenericRpcHandler):
    """A server whose answers a test writes: one function for all methods, which are noted."""

    def __init__(self, answer: Any, *, streaming: bool = False) -> None:
        self._answer = answer
        self._streaming = streaming
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method.rpartition("/")[2]

        async def unary(request: bytes, context: Any) -> bytes:
            self.calls.append((method, dict(context.invocation_metadata())))
            found: bytes = await self._answer(method, request, context)
            return found

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            self.calls.append((method, dict(context.invocation_metadata())))
            async for event in self._answer(method, request, context):
                yield event

        if self._streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


@asynccontextmanager
async def scripted(answer: Any, **how: Any) -> AsyncIterator[tuple[Scripted, str]]:
    """A running `Scripted`, and its address."""
    handler = Scripted(answer, **how)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield handler, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def listening(handle: Handle) -> AsyncIterator[str]:
    """The address of a TCP server that handles its connections like this."""
    writers = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await handle(reader, writer)

    server = await asyncio.start_server(noted, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
        await asyncio.sleep(0)  # the transports are gone then
