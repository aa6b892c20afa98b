"""What a program gives to an adapter: a value, or a function of the turn that makes it."""

from __future__ import annotations

import inspect
from typing import Any

from a2a_grpc.agent.task_context import TaskContext


async def of_turn(given: Any, ctx: TaskContext) -> Any:
    """The value for this turn; a callable, async or not, is asked for it."""
    made = given(ctx) if callable(given) else given
    return await made if inspect.isawaitable(made) else made
