"""Submits again what nobody works on: operations of processes that died, and what a broker lost.

The record in storage is the truth; the broker only carries ids. Where the two disagree, this is
what makes them agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from a2a_grpc.broker.base import Broker, TaskSendParams
from a2a_grpc.errors import RetryableError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import Stranded

logger = logging.getLogger(__name__)


class Resubmitter:
    """Looks for stranded operations while it is entered; an async context manager.

    Args:
        storage: where they are found.
        broker: where they go.
        on_found: called with the task's id of each.
    """

    LIMIT = 500
    """Operations at a time."""
    SHARED_INTERVAL = 0.5
    """Seconds between looks into a storage that several processes share."""
    OWN_INTERVAL = 2.0
    """Seconds between looks into a storage of this process's own."""
    RETRY_INTERVAL = 1.0
    """Seconds until the next try when the storage or the broker fails."""

    def __init__(
        self, storage: AnyStorage, broker: Broker, *, on_found: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self._broker = broker
        self._on_found = on_found
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="resubmitter")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        interval = self.OWN_INTERVAL if self._storage.lease is None else self.SHARED_INTERVAL
        failing = False
        while True:
            try:
                found = await self._storage.stranded_operations(self.LIMIT)
                await self._submit(found)
            except Exception as error:
                if not failing:
                    logger.warning("stranded operations can't be submitted now: %s", error)
                failing = True
                await asyncio.sleep(self.RETRY_INTERVAL)
                continue
            failing = False
            if len(found) < self.LIMIT:
                await asyncio.sleep(interval)

    async def _submit(self, found: list[Stranded]) -> None:
        if begun := sum(stranded.attempts > 0 for stranded in found):
            logger.warning(
                "a process stopped, or lost its lease, while agents worked; their messages: %d, "
                "which fail or start again, as each agent's on_interruption says",
                begun,
            )
        for stranded in found:
            self._on_found(stranded.task_id)
            await self._run_task(
                TaskSendParams(stranded.task_id, stranded.operation_id, here=stranded.here)
            )

    async def _run_task(self, params: TaskSendParams) -> None:
        while True:
            try:
                await self._broker.run_task(params)
            except RetryableError as error:
                await asyncio.sleep(error.retry_after or self.RETRY_INTERVAL)
            else:
                return
