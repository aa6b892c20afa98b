"""Streams survive lost connections: every event once, in order, and to the right end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import (
    A2AClient,
    DeadlineExceededError,
    ResourceExhaustedError,
    RetryPolicy,
    StreamInterruptedError,
    TaskNotFoundError,
    UnavailableError,
    pb,
)
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.subscription import Streamed
from a2a_grpc.wire.status import abort
from tests.client.proxy import Proxy
from tests.client.support import (
    FAST,
    a_card,
    behind_proxy,
    client_of,
    eventually,
    failing,
    read,
    read_some,
    scripted,
    sent,
)
from tests.rpc.test_truncated_log import KEPT, Growing
from tests.support import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    Gated,
    a_server,
    a_task,
    asking,
    chunk,
    fold,
    outline,
    serving,
    status_update,
    text,
    within,
)


class Steps:
    """Publishes the Task, then one event for each `step()`, and completes after `finish()`."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.runs = 0

    async def execute(self, context: Any, queue: Any) -> None:
        self.runs += 1
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        while (event := await self.queue.get()) is not None:
            await queue.enqueue_event(event)

    async def cancel(self, context: Any, queue: Any) -> None: ...

    def step(self, *events: Any) -> None:
        for event in events:
            self.queue.put_nowait(event)

    def finish(self) -> None:
        self.step(status_update(COMPLETED), None)


def numbers(count: int, first: int = 0) -> list[Any]:
    return [chunk(f"{n},", append=True) for n in range(first, first + count)]


def whole(count: int) -> str:
    return "".join(f"{n}," for n in range(count))


async def test_a_stream_goes_on_after_the_connection_was_lost(serve: Callable[..., Any]) -> None:
    agent = Steps()
    async with serve(agent) as s, behind_proxy(s) as (client, proxy):
        stream = client.stream("hello")
        agent.step(*numbers(3))
        seen = await read_some(stream, 4)
        proxy.cut()
        agent.step(*numbers(3, 3))
        seen += await read_some(stream, 3)
        assert stream.reconnects == 1
        assert stream.sequence == 7
        assert not stream.is_reset
        agent.finish()
        seen += await read(stream)
        assert fold(seen) == ("COMPLETED", {"a": whole(6)})
        assert outline(seen).count("task WORKING") == 1, "the head of the task is not an event"
        assert agent.runs == 1


async def test_a_subscription_goes_on_after_the_connection_was_lost() -> None:
    agent = Steps()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        task = await sent(client, "hello", return_immediately=True)
        stream = client.subscribe(task.id)
        seen = await read_some(stream, 1)
        for n in range(5):
            proxy.cut()
            agent.step(*numbers(1, n))
            seen += await read_some(stream, 1)
        agent.finish()
        seen += await read(stream)
        assert fold(seen) == ("COMPLETED", {"a": whole(5)})
        assert stream.reconnects == 5


@pytest.mark.parametrize("how", ["stream", "subscribe"])
async def test_a_task_that_ended_meanwhile_is_delivered_to_its_end(how: str) -> None:
    agent = Steps()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        if how == "stream":
            stream = client.stream("hello")
        else:
            task = await sent(client, "hello", return_immediately=True)
            stream = client.subscribe(task.id)
        seen = await read_some(stream, 1)
        proxy.cut()
        agent.step(*numbers(3))
        agent.finish()

        async def completed() -> bool:
            return (await s.get(stream.task_id)).status.state == COMPLETED

        await eventually(completed)
        seen += await read(stream)
        assert outline(seen)[1:] == [*(f"artifact {n}," for n in range(3)), "status COMPLETED"]


async def test_a_stream_that_breaks_after_the_last_event_ends_normally() -> None:
    """The status of the call is lost, but the task's end was seen."""
    done = pb.StreamResponse(status_update=status_update(COMPLETED))

    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield pb.StreamResponse(task=a_task(id="t")).SerializeToString()
        yield done.SerializeToString()
        await asyncio.sleep(60)

    async with (
        scripted(respond, streaming=True) as (server, address),
        Proxy(address) as proxy,
        A2AClient(proxy.address, retry=FAST) as client,
    ):
        stream = client.stream("hello")
        await read_some(stream, 2)
        proxy.cut()
        assert await read(stream) == []
        assert len(server.calls) == 1


