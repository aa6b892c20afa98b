"""SubscribeToTask (specification 3.1.6) and how a stream is resumed (promises 2 and 4)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.bus.base import TaskChannel
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from tests.support import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    SEQUENCED,
    TERMINAL,
    Agent,
    Gated,
    a_task,
    asking,
    assert_error,
    assert_invalid,
    chunk,
    collect,
    echo,
    fold,
    outline,
    publishing,
    refused,
    sequence_of,
    serving,
    state_name,
    status_update,
    take,
    text,
    within,
)


def last_event(sequence: int) -> tuple[tuple[str, str], ...]:
    return (("last-event-id", str(sequence)),)


class Counting:
    """Appends 0, 1, 2, ... to one artifact, in portions, then completes."""

    def __init__(self, *portions: int) -> None:
        self.portions = portions
        self.done = [asyncio.Event() for _ in portions]
        self.go = [asyncio.Event() for _ in portions]
        self.total = sum(portions)

    @property
    def whole(self) -> str:
        return "".join(f"{number}," for number in range(self.total))

    async def execute(self, _: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        number = 0
        for portion, done, go in zip(self.portions, self.done, self.go, strict=True):
            for _ in range(portion):
                await queue.enqueue_event(chunk(f"{number},", append=True))
                number += 1
            done.set()
            await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async def cancel(self, _: Any, queue: Any) -> None: ...


async def test_task_comes_first_and_then_its_events(serve: Callable[..., Any]) -> None:
    agent = Counting(2, 2)
    async with serve(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.done[0].wait())
        stream = s.subscribe(task.id)
        (first,) = await take(stream, 1)
        assert first.HasField("task")
        for go in agent.go:
            go.set()
        rest = await collect(stream)
        assert fold([first, *rest]) == ("COMPLETED", {"a": agent.whole})


async def test_reader_who_has_seen_nothing_yet_is_told_where_the_stream_begins(
    serve: Callable[..., Any],
) -> None:
    async with serve(echo) as s:
        task = await s.send()
        events = await collect(s.subscribe(task.id, call_metadata=last_event(0)))
        assert [sequence_of(event) for event in events] == [0, 1, 2, 3]


async def test_no_event_is_lost_or_doubled_between_snapshot_and_following(
    serve: Callable[..., Any],
) -> None:
    """Readers join at any moment while the agent writes as fast as it can."""
    readers, events = 20, 1500
    go = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        for number in range(events):
            await queue.enqueue_event(chunk(f"{number},", append=True))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    whole = "".join(f"{number}," for number in range(events))

    async with serve(Agent(execute)) as s:
        sender = s.stream()
        first = await take(sender, 1)
        joined = 0

        async def join(after: float) -> None:
            nonlocal joined
            await asyncio.sleep(after)  # any moment
            stream = s.subscribe(first[0].task.id, call_metadata=SEQUENCED)
            seen = await take(stream, 1)
            joined += 1
            if joined == readers:
                go.set()
            seen += await collect(stream)
            assert fold(seen) == ("COMPLETED", {"a": whole})
            begin = sequence_of(seen[0])
            assert [sequence_of(event) for event in seen] == list(range(begin, events + 3))

        joiners = [join(random.random() * 0.1) for _ in range(readers)]
        rest, *_ = await within(asyncio.gather(collect(sender), *joiners), 30)
        assert fold([*first, *rest]) == ("COMPLETED", {"a": whole})


@pytest.mark.parametrize("state", TERMINAL, ids=state_name)
async def test_finished_task_is_an_unsupported_operation(state: pb.TaskState) -> None:
    async with serving(publishing(a_task(), status_update(state))) as s:
        task = await s.send()
        status = await refused(s.subscribe(task.id))
        assert_error(status, "UNSUPPORTED_OPERATION")
        assert status.metadata["task_id"] == task.id


async def test_unknown_task_is_not_found() -> None:
    async with serving(echo) as s:
        assert_error(await refused(s.subscribe("unknown")), "TASK_NOT_FOUND")
        status = await refused(s.subscribe("unknown", call_metadata=last_event(3)))
        assert_error(status, "TASK_NOT_FOUND")


async def test_subscription_does_not_end_at_input_required(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        task = await s.send()
        stream = s.subscribe(task.id)
        assert outline(await take(stream, 1)) == ["task INPUT_REQUIRED"]
        await s.send("more", task_id=task.id)
        assert outline(await take(stream, 1)) == ["status INPUT_REQUIRED"]
        await s.send("done", task_id=task.id)
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_subscription_does_not_end_at_auth_required() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(AUTH_REQUIRED))
        else:
            await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        task = await s.send()
        stream = s.subscribe(task.id)
        assert outline(await take(stream, 1)) == ["task AUTH_REQUIRED"]
        await s.send(task_id=task.id)
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_all_subscribers_see_the_same_events_in_the_same_order() -> None:
    agent = Counting(1, 300)
    async with serving(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.done[0].wait())
        streams = [s.subscribe(task.id) for _ in range(10)]
        firsts = [await take(stream, 1) for stream in streams]
        for go in agent.go:
            go.set()
        seen = await within(asyncio.gather(*(collect(stream) for stream in streams)))
        assert all(events == seen[0] for events in seen)
        assert fold([*firsts[0], *seen[0]]) == ("COMPLETED", {"a": agent.whole})


async def test_slow_reader_loses_nothing_and_slows_nobody_down(serve: Callable[..., Any]) -> None:
    """More events than the channel holds, and more bytes than flow control lets through."""
    agent = Counting(1, 2 * TaskChannel.MAX_EVENTS)
    async with serve(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.done[0].wait())
        slow, fast = s.subscribe(task.id), s.subscribe(task.id)
        first = await take(slow, 1)
        await take(fast, 1)
        for go in agent.go:
            go.set()
        # The fast one is through before the slow one reads its second event.
        assert outline(await collect(fast))[-1] == "status COMPLETED"
        assert (await s.get(task.id)).status.state == COMPLETED
        assert fold([*first, *await collect(slow)]) == ("COMPLETED", {"a": agent.whole})


async def test_slow_reader_of_large_events_loses_nothing(serve: Callable[..., Any]) -> None:
    go = asyncio.Event()
    size, count = 256 * 1024, 60  # four times what the channel holds

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await go.wait()
        for number in range(count):
            await queue.enqueue_event(chunk(chr(97 + number % 26) * size, f"a{number}"))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serve(Agent(execute)) as s:
        task = await s.send(immediately=True)
        slow, fast = s.subscribe(task.id), s.subscribe(task.id)
        await take(slow, 1)
        await take(fast, 1)
        go.set()
        assert len(await collect(fast)) == count + 1
        events = await collect(slow)
        assert [text(e.artifact_update.artifact)[0] for e in events[:-1]] == [
            chr(97 + number % 26) for number in range(count)
        ]


async def test_streaming_capability_that_the_card_denies_is_refused() -> None:
    card = pb.AgentCard(capabilities=pb.AgentCapabilities(streaming=False))
    async with serving(asking, card=card) as s:
        task = await s.send()
        assert_error(await refused(s.subscribe(task.id)), "UNSUPPORTED_OPERATION")


# Resuming.


async def test_reader_that_comes_back_gets_the_events_after_the_last_it_saw(
    serve: Callable[..., Any],
) -> None:
    agent = Counting(10, 10)
    async with serve(agent) as s:
        stream = s.stream(call_metadata=SEQUENCED)
        seen = await take(stream, 5)
        assert sequence_of(seen[-1]) == 5
        stream.cancel()
        task_id = seen[0].task.id
        await within(agent.done[0].wait())
        agent.go[0].set()
        await within(agent.done[1].wait())
        resumed = s.subscribe(task_id, call_metadata=(*SEQUENCED, *last_event(5)))
        first, *more = await take(resumed, 6)
        assert first.HasField("task")
        assert not first.task.artifacts, "it has the content already"
        assert [sequence_of(event) for event in more] == [6, 7, 8, 9, 10]
        agent.go[1].set()
        rest = await collect(resumed)
        assert [sequence_of(event) for event in rest] == list(range(11, 23))
        state, artifacts = fold([*seen, *more, *rest])
        assert (state, artifacts) == ("COMPLETED", {"a": agent.whole})


@pytest.mark.parametrize("seen", [0, 1, 2, 3, 4])
async def test_reader_that_comes_back_after_the_end_gets_the_rest(
    seen: int, serve: Callable[..., Any]
) -> None:
    events = (a_task(), chunk("x"), chunk("y", append=True), status_update(COMPLETED))
    async with serve(publishing(*events)) as s:
        told = await collect(s.stream(call_metadata=SEQUENCED))
        assert [sequence_of(event) for event in told] == [1, 2, 3, 4]
        resumed = await collect(
            s.subscribe(told[0].task.id, call_metadata=(*SEQUENCED, *last_event(seen)))
        )
        assert outline(resumed[:1]) == ["task COMPLETED"]
        assert not resumed[0].task.artifacts
        assert resumed[1:] == told[seen:]


async def test_reader_that_comes_back_to_a_waiting_task_gets_what_it_missed_at_once() -> None:
    async with serving(asking) as s:
        told = await collect(s.stream(call_metadata=SEQUENCED))
        resumed = s.subscribe(told[0].task.id, call_metadata=(*SEQUENCED, *last_event(1)))
        first, second = await take(resumed, 2)
        assert first.HasField("task")
        assert second == told[1]
        await s.cancel(told[0].task.id)
        assert outline(await collect(resumed)) == ["status CANCELED"]


async def test_sequence_numbers_go_on_over_turns() -> None:
    async with serving(asking) as s:
        one = await collect(s.stream("one", call_metadata=SEQUENCED))
        task_id = one[0].task.id
        two = await collect(s.stream("two", task_id=task_id, call_metadata=SEQUENCED))
        assert [sequence_of(event) for event in one] == [1, 2]
        assert [sequence_of(event) for event in two] == [2, 3]


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "", "²", "99999999999999999999999"])
async def test_malformed_last_event_id_is_refused(value: str) -> None:
    async with serving(asking) as s:
        task = await s.send()
        if not value.isascii():
            return  # gRPC lets only ASCII through
        call = s.subscribe(task.id, call_metadata=(("last-event-id", value),))
        assert_invalid(await refused(call), "last-event-id")


async def test_number_that_the_task_has_not_reached_is_refused() -> None:
    async with serving(asking) as s:
        task = await s.send()
        call = s.subscribe(task.id, call_metadata=last_event(3))
        assert_invalid(await refused(call), "last-event-id")


async def test_extension_is_declared_and_echoed() -> None:
    extended = pb.AgentCard(name="extended")
    async with serving(asking, extended_card=extended) as s:
        call = s.call("ListTasks", pb.ListTasksRequest(), metadata=SEQUENCED)
        await call
        assert dict(await call.initial_metadata())["a2a-extensions"] == SEQUENCE_EXTENSION


async def test_subscribers_of_a_task_whose_agent_fails_end_with_failed() -> None:
    agent = Gated()

    async def execute(context: Any, queue: Any) -> None:
        await agent.execute(context, queue)

    async def failing(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(INPUT_REQUIRED))
        agent.started.set()
        await agent.go.wait()
        raise RuntimeError("secret")

    async with serving(Agent(failing)) as s:
        task = await s.send(immediately=True)
        stream = s.subscribe(task.id)
        await take(stream, 1)
        agent.go.set()
        events = await collect(stream)
        assert outline(events) == ["status FAILED"]
        assert "secret" not in str(events)
