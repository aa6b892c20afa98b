"""What an agent reads of a task, as plain values: files, earlier messages, earlier artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from a2a_grpc import pb
from a2a_grpc.agent.values import from_value, text_of


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file that came with a message: its bytes, or where they are.

    Attributes:
        content: the bytes; None for a file that was sent as a URL.
        url: where the file is; None for one that was sent along. It is the caller's: mind what
            your process may reach before you fetch it.
        filename, media_type: None where the sender named none.
    """

    content: bytes | None
    url: str | None
    filename: str | None
    media_type: str | None


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """Something that was said before.

    Attributes:
        role: who said it.
        text: its text parts, joined by line breaks.
        parts: all of it.
        message_id: "" for an artifact, which `TaskContext.conversation` shows as said by the agent.
        task_id: the task that it belongs to.
    """

    role: Literal["user", "agent"]
    text: str
    parts: Sequence[pb.Part]
    message_id: str
    task_id: str


@dataclass(frozen=True, slots=True)
class PreviousArtifact:
    """An artifact that the task has from an earlier turn, or from an attempt that was cut off.

    Attributes:
        text: its text parts, joined without anything between, as chunks are.
        name: None if it has none.
    """

    artifact_id: str
    name: str | None
    text: str
    parts: Sequence[pb.Part]


def files_of(parts: Iterable[pb.Part]) -> list[FileInfo]:
    """The parts that are files."""
    return [
        FileInfo(
            content=part.raw if part.HasField("raw") else None,
            url=part.url if part.HasField("url") else None,
            filename=part.filename or None,
            media_type=part.media_type or None,
        )
        for part in parts
        if part.HasField("raw") or part.HasField("url")
    ]


def data_of(parts: Iterable[pb.Part]) -> list[Any]:
    """The values of the data parts; whole numbers as int."""
    return [from_value(part.data) for part in parts if part.HasField("data")]


def message_of(message: pb.Message, task_id: str) -> HistoryMessage:
    """A message of a task's history."""
    role: Literal["user", "agent"] = "agent" if message.role == pb.Role.ROLE_AGENT else "user"
    return HistoryMessage(
        role, text_of(message.parts, "\n"), list(message.parts), message.message_id, task_id
    )


def said_before(task: pb.Task, message_id: str) -> list[HistoryMessage]:
    """The task's history, oldest first, without the message that is worked on.

    Clients may use a message id again: only the newest message of the user with it is left out.
    """
    found = [message_of(message, task.id) for message in task.history]
    for at in reversed(range(len(found))):
        if message_id and found[at].message_id == message_id and found[at].role == "user":
            del found[at]
            break
    return found


def message_of_artifact(artifact: pb.Artifact, task_id: str) -> HistoryMessage:
    """An artifact as what the agent said with it."""
    return HistoryMessage("agent", text_of(artifact.parts, ""), list(artifact.parts), "", task_id)


def previous_artifact(artifact: pb.Artifact) -> PreviousArtifact:
    """An artifact of an earlier turn."""
    return PreviousArtifact(
        artifact.artifact_id,
        artifact.name or None,
        text_of(artifact.parts, ""),
        list(artifact.parts),
    )
