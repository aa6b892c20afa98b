"""One run of a client command: its output, its event loop and its client."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from a2a_grpc import pb
from a2a_grpc.commands import logs
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.describe import state_name
from a2a_grpc.commands.client.failure import how_to_follow, quoted
from a2a_grpc.commands.client.options import Connection
from a2a_grpc.commands.client.outcome import CommandError, code_of, is_settled
from a2a_grpc.commands.client.output import JSONOutput, Output
from a2a_grpc.commands.client.saving import FileSaver
from a2a_grpc.task import TERMINAL_STATES

if TYPE_CHECKING:
    from a2a_grpc.client.event_stream import EventStream

T = TypeVar("T")

_TRIES = 4
"""Of a call, while the server can't be reached: less than two seconds in all, for who waits."""

_OPTIONS = {
    "root_certificates": "--tls-ca",
    "certificate": "--tls-cert",
    "private_key": "--tls-key",
}
"""What the command line calls the arguments of ClientTLS."""


class Session:
    """A context manager; the loop stands still between two `run`.

    Args:
        connection: what the shared options say.
        directory: where files are saved; None: nowhere.
        card_keys: what has to verify the card's signature; see A2AClient.
    """

    def __init__(
        self, connection: Connection, *, directory: Path | None = None, card_keys: Any = None
    ) -> None:
        self.connection = connection
        self.stream: EventStream | None = None  # the one followed last
        self.task_id = ""  # of the task shown last
        self.context_id = ""
        self.state: pb.TaskState.ValueType | None = None  # None: no task
        self._is_answered = False  # by a Task or a Message
        self._waits_for_task = False  # for the outcome of a message that may have been sent
        self.output = _output(connection, directory)
        with _told_as_usage():
            self.client = connection.client(tries=_TRIES, card_keys=card_keys)
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        logs.configure(json_lines=self.connection.json, level=self.connection.log_level)
        if self.connection.log_level != "debug":
            # It writes a traceback of an answer that can't be parsed, which is raised as well.
            logging.getLogger("grpc._common").setLevel(logging.CRITICAL)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # whatever an agent says can be shown
        with contextlib.ExitStack() as exits:
            exits.callback(self.output.finish)
            self._runner = exits.enter_context(asyncio.Runner())
            with _told_as_usage():
                self._runner.run(self.client.__aenter__())
            exits.callback(self._leave)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exits.close()

    def _leave(self) -> None:
        self._runner.run(self.client.__aexit__(None, None, None))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result; Ctrl-C cancels the work and raises KeyboardInterrupt here."""
        return self._runner.run(work)

    async def send(self, **message: Any) -> pb.Task | pb.Message:
        """What `A2AClient.send` returns."""
        self._waits_for_task = True
        answer = await shown(self, self.client.send(**message), "waiting for the agent")
        self._waits_for_task = False
        return answer

    async def answer(self, message: dict[str, Any], *, hints: bool = True) -> int:
        """Send a message, show the outcome; the exit code.

        Args:
            message: the arguments of `A2AClient.send`.
            hints: whether to say how a question is answered.
        """
        answer = await self.send(**message)
        self.output.answer(answer)
        if isinstance(answer, pb.Message):
            self._note_place("", answer.context_id, None)
            return outcome.DONE
        self._note_place(answer.id, answer.context_id, answer.status.state)
        if not is_settled(answer.status.state):  # a server that does not let us wait
            stream = self.client.subscribe(answer.id, timeout=self.connection.timeout)
            return await self.follow(stream, hints=hints)
        if hints:
            self.hint()
        return code_of(answer.status.state)

    async def follow(self, stream: EventStream, *, hints: bool = True) -> int:
        """Show every event; the exit code of how the stream ended.

        Raises:
            CommandError: the stream ended without an answer, or the task goes on.
        """
        from a2a_grpc.client.errors import DeadlineExceededError

        self.stream = stream
        self.task_id, self.state, self._is_answered = "", None, False
        try:
            async with stream:
                with self.output.waiting("waiting for the agent"):
                    async for event in stream:
                        self._note_event(event)
                        self.output.event(event, is_reset=stream.is_reset)
        except DeadlineExceededError as error:
            raise self._goes_on(
                f"{error.message}; --timeout gives it more",
                exit_code=outcome.UNREACHABLE,
                reason=error.reason,
            ) from error
        if not self._is_answered:
            await self._note_task_without_news(stream.task_id)
        if self.state is None:
            return outcome.DONE  # a direct message
        if not is_settled(self.state):
            raise self._goes_on("the stream ended before the task did", reason="STREAM_ENDED")
        if hints:
            self.hint()
        return code_of(self.state)

    async def _note_task_without_news(self, task_id: str) -> None:
        """A stream that went on after a task's last event had nothing to say, not even a state."""
        if not task_id:
            raise CommandError(
                "the stream ended with neither a Task nor a Message (--target names another agent)",
                reason="INVALID_AGENT_RESPONSE",
            )
        task = await self.client.get_task(task_id, history_length=0)
        self._note_place(task.id, task.context_id, task.status.state)
        self.output.note(f"nothing is new: the task is {state_name(task.status.state)}")

    def _goes_on(self, message: str, **attributes: Any) -> CommandError:
        """The error of a stream that ended before its task, which says how to go on."""
        stream = self.stream
        if stream is None or not stream.task_id:
            return CommandError(message, **attributes)
        target, task = self.connection.hint, stream.task_id
        return CommandError(
            f"{message}; the task goes on ({how_to_follow(target, task, stream.sequence)}, or "
            f"a2a-grpc cancel{target} {quoted(task)})",
            details={"taskId": task, "sequence": stream.sequence},
            **attributes,
        )

    def _note_event(self, event: pb.StreamResponse) -> None:
        match event.WhichOneof("payload"):
            case "task":
                self._note_place(event.task.id, event.task.context_id, event.task.status.state)
            case "status_update":
                update = event.status_update
                self._note_place(update.task_id, update.context_id, update.status.state)
            case "message":
                self._note_place("", event.message.context_id, None)

    def _note_place(
        self, task_id: str, context_id: str, state: pb.TaskState.ValueType | None
    ) -> None:
        self._is_answered = True
        self.task_id, self.state = task_id or self.task_id, state
        self.context_id = context_id or self.context_id

    def hint(self) -> None:
        """Say what a task that waits for its client waits for."""
        target, task = self.connection.hint, quoted(self.task_id)
        if self.state == pb.TaskState.TASK_STATE_INPUT_REQUIRED:
            self.output.note(f"to answer: a2a-grpc send{target} --task {task} TEXT")
        elif self.state == pb.TaskState.TASK_STATE_AUTH_REQUIRED:
            self.output.note(
                "the agent waits for credentials; afterwards: "
                f"a2a-grpc subscribe{target} {task}, or send{target} --task {task} TEXT"
            )

    def interrupted(self) -> CommandError:
        """The error of who pressed Ctrl-C; it says how to go on."""
        message = "interrupted"
        if self.state in TERMINAL_STATES:
            return CommandError(message, exit_code=outcome.INTERRUPTED, reason="INTERRUPTED")
        if self._waits_for_task:
            # Whether the server has the message at all is not known.
            message += f"; a task that has begun goes on (a2a-grpc list{self.connection.hint})"
        return self._goes_on(message, exit_code=outcome.INTERRUPTED, reason="INTERRUPTED")


