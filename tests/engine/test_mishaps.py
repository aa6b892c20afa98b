"""What goes wrong around a turn costs nobody an event, an answer or the server.

Answers of the store that are lost, callers who go away, agents that are deaf or end their own task.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Commit,
    Operation,
)
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    SEQUENCED,
    Agent,
    Gated,
    Serving,
    a_task,
    asking,
    assert_error,
    chunk,
    collect,
    echo,
    message,
    outline,
    refused,
    request,
    sequence_of,
    serving,
    status_update,
    take,
    text,
    texts,
    within,
)


class Forgetful(InMemoryStorage):  # type: ignore[type-arg]
    """Makes a commit that `loses` picks, and loses the answer, once; `lost` is set then."""

    def __init__(self, loses: Callable[[Commit], bool]) -> None:
        super().__init__()
        self.loses = loses
        self.lost = asyncio.Event()

    async def commit(self, commit: Commit) -> bool:
        more = await super().commit(commit)
        if not self.lost.is_set() and self.loses(commit):
            self.lost.set()
            raise UnavailableError("the answer was lost")
        return more


def numbers(events: list[pb.StreamResponse]) -> list[int]:
    return [sequence_of(event) for event in events]


async def idle(s: Serving, storage: Any, task_id: str) -> None:
    """Returns when no turn holds the task."""
    async with asyncio.timeout(5):
        while (await storage.load_head(task_id)).running:
            await s.get(task_id)


# Writes from outside.


async def test_reader_gets_what_is_written_outside_a_turn_once_and_in_order() -> None:
    go = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        if context.current_task is not None:
            await queue.enqueue_event(status_update(COMPLETED))
            return
        await queue.enqueue_event(a_task())
        await go.wait()
        for name in "abc":
            await queue.enqueue_event(chunk(name, name))
        await queue.enqueue_event(status_update(INPUT_REQUIRED))

    storage = InMemoryStorage()  # type: ignore[var-annotated]
    async with serving(Agent(execute), storage=storage) as s:
        task = await s.send(immediately=True)
        reader = s.subscribe(task.id, call_metadata=SEQUENCED)
        await take(reader, 1)
        go.set()
        events = await take(reader, 4)
        await idle(s, storage, task.id)
        await storage.update_task(
            task.id, INPUT_REQUIRED, [pb.Artifact(artifact_id="o", parts=[pb.Part(text="outside")])]
        )
        await s.send(task_id=task.id)
        events += await collect(reader)
        assert outline(events) == [
            "artifact a",
            "artifact b",
            "artifact c",
            "status INPUT_REQUIRED",
            "artifact outside",
            "status INPUT_REQUIRED",
            "status COMPLETED",
        ]
        assert numbers(events) == list(range(2, 9))


async def test_reader_of_a_task_that_is_replaced_by_an_attached_one_sees_its_end() -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.get_user_input() == "child":
            await queue.enqueue_event(a_task(INPUT_REQUIRED))
            return
        await queue.enqueue_event(a_task())
        replaced = a_task(COMPLETED, id=context.get_user_input(), context_id="c")
        context.attach_related_task(replaced)
        await queue.enqueue_event(status_update(COMPLETED))

    storage = InMemoryStorage()  # type: ignore[var-annotated]
    async with serving(Agent(execute), storage=storage) as s:
        child = await s.send("child", context_id="c")
        reader = s.subscribe(child.id)
        await take(reader, 1)
        await idle(s, storage, child.id)
        await s.send(child.id)
        seen = await collect(reader)
        assert outline(seen)[-1] == "task COMPLETED"
        assert (await s.get(child.id)).status.state == COMPLETED


# Answers that are lost.


async def test_lost_answer_to_an_event_does_not_stop_the_agent() -> None:
    attempts: list[int] = []
    go = asyncio.Event()
    storage = Forgetful(lambda commit: go.is_set() and bool(commit.entries))

    async def execute(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        await queue.enqueue_event(a_task())
        await go.wait()
        await queue.enqueue_event(chunk("lost", "a"))
        await storage.lost.wait()
        await queue.enqueue_event(chunk("found", "b"))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute), storage=storage) as s:
        stream = s.stream(call_metadata=SEQUENCED)
        (first,) = await take(stream, 1)
        reader = s.subscribe(first.task.id, call_metadata=SEQUENCED)
        await take(reader, 1)
        go.set()
        for seen in await within(asyncio.gather(collect(stream), collect(reader))):
            assert outline(seen) == ["artifact lost", "artifact found", "status COMPLETED"]
            assert numbers(seen) == [2, 3, 4]
        assert storage.lost.is_set()
        assert attempts == [1]
        assert (await s.get(first.task.id)).status.state == COMPLETED


async def test_lost_answer_to_the_end_of_a_turn_is_still_its_end() -> None:
    attempts: list[int] = []
    go = asyncio.Event()
    storage = Forgetful(lambda commit: commit.ends_turn)

    async def execute(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        await queue.enqueue_event(a_task())
        await go.wait()
        await queue.enqueue_event(chunk("last"))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute), storage=storage) as s:
        stream = s.stream(call_metadata=SEQUENCED)
        (first,) = await take(stream, 1)
        reader = s.subscribe(first.task.id, call_metadata=SEQUENCED)
        await take(reader, 1)
        go.set()
        for seen in await within(asyncio.gather(collect(stream), collect(reader))):
            assert outline(seen) == ["artifact last", "status COMPLETED"]
            assert numbers(seen) == [2, 3]
        assert storage.lost.is_set()
        assert attempts == [1]


async def test_lost_answer_to_a_direct_message_does_not_lose_the_message() -> None:
    attempts: list[int] = []
    storage = Forgetful(lambda commit: commit.ends_turn)

    async def execute(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        await queue.enqueue_event(pb.Message(parts=[pb.Part(text="hi")]))

    async with serving(Agent(execute), storage=storage) as s:
        answer = await within(s.call("SendMessage", request()))
        assert text(answer.message) == "hi"
        assert storage.lost.is_set()
        assert attempts == [1]
        assert (await s.list()).total_size == 0


async def test_lost_answer_to_a_cancellation_is_no_failure() -> None:
    storage = Forgetful(lambda commit: commit.state == CANCELED)
    async with serving(asking, storage=storage) as s:
        task = await s.send()
        reader = s.subscribe(task.id)
        await take(reader, 1)
        await idle(s, storage, task.id)
        assert (await s.cancel(task.id)).status.state == CANCELED
        assert storage.lost.is_set()
        assert outline(await collect(reader)) == ["status CANCELED"]


async def test_end_of_a_turn_is_the_last_that_is_written_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if events came in while a commit was under way, which is when a turn may end."""
    committing, go = asyncio.Event(), asyncio.Event()
    commits: list[Commit] = []

    class Slow(InMemoryStorage):  # type: ignore[type-arg]
        waits = True

        async def commit(self, commit: Commit) -> bool:
            commits.append(commit)
            committing.set()
            await go.wait()
            return await super().commit(commit)

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await committing.wait()
        await queue.enqueue_event(chunk("late"))
        await queue.enqueue_event(status_update(COMPLETED))
        asyncio.get_running_loop().call_later(0.01, go.set)

    async with serving(Agent(execute), storage=Slow()) as s:
        assert (await s.send()).status.state == COMPLETED
        assert [commit.ends_turn for commit in commits] == [False, True]
    assert "lost" not in caplog.text


