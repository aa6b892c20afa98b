"""This process's active tasks, by id, for as long as somebody needs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from a2a_grpc.active.active_task import ActiveTask
from a2a_grpc.active.agent_turn import INTERRUPTED_TEXT, ActiveParts

logger = logging.getLogger(__name__)


class ActiveTaskRegistry:
    """Gives out the one `ActiveTask` of a task, and forgets it when it is idle.

    Args:
        parts: what the active tasks share.
    """

    def __init__(self, parts: ActiveParts) -> None:
        self._parts = parts
        self._active: dict[str, ActiveTask] = {}
        self._nothing_active = asyncio.Event()
        self._nothing_active.set()

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[ActiveTask]:
        return iter(list(self._active.values()))

    def get(self, task_id: str) -> ActiveTask | None:
        """The active task, if there is one."""
        return self._active.get(task_id)

    def get_or_create(self, task_id: str) -> ActiveTask:
        """The active task, a new one if need be; it must be given a request or a reader."""
        active = self._active.get(task_id)
        if active is None:
            active = self._active[task_id] = ActiveTask(task_id, self._parts, on_idle=self._forget)
            self._nothing_active.clear()
        return active

    def _forget(self, active: ActiveTask) -> None:
        if self._active.get(active.task_id) is active:
            del self._active[active.task_id]
            if not self._active:
                self._nothing_active.set()

    async def drained(self, grace: float) -> None:
        """Wait until nothing is active, for `grace` seconds at the most, or until `hurry`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._nothing_active.wait()
        if self._active:
            logger.info("interrupting the tasks that still run: %d", len(self._active))

    def hurry(self) -> None:
        """End the grace: `drained` waits no longer."""
        self._nothing_active.set()

    def drain(self) -> None:
        """Let every task end with the turn that runs; what waits behind it is handed back."""
        for active in self:
            active.drain()

    def lose(self) -> None:
        """Cut off every turn that runs: this process holds no task any longer."""
        for active in self:
            active.lose()

    async def interrupt(self) -> None:
        """Interrupt what is still active (see `ActiveTask.interrupt`)."""
        results = await asyncio.gather(
            *(active.interrupt(INTERRUPTED_TEXT) for active in self), return_exceptions=True
        )
        for result in results:
            if isinstance(result, Exception):
                logger.error("a task could not be interrupted in order", exc_info=result)