async def test_a_stream_whose_first_event_asks_ends_there_also_when_its_status_is_lost() -> None:
    """The task is new, so it waits for what comes after this message."""

    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield stamped(INPUT_REQUIRED, 1)
        await asyncio.sleep(60)

    async with (
        scripted(respond, streaming=True) as (server, address),
        Proxy(address) as proxy,
        A2AClient(a_card(proxy.address), retry=FAST) as client,
    ):
        stream = client.stream("hello")
        await read_some(stream, 1)
        proxy.cut()
        assert await read(stream) == []
        assert len(server.calls) == 1


@pytest.mark.parametrize("state", [INPUT_REQUIRED, AUTH_REQUIRED], ids=["input", "auth"])
async def test_a_stream_ends_where_the_agent_asks_also_after_a_lost_connection(state: Any) -> None:
    agent = Steps()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        stream = client.stream("hello")
        seen = await read_some(stream, 1)
        proxy.cut()
        agent.step(*numbers(1), status_update(state), None)
        seen += await read(stream)
        assert outline(seen)[1:] == [
            "artifact 0,",
            "status INPUT_REQUIRED" if state == INPUT_REQUIRED else "status AUTH_REQUIRED",
        ]
        agent.finish()
        task = await sent(client, "go on", task_id=stream.task_id)
        assert task.status.state == COMPLETED
        rest = client.subscribe(stream.task_id, last_sequence=stream.sequence)
        assert outline(await read(rest)) == ["status COMPLETED"]


async def test_a_second_turn_survives_although_the_task_still_waits_when_it_begins() -> None:
    agent = Steps()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        agent.step(status_update(INPUT_REQUIRED), None)
        first = client.stream("hello")
        await read(first)
        second = client.stream("more", task_id=first.task_id)
        seen = await read_some(second, 1)
        assert outline(seen) == ["task INPUT_REQUIRED"]
        proxy.cut()
        agent.step(*numbers(2))
        agent.finish()
        seen += await read(second)
        assert outline(seen)[1:] == ["artifact 0,", "artifact 1,", "status COMPLETED"]
        assert second.reconnects == 1


async def test_a_second_turn_whose_first_connections_are_lost_is_delivered_once() -> None:
    """Sent again, the first Task may be the task as it was or as it became: the server tells."""
    agent = Steps()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        agent.step(status_update(INPUT_REQUIRED), None)
        first = client.stream("hello")
        await read(first)
        second = client.stream("more", task_id=first.task_id)
        proxy.hold_answers()
        reading = asyncio.create_task(anext(second))  # type: ignore[arg-type]
        await eventually(lambda: agent.runs == 2)
        proxy.cut()
        proxy.release_answers()
        seen = [await within(reading)]
        assert outline(seen) == ["task INPUT_REQUIRED"]
        proxy.cut()
        agent.step(*numbers(2))
        agent.finish()
        seen += await read(second)
        assert fold(seen) == ("COMPLETED", {"a": "0,1,"})
        assert agent.runs == 2


def stamped(state: Any, sequence: int, *, reset: bool = False) -> bytes:
    event = pb.StreamResponse(task=a_task(state, id="t"))
    return Streamed(sequence, event.SerializeToString(), reset).stamped()


@pytest.mark.parametrize("later", [5, 7])
async def test_only_the_server_knows_whether_a_task_that_waits_waits_for_this_message(
    later: int,
) -> None:
    """Sent again, and cut off after a Task in INPUT_REQUIRED: was it before the turn, or after?"""
    tries = 0

    async def respond(method: str, request: bytes, context: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            yield stamped(INPUT_REQUIRED, 5)
        if tries < 3:
            await abort(context, UnavailableError())
        yield stamped(INPUT_REQUIRED, later)

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address), retry=FAST) as client,
    ):
        stream = client.stream("more", task_id="t")
        seen = [(stream.sequence, stream.is_reset) async for _ in stream]
        assert seen == ([(5, False)] if later == 5 else [(5, False), (7, True)])
        assert [method for method, _ in server.calls] == ["SendStreamingMessage"] * 3
        assert [metadata.get("a2a-grpc-retry") for _, metadata in server.calls] == [None, "1", "1"]