async def test_turn_is_not_lost_when_the_look_whether_a_commit_took_place_fails() -> None:
    class Worse(Forgetful):
        failures = 2

        async def load_head(self, *of: Any, **how: Any) -> Any:
            if self.lost.is_set() and self.failures:
                self.failures -= 1
                raise UnavailableError("the storage is away")
            return await super().load_head(*of, **how)

    storage = Worse(loses=lambda commit: len(commit.entries) == 1)

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.flush()
        await queue.enqueue_event(chunk("one"))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute), storage=storage) as s:
        events = await collect(s.stream())
        assert outline(events)[-1] == "status COMPLETED"
    assert storage.lost.is_set()
    assert not storage.failures


async def test_sender_of_a_message_that_came_too_late_is_told_though_the_storage_is_away() -> None:
    class Away(InMemoryStorage):  # type: ignore[type-arg]
        refused = False

        def __init__(self) -> None:
            super().__init__()
            self.admitted = asyncio.Event()

        async def admit(self, operation: Operation, **how: Any) -> Operation:
            if not operation.creates_task:
                self.admitted.set()
            return await super().admit(operation, **how)

        async def start_turn(self, task_id: str) -> Any:
            found = await super().start_turn(task_id)
            self.refused = isinstance(found, Operation)
            return found

        async def load_head(self, *of: Any, **how: Any) -> Any:
            if self.refused:
                self.refused = False
                raise UnavailableError("the storage is away")
            return await super().load_head(*of, **how)

    agent = Gated()
    storage = Away()
    async with serving(agent, storage=storage) as s:
        task = await s.send(immediately=True)
        late = asyncio.ensure_future(refused(s.call("SendMessage", request(task_id=task.id))))
        await within(storage.admitted.wait())
        agent.go.set()
        assert_error(await within(late), "UNSUPPORTED_OPERATION")


# Canceling.


