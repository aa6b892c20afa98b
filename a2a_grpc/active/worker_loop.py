"""Takes operations from the broker to this process's active tasks."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.broker.base import Broker, TaskOperation, TaskSendParams

logger = logging.getLogger(__name__)


class WorkerLoop:
    """Runs the broker's operations, from entering to leaving; an async context manager.

    Args:
        broker: where operations come from.
        registry: where they run.
        grace: seconds that running turns get to end when the loop is left.
    """

    def __init__(self, broker: Broker, registry: ActiveTaskRegistry, *, grace: float) -> None:
        self._broker = broker
        self._registry = registry
        self._grace = grace
        self._loop: asyncio.Task[None] | None = None
        self._cancellations: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.create_task(self._run(), name="worker-loop")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Cancellations are still received while running turns get their grace.
        await self._registry.drained(self._grace)
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self._registry.interrupt()
        if self._cancellations:
            await asyncio.wait(self._cancellations)

    async def _run(self) -> None:
        async for operation in self._broker.receive_task_operations():
            if isinstance(operation.params, TaskSendParams):
                self._run_task(operation, operation.params)
            else:
                task = asyncio.create_task(
                    self._cancel_task(operation), name=f"cancel:{operation.params.id}"
                )
                self._cancellations.add(task)
                task.add_done_callback(self._cancellations.discard)

    def _run_task(self, operation: TaskOperation, params: TaskSendParams) -> None:
        async def settle(done: bool) -> None:
            await (operation.ack() if done else operation.nak())

        self._registry.get_or_create(params.id).enqueue_operation(params.operation_id, settle)

    async def _cancel_task(self, operation: TaskOperation) -> None:
        active = self._registry.get(operation.params.id)
        if active is not None:
            # Whoever asked was authorized before the operation was submitted.
            await active.cancel_turn(ServerCallContext(method="CancelTask"))
        await operation.ack()
