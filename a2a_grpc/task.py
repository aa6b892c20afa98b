"""A task as a pure value: states, the fold of its log into a snapshot, and trimming.

Nothing here waits, locks or stores. A task's log holds entries of two kinds: events, which
subscribers see and which carry sequence numbers without gaps, and messages of the user, which only
enter the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from a2a_grpc import pb

TERMINAL_STATES: frozenset[int] = frozenset(
    (
        pb.TaskState.TASK_STATE_COMPLETED,
        pb.TaskState.TASK_STATE_FAILED,
        pb.TaskState.TASK_STATE_CANCELED,
        pb.TaskState.TASK_STATE_REJECTED,
    )
)
INTERRUPTED_STATES: frozenset[int] = frozenset(
    (pb.TaskState.TASK_STATE_INPUT_REQUIRED, pb.TaskState.TASK_STATE_AUTH_REQUIRED)
)


class EntryKind(IntEnum):
    """What an entry of the log holds."""

    EVENT = 0
    MESSAGE = 1


class LogEntry(NamedTuple):
    """One entry of a task's log.

    `version` is its place in the log, counted from 1. `sequence` is the sequence number of an
    event, and for a message that of the event before it. `payload` is a serialized StreamResponse
    or Message.
    """

    version: int
    sequence: int
    kind: EntryKind
    payload: bytes


def event_entry(event: pb.StreamResponse, *, version: int, sequence: int) -> LogEntry:
    """The entry for an event."""
    return LogEntry(version, sequence, EntryKind.EVENT, event.SerializeToString())


def message_entry(message: pb.Message, *, version: int, sequence: int) -> LogEntry:
    """The entry for a message of the user."""
    return LogEntry(version, sequence, EntryKind.MESSAGE, message.SerializeToString())


class TaskFold:
    """A task and what it takes to fold further entries into it.

    The cost of an entry depends on the entry alone, never on the size of the task, except for an
    event that replaces the whole task.
    """

    __slots__ = ("_positions", "task")

    def __init__(self, task: pb.Task | None = None) -> None:
        self.task = pb.Task() if task is None else task
        self._index()

    def apply(self, entries: Iterable[LogEntry]) -> None:
        """Fold entries into the task, in their order and in place."""
        for entry in entries:
            if entry.kind is EntryKind.MESSAGE:
                self._enter_message(entry.payload)
                continue
            event = pb.StreamResponse.FromString(entry.payload)
            kind = event.WhichOneof("payload")
            if kind == "artifact_update":
                self._artifact(event.artifact_update)
            elif kind == "status_update":
                self._status(event.status_update)
            elif kind == "task":
                self.task = event.task
                self._index()

    def _index(self) -> None:
        self._positions = {
            artifact.artifact_id: position for position, artifact in enumerate(self.task.artifacts)
        }

    def _enter_message(self, payload: bytes) -> None:
        # The agent's question goes into the history before the user's answer to it.
        status = self.task.status
        if status.HasField("message"):
            self.task.history.append(status.message)
            status.ClearField("message")
        self.task.history.add().MergeFromString(payload)

    def _status(self, update: pb.TaskStatusUpdateEvent) -> None:
        if self.task.status.HasField("message"):
            self.task.history.append(self.task.status.message)
        self.task.status.CopyFrom(update.status)
        if update.HasField("metadata"):
            self.task.metadata.MergeFrom(update.metadata)

    def _artifact(self, update: pb.TaskArtifactUpdateEvent) -> None:
        chunk = update.artifact
        position = self._positions.get(chunk.artifact_id)
        if position is None:
            self._positions[chunk.artifact_id] = len(self.task.artifacts)
            self.task.artifacts.append(chunk)
            return
        existing = self.task.artifacts[position]
        if not update.append:
            existing.CopyFrom(chunk)
            return
        existing.parts.extend(chunk.parts)
        if chunk.name:
            existing.name = chunk.name
        if chunk.description:
            existing.description = chunk.description
        if chunk.HasField("metadata"):
            existing.metadata.MergeFrom(chunk.metadata)
        for uri in chunk.extensions:
            if uri not in existing.extensions:
                existing.extensions.append(uri)


def trim_history(task: pb.Task, history_length: int | None) -> None:
    """Keep the newest `history_length` messages; None keeps all (specification 3.2.4)."""
    if history_length is not None and len(task.history) > history_length:
        del task.history[: len(task.history) - history_length]
