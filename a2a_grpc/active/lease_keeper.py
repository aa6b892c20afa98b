"""Keeps this process's lease on the tasks that it holds, and minds its end.

The lease is in storage and runs by the database's clock; the guard here runs by this process's own,
from before the request that renewed it, so it always ends first. A process that was frozen runs
the guard, once it goes on, before any agent that waited: timers come before what they wake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.base import AnyStorage

logger = logging.getLogger(__name__)


class Lease:
    """Whether this process holds its lease, and how often it has lost it."""

    __slots__ = ("_held", "lapses")

    def __init__(self) -> None:
        self._held = asyncio.Event()
        self._held.set()
        self.lapses = 0

    @property
    def held(self) -> bool:
        """Whether it holds the lease now."""
        return self._held.is_set()

    async def regained(self) -> None:
        """Wait until it holds the lease."""
        await self._held.wait()

    def lapse(self) -> None:
        """Take note that it is lost."""
        self._held.clear()
        self.lapses += 1

    def regain(self) -> None:
        """Take note that it is held."""
        self._held.set()


class LeaseKeeper:
    """Renews the storage's lease while it is entered; an async context manager.

    Does nothing for a storage without one.

    Args:
        storage: where the lease is.
        lease: kept up to date.
        on_lapse: called when the lease has run out: nothing that was held is held any more.
        on_cancel: called with the id of a task that is held and to be canceled, perhaps repeatedly.
    """

    RENEWALS = 3
    """How often the lease is renewed in the time for which it holds."""

    def __init__(
        self,
        storage: AnyStorage,
        lease: Lease,
        *,
        on_lapse: Callable[[], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        self._storage = storage
        self._lease = lease
        self._seconds = storage.lease or 0.0
        self._on_lapse = on_lapse
        self._on_cancel = on_cancel
        self._guard: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._seconds:
            await self._renew()
            self._task = asyncio.create_task(self._run(), name="lease-keeper")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._guard is not None:
            self._guard.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = self._seconds / self.RENEWALS
        failing = False
        while True:
            await asyncio.sleep(pause)
            try:
                await self._renew()
            except Exception as error:
                if not failing:
                    logger.warning("the lease can't be renewed, will try again: %s", error)
                failing, pause = True, min(1.0, self._seconds / 10)
            else:
                if failing:
                    logger.info("the lease is renewed again")
                failing, pause = False, self._seconds / self.RENEWALS

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        anew = not self._lease.held
        began = loop.time()
        try:
            async with asyncio.timeout(self._seconds / 2):
                to_cancel = await self._storage.renew_lease(anew=anew)
        except TimeoutError:
            raise UnavailableError(
                f"the storage took longer than {self._seconds / 2:g}s to renew the lease; give it "
                "more power, or the server a longer --lease"
            ) from None
        if not self._lease.held and not anew:
            raise UnavailableError("the lease ran out while it was renewed")
        self._lease.regain()
        if self._guard is not None:
            self._guard.cancel()
        self._guard = loop.call_at(began + self._seconds, self._lapse)
        for task_id in to_cancel:
            self._on_cancel(task_id)

    def _lapse(self) -> None:
        self._lease.lapse()
        logger.error(
            "this process could not renew its lease for %gs (frozen, or the database is away): "
            "others may take its tasks, so it stops working on them",
            self._seconds,
        )
        self._on_lapse()
