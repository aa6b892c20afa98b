"""SendMessage (specification 3.1.1, 3.2.2, 3.4)."""

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
    FAILED,
    INPUT_REQUIRED,
    TERMINAL,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    assert_error,
    assert_invalid,
    chunk,
    collect,
    connected,
    echo,
    message,
    outline,
    publishing,
    refused,
    request,
    serving,
    state_name,
    status_update,
    take,
    text,
    texts,
    within,
)


async def test_blocking_call_returns_the_finished_task(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        task = await s.send("hi")
        assert task.status.state == COMPLETED
        assert texts(task.history) == ["hi"]
        assert [text(artifact) for artifact in task.artifacts] == ["hi"]
        assert task.id
        assert task.context_id
        assert await s.get(task.id) == task


@pytest.mark.parametrize("state", [*TERMINAL, INPUT_REQUIRED, AUTH_REQUIRED], ids=state_name)
async def test_blocking_call_returns_at_every_state_that_ends_or_interrupts(
    state: pb.TaskState,
) -> None:
    async with serving(publishing(a_task(), status_update(state))) as s:
        assert (await s.send()).status.state == state


async def test_blocking_call_returns_at_auth_required_while_the_agent_goes_on() -> None:
    go = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(AUTH_REQUIRED))
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert task.status.state == AUTH_REQUIRED
        stream = s.subscribe(task.id)
        assert (await within(stream.read())).task.status.state == AUTH_REQUIRED
        go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_return_immediately_returns_the_task_as_created(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agent) as s:
        task = await s.send(immediately=True)
        assert task.status.state == WORKING
        stream = s.subscribe(task.id)
        await within(stream.read())
        agent.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_return_immediately_has_no_effect_on_a_direct_message() -> None:
    async with serving(publishing(pb.Message(parts=[pb.Part(text="hi")]))) as s:
        answer = await s.call("SendMessage", request(immediately=True))
        assert text(answer.message) == "hi"


async def test_return_immediately_on_a_waiting_task_returns_while_the_agent_works(
    serve: Callable[..., Any],
) -> None:
    agent = Gated()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED, "which?"))
        else:
            await agent.execute(context, queue)

    async with serve(Agent(execute)) as s:
        task = await s.send("one")
        task = await s.send("two", task_id=task.id, immediately=True)
        assert task.status.state not in TERMINAL
        assert texts(task.history) == ["one", "which?", "two"]
        await within(agent.started.wait())
        agent.go.set()
        # One more message waits for the turn and finds the task finished.
        assert_error(
            await refused(s.call("SendMessage", request(task_id=task.id))), "UNSUPPORTED_OPERATION"
        )


