"""What adapters keep with a context: one JSON object, within bounds, changed by one at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from a2a_grpc.agent.task_context import TaskContext

Kept = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryLimit:
    """How much of a conversation is kept.

    Attributes:
        messages: number of messages; the newest turn is kept in any case, but 0 keeps nothing.
        size: bytes of their JSON; of a newest turn beyond that nothing is kept, nor before it.
    """

    messages: int
    size: int

    def __post_init__(self) -> None:
        for name, value in (("history_messages", self.messages), ("history_bytes", self.size)):
            if value < 0:
                raise ValueError(f"{name} is {value}; use 0 to keep nothing")

    def first(self, messages: Sequence[Any], starts_turn: Callable[[Any], bool]) -> int:
        """The index of the first message to keep, which starts a turn; their number for none.

        A history that is cut there has the results of all its tool calls.
        """
        first, size = len(messages), 0
        if self.messages == 0:
            return first
        for index in reversed(range(len(messages))):
            size += len(json.dumps(messages[index]))
            beyond = len(messages) - index > self.messages and first < len(messages)
            if size > self.size or beyond:
                break
            if starts_turn(messages[index]):
                first = index
        return first


class KeyedLocks:
    """A lock for each key, for as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: Any) -> asyncio.Lock:
        """The lock of this key."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


def conversation_key(ctx: TaskContext) -> tuple[str, str, str]:
    """Whose conversation it is, and which: tenant, principal, context id."""
    return ctx.call.tenant, ctx.call.principal.id, ctx.context_id


class ContextKeeper:
    """One adapter's part of what is kept with a context.

    Changes of one context in this process never lose one another. Of two processes, the last
    writer wins.

    Args:
        framework: the name of the part; what another framework kept is not ours to read.
    """

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._locks = KeyedLocks()

    async def load(self, ctx: TaskContext) -> Kept:
        """What is kept; `{}` if nothing is."""
        value = await ctx.load_context()
        part = value.get(self._framework) if isinstance(value, dict) else None
        return part if isinstance(part, dict) else {}

    async def change(self, ctx: TaskContext, change: Callable[[Kept], Kept]) -> None:
        """Keep what `change` makes of what is kept now."""
        async with self._locks.of(conversation_key(ctx)):
            before = await self.load(ctx)
            after = change(before)
            if after != before:
                await ctx.update_context({self._framework: after})


def of_task(kept: Kept, name: str, task_id: str) -> Any:
    """What the list `name` holds for a task; None if it holds nothing."""
    return next((one["value"] for one in kept.get(name, []) if one["task"] == task_id), None)


def with_task(kept: Kept, name: str, task_id: str, value: Any, *, limit: int) -> Kept:
    """The same, with a value for a task in the list `name`, which holds the newest `limit`."""
    others = without_task(kept, name, task_id).get(name, [])
    return {**kept, name: [*others, {"task": task_id, "value": value}][-limit:]}


def without_task(kept: Kept, name: str, task_id: str) -> Kept:
    """The same, without anything for a task in the list `name`."""
    others = [one for one in kept.get(name, []) if one["task"] != task_id]
    rest = {key: value for key, value in kept.items() if key != name}
    return {**rest, name: others} if others else rest
