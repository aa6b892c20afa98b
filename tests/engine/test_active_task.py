"""`ActiveTask` and its registry, used without a server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from a2a_grpc import ActiveTask, ActiveTaskRegistry, InMemoryBus, InMemoryStorage, pb
from a2a_grpc.active.active_task import ActiveParts
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.agent.executor import Event
from a2a_grpc.agent.request_context import RequestContext, SimpleRequestContextBuilder
from a2a_grpc.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a_grpc.storage.values import (
    OperationState,
    Scope,
)
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    chunk,
    echo,
    message,
    status_update,
    text,
    texts,
    within,
)

CALL = ServerCallContext()


@dataclass
class Engine:
    storage: InMemoryStorage[Any]
    bus: InMemoryBus
    registry: ActiveTaskRegistry

    def active(self, task_id: str | None = None) -> ActiveTask:
        return self.registry.get_or_create(task_id or str(uuid.uuid4()))


@asynccontextmanager
async def an_engine(agent: Any) -> AsyncIterator[Engine]:
    async with InMemoryStorage[Any]() as storage, InMemoryBus() as bus:
        parts = ActiveParts(
            storage=storage,
            bus=bus,
            builder=SimpleRequestContextBuilder(task_store=storage),
            executor_for=lambda _: agent,
        )
        yield Engine(storage, bus, ActiveTaskRegistry(parts))


def context_for(
    active: ActiveTask, words: str = "hello", call: ServerCallContext = CALL, **fields: Any
) -> RequestContext:
    return RequestContext(
        call, pb.SendMessageRequest(message=message(words, **fields)), active.task_id, "c"
    )


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    async def read() -> list[Event]:
        return [event async for event in events]

    return await within(read(), 5)


def words(events: list[Event]) -> list[str]:
    found = []
    for event in events:
        if isinstance(event, pb.TaskArtifactUpdateEvent):
            found.append(text(event.artifact))
        elif isinstance(event, pb.Message):
            found.append("message " + text(event))
        else:
            name = pb.TaskState.Name(event.status.state).removeprefix("TASK_STATE_")
            found.append(f"{type(event).__name__} {name}")
    return found


async def test_request_is_followed_from_its_first_event_to_its_end() -> None:
    async with an_engine(Agent(echo)) as engine:
        active = engine.active()
        await active.start(CALL, create_task_if_missing=True)
        events = await all_of(active.subscribe(request=context_for(active)))
        assert words(events) == ["Task WORKING", "hello", "TaskStatusUpdateEvent COMPLETED"]
        assert (await active.get_task()).status.state == COMPLETED


async def test_start_refuses_a_task_that_does_not_exist() -> None:
    async with an_engine(Agent(echo)) as engine:
        active = engine.active("t")
        assert active.task_id == "t"
        with pytest.raises(TaskNotFoundError):
            await active.start(CALL)
        await active.start(CALL, create_task_if_missing=True)
        with pytest.raises(TaskNotFoundError):
            await active.get_task()


async def test_start_refuses_a_finished_task_and_somebody_elses() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        await all_of(active.subscribe(request=context_for(active)))
        await active.start(CALL)
        with pytest.raises(TaskNotFoundError):
            await active.start(ServerCallContext(principal=Principal("other")))
        await all_of(active.subscribe(request=context_for(active, "done")))
        with pytest.raises(UnsupportedOperationError):
            await active.start(CALL)


async def test_enqueue_request_returns_the_id_of_the_operation() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        request_id = await active.enqueue_request(context_for(active))
        assert isinstance(request_id, uuid.UUID)
        operation = await engine.storage.load_operation(str(request_id))
        assert operation is not None
        assert operation.task_id == active.task_id


async def test_requests_are_processed_one_after_another() -> None:
    running, most, order = 0, 0, []

    async def execute(context: Any, queue: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(context.get_user_input())
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await asyncio.sleep(0)
        await queue.enqueue_event(status_update(INPUT_REQUIRED))
        running -= 1

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        ids = [await active.enqueue_request(context_for(active, f"{n}")) for n in range(20)]
        await all_of(active.subscribe(request=context_for(active, "last")))
        assert order == [*(str(n) for n in range(20)), "last"]
        assert most == 1
        for request_id in ids:
            operation = await engine.storage.load_operation(str(request_id))
            assert operation is not None
            assert operation.state is OperationState.DONE


async def test_events_of_a_request_are_stored_before_the_next_one_starts() -> None:
    seen: list[str] = []

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        else:
            seen.append(text(context.current_task.status.message))
            seen.extend(text(a) for a in context.current_task.artifacts)
            seen.append(text(context.current_task.history[-1]))
        await queue.enqueue_event(chunk("x"))
        await queue.enqueue_event(status_update(INPUT_REQUIRED))

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        await active.enqueue_request(context_for(active, "one"))
        await all_of(active.subscribe(request=context_for(active, "two")))
        assert seen == ["", "x", "two"]


async def test_direct_message_is_what_the_subscriber_of_its_request_gets() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(pb.Message(parts=[pb.Part(text="hi")]))

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        events = await all_of(active.subscribe(request=context_for(active)))
        assert words(events) == ["message hi"]


async def test_error_of_a_request_reaches_its_subscriber() -> None:
    async def execute(_: Any, queue: Any) -> None:
        raise InvalidParamsError.field("message", "is not what I take")

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        with pytest.raises(InvalidParamsError):
            await all_of(active.subscribe(request=context_for(active)))


async def test_initial_task_comes_first_if_asked_for() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        await all_of(active.subscribe(request=context_for(active, "one")))
        with_task = await all_of(
            active.subscribe(request=context_for(active, "two"), include_initial_task=True)
        )
        assert words(with_task) == ["Task INPUT_REQUIRED", "TaskStatusUpdateEvent INPUT_REQUIRED"]
        without = await all_of(active.subscribe(request=context_for(active, "three")))
        assert words(without) == ["TaskStatusUpdateEvent INPUT_REQUIRED"]


async def test_status_updates_are_replaced_with_the_task_if_asked_for() -> None:
    async with an_engine(Agent(echo)) as engine:
        active = engine.active()
        events = await all_of(
            active.subscribe(request=context_for(active), replace_status_update_with_task=True)
        )
        assert words(events) == ["Task WORKING", "hello", "Task COMPLETED"]
        last = events[-1]
        assert isinstance(last, pb.Task)
        assert [text(artifact) for artifact in last.artifacts] == ["hello"]
        assert texts(last.history) == ["hello"]


async def test_task_in_place_of_a_status_update_is_the_task_as_it_was_then() -> None:
    """The same stream, whoever reads it how late."""

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(status_update(WORKING, "one"))
        await queue.enqueue_event(status_update(WORKING, "two"))
        await queue.enqueue_event(status_update(COMPLETED, "three"))

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        events = await all_of(
            active.subscribe(request=context_for(active), replace_status_update_with_task=True)
        )
        assert [
            text(event.status.message) for event in events[1:] if isinstance(event, pb.Task)
        ] == ["one", "two", "three"]


async def test_subscribers_without_a_request_follow_to_the_end_of_the_task() -> None:
    agent = Gated()
    async with an_engine(agent) as engine:
        active = engine.active()
        await active.enqueue_request(context_for(active))
        await within(agent.started.wait())
        readers = [
            asyncio.ensure_future(all_of(active.subscribe(include_initial_task=True)))
            for _ in range(3)
        ]
        async with asyncio.timeout(5):
            while not await engine.storage.load_head(active.task_id):  # noqa: ASYNC110
                await asyncio.sleep(0)
        agent.go.set()
        for reader in readers:
            assert words(await reader)[-1] == "TaskStatusUpdateEvent COMPLETED"


async def test_subscribing_to_a_finished_task_ends_at_once() -> None:
    async with an_engine(Agent(echo)) as engine:
        active = engine.active()
        await all_of(active.subscribe(request=context_for(active)))
        events = await all_of(active.subscribe(include_initial_task=True))
        assert words(events) == ["Task COMPLETED"]


async def test_subscribing_to_a_task_that_does_not_exist_is_not_found() -> None:
    async with an_engine(Agent(echo)) as engine:
        with pytest.raises(TaskNotFoundError):
            await all_of(engine.active().subscribe())


async def test_cancel_of_a_running_task() -> None:
    agent = Gated()
    async with an_engine(agent) as engine:
        active = engine.active()
        await active.enqueue_request(context_for(active))
        await within(agent.started.wait())
        canceled = await within(asyncio.gather(active.cancel(CALL), active.cancel(CALL)))
        assert [task.status.state for task in canceled] == [CANCELED, CANCELED]
        assert canceled[0] == canceled[1]
        with pytest.raises(TaskNotCancelableError):
            await active.cancel(CALL)


async def test_cancel_of_a_task_that_waits_for_input() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        await all_of(active.subscribe(request=context_for(active)))
        canceled = await within(active.cancel(CALL))
        assert canceled.status.state == CANCELED


async def test_cancel_of_an_unknown_task_and_of_somebody_elses_is_not_found() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        with pytest.raises(TaskNotFoundError):
            await active.cancel(CALL)
        await all_of(active.subscribe(request=context_for(active)))
        with pytest.raises(TaskNotFoundError):
            await active.cancel(ServerCallContext(principal=Principal("other")))


async def test_operation_never_carries_credentials() -> None:
    call = ServerCallContext(
        metadata={"authorization": "Bearer secret", "cookie": "secret", "traceparent": "00-1"}
    )
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        request_id = await active.enqueue_request(context_for(active, call=call))
        operation = await engine.storage.load_operation(str(request_id))
        assert operation is not None
        assert "secret" not in str(dict(operation.metadata))


async def test_agent_gets_the_context_that_was_enqueued_with_the_task_as_it_is() -> None:
    seen: list[tuple[str, bool, int]] = []

    async def execute(context: Any, queue: Any) -> None:
        seen.append((context.get_user_input(), context.current_task is not None, context.attempt))
        await asking(context, queue)

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        await active.enqueue_request(context_for(active, "one"))
        await all_of(active.subscribe(request=context_for(active, "two")))
        assert seen == [("one", False, 1), ("two", True, 1)]


async def test_registry_gives_out_one_active_task_and_forgets_it_when_idle() -> None:
    agent = Gated()
    async with an_engine(agent) as engine:
        active = engine.active("t")
        assert engine.active("t") is active
        assert engine.registry.get("t") is active
        reader = active.subscribe(request=context_for(active))
        assert words([await within(anext(reader))]) == ["Task WORKING"]
        agent.go.set()
        await all_of(reader)
        await within(engine.registry.drained(5))
        assert engine.registry.get("t") is None
        assert len(engine.registry) == 0


async def test_active_task_with_a_reader_stays_in_the_registry() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active("t")
        await all_of(active.subscribe(request=context_for(active)))
        reader = active.subscribe(include_initial_task=True)
        active = engine.active("t")
        reader = active.subscribe(include_initial_task=True)
        assert words([await within(anext(reader))]) == ["Task INPUT_REQUIRED"]
        assert engine.registry.get("t") is active
        await reader.aclose()  # type: ignore[attr-defined]
        assert engine.registry.get("t") is None


async def test_slow_subscriber_costs_nobody_anything_and_loses_nothing() -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        for number in range(3000):
            await queue.enqueue_event(chunk(f"{number},", append=True))
        await queue.enqueue_event(status_update(COMPLETED))

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        slow = active.subscribe(request=context_for(active))
        first = await within(anext(slow))
        async with asyncio.timeout(5):
            while (await active.get_task()).status.state != COMPLETED:  # noqa: ASYNC110
                await asyncio.sleep(0)
        rest = await all_of(slow)
        said = "".join(text(e.artifact) for e in rest if isinstance(e, pb.TaskArtifactUpdateEvent))
        assert isinstance(first, pb.Task)
        assert said == "".join(f"{number}," for number in range(3000))


async def test_request_for_another_task_is_refused() -> None:
    async with an_engine(Agent(echo)) as engine:
        with pytest.raises(ValueError, match="other"):
            await engine.active().enqueue_request(
                RequestContext(CALL, pb.SendMessageRequest(message=message()), "other", "c")
            )


async def test_scope_is_that_of_the_call() -> None:
    async with an_engine(Agent(asking)) as engine:
        active = engine.active()
        call = ServerCallContext(principal=Principal("ann"), tenant="t")
        await all_of(active.subscribe(request=context_for(active, call=call)))
        assert await engine.storage.load_head(active.task_id, scope=Scope("t", "ann"))
        assert await engine.storage.load_head(active.task_id, scope=Scope()) is None


async def test_subscriber_of_a_request_gets_nothing_of_the_next_one_however_late_it_reads() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await queue.enqueue_event(status_update(INPUT_REQUIRED, context.get_user_input()))

    async with an_engine(Agent(execute)) as engine:
        active = engine.active()
        late = active.subscribe(request=context_for(active, "one"))
        await within(anext(late))
        await all_of(active.subscribe(request=context_for(active, "two")))
        rest = await all_of(late)
        said = [text(e.status.message) for e in rest if isinstance(e, pb.TaskStatusUpdateEvent)]
        assert said == ["one"]
