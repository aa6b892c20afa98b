"""Request contexts on their way to the agent within this process; they are never stored."""

from __future__ import annotations

from typing import Any


class TransientContexts:
    """What middleware has for the agent, from the admission of an operation to its first attempt.

    Their number is bounded by that of the operations that wait in this process.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def keep(self, operation_id: str, request_context: dict[str, Any]) -> None:
        """Keep an operation's; nothing for an empty one."""
        if request_context:
            self._kept[operation_id] = request_context

    def take(self, operation_id: str) -> dict[str, Any]:
        """An operation's, once; empty from then on, and in every other process."""
        return self._kept.pop(operation_id, {})
