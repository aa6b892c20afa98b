"""The broker of a single process: a bounded queue."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, Self

from a2a_grpc.broker.base import (
    Broker,
    TaskIdParams,
    TaskOperation,
    TaskSendParams,
    Waiters,
)
from a2a_grpc.errors import ResourceExhaustedError, UnavailableError

logger = logging.getLogger(__name__)


class InMemoryBroker(Broker):
    """Delivers within this process; what is unfinished when the process ends is in storage.

    Args:
        max_queued: how many operations wait for a worker at the most; beyond it `run_task` raises
            `ResourceExhaustedError`.
        max_unacknowledged: how many delivered operations may be unacknowledged at a time: those
            whose agents run, and those that wait for their task. Cancellations do not count.
    """

    waits = False

    def __init__(self, *, max_queued: int = 10_000, max_unacknowledged: int = 10_000) -> None:
        self._max_queued = max_queued
        self._max_unacknowledged = max_unacknowledged
        self._unacknowledged = 0
        self._queue: deque[_Delivery] = deque()
        self._operations: set[str] = set()
        self._cancellations: deque[_Delivery] = deque()
        self._waiters = Waiters()
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        self._queue.clear()
        self._operations.clear()
        self._cancellations.clear()
        self._waiters.wake_all()

    async def run_task(self, params: TaskSendParams) -> None:
        self._check_open()
        if params.operation_id in self._operations:
            return  # submitted again, and still here
        if len(self._queue) >= self._max_queued:
            raise ResourceExhaustedError(
                f"{self._max_queued} operations already wait for a worker; try again later",
                retry_after=1.0,
            )
        self._operations.add(params.operation_id)
        self._queue.append(_Delivery(self, "run", params))
        self._waiters.wake_one()

    async def cancel_task(self, params: TaskIdParams) -> None:
        # Neither bounded nor behind the others: it ends what fills the queue.
        self._check_open()
        self._cancellations.append(_Delivery(self, "cancel", params))
        self._waiters.wake_one()

    async def bury(self, params: TaskSendParams, reason: str) -> None:
        logger.error(
            "operation %s of task %s is given up: %s", params.operation_id, params.id, reason
        )

    async def check(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        if not self._open:
            raise UnavailableError("the broker is closed")

    def _next(self) -> _Delivery | None:
        if self._cancellations:
            return self._cancellations.popleft()
        if self._queue and self._unacknowledged < self._max_unacknowledged:
            self._unacknowledged += 1
            return self._queue.popleft()
        return None

    def settle(self, delivery: _Delivery, *, hand_back: bool) -> None:
        """A delivery was acknowledged or handed back."""
        if isinstance(delivery.params, TaskSendParams):
            self._unacknowledged -= 1
            if not hand_back:
                self._operations.discard(delivery.params.operation_id)
        if hand_back and self._open:
            queue = self._queue if delivery.operation == "run" else self._cancellations
            queue.appendleft(delivery)
        if self._queue or self._cancellations:
            self._waiters.wake_one()

    async def receive_task_operations(self) -> AsyncIterator[TaskOperation]:
        while self._open:
            delivery = self._next()
            if delivery is not None:
                yield delivery
                continue
            await self._waiters.wait()


class _Delivery(TaskOperation):
    __slots__ = ("_broker", "operation", "params")

    def __init__(
        self,
        broker: InMemoryBroker,
        operation: Literal["run", "cancel"],
        params: TaskSendParams | TaskIdParams,
    ) -> None:
        self._broker = broker
        self.operation = operation
        self.params = params

    async def ack(self) -> None:
        self._broker.settle(self, hand_back=False)

    async def nak(self) -> None:
        self._broker.settle(self, hand_back=True)
