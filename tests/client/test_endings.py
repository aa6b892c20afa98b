"""How calls and streams end before their time: closed, dropped, cancelled; nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from a2a_grpc import A2AClient, ClientCall, UnavailableError, pb
from a2a_grpc.client.errors import ClientClosedError
from a2a_grpc.wire.status import abort
from tests.client.support import (
    FAST,
    LATE,
    a_card,
    behind_proxy,
    client_of,
    eventually,
    failing,
    read,
    read_some,
    scripted,
)
from tests.client.test_streams import Steps, numbers, whole
from tests.support import (
    COMPLETED,
    WORKING,
    Agent,
    a_task,
    connected,
    fold,
    serving,
    status_update,
    within,
)


class Held:
    """Answers every call with a Task, and holds it open then; tells when a call is over."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, method: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
        context.add_done_callback(lambda _: self.ended.set())
        yield pb.StreamResponse(task=a_task(WORKING, id="t")).SerializeToString()
        self.begun.set()
        await asyncio.Event().wait()


async def refusing(method: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
    """Is never there, and offers no card."""
    if method == "GetAgentCard":
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    await abort(context, UnavailableError())
    yield b""


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels the task and sees it end so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)


# The client is closed.


@pytest.mark.parametrize("how", ["read", "send", "stream"])
async def test_a_call_that_waits_for_its_next_try_ends_with_the_client(how: str) -> None:
    async with scripted(refusing, streaming=True) as (server, address):
        async with A2AClient(a_card(address), retry=LATE) as client:
            calls: dict[str, Any] = {
                "read": lambda: client.get_task("t"),
                "send": lambda: client.send("hello"),
                "stream": lambda: read(client.stream("hello")),
            }
            calling = asyncio.create_task(calls[how]())
            await eventually(lambda: server.calls)
        assert isinstance(await failing(calling), ClientClosedError)


