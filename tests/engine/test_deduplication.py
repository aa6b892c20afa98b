"""A retried SendMessage runs once (promise 9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from a2a_grpc import pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.errors import InvalidParamsError, UnavailableError
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Operation,
)
from tests.support import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    Agent,
    Client,
    Gated,
    a_task,
    asking,
    assert_invalid,
    collect,
    connected,
    message,
    outline,
    refused,
    request,
    serving,
    status_update,
    take,
    text,
    within,
)

MARKS = {
    "Envoy's": (("x-envoy-attempt-count", "2"),),
    "our client's": (("a2a-grpc-retry", "1"),),
}
MARKED = MARKS["our client's"]


class Counter:
    """Counts its runs and tells each by its number; a Message where the user asks for one."""

    def __init__(self) -> None:
        self.runs = 0

    async def execute(self, context: Any, queue: Any) -> None:
        self.runs += 1
        said = [pb.Part(text=str(self.runs))]
        if context.get_user_input() == "message":
            await queue.enqueue_event(pb.Message(parts=said))
            return
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await queue.enqueue_event(status_update(INPUT_REQUIRED, str(self.runs)))

    async def cancel(self, context: Any, queue: Any) -> None: ...


@pytest.mark.parametrize("mark", MARKS)
async def test_marked_retry_gets_the_same_task(mark: str, serve: Callable[..., Any]) -> None:
    agent = Counter()
    async with serve(agent) as s:
        sent = message("once")
        first = await s.send(sent)
        again = await s.send(sent, call_metadata=MARKS[mark])
        assert again == first
        assert agent.runs == 1


@pytest.mark.parametrize(
    "metadata",
    [(), (("x-envoy-attempt-count", "1"),)],
    ids=["no mark", "Envoy's first attempt"],
)
async def test_unmarked_message_with_the_same_id_is_new_work_by_default(metadata: Any) -> None:
    agent = Counter()
    async with serving(agent) as s:
        sent = message("once")
        first = await s.send(sent)
        again = await s.send(sent, call_metadata=metadata)
        assert again.id != first.id
        assert agent.runs == 2


async def test_every_call_is_recorded_for_a_later_marked_one() -> None:
    agent = Counter()
    async with serving(agent) as s:
        sent = message("once")
        await s.send(sent)
        second = await s.send(sent)
        again = await s.send(sent, call_metadata=MARKED)
        assert again == second
        assert agent.runs == 2


async def test_always_looks_up_unmarked_calls_too(serve: Callable[..., Any]) -> None:
    agent = Counter()
    async with serve(agent, deduplicate="always") as s:
        sent = message("once")
        assert await s.send(sent) == await s.send(sent)
        assert agent.runs == 1


async def test_never_looks_up_nothing() -> None:
    agent = Counter()
    async with serving(agent, deduplicate="never") as s:
        sent = message("once")
        first = await s.send(sent)
        assert (await s.send(sent, call_metadata=MARKED)).id != first.id
        assert agent.runs == 2


async def test_concurrent_calls_run_once(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agent, deduplicate="always") as s:
        sent = message("once")
        calls = [s.call("SendMessage", request(sent)) for _ in range(10)]
        await within(agent.started.wait())
        agent.go.set()
        answers = await within(asyncio.gather(*calls))
        assert all(answer == answers[0] for answer in answers)
        assert answers[0].task.status.state == COMPLETED
        assert len(agent.contexts) == 1


async def test_same_id_with_other_content_is_new_work() -> None:
    agent = Counter()
    async with serving(agent, deduplicate="always") as s:
        first = await s.send("one", message_id="m")
        assert (await s.send("two", message_id="m")).id != first.id
        assert (await s.send("one", message_id="n")).id != first.id
        assert (await s.send("one", message_id="m", context_id="c")).id != first.id
        assert agent.runs == 4


async def test_content_is_compared_in_canonical_form() -> None:
    agent = Counter()
    async with serving(agent, deduplicate="always") as s:
        names = [f"key{number}" for number in range(20)]
        first, second = message("one", message_id="m"), message("one", message_id="m")
        for name in names:
            first.metadata[name] = 1
        for name in reversed(names):
            second.metadata[name] = 1
        assert (await s.send(first)).id == (await s.send(second)).id


async def test_window_is_over(serve: Callable[..., Any]) -> None:
    agent = Counter()
    async with serve(agent, deduplicate="always", deduplication_window=1e-6) as s:
        sent = message("once")
        first = await s.send(sent)
        assert (await s.send(sent)).id != first.id
        assert agent.runs == 2


async def test_direct_message_is_repeated(serve: Callable[..., Any]) -> None:
    agent = Counter()
    async with serve(agent) as s:
        sent = message("message")
        first = await s.call("SendMessage", request(sent))
        again = await s.call("SendMessage", request(sent), metadata=MARKED)
        assert text(first.message) == "1"
        assert again == first
        assert await collect(s.stream(sent, call_metadata=MARKED)) == [
            pb.StreamResponse(message=first.message)
        ]
        assert agent.runs == 1
        assert (await s.list()).total_size == 0


async def test_error_is_repeated() -> None:
    runs: list[int] = []

    async def execute(context: Any, queue: Any) -> None:
        runs.append(1)
        raise InvalidParamsError.field("message.parts[0]", "must be a number")

    async with serving(Agent(execute)) as s:
        sent = message("once")
        first = await refused(s.call("SendMessage", request(sent)))
        again = await refused(s.call("SendMessage", request(sent), metadata=MARKED))
        assert_invalid(again, "message.parts[0]")
        assert first == again
        assert len(runs) == 1


async def test_result_of_the_message_is_repeated_though_the_task_went_on(
    serve: Callable[..., Any],
) -> None:
    async with serve(Counter()) as s:
        sent = message("one")
        first = await s.send(sent)
        await s.send("two", task_id=first.id)
        again = await s.send(sent, call_metadata=MARKED)
        assert again == first


async def test_retry_of_a_later_turn_does_not_enter_the_history_twice(
    serve: Callable[..., Any],
) -> None:
    agent = Counter()
    async with serve(agent) as s:
        task = await s.send("one")
        sent = message("two", task_id=task.id)
        await s.send(sent)
        await s.send(sent, call_metadata=MARKED)
        assert agent.runs == 2
        users = [m for m in (await s.get(task.id)).history if m.role == pb.Role.ROLE_USER]
        assert [text(m) for m in users] == ["one", "two"]


async def test_retry_of_the_message_that_finished_the_task_gets_the_task() -> None:
    async with serving(asking) as s:
        task = await s.send("one")
        sent = message("done", task_id=task.id)
        first = await s.send(sent)
        assert first.status.state == COMPLETED
        assert await s.send(sent, call_metadata=MARKED) == first


async def test_retry_with_return_immediately_returns_while_the_agent_works() -> None:
    agent = Gated()
    async with serving(agent) as s:
        sent = message("once")
        first = await s.send(sent, immediately=True)
        await within(agent.started.wait())
        again = await within(s.send(sent, immediately=True, call_metadata=MARKED), 3)
        assert again == first
        agent.go.set()


async def test_retry_of_a_message_that_waits_for_credentials_returns_too() -> None:
    go = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(AUTH_REQUIRED))
        await go.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        sent = message("once")
        first = await s.send(sent)
        assert first.status.state == AUTH_REQUIRED
        assert await within(s.send(sent, call_metadata=MARKED), 3) == first
        go.set()


async def test_retry_of_a_stream_follows_the_work_of_the_first_one() -> None:
    agent = Gated()
    async with serving(agent) as s:
        sent = message("once")
        first = s.stream(sent)
        (task,) = await take(first, 1)
        first.cancel()
        again = s.stream(sent, call_metadata=MARKED)
        assert (await take(again, 1))[0].task.id == task.task.id
        agent.go.set()
        assert outline(await collect(again)) == ["status COMPLETED"]
        assert len(agent.contexts) == 1


async def test_retry_of_a_stream_that_is_over_gets_the_task() -> None:
    agent = Counter()
    async with serving(agent) as s:
        sent = message("once")
        await collect(s.stream(sent))
        assert outline(await collect(s.stream(sent, call_metadata=MARKED))) == [
            "task INPUT_REQUIRED"
        ]
        assert agent.runs == 1


class ByName:
    async def authenticate(self, call: ServerCallContext) -> Principal:
        return Principal(call.metadata["x-name"])


async def test_message_of_another_principal_or_tenant_is_new_work() -> None:
    agent = Counter()
    async with serving(
        agents={"": agent, "t": agent}, authenticator=ByName(), deduplicate="always"
    ) as s:
        sent = message("once")
        ann, bob = s.identified(("x-name", "ann")), s.identified(("x-name", "bob"))
        ids = {
            (await ann.send(sent)).id,
            (await bob.send(sent)).id,
            (await ann.send(sent, tenant="t")).id,
        }
        assert len(ids) == 3
        assert (await ann.send(sent)).id in ids
        assert agent.runs == 3


class FlakyReads(InMemoryStorage[Any]):
    """A store that can't be reached once, when an answer is read."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 1

    async def load_snapshot(self, *args: Any, **kw: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the store is away")
        return await super().load_snapshot(*args, **kw)


async def test_retry_that_grpc_makes_by_itself_runs_once() -> None:
    """gRPC marks its own retries; clients can't set that mark."""
    policy = {
        "name": [{}],
        "retryPolicy": {
            "maxAttempts": 3,
            "initialBackoff": "0.01s",
            "maxBackoff": "0.01s",
            "backoffMultiplier": 1,
            "retryableStatusCodes": ["UNAVAILABLE"],
        },
    }
    agent, storage = Counter(), FlakyReads()
    async with (
        serving(agent, storage=storage) as s,
        grpc.aio.insecure_channel(
            s.server.address,
            options=[("grpc.service_config", json.dumps({"methodConfig": [policy]}))],
        ) as channel,
    ):
        task = await Client(channel).send("once")
        assert text(task.status.message) == "1"
        assert storage.failures == 0
        assert agent.runs == 1


class SlowAdmission(InMemoryStorage[Any]):
    """A store whose `admit` takes its time to return."""

    waits = True

    def __init__(self) -> None:
        super().__init__()
        self.recorded, self.go = asyncio.Event(), asyncio.Event()

    async def admit(self, operation: Operation, **kw: Any) -> Operation:
        admitted = await super().admit(operation, **kw)
        self.recorded.set()
        await self.go.wait()
        return admitted


async def test_message_that_was_recorded_runs_though_its_sender_went_away() -> None:
    """Between the record and the broker: neither the task nor a retry of it may hang."""
    storage, agent = SlowAdmission(), Counter()
    async with serving(agent, storage=storage) as s:
        sent = message("once")
        async with connected(s.server.address) as other:
            lost = other.call("SendMessage", request(sent))
            waiting = asyncio.ensure_future(lost)
            await within(storage.recorded.wait())
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await s.list()
        storage.go.set()
        task = await within(s.send(sent, call_metadata=MARKED), 5)
        assert task.status.state == INPUT_REQUIRED
        assert agent.runs == 1
