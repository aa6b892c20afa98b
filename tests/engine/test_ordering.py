"""One turn at a time, in order; nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc.active.active_task import ActiveTask
from a2a_grpc.active.event_consumer import EventConsumer
from a2a_grpc.bus.base import OperationWatch, TaskChannel
from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Operation,
    Turn,
)
from tests.support import (
    COMPLETED,
    INPUT_REQUIRED,
    Agent,
    Gated,
    a_task,
    asking,
    chunk,
    collect,
    echo,
    outline,
    refused,
    request,
    serving,
    status_update,
    take,
    text,
    texts,
    within,
)


class Orderly:
    """Notes the order of the messages, and how many `execute()` ever ran at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.order: list[str] = []
        self.first_started, self.go = asyncio.Event(), asyncio.Event()

    async def execute(self, context: Any, queue: Any) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        word = context.get_user_input()
        self.order.append(word)
        if context.current_task is None:
            await queue.enqueue_event(a_task())
            self.first_started.set()
            await self.go.wait()
        await queue.enqueue_event(chunk(word + ",", append=True))
        await asyncio.sleep(0)
        end = COMPLETED if word == "last" else INPUT_REQUIRED
        await queue.enqueue_event(status_update(end, f"answer to {word}"))
        self.running -= 1

    async def cancel(self, context: Any, queue: Any) -> None: ...


async def test_messages_to_a_busy_task_wait_their_turn_in_order(serve: Callable[..., Any]) -> None:
    agent = Orderly()
    async with serve(agent) as s:
        task = await s.send("first", immediately=True)
        await within(agent.first_started.wait())
        stream = s.subscribe(task.id)
        await take(stream, 1)
        numbers = [str(number) for number in range(50)]
        for number in numbers:
            await s.send(number, task_id=task.id, immediately=True)
        await s.send("last", task_id=task.id, immediately=True)
        agent.go.set()
        assert outline(await collect(stream))[-1] == "status COMPLETED"
        assert agent.order == ["first", *numbers, "last"]
        assert agent.most == 1
        done = await s.get(task.id)
        assert text(done.artifacts[0]) == ",".join(agent.order) + ","
        said = [m for m in done.history if m.role == 1]
        assert texts(said) == agent.order


async def test_two_tasks_run_at_the_same_time() -> None:
    agents = {"one": Gated(), "two": Gated()}

    async def execute(context: Any, queue: Any) -> None:
        await agents[context.get_user_input()].execute(context, queue)

    async with serving(Agent(execute)) as s:
        calls = [s.call("SendMessage", request(word)) for word in agents]
        for agent in agents.values():
            await within(agent.started.wait())
        for agent in agents.values():
            agent.go.set()
        for call in calls:
            assert (await within(call)).task.status.state == COMPLETED


async def test_messages_from_many_clients_at_once_run_one_after_another(
    serve: Callable[..., Any],
) -> None:
    agent = Orderly()
    agent.go.set()
    async with serve(agent) as s:
        task = await s.send("first")
        numbers = [str(number) for number in range(30)]
        answers = await within(
            asyncio.gather(*(s.send(number, task_id=task.id) for number in numbers))
        )
        assert [text(a.status.message) for a in answers] == [f"answer to {n}" for n in numbers]
        assert agent.most == 1
        assert sorted(agent.order[1:]) == sorted(numbers)


class FlakyStart(InMemoryStorage[Any]):
    """A store that can't be reached once, when the second turn begins."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    async def start_turn(self, task_id: str) -> Turn | Operation | None:
        self.turns += 1
        if self.turns == 2:
            raise UnavailableError("the store is away")
        return await super().start_turn(task_id)


async def test_order_is_kept_when_the_store_is_away_for_a_moment() -> None:
    agent = Orderly()
    async with serving(agent, storage=FlakyStart()) as s:
        task = await s.send("first", immediately=True)
        await within(agent.first_started.wait())
        for number in ("1", "2", "3"):
            await s.send(number, task_id=task.id, immediately=True)
        agent.go.set()
        stream = s.subscribe(task.id)
        await take(stream, 1)
        await s.send("last", task_id=task.id, immediately=True)
        await collect(stream)
        assert agent.order == ["first", "1", "2", "3", "last"]


def alive(*kinds: type) -> dict[str, int]:
    gc.collect()
    found = dict.fromkeys((kind.__name__ for kind in kinds), 0)
    for one in gc.get_objects():
        if type(one) in kinds:
            found[type(one).__name__] += 1
    return {name: count for name, count in found.items() if count}


async def gone(*kinds: type) -> None:
    """Wait until none of these exists any more; nothing tells when."""
    async with asyncio.timeout(5):
        while alive(*kinds):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_nothing_is_left_of_finished_tasks() -> None:
    async with serving(asking) as s:

        async def whole_life(number: int) -> None:
            task = await s.send(f"{number}")
            reader = s.subscribe(task.id)
            await take(reader, 1)
            if number % 3 == 0:
                await s.cancel(task.id)
            elif number % 3 == 1:
                await s.send("done", task_id=task.id)
            else:
                await collect(s.stream("done", task_id=task.id))
            await collect(reader)
            await refused(s.subscribe("unknown"))

        for _ in range(10):
            await within(asyncio.gather(*(whole_life(number) for number in range(20))))
        await s.list()
        await gone(ActiveTask, EventConsumer, TaskChannel, OperationWatch)


async def test_nothing_is_left_of_tasks_whose_readers_went_away() -> None:
    agent = Gated()
    async with serving(agent) as s:
        streams = [s.stream() for _ in range(20)]
        for stream in streams:
            (first,) = await take(stream, 1)
            reader = s.subscribe(first.task.id)
            await take(reader, 1)
            reader.cancel()
            stream.cancel()
        agent.go.set()
        await gone(ActiveTask, EventConsumer, TaskChannel, OperationWatch)
        page = await s.list()
        assert {task.status.state for task in page.tasks} == {COMPLETED}


async def test_no_asyncio_task_outlives_the_server() -> None:
    before = asyncio.all_tasks()
    async with serving(echo) as s:
        await s.send()
        await collect(s.stream())
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    ours = [task for task in left if "a2a_grpc" in repr(task.get_coro())]
    assert not ours


@pytest.mark.parametrize("turns", [3])
async def test_one_commit_order_for_everybody(turns: int) -> None:
    """What the sender saw, what a subscriber saw and what is stored are the same."""
    async with serving(asking) as s:
        task = await s.send("0")
        reader = s.subscribe(task.id)
        first = await take(reader, 1)
        for number in range(turns):
            await s.send(str(number), task_id=task.id)
        await s.send("done", task_id=task.id)
        events = [*first, *await collect(reader)]
        assert outline(events) == [
            "task INPUT_REQUIRED",
            *["status INPUT_REQUIRED"] * turns,
            "status COMPLETED",
        ]
