"""One run of a client command: its output, its event loop and its client."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shlex
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from a2a_grpc import pb
from a2a_grpc.commands import logs
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.failure import how_to_follow
from a2a_grpc.commands.client.options import Connection
from a2a_grpc.commands.client.outcome import CommandError, code_of, is_settled
from a2a_grpc.commands.client.output import JSONOutput, Output
from a2a_grpc.commands.client.plain import one_line
from a2a_grpc.commands.client.saving import FileSaver

if TYPE_CHECKING:
    from a2a_grpc.client.event_stream import EventStream

T = TypeVar("T")

_TRIES = 4
"""Of a call, while the server can't be reached: less than two seconds in all, for who waits."""


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
        self.output = _output(connection, directory)
        with _told_as_usage():
            self.client = connection.client(tries=_TRIES, card_keys=card_keys)
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        logs.configure(json_lines=self.connection.json, level=self.connection.log_level)
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

    async def answer(self, message: dict[str, Any], *, hints: bool = True) -> int:
        """Send a message, show the outcome; the exit code.

        Args:
            message: the arguments of `A2AClient.send`.
            hints: whether to say how a question is answered.
        """
        answer = await shown(self, self.client.send(**message), "waiting for the agent")
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
            CommandError: the stream ended, and the task goes on.
        """
        self.stream = stream
        self.task_id, self.state = "", None
        async with stream:
            with self.output.waiting("waiting for the agent"):
                async for event in stream:
                    self._note_event(event)
                    self.output.event(event, is_reset=stream.is_reset)
        if self.state is None:
            return outcome.DONE  # a direct message
        if not is_settled(self.state):
            follow = how_to_follow(quoted(stream.task_id), stream.sequence)
            raise CommandError(
                f"the stream ended before the task did (a2a-grpc {follow} goes on)",
                reason="STREAM_ENDED",
                details={"taskId": stream.task_id, "sequence": stream.sequence},
            )
        if hints:
            self.hint()
        return code_of(self.state)

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
        details: dict[str, Any] = {}
        message = "interrupted"
        if self.stream is not None and self.stream.task_id:
            task = quoted(self.stream.task_id)
            follow = how_to_follow(task, self.stream.sequence)
            message += f"; the task goes on (a2a-grpc {follow}, or a2a-grpc cancel {task})"
            details = {"taskId": self.stream.task_id, "sequence": self.stream.sequence}
        return CommandError(
            message, exit_code=outcome.INTERRUPTED, reason="INTERRUPTED", details=details
        )


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


def quoted(task_id: str) -> str:
    """A task id, which the server chose, as one word of a shell."""
    return shlex.quote(one_line(task_id))


@contextlib.contextmanager
def _told_as_usage() -> Iterator[None]:
    """What the client finds wrong with its arguments, the command line got wrong."""
    from a2a_grpc.cards.errors import CardSignatureError

    try:
        yield
    except CardSignatureError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error).removeprefix("ClientTLS: ")) from error


def _output(connection: Connection, directory: Path | None) -> Output:
    saver = None if directory is None else FileSaver(directory)
    if connection.json:
        return JSONOutput(saver)
    # rich takes a while to import.
    from a2a_grpc.commands.client.terminal import TerminalOutput

    return TerminalOutput(saver)