async def test_a_reset_that_waits_for_input_ends_the_stream_also_of_a_message_sent_again() -> None:
    """The subscription that brings it would go on without an end."""

    async def respond(method: str, request: bytes, context: Any) -> Any:
        if method == "SubscribeToTask":
            yield stamped(INPUT_REQUIRED, 9, reset=True)
            await asyncio.sleep(60)
        if len(server.calls) == 2:
            yield stamped(WORKING, 5)
        await abort(context, UnavailableError())

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address), retry=FAST) as client,
    ):
        stream = client.stream("more", task_id="t")
        assert outline(await read(stream)) == ["task WORKING", "task INPUT_REQUIRED"]


async def test_many_cuts_at_any_byte_lose_and_double_nothing(serve: Callable[..., Any]) -> None:
    """Readers whose connections break all the time, wherever that is in the bytes."""
    count, readers = 400, 4
    chance = random.Random(17)

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        for number, event in enumerate(numbers(count)):
            await queue.enqueue_event(event)
            if number % 3 == 0:
                await asyncio.sleep(0.001)
        await queue.enqueue_event(status_update(COMPLETED))

    async with serve(Agent(execute)) as s:
        reconnects = 0

        async def one() -> None:
            nonlocal reconnects
            async with Proxy(s.server.address) as proxy:
                proxy.cuts = [chance.randrange(60, 6000) for _ in range(40)]
                policy = RetryPolicy(attempts=50, initial_backoff=0.001, max_backoff=0.02)
                async with A2AClient(a_card(proxy.address), retry=policy) as client:
                    stream = client.stream("hello")
                    events, sequences = [], []
                    async for event in stream:
                        events.append(event)
                        sequences.append(stream.sequence)
                    assert fold(events) == ("COMPLETED", {"a": whole(count)})
                    # One may begin later if its first event was lost; then it goes on in steps.
                    assert sequences == list(range(sequences[0], count + 3))
                    reconnects += stream.reconnects

        await within(asyncio.gather(*(one() for _ in range(readers))), 60)
        assert reconnects > readers


async def test_a_log_that_no_longer_reaches_back_gives_a_reset(sqlite: str) -> None:
    storage = SqlStorage(sqlite, keep_entries=KEPT)
    agent = Growing(storage, lost=3)
    async with serving(agent, storage=storage) as s, behind_proxy(s) as (client, proxy):
        stream = client.stream("hello", history_length=0)
        first = await read_some(stream, 1)
        proxy.hold_answers()
        proxy.cut()
        agent.begin.set()
        await within(agent.grown.wait())
        proxy.release_answers()
        agent.go.set()
        seen = [*first]
        resets = []
        async for event in stream:
            seen.append(event)
            if stream.is_reset:
                resets.append(event)
                assert event.HasField("task")
                assert not event.task.history, "history_length holds here, too"
        assert len(resets) == 1
        assert fold(seen) == ("COMPLETED", {"a": agent.whole})


@pytest.mark.parametrize("how", ["stream", "subscribe"])
async def test_giving_up_on_an_event_of_a_server_that_can_not_go_on_is_told(how: str) -> None:
    """Going on would send the message again, or lose events."""

    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield pb.StreamResponse(task=a_task(WORKING, id="t")).SerializeToString()
        await asyncio.sleep(60)

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address), retry=FAST) as client,
    ):
        stream = client.stream("hello") if how == "stream" else client.subscribe("t")
        await read_some(stream, 1)
        with pytest.raises(TimeoutError):
            await within(anext(stream), 0.05)
        assert isinstance(await failing(anext(stream)), StreamInterruptedError)
        assert len(server.calls) == 1


