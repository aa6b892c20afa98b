"""`a2a-grpc chat`: several turns, with a pipe and on a terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

from a2a_grpc import pb
from a2a_grpc.agent.executor import EventQueue
from a2a_grpc.agent.request_context import RequestContext
from tests.cli.commands import a2a, on_a_terminal
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
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


async def test_each_line_of_a_pipe_is_a_message_in_one_context() -> None:
    async with serving(echo) as serve:
        ran = await a2a("chat", stdin="one\n\ntwo", target=serve.server.address)
        tasks = (await serve.list()).tasks
    assert (ran.code, ran.out) == (0, "one\ntwo\n")
    assert len(tasks) == 2
    assert len({task.context_id for task in tasks}) == 1


async def test_a_task_that_asks_is_answered_by_the_next_line() -> None:
    async with serving(asking) as serve:
        ran = await a2a("chat", stdin="hi\nmore\ndone\nagain\n", target=serve.server.address)
        tasks = (await serve.list()).tasks
    assert ran.out == "what else?\nwhat else?\nbye\nwhat else?\n"
    assert ran.code == 4  # the last answer is a question
    assert "to answer" not in ran.err
    assert [task.status.state for task in tasks] == [INPUT_REQUIRED, COMPLETED]


async def test_json_is_the_events_of_all_turns() -> None:
    async with serving(asking) as serve:
        ran = await a2a("chat", "--json", stdin="hi\ndone\n", target=serve.server.address)
    assert (ran.code, ran.err) == (0, "")
    states = [
        one["statusUpdate"]["status"]["state"] for one in ran.objects if "statusUpdate" in one
    ]
    assert states[-1] == "TASK_STATE_COMPLETED"
    assert "TASK_STATE_INPUT_REQUIRED" in states


async def test_exit_ends_it_before_the_input_does() -> None:
    async with serving(echo) as serve:
        ran = await a2a("chat", stdin="one\n/exit\ntwo\n", target=serve.server.address)
    assert (ran.code, ran.out) == (0, "one\n")


async def test_a_call_that_fails_ends_it_for_a_script() -> None:
    async with serving(echo) as serve:
        ran = await a2a("chat", "--task", "none", stdin="one\ntwo\n", target=serve.server.address)
    assert (ran.code, ran.out) == (1, "")
    assert ran.error.startswith("task 'none' does not exist")


async def test_it_goes_on_with_a_context_and_a_task_that_are_given() -> None:
    async with serving(asking) as serve:
        task = await serve.send("hi")
        ran = await a2a("chat", "--task", task.id, stdin="done\n", target=serve.server.address)
        assert (ran.code, ran.out) == (0, "bye\n")
        await a2a("chat", "--context", "mine", stdin="hi\n", target=serve.server.address)
        (found,) = (await serve.list(context_id="mine")).tasks
        assert found.id != task.id


async def test_files_go_with_the_first_message(tmp_path: Path) -> None:
    heard: list[list[str | None]] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.message is not None
        heard.append([part.WhichOneof("content") for part in context.message.parts])
        await queue.enqueue_event(a_task(COMPLETED))

    (tmp_path / "a.bin").write_bytes(b"x")
    async with serving(Agent(execute)) as serve:
        ran = await a2a(
            "chat", "--file", tmp_path / "a.bin", stdin="1\n2\n", target=serve.server.address
        )
    assert ran.code == 0, ran.err
    assert heard == [["text", "raw"], ["text"]]


async def test_a_file_is_not_read_from_the_stdin_that_has_the_lines() -> None:
    ran = await a2a("chat", "--file", "-", stdin="one\n", target="127.0.0.1:1")
    assert ran.code == 2
    assert "chat reads its lines from stdin" in ran.error


async def test_an_agent_without_streams_can_be_talked_to() -> None:
    card = pb.AgentCard(name="Still", capabilities=pb.AgentCapabilities(streaming=False))
    async with serving(asking, card=card) as serve:
        ran = await a2a("chat", stdin="hi\ndone\n", target=serve.server.address)
    assert (ran.code, ran.out) == (0, "what else?\nbye\n")


async def test_a_person_talks_until_ctrl_d() -> None:
    async with (
        serving(asking) as serve,
        on_a_terminal("chat", target=serve.server.address) as terminal,
    ):
        await terminal.expect("Ctrl-D or /exit ends the chat")
        await terminal.expect("> ")
        terminal.type("hi\n")
        await terminal.expect("what else?")
        await terminal.expect("> ")
        terminal.type("done\n")
        await terminal.expect("bye")
        await terminal.expect("> ")
        terminal.type("\x04")
        assert await terminal.wait() == 0


async def test_an_error_does_not_end_it_for_a_person() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "bad":
            from a2a_grpc import InvalidParamsError

            raise InvalidParamsError.field("message.parts[0].text", "must be good")
        await queue.enqueue_event(a_task(COMPLETED, "fine"))

    async with (
        serving(Agent(execute)) as serve,
        on_a_terminal("chat", target=serve.server.address) as terminal,
    ):
        await terminal.expect("> ")
        terminal.type("bad\n")
        await terminal.expect("error: message.parts[0].text: must be good")
        await terminal.expect("> ")
        terminal.type("good\n")
        await terminal.expect("fine")
        await terminal.expect("> ")
        terminal.type("/exit\n")
        assert await terminal.wait() == 0


async def test_ctrl_c_cancels_the_answer_and_not_the_chat() -> None:
    cancelled = asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(a_task(WORKING))
        if context.get_user_input() == "long":
            await queue.enqueue_event(chunk("it begins"))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        await queue.enqueue_event(status_update(COMPLETED, "short"))

    async with (
        serving(Agent(execute)) as serve,
        on_a_terminal("chat", target=serve.server.address) as terminal,
    ):
        await terminal.expect("> ")
        terminal.interrupt()  # nothing to cancel yet
        # A signal that comes before Python's readline waits is noticed with the next key only.
        terminal.type("\n")
        await terminal.expect("Ctrl-D or /exit ends the chat")
        await terminal.expect("> ")
        terminal.type("long\n")
        await terminal.expect("it begins")
        terminal.interrupt()
        await terminal.expect("CANCELED")
        await within(cancelled.wait())
        await terminal.expect("> ")
        terminal.type("again\n")
        await terminal.expect("short")
        await terminal.expect("> ")
        terminal.type("\x04")
        assert await terminal.wait() == 0
        states = [task.status.state for task in (await serve.list()).tasks]
        assert states == [COMPLETED, CANCELED]
        contexts = {task.context_id for task in (await serve.list()).tasks}
        assert len(contexts) == 1