def run(
    connection: Connection,
    work: Callable[[Session], Coroutine[Any, Any, int]],
    **session: Any,
) -> int:
    """Do the work of a command; returns the exit code.

    Raises:
        CommandError: also when it was interrupted.
    """
    with Session(connection, **session) as opened:
        try:
            return opened.run(work(opened))
        except KeyboardInterrupt:
            opened.output.finish()
            raise opened.interrupted() from None


async def shown(session: Session, call: Awaitable[T], what: str = "waiting for the server") -> T:
    """The answer of a call, with the spinner until it comes."""
    with session.output.waiting(what):
        return await call


@contextlib.contextmanager
def _told_as_usage() -> Iterator[None]:
    """What the client finds wrong with its arguments, the command line got wrong."""
    from a2a_grpc.cards.errors import CardSignatureError

    try:
        yield
    except CardSignatureError:
        raise
    except ValueError as error:
        message = str(error).removeprefix("ClientTLS: ")
        for argument, option in _OPTIONS.items():
            message = re.sub(rf"^(can't read )?{argument}\b", rf"\g<1>{option}", message)
        raise click.UsageError(message) from error


def _output(connection: Connection, directory: Path | None) -> Output:
    saver = None if directory is None else FileSaver(directory)
    if connection.json:
        return JSONOutput(saver)
    # rich takes a while to import.
    from a2a_grpc.commands.client.terminal import TerminalOutput

    return TerminalOutput(saver)
