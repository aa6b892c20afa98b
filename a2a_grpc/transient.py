"""What middleware has for agents, on its way within this process; it is never stored."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


class TransientContexts:
    """The dictionaries `ServerCallContext.request_context`, by operation.

    Each is kept from the admission of its operation to the agent's first attempt.
    """

    MAX_KEPT = 20_000
    """Beyond it the oldest are dropped, with an error in the log: their agents get an empty one. As
    many operations as this wait in one process at the most, unless another process runs them."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def keep(self, operation_id: str, request_context: dict[str, Any]) -> None:
        """Keep an operation's; nothing for an empty one."""
        if not request_context:
            return
        while len(self._kept) >= self.MAX_KEPT:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            logger.error("dropped the request context of operation %s: too many wait", oldest)
        self._kept[operation_id] = request_context

    def take(self, operation_id: str) -> dict[str, Any]:
        """An operation's, once; empty from then on, and in every other process."""
        return self._kept.pop(operation_id, {})
