"""Servers and proxies that break the protocol: a typed error, and never a gap, a double, a hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2a_grpc import (
    A2AClient,
    InvalidAgentResponseError,
    RetryPolicy,
    StreamInterruptedError,
    UnavailableError,
    pb,
)
from a2a_grpc.subscription import Streamed
from a2a_grpc.wire.status import abort
from tests.client.support import FAST, a_card, failing, listening, read, read_some, scripted
from tests.support import COMPLETED, WORKING, a_task, chunk, outline, status_update

GARBAGE = b"\xff\xff\xff"


def event(sequence: int, payload: Any = None, *, reset: bool = False) -> bytes:
    """An event with this number (0 for none); a Task unless told otherwise."""
    if payload is None:
        found = pb.StreamResponse(task=a_task(WORKING, id="t"))
    elif isinstance(payload, pb.TaskStatusUpdateEvent):
        found = pb.StreamResponse(status_update=payload)
    else:
        found = pb.StreamResponse(artifact_update=payload)
    return Streamed(sequence, found.SerializeToString(), reset).stamped()


# Answers that are none.


async def test_an_answer_that_can_not_be_parsed_is_an_error() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        return GARBAGE

    async with scripted(respond) as (server, address), A2AClient(address, retry=FAST) as client:
        for call in (client.get_task("t"), client.send("hello"), client.list_tasks()):
            assert isinstance(await failing(call), InvalidAgentResponseError)
        assert len(server.calls) == 3, "not tried again"


async def test_an_event_that_can_not_be_parsed_ends_the_stream_with_an_error() -> None:
    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield event(1)
        yield GARBAGE
        await asyncio.sleep(60)

    async with (
        scripted(respond, streaming=True) as (_, address),
        A2AClient(address, retry=FAST) as client,
    ):
        stream = client.stream("hello")
        await read_some(stream, 1)
        assert isinstance(await failing(anext(stream)), InvalidAgentResponseError)
        assert await read(stream) == []


async def test_an_answer_to_a_message_without_task_and_message_is_an_error() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        return b""

    async with scripted(respond) as (_, address), A2AClient(address, retry=FAST) as client:
        assert isinstance(await failing(client.send("hello")), InvalidAgentResponseError)


# Sequence numbers that lie.


@pytest.mark.parametrize("wrong", [2, 1, 4, 0, 2**60], ids=str)
@pytest.mark.parametrize("resumed", [False, True])
async def test_an_event_that_is_not_the_next_one_is_told(wrong: int, resumed: bool) -> None:
    """Event 2 was the last: a double, an older one, one after a gap, one without a number."""

    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield event(2 if method == "SubscribeToTask" else 1)
        if method != "SubscribeToTask":
            yield event(2, chunk("a"))
            if resumed:
                await abort(context, UnavailableError())
        yield event(wrong, chunk("b"))
        await asyncio.sleep(60)

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address), retry=FAST) as client,
    ):
        stream = client.stream("hello")
        await read_some(stream, 2)
        error = await failing(anext(stream))
        assert isinstance(error, StreamInterruptedError)
        assert (error.task_id, error.sequence) == ("t", 2)
        assert len(server.calls) == 1 + resumed


async def test_only_a_whole_task_may_replace_what_came_before() -> None:
    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield event(1)
        yield event(2, chunk("a"), reset=True)
        yield event(9, reset=True)
        yield event(10, status_update(COMPLETED))

    async with (
        scripted(respond, streaming=True) as (_, address),
        A2AClient(address, retry=FAST) as client,
    ):
        stream = client.stream("hello", history_length=0)
        seen = [(stream.sequence, stream.is_reset) async for _ in stream]
        assert seen == [(1, False), (2, False), (9, True), (10, False)]


# Connections that hold, and bring nothing.


async def test_tries_that_take_long_and_bring_nothing_are_bounded() -> None:
    """As those to a host that swallows what is sent to it, or to a proxy in front of nothing."""
    policy = RetryPolicy(stream_patience=0.2, initial_backoff=0.001, max_backoff=0.01)

    async def respond(method: str, request: bytes, context: Any) -> Any:
        if len(server.calls) == 1:
            yield event(1)
        else:
            await asyncio.sleep(2 * policy.max_backoff)
        await abort(context, UnavailableError())

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address), retry=policy) as client,
    ):
        stream = client.stream("hello")
        await read_some(stream, 1)
        assert isinstance(await failing(anext(stream)), StreamInterruptedError)
        resumed = len(server.calls)
        assert 2 <= resumed <= 2 + policy.stream_patience / (2 * policy.max_backoff)
        await failing(anext(client.subscribe("t")))
        assert len(server.calls) == resumed + policy.attempts


# Proxies that end a stream in the middle.


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


@asynccontextmanager
async def ending(ends: asyncio.Queue[Any]) -> AsyncIterator[str]:
    """A server in plain HTTP/2 whose calls get the head of a task, and end as the next of `ends`.

    An end makes a frame of the number of the HTTP/2 stream.
    """

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)  # the preface
        writer.write(frame(4, 0, 0, b""))  # SETTINGS
        while head := await reader.read(1):
            head += await reader.readexactly(8)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind != 0 or not flags & 1:
                continue  # not the end of a request
            # :status 200, then content-type as a literal (HPACK, RFC 7541).
            writer.write(frame(1, 4, stream, b"\x88\x0f\x10\x10application/grpc"))
            data = event(1)
            writer.write(frame(0, 0, stream, b"\x00" + len(data).to_bytes(4, "big") + data))
            writer.write((await ends.get())(stream))

    async with listening(handle) as address:
        yield address


def reset(code: int) -> Any:
    return lambda stream: frame(3, 0, stream, code.to_bytes(4, "big"))


def truncated(stream: int) -> bytes:
    """END_STREAM without trailers."""
    return frame(0, 1, stream, b"")


def completed(stream: int) -> bytes:
    data = event(2, status_update(COMPLETED))
    # Then grpc-status 0, as a literal with a new name.
    return frame(0, 0, stream, b"\x00" + len(data).to_bytes(4, "big") + data) + frame(
        1, 5, stream, b"\x00\x0bgrpc-status\x010"
    )


ENDS = {
    **{f"reset-{code}": reset(code) for code in (0, 2, 7, 8)},
    "truncated": truncated,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_stream_that_a_proxy_ends_is_taken_up_again(end: Any) -> None:
    """RST_STREAM: no error, internal error, refused, canceled; or no trailers."""
    ends: asyncio.Queue[Any] = asyncio.Queue()
    async with ending(ends) as address, A2AClient(a_card(address), retry=FAST) as client:
        stream = client.stream("hello")
        assert outline(await read_some(stream, 1)) == ["task WORKING"]
        for one in (end, end, completed):  # what comes before an end may be lost with it
            ends.put_nowait(one)
        assert outline(await read(stream)) == ["status COMPLETED"]
        assert stream.reconnects >= 1
