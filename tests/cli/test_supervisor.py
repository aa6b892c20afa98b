"""The supervisor of several processes, with scripts in place of servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from a2a_grpc.commands.parent import Started
from a2a_grpc.commands.processes import Backoff, ProcessesError, Supervisor
from tests.cli.process import PATIENCE

STARTED = Started(address="127.0.0.1:1", store=None, unnamed=False)
SCRIPT = """
import json, os, signal, socket, sys
from pathlib import Path

parent = socket.socket(fileno=int(os.environ["A2A_GRPC_PARENT"]))
replies = parent.makefile("rb")

def tell(**message):
    parent.sendall(json.dumps(message).encode() + b"\\n")

def serve():
    tell(started={"address": "127.0.0.1:1", "store": None, "unnamed": False})

def count(name):
    # How often this was called before, by any of the processes; one byte each.
    with open(name, "ab") as file:
        file.write(b".")
        return file.tell() - 1

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
"""
SOON = Backoff(first=0.001, longest=0.004, tries=3)


class Run:
    """A supervisor that runs scripts."""

    def __init__(self, cwd: Path, source: str, count: int = 1, backoff: Backoff = SOON) -> None:
        file = cwd / "script.py"
        file.write_text(SCRIPT + textwrap.dedent(source), encoding="utf-8")
        self.started: list[Started] = []
        self._serves = asyncio.Event()
        self._supervisor = Supervisor(
            [sys.executable, "-I", str(file)], count, on_started=self._on_started, backoff=backoff
        )

    def _on_started(self, started: Started) -> None:
        self.started.append(started)
        self._serves.set()

    async def to_its_end(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self._supervisor.run()

    async def until_it_serves(self) -> asyncio.Task[int]:
        running = asyncio.create_task(self.to_its_end(), name="supervisor")
        async with asyncio.timeout(PATIENCE):
            await self._serves.wait()
        return running


@pytest.fixture(autouse=True)
def _in_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def numbers(directory: Path, suffix: str) -> list[int]:
    """The names of all files with that suffix."""
    return [int(file.stem) for file in directory.glob(f"*.{suffix}")]


def delays(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of all replacements, as the log has them."""
    return [
        record.getMessage().rpartition(" in ")[2]
        for record in caplog.records
        if "another is started in" in record.getMessage()
    ]


async def test_it_says_once_that_all_serve_and_ends_with_0(tmp_path: Path) -> None:
    run = Run(tmp_path, "serve(); signal.pause()", count=4)
    running = await run.until_it_serves()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert run.started == [STARTED]


async def test_the_first_is_started_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, "count('runs'); sys.exit(1)", count=4)
    assert await run.to_its_end() == 1
    assert (tmp_path / "runs").read_bytes() == b"."


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV before all served"),
        ("sys.exit(0)", "ended with exit status 0 before all served"),
        ("sys.exit(7)", "ended with exit status 7 before all served"),
    ],
)
async def test_an_end_that_a_process_could_not_explain_is_named(
    tmp_path: Path, source: str, words: str
) -> None:
    with pytest.raises(ProcessesError, match=words):
        await Run(tmp_path, source).to_its_end()


async def test_a_command_that_is_none_is_named() -> None:
    supervisor = Supervisor(["/no/such/program"], 2, on_started=lambda started: None)
    with pytest.raises(ProcessesError, match=r"could not be started .*No such file"):
        await supervisor.run()


async def test_replacements_wait_longer_and_longer_up_to_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        serve()
        if count("runs") == 5:
            os.kill(os.getppid(), signal.SIGTERM)
            signal.pause()
        os._exit(3)
    """
    assert await Run(tmp_path, source).to_its_end() == 0
    assert delays(caplog) == ["0.001s", "0.002s", "0.004s", "0.004s", "0.004s"]


async def test_the_delay_starts_over_for_one_that_had_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        serve()
        if count("runs") == 3:
            os.kill(os.getppid(), signal.SIGTERM)
            signal.pause()
        sys.exit(3)
    """
    backoff = Backoff(first=0.001, settled=0.0)
    assert await Run(tmp_path, source, backoff=backoff).to_its_end() == 0
    assert delays(caplog) == ["0.001s"] * 3


async def test_it_gives_up_when_none_serves_and_none_can_be_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        if count("runs") >= 2:
            sys.exit(1)
        Path(f"{os.getpid()}.pid").touch()
        serve()
        signal.pause()
    """
    running = await Run(tmp_path, source, count=2).until_it_serves()
    for pid in numbers(tmp_path, "pid"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessesError, match="no process can be started any more"):
        await running
    assert len((tmp_path / "runs").read_bytes()) >= 2 + 2 * SOON.tries


async def test_it_does_not_give_up_while_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        runs = count("runs")
        if 2 <= runs < 12:
            sys.exit(1)
        Path(f"{os.getpid()}.pid").touch()
        serve()
        if runs == 12:
            os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
    """
    running = await Run(tmp_path, source, count=2).until_it_serves()
    os.kill(numbers(tmp_path, "pid")[0], signal.SIGKILL)
    assert await running == 0
    assert len(delays(caplog)) == 11


async def test_a_process_that_fails_while_it_stops_makes_the_command_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(5))
        serve()
        signal.pause()
    """
    running = await Run(tmp_path, source, count=2).until_it_serves()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 1
    assert "ended with exit status 5 when it was to stop" in caplog.text


async def test_every_signal_is_passed_on(tmp_path: Path) -> None:
    source = """
        def stop(number, frame):
            if count("signals") == 1:
                sys.exit(0)
            Path("gate").write_text("first")

        signal.signal(signal.SIGTERM, stop)
        serve()
        while True:
            signal.pause()
    """
    os.mkfifo("gate")
    running = await Run(tmp_path, source).until_it_serves()
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.to_thread(Path("gate").read_text) == "first"
    assert not running.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_all_are_given_the_port_that_the_first_asked_for(tmp_path: Path) -> None:
    source = """
        tell(reserve=["127.0.0.1", 0])
        Path(f"{os.getpid()}.port").write_bytes(replies.readline())
        serve()
        signal.pause()
    """
    running = await Run(tmp_path, source, count=3).until_it_serves()
    pids = numbers(tmp_path, "port")
    assert len(pids) == 3
    replies = {(tmp_path / f"{pid}.port").read_text(encoding="utf-8") for pid in pids}
    (reply,) = replies
    assert json.loads(reply)["port"] > 0
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_one_that_asks_for_another_port_is_refused(tmp_path: Path) -> None:
    source = """
        tell(reserve=["127.0.0.1", count("runs")])
        Path("reply").write_bytes(replies.readline())
        serve()
        signal.pause()
    """
    running = await Run(tmp_path, source, count=2).until_it_serves()
    assert "another address than the first" in (tmp_path / "reply").read_text(encoding="utf-8")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_what_a_process_has_forked_does_not_keep_it(tmp_path: Path) -> None:
    """Its end is seen by itself: the socket may live on in what the agent has started."""
    source = """
        serve()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pause()
        Path("gate").write_text(str(child))
        signal.pause()
    """
    os.mkfifo("gate")
    running = await Run(tmp_path, source).until_it_serves()
    forked = int(await asyncio.to_thread(Path("gate").read_text))
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
    finally:
        os.kill(forked, signal.SIGKILL)
