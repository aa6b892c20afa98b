"""Lists of values in statements: `IN (...)` within what the databases take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Select

ValueT = TypeVar("ValueT")

IN_LIMIT = 256
"""Values in one IN list; older builds of SQLite take 999 variables in a statement."""


def padded(values: Sequence[ValueT]) -> list[ValueT]:
    """The values, the last one repeated until their number is a power of two.

    A statement is prepared once for every length of its list.
    """
    if not values:
        return []
    missing = (1 << (len(values) - 1).bit_length()) - len(values)
    return [*values, *[values[-1]] * missing]


def in_parts(
    connection: Connection, statement: Select[Any], name: str, values: Collection[Any]
) -> Iterator[Any]:
    """The rows that a statement finds for the list of values called `name`, in several steps."""
    ordered = sorted(values)
    for start in range(0, len(ordered), IN_LIMIT):
        yield from connection.execute(statement, {name: padded(ordered[start : start + IN_LIMIT])})
