"""Takes operations from the broker to this process's active tasks, as long as it has its lease."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from a2a_grpc.active.lease_keeper import Lease
from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.broker.base import Broker, TaskOperation, TaskSendParams

logger = logging.getLogger(__name__)


class WorkerLoop:
    """Runs the broker's operations, from entering to leaving; an async context manager.

    - While the lease is lost, nothing is received, and what was received is handed back.
    - A process that drains takes no new turn that another one could take.

    Args:
        broker: where operations come from.
        registry: where they run.
        lease: on which turns depend.
        grace: seconds that running turns get to end when the loop is left.
        shared: whether other processes may take what is handed back.
    """

    RETRY_DELAY = 1.0
    """Seconds until operations are received again after that failed."""

    def __init__(
        self,
        broker: Broker,
        registry: ActiveTaskRegistry,
        lease: Lease,
        *,
        grace: float,
        shared: bool,
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._lease = lease
        self._grace = grace
        self._shared = shared
        self._loop: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None
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
        if self._shared:
            await self._broker.drain()
            self._registry.drain()
        # Cancellations are still received while running turns get their grace.
        await self._registry.drained(self._grace)
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self._registry.interrupt()
        # Whatever could not be stored in time is not written behind the server's back.
        self._registry.lose()
        if self._cancellations:
            await asyncio.wait(self._cancellations)

    def lapse(self) -> None:
        """The lease is lost: every turn is cut off, and what was received is handed back."""
        self._registry.lose()
        if self._receiving is not None:
            self._receiving.cancel()

    def cancel_task(self, task_id: str) -> None:
        """Cancel the task's turn, if it runs here; whoever asked was authorized before."""
        active = self._registry.get(task_id)
        if active is not None:
            canceling = asyncio.create_task(
                active.cancel_turn(ServerCallContext(method="CancelTask")), name=f"cancel:{task_id}"
            )
            self._cancellations.add(canceling)
            canceling.add_done_callback(self._cancellations.discard)

    async def _run(self) -> None:
        while True:
            await self._lease.regained()
            self._receiving = receiving = asyncio.create_task(self._receive(), name="receiver")
            try:
                await asyncio.wait((receiving,))
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
            if receiving.cancelled():
                continue  # for want of a lease
            if receiving.exception() is None:
                return  # the broker is closed
            logger.error("operations can't be received", exc_info=receiving.exception())
            await asyncio.sleep(self.RETRY_DELAY)

    async def _receive(self) -> None:
        operations: Any = self._broker.receive_task_operations()
        async with aclosing(operations):
            async for operation in operations:
                if isinstance(operation.params, TaskSendParams):
                    await self._run_task(operation, operation.params)
                else:
                    self.cancel_task(operation.params.id)
                    await operation.ack()

    async def _run_task(self, operation: TaskOperation, params: TaskSendParams) -> None:
        async def settle(done: bool) -> None:
            await (operation.ack() if done else operation.nak())

        active = self._registry.get_or_create(params.id)
        await active.enqueue_operation(params.operation_id, settle)
