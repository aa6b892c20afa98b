"""CancelTask (specification 3.1.5, promise 5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.agent.request_context import SimpleRequestContextBuilder
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Operation,
    Turn,
)
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    REJECTED,
    TERMINAL,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    assert_error,
    chunk,
    collect,
    outline,
    publishing,
    refused,
    request,
    serving,
    state_name,
    status_update,
    take,
    text,
    within,
)


async def test_running_task_is_canceled(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        canceled = await s.cancel(task.id)
        assert canceled.id == task.id
        assert canceled.status.state == CANCELED
        await within(agent.cancelled.wait())
        assert (await s.get(task.id)).status.state == CANCELED


async def test_cancel_is_called_once_and_before_execute_is_cancelled() -> None:
    calls: list[str] = []
    agent = Gated()

    async def execute(context: Any, queue: Any) -> None:
        try:
            await agent.execute(context, queue)
        except asyncio.CancelledError:
            calls.append("execute cancelled")
            raise

    async def cancel(context: Any, queue: Any) -> None:
        assert agent.contexts[0].is_cancelled
        assert context.message is None
        assert context.task_id == context.current_task.id == agent.contexts[0].task_id
        assert context.context_id == agent.contexts[0].context_id
        assert context.current_task.status.state == WORKING
        calls.append("cancel")

    async with serving(Agent(execute, cancel)) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        assert not agent.contexts[0].is_cancelled
        await s.cancel(task.id)
        assert calls == ["cancel", "execute cancelled"]


class CountingCancels:
    """An authenticator that knows how many CancelTask calls have come in."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self.all_in = asyncio.Event()

    async def authenticate(self, call: ServerCallContext) -> Principal:
        if call.method == "CancelTask":
            self._missing -= 1
            if not self._missing:
                self.all_in.set()
        return Principal("somebody")


async def test_concurrent_cancels_share_one_cancellation_and_get_the_same_task() -> None:
    calls: list[str] = []
    agent, go, counting = Gated(), asyncio.Event(), CountingCancels(10)

    async def cancel(context: Any, queue: Any) -> None:
        calls.append(context.task_id)
        await go.wait()

    async with serving(Agent(agent.execute, cancel), authenticator=counting) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        cancels = [asyncio.ensure_future(s.cancel(task.id)) for _ in range(10)]
        await within(counting.all_in.wait())
        await s.get(task.id)
        go.set()
        answers = await within(asyncio.gather(*cancels))
        assert calls == [task.id]
        assert all(answer == answers[0] for answer in answers)
        assert answers[0].status.state == CANCELED


async def test_what_the_agent_says_in_cancel_is_the_end_of_the_task() -> None:
    agent = Gated()

    async def cancel(_: Any, queue: Any) -> None:
        await queue.enqueue_event(chunk("half done"))
        await queue.enqueue_event(status_update(CANCELED, "as you wish"))

    async with serving(Agent(agent.execute, cancel)) as s:
        stream = s.stream()
        (first,) = await take(stream, 1)
        await within(agent.started.wait())
        canceled = await s.cancel(first.task.id)
        assert text(canceled.status.message) == "as you wish"
        assert [text(artifact) for artifact in canceled.artifacts] == ["half done"]
        assert outline(await collect(stream)) == ["artifact half done", "status CANCELED"]


async def test_task_that_ends_otherwise_while_canceled_is_not_cancelable() -> None:
    agent = Gated()

    async def cancel(_: Any, queue: Any) -> None:
        await queue.enqueue_event(status_update(COMPLETED, "just made it"))

    async with serving(Agent(agent.execute, cancel)) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        cancel_call = s.call("CancelTask", pb.CancelTaskRequest(id=task.id))
        assert_error(await refused(cancel_call), "TASK_NOT_CANCELABLE")
        assert (await s.get(task.id)).status.state == COMPLETED


