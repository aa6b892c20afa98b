"""`a2a-grpc chat`: a conversation, one line per message.

The context is kept from turn to turn, and so is a task that asked for something. Between two turns
the event loop stands still, so that the terminal's own line editing can be used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from a2a_grpc import pb
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.content import STDIN, message_options, parts_of
from a2a_grpc.commands.client.failure import as_command_error
from a2a_grpc.commands.client.options import ClientCommand, Connection, output_option
from a2a_grpc.commands.client.outcome import CommandError, is_settled
from a2a_grpc.commands.client.plain import one_line
from a2a_grpc.commands.client.session import Session, shown
from a2a_grpc.errors import A2AError, UnsupportedOperationError, unwrap

_EXIT = "/exit"
_PROMPT = "> "
_WAITING = (pb.TaskState.TASK_STATE_INPUT_REQUIRED, pb.TaskState.TASK_STATE_AUTH_REQUIRED)
_CANCEL_TIMEOUT = 5.0  # seconds for a server to cancel what Ctrl-C gave up


@click.command(cls=ClientCommand, epilog=outcome.HELP)
@message_options
@output_option
@click.pass_obj
def chat(
    connection: Connection,
    files: Sequence[Path],
    data: Sequence[str],
    task_id: str,
    context_id: str,
    directory: Path | None,
) -> int:
    """Talk with the agent, line by line.

    Ctrl-D or /exit ends it; Ctrl-C cancels the answer that is being written. Files and data go
    with the first message. When stdin is no terminal, each of its lines is a message, and the first
    call that fails ends it.
    """
    if STDIN in map(str, files):
        raise click.UsageError("chat reads its lines from stdin; --file needs a file here")
    attached = parts_of((), files, data) if files or data else []
    with Session(connection, directory=directory) as session:
        return Chat(session, task_id, context_id, attached).run()


class Chat:
    """A conversation with one agent."""

    def __init__(
        self, session: Session, task_id: str, context_id: str, attached: Sequence[pb.Part]
    ) -> None:
        self._session = session
        self._task_id = task_id  # of the task that the next message answers; "" for new work
        self._context_id = context_id
        self._attached = list(attached)
        self._streams = True  # until the agent says that it does not
        self._code = outcome.DONE  # of the turn before

    def run(self) -> int:
        """Until the input ends; the exit code."""
        reader = LineReader(prompts=not self._session.connection.json)
        if reader.is_terminal:
            self._session.output.note("Ctrl-D or /exit ends the chat")
        while True:
            try:
                line = reader.read()
                if line is None or line.strip() == _EXIT:
                    # People have seen how each turn ended; scripts have the code only.
                    return outcome.DONE if reader.is_terminal else self._code
                if line.strip():
                    self._turn(line, goes_on=reader.is_terminal)
            except KeyboardInterrupt:  # at the prompt, or when an answer had just ended
                if not reader.is_terminal:
                    raise self._session.interrupted() from None
                self._session.output.note("\nCtrl-D or /exit ends the chat")

    def _turn(self, line: str, *, goes_on: bool) -> None:
        session = self._session
        try:
            self._code = session.run(self._say(line))
        except KeyboardInterrupt:
            self._code = outcome.INTERRUPTED
            self._cancel()
        except (A2AError, CommandError) as error:
            if not goes_on:
                raise
            told = (
                error
                if isinstance(error, CommandError)
                else as_command_error(unwrap(error), session.connection.hint)
            )
            self._code = told.exit_code
            session.output.error(told)
        finally:
            session.output.finish()
        self._context_id = session.context_id or self._context_id
        self._task_id = session.task_id if session.state in _WAITING else ""

    async def _say(self, line: str) -> int:
        session = self._session
        message: dict[str, Any] = {
            "content": [*parts_of((line,), (), ()), *self._attached],
            "task_id": self._task_id,
            "context_id": self._context_id,
            "history_length": None if session.connection.json else 0,
            "timeout": session.connection.timeout,
        }
        session.output.new_turn(continued=bool(self._task_id))
        if self._streams:
            try:
                code = await session.follow(session.client.stream(**message), hints=False)
            except UnsupportedOperationError:
                # An agent without streams says so before it does anything.
                self._streams = False
        if not self._streams:
            code = await session.answer(message, hints=False)
        self._attached = []
        return code

    def _cancel(self) -> None:
        """Cancel the task whose answer nobody waits for any more, as far as that can be done."""
        session = self._session
        session.output.finish()
        task_id = session.task_id
        if not task_id or is_settled(session.state):
            session.output.note("interrupted")
            return
        try:
            with contextlib.suppress(A2AError):
                call = session.client.cancel_task(task_id, timeout=_CANCEL_TIMEOUT)
                task = session.run(shown(session, call, "canceling"))
                session.state = task.status.state
                session.output.state(task)
                return
        except KeyboardInterrupt:
            pass
        session.output.note(f"the task {one_line(task_id)} could not be canceled, and may go on")


class LineReader:
    """The lines that a person types, or that another program writes.

    Args:
        prompts: whether a person is asked for a line.
    """

    def __init__(self, *, prompts: bool) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._prompt = _PROMPT if prompts and self.is_terminal else ""
        self._edits = self.is_terminal and sys.stdout.isatty()
        if self._edits:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  line editing and history for input()

    def read(self) -> str | None:
        """The next line without its end, None when there is none.

        Raises:
            click.UsageError: the line is not text in UTF-8.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._edits:
            try:
                return input(self._prompt)
            except EOFError:
                print(flush=True)
                return None
        if self._prompt:
            print(self._prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        try:
            return line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise click.UsageError("stdin is not text in UTF-8") from error
