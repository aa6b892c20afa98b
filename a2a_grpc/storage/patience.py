"""Patience with a storage that is away for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.base import AnyStorage

T = TypeVar("T")

DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between tries; the last one repeats."""
LIMIT = 30.0
"""Seconds of trying, where the storage has no lease."""


async def patiently(storage: AnyStorage, read: Callable[[], Awaitable[T]]) -> T:
    """What `read` returns, tried again while it raises UnavailableError.

    For as long as a lease may last: whoever reads for a turn is cut off at its end anyway.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + (storage.lease or LIMIT)
    for attempt in count():
        try:
            return await read()
        except UnavailableError:
            if loop.time() >= until:
                raise
            await asyncio.sleep(DELAYS[min(attempt, len(DELAYS) - 1)])
    raise AssertionError("never reached")
