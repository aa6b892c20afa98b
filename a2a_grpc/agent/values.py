"""Between protobuf's JSON values and Python's.

A `google.protobuf.Struct` holds doubles only. Agents get whole numbers as `int`; integers beyond
2^53 do not survive and belong into strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from a2a_grpc import pb
from a2a_grpc.structs import check_readable

_EXACT = 2**53


def from_value(value: struct_pb2.Value) -> Any:
    """The Python value; whole numbers come out as int."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        whole = math.isfinite(number) and number.is_integer() and abs(number) <= _EXACT
        return int(number) if whole else number
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return from_struct(value.struct_value)
    if kind == "list_value":
        return [from_value(item) for item in value.list_value.values]
    return None


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The Python dictionary; whole numbers come out as int."""
    return {key: from_value(value) for key, value in struct.fields.items()}


def to_value(data: Any) -> struct_pb2.Value:
    """The protobuf value of anything that JSON can hold.

    Raises ValueError for what JSON can't hold, and for what no reader of a task could parse: a
    value nested more than `structs.DEEPEST_STRUCT` levels deep.
    """
    try:
        value = json_format.ParseDict(data, struct_pb2.Value())
        check_readable(value)
    except TypeError as error:
        raise ValueError("not a JSON value: the keys of an object must be str") from error
    except (json_format.ParseError, ValueError, OverflowError) as error:
        raise ValueError(f"not a JSON value: {error}") from error
    return value


def to_part(content: Any, *, media_type: str = "") -> pb.Part:
    """A part: of a Part itself, of text, of bytes, or of any JSON value."""
    if isinstance(content, pb.Part):
        return content
    if isinstance(content, str):
        return pb.Part(text=content, media_type=media_type)
    if isinstance(content, bytes):
        return pb.Part(raw=content, media_type=media_type or "application/octet-stream")
    if isinstance(content, Mapping):
        content = dict(content)
    return pb.Part(data=to_value(content), media_type=media_type or "application/json")


def text_of(parts: Iterable[pb.Part], delimiter: str) -> str:
    """The text parts, joined."""
    return delimiter.join(part.text for part in parts if part.HasField("text"))