@pytest.mark.parametrize("how", ["swallows it", "never ends", "publishes later"])
async def test_agent_that_ignores_its_cancellation_is_canceled_in_time(how: str) -> None:
    started, release, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                if how == "swallows it":
                    break
        await queue.enqueue_event(status_update(COMPLETED, "ignored you"))
        over.set()

    async def cancel(_: Any, queue: Any) -> None:
        if how == "never ends":
            await asyncio.Event().wait()

    async with serving(Agent(execute, cancel), cancel_timeout=0.1) as s:
        stream = s.stream()
        (first,) = await take(stream, 1)
        await within(started.wait())
        began = time.monotonic()
        if how == "swallows it":
            # It published a terminal state in time: that one counts.
            call = s.call("CancelTask", pb.CancelTaskRequest(id=first.task.id))
            assert_error(await refused(call), "TASK_NOT_CANCELABLE")
            assert outline(await collect(stream)) == ["status COMPLETED"]
        else:
            assert (await s.cancel(first.task.id)).status.state == CANCELED
            assert time.monotonic() - began < 2
            assert outline(await collect(stream)) == ["status CANCELED"]
            release.set()
            await within(over.wait())
            assert (await s.get(first.task.id)).status.state == CANCELED


async def test_cancellation_that_raises_ends_in_canceled() -> None:
    agent = Gated()

    async def execute(context: Any, queue: Any) -> None:
        try:
            await agent.execute(context, queue)
        except asyncio.CancelledError:
            raise RuntimeError("while cleaning up") from None

    async def cancel(_: Any, queue: Any) -> None:
        raise RuntimeError("no")

    async with serving(Agent(execute, cancel)) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        assert (await s.cancel(task.id)).status.state == CANCELED


async def test_cancellation_during_an_agents_own_timeout_is_not_swallowed() -> None:
    started = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            started.set()

    async with serving(Agent(execute)) as s:
        task = await s.send(immediately=True)
        await within(started.wait())
        assert (await s.cancel(task.id)).status.state == CANCELED


async def test_task_that_waits_for_input_is_canceled_directly(serve: Callable[..., Any]) -> None:
    calls: list[str] = []

    async def cancel(context: Any, queue: Any) -> None:
        calls.append(context.task_id)

    async with serve(Agent(asking, cancel)) as s:
        task = await s.send()
        assert task.status.state == INPUT_REQUIRED
        canceled = await s.cancel(task.id)
        assert canceled.status.state == CANCELED
        assert not calls
        # The question is not lost.
        assert [text(one) for one in canceled.history] == ["hello", "what else?"]
        since = canceled.status.timestamp.ToNanoseconds() - task.status.timestamp.ToNanoseconds()
        assert since > 0


async def test_concurrent_cancels_of_a_waiting_task_get_the_same_task(
    serve: Callable[..., Any],
) -> None:
    async with serve(asking) as s:
        task = await s.send()
        calls = [s.call("CancelTask", pb.CancelTaskRequest(id=task.id)) for _ in range(10)]
        answers: list[pb.Task] = []
        for call in calls:
            try:
                answers.append(await within(call))
            except Exception:
                # It came after the end, which is just as good.
                assert_error(await refused(call), "TASK_NOT_CANCELABLE")
        assert answers
        assert all(answer == answers[0] for answer in answers)
        stored = await s.get(task.id)
        assert stored == answers[0]


@pytest.mark.parametrize("state", TERMINAL, ids=state_name)
async def test_finished_task_is_not_cancelable(state: pb.TaskState) -> None:
    async with serving(publishing(a_task(), status_update(state))) as s:
        task = await s.send()
        status = await refused(s.call("CancelTask", pb.CancelTaskRequest(id=task.id)))
        assert_error(status, "TASK_NOT_CANCELABLE")
        assert status.metadata["task_id"] == task.id


async def test_second_cancel_of_a_canceled_task_is_not_cancelable() -> None:
    async with serving(asking) as s:
        task = await s.send()
        await s.cancel(task.id)
        call = s.call("CancelTask", pb.CancelTaskRequest(id=task.id))
        assert_error(await refused(call), "TASK_NOT_CANCELABLE")


async def test_unknown_task_is_not_found() -> None:
    async with serving(asking) as s:
        call = s.call("CancelTask", pb.CancelTaskRequest(id="unknown"))
        assert_error(await refused(call), "TASK_NOT_FOUND")


async def test_every_stream_and_the_blocking_sender_end_with_canceled(
    serve: Callable[..., Any],
) -> None:
    agent = Gated()
    async with serve(agent) as s:
        blocking = s.call("SendMessage", request("hello", context_id="c"))
        blocked = asyncio.ensure_future(within(blocking))
        task = await s.appeared(context_id="c")
        readers = [s.subscribe(task.id) for _ in range(5)]
        for reader in readers:
            await take(reader, 1)
        await s.cancel(task.id)
        for reader in readers:
            assert outline(await collect(reader)) == ["status CANCELED"]
        assert (await blocked).task.status.state == CANCELED


