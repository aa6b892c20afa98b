"""`a2a-grpc serve --processes N`: several processes on one port, as one command."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from tests.cli.process import PATIENCE, Process
from tests.cli.shared import write_shared
from tests.support import COMPLETED, connected, outline, refused, take, text

CONNECTIONS = 48
"""That none of them reaches a process out of three happens once in 300 million times."""


def processes(
    cwd: Path, *arguments: str | Path, count: int = 3, port: int = 0, **variables: str
) -> Process:
    """`a2a-grpc serve --processes`."""
    how = ["--processes", str(count), "--port", str(port)]
    return Process("serve", *arguments, *how, cwd=cwd, variables=variables)


async def one_answer(address: str) -> str:
    """What the process that a new connection leads to answers."""
    async with connected(address) as client:
        task = await client.send("who?")
        assert task.status.state == COMPLETED
        return text(task.artifacts[0])


async def answers(address: str) -> set[str]:
    """What the processes answer, over many connections."""
    return set(await asyncio.gather(*(one_answer(address) for _ in range(CONNECTIONS))))


def can_be_bound(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
        return True


@contextmanager
def ends_of(pids: Iterable[int]) -> Iterator[None]:
    """Processes that are no children of this one; the block ends when all of them have ended."""
    with ExitStack() as stack:
        opened = [os.pidfd_open(pid) for pid in pids]
        for number in opened:
            stack.callback(os.close, number)
        yield
        for number in opened:
            ended, _, _ = select.select([number], [], [], PATIENCE)
            assert ended


# Starting.


async def test_all_processes_answer_on_one_port(tmp_path: Path) -> None:
    with processes(tmp_path, write_shared(tmp_path)) as process:
        found = await answers(process.address)
        assert len(found) == 3
        assert str(process.pid) not in found
        assert process.stop() == 0
        lines = process.lines
    assert [line for line in lines if "serving" in line] == [f"serving {process.address}"]
    assert not [line for line in lines if "Traceback" in line]


async def test_the_number_may_come_from_the_environment(tmp_path: Path) -> None:
    file = write_shared(tmp_path)
    variables = {"A2A_GRPC_PROCESSES": "2", "A2A_GRPC_PORT": "0"}
    with Process("serve", file, cwd=tmp_path, variables=variables) as process:
        assert len(await answers(process.address)) == 2
        assert process.stop() == 0


async def test_what_the_server_says_itself_is_served(tmp_path: Path) -> None:
    file = write_shared(tmp_path, "settings = ServerSettings(host='localhost', port=0)")
    with Process("serve", file, "--processes", "2", cwd=tmp_path) as process:
        assert process.address.startswith("localhost:")
        assert len(await answers(process.address)) == 2
        assert process.stop() == 0


def test_the_line_in_json_comes_once_and_names_the_process(tmp_path: Path) -> None:
    file = write_shared(tmp_path)
    with processes(tmp_path, file, "--log-format", "json") as process:
        assert process.stop() == 0
        objects = [json.loads(line) for line in process.lines]
        (line,) = [entry for entry in objects if entry["message"].startswith("serving ")]
    assert line["process"] == process.pid
    assert len({entry["process"] for entry in objects}) == 4


def test_lines_for_people_name_their_process(tmp_path: Path) -> None:
    with processes(tmp_path, write_shared(tmp_path)) as process:
        assert process.stop() == 0
        stopping = [line for line in process.lines if "stopping" in line]
    assert len({re.search(r"\[(\d+)\]", line)[1] for line in stopping}) == 3  # type: ignore[index]


def test_a_missing_external_url_is_warned_of_once(tmp_path: Path) -> None:
    with processes(tmp_path, write_shared(tmp_path), "--host", "0.0.0.0") as process:
        assert process.stop() == 0
        assert len([line for line in process.lines if "--external-url" in line]) == 1


async def test_what_an_agent_starts_is_not_taken_for_one_of_them(tmp_path: Path) -> None:
    source = """
        async def agent(context):
            return repr(sorted(name for name in os.environ if "PARENT" in name))
    """
    with processes(tmp_path, write_shared(tmp_path, source), count=2) as process:
        assert await answers(process.address) == {"[]"}
        assert process.stop() == 0


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("missing.py", 1, "missing.py"),
        ("raises.py", 1, "ZeroDivisionError"),
        ("shared.py:nothing", 1, "has no nothing"),
        ("shared.py:not-a-name", 2, "is not a target"),
        ("shared.py:agent", 2, "--processes 3 needs a store that processes share"),
    ],
)
def test_what_is_wrong_is_said_once(tmp_path: Path, target: str, code: int, words: str) -> None:
    write_shared(tmp_path)
    (tmp_path / "raises.py").write_text("1 / 0\n", encoding="utf-8")
    with processes(tmp_path, target) as process:
        assert process.wait() == code
        (line,) = process.lines
    assert line.startswith("error: ")
    assert words in line


def test_a_process_that_dies_before_all_serve_ends_the_command(tmp_path: Path) -> None:
    source = """
        try:
            os.close(os.open("first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            os.kill(os.getpid(), 9)
    """
    with processes(tmp_path, write_shared(tmp_path, source)) as process:
        assert process.wait() == 1
        assert not [line for line in process.lines if "serving" in line]
        (line,) = [line for line in process.lines if line.startswith("error: ")]
    assert "was ended by SIGKILL before all served" in line


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with processes(tmp_path, write_shared(tmp_path), port=port) as process:
            assert process.wait() == 1
            (line,) = process.lines
    assert f"127.0.0.1:{port}" in line
    assert "the port is taken" in line


@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_processes_share_is_taken_for_everybody_else(
    tmp_path: Path, count: int
) -> None:
    file = write_shared(tmp_path)
    with processes(tmp_path, file, count=2) as first:
        port = int(first.address.rpartition(":")[2])
        with processes(tmp_path, file, count=count, port=port) as second:
            assert second.wait() == 1
            (line,) = second.lines
        assert "the port is taken" in line
        assert first.stop() == 0


def test_a_system_where_processes_cannot_share_a_port_is_named(tmp_path: Path) -> None:
    code = "import socket; del socket.SO_REUSEPORT; from a2a_grpc.cli import main; main()"
    file = write_shared(tmp_path)
    with Process(
        "serve", file, "--processes", "2", cwd=tmp_path, command=(sys.executable, "-c", code)
    ) as process:
        assert process.wait() == 1
        (line,) = process.lines
    assert "SO_REUSEPORT" in line
    assert "each with its own --port" in line


@pytest.mark.parametrize("value", ["nonsense", "987"])
def test_a_parent_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    file = write_shared(tmp_path)
    with processes(tmp_path, file, A2A_GRPC_PARENT=value) as process:
        assert process.wait() == 1
        (line,) = process.lines
    assert "A2A_GRPC_PARENT" in line
    assert "unset it" in line


# Dying.


async def test_a_killed_process_is_replaced_while_the_others_go_on(tmp_path: Path) -> None:
    with processes(tmp_path, write_shared(tmp_path)) as process:
        before = await answers(process.address)
        killed = sorted(before)[0]
        os.kill(int(killed), signal.SIGKILL)
        assert f"process {killed} was ended by SIGKILL" in process.line("another is started in")
        survivors = await answers(process.address)
        assert before - {killed} <= survivors
        new = process.line(" serves").split()[-2]
        after = await answers(process.address)
        assert after == before - {killed} | {new}
        assert process.stop() == 0


async def test_a_process_that_was_stopped_by_hand_is_replaced(tmp_path: Path) -> None:
    with processes(tmp_path, write_shared(tmp_path), count=2) as process:
        before = await answers(process.address)
        os.kill(int(min(before)), signal.SIGTERM)
        assert "ended with exit status 0" in process.line("another is started in")
        process.line(" serves")
        after = await answers(process.address)
        assert len(after) == 2
        assert len(after & before) == 1
        assert process.stop() == 0


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_tasks_end_in_all_processes_and_frees_the_port(
    tmp_path: Path, number: signal.Signals
) -> None:
    source = """
        import asyncio

        async def agent(context):
            if context.get_user_input() == "who?":
                return str(os.getpid())
            await asyncio.to_thread(lambda: open("gate").read())
            return "went on"
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    file = write_shared(tmp_path, source)
    with processes(tmp_path, file, "--grace", "30", count=2) as process:
        address = process.address
        async with connected(address) as client, connected(address) as late:
            stream = client.stream("work")
            assert outline(await take(stream, 1)) == ["task WORKING"]
            await late.send("who?")  # so it is connected
            process.send_signal(number)
            process.line("stopping")
            async with asyncio.timeout(PATIENCE):
                while (status := await refused(late.get("any"))).reason == "TASK_NOT_FOUND":
                    pass  # its process has not got the signal yet
            assert status.code is grpc.StatusCode.UNAVAILABLE
            gate.write_text("go on", encoding="utf-8")
            assert outline(await take(stream, 2)) == ["artifact went on", "status COMPLETED"]
        assert await asyncio.to_thread(process.wait) == 0
        assert can_be_bound(address)


async def test_a_second_signal_ends_tasks_at_once(tmp_path: Path) -> None:
    source = """
        import asyncio

        async def agent(context):
            await asyncio.Event().wait()
    """
    file = write_shared(tmp_path, source)
    with processes(tmp_path, file, "--grace", "600", count=2) as process:
        async with connected(process.address) as client:
            assert outline(await take(client.stream(), 1)) == ["task WORKING"]
            process.send_signal(signal.SIGTERM)
            process.line("tasks that run: 1")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0


def test_a_signal_before_they_serve_ends_them_with_0(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    source = "import sys\nprint('importing', file=sys.stderr)\nopen('gate').read()\n"
    with processes(tmp_path, write_shared(tmp_path, source)) as process:
        process.line("importing")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert not [line for line in process.lines if "Traceback" in line]


async def test_no_process_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    with processes(tmp_path, write_shared(tmp_path)) as process:
        address = process.address
        with ends_of([int(pid) for pid in await answers(address)]):
            process.send_signal(signal.SIGKILL)
            # What they write to is closed when the last of them ends.
            assert process.wait() == -signal.SIGKILL
        assert len([line for line in process.lines if "is gone; stopping" in line]) == 3
        assert can_be_bound(address)


async def test_not_even_one_that_is_blocked_outlives_its_parent(tmp_path: Path) -> None:
    source = """
        import signal
        import a2a_grpc.commands.parent

        a2a_grpc.commands.parent._PATIENCE = 0.0
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    """
    file = write_shared(tmp_path, source)
    with (
        processes(tmp_path, file, "--grace", "0", count=2) as process,
        ends_of([int(pid) for pid in await answers(process.address)]),
    ):
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


async def test_ctrl_c_on_a_terminal_reaches_them_once(tmp_path: Path) -> None:
    """The terminal sends it to all processes of the job; a second one would end the grace."""
    with Process(
        *("serve", write_shared(tmp_path), "--processes", "2", "--port", "0"),
        cwd=tmp_path,
        process_group=0,
    ) as process:
        found = [int(pid) for pid in await answers(process.address)]
        assert process.pid not in [os.getpgid(pid) for pid in found]
        os.killpg(process.pid, signal.SIGINT)
        assert await asyncio.to_thread(process.wait) == 0
        assert len([line for line in process.lines if "stopping" in line]) == 2
