"""Readiness: whether what the server depends on can be reached, as grpc.health.v1 tells it.

The server as a whole is NOT_SERVING while the storage or the broker is away: a load balancer then
prefers replicas that can do everything. Each dependency has a name of its own for operators.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from grpc_health.v1 import health, health_pb2

logger = logging.getLogger(__name__)

STORAGE = "a2a_grpc.storage"
BROKER = "a2a_grpc.broker"
BUS = "a2a_grpc.bus"

Check = Callable[[], Awaitable[None]]

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """Checks dependencies while it is entered, and sets what the health service says.

    An async context manager. Leaving it, or `drain`, says NOT_SERVING for good.

    Args:
        servicer: of grpc.health.v1.
        services: names that are SERVING while every dependency is there.
        checks: by the dependency's name; each raises if that can't be reached.
    """

    INTERVAL = 1.0
    """Seconds between checks."""
    TIMEOUT = 2.0
    """Seconds that a check may take."""

    def __init__(
        self,
        servicer: health.aio.HealthServicer,
        services: Iterable[str],
        checks: Mapping[str, Check],
    ) -> None:
        self._servicer = servicer
        self._services = tuple(services)
        self._checks = dict(checks)
        self._known: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._look()
        self._task = asyncio.create_task(self._run(), name="readiness")
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
        await self.drain()

    async def drain(self) -> None:
        """Say NOT_SERVING to everybody from now on."""
        await self._servicer.enter_graceful_shutdown()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.INTERVAL)
            await self._look()

    async def _look(self) -> None:
        ready = True
        results = await asyncio.gather(*(self._check(name) for name in self._checks))
        for name, there in zip(self._checks, results, strict=True):
            ready = ready and there
            await self._set(name, there)
        for service in self._services:
            await self._set(service, ready)

    async def _check(self, name: str) -> bool:
        try:
            async with asyncio.timeout(self.TIMEOUT):
                await self._checks[name]()
        except Exception as error:
            if self._known.get(name, True):
                logger.warning("%s can't be reached: %s", name, str(error) or type(error).__name__)
            return False
        if not self._known.get(name, True):
            logger.info("%s can be reached again", name)
        return True

    async def _set(self, name: str, there: bool) -> None:
        if self._known.get(name) is not there:
            self._known[name] = there
            await self._servicer.set(name, _SERVING if there else _NOT_SERVING)
