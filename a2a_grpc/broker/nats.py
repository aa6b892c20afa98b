"""The broker of many replicas: operations in a JetStream work queue, cancellations over core NATS.

What the streams and the consumer are like is said in `a2a_grpc.broker.jetstream`. A message carries
ids: `{"task_id": ..., "operation_id": ...}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, Self

from a2a_grpc.broker.base import (
    Broker,
    BrokerOpenError,
    TaskIdParams,
    TaskOperation,
    TaskSendParams,
    Waiters,
)
from a2a_grpc.broker.jetstream import (
    STORE_FAILED,
    JetStream,
    JetStreamError,
    read_answer,
)
from a2a_grpc.broker.pull import OperationPull
from a2a_grpc.errors import A2AError, ResourceExhaustedError, UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.client import cancelled
from a2a_grpc.nats.connection import NatsConnection, NatsMessage
from a2a_grpc.nats.dialer import NatsOpenError
from a2a_grpc.nats.names import subject_word

logger = logging.getLogger(__name__)

_ACK, _NAK, _IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class NatsBroker(Broker):
    """Delivers to whichever replica has room.

    - An operation is with JetStream until it is acknowledged. Every `ack_wait` / 3 this process
      says that it still works on what it holds; if it falls silent for `ack_wait`, or hands an
      operation back, another gets it.
    - It is asked for no more than there is room for, a few at a time, and only while somebody
      receives. An operation that comes again while this process holds it is not delivered
      a second time; the newest delivery is what is acknowledged then.
    - The connection comes back by itself, and streams that are gone are made again; what was in
      them is submitted again from storage.

    Args:
        url: see `a2a_grpc.nats.address`.
        ack_wait: seconds after which an operation is delivered elsewhere when its receiver died.
        concurrency: operations that this process holds at a time.

    Entering raises BrokerOpenError.
    """

    SUBMIT_TIMEOUT = 5.0
    OPEN_PATIENCE = 10.0
    MAX_WAITING = 10_000
    """Operations for this process alone, and cancellations, that wait for a receiver."""

    def __init__(self, url: str, *, ack_wait: float = 15.0, concurrency: int = 10_000) -> None:
        self.url = url
        if not ack_wait >= 0.1:
            raise ValueError(f"ack_wait is {ack_wait!r}; use 0.1 seconds or more")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; use 1 or more")
        address = NatsAddress.parse(url)
        self._address = address
        self._namespace = address.namespace
        self._ack_wait = ack_wait
        self._concurrency = concurrency
        self._connection = NatsConnection(address, name=f"broker of {address.namespace}")
        self._streams = JetStream(
            self._connection, address.namespace, replicas=address.replicas, ack_wait=ack_wait
        )
        self._is_open = False
        self._draining = False
        self._held: dict[str, _Delivery] = {}  # by operation, delivered or about to be
        self._queue: deque[_Delivery] = deque()  # about to be
        self._cancellations: deque[_Delivery] = deque(maxlen=self.MAX_WAITING)
        self._receivers = 0
        self._waiters = Waiters()
        self._owned: list[asyncio.Task[None]] = []
        self._answers: set[asyncio.Task[None]] = set()
        self._pull = OperationPull(
            self._connection, self._streams, room=self._room, hand_back=self._hand_back
        )

    def __repr__(self) -> str:
        return f"NatsBroker({self._address.shown}, namespace={self._namespace!r})"

    async def __aenter__(self) -> Self:
        connection = self._connection
        connection.on_lost = self._pull.lost
        connection.on_back = self._pull.look
        connection.route(f"{self._namespace}.run.*", self._take_in)
        try:
            await connection.__aenter__()
        except NatsOpenError as error:
            raise BrokerOpenError(str(error)) from error
        except UnavailableError as error:
            raise BrokerOpenError(f"NATS at {connection.shown} does not answer") from error
        try:
            await connection.subscribe(f"{self._namespace}.cancel", self._take_cancellation)
            # A cluster may just be starting; a server alone gets no JetStream by waiting.
            patience = 0.0 if connection.lacks_jetstream else self.OPEN_PATIENCE
            await self._streams.open(patience=patience)
        except BaseException:
            await connection.__aexit__(None, None, None)
            raise
        self._is_open, self._draining = True, False
        self._owned = [
            connection.essential(self._pull.run(), name="nats-pull"),
            connection.essential(self._say_in_progress(), name="nats-in-progress"),
        ]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        self._waiters.wake_all()
        await cancelled(*self._owned)
        await self._streams.close()
        try:
            # What was pulled and is not over is for others.
            held, self._held = list(self._held.values()), {}
            self._queue.clear()
            self._cancellations.clear()
            await self._stop_pulling(held)
            with contextlib.suppress(UnavailableError, NatsOpenError):
                await self._connection.confirm(limit=2.0)
            if self._answers:  # to what was still on its way
                await asyncio.wait(self._answers)
        finally:
            await self._connection.__aexit__(exc_type, exc, traceback)

    # Submitting.

    async def run_task(self, params: TaskSendParams) -> None:
        self._check_open()
        if params.here:
            self._run_here(params)
            return
        subject = f"{self._namespace}.run.{subject_word(params.operation_id)}"
        body = json.dumps({"task_id": params.id, "operation_id": params.operation_id}).encode()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.SUBMIT_TIMEOUT
        while True:
            # To submit it again does no harm, so what may have got lost is not waited for to the
            # end: its leader may have gone, and another may be there already.
            limit = min(self.SUBMIT_TIMEOUT / 2, max(0.01, deadline - loop.time()))
            try:
                if await self._submit(subject, body, limit):
                    return
                async with asyncio.timeout_at(deadline):
                    await self._streams.make_again()  # nobody takes it: the stream may be gone
            except (UnavailableError, TimeoutError) as error:
                if not self._connection.is_connected or loop.time() >= deadline:
                    raise UnavailableError(
                        "the operation can't be submitted now; try again later", retry_after=1.0
                    ) from error
            await asyncio.sleep(0.05)

    async def _submit(self, subject: str, body: bytes, limit: float) -> bool:
        """Whether the operation is with JetStream now; False if nobody listens."""
        try:
            answer = await self._connection.request(subject, body, limit=limit)
            if answer is None:
                return False
            read_answer(answer)
        except NatsOpenError as error:
            raise UnavailableError(
                "NATS takes no operations; the server's log says why", retry_after=1.0
            ) from error
        except JetStreamError as error:
            if error.code != STORE_FAILED:
                logger.error("JetStream takes no operations: %s", error)
                raise UnavailableError(
                    "JetStream takes no operations now; the server's log says why", retry_after=1.0
                ) from error
            if "per subject" in str(error):
                return True  # it is there already
            raise ResourceExhaustedError(
                "as many operations wait for a worker as JetStream may hold; try again later",
                retry_after=1.0,
            ) from error
        return True

    def _run_here(self, params: TaskSendParams) -> None:
        if params.operation_id in self._held:
            return
        if len(self._queue) >= self.MAX_WAITING:
            raise ResourceExhaustedError(
                f"{self.MAX_WAITING} operations already wait for a worker; try again later",
                retry_after=1.0,
            )
        self._enqueue(_Delivery(self, "run", params, ""))

    async def cancel_task(self, params: TaskIdParams) -> None:
        self._check_open()
        self._cancel_here(params)  # the broadcast does not come back
        body = json.dumps({"task_id": params.id}).encode()
        await self._connection.publish(f"{self._namespace}.cancel", body)

    async def bury(self, params: TaskSendParams, reason: str) -> None:
        logger.error(
            "operation %s of task %s is given up: %s", params.operation_id, params.id, reason
        )
        body = {
            "task_id": params.id,
            "operation_id": params.operation_id,
            "reason": reason[:10_000],
            "time": datetime.datetime.now(datetime.UTC).isoformat(),
        }
        subject = f"{self._namespace}.dead.{subject_word(params.operation_id)}"
        try:
            answer = await self._connection.request(subject, json.dumps(body).encode())
            if answer is None:
                raise UnavailableError("there is no such stream")
            read_answer(answer)
        except (A2AError, NatsOpenError, JetStreamError) as error:
            logger.warning(
                "operation %s is not in the stream %s: %s",
                params.operation_id,
                self._streams.dead,
                error,
            )

    async def check(self) -> None:
        self._check_open()
        self._connection.check()

    def _check_open(self) -> None:
        if not self._is_open:
            raise UnavailableError("the broker is closed")

    # Receiving.

    async def drain(self) -> None:
        self._draining = True
        await self._stop_pulling(self._take_queued())

    async def _stop_pulling(self, held: list[_Delivery]) -> None:
        """Ask for nothing more, and hand these back, without waiting in between."""

        async def hand_back() -> None:
            for delivery in held:
                await self._answer(delivery.reply, _NAK)

        # In this order, or they would come back here.
        await asyncio.gather(self._pull.stop(), hand_back())
        self._pull.look()
        if self._answers:
            await asyncio.wait(self._answers)

    async def receive_task_operations(self) -> AsyncIterator[TaskOperation]:
        self._receivers += 1
        self._pull.look()
        try:
            while self._is_open:
                delivery = self._next()
                if delivery is not None:
                    yield delivery
                    continue
                await self._waiters.wait()
        finally:
            self._receivers -= 1
            self._pull.look()

    def _next(self) -> _Delivery | None:
        if self._cancellations:
            return self._cancellations.popleft()
        if self._queue and len(self._held) - len(self._queue) < self._concurrency:
            return self._queue.popleft()
        return None

    def _enqueue(self, delivery: _Delivery) -> None:
        assert isinstance(delivery.params, TaskSendParams)
        self._held[delivery.params.operation_id] = delivery
        self._queue.append(delivery)
        self._waiters.wake_one()

    def _cancel_here(self, params: TaskIdParams) -> None:
        # Where nobody receives, the oldest are forgotten; storage remembers them.
        self._cancellations.append(_Delivery(self, "cancel", params, ""))
        self._waiters.wake_one()

    async def settle(self, delivery: _Delivery, *, hand_back: bool) -> None:
        """A delivery was acknowledged or handed back."""
        params = delivery.params
        if not isinstance(params, TaskSendParams):
            if hand_back and self._is_open:
                self._cancellations.appendleft(delivery)
                self._waiters.wake_one()
            return
        if self._held.get(params.operation_id) is not delivery:
            return
        if hand_back and params.here and self._is_open:
            self._queue.appendleft(delivery)
            self._waiters.wake_one()
            return
        del self._held[params.operation_id]
        if self._queue:
            self._waiters.wake_one()
        if self._pull.is_idle:
            self._pull.look()  # there is room again
        if not params.here:
            await self._answer(delivery.reply, _NAK if hand_back else _ACK)

    async def _answer(self, reply: str, answer: bytes) -> None:
        # One that gets lost is made up for: the operation comes again, and its record says so.
        if reply:
            with contextlib.suppress(UnavailableError):
                await self._connection.publish(reply, answer)

    async def _say_in_progress(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait / 3)
            try:
                for number, delivery in enumerate(list(self._held.values())):
                    await self._answer(delivery.reply, _IN_PROGRESS)
                    if number % 256 == 255:
                        await asyncio.sleep(0)  # others have their turn
            except Exception:
                logger.exception("JetStream was not told what is in progress; trying again")

    # What comes from NATS.

    def _take_in(self, message: NatsMessage) -> None:
        self._pull.arrived()
        try:
            body = json.loads(message.data)
            params = TaskSendParams(str(body["task_id"]), str(body["operation_id"]))
        except (ValueError, TypeError, KeyError):
            logger.error("a message in %s is no operation; dropped", self._streams.operations)
            self._answer_soon(message.reply, b"+TERM")
            return
        room = self._room()
        if room is None:
            self._answer_soon(message.reply, _NAK)
            return
        held = self._held.get(params.operation_id)
        if held is None and room <= 0:
            self._answer_soon(message.reply, _NAK)  # operations for here took its place
        elif held is None:
            self._enqueue(_Delivery(self, "run", params, message.reply))
        elif held.reply:
            held.reply = message.reply  # it came again: what this process does with it counts once
        else:
            self._answer_soon(message.reply, _ACK)  # it is here already, for this process alone

    def _answer_soon(self, reply: str, answer: bytes) -> None:
        task = asyncio.create_task(self._answer(reply, answer), name="nats-answer")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _take_cancellation(self, message: NatsMessage) -> None:
        try:
            task_id = str(json.loads(message.data)["task_id"])
        except (ValueError, TypeError, KeyError):
            logger.error("a message of %s.cancel is no cancellation; dropped", self._namespace)
            return
        self._cancel_here(TaskIdParams(task_id))

    def _room(self) -> int | None:
        if self._draining or not (self._receivers and self._is_open):
            return None
        return self._concurrency - len(self._held)

    def _hand_back(self) -> None:
        """Nobody receives any more: what nobody took is for others."""
        for delivery in self._take_queued():
            self._answer_soon(delivery.reply, _NAK)

    def _take_queued(self) -> list[_Delivery]:
        """What came from JetStream and nobody took; it is held no more."""
        taken = [one for one in self._queue if one.reply]
        self._queue = deque(one for one in self._queue if not one.reply)
        for delivery in taken:
            assert isinstance(delivery.params, TaskSendParams)
            del self._held[delivery.params.operation_id]
        return taken


class _Delivery(TaskOperation):
    __slots__ = ("_broker", "operation", "params", "reply")

    def __init__(
        self,
        broker: NatsBroker,
        operation: Literal["run", "cancel"],
        params: TaskSendParams | TaskIdParams,
        reply: str,
    ) -> None:
        self._broker = broker
        self.operation = operation
        self.params = params
        self.reply = reply
        """Where JetStream takes the answer; "" for what did not come from there."""

    async def ack(self) -> None:
        await self._broker.settle(self, hand_back=False)

    async def nak(self) -> None:
        await self._broker.settle(self, hand_back=True)