@pytest.mark.parametrize("deduplicates", [True, False])
async def test_giving_up_on_the_first_event_sends_the_message_again_only_if_it_is_safe(
    deduplicates: bool,
) -> None:
    agent, arrived = Steps(), asyncio.Event()

    async def late(context: Any, queue: Any) -> None:
        arrived.set()
        await agent.queue.get()
        await agent.execute(context, queue)

    window = 300.0 if deduplicates else None
    async with serving(Agent(late)) as s, behind_proxy(s, window=window) as (client, _):
        stream = client.stream("hello")
        reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await within(arrived.wait())
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        agent.step(None)
        agent.finish()
        if deduplicates:
            assert outline(await read(stream))[-1] in ("task COMPLETED", "status COMPLETED")
        else:
            error = await failing(anext(stream))
            assert isinstance(error, UnavailableError)
            assert "was not sent again" in error.message
        await eventually(lambda: agent.runs)
        assert agent.runs == 1


async def test_the_time_without_progress_is_bounded() -> None:
    agent = Gated()
    policy = RetryPolicy(stream_patience=0.1, initial_backoff=0.001, max_backoff=0.01)
    async with serving(agent) as s:
        proxy = Proxy(s.server.address)
        async with proxy, A2AClient(a_card(proxy.address), retry=policy) as client:
            stream = client.stream("hello")
            await read_some(stream, 1)
            before = proxy.connections
            proxy.upstream = "127.0.0.1:1"
            proxy.cut()
            error = await failing(anext(stream))
            assert isinstance(error, StreamInterruptedError)
            assert (error.task_id, error.sequence) == (stream.task_id, 1)
            assert stream.task_id in error.message
            assert "last_sequence=1" in error.message
            assert proxy.connections - before >= 1
            assert [event async for event in stream] == [], "an ended stream stays ended"
            proxy.upstream = s.server.address
            agent.go.set()
            rest = client.subscribe(error.task_id, last_sequence=error.sequence)
            async with asyncio.timeout(10):
                while True:
                    try:
                        assert outline(await read(rest)) == ["status COMPLETED"]
                        break
                    except UnavailableError:
                        rest = client.subscribe(error.task_id, last_sequence=error.sequence)


async def test_a_server_that_does_not_number_its_events_can_not_go_on() -> None:
    async def respond(method: str, request: bytes, context: Any) -> Any:
        yield pb.StreamResponse(task=a_task(WORKING, id="t")).SerializeToString()
        await asyncio.sleep(60)

    async with (
        scripted(respond, streaming=True) as (server, address),
        Proxy(address) as proxy,
        A2AClient(proxy.address, retry=FAST) as client,
    ):
        for stream in (client.stream("hello"), client.subscribe("t")):
            await read_some(stream, 1)
            assert stream.sequence == 0
            proxy.cut()
            error = await failing(anext(stream))
            assert isinstance(error, StreamInterruptedError)
            assert (error.task_id, error.sequence) == ("t", 0)
            assert "get_task('t')" in error.message
        assert len(server.calls) == 2

        error = await failing(anext(client.subscribe("t", last_sequence=3)))
        assert isinstance(error, StreamInterruptedError)


async def test_a_server_that_can_not_go_on_yet_is_asked_when_it_says() -> None:
    async def respond(method: str, request: bytes, context: Any) -> Any:
        if len(server.calls) == 2:
            await abort(context, ResourceExhaustedError(retry_after=0.01))
        yield stamped(WORKING, 1)
        if len(server.calls) == 1:
            await abort(context, UnavailableError())
        yield stamped(COMPLETED, 2, reset=True)

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address), retry=FAST) as client,
    ):
        seen = await read(client.stream("hello"))
        assert outline(seen) == ["task WORKING", "task COMPLETED"]
        assert len(server.calls) == 3