async def test_return_immediately_on_a_busy_task_does_not_wait() -> None:
    agent = Gated()
    async with serving(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        again = await within(s.send(task_id=task.id, immediately=True))
        assert again.id == task.id
        agent.go.set()


async def test_task_id_alone_keeps_the_context_on_every_turn(serve: Callable[..., Any]) -> None:
    seen: list[tuple[str, str]] = []

    async def execute(context: Any, queue: Any) -> None:
        seen.append((context.task_id, context.context_id))
        assert context.message.context_id == context.context_id
        assert context.message.task_id == context.task_id
        if context.current_task is not None:
            assert context.current_task.context_id == context.context_id
        await asking(context, queue)

    async with serve(Agent(execute)) as s:
        first = await s.send("one", context_id="the-context")
        assert first.context_id == "the-context"
        for turn in ("two", "three"):
            task = await s.send(turn, task_id=first.id)
            assert (task.id, task.context_id) == (first.id, "the-context")
        events = await collect(s.stream("done", task_id=first.id))
        assert [e.task.context_id for e in events if e.HasField("task")] == ["the-context"]
        assert [e.status_update.context_id for e in events if e.HasField("status_update")] == [
            "the-context"
        ]
        assert seen == [(first.id, "the-context")] * 4
        done = await s.get(first.id)
        assert texts([m for m in done.history if m.role == pb.Role.ROLE_USER]) == [
            "one",
            "two",
            "three",
            "done",
        ]
        assert {m.context_id for m in done.history} == {"the-context"}


async def test_generated_context_is_kept_on_every_turn() -> None:
    async with serving(asking) as s:
        first = await s.send("one")
        second = await s.send("two", task_id=first.id)
        third = await s.send("three", task_id=first.id, context_id=first.context_id)
        assert first.context_id
        assert {first.context_id, second.context_id, third.context_id} == {first.context_id}


async def test_context_id_groups_several_tasks() -> None:
    async with serving(echo) as s:
        one = await s.send(context_id="c")
        two = await s.send(context_id="c")
        assert one.id != two.id
        assert one.context_id == two.context_id == "c"


async def test_mismatching_context_is_refused() -> None:
    async with serving(asking) as s:
        task = await s.send()
        call = s.call("SendMessage", request(task_id=task.id, context_id="other"))
        assert_invalid(await refused(call), "message.context_id")
        stream = s.stream(task_id=task.id, context_id="other")
        assert_invalid(await refused(stream), "message.context_id")
        assert (await s.get(task.id)) == task


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_unknown_task_is_not_found(method: str) -> None:
    async with serving(echo) as s:
        status = await refused(s.call(method, request(task_id="chosen-by-the-client")))
        assert_error(status, "TASK_NOT_FOUND")
        assert status.metadata["task_id"] == "chosen-by-the-client"


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize("state", TERMINAL, ids=state_name)
async def test_finished_task_takes_no_message(method: str, state: pb.TaskState) -> None:
    async with serving(publishing(a_task(), status_update(state))) as s:
        task = await s.send()
        status = await refused(s.call(method, request(task_id=task.id)))
        assert_error(status, "UNSUPPORTED_OPERATION")
        assert await s.get(task.id) == task


async def four_messages(context: Any, queue: Any) -> None:
    await queue.enqueue_event(a_task(WORKING, "1"))
    await queue.enqueue_event(status_update(WORKING, "2"))
    await queue.enqueue_event(status_update(WORKING, "3"))
    await queue.enqueue_event(status_update(COMPLETED))


@pytest.mark.parametrize(
    ("length", "expected"),
    [(None, ["hello", "1", "2", "3"]), (0, []), (1, ["3"]), (3, ["1", "2", "3"]), (99, None)],
)
async def test_history_length_keeps_the_newest(
    length: int | None, expected: list[str] | None, serve: Callable[..., Any]
) -> None:
    async with serve(Agent(four_messages)) as s:
        task = await s.send(history_length=length)
        assert texts(task.history) == (expected if expected is not None else ["hello", *"123"])
        # What is stored is not cut.
        assert len((await s.get(task.id)).history) == 4


async def test_history_length_cuts_immediate_returns() -> None:
    agent = Gated()
    async with serving(agent) as s:
        task = await s.send(immediately=True, history_length=0)
        assert not task.history
        assert texts((await s.get(task.id)).history) == ["hello"]
        agent.go.set()


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_negative_history_length_is_refused(method: str) -> None:
    async with serving(echo) as s:
        status = await refused(s.call(method, request(history_length=-1)))
        assert_invalid(status, "configuration.history_length")


async def test_blocking_senders_on_one_task_each_get_their_own_result(
    serve: Callable[..., Any],
) -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        word = context.get_user_input()
        await queue.enqueue_event(status_update(WORKING))
        await queue.enqueue_event(status_update(INPUT_REQUIRED, f"answer to {word}"))

    async with serve(Agent(execute)) as s:
        task = await s.send("start")
        words = [f"w{number}" for number in range(8)]
        answers = await asyncio.gather(*(s.send(word, task_id=task.id) for word in words))
        for word, answer in zip(words, answers, strict=True):
            assert text(answer.status.message) == f"answer to {word}"
            assert text(answer.history[-1]) == word


async def test_second_turn_that_begins_with_an_artifact_is_waited_for() -> None:
    go, told = asyncio.Event(), asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED))
            return
        await queue.enqueue_event(chunk("x"))
        told.set()
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        task = await s.send()
        reader = s.subscribe(task.id)
        await within(reader.read())
        blocked = asyncio.ensure_future(s.send(task_id=task.id))
        assert outline([await within(reader.read())]) == ["artifact x"]
        await s.get(task.id)
        assert not blocked.done()
        go.set()
        assert (await within(blocked)).status.state == COMPLETED