async def test_messages_that_wait_behind_a_canceled_turn_are_refused() -> None:
    agent = Gated()
    async with serving(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        waiting = [s.call("SendMessage", request(task_id=task.id)) for _ in range(3)]
        await s.get(task.id)
        await s.cancel(task.id)
        for call in waiting:
            assert_error(await refused(call), "UNSUPPORTED_OPERATION")
        assert len(agent.contexts) == 1


async def test_client_that_stops_waiting_does_not_undo_the_cancellation() -> None:
    agent, called = Gated(), asyncio.Event()

    async def cancel(_: Any, queue: Any) -> None:
        called.set()

    async with serving(Agent(agent.execute, cancel)) as s:
        stream = s.stream()
        (first,) = await take(stream, 1)
        await within(agent.started.wait())
        call = s.call("CancelTask", pb.CancelTaskRequest(id=first.task.id))
        waiting = asyncio.ensure_future(call)
        await within(called.wait())
        call.cancel()
        assert outline(await collect(stream)) == ["status CANCELED"]
        with pytest.raises(asyncio.CancelledError):
            await waiting


class SlowStart(InMemoryStorage[Any]):
    """A store whose `start_turn` takes its time to return."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.turns = 0

    async def start_turn(self, task_id: str) -> Turn | Operation | None:
        turn = await super().start_turn(task_id)
        self.turns += 1
        if self.turns > 1:
            self.begun.set()
            await self.go.wait()
        return turn


async def test_cancel_of_a_turn_that_is_just_starting_is_not_lost() -> None:
    storage, agent = SlowStart(), Gated()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED))
        else:
            await agent.execute(context, queue)

    async with serving(Agent(execute), storage=storage) as s:
        task = await s.send()
        await_second = asyncio.ensure_future(s.send(task_id=task.id))
        await within(storage.begun.wait())
        cancel = s.call("CancelTask", pb.CancelTaskRequest(id=task.id))
        await s.get(task.id)
        storage.go.set()
        assert (await within(cancel, 5)).status.state == CANCELED
        assert (await within(await_second)).status.state == CANCELED


class SlowBuilder(SimpleRequestContextBuilder):
    """Takes its time over the second turn."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def build(self, *args: Any, **kw: Any) -> Any:
        context = await super().build(*args, **kw)
        if context.current_task is not None:
            self.begun.set()
            await self.go.wait()
        return context


async def test_cancel_while_the_context_is_built_is_not_lost() -> None:
    builder, agent = SlowBuilder(), Gated()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task(INPUT_REQUIRED))
        else:
            await agent.execute(context, queue)

    async def cancel(_: Any, queue: Any) -> None:
        builder.go.set()
        await asyncio.sleep(0)

    async with serving(Agent(execute, cancel), request_context_builder=builder) as s:
        task = await s.send()
        second = asyncio.ensure_future(s.send(task_id=task.id))
        await within(builder.begun.wait())
        assert (await within(s.cancel(task.id), 5)).status.state == CANCELED
        assert (await within(second)).status.state == CANCELED
        assert all(context.is_cancelled for context in agent.contexts)


async def test_state_that_is_not_terminal_said_in_cancel_ends_in_canceled() -> None:
    agent = Gated()

    async def cancel(_: Any, queue: Any) -> None:
        await queue.enqueue_event(status_update(INPUT_REQUIRED, "are you sure?"))

    async with serving(Agent(agent.execute, cancel)) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        assert (await s.cancel(task.id)).status.state == CANCELED


async def test_rejected_in_cancel_is_terminal_too() -> None:
    agent = Gated()

    async def cancel(_: Any, queue: Any) -> None:
        await queue.enqueue_event(status_update(REJECTED))

    async with serving(Agent(agent.execute, cancel)) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        call = s.call("CancelTask", pb.CancelTaskRequest(id=task.id))
        assert_error(await refused(call), "TASK_NOT_CANCELABLE")
        assert (await s.get(task.id)).status.state == REJECTED
