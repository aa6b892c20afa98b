"""A process that dies leaves no task WORKING for ever (promise 6), and loses none (promise 1)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Commit,
    Operation,
    Scope,
    Turn,
)
from a2a_grpc.task import event_entry
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    TERMINAL,
    WORKING,
    Agent,
    Client,
    Serving,
    a_task,
    chunk,
    connected,
    message,
    request,
    serving,
    status_update,
    text,
    texts,
    within,
)


@asynccontextmanager
async def a_store(url: str) -> AsyncIterator[Any]:
    """The store as the process that is going to die has it open; in memory it lives on."""
    if url == "memory:":
        yield InMemoryStorage()
        return
    from a2a_grpc.storage.sql.storage import SqlStorage

    async with SqlStorage(url) as storage:
        yield storage


class Died:
    """What a process leaves behind that dies in the middle of a turn."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.task_id = str(uuid.uuid4())
        self.operation_id = str(uuid.uuid4())
        self.storage: Any = url

    async def leave(self, *, attempts: int = 1, visible: bool = True) -> None:
        sent = message("once", task_id=self.task_id, context_id="c")
        operation = Operation(
            self.operation_id, self.task_id, "c", pb.SendMessageRequest(message=sent), Scope()
        )
        async with a_store(self.url) as storage:
            if self.url == "memory:":
                self.storage = storage
            await storage.admit(operation)
            for attempt in range(attempts):
                turn = await storage.start_turn(self.task_id)
                assert isinstance(turn, Turn)
                assert turn.operation.attempts == attempt + 1
                if visible and not attempt:
                    task = a_task(id=self.task_id, context_id="c", history=[sent])
                    task.status.timestamp.FromNanoseconds(1)
                    entry = event_entry(pb.StreamResponse(task=task), version=1, sequence=1)
                    await storage.commit(
                        Commit(
                            self.task_id,
                            0,
                            turn.fence,
                            [entry],
                            state=WORKING,
                            status_at=1,
                            context_id="c",
                        )
                    )

    async def ended(self, s: Serving) -> pb.Task:
        """The task, once it has an end."""
        async with asyncio.timeout(5):
            while True:
                page = await s.list(context_id="c", include_artifacts=True)
                if page.tasks and page.tasks[0].status.state in TERMINAL:
                    assert page.tasks[0].id == self.task_id
                    return page.tasks[0]


class Restarted:
    """Notes its attempts; completes, by an artifact that says which one it was."""

    def __init__(self, on_interruption: str) -> None:
        self.on_interruption = on_interruption
        self.attempts: list[int] = []

    async def execute(self, context: Any, queue: Any) -> None:
        self.attempts.append(context.attempt)
        assert context.get_user_input() == "once"
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk(f"attempt {context.attempt}"))
        await queue.enqueue_event(status_update(COMPLETED))

    async def cancel(self, context: Any, queue: Any) -> None: ...


@pytest.mark.parametrize("visible", [True, False], ids=["with a task", "before the task"])
async def test_interrupted_task_fails_by_default_and_says_why(store: str, visible: bool) -> None:
    died, agent = Died(store), Restarted("fail")
    await died.leave(visible=visible)
    async with serving(agent, storage=died.storage) as s:
        task = await died.ended(s)
        assert task.status.state == FAILED
        assert text(task.status.message)
        assert task.status.timestamp.seconds > 10**9
        assert texts(task.history) == ["once"]
        assert agent.attempts == []


@pytest.mark.parametrize("visible", [True, False], ids=["with a task", "before the task"])
async def test_interrupted_task_runs_again_if_the_agent_says_so(store: str, visible: bool) -> None:
    died, agent = Died(store), Restarted("restart")
    await died.leave(visible=visible)
    async with serving(agent, storage=died.storage) as s:
        task = await died.ended(s)
        assert task.status.state == COMPLETED
        assert agent.attempts == [2]
        assert [text(artifact) for artifact in task.artifacts] == ["attempt 2"]
        assert texts(task.history) == ["once"]


async def test_attempts_have_an_end(store: str) -> None:
    died, agent = Died(store), Restarted("restart")
    await died.leave(attempts=3)
    async with serving(agent, storage=died.storage, max_attempts=3) as s:
        task = await died.ended(s)
        assert task.status.state == FAILED
        assert text(task.status.message)
        assert agent.attempts == []


async def test_last_attempt_is_made(store: str) -> None:
    died, agent = Died(store), Restarted("restart")
    await died.leave(attempts=2)
    async with serving(agent, storage=died.storage, max_attempts=3) as s:
        assert (await died.ended(s)).status.state == COMPLETED
        assert agent.attempts == [3]


