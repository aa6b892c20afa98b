"""The bus of many replicas: core NATS, a subject for each task. It may lose, and never waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from a2a_grpc.bus.base import BusOpenError, Committed, EventBus, TaskChannel
from a2a_grpc.bus.encoding import decode, encode
from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.client import cancelled
from a2a_grpc.nats.connection import NatsConnection, NatsMessage
from a2a_grpc.nats.dialer import NatsOpenError
from a2a_grpc.nats.names import subject_word

logger = logging.getLogger(__name__)


class NatsBus(EventBus):
    """Tells channels here directly, and those of other processes through NATS.

    Subject `{namespace}.events.{task id}`, one subscription for each channel that is open. What is
    larger than a message of the server may be travels by reference: without payloads, which
    readers then read from storage. While there is no connection, nothing is published.

    Args:
        url: see `a2a_grpc.nats.address`.

    Entering raises BusOpenError.
    """

    loses = True

    ATTACH_TIMEOUT = 1.0  # seconds
    HEADROOM = 256  # bytes below the server's limit

    def __init__(self, url: str) -> None:
        self.url = url
        address = NatsAddress.parse(url)
        self._address = address
        self._prefix = f"{address.namespace}.events."
        self._connection = NatsConnection(address, name=f"bus of {address.namespace}")
        self._channels: dict[str, TaskChannel] = {}
        self._subscribed: set[str] = set()
        # What the subscriber is to do: make the subscriptions be those of the open channels.
        self._changed: dict[str, None] = {}
        self._unconfirmed: dict[str, asyncio.Future[None]] = {}
        self._stir = asyncio.Event()
        self._subscriber: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"NatsBus({self._address.shown}, namespace={self._address.namespace!r})"

    async def __aenter__(self) -> Self:
        connection = self._connection
        connection.on_back = self._back
        connection.route(f"{self._prefix}*", self._take_in)
        try:
            await connection.__aenter__()
            try:
                await self._try_out()
            except BaseException:
                await connection.__aexit__(None, None, None)
                raise
        except NatsOpenError as error:
            raise BusOpenError(str(error)) from error
        except UnavailableError as error:
            raise BusOpenError(f"NATS at {connection.shown} does not answer") from error
        self._subscriber = connection.essential(self._subscribe(), name="nats-subscriber")
        return self

    async def _try_out(self) -> None:
        """Whether we are allowed to do what we will do."""
        denials = self._connection.denials
        subject = f"{self._prefix}{self._connection.new_inbox().rpartition('.')[2]}"
        await self._connection.subscribe(subject, lambda message: None)
        await self._connection.publish(subject)
        await self._connection.confirm(denials=denials)
        await self._connection.unsubscribe(subject)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._subscriber is not None:
            await cancelled(self._subscriber)
        self._confirmed(list(self._unconfirmed))
        self._channels.clear()
        with contextlib.suppress(UnavailableError, NatsOpenError):
            await self._connection.confirm(limit=2.0)
        await self._connection.__aexit__(exc_type, exc, traceback)

    # Telling.

    async def publish(self, committed: Committed) -> None:
        self.tell(committed)
        connection = self._connection
        if not connection.is_connected:
            return
        subject = self._prefix + subject_word(committed.task_id)
        with contextlib.suppress(UnavailableError):  # whoever missed it finds out
            await connection.publish(
                subject, encode(committed, connection.max_payload - self.HEADROOM)
            )

    def tell(self, committed: Committed) -> None:
        channel = self._channels.get(committed.task_id)
        if channel is not None:
            channel.append(committed)

    def _take_in(self, message: NatsMessage) -> None:
        try:
            told = decode(message.data)
        except ValueError as error:
            logger.warning("a message on %s is dropped: %s", message.subject, error)
            return
        self.tell(told.committed)
        if told.look_up:
            self.on_missed(told.committed.task_id)

    def _back(self) -> None:
        self.on_missed("")

    async def check(self) -> None:
        self._connection.check()

    # Channels.

    def channels(self) -> Iterator[tuple[str, TaskChannel]]:
        return iter(list(self._channels.items()))

    def open(self, task_id: str) -> TaskChannel:
        channel = self._channels.get(task_id)
        if channel is None:
            channel = self._channels[task_id] = TaskChannel()
            self._changed[task_id] = None
            if task_id not in self._unconfirmed:
                self._unconfirmed[task_id] = asyncio.get_running_loop().create_future()
            self._stir.set()
        channel.users += 1
        return channel

    def close(self, task_id: str) -> None:
        channel = self._channels.get(task_id)
        if channel is None:
            return  # the bus was closed before
        channel.users -= 1
        if not channel.users:
            del self._channels[task_id]
            self._changed[task_id] = None
            self._stir.set()

    async def attached(self, task_id: str) -> None:
        if not self._connection.is_connected:
            return
        waiter = self._unconfirmed.get(task_id)
        if waiter is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.ATTACH_TIMEOUT):
                await asyncio.shield(waiter)

    def _confirmed(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            waiter = self._unconfirmed.pop(task_id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _subscribe(self) -> None:
        """Keep the subscriptions what the channels are; one round trip for all that came up."""
        while True:
            await self._stir.wait()
            self._stir.clear()
            changed, self._changed = self._changed, {}
            opened = False
            for task_id in changed:
                subject = self._prefix + subject_word(task_id)
                if task_id in self._channels:
                    opened = True
                    if task_id not in self._subscribed:
                        self._subscribed.add(task_id)
                        await self._connection.subscribe(subject, self._take_in)
                elif task_id in self._subscribed:
                    self._subscribed.discard(task_id)
                    await self._connection.unsubscribe(subject)
            if opened:
                try:
                    await self._connection.confirm(limit=self.ATTACH_TIMEOUT)
                except (UnavailableError, NatsOpenError) as error:
                    logger.debug("subscriptions are not confirmed: %s", error)
            self._confirmed(task_id for task_id in changed if task_id not in self._changed)
