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
import random
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
)
from a2a_grpc.broker.jetstream import (
    CONSUMER,
    NANOSECONDS,
    STORE_FAILED,
    JetStream,
    JetStreamError,
    read_answer,
)
from a2a_grpc.errors import A2AError, ResourceExhaustedError, UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.connection import NatsConnection, NatsMessage, NatsOpenError
from a2a_grpc.nats.names import subject_word

logger = logging.getLogger(__name__)

_ACK, _NAK, _IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class NatsBroker(Broker):
    """Delivers to whichever replica has room.

    - An operation is with JetStream until it is acknowledged. Every `ack_wait` / 3 this process
      says that it still works on what it holds; if it falls silent for `ack_wait`, or hands an
      operation back, another gets it.
    - It is asked for no more than there is room for, at most `BATCH` at a time, and only while
      somebody receives. An operation that comes again while this process holds it is not delivered
      a second time; the newest delivery is what is acknowledged then.
    - The connection comes back by itself, and streams that are gone are made again; what was in
      them is submitted again from storage.

    Args:
        url: see `a2a_grpc.nats.address`.
        ack_wait: seconds after which an operation is delivered elsewhere when its receiver died.
        concurrency: operations that this process holds at a time.

    Entering raises BrokerOpenError.
    """

    BATCH = 32
    PULL_EXPIRES = 30.0  # seconds for which JetStream holds a request for operations
    HEARTBEAT = 2.0  # seconds after which it says that it still does
    LONGEST_WAIT = 2.0  # seconds between requests while JetStream refuses them
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
        self._held: dict[str, _Delivery] = {}  # by operation, delivered or about to be
        self._queue: deque[_Delivery] = deque()  # about to be
        self._cancellations: deque[_Delivery] = deque(maxlen=self.MAX_WAITING)
        self._receivers = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._owned: list[asyncio.Task[None]] = []
        self._answers: set[asyncio.Task[None]] = set()
        # The request for operations that is under way: its inbox, what is left of it, and when
        # JetStream was heard last.
        self._inbox = ""
        self._request_inbox = ""
        self._requests = 0
        self._asked = 0
        self._heard = 0.0
        self._failures = 0  # that JetStream ended requests with, one after another
        self._stir = asyncio.Event()

    def __repr__(self) -> str:
        return f"NatsBroker({self._address.shown}, namespace={self._namespace!r})"

    async def __aenter__(self) -> Self:
        connection = self._connection
        connection.on_lost = self._lost
        connection.on_back = self._stir.set
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
        self._is_open = True
        self._owned = [
            asyncio.create_task(self._pull(), name="nats-pull"),
            asyncio.create_task(self._say_in_progress(), name="nats-in-progress"),
        ]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        while self._waiting:
            self._wake_one()
        for task in self._owned:
            task.cancel()
        await asyncio.gather(*self._owned, return_exceptions=True)
        await self._streams.close()
        try:
            await self._stop_asking()
            # What was pulled and is not over is for others.
            held, self._held = list(self._held.values()), {}
            self._queue.clear()
            self._cancellations.clear()
            for delivery in held:
                await self._answer(delivery.reply, _NAK)
            with contextlib.suppress(UnavailableError, NatsOpenError):
                await self._connection.confirm(limit=2.0)
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

    async def receive_task_operations(self) -> AsyncIterator[TaskOperation]:
        self._receivers += 1
        self._stir.set()
        try:
            while self._is_open:
                delivery = self._next()
                if delivery is not None:
                    yield delivery
                    continue
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                try:
                    await waiter
                except asyncio.CancelledError:
                    if waiter in self._waiting:
                        self._waiting.remove(waiter)
                    else:
                        self._wake_one()  # this receiver was woken and goes away: wake another
                    raise
        finally:
            self._receivers -= 1
            self._stir.set()

    def _next(self) -> _Delivery | None:
        if self._cancellations:
            return self._cancellations.popleft()
        if self._queue and len(self._held) - len(self._queue) < self._concurrency:
            return self._queue.popleft()
        return None

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _enqueue(self, delivery: _Delivery) -> None:
        assert isinstance(delivery.params, TaskSendParams)
        self._held[delivery.params.operation_id] = delivery
        self._queue.append(delivery)
        self._wake_one()

    def _cancel_here(self, params: TaskIdParams) -> None:
        # Where nobody receives, the oldest are forgotten; storage remembers them.
        self._cancellations.append(_Delivery(self, "cancel", params, ""))
        self._wake_one()

    async def settle(self, delivery: _Delivery, *, hand_back: bool) -> None:
        """A delivery was acknowledged or handed back."""
        params = delivery.params
        if not isinstance(params, TaskSendParams):
            if hand_back and self._is_open:
                self._cancellations.appendleft(delivery)
                self._wake_one()
            return
        if self._held.get(params.operation_id) is not delivery:
            return
        if hand_back and params.here and self._is_open:
            self._queue.appendleft(delivery)
            self._wake_one()
            return
        del self._held[params.operation_id]
        if self._queue:
            self._wake_one()
        if not self._asked:
            self._stir.set()  # there is room again
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
            for number, delivery in enumerate(list(self._held.values())):
                await self._answer(delivery.reply, _IN_PROGRESS)
                if number % 256 == 255:
                    await asyncio.sleep(0)  # others have their turn

    # What comes from NATS. The pull protocol is spoken here, not by nats-py's fetch: that waits in
    # rounds, drops what JetStream says between the operations (a consumer that is gone looks like
    # one with nothing to do), and keeps operations in a buffer that nobody can look into.

    def _take_in(self, message: NatsMessage) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._failures = 0
        if self._asked > 1:
            self._asked -= 1
        else:
            self._asked = 0
            self._stir.set()
        try:
            body = json.loads(message.data)
            params = TaskSendParams(str(body["task_id"]), str(body["operation_id"]))
        except (ValueError, TypeError, KeyError):
            logger.error("a message in %s is no operation; dropped", self._streams.operations)
            self._answer_soon(message.reply, b"+TERM")
            return
        if not (self._receivers and self._is_open):
            self._answer_soon(message.reply, _NAK)
            return
        held = self._held.get(params.operation_id)
        if held is None:
            self._enqueue(_Delivery(self, "run", params, message.reply))
        elif held.reply:
            held.reply = message.reply  # it came again: what this process does with it counts once
        else:
            self._answer_soon(message.reply, _ACK)  # it is here already, for this process alone

    def _answer_soon(self, reply: str, answer: bytes) -> None:
        task = asyncio.create_task(self._answer(reply, answer), name="nats-answer")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _take_status(self, message: NatsMessage) -> None:
        if message.subject != self._request_inbox:
            return  # of an earlier request
        self._heard = asyncio.get_running_loop().time()
        if message.status == 100:  # a heartbeat
            self._failures = 0
            return
        if message.status != 408:  # the end of its time; all else says that something is wrong
            self._failures += 1
            logger.debug("JetStream ended a request: %d %s", message.status, message.headers)
        self._asked = 0
        self._stir.set()

    def _take_cancellation(self, message: NatsMessage) -> None:
        try:
            task_id = str(json.loads(message.data)["task_id"])
        except (ValueError, TypeError, KeyError):
            logger.error("a message of %s.cancel is no cancellation; dropped", self._namespace)
            return
        self._cancel_here(TaskIdParams(task_id))

    def _lost(self) -> None:
        self._asked = 0
        self._stir.set()

    async def _pull(self) -> None:
        while True:
            try:
                await self._pull_once()
            except UnavailableError as error:
                logger.debug("no operations are received: %s", error)
                self._failures += 1
            except Exception:
                logger.exception("no operations are received; trying again")
                await asyncio.sleep(1.0)

    async def _pull_once(self) -> None:
        """Ask for operations if it is time to, and wait until that may have changed."""
        self._stir.clear()
        if not self._receivers:
            await self._stop_asking()
            if not self._receivers:
                await self._stir.wait()
            return
        if not self._connection.is_connected:
            await self._stir.wait()
            return
        loop = asyncio.get_running_loop()
        if self._asked and loop.time() - self._heard > 2.5 * self.HEARTBEAT:
            logger.warning("JetStream fell silent; asking it again")
            self._asked = 0
            self._failures += 1
        if self._failures and not self._asked:
            wait = min(self.LONGEST_WAIT, 0.02 * 2 ** min(self._failures, 10))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            await self._streams.make_again()
        room = self._concurrency - len(self._held)
        if not self._asked and room > 0:
            await self._ask(min(room, self.BATCH))
        if not self._asked:
            await self._stir.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.HEARTBEAT):
                await self._stir.wait()

    async def _ask(self, batch: int) -> None:
        if not self._inbox:
            self._inbox = self._connection.new_inbox()
            await self._connection.subscribe(f"{self._inbox}.*", self._take_status)
        self._requests += 1
        self._request_inbox = f"{self._inbox}.{self._requests}"
        self._asked, self._heard = batch, asyncio.get_running_loop().time()
        body = {
            "batch": batch,
            "expires": int(self.PULL_EXPIRES * NANOSECONDS),
            "idle_heartbeat": int(self.HEARTBEAT * NANOSECONDS),
        }
        try:
            await self._connection.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._streams.operations}.{CONSUMER}",
                json.dumps(body).encode(),
                reply=self._request_inbox,
            )
        except UnavailableError:
            self._asked = 0
            raise

    async def _stop_asking(self) -> None:
        """Nobody receives: take back the request, and hand back what nobody took."""
        inbox, self._inbox, self._asked = self._inbox, "", 0
        if inbox:
            await self._connection.unsubscribe(f"{inbox}.*", takes_rest=True)
        if not self._receivers or not self._is_open:
            for delivery in [one for one in self._queue if one.reply]:
                self._queue.remove(delivery)
                assert isinstance(delivery.params, TaskSendParams)
                del self._held[delivery.params.operation_id]
                await self._answer(delivery.reply, _NAK)


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
