"""Takes operations from the broker to this process's active tasks, as long as it has its lease."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from a2a_grpc.active.lease_keeper import LeaseKeeper
from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.broker.base import Broker, TaskOperation, TaskSendParams
from a2a_grpc.storage.base import AnyStorage

logger = logging.getLogger(__name__)


class WorkerLoop:
    """Runs the broker's operations, from entering to leaving; an async context manager.

    Args:
        storage: whose lease is kept.
        broker: where operations come from.
        registry: where they run.
        grace: seconds that running turns get to end when the loop is left.
    """

    def __init__(
        self, storage: AnyStorage, broker: Broker, registry: ActiveTaskRegistry, *, grace: float
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._grace = grace
        self._lease_keeper = LeaseKeeper(
            storage, registry.lease, on_lapse=registry.lose, on_cancel=self._start_canceling
        )
        self._loop: asyncio.Task[None] | None = None
        self._cancellations: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._lease_keeper.__aenter__()
        self._loop = asyncio.create_task(self._run(), name="worker-loop")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # Cancellations are still received while running turns get their grace.
            await self._registry.drained(self._grace)
            if self._loop is not None:
                self._loop.cancel()
                await asyncio.gather(self._loop, return_exceptions=True)
            await self._registry.interrupt()
            if self._cancellations:
                await asyncio.wait(self._cancellations)
        finally:
            await self._lease_keeper.__aexit__(exc_type, exc, traceback)

    async def _run(self) -> None:
        async for operation in self._broker.receive_task_operations():
            if isinstance(operation.params, TaskSendParams):
                await self._run_task(operation, operation.params)
            else:
                self._start_canceling(operation.params.id)
                await operation.ack()

    async def _run_task(self, operation: TaskOperation, params: TaskSendParams) -> None:
        async def settle(done: bool) -> None:
            await (operation.ack() if done else operation.nak())

        active = self._registry.get_or_create(params.id)
        await active.enqueue_operation(params.operation_id, settle)

    def _start_canceling(self, task_id: str) -> None:
        # Whoever asked was authorized before.
        active = self._registry.get(task_id)
        if active is not None:
            canceling = asyncio.create_task(
                active.cancel_turn(ServerCallContext(method="CancelTask")), name=f"cancel:{task_id}"
            )
            self._cancellations.add(canceling)
            canceling.add_done_callback(self._cancellations.discard)
