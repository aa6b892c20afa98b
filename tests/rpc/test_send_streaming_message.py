"""SendStreamingMessage (specification 3.1.2, 3.5.2, 7.6.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from a2a_grpc import pb
from tests.support import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    SEQUENCED,
    TERMINAL,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    assert_error,
    chunk,
    collect,
    echo,
    kinds,
    outline,
    publishing,
    refused,
    sequence_of,
    serving,
    state_name,
    status_update,
    take,
    text,
    texts,
    within,
)


async def test_stream_begins_with_the_task_as_created(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        events = await collect(s.stream("hi"))
        assert outline(events) == ["task WORKING", "artifact hi", "status COMPLETED"]
        assert not events[0].task.artifacts
        assert texts(events[0].task.history) == ["hi"]
        assert await s.get(events[0].task.id)


async def test_stream_follows_from_the_very_first_event_however_fast_the_agent_is(
    serve: Callable[..., Any],
) -> None:
    async with serve(echo) as s:
        streams = [s.stream(f"{number}") for number in range(50)]
        for number, stream in enumerate(streams):
            assert outline(await collect(stream)) == [
                "task WORKING",
                f"artifact {number}",
                "status COMPLETED",
            ]


async def test_second_turn_begins_with_the_task_too(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        first = await collect(s.stream("one"))
        assert outline(first) == ["task WORKING", "status INPUT_REQUIRED"]
        task_id = first[0].task.id
        for turn in ("two", "three"):
            events = await collect(s.stream(turn, task_id=task_id))
            assert outline(events) == ["task INPUT_REQUIRED", "status INPUT_REQUIRED"]
            assert text(events[0].task.history[-1]) == turn
        events = await collect(s.stream("done", task_id=task_id))
        assert outline(events) == ["task INPUT_REQUIRED", "status COMPLETED"]


async def test_second_turns_first_task_has_what_the_first_turn_made() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk(context.get_user_input(), append=True))
        await queue.enqueue_event(status_update(INPUT_REQUIRED))

    async with serving(Agent(execute)) as s:
        task = await s.send("x")
        events = await collect(s.stream("y", task_id=task.id))
        assert text(events[0].task.artifacts[0]) == "x"
        assert outline(events)[1:] == ["artifact y", "status INPUT_REQUIRED"]


@pytest.mark.parametrize("state", [*TERMINAL, INPUT_REQUIRED, AUTH_REQUIRED], ids=state_name)
async def test_stream_ends_with_the_turn(state: pb.TaskState) -> None:
    async with serving(publishing(a_task(), status_update(state))) as s:
        events = await collect(s.stream())
        assert outline(events)[-1] == f"status {state_name(state)}"


async def test_stream_ends_when_the_first_task_is_terminal() -> None:
    async with serving(publishing(a_task(COMPLETED))) as s:
        assert outline(await collect(s.stream())) == ["task COMPLETED"]


async def test_stream_stays_open_in_auth_required_while_the_agent_works() -> None:
    go = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(status_update(AUTH_REQUIRED, "log in there"))
        await go.wait()
        await queue.enqueue_event(status_update(WORKING))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        stream = s.stream()
        assert outline(await take(stream, 2)) == ["task WORKING", "status AUTH_REQUIRED"]
        go.set()
        assert outline(await collect(stream)) == ["status WORKING", "status COMPLETED"]


async def test_stream_closes_in_auth_required_once_execute_returned() -> None:
    go = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(AUTH_REQUIRED))
        await go.wait()

    async with serving(Agent(execute)) as s:
        stream = s.stream()
        await take(stream, 1)
        read = asyncio.ensure_future(stream.read())
        await s.list()
        assert not read.done()
        go.set()
        assert await within(read) is grpc.aio.EOF


async def test_stream_ends_at_input_required_after_auth_required() -> None:
    go, release = asyncio.Event(), asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(AUTH_REQUIRED))
        await go.wait()
        await queue.enqueue_event(status_update(INPUT_REQUIRED))
        await release.wait()

    async with serving(Agent(execute)) as s:
        stream = s.stream()
        await take(stream, 1)
        go.set()
        assert outline(await collect(stream)) == ["status INPUT_REQUIRED"]
        release.set()


async def test_second_turn_that_begins_with_an_artifact_is_followed_to_its_end() -> None:
    go = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED))
            return
        await queue.enqueue_event(chunk("x"))
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        task = await s.send()
        stream = s.stream(task_id=task.id)
        assert outline(await take(stream, 2)) == ["task INPUT_REQUIRED", "artifact x"]
        go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_message_only_stream_has_exactly_one_message() -> None:
    async with serving(publishing(pb.Message(parts=[pb.Part(text="hi")]))) as s:
        events = await collect(s.stream())
        assert outline(events) == ["message hi"]


async def test_events_come_while_the_agent_works() -> None:
    agent = Gated()
    async with serving(agent) as s:
        stream = s.stream()
        assert outline(await take(stream, 1)) == ["task WORKING"]
        agent.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_history_length_cuts_every_task_in_a_stream() -> None:
    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(WORKING, "1"))
        await queue.enqueue_event(a_task(WORKING, "2"))
        await queue.enqueue_event(status_update(INPUT_REQUIRED))

    async with serving(Agent(execute)) as s:
        events = await collect(s.stream(history_length=0))
        tasks = [event.task for event in events if event.HasField("task")]
        assert [texts(task.history) for task in tasks] == [[] for _ in tasks]
        task_id = tasks[0].id
        events = await collect(s.stream("again", task_id=task_id, history_length=1))
        tasks = [event.task for event in events if event.HasField("task")]
        assert [len(task.history) for task in tasks] == [1 for _ in tasks]
        assert texts(tasks[0].history) == ["again"]
        assert len((await s.get(task_id)).history) > 3


async def test_sequence_numbers_only_for_clients_that_ask() -> None:
    async with serving(echo) as s:
        assert [sequence_of(e) for e in await collect(s.stream(call_metadata=SEQUENCED))] == [
            1,
            2,
            3,
        ]
        for event in await collect(s.stream()):
            kind = event.WhichOneof("payload")
            assert kind is not None
            assert not getattr(event, kind).HasField("metadata")


async def test_closing_a_stream_leaves_the_others_alone() -> None:
    agent = Gated()
    async with serving(agent) as s:
        stream = s.stream()
        (first,) = await take(stream, 1)
        other = s.subscribe(first.task.id)
        await take(other, 1)
        stream.cancel()
        await s.get(first.task.id)
        agent.go.set()
        assert outline(await collect(other)) == ["status COMPLETED"]


async def test_two_streaming_senders_on_one_task_each_follow_to_their_own_end() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await queue.enqueue_event(
            status_update(INPUT_REQUIRED, f"answer to {context.get_user_input()}")
        )

    async with serving(Agent(execute)) as s:
        task = await s.send("start")
        streams = {word: s.stream(word, task_id=task.id) for word in ("one", "two", "three")}
        for word, stream in streams.items():
            events = await collect(stream)
            assert kinds(events)[0] == "task"
            said = [
                text(e.status_update.status.message) for e in events if e.HasField("status_update")
            ]
            assert said[-1] == f"answer to {word}"


async def test_streaming_sender_whose_task_ended_before_its_turn_is_told() -> None:
    agent = Gated()
    async with serving(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        stream = s.stream("too late", task_id=task.id)
        await s.get(task.id)
        agent.go.set()
        assert_error(await refused(stream), "UNSUPPORTED_OPERATION")
        assert len(agent.contexts) == 1