@pytest.mark.parametrize("how", ["read", "stream"])
async def test_closing_the_client_ends_its_calls_on_a_channel_that_was_given(how: str) -> None:
    held = Held()
    async with (
        scripted(held, streaming=True) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        async with A2AClient(address, channel=channel) as client:
            call: Any = client.get_task("t") if how == "read" else read(client.stream("hello"))
            calling = asyncio.create_task(call)
            await within(held.begun.wait())
        assert isinstance(await failing(calling), ClientClosedError)
        await within(held.ended.wait())


@pytest.mark.parametrize("how", ["read", "stream"])
@pytest.mark.parametrize("given", [False, True], ids=["own channel", "given channel"])
async def test_nothing_is_sent_once_the_client_is_closed(how: str, given: bool) -> None:
    """Also not what waited for its token until then."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def token() -> str:
        asked.set()
        await go.wait()
        return "late"

    async with scripted(refusing, streaming=True) as (server, address), connected(address) as other:
        channel = other.channel if given else None
        async with A2AClient(address, token=token, channel=channel, retry=FAST) as client:
            call: Any = client.get_task("t") if how == "read" else read(client.stream("hello"))
            calling = asyncio.create_task(call)
            await within(asked.wait())
        go.set()
        assert isinstance(await failing(calling), ClientClosedError)
        assert not server.calls


# A stream is closed, or dropped.


async def test_a_stream_that_is_dropped_ends_without_waiting_for_the_garbage_collector() -> None:
    held = Held()
    async with (
        scripted(held, streaming=True) as (_, address),
        A2AClient(address) as client,
    ):
        gc.disable()
        try:
            async for _event in client.stream("hello"):
                break
            await within(held.ended.wait())
        finally:
            gc.enable()


async def test_a_stream_that_is_closed_before_it_is_sent_is_not_waited_for() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def token() -> str:
        asked.set()
        await go.wait()
        return "late"

    held = Held()
    async with (
        scripted(held, streaming=True) as (_, address),
        A2AClient(address, token=token) as client,
    ):
        stream = client.stream("hello")
        reading = asyncio.create_task(read(stream))
        await within(asked.wait())
        await stream.aclose()
        go.set()
        assert await within(reading) == []


class Leaving:
    """Notes that it was left."""

    def __init__(self, name: str, left: list[str]) -> None:
        self._name = name
        self._left = left

    async def intercept_stream(
        self, call: ClientCall, proceed: Any
    ) -> AsyncIterator[pb.StreamResponse]:
        try:
            async for event in proceed(call):
                yield event
        finally:
            self._left.append(self._name)


async def test_leaving_a_stream_leaves_all_its_interceptors_the_outermost_first() -> None:
    left: list[str] = []
    interceptors = [Leaving(name, left) for name in "abc"]
    async with (
        scripted(Held(), streaming=True) as (_, address),
        A2AClient(address, interceptors=interceptors) as client,
    ):
        async with client.stream("hello") as stream:
            await read_some(stream, 1)
        assert left == ["a", "b", "c"]


async def test_a_stream_with_interceptors_that_is_closed_elsewhere_ends_for_its_reader() -> None:
    left: list[str] = []
    async with (
        scripted(Held(), streaming=True) as (_, address),
        A2AClient(address, interceptors=[Leaving("a", left), Leaving("b", left)]) as client,
    ):
        stream = client.stream("hello")
        await read_some(stream, 1)
        reading = asyncio.create_task(read(stream))
        await asyncio.sleep(0)  # it waits for the next event now
        await stream.aclose()
        assert await within(reading) == []
        assert left == ["b", "a"]


async def test_two_readers_of_one_stream_are_refused() -> None:
    """Each would get some of the events."""
    agent = Steps()
    async with serving(agent) as s, client_of(s) as client:
        stream = client.stream("hello")
        seen = await read_some(stream, 1)
        first = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task is reading"):
            await anext(stream)
        agent.step(*numbers(2))
        agent.finish()
        assert fold(seen + await within(first)) == ("COMPLETED", {"a": whole(2)})


async def test_hundreds_of_streams_of_one_client_survive_a_lost_connection() -> None:
    go, count = asyncio.Event(), 500

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await go.wait()
        for event in numbers(3):
            await queue.enqueue_event(event)
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s, behind_proxy(s) as (client, proxy):
        streams = [client.stream("hello") for _ in range(count)]
        firsts = await within(asyncio.gather(*(read_some(stream, 1) for stream in streams)))
        reading = [asyncio.create_task(read(stream)) for stream in streams]
        proxy.cut()
        go.set()
        rests = await within(asyncio.gather(*reading), 30)
        for first, rest in zip(firsts, rests, strict=True):
            assert fold(first + rest) == ("COMPLETED", {"a": whole(3)})


# A reader is cancelled.


async def test_cancelling_a_reader_of_a_stream_that_is_closed_at_that_moment_cancels_it() -> None:
    async with scripted(Held(), streaming=True) as (_, address), A2AClient(address) as client:
        stream = client.stream("hello")
        await read_some(stream, 1)
        reading = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        await cancelled(reading)


async def test_giving_up_between_two_tries_sends_no_message_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = asyncio.Event()

    def drawn() -> float:
        """The jitter of the wait that begins now."""
        waits.set()
        return 1.0

    monkeypatch.setattr("random.random", drawn)
    async with (
        scripted(refusing, streaming=True) as (server, address),
        A2AClient(address, retry=LATE) as client,
    ):
        stream = client.stream("hello")
        reading = asyncio.create_task(read(stream))
        await within(waits.wait())
        await cancelled(reading)
        error = await failing(anext(stream))
        assert "was not sent again" in error.message
        assert [method for method, _ in server.calls] == ["SendStreamingMessage", "GetAgentCard"]


async def test_giving_up_before_anything_was_sent_is_no_reason_not_to_send() -> None:
    """The server does not deduplicate, but the message never left."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def token() -> str:
        asked.set()
        await go.wait()
        return "late"

    agent = Steps()
    async with (
        serving(agent) as s,
        A2AClient(a_card(s.server.address, window=None), token=token) as client,
    ):
        stream = client.stream("hello")
        reading = asyncio.create_task(read(stream))
        await within(asked.wait())
        await cancelled(reading)
        go.set()
        agent.finish()
        assert fold(await read(stream)) == ("COMPLETED", {})
        assert agent.runs == 1


@pytest.mark.parametrize("breaks", [False, True])
async def test_giving_up_at_any_step_loses_and_doubles_nothing(breaks: bool) -> None:
    """The reader is cancelled after each number of steps of the loop, then goes on."""
    ran: list[str] = []

    async def execute(context: Any, queue: Any) -> None:
        ran.append(context.get_user_input())
        await queue.enqueue_event(a_task())
        for event in numbers(3):
            await queue.enqueue_event(event)
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s, behind_proxy(s) as (client, proxy):
        for steps in range(60):
            if breaks:
                proxy.cuts = [60 + 7 * steps]
                proxy.cut()
            stream = client.stream(str(steps))
            seen: list[pb.StreamResponse] = []
            sequences: list[int] = []

            async def follow(
                stream: Any = stream, seen: Any = seen, sequences: Any = sequences
            ) -> None:
                async for event in stream:
                    seen.append(event)
                    sequences.append(stream.sequence)

            reading = asyncio.create_task(follow())
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await within(follow())
            assert fold(seen) == ("COMPLETED", {"a": whole(3)})
            assert sequences == list(range(sequences[0], 6))
    assert ran == [str(steps) for steps in range(60)]
