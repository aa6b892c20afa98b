"""`a2a-grpc serve` with PostgreSQL and NATS: `--processes` and `--role` of one service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.cli.process import PATIENCE, Process
from tests.cli.test_processes import answers
from tests.servers.postgres import GUARDED, PASSWORD, shared_postgres
from tests.support import COMPLETED, collect, connected, outline, take, text

WHICH = """
import os

async def agent(context):
    return str(os.getpid())
"""


def write(directory: Path, source: str) -> Path:
    file = directory / "replica.py"
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    return file


@pytest.fixture
def variables(nats_url: str) -> Iterator[dict[str, str]]:
    """What replicas of one service have in their environment."""
    with shared_postgres().database() as database:
        yield {"A2A_GRPC_STORE": database, "A2A_GRPC_BROKER": nats_url, "A2A_GRPC_PORT": "0"}


async def test_tasks_of_one_process_are_there_in_all(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    file = write(tmp_path, WHICH)
    with Process("serve", file, "--processes", "3", cwd=tmp_path, variables=variables) as process:
        address = process.address
        async with connected(address) as client:
            sent = await client.send()

        async def look() -> None:
            async with connected(address) as client:
                assert await client.get(sent.id) == sent

        await asyncio.gather(*(look() for _ in range(16)))
        assert len(await answers(address)) == 3
        assert process.stop() == 0
        assert process.line("tasks are kept in postgresql://")


async def test_the_task_of_a_killed_process_goes_on_in_another(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    source = """
        import asyncio, os

        class agent:
            on_interruption = "restart"

            async def run(self, context):
                if context.attempt == 1:
                    await asyncio.to_thread(lambda: open("worker", "w").write(str(os.getpid())))
                    await asyncio.Event().wait()
                return f"attempt {context.attempt}"
    """
    file = write(tmp_path, source)
    os.mkfifo(tmp_path / "worker")
    how = ["--processes", "3", "--lease", "1"]
    with Process("serve", file, *how, cwd=tmp_path, variables=variables) as process:
        async with connected(process.address) as client:
            (first,) = await take(client.stream(), 1)
        worker = int(await asyncio.to_thread((tmp_path / "worker").read_text))
        os.kill(worker, signal.SIGKILL)
        process.line(f"process {worker} was ended by SIGKILL")
        async with asyncio.timeout(PATIENCE):
            while True:
                # A connection may still lead to the one that was killed.
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async with connected(process.address) as client:
                        task = await client.get(first.task.id)
                        if task.status.state == COMPLETED:
                            break
                        await collect(client.subscribe(first.task.id))
        assert text(task.artifacts[0]) == "attempt 2"
        process.line(" serves")
        assert process.stop() == 0


async def test_sigterm_lets_a_task_end_wherever_it_runs(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    source = """
        import asyncio

        async def agent(context):
            await asyncio.to_thread(lambda: open("gate").read())
            return "went on"
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    file = write(tmp_path, source)
    how = ["--processes", "3", "--grace", "30"]
    with Process("serve", file, *how, cwd=tmp_path, variables=variables) as process:
        async with connected(process.address) as client:
            stream = client.stream()
            assert outline(await take(stream, 1)) == ["task WORKING"]
            process.send_signal(signal.SIGTERM)
            process.line("tasks that run: 1")
            gate.write_text("go on", encoding="utf-8")
            assert outline(await take(stream, 2)) == ["artifact went on", "status COMPLETED"]
        assert await asyncio.to_thread(process.wait) == 0


async def test_a_frontend_takes_the_calls_and_a_worker_does_the_work(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    file = write(tmp_path, WHICH)
    with (
        Process("serve", file, "--role", "worker", cwd=tmp_path, variables=variables) as worker,
        Process("serve", file, "--role", "frontend", cwd=tmp_path, variables=variables) as frontend,
    ):
        assert await answers(frontend.address) == {str(worker.pid)}
        async with connected(worker.address) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.send()
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert frontend.stop() == 0
        assert worker.stop() == 0


def test_one_process_may_use_postgresql_without_a_broker_and_is_warned(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    del variables["A2A_GRPC_BROKER"]
    file = write(tmp_path, WHICH)
    with Process("serve", file, cwd=tmp_path, variables=variables) as process:
        assert process.stop() == 0
        assert [line for line in process.lines if "WARNING" in line and "nats://" in line]


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_wrong_password_is_refused_once_and_not_shown(
    tmp_path: Path, variables: dict[str, str], count: str
) -> None:
    assert PASSWORD != "hunter2-secret"
    store = variables["A2A_GRPC_STORE"].replace("//a2a@", f"//{GUARDED}:hunter2-secret@")
    file = write(tmp_path, WHICH)
    with Process(
        *("serve", file, "--processes", count),
        cwd=tmp_path,
        variables={**variables, "A2A_GRPC_STORE": store},
    ) as process:
        assert process.wait() == 1
        (error,) = [line for line in process.lines if line.startswith("error: ")]
        assert "hunter2-secret" not in "\n".join(process.lines)
    assert "password" in error
