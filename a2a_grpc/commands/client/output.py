"""What commands show, and to whom: `Output`, and the form for programs, `JSONOutput`.

The answer goes to stdout; what happens around it (states, hints, the spinner) to stderr. The form
for people is in `terminal`.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from a2a_grpc import pb
from a2a_grpc.commands.client.novelty import Novelty
from a2a_grpc.commands.client.outcome import CommandError, error_line
from a2a_grpc.commands.client.saving import FileSaver

if TYPE_CHECKING:
    from google.protobuf.message import Message


class Output(ABC):
    """Where a command's results go.

    Args:
        saver: saves the files of answers, if they are to be saved.
    """

    def __init__(self, saver: FileSaver | None = None) -> None:
        self.saver = saver
        self.novelty = Novelty()

    @abstractmethod
    def event(self, event: pb.StreamResponse, *, is_reset: bool = False) -> None:
        """An event of a stream; `is_reset`: a Task that replaces what was shown before."""

    @abstractmethod
    def answer(self, answer: pb.Task | pb.Message) -> None:
        """What SendMessage brought."""

    @abstractmethod
    def task_id(self, task: pb.Task) -> None:
        """The task that a message began, for who did not wait."""

    @abstractmethod
    def state(self, task: pb.Task) -> None:
        """Where a task stands."""

    @abstractmethod
    def task(self, task: pb.Task) -> None:
        """All about one task."""

    @abstractmethod
    def listed(self, task: pb.Task) -> None:
        """One of a list of tasks."""

    @abstractmethod
    def webhook(self, config: pb.TaskPushNotificationConfig) -> None:
        """One push configuration, or one of a list."""

    @abstractmethod
    def card(self, card: pb.AgentCard, *, is_verified: bool) -> None:
        """A card; `is_verified`: its signature was checked."""

    def new_turn(self, *, continued: bool) -> None:
        """Another message goes out.

        `continued`: to a task, of which only what is new is shown, and saved.
        """
        self.novelty.new_turn(continued=continued)

    @abstractmethod
    def finish(self) -> None:
        """All was said: what is still kept back is shown."""

    @abstractmethod
    def note(self, text: str) -> None:
        """A hint for people."""

    @abstractmethod
    def error(self, error: CommandError) -> None:
        """An error after which the command goes on."""

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show that something is waited for, whenever nothing else happens."""
        yield


class JSONOutput(Output):
    """One ProtoJSON object a line on stdout, in ASCII; files that are saved on stderr."""

    def event(self, event: pb.StreamResponse, *, is_reset: bool = False) -> None:
        self._write(event)
        match event.WhichOneof("payload"):
            case "task":
                for artifact, parts in self.novelty.of_task(event.task, is_reset=is_reset):
                    self._save(parts, artifact.name or artifact.artifact_id)
            case "artifact_update":
                _, parts = self.novelty.of_update(event.artifact_update)
                artifact = event.artifact_update.artifact
                self._save(parts, artifact.name or artifact.artifact_id)
            case "message":
                self._save(event.message.parts, "message")

    def answer(self, answer: pb.Task | pb.Message) -> None:
        if isinstance(answer, pb.Task):
            self.event(pb.StreamResponse(task=answer))
        else:
            self.event(pb.StreamResponse(message=answer))

    def task_id(self, task: pb.Task) -> None:
        self._write(pb.StreamResponse(task=task))

    def state(self, task: pb.Task) -> None:
        self._write(task)

    def task(self, task: pb.Task) -> None:
        self._write(task)
        for artifact in task.artifacts:
            self._save(artifact.parts, artifact.name or artifact.artifact_id)

    def listed(self, task: pb.Task) -> None:
        self._write(task)

    def webhook(self, config: pb.TaskPushNotificationConfig) -> None:
        self._write(config)

    def card(self, card: pb.AgentCard, *, is_verified: bool) -> None:
        self._write(card)

    def finish(self) -> None: ...

    def note(self, text: str) -> None: ...

    def error(self, error: CommandError) -> None:
        print(error_line(error, as_json=True), file=sys.stderr, flush=True)

    def _save(self, parts: Iterable[pb.Part], fallback: str) -> None:
        if self.saver is None:
            return
        for part in parts:
            if saved := self.saver.save(part, fallback):
                print(json.dumps({"saved": str(saved.path)}), file=sys.stderr, flush=True)

    def _write(self, message: Message) -> None:
        from google.protobuf.json_format import MessageToJson

        # ASCII: nothing in it means anything to a terminal, or depends on an encoding.
        sys.stdout.write(f"{MessageToJson(message, indent=None, ensure_ascii=True)}\n")
        sys.stdout.flush()
