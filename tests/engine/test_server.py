"""A2AServer: what it takes, how it starts, and how a process that is one ends (promise 10)."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc.config import ServerSettings
from a2a_grpc.errors import UnavailableError
from a2a_grpc.server import A2AServer
from a2a_grpc.storage.sql.storage import SqlStorage
from tests.cli.process import Process
from tests.support import (
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    a_server,
    assert_error,
    connected,
    echo,
    outline,
    refused,
    request,
    serving,
    take,
    within,
)

# What it takes.


@pytest.mark.parametrize("arguments", [{}, {"agent": Agent(echo), "agents": {"a": Agent(echo)}}])
def test_either_an_agent_or_agents_are_needed(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"either an agent or agents=\{tenant: agent\}"):
        A2AServer(**arguments)


@pytest.mark.parametrize("agent", [42, "agent", object(), object])
def test_what_is_no_agent_is_refused_with_the_forms_that_are(agent: Any) -> None:
    for arguments in ({"agent": agent}, {"agents": {"a": Agent(echo), "b": agent}}):
        with pytest.raises(TypeError, match="is not an agent: give a Worker, an AgentExecutor"):
            A2AServer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (
            {"storage": "mysql://x"},
            "unknown store 'mysql:'; use memory:, sqlite:///file.db or postgresql://",
        ),
        ({"storage": ""}, "no store is named; use memory:, sqlite:///file.db or postgresql://"),
        ({"storage": "sqlite://"}, "use sqlite:///file.db"),
        ({"broker": "amqp://x"}, "unknown broker 'amqp:'; use memory: or nats://"),
    ],
)
async def test_unknown_store_or_broker_is_refused_with_those_that_there_are(
    arguments: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  what it says is checked below
        await within(a_server(echo, **arguments).__aenter__())
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"port": -1}, "port is -1; use 0 or more"),
        ({"port": 65536}, "port is 65536; use 0 to 65535"),
        ({"deduplicate": "some"}, "deduplicate is 'some'; use marked, always or never"),
    ],
)
def test_bad_setting_is_refused_with_what_it_may_be(settings: Any, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        ServerSettings(**settings)


# How it starts.


async def test_taken_port_is_named_with_the_remedy() -> None:
    async with serving(echo) as s:
        other = a_server(echo, port=s.server.port)
        with pytest.raises(OSError, match=rf":{s.server.port}: the port is taken .*--port"):
            await within(other.__aenter__())
        # The first one has noticed nothing, and the other one may try again.
        assert (await s.send()).status.state == COMPLETED
        other.settings = replace(other.settings, port=0)
        async with other, connected(other.address) as client:
            assert (await client.send()).status.state == COMPLETED


async def test_address_of_another_machine_is_named_with_the_remedy() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1:0: .*not this machine's.*--host"):
        await within(a_server(echo, host="192.0.2.1").__aenter__())


@pytest.mark.parametrize(
    "setting", ["keepalive_time", "keepalive_timeout", "min_ping_interval", "max_connection_age"]
)
async def test_infinite_seconds_are_never(setting: str) -> None:
    async with serving(Agent(echo), **{setting: float("inf")}) as s:
        assert (await s.send()).status.state == COMPLETED


async def test_server_that_can_not_start_lets_go_of_its_store(sqlite: str) -> None:
    with pytest.raises(ValueError, match="unknown broker"):
        await within(a_server(echo, storage=sqlite, broker="amqp://x").__aenter__())
    async with serving(echo, storage=sqlite) as s:
        assert (await s.send()).status.state == COMPLETED


async def test_server_opens_and_closes_the_store_that_it_is_given(sqlite: str) -> None:
    storage = SqlStorage(sqlite)
    async with serving(echo, storage=storage) as s:
        task = await s.send()
        assert await storage.load_task(task.id) == task
    with pytest.raises(UnavailableError, match="not open"):
        await storage.stranded_operations(1)
    async with serving(echo, storage=storage) as s:
        assert await s.get(task.id) == task


async def test_error_inside_the_block_closes_the_server_and_goes_on(sqlite: str) -> None:
    class Mine(Exception): ...

    async def fail() -> None:
        async with serving(echo, storage=sqlite) as s:
            await s.send()
            raise Mine

    with pytest.raises(Mine):
        await fail()
    async with serving(echo, storage=sqlite) as s:
        assert (await s.list()).total_size == 1


# How a process ends that is a server.

PROGRAM = """
import asyncio, logging, sys

from a2a_grpc import A2AServer, AgentExecutor, ServerSettings, Task, TaskState, TaskStatus


class Endless(AgentExecutor):
    on_interruption = "restart"

    async def execute(self, context, queue):
        if context.get_user_input() == "ask":
            state = TaskState.TASK_STATE_INPUT_REQUIRED
        else:
            state = TaskState.TASK_STATE_WORKING
        await queue.enqueue_event(Task(status=TaskStatus(state=state)))
        if state == TaskState.TASK_STATE_WORKING:
            await asyncio.Event().wait()


server = A2AServer(
    Endless(),
    storage="sqlite:///a2a.db",
    settings=ServerSettings(port=0, grace=0.0, cancel_timeout=1.0),
)


def started(server):
    print("serving", server.address, file=sys.stderr, flush=True)


"""
ENDINGS = {
    "run": "logging.basicConfig(level=logging.INFO)\nserver.run()",
    "run with on_started": "server.run(on_started=started)",
    "serve": "asyncio.run(server.serve(on_started=started))",
}


def program(directory: Path, ending: str) -> Process:
    """A process that serves, in `directory`."""
    file = directory / "program.py"
    file.write_text(textwrap.dedent(PROGRAM) + ending, encoding="utf-8")
    return Process(file, cwd=directory, command=(sys.executable, "-W", "error"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_signal_ends_what_is_open_with_a_status_that_clients_retry(
    ending: str, number: signal.Signals, tmp_path: Path
) -> None:
    with program(tmp_path, ENDINGS[ending]) as process:
        async with connected(process.address) as client:
            waiting = await client.send("ask")
            assert waiting.status.state == INPUT_REQUIRED
            streams = [client.subscribe(waiting.id), client.stream("work")]
            running = (await take(streams[1], 1))[0].task
            streams.append(client.subscribe(running.id))
            for stream in (streams[0], streams[2]):
                await take(stream, 1)
            blocked = client.call("SendMessage", request("work", context_id="blocked"))
            assert (await client.appeared(context_id="blocked")).status.state == WORKING
            process.send_signal(number)
            for call in (*streams, blocked):
                status = await refused(call)
                assert_error(status, "UNAVAILABLE")
                assert status.retry_after is not None
        assert await asyncio.to_thread(process.wait) == 0
        assert not [line for line in process.lines if "Traceback" in line], process.lines


async def test_process_that_is_started_again_has_what_was_open(tmp_path: Path) -> None:
    with program(tmp_path, ENDINGS["run"]) as process:
        async with connected(process.address) as client:
            waiting, running = await client.send("ask"), await client.send("x", immediately=True)
        assert await asyncio.to_thread(process.stop) == 0
    with program(tmp_path, ENDINGS["run"]) as process:
        async with connected(process.address) as client:
            assert await client.get(waiting.id) == waiting
            reader = client.subscribe(running.id)
            assert outline(await take(reader, 1)) == ["task WORKING"]
        assert await asyncio.to_thread(process.stop) == 0