async def test_a_draining_server_is_left_for_the_next_one(sqlite: str) -> None:
    """The server ends open calls with UNAVAILABLE; its successor goes on (promise 10)."""
    agent = Steps()
    async with (
        Proxy("127.0.0.1:1") as proxy,
        A2AClient(a_card(proxy.address), retry=FAST) as client,
    ):
        async with a_server(agent, storage=sqlite) as first:
            proxy.upstream = first.address
            agent.step(status_update(INPUT_REQUIRED), None)
            task = await sent(client, "hello")
            stream = client.subscribe(task.id)
            assert outline(await read_some(stream, 1)) == ["task INPUT_REQUIRED"]
            waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        async with a_server(Steps(), storage=sqlite) as second:
            proxy.upstream = second.address
            assert (await client.cancel_task(task.id)).id == task.id
            assert outline([await within(waiting)]) == ["status CANCELED"]
            assert stream.reconnects == 1


async def test_a_task_that_is_gone_is_told() -> None:
    """The server came back without its memory."""
    async with (
        Proxy("127.0.0.1:1") as proxy,
        A2AClient(a_card(proxy.address), retry=FAST) as client,
    ):
        async with a_server(asking) as server:
            proxy.upstream = server.address
            task = await sent(client, "hello")
            stream = client.subscribe(task.id)
            await read_some(stream, 1)
        async with a_server(asking) as server:
            proxy.upstream = server.address
            assert isinstance(await failing(anext(stream)), TaskNotFoundError)


async def test_an_idle_stream_that_a_proxy_closes_again_and_again_goes_on() -> None:
    """A connection that held for a while counts as progress, though it brought nothing."""
    agent = Gated()
    policy = RetryPolicy(stream_patience=1.0, initial_backoff=0.001, max_backoff=0.05)
    async with serving(agent) as s, behind_proxy(s, retry=policy) as (client, proxy):
        stream = client.stream("hello")
        await read_some(stream, 1)
        waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 1.5 * policy.stream_patience:
            before = stream.reconnects
            proxy.cut()
            await eventually(lambda: stream.reconnects > before)  # noqa: B023
            await asyncio.sleep(policy.max_backoff)
        agent.go.set()
        assert outline([await within(waiting)]) == ["status COMPLETED"]


async def test_the_timeout_of_a_stream_bounds_all_its_connections() -> None:
    agent = Gated()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        stream = client.stream("hello", timeout=0.4)
        await read_some(stream, 1)
        proxy.cut()
        error = await failing(anext(stream))
        assert isinstance(error, DeadlineExceededError)
        assert isinstance(error, TimeoutError)


async def test_a_slow_reader_buffers_no_more_than_the_window_of_the_connection() -> None:
    """What it has not asked for stays at the server."""
    size, count = 100_000, 300
    published = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        for n in range(count):
            await queue.enqueue_event(chunk(f"{n},".ljust(size, "."), append=True))
        await queue.enqueue_event(status_update(COMPLETED))
        published.set()

    async with serving(Agent(execute)) as s, behind_proxy(s) as (client, proxy):
        stream = client.stream("hello")
        await read_some(stream, 2)
        await within(published.wait())
        await asyncio.sleep(0.2)  # for what would come if somebody read ahead
        assert proxy.forwarded < size * count / 2
        rest = await read(stream)
        pieces = [text(event.artifact_update.artifact) for event in rest[:-1]]
        assert [piece.split(",")[0] for piece in pieces] == [str(n) for n in range(1, count)]


async def test_leaving_the_client_ends_its_streams_and_leaves_no_task_behind() -> None:
    agent = Gated()
    async with serving(agent) as s:
        await s.list()
        before = len(asyncio.all_tasks())  # the server makes new ones in place of old ones
        async with client_of(s) as client:
            stream = client.stream("hello")
            await read_some(stream, 1)
            waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        error = await failing(waiting)
        assert isinstance(error, UnavailableError)
        assert "closed" in error.message
        agent.go.set()
        await eventually(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_stream_that_is_closed_elsewhere_ends_for_its_reader() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        stream = client.stream("hello")
        await read_some(stream, 1)
        reading = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        assert await within(reading) == []
        agent.go.set()


async def test_cancelling_a_reader_cancels_it() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        stream = client.stream("hello")
        await read_some(stream, 1)
        reading = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(reading)
        agent.go.set()