async def test_message_that_no_process_had_begun_runs_at_attempt_one(store: str) -> None:
    died, agent = Died(store), Restarted("fail")
    await died.leave(attempts=0)
    async with serving(agent, storage=died.storage) as s:
        assert (await died.ended(s)).status.state == COMPLETED
        assert agent.attempts == [1]


async def test_retry_of_a_message_whose_process_died_gets_its_end(store: str) -> None:
    died, agent = Died(store), Restarted("restart")
    await died.leave()
    async with serving(agent, storage=died.storage) as s:
        await died.ended(s)
        task = await s.get(died.task_id)
        assert task.status.state == COMPLETED


async def test_interrupted_task_can_be_canceled_or_has_ended(store: str) -> None:
    died = Died(store)
    await died.leave()
    started, forever = asyncio.Event(), asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        started.set()
        await forever.wait()

    agent = Agent(execute, on_interruption="restart")
    async with serving(agent, storage=died.storage) as s:
        await within(started.wait())
        assert (await within(s.cancel(died.task_id))).status.state == CANCELED


# With a real process and a real kill.

SERVER = """
    import asyncio, sys
    from a2a_grpc import A2AServer, AgentExecutor, ServerSettings, pb

    class Agent(AgentExecutor):
        on_interruption = sys.argv[2]

        async def execute(self, context, queue):
            state = pb.TaskState
            if context.current_task is None:
                await queue.enqueue_event(
                    pb.Task(status=pb.TaskStatus(state=state.TASK_STATE_WORKING)))
            for number in range(5):
                await queue.enqueue_event(pb.TaskArtifactUpdateEvent(
                    artifact=pb.Artifact(
                        artifact_id=f"{context.attempt}", parts=[pb.Part(text=f"{number},")]),
                    append=True))
            if context.attempt == 1 and context.get_user_input() != "quick":
                await asyncio.Event().wait()
            await queue.enqueue_event(pb.TaskStatusUpdateEvent(
                status=pb.TaskStatus(state=state.TASK_STATE_COMPLETED)))

    async def main():
        server = A2AServer(Agent(), storage=sys.argv[1], settings=ServerSettings(port=0))
        async with server:
            print(server.address, flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@asynccontextmanager
async def process(
    tmp_path: Path, sqlite: str, on_interruption: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Client]]:
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        sqlite,
        on_interruption,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        assert running.stdout is not None
        address = (await within(running.stdout.readline(), 20)).decode().strip()
        assert address
        async with connected(address) as client:
            yield running, client
    finally:
        if running.returncode is None:
            running.kill()
        await within(running.wait())
        running._transport.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("on_interruption", ["fail", "restart"])
async def test_killed_process_loses_nothing_that_a_client_was_told(
    tmp_path: Path, sqlite: str, on_interruption: str
) -> None:
    async with process(tmp_path, sqlite, on_interruption) as (running, client):
        quick = await client.send("quick")
        assert quick.status.state == COMPLETED
        stream = client.stream("long", call_metadata=())
        told = []
        while len(told) < 6:
            told.append(await within(stream.read()))
        running.send_signal(signal.SIGKILL)
        await within(running.wait())
        task_id = told[0].task.id
    async with process(tmp_path, sqlite, on_interruption) as (running, client):
        assert await client.get(quick.id) == quick
        async with asyncio.timeout(10):
            while (task := await client.get(task_id)).status.state not in TERMINAL:
                pass
        artifacts = {artifact.artifact_id: text(artifact) for artifact in task.artifacts}
        assert artifacts["1"] == "0,1,2,3,4,"
        assert texts(task.history) == ["long"]
        if on_interruption == "fail":
            assert task.status.state == FAILED
            assert text(task.status.message)
        else:
            assert task.status.state == COMPLETED
            assert artifacts["2"] == "0,1,2,3,4,"


async def test_finished_tasks_survive_a_restart(sqlite: str) -> None:
    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk(context.get_user_input()))
        await queue.enqueue_event(status_update(INPUT_REQUIRED, "more?"))

    async with serving(Agent(execute), storage=sqlite) as s:
        tasks = [await s.send(f"{number}") for number in range(10)]
        page = await s.list(include_artifacts=True)
    async with serving(Agent(execute), storage=sqlite) as s:
        assert await s.list(include_artifacts=True) == page
        for task in tasks:
            assert await s.get(task.id) == task


async def test_deduplication_survives_a_restart(sqlite: str) -> None:
    agent = Restarted("fail")
    sent = message("once")
    async with serving(agent, storage=sqlite) as s:
        first = await s.send(sent)
    async with serving(agent, storage=sqlite) as s:
        again = await s.call("SendMessage", request(sent), metadata=(("a2a-grpc-retry", "1"),))
        assert again.task == first
        assert agent.attempts == [1]
