"""What a person sees: pieces as they come, colours, the spinner, tables; in a pipe, text alone."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from a2a_grpc.agent.executor import EventQueue
from a2a_grpc.agent.request_context import RequestContext
from tests.cli.commands import a2a, on_a_terminal
from tests.cli.process import environment_of
from tests.support import (
    COMPLETED,
    WORKING,
    Agent,
    a_task,
    asking,
    chunk,
    echo,
    serving,
    status_update,
    within,
)


class Dictating:
    """An agent that says a piece whenever the test lets it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(a_task(WORKING))
        first = True
        while (piece := await self.pieces.get()) is not None:
            await queue.enqueue_event(chunk(piece, append=not first))
            first = False
        await queue.enqueue_event(status_update(COMPLETED))


async def test_streamed_text_arrives_piece_by_piece_on_one_line() -> None:
    agent = Dictating()
    async with (
        serving(Agent(agent.execute)) as serve,
        on_a_terminal("stream", "go", target=serve.server.address) as terminal,
    ):
        await terminal.expect("WORKING")
        for piece in ("Once ", "upon ", "a time"):
            agent.pieces.put_nowait(piece)  # only after the one before was seen
            await terminal.expect(piece)
        agent.pieces.put_nowait(None)
        assert await terminal.wait() == 0
        await terminal.expect("COMPLETED")
        lines = terminal.shown.split("\n")
    assert "Once upon a time" in [line.rpartition("\r")[2] for line in lines]


async def test_pieces_arrive_in_a_pipe_too() -> None:
    agent = Dictating()
    async with serving(Agent(agent.execute)) as serve:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "a2a_grpc", "stream", "go", "--target", serve.server.address,
            env=environment_of(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        for piece in (b"Once ", b"upon "):
            agent.pieces.put_nowait(piece.decode())
            assert await within(process.stdout.readexactly(len(piece)), 30) == piece
        agent.pieces.put_nowait(None)
        rest, _ = await within(process.communicate(), 30)
    assert (rest, process.returncode) == (b"\n", 0)


async def test_states_have_colours_on_a_terminal() -> None:
    async with (
        serving(echo) as serve,
        on_a_terminal("stream", "go", target=serve.server.address) as terminal,
    ):
        assert await terminal.wait() == 0
        await terminal.expect("COMPLETED")
    assert "\x1b[36mWORKING" in terminal.raw
    assert "\x1b[1;32mCOMPLETED" in terminal.raw


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
async def test_colours_can_be_turned_off(variable: str) -> None:
    async with (
        serving(echo) as serve,
        on_a_terminal(
            "stream", "go", target=serve.server.address, **{variable: "dumb"}
        ) as terminal,
    ):
        assert await terminal.wait() == 0
        await terminal.expect("COMPLETED")
    assert "go" in terminal.raw
    assert not [code for code in (3, 4, 9) if f"\x1b[{code}" in terminal.raw]
    assert "m" not in {terminal.raw[i + 3 : i + 4] for i in range(len(terminal.raw))
                       if terminal.raw.startswith("\x1b[", i)}  # fmt: skip


async def test_a_spinner_turns_while_nothing_is_shown() -> None:
    agent = Dictating()
    async with (
        serving(Agent(agent.execute)) as serve,
        on_a_terminal("send", "go", target=serve.server.address) as terminal,
    ):
        await terminal.expect("waiting for the agent")
        agent.pieces.put_nowait("answer")
        agent.pieces.put_nowait(None)
        assert await terminal.wait() == 0
        await terminal.expect("answer")
    # The cursor is shown again at the end.
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")


async def test_the_cursor_comes_back_after_ctrl_c() -> None:
    agent = Dictating()
    async with (
        serving(Agent(agent.execute)) as serve,
        on_a_terminal("send", "go", target=serve.server.address) as terminal,
    ):
        await terminal.expect("waiting for the agent")
        terminal.interrupt()
        assert await terminal.wait() == 130
        await terminal.expect("error: interrupted")
        agent.pieces.put_nowait(None)
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")


async def test_a_signal_that_ends_it_leaves_the_cursor_as_it_was() -> None:
    agent = Dictating()
    async with (
        serving(Agent(agent.execute)) as serve,
        on_a_terminal("send", "go", target=serve.server.address) as terminal,
    ):
        await terminal.expect("waiting for the agent")
        terminal.send_signal(signal.SIGTERM)
        assert await terminal.wait() == -signal.SIGTERM
        await terminal.expect("\x1b[?25h")
        agent.pieces.put_nowait(None)
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")


async def test_nothing_is_waited_for_once_the_task_has_ended() -> None:
    async with (
        serving(echo) as serve,
        on_a_terminal("stream", "go", target=serve.server.address) as terminal,
    ):
        assert await terminal.wait() == 0
        await terminal.expect("COMPLETED")
        assert "waiting" not in terminal.raw.partition("COMPLETED")[2]


@pytest.mark.parametrize("columns", [40, 100, 160])
async def test_a_table_cuts_no_id_and_no_name_on_any_terminal(columns: int) -> None:
    async with serving(asking) as serve:
        task = await serve.send("hello")
        async with on_a_terminal("list", target=serve.server.address, columns=columns) as terminal:
            assert await terminal.wait() == 0
            await terminal.expect("what else?")
        piped = await a2a("list", target=serve.server.address)
    assert "\x1b[1mTASK" in terminal.raw
    assert "\x1b[1;35mINPUT_REQUIRED" in terminal.raw
    assert "\x1b" not in piped.out
    head, row = terminal.shown.strip().split("\n")[-2:]
    assert head.split()[-5:] == ["TASK", "STATE", "UPDATED", "CONTEXT", "MESSAGE"]
    assert row.split() == piped.out.splitlines()[1].split()
    assert {task.id, task.context_id} <= set(row.split())


async def test_json_on_a_terminal_has_no_colours_and_no_spinner() -> None:
    async with (
        serving(echo) as serve,
        on_a_terminal("send", "go", "--json", target=serve.server.address) as terminal,
    ):
        assert await terminal.wait() == 0
        await terminal.expect('"task"')
    assert "\x1b" not in terminal.raw


async def test_an_interrupted_reader_is_no_error() -> None:
    """`a2a-grpc list | head -1` says nothing about a broken pipe."""
    async with serving(echo) as serve:
        for number in range(100):
            await serve.send(f"{number}" * 1000)
        process = await asyncio.create_subprocess_exec(
            "bash", "-c",
            f"'{sys.executable}' -m a2a_grpc list --json --target {serve.server.address} | head -1",
            env=environment_of(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await within(process.communicate(), 30)
    assert out.count(b"\n") == 1
    assert err == b""
