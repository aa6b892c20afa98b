"""What makes a `google.protobuf.Struct` acceptable: it is JSON, and everybody can read it back.

For requests (`a2a_grpc.wire.validation`) and for what agents publish. Pure functions, no grpc.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from google.protobuf.struct_pb2 import ListValue, Struct, Value

# The deepest Struct that can be read in every message that may come to hold it. Protobuf's parsers
# stop at 100 nested messages. A level of Struct costs three (Struct, map entry, Value), and the
# longest way to a first one takes five: ListTasksResponse.tasks.status.message.parts.data.
DEEPEST_STRUCT = (100 - 5) // 3


class StructError(ValueError):
    """A Struct that can't be accepted; its text says what is wrong, and where inside the Struct."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.where: list[str | int] = []  # filled inside out, while the error leaves the Struct
        super().__init__(problem)

    def __str__(self) -> str:
        where = "".join(f"[{json.dumps(key)}]" for key in reversed(self.where))
        where = where if len(where) <= 100 else f"{where[:100]}..."
        return f"{self.problem} (at {where})" if where else self.problem


def check_struct(value: Struct | ListValue | Value, *, max_depth: int, max_nodes: int) -> int:
    """The number of values in `value`; raises StructError if it is no JSON, too deep or too many.

    Depth counts Structs and lists: `{}` has one level, `{"a": [1]}` two, a bare number none. The
    walk stops at `max_depth` and `max_nodes`, whatever an agent or a client has built.
    """
    if isinstance(value, Value):
        nodes = _value_nodes(value, max_depth, max_nodes)
    elif isinstance(value, Struct):
        nodes = _struct_nodes(value, max_depth, max_nodes)
    else:
        nodes = _list_nodes(value, max_depth, max_nodes)
    if nodes > max_nodes:
        raise StructError(_TOO_MANY)
    return nodes


def check_readable(value: Struct | ListValue | Value) -> None:
    """Raises StructError for what no reader could parse once it is part of a listed task."""
    check_struct(value, max_depth=DEEPEST_STRUCT, max_nodes=1_000_000)


_TOO_MANY = "holds too many values"


def _struct_nodes(struct: Struct, depth: int, left: int) -> int:
    fields = struct.fields
    # The lookup is quicker than items(), which protobuf's maps implement in Python.
    return _member_nodes(((key, fields[key]) for key in fields), len(fields), depth, left)


def _list_nodes(values: ListValue, depth: int, left: int) -> int:
    return _member_nodes(enumerate(values.values), len(values.values), depth, left)


def _member_nodes(
    members: Iterable[tuple[str | int, Value]], count: int, depth: int, left: int
) -> int:
    if depth == 0:
        raise StructError("is nested too deep")
    if count > left:
        raise StructError(_TOO_MANY)
    nodes = 0
    for key, value in members:
        try:
            nodes += _value_nodes(value, depth - 1, left - nodes)
        except StructError as error:
            error.where.append(key)
            raise
    return nodes


def _value_nodes(value: Value, depth: int, left: int) -> int:
    kind = value.WhichOneof("kind")
    if kind == "string_value" or kind == "bool_value":
        return 1  # without a look at the text, which may be large
    if kind == "number_value":
        if not math.isfinite(value.number_value):
            raise StructError("holds a number that JSON does not have: NaN or Infinity")
        return 1
    if kind == "struct_value":
        return 1 + _struct_nodes(value.struct_value, depth, left - 1)
    if kind == "list_value":
        return 1 + _list_nodes(value.list_value, depth, left - 1)
    if kind is None:
        raise StructError("holds a Value without a kind")
    if value.null_value != 0:
        raise StructError(f"holds {value.null_value} as a NullValue")
    return 1
