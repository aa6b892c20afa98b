"""What agents need beside their message: values and resources that the server holds for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Dependency(Generic[T]):
    """A resource that the server opens when it starts and closes when it has stopped.

    Args:
        factory: makes the async context manager to enter; agents get what entering returns. A class
            whose objects are async context managers is such a factory, and so is a function with
            `contextlib.asynccontextmanager`.
    """

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        if not callable(factory):
            raise TypeError(
                f"Dependency takes what makes an async context manager, not {factory!r}; give a "
                "class or a function without arguments"
            )
        self._factory = factory

    async def open(self, stack: AsyncExitStack) -> T:
        """Open it; the stack closes it."""
        made = self._factory()
        if not hasattr(made, "__aenter__"):
            raise TypeError(
                f"its factory returned {type(made).__name__}, which is no async context manager; "
                "if it is a function that yields, decorate it with contextlib.asynccontextmanager"
            )
        return await stack.enter_async_context(made)


class Dependencies(Mapping[Any, Any]):
    """The dependencies as agents see them, by type or name.

    `deps[Database]` is a Database, and a KeyError that names the remedy if there is none;
    `deps.get("name", default)` is Any.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[Any, Any] | None = None) -> None:
        self._values = dict(values or {})

    @overload
    def __getitem__(self, key: type[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise MissingDependencyError(key) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class MissingDependencyError(KeyError):
    """There is no such dependency."""

    def __str__(self) -> str:
        shown = _shown(self.args[0])
        return f"there is no dependency {shown}; give it to A2AServer(deps={{{shown}: ...}})"


NO_DEPENDENCIES = Dependencies()


def check_dependencies(deps: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The dependencies.

    Raises TypeError for a key that is neither a type nor a name, and for a class in place of its
    object.
    """
    if not isinstance(deps, Mapping):
        raise TypeError(f"deps is a {type(deps).__name__}; give a dict, by type or name")
    for key, value in deps.items():
        if not isinstance(key, type | str):
            raise TypeError(f"deps has the key {key!r}; use a type or a name")
        if isinstance(key, type) and isinstance(value, type) and issubclass(value, key):
            raise TypeError(
                f"deps[{key.__name__}] is the class {value.__name__}; give an object of it, or "
                f"Dependency({value.__name__}) to have it opened when the server starts"
            )
    return deps


async def open_dependencies(deps: Mapping[Any, Any], stack: AsyncExitStack) -> Dependencies:
    """Open each `Dependency`, in order; the stack closes them in the reverse order.

    What one raises gets a note that names it.
    """
    opened: dict[Any, Any] = {}
    for key, value in deps.items():
        if not isinstance(value, Dependency):
            opened[key] = value
            continue
        try:
            opened[key] = await value.open(stack)
        except Exception as error:
            error.add_note(f"while the dependency {_shown(key)} was opened")
            raise
    return Dependencies(opened)


def _shown(key: Any) -> str:
    return key.__qualname__ if isinstance(key, type) else repr(key)
