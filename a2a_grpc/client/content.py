"""From what a program wants to say to the Message that is sent (specification 4.1.4)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.agent.values import to_part

Content: TypeAlias = (
    str | bytes | Mapping[str, Any] | pb.Part | pb.Message | Sequence[Any]
)  # a sequence holds what is listed before it


def message_of(
    content: Content,
    *,
    task_id: str,
    context_id: str,
    message_id: str,
    metadata: Mapping[str, Any] | None,
    reference_task_ids: Sequence[str],
) -> pb.Message:
    """The message of the user, with an id; a Message that is given is copied.

    Raises ValueError for nothing to say and for two different ids, TypeError for other types.
    """
    message = pb.Message()
    if isinstance(content, pb.Message):
        message.CopyFrom(content)
    else:
        message.parts.extend(_parts(content))
    if not message.parts:
        raise ValueError("the message is empty; give it text, bytes, a dict or parts")
    for name, value in (
        ("task_id", task_id),
        ("context_id", context_id),
        ("message_id", message_id),
    ):
        if not isinstance(value, str):
            raise TypeError(f"{name} is a {type(value).__name__}; use a str")
        own = getattr(message, name)
        if value and own and own != value:
            raise ValueError(f"{name} is {value!r}, and that of the Message given is {own!r}")
        setattr(message, name, value or own)
    message.message_id = message.message_id or str(uuid.uuid4())
    message.role = message.role or pb.Role.ROLE_USER
    put_metadata(message, "message_metadata", metadata)
    if isinstance(reference_task_ids, str):
        raise TypeError("reference_task_ids is a str; use a list of ids")
    message.reference_task_ids.extend(reference_task_ids)
    return message


def put_metadata(holder: Any, name: str, values: Mapping[str, Any] | None) -> None:
    """Put JSON values into `holder.metadata`; raises ValueError for what JSON can't hold."""
    if not values:
        return
    try:
        holder.metadata.MergeFrom(json_format.ParseDict(dict(values), type(holder.metadata)()))
    except (json_format.ParseError, TypeError, ValueError) as error:
        raise ValueError(f"{name} holds what JSON does not have: {error}") from error


def _parts(content: Any) -> list[pb.Part]:
    if isinstance(content, (str, bytes, bytearray, memoryview, Mapping, pb.Part)):
        return [_part(content, "the content")]
    if isinstance(content, Sequence):
        return [_part(one, f"content[{index}]") for index, one in enumerate(content)]
    raise TypeError(_wrong_type(content, "the content"))


def _part(content: Any, where: str) -> pb.Part:
    if isinstance(content, (bytearray, memoryview)):
        content = bytes(content)
    if not isinstance(content, (str, bytes, Mapping, pb.Part)):
        raise TypeError(_wrong_type(content, where))
    if isinstance(content, (str, bytes)) and not content:
        raise ValueError(f"{where} is empty; say something")
    if isinstance(content, pb.Part) and content.WhichOneof("content") is None:
        raise ValueError(f"{where} is a Part without text, raw, url or data")
    try:
        return to_part(content)
    except ValueError as error:
        raise ValueError(f"{where} is {error}") from error


def _wrong_type(content: Any, where: str) -> str:
    return (
        f"{where} is a {type(content).__name__}; use str, bytes, dict, Part, a list of those, or "
        "a Message"
    )
