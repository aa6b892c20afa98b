"""What can be told of an agent's code without running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partialmethod
from types import CodeType, FunctionType
from typing import Any


def check_parameter(function: Callable[..., Any], type_name: str, name: str) -> None:
    """Raises TypeError, with the remedy, if the function can't be called with such a value alone.

    One whose parameter is annotated as the context of another form of agent can't either.
    """
    try:
        # What a decorator adds or takes away shows in its own signature only.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    called = getattr(function, "__name__", "it")
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"{called} can't be called with a {type_name} ({error}): give {called} one parameter, "
            f"the {name}"
        ) from error
    for parameter in list(signature.parameters.values())[:1]:
        annotated = getattr(parameter.annotation, "__name__", parameter.annotation)
        if annotated in ("TaskContext", "RequestContext") and annotated != type_name:
            raise TypeError(
                f"{called} gets a {type_name} here, not a {annotated}: a TaskContext goes with the "
                "method handle of a Worker, a RequestContext with a function"
            )


def mentions(cls: type, name: str, *, below: type) -> bool:
    """Whether a method that `cls` defines or inherits uses this name.

    Looked at are the methods of all classes but `below` and its own bases, the functions that they
    wrap or enclose, and the functions of their modules that they call by name.
    """
    waiting: list[Any] = [
        value for one in cls.__mro__ if one not in below.__mro__ for value in vars(one).values()
    ]
    seen: set[FunctionType] = set()
    while waiting:
        for function in _functions(waiting.pop()):
            if function in seen:
                continue
            seen.add(function)
            used = set(_names(function.__code__))
            if name in used:
                return True
            waiting.extend(_of_the_module(function, used))
            waiting.extend(_enclosed(function))
    return False


def _functions(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, partialmethod):
        value = value.func
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, FunctionType):
        yield value
        wrapped = inspect.unwrap(value)
        if isinstance(wrapped, FunctionType):
            yield wrapped


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _of_the_module(function: FunctionType, used: set[str]) -> Iterator[Any]:
    for name in used:
        other = function.__globals__.get(name)
        if isinstance(other, FunctionType) and other.__module__ == function.__module__:
            yield other


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # a name that was never assigned