async def test_deadline_of_the_call_does_not_end_the_task(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agent) as s:
        call = s.call("SendMessage", request(context_id="c"), timeout=0.5)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        task = await s.appeared(context_id="c")
        stream = s.subscribe(task.id)
        await within(stream.read())
        assert not agent.cancelled.is_set()
        agent.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_client_that_disconnects_cancels_nothing(method: str) -> None:
    agent = Gated()
    async with serving(agent) as s:
        async with connected(s.server.address) as other:
            call = other.call(method, request(context_id="c"))
            if method == "SendStreamingMessage":
                await within(call.read())
            else:
                waiting = asyncio.ensure_future(call)
            await within(agent.started.wait())
        if method == "SendMessage":
            with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
                await waiting
        task = await s.appeared(context_id="c")
        stream = s.subscribe(task.id)
        await within(stream.read())
        agent.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]
        assert not agent.cancelled.is_set()


async def test_agent_sees_the_deadline_of_the_call() -> None:
    seen: list[float | None] = []

    async def execute(context: Any, queue: Any) -> None:
        seen.append(context.call_context.time_remaining())
        await echo(context, queue)

    async with serving(Agent(execute)) as s:
        await s.call("SendMessage", request(), timeout=7)
        await s.call("SendMessage", request(), timeout=None)
        assert seen[0] is not None
        assert 6 < seen[0] < 8  # gRPC rounds it on its way
        assert seen[1] is None


async def test_large_text_and_large_raw_parts_come_back_whole(serve: Callable[..., Any]) -> None:
    async def execute(context: Any, queue: Any) -> None:
        update = pb.TaskArtifactUpdateEvent(artifact=pb.Artifact(artifact_id="a"))
        update.artifact.parts.extend(context.message.parts)
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(update)
        await queue.enqueue_event(status_update(COMPLETED))

    raw = bytes(range(256)) * 4096 * 16
    async with serve(Agent(execute)) as s:
        task = await s.send("ä" * 2**19)
        assert text(task.artifacts[0]) == "ä" * 2**19
        assert text(task.history[0]) == "ä" * 2**19
        task = await s.send(message("", pb.Part(raw=raw), parts=[pb.Part(raw=raw)]))
        assert task.artifacts[0].parts[0].raw == raw
        assert task.history[0].parts[0].raw == raw


async def test_message_over_the_limit_is_refused_by_grpc_and_the_server_goes_on() -> None:
    async with serving(echo, max_message_bytes=2**20) as s:
        status = await refused(s.call("SendMessage", request("x" * 2**21)))
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await s.send()).status.state == COMPLETED


async def test_many_senders_at_once_each_get_their_task(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        words = [f"w{number}" for number in range(100)]
        tasks = await within(asyncio.gather(*(s.send(word) for word in words)), 20)
        assert [text(task.artifacts[0]) for task in tasks] == words
        assert len({task.id for task in tasks}) == 100


async def test_agent_failure_is_the_answer_of_a_blocking_call() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        raise RuntimeError("secret")

    async with serving(Agent(execute)) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert "secret" not in str(task)


async def test_return_immediately_waits_for_no_message_that_came_before(
    serve: Callable[..., Any],
) -> None:
    """Also while the agent has begun with the answer that it asked for, and said nothing yet."""
    go = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        else:
            await go.wait()
        await queue.enqueue_event(status_update(INPUT_REQUIRED))

    async with serve(Agent(execute)) as s:
        task = await s.send()
        for text in ("first", "second", "third"):
            assert (await within(s.send(text, task_id=task.id, immediately=True))).id == task.id
        stream = s.stream("fourth", task_id=task.id)
        (first,) = await take(stream, 1)
        assert first.task.status.state == INPUT_REQUIRED
        go.set()
        assert outline(await collect(stream))[-1] == "status INPUT_REQUIRED"
        texts_of_users = [m.parts[0].text for m in (await s.get(task.id)).history]
        assert texts_of_users[-4:] == ["first", "second", "third", "fourth"]
