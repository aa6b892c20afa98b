"""A property that is computed when it is first read, and can't be set."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class computed_once(cached_property[T]):
    """`functools.cached_property`, read-only."""

    def __set__(self, instance: Any, value: Any) -> NoReturn:
        raise AttributeError(f"{self.attrname} of {type(instance).__name__} can't be set")
