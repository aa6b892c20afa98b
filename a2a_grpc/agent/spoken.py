"""What an agent hands to `TaskContext`, checked at the call: errors name call and argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import struct_pb2

from a2a_grpc import pb
from a2a_grpc.agent.values import to_value


def valid_text(call: str, argument: str, value: Any) -> str:
    """The text; raises TypeError if it is none, ValueError if UTF-8 can't hold it."""
    if not isinstance(value, str):
        hint = "; complete_json() and emit_data_artifact() take JSON values"
        raise TypeError(
            f"{call}({argument}) must be a str, not {type(value).__name__}"
            + (hint if isinstance(value, dict | list) else "")
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{call}({argument}) must be valid Unicode: {error}") from error
    return value


def strings(call: str, argument: str, values: Any) -> list[str]:
    """The texts of a sequence; raises TypeError for a single text, as for anything else."""
    if isinstance(values, str) or not isinstance(values, Sequence | set | frozenset):
        raise TypeError(f"{call}({argument}) must be a list of str, not {type(values).__name__}")
    return [valid_text(call, argument, value) for value in values]


def text_part(call: str, argument: str, value: Any) -> pb.Part:
    """A part of text."""
    return pb.Part(text=valid_text(call, argument, value))


def data_part(call: str, value: Any, media_type: str) -> pb.Part:
    """A part of data; raises ValueError for what is no JSON."""
    media_type = valid_text(call, "media_type", media_type)
    try:
        return pb.Part(data=to_value(value), media_type=media_type)
    except ValueError as error:
        raise ValueError(f"{call}(data) must be a JSON value: {error}") from error


def file_part(call: str, argument: str, value: Any) -> pb.Part:
    """A part of bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{call}({argument}) must be bytes, not {type(value).__name__}")
    return pb.Part(raw=bytes(value), media_type="application/octet-stream")


def struct(call: str, argument: str, value: Any) -> struct_pb2.Struct:
    """A JSON object; raises TypeError for anything else, ValueError if what it holds is no JSON."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{call}({argument}) must be a dict, not {type(value).__name__}")
    try:
        return to_value(dict(value)).struct_value
    except ValueError as error:
        raise ValueError(f"{call}({argument}) must hold JSON values: {error}") from error


def artifact_named(call: str, artifact_id: Any, artifact: pb.Artifact | None = None) -> pb.Artifact:
    """The artifact, or a new one, with this id; raises ValueError for what is no id."""
    if not isinstance(artifact_id, str) or not artifact_id:
        raise ValueError(f"{call}(artifact_id) must be a name, not {artifact_id!r}")
    artifact = artifact or pb.Artifact()
    artifact.artifact_id = valid_text(call, "artifact_id", artifact_id)
    return artifact
