"""The broker seam: brings operations to whichever process has room for them.

A broker carries ids. What an operation says, and in which order a task's operations come, is in
storage; a broker that loses or repeats one does no harm beyond a delay.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Literal, Self


class BrokerOpenError(Exception):
    """The broker can't be opened; the message names it and the remedy, and no secret."""


@dataclass(frozen=True, slots=True)
class TaskSendParams:
    """Names an operation that waits in storage, and the task it is for."""

    id: str
    """The task's id."""
    operation_id: str
    here: bool = False
    """Whether only this process may receive it."""


@dataclass(frozen=True, slots=True)
class TaskIdParams:
    """Names a task."""

    id: str


class TaskOperation(ABC):
    """One delivery: `operation` says what is to be done with the task that `params` name.

    Whoever received it calls `ack` or `nak` once, when the turn is over. They don't raise: what
    they can't tell the broker now is delivered again.
    """

    operation: Literal["run", "cancel"]
    params: TaskSendParams | TaskIdParams

    @abstractmethod
    async def ack(self) -> None:
        """It is done (or its record says so): never deliver it again."""

    @abstractmethod
    async def nak(self) -> None:
        """Hand it back: deliver it again, here or elsewhere, at once."""


class Waiters:
    """Receivers that wait until there may be something for them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def wake_one(self) -> bool:
        """Wake one of them; False if nobody waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False

    def wake_all(self) -> None:
        """Wake all of them."""
        while self.wake_one():
            pass

    async def wait(self) -> None:
        """Wait to be woken; one that goes away meanwhile passes it on."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self.wake_one()
            raise


class Broker(ABC):
    """Takes operations in and gives them out; an async context manager.

    Guarantees, each held by the contract suite for every backend:

    - `run_task` returns when the operation is safe with the broker, and never waits for a worker.
    - Every operation is delivered at least once, and again until it is acknowledged: after `nak`,
      and when the process that received it dies, if the broker outlives it.
    - Operations of one task that one process submitted are delivered in that order.
    - `cancel_task` reaches every process that receives, at once, unless it gets lost on the way;
      storage remembers what the broker may lose.
    - An operation is with the broker once, however often it is submitted.
    - A process is given no more operations than it has room for.

    `waits` says whether calls wait for something, so that a caller may be cancelled in the middle.

    Errors: `ResourceExhaustedError` when a bounded broker is full, `UnavailableError` when it can't
    be reached.
    """

    waits: ClassVar[bool] = True

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @abstractmethod
    async def run_task(self, params: TaskSendParams) -> None:
        """Submit an operation that is recorded in storage."""

    @abstractmethod
    async def cancel_task(self, params: TaskIdParams) -> None:
        """Ask the process that runs the task to cancel it."""

    @abstractmethod
    async def bury(self, params: TaskSendParams, reason: str) -> None:
        """Put an operation that was given up where operators look for it; best effort."""

    @abstractmethod
    async def check(self) -> None:
        """Raises UnavailableError if the broker can't be reached."""

    async def drain(self) -> None:
        """Deliver nothing more that another process could take, and hand back what waits here.

        Cancellations are still delivered. A broker of one process has nobody else to give it to.
        """
        return

    @abstractmethod
    def receive_task_operations(self) -> AsyncIterator[TaskOperation]:
        """Deliveries for this process, until the broker is closed."""
