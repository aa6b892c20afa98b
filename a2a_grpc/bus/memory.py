"""The bus of a single process: a dictionary of channels."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from a2a_grpc.bus.base import Committed, EventBus, TaskChannel


class InMemoryBus(EventBus):
    """Loses nothing, and reaches this process only."""

    def __init__(self) -> None:
        self._channels: dict[str, TaskChannel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channels.clear()

    async def publish(self, committed: Committed) -> None:
        self.tell(committed)

    def tell(self, committed: Committed) -> None:
        channel = self._channels.get(committed.task_id)
        if channel is not None:
            channel.append(committed)

    def channels(self) -> Iterator[tuple[str, TaskChannel]]:
        return iter(list(self._channels.items()))

    async def attached(self, task_id: str) -> None: ...

    async def check(self) -> None: ...

    def open(self, task_id: str) -> TaskChannel:
        channel = self._channels.get(task_id)
        if channel is None:
            channel = self._channels[task_id] = TaskChannel()
        channel.users += 1
        return channel

    def close(self, task_id: str) -> None:
        channel = self._channels[task_id]
        channel.users -= 1
        if not channel.users:
            del self._channels[task_id]
