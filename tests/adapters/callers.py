"""Callers by name, and what tests of adapters read of a task."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from a2a_grpc import Principal, ServerCallContext, UnauthenticatedError, pb
from tests.support import Serving, text


class ByName:
    """Whoever says a name is that."""

    async def authenticate(self, call: ServerCallContext) -> Principal:
        if name := call.metadata.get("x-name"):
            return Principal(str(name))
        raise UnauthenticatedError()


def named(serving: Serving, name: str) -> Any:
    """The client, as this caller."""
    return serving.identified(("x-name", name))


def answer(task: pb.Task) -> str:
    """The text of the artifact `answer`, which is the task's only one."""
    (artifact,) = task.artifacts
    assert artifact.artifact_id == "answer"
    return text(artifact)


def data_answer(task: pb.Task) -> Any:
    """The JSON value of the artifact `answer`, which is the task's only one."""
    (artifact,) = task.artifacts
    (part,) = artifact.parts
    assert (artifact.artifact_id, part.media_type) == ("answer", "application/json")
    return json_format.MessageToDict(part.data)


def chunks(events: list[pb.StreamResponse]) -> list[tuple[str, bool]]:
    """The text and `append` of every artifact update."""
    updates = [one.artifact_update for one in events if one.HasField("artifact_update")]
    return [(text(update.artifact), update.append) for update in updates]


def data_part(value: Any) -> pb.Part:
    part = pb.Part()
    json_format.ParseDict(value, part.data)
    return part


def only_data(value: Any) -> pb.Message:
    """A message of one data part."""
    return pb.Message(message_id="data", role=pb.Role.ROLE_USER, parts=[data_part(value)])