async def test_caller_who_goes_away_while_canceling_leaves_no_reader_behind() -> None:
    committed, go = asyncio.Event(), asyncio.Event()

    class Slow(InMemoryStorage):  # type: ignore[type-arg]
        async def commit(self, commit: Commit) -> bool:
            more = await super().commit(commit)
            if commit.state == CANCELED:
                committed.set()
                await go.wait()
            return more

    storage = Slow()
    async with serving(asking, storage=storage) as s:
        task = await s.send()
        reader = s.subscribe(task.id)
        await take(reader, 1)
        await idle(s, storage, task.id)
        call = s.call("CancelTask", pb.CancelTaskRequest(id=task.id))
        await within(committed.wait())
        call.cancel()
        for _ in range(5):  # by then the server has read, on the same connection, that it is gone
            assert (await s.get(task.id)).status.state == CANCELED
        go.set()
        assert outline(await collect(reader)) == ["status CANCELED"]


@pytest.mark.parametrize("method", ["load_snapshot", "load_task"])
async def test_task_is_canceled_though_it_can_not_be_read(method: str) -> None:
    storage, agent = InMemoryStorage(), Gated()  # type: ignore[var-annotated]
    load = getattr(storage, method)

    async def fails_once(*args: Any, **how: Any) -> Any:
        setattr(storage, method, load)
        raise UnavailableError("one hiccup")

    async with serving(agent, storage=storage) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        setattr(storage, method, fails_once)
        assert (await s.cancel(task.id)).status.state == CANCELED
        assert getattr(storage, method) == load
        assert agent.cancelled.is_set()


async def test_deaf_agent_that_was_canceled_blocks_neither_messages_nor_the_stop() -> None:
    release = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    class Watched(InMemoryStorage[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.admitted = asyncio.Event()  # the second operation

        async def admit(self, operation: Operation, **how: Any) -> Operation:
            if not operation.creates_task:
                self.admitted.set()
            return await super().admit(operation, **how)

    storage = Watched()
    try:
        async with serving(Agent(execute), storage=storage, grace=30, cancel_timeout=0.1) as s:
            task = await s.send(immediately=True)
            waiting = s.call("SendMessage", request(task_id=task.id))
            queued = asyncio.ensure_future(refused(waiting))
            await within(storage.admitted.wait(), 5)
            assert (await s.cancel(task.id)).status.state == CANCELED
            assert_error(await within(queued, 5), "UNSUPPORTED_OPERATION")
            began = time.monotonic()
        assert time.monotonic() - began < 5
    finally:
        release.set()


# A stop.


@pytest.mark.parametrize("cleanup", ["too long", "raises"])
async def test_restartable_agent_is_handed_back_however_its_cleanup_ends(
    cleanup: str, sqlite: str
) -> None:
    release = asyncio.Event()
    attempts: list[int] = []

    async def unclean(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        try:
            await release.wait()
        except asyncio.CancelledError:
            if cleanup == "raises":
                raise RuntimeError("connection closed") from None
            await release.wait()
            raise

    async def again(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        await queue.enqueue_event(status_update(COMPLETED))

    try:
        first = Agent(unclean, on_interruption="restart")
        async with serving(first, storage=sqlite, cancel_timeout=0.1) as s:
            task = await s.send("once", immediately=True)
    finally:
        release.set()
    async with serving(Agent(again, on_interruption="restart"), storage=sqlite) as s:
        async with asyncio.timeout(5):
            while (found := await s.get(task.id)).status.state not in (COMPLETED, FAILED):
                pass
        assert found.status.state == COMPLETED
        assert texts(found.history) == ["once"]
        assert attempts == [2]


# Agents that end their own task.


def cancel_itself() -> None:
    running = asyncio.current_task()
    assert running is not None
    running.cancel()


@pytest.mark.parametrize("leave", [cancel_itself, sys.exit])
async def test_agent_that_ends_its_own_task_fails_alone(leave: Callable[[], None]) -> None:
    async def execute(context: Any, queue: Any) -> None:
        if context.get_user_input() == "echo":
            await echo(context, queue)
            return
        await queue.enqueue_event(a_task())
        leave()
        await asyncio.Event().wait()

    async with serving(Agent(execute)) as s:
        task = await s.send("leave")
        assert task.status.state == FAILED
        assert text(task.status.message)
        assert (await s.send(message("echo"))).status.state == COMPLETED


async def test_whole_task_from_cancel_keeps_what_execute_published_last() -> None:
    started, stop, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        started.set()
        await stop.wait()
        await queue.enqueue_event(chunk("last"))
        over.set()

    async def cancel(_: Any, queue: Any) -> None:
        stop.set()
        await over.wait()
        await asyncio.sleep(0)  # execute() has returned
        await queue.enqueue_event(a_task(CANCELED))

    async with serving(Agent(execute, cancel)) as s:
        task = await s.send(immediately=True)
        await within(started.wait())
        canceled = await within(s.cancel(task.id))
        assert [text(artifact) for artifact in canceled.artifacts] == ["last"]
