"""What commands show to people: plain lines into a pipe or a file, with colours on a terminal.

Everything that comes from an agent goes through `plain`; nothing of it is taken for markup.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from a2a_grpc import pb
from a2a_grpc.commands.client import card_view, describe
from a2a_grpc.commands.client.describe import STATE_STYLES, state_name
from a2a_grpc.commands.client.outcome import CommandError, error_line, is_settled
from a2a_grpc.commands.client.output import Output
from a2a_grpc.commands.client.plain import one_line, plain
from a2a_grpc.commands.client.saving import FileSaver
from a2a_grpc.task import TERMINAL_STATES

_UNBOUNDED = 100_000  # columns of what is no terminal: nothing is cut there
_SAYS_THE_ANSWER = (
    pb.TaskState.TASK_STATE_COMPLETED,
    pb.TaskState.TASK_STATE_INPUT_REQUIRED,
    pb.TaskState.TASK_STATE_AUTH_REQUIRED,
)


class TerminalOutput(Output):
    """Answers on stdout, piece by piece as they come; states, hints and the spinner on stderr."""

    def __init__(self, saver: FileSaver | None = None) -> None:
        super().__init__(saver)
        self._out = _console(stderr=False)
        self._err = _console(stderr=True)
        self._open = ""  # the artifact that the line belongs to which has no end yet; "" for none
        self._state: tuple[str, int] | None = None  # the task and the state that were shown last
        self._spinner: Status | None = None
        self._rows: list[pb.Task] = []
        self._webhooks: list[pb.TaskPushNotificationConfig] = []

    # Streams and answers.

    def event(self, event: pb.StreamResponse, *, is_reset: bool = False) -> None:
        with self._paused():
            match event.WhichOneof("payload"):
                case "task":
                    self._whole_task(event.task, is_reset=is_reset)
                case "status_update":
                    update = event.status_update
                    self._status(update.task_id, update.status)
                case "artifact_update":
                    self._update(event.artifact_update)
                case "message":
                    self._message(event.message)

    def answer(self, answer: pb.Task | pb.Message) -> None:
        with self._paused():
            if isinstance(answer, pb.Task):
                self._whole_task(answer)
            else:
                self._message(answer)

    def _whole_task(self, task: pb.Task, *, is_reset: bool = False) -> None:
        is_old = self.novelty.is_old(task) and not is_reset
        if is_reset:
            self._say(Text("the task is shown from its beginning again", style="yellow"))
            self._state = None
        status = task.status
        words = "" if is_old or status.state in _SAYS_THE_ANSWER else describe.words(status.message)
        if not is_old and (words or self._state != (task.id, status.state)):
            self._state = (task.id, status.state)
            line = Text.assemble(("task ", "dim"), (one_line(task.id), "dim"), " ")
            self._say(line.append_text(_state(status.state)).append(f" {words}" if words else ""))
        for artifact, parts in self.novelty.of_task(task, is_reset=is_reset):
            self._artifact(task.id, artifact, parts)
        if not is_old and status.state in _SAYS_THE_ANSWER:
            self._message(status.message)
        if is_settled(status.state):
            self._end_line()

    def _status(self, task_id: str, status: pb.TaskStatus) -> None:
        says_answer = status.state in _SAYS_THE_ANSWER
        words = "" if says_answer else describe.words(status.message)
        if words or self._state != (task_id, status.state):
            self._state = (task_id, status.state)
            self._say(_state(status.state).append(f" {words}" if words else "", style="default"))
        if says_answer:
            self._message(status.message)

    def _update(self, update: pb.TaskArtifactUpdateEvent) -> None:
        is_replaced, parts = self.novelty.of_update(update)
        if is_replaced:
            self._end_line()
            self._say(Text("what was shown of this artifact is replaced:", style="yellow"))
        self._artifact(update.task_id, update.artifact, parts)

    def _artifact(self, task_id: str, artifact: pb.Artifact, parts: Sequence[pb.Part]) -> None:
        if self._open != artifact.artifact_id:
            self._end_line()
        for part in parts:
            if self._saved(part, artifact.name or artifact.artifact_id):
                continue
            if part.HasField("text"):
                self._stream(part.text, artifact.artifact_id)
            else:
                self._print(describe.part(part))

    def _message(self, message: pb.Message) -> None:
        self._end_line()
        for part in message.parts:
            if not self._saved(part, "message"):
                self._print(describe.part(part))

    def _saved(self, part: pb.Part, fallback: str) -> bool:
        if self.saver is None or (saved := self.saver.save(part, fallback)) is None:
            return False
        text = f"saved {one_line(str(saved.path))} ({describe.size(saved.size)})"
        if saved.instead_of:
            text += f": {one_line(saved.instead_of)} was there already"
        self._say(Text(text, style="dim"))
        return True

    # Tasks, cards, webhooks.

    def task_id(self, task: pb.Task) -> None:
        with self._paused():
            self._print(one_line(task.id))

    def state(self, task: pb.Task) -> None:
        with self._paused():
            words = describe.words(task.status.message)
            line = Text.assemble(("task ", "dim"), (one_line(task.id), "dim"), " ")
            self._print(line.append_text(_state(task.status.state)).append(f" {words}".rstrip()))

    def task(self, task: pb.Task) -> None:
        with self._paused():
            rows = [("task", Text(one_line(task.id), style="bold"))]
            rows.append(("state", _state(task.status.state)))
            rows += [(name, Text(text)) for name, text in describe.task_fields(task)]
            self._grid(rows)
            conversation = list(describe.conversation(task))
            if conversation:
                self._print("")
            for who, text in conversation:
                style = "cyan" if who == "user" else "green"
                self._print(Text.assemble((f"{who}: ", style), text))
            for artifact in task.artifacts:
                name = one_line(artifact.name or artifact.artifact_id)
                self._print(Text(f"\nartifact {name}", style="bold"))
                self._artifact(task.id, artifact, artifact.parts)
                self._end_line()

    def listed(self, task: pb.Task) -> None:
        self._rows.append(task)

    def webhook(self, config: pb.TaskPushNotificationConfig) -> None:
        self._webhooks.append(config)

    def card(self, card: pb.AgentCard, *, is_verified: bool) -> None:
        with self._paused():
            title = Text.assemble((one_line(card.name), "bold"), " ", one_line(card.version))
            self._print(title)
            self._print(plain(card.description))
            self._print("")
            fields = card_view.fields(card, is_verified=is_verified)
            self._grid([(name, Text(text)) for name, text in fields])
            for skill in card.skills:
                name = one_line(skill.name or skill.id)
                self._print(Text.assemble("\n", (f"skill {name}", "bold")))
                for line in card_view.skill_lines(skill):
                    self._print(f"  {line}")

    def finish(self) -> None:
        with self._paused():
            self._end_line()
            if self._rows:
                self._print_tasks(self._rows)
            if self._webhooks:
                self._print_webhooks(self._webhooks)
        self._rows, self._webhooks = [], []
        self._state = None

    def note(self, text: str) -> None:
        with self._paused():
            self._say(Text(plain(text), style="dim"))

    def error(self, error: CommandError) -> None:
        with self._paused():
            self._say(Text(error_line(error, as_json=False), style="red"))

    # How it gets there.

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        if not self._err.is_terminal:
            yield
            return
        self._spinner = self._err.status(Text(f"{what} ...", style="dim"))
        before = signal.signal(signal.SIGTERM, self._terminated)
        self._spinner.start()
        try:
            yield
        finally:
            self._spinner.stop()
            self._spinner = None
            signal.signal(signal.SIGTERM, before)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """End by the signal, as without us; but the spinner has hidden the cursor."""
        self._err.show_cursor()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Take the spinner away while something is shown, and where a line is not at its end."""
        if self._spinner is not None:
            self._spinner.stop()
        yield
        is_over = self._state is not None and self._state[1] in TERMINAL_STATES
        if self._spinner is not None and not self._open and not is_over:
            self._spinner.start()

    def _stream(self, text: str, artifact_id: str) -> None:
        """Text without an end of line of its own, which more may follow."""
        text = plain(text)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = "" if text.endswith("\n") else artifact_id

    def _end_line(self) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = ""

    def _print(self, line: str | Text) -> None:
        """A line of the answer; text has to be `plain` already."""
        self._end_line()
        self._out.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)
        sys.stdout.flush()

    def _say(self, line: Text) -> None:
        """A line about the answer."""
        self._end_line()
        self._err.print(line, soft_wrap=True)

    def _grid(self, rows: Iterable[tuple[str, Text]]) -> None:
        rows = list(rows)
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            self._print(Text.assemble((f"{name:<{width}}  ", "dim"), text))

    def _print_tasks(self, tasks: Sequence[pb.Task]) -> None:
        self._print_table(
            ("TASK", "STATE", "UPDATED", "CONTEXT", "MESSAGE"),
            [
                (
                    Text(one_line(task.id)),
                    _state(task.status.state),
                    Text(describe.time(task.status)),
                    Text(one_line(task.context_id)),
                    Text(one_line(describe.words(task.status.message), 60)),
                )
                for task in tasks
            ],
        )

    def _print_webhooks(self, configs: Sequence[pb.TaskPushNotificationConfig]) -> None:
        self._print_table(
            ("ID", "URL", "TOKEN", "AUTHENTICATION"),
            [
                (
                    Text(one_line(config.id)),
                    Text(one_line(config.url)),
                    Text("set" if config.token else ""),  # a secret
                    Text(one_line(config.authentication.scheme)),
                )
                for config in configs
            ],
        )

    def _print_table(self, names: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """Columns as wide as their widest cell; the terminal breaks lines that it has no room for.

        An id that is cut, or broken by us, could not be copied.
        """
        lines = [[Text(name, style="bold") for name in names], *rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
        for line in lines:
            *cells, last = line
            for cell, width in zip(cells, widths, strict=False):
                cell.pad_right(width - cell.cell_len)
            text = Text("  ").join([*cells, last])
            text.rstrip()
            self._print(text)


def _console(*, stderr: bool) -> Console:
    colourless = bool(os.environ.get("NO_COLOR"))
    console = Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        no_color=colourless,
        color_system=None if colourless else "auto",
    )
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def _state(state: pb.TaskState.ValueType) -> Text:
    return Text(state_name(state), style=STATE_STYLES.get(state, "default"))
