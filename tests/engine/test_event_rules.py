"""What an agent may publish, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
import pytest

from a2a_grpc import pb
from a2a_grpc.agent.executor import Event
from a2a_grpc.errors import InvalidAgentResponseError, InvalidParamsError, ServerError
from tests.support import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    PATIENCE,
    WORKING,
    Agent,
    Serving,
    a_task,
    asking,
    assert_error,
    assert_invalid,
    chunk,
    collect,
    message,
    outline,
    publishing,
    refused,
    request,
    serving,
    status_update,
    take,
    text,
    texts,
    within,
)


async def the_task(s: Serving) -> pb.Task:
    """The one task of the server."""
    page = await s.list(include_artifacts=True)
    assert len(page.tasks) == 1, page
    return page.tasks[0]


REPLY = pb.Message(message_id="r", role=pb.Role.ROLE_AGENT, parts=[pb.Part(text="hi")])

BREAKS_THE_RULES: dict[str, list[Any]] = {
    "a second Message": [REPLY, REPLY],
    "a Task after a Message": [REPLY, a_task()],
    "a status update after a Message": [REPLY, status_update(COMPLETED)],
    "an artifact update after a Message": [REPLY, chunk("x")],
    "a Message after a Task": [a_task(), REPLY],
    "a status update before the Task": [status_update(WORKING)],
    "an artifact update before the Task": [chunk("x")],
    "a Task with another id": [pb.Task(id="other", status=a_task().status)],
    "a Task with another context": [a_task(context_id="other")],
    "a status update with another task id": [
        a_task(),
        pb.TaskStatusUpdateEvent(task_id="other", status=a_task().status),
    ],
    "a status update with another context": [
        a_task(),
        pb.TaskStatusUpdateEvent(context_id="other", status=a_task().status),
    ],
    "an artifact update with another task id": [
        a_task(),
        pb.TaskArtifactUpdateEvent(task_id="other", artifact=chunk("x").artifact),
    ],
    "an artifact update without an artifact id": [
        a_task(),
        pb.TaskArtifactUpdateEvent(artifact=pb.Artifact(parts=[pb.Part(text="x")])),
    ],
    "a status update without a state": [a_task(), pb.TaskStatusUpdateEvent()],
    "a Message without parts": [pb.Message(message_id="r", role=pb.Role.ROLE_AGENT)],
    "what is no event": ["hello"],
}


@pytest.mark.parametrize("name", BREAKS_THE_RULES)
async def test_breaking_a_rule_fails_the_task(name: str) -> None:
    async with serving(publishing(*BREAKS_THE_RULES[name])) as s:
        assert_error(await refused(s.send()), "INVALID_AGENT_RESPONSE")
        task = await the_task(s)
        assert task.status.state == FAILED
        assert texts(task.history) == ["hello"]


@pytest.mark.parametrize("name", BREAKS_THE_RULES)
async def test_breaking_a_rule_ends_the_stream_with_failed(name: str) -> None:
    async with serving(publishing(*BREAKS_THE_RULES[name])) as s:
        events: list[pb.StreamResponse] = []

        async def read(stream: Any) -> None:
            async for event in stream:
                events.append(event)

        assert_error(await refused(read(s.stream())), "INVALID_AGENT_RESPONSE")
        assert events[0].HasField("task")
        assert outline(events)[-1].endswith("FAILED")


async def test_breaking_a_rule_fails_the_task_even_if_the_agent_ignores_the_error() -> None:
    raised: list[Exception] = []

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        try:
            await queue.enqueue_event(REPLY)
        except InvalidAgentResponseError as error:
            raised.append(error)
        try:
            await queue.enqueue_event(status_update(COMPLETED))
        except InvalidAgentResponseError as error:
            raised.append(error)

    async with serving(Agent(execute)) as s:
        assert_error(await refused(s.send()), "INVALID_AGENT_RESPONSE")
        assert raised
        assert (await the_task(s)).status.state == FAILED


async def test_message_to_an_existing_task_is_answered_within_the_task() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED))
        else:
            await queue.enqueue_event(REPLY)

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert_error(await refused(s.send(task_id=task.id)), "INVALID_AGENT_RESPONSE")
        assert (await s.get(task.id)).status.state == FAILED


async def test_append_to_an_unknown_artifact_starts_it() -> None:
    events = (a_task(), chunk("x", append=True), chunk("y", append=True), status_update(COMPLETED))
    async with serving(publishing(*events)) as s:
        got = await collect(s.stream())
        updates = [e.artifact_update for e in got if e.HasField("artifact_update")]
        assert [update.append for update in updates] == [False, True]
        task = await the_task(s)
        assert [text(artifact) for artifact in task.artifacts] == ["xy"]


async def test_artifact_that_is_not_appended_replaces_the_former_one() -> None:
    events = (a_task(), chunk("x"), chunk("other", "b"), chunk("y"), status_update(COMPLETED))
    async with serving(publishing(*events)) as s:
        task = await s.send()
        assert {a.artifact_id: text(a) for a in task.artifacts} == {"a": "y", "b": "other"}


async def test_append_to_an_artifact_of_an_earlier_turn_appends() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk(context.get_user_input(), append=True))
        await queue.enqueue_event(status_update(INPUT_REQUIRED))

    async with serving(Agent(execute)) as s:
        task = await s.send("x")
        task = await s.send("y", task_id=task.id)
        assert [text(artifact) for artifact in task.artifacts] == ["xy"]


async def test_updates_carry_the_ids_that_the_agent_left_out() -> None:
    async with serving(publishing(a_task(), chunk("x"), status_update(COMPLETED, "bye"))) as s:
        task, artifact, status = await collect(s.stream())
        ids = (task.task.id, task.task.context_id)
        assert all(ids)
        assert (artifact.artifact_update.task_id, artifact.artifact_update.context_id) == ids
        assert (status.status_update.task_id, status.status_update.context_id) == ids
        said = status.status_update.status.message
        assert (said.task_id, said.context_id) == ids
        assert said.message_id
        assert said.role == pb.Role.ROLE_AGENT
        assert status.status_update.status.HasField("timestamp")


async def test_direct_message_is_completed_and_makes_no_task() -> None:
    async with serving(publishing(pb.Message(parts=[pb.Part(text="hi")]))) as s:
        answer = await s.call("SendMessage", request("hello", context_id="c-1"))
        assert answer.WhichOneof("payload") == "message"
        assert answer.message.message_id
        assert answer.message.role == pb.Role.ROLE_AGENT
        assert answer.message.context_id == "c-1"
        assert not answer.message.task_id
        assert (await s.list()).total_size == 0


async def test_repeated_task_event_adds_to_the_task_and_loses_nothing() -> None:
    events: list[Event] = [
        a_task(),
        chunk("x"),
        pb.Task(
            status=a_task(WORKING, "half").status,
            artifacts=[pb.Artifact(artifact_id="b", parts=[pb.Part(text="new")])],
        ),
        status_update(COMPLETED),
    ]
    async with serving(publishing(*events)) as s:
        task = await s.send()
        assert {a.artifact_id: text(a) for a in task.artifacts} == {"a": "x", "b": "new"}
        assert texts(task.history) == ["hello", "half"]


async def test_task_event_in_a_second_turn_keeps_what_the_task_has() -> None:
    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(history=[context.message]))
        await queue.enqueue_event(chunk(context.get_user_input(), context.get_user_input()))
        await queue.enqueue_event(status_update(INPUT_REQUIRED, "more?"))

    async with serving(Agent(execute)) as s:
        task = await s.send("one")
        task = await s.send("two", task_id=task.id)
        assert [text(a) for a in task.artifacts] == ["one", "two"]
        assert texts(task.history) == ["one", "more?", "two"]


async def test_nothing_follows_the_first_terminal_state() -> None:
    events = (a_task(), status_update(COMPLETED), chunk("late"), status_update(FAILED), a_task())
    async with serving(publishing(*events)) as s:
        got = await collect(s.stream())
        assert outline(got) == ["task WORKING", "status COMPLETED"]
        task = await the_task(s)
        assert task.status.state == COMPLETED
        assert not task.artifacts


async def test_events_after_execute_returned_are_dropped() -> None:
    kept: list[Any] = []

    async def execute(_: Any, queue: Any) -> None:
        kept.append(queue)
        await queue.enqueue_event(a_task(INPUT_REQUIRED))

    async with serving(Agent(execute)) as s:
        task = await s.send()
        # The turn is over when a second one has been.
        await s.send(task_id=task.id)
        await kept[0].enqueue_event(status_update(COMPLETED))
        assert (await s.get(task.id)).status.state == INPUT_REQUIRED


async def test_event_that_the_agent_changes_afterwards_is_published_as_it_was() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        update = chunk("first")
        await queue.enqueue_event(update)
        update.artifact.parts[0].text = "changed"
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        assert text((await s.send()).artifacts[0]) == "first"


async def test_message_that_the_agent_changes_enters_the_history_as_it_was_sent() -> None:
    async def execute(context: Any, queue: Any) -> None:
        context.message.parts[0].text = "changed"
        await queue.enqueue_event(a_task(COMPLETED))

    async with serving(Agent(execute)) as s:
        assert texts((await s.send("sent")).history) == ["sent"]


# Exceptions.


async def test_exception_fails_the_task_after_its_events_and_its_text_stays_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk("before"))
        raise RuntimeError("the secret is 42")

    async with serving(Agent(execute)) as s:
        with caplog.at_level(logging.ERROR):
            events = await collect(s.stream())
        assert outline(events) == ["task WORKING", "artifact before", "status FAILED"]
        task = await the_task(s)
        assert text(task.status.message)
        assert "secret" not in str(task)
        assert "secret" not in str(events)
        logged = [r for r in caplog.records if r.exc_info and "secret" in str(r.exc_info[1])]
        assert logged


async def test_exception_before_the_task_is_a_failed_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def execute(_: Any, queue: Any) -> None:
        raise RuntimeError("the secret is 42")

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert texts(task.history) == ["hello"]
        assert "secret" not in str(task)


async def test_exception_after_a_message_is_a_failed_task() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(REPLY)
        raise RuntimeError("the secret is 42")

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert "secret" not in str(task)


async def test_cancelled_error_of_the_agents_own_fails_the_task_once() -> None:
    attempts: list[int] = []

    async def execute(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert attempts == [1]


async def test_exception_group_fails_the_task() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        raise BaseExceptionGroup("several", [ValueError("secret"), KeyError("secret")])

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert "secret" not in str(task)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "in a ServerError"])
async def test_invalid_params_error_reaches_the_caller(wrapped: bool) -> None:
    async def execute(_: Any, queue: Any) -> None:
        error = InvalidParamsError.field("message.parts[0]", "must be a number")
        raise ServerError(error) if wrapped else error

    async with serving(Agent(execute)) as s:
        assert_invalid(await refused(s.send()), "message.parts[0]")
        assert_invalid(await refused(s.stream()), "message.parts[0]")
        assert (await s.list()).total_size == 0


async def test_invalid_params_error_after_the_task_reaches_the_caller_and_fails_it() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        raise InvalidParamsError.field("message.parts[0]", "must be a number")

    async with serving(Agent(execute)) as s:
        assert_invalid(await refused(s.send()), "message.parts[0]")
        assert (await the_task(s)).status.state == FAILED


@pytest.mark.parametrize("pausing", [False, True], ids=["at once", "after the commit"])
async def test_error_after_the_task_ended_changes_nothing_for_the_caller(pausing: bool) -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(status_update(COMPLETED))
        if pausing:
            await asyncio.sleep(0.05)
        raise InvalidParamsError.field("message.parts[0]", "too late")

    async with serving(Agent(execute)) as s:
        assert (await s.send()).status.state == COMPLETED


@pytest.mark.parametrize(
    "events", [[], [a_task()], [a_task(), chunk("x")]], ids=["nothing", "a Task", "an artifact"]
)
async def test_returning_without_finishing_fails_the_task(events: list[Event]) -> None:
    async with serving(publishing(*events)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert text(task.status.message)


async def test_returning_without_finishing_a_second_turn_fails_the_task() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED))

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert (await s.send(task_id=task.id)).status.state == FAILED


# History.


async def test_status_message_moves_to_the_history_when_the_state_changes() -> None:
    events = (
        a_task(WORKING, "one"),
        status_update(WORKING, "two"),
        status_update(WORKING),
        status_update(COMPLETED, "three"),
    )
    async with serving(publishing(*events)) as s:
        task = await s.send()
        assert texts(task.history) == ["hello", "one", "two"]
        assert text(task.status.message) == "three"


async def test_question_enters_the_history_before_its_answer() -> None:
    async with serving(asking) as s:
        task = await s.send("first")
        assert texts(task.history) == ["first"]
        assert text(task.status.message) == "what else?"
        task = await s.send("second", task_id=task.id)
        assert texts(task.history) == ["first", "what else?", "second"]
        task = await s.send("done", task_id=task.id)
        assert texts(task.history) == ["first", "what else?", "second", "what else?", "done"]
        assert text(task.status.message) == "bye"


async def test_users_message_enters_the_history_once_and_with_both_ids() -> None:
    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(history=[context.message]))
        await queue.enqueue_event(a_task(WORKING, "again", history=[context.message]))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        sent = message("once")
        task = await s.send(sent)
        ours = [m for m in task.history if m.role == pb.Role.ROLE_USER]
        assert [m.message_id for m in ours] == [sent.message_id]
        assert (ours[0].task_id, ours[0].context_id) == (task.id, task.context_id)


async def test_message_id_that_is_used_again_in_a_later_turn_enters_the_history() -> None:
    async with serving(asking) as s:
        task = await s.send("one", message_id="m")
        task = await s.send("two", task_id=task.id, message_id="m")
        assert texts(task.history) == ["one", "what else?", "two"]


# What clients can read.


def deep_artifact(levels: int) -> pb.TaskArtifactUpdateEvent:
    # Built in place: protobuf copies by parsing, and then refuses what is too deep.
    update = pb.TaskArtifactUpdateEvent()
    update.artifact.artifact_id = "deep"
    value = update.artifact.parts.add().data
    for _ in range(levels):
        value = value.struct_value.fields["a"]
    value.number_value = 1
    return update


@pytest.mark.parametrize("levels", [21, 28, 31, 32, 33, 48, 90])
async def test_deep_data_of_an_agent_never_makes_the_list_unreadable(levels: int) -> None:
    events = (a_task(), deep_artifact(levels), status_update(COMPLETED))
    async with serving(publishing(*events)) as s:
        stream = s.stream()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await collect(stream)
        assert await stream.code() in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL)
        task = await the_task(s)
        assert task.status.state in (COMPLETED, FAILED)
        await s.get(task.id)


async def test_agent_that_publishes_much_at_once_is_committed_in_order() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        for number in range(2000):
            await queue.enqueue_event(chunk(f"{number},", append=True))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        task = await within(s.send(), PATIENCE)
        assert text(task.artifacts[0]) == "".join(f"{n}," for n in range(2000))


async def test_events_are_told_while_the_agent_goes_on() -> None:
    go = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk("x"))
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        stream = s.stream()
        assert outline(await take(stream, 2)) == ["task WORKING", "artifact x"]
        go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]
