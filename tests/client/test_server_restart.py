"""The server's process is killed in mid-stream and started again: the client does not notice."""

from __future__ import annotations

import asyncio
import signal
import socket
import textwrap
from pathlib import Path

import pytest

from a2a_grpc import A2AClient, RetryPolicy, StreamInterruptedError, UnavailableError
from tests.cli.process import Process
from tests.client.support import read, read_some, sent
from tests.support import fold, outline, state_name, within

AGENT = """
import asyncio, pathlib
from a2a_grpc import AgentExecutor, pb

class Counter(AgentExecutor):
    on_interruption = {on_interruption!r}

    async def execute(self, context, queue):
        task = pb.Task(status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_WORKING))
        done = 0
        if context.current_task is None:
            await queue.enqueue_event(task)
        else:
            for artifact in context.current_task.artifacts:
                done = len(artifact.parts)
        with pathlib.Path("runs").open("a") as runs:
            runs.write("x")
        for number in range(done, 40):
            artifact = pb.Artifact(artifact_id="a", parts=[pb.Part(text=f"{{number}},")])
            await queue.enqueue_event(pb.TaskArtifactUpdateEvent(artifact=artifact, append=True))
            while number == 20 and not pathlib.Path("go").exists():
                await asyncio.sleep(0.01)
        status = pb.TaskStatus(state=pb.TaskState.TASK_STATE_COMPLETED)
        await queue.enqueue_event(pb.TaskStatusUpdateEvent(status=status))

    async def cancel(self, context, queue): ...

agent = Counter()
"""

PATIENT = RetryPolicy(attempts=200, initial_backoff=0.05, max_backoff=0.3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def serve(directory: Path, port: int) -> Process:
    store = "sqlite:///a2a.db"
    return Process(
        "serve", "agent.py", "--port", port, "--store", store, "--grace", 0, cwd=directory
    )


def write_agent(directory: Path, on_interruption: str) -> None:
    code = textwrap.dedent(AGENT).format(on_interruption=on_interruption)
    (directory / "agent.py").write_text(code, encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
@pytest.mark.parametrize("how", ["stream", "subscribe"])
async def test_a_stream_survives_a_restart_of_the_server(
    tmp_path: Path, how: str, number: signal.Signals
) -> None:
    write_agent(tmp_path, "restart")
    port = free_port()
    async with A2AClient(f"127.0.0.1:{port}", retry=PATIENT) as client:
        with serve(tmp_path, port) as first:
            await asyncio.to_thread(lambda: first.address)
            if how == "stream":
                stream = client.stream("count")
            else:
                task = await sent(client, "count", return_immediately=True)
                stream = client.subscribe(task.id)
            seen = await read_some(stream, 1)
            while fold(seen)[1].get("a", "").count(",") < 20:
                seen += await read_some(stream, 1)
            first.send_signal(number)
            waiting = asyncio.create_task(read(stream))
            await asyncio.to_thread(first.wait)
        (tmp_path / "go").touch()
        with serve(tmp_path, port) as second:
            await asyncio.to_thread(lambda: second.address)
            seen += await within(waiting, 30)
        state, artifacts = fold(seen)
        assert state == "COMPLETED"
        assert artifacts == {"a": "".join(f"{n}," for n in range(40))}
        assert stream.reconnects >= 1
        assert not stream.is_reset
        assert (tmp_path / "runs").read_text() == "xx"


async def test_a_task_that_fails_by_a_restart_ends_the_stream_as_failed(tmp_path: Path) -> None:
    write_agent(tmp_path, "fail")
    port = free_port()
    async with A2AClient(f"127.0.0.1:{port}", retry=PATIENT) as client:
        with serve(tmp_path, port) as first:
            await asyncio.to_thread(lambda: first.address)
            stream = client.stream("count")
            seen = await read_some(stream, 10)
            first.send_signal(signal.SIGKILL)
            waiting = asyncio.create_task(read(stream))
            await asyncio.to_thread(first.wait)
        with serve(tmp_path, port) as second:
            await asyncio.to_thread(lambda: second.address)
            seen += await within(waiting, 30)
            task = await client.get_task(stream.task_id)
        state, artifacts = fold(seen)
        assert state == "FAILED" == state_name(task.status.state)
        numbers = artifacts["a"].split(",")[:-1]
        assert numbers == [str(n) for n in range(len(numbers))]
        assert artifacts["a"] == "".join(part.text for part in task.artifacts[0].parts)


async def test_a_message_that_a_killed_server_was_handling_is_answered_by_the_next_one(
    tmp_path: Path,
) -> None:
    write_agent(tmp_path, "restart")
    port = free_port()
    async with A2AClient(f"127.0.0.1:{port}", retry=PATIENT) as client:
        with serve(tmp_path, port) as first:
            await asyncio.to_thread(lambda: first.address)
            sending = asyncio.create_task(sent(client, "count"))
            async with asyncio.timeout(30):
                while not (tmp_path / "runs").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            first.send_signal(signal.SIGKILL)
            await asyncio.to_thread(first.wait)
        (tmp_path / "go").touch()
        with serve(tmp_path, port) as second:
            await asyncio.to_thread(lambda: second.address)
            task = await within(sending, 30)
            assert (await client.list_tasks()).total_size == 1
        assert state_name(task.status.state) == "COMPLETED"
        assert (tmp_path / "runs").read_text() == "xx"


async def test_a_server_that_stays_away_is_told_in_the_end(tmp_path: Path) -> None:
    write_agent(tmp_path, "fail")
    policy = RetryPolicy(attempts=3, stream_patience=0.1, initial_backoff=0.01, max_backoff=0.01)
    port = free_port()
    async with A2AClient(f"127.0.0.1:{port}", retry=policy) as client:
        with serve(tmp_path, port) as process:
            await asyncio.to_thread(lambda: process.address)
            stream = client.stream("count")
            assert outline(await read_some(stream, 1)) == ["task WORKING"]
        with pytest.raises(StreamInterruptedError, match=stream.task_id):
            await read(stream)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            await within(client.get_task(stream.task_id))
