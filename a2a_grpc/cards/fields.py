"""What the schema says about the fields of a card."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.api import field_behavior_pb2  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def fields_of(message: Message) -> list[FieldDescriptor]:
    """All fields that messages of this type may have."""
    schema: Any = message.DESCRIPTOR  # of a type for each implementation of protobuf
    fields: list[FieldDescriptor] = list(schema.fields)
    return fields


@cache
def is_required(field: FieldDescriptor) -> bool:
    """Whether the specification marks the field REQUIRED (section 5.7)."""
    behaviors = field.GetOptions().Extensions[field_behavior_pb2.field_behavior]
    return field_behavior_pb2.REQUIRED in behaviors


def is_map(field: FieldDescriptor) -> bool:
    """Whether the field is a map from names to values."""
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry
