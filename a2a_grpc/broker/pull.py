"""Asking JetStream for operations: never for more than there is room for.

The pull protocol is spoken here, not by nats-py's fetch: that waits in rounds, drops what JetStream
says between the operations (a consumer that is gone looks like one with nothing to do), and keeps
operations in a buffer that nobody can look into.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable

from a2a_grpc.broker.jetstream import CONSUMER, NANOSECONDS, JetStream
from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.connection import NatsConnection, NatsMessage

logger = logging.getLogger(__name__)


class OperationPull:
    """Has one request under way with JetStream whenever this process wants operations.

    The next one is made when that is used up or over. When JetStream refuses, falls silent, or says
    that the consumer is gone, its streams are made again first, with growing and jittered waits.

    JetStream serves a request while somebody listens at its inbox, so one that is abandoned (the
    connection is lost, JetStream silent) is never listened to again: the next one has a new inbox.

    Args:
        room: how many operations this process can take now; None if it wants none.
        hand_back: called when it wants none any more, after the last operation has arrived.
    """

    BATCH = 32
    """Operations in one request: so that one replica does not take a whole burst."""
    EXPIRES = 30.0  # seconds for which JetStream holds a request
    HEARTBEAT = 2.0  # seconds after which it says that it still does
    LONGEST_WAIT = 2.0  # seconds between requests while JetStream refuses them

    def __init__(
        self,
        connection: NatsConnection,
        streams: JetStream,
        *,
        room: Callable[[], int | None],
        hand_back: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._room = room
        self._hand_back = hand_back
        self._inbox = ""
        self._requests = 0
        self._current = ""  # the inbox of the request under way
        self._asked = 0  # what is left of it
        self._heard = 0.0  # when JetStream said something last
        self._failures = 0  # requests that it refused, one after another
        self._stir = asyncio.Event()

    def look(self) -> None:
        """There may be more room, or none wanted, or a connection again."""
        self._stir.set()

    def lost(self) -> None:
        """The connection is lost, and the request with it."""
        inbox = self._abandon()
        if inbox:
            self._connection.forget(f"{inbox}.*")
        self._stir.set()

    def arrived(self) -> None:
        """An operation has arrived."""
        self._heard = asyncio.get_running_loop().time()
        self._failures = 0
        if self._asked > 1:
            self._asked -= 1
        else:
            self._asked = 0
            self._stir.set()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._asked

    async def run(self) -> None:
        """Ask, until cancelled."""
        while True:
            try:
                await self._step()
            except UnavailableError as error:
                logger.debug("no operations are received: %s", error)
                self._failures += 1
            except Exception:
                logger.exception("no operations are received; trying again")
                await asyncio.sleep(1.0)

    async def _step(self) -> None:
        """Ask if it is time to, and wait until that may have changed."""
        self._stir.clear()
        if self._room() is None:
            await self.stop()
            if self._room() is None:
                self._hand_back()
                await self._stir.wait()
            return
        if not self._connection.is_connected:
            await self._stir.wait()
            return
        silence = asyncio.get_running_loop().time() - self._heard
        if self._asked and silence > 2.5 * self.HEARTBEAT:
            logger.warning("JetStream fell silent; it is asked for operations again")
            self._failures += 1
            await self.stop()
        if self._failures and not self._asked:
            wait = min(self.LONGEST_WAIT, 0.02 * 2 ** min(self._failures, 10))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            await self._streams.make_again()
        room = self._room()
        if not self._asked and room is not None and room > 0:
            await self._ask(min(room, self.BATCH))
        # While a request is under way, to see whether JetStream has fallen silent.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.HEARTBEAT if self._asked else None):
                await self._stir.wait()

    async def _ask(self, batch: int) -> None:
        inbox = self._inbox
        if not inbox:
            inbox = self._inbox = self._connection.new_inbox()
            await self._connection.subscribe(f"{inbox}.*", self._take_status)
            if self._inbox != inbox:  # it was abandoned meanwhile
                self._stir.set()
                return
        self._requests += 1
        self._current = f"{inbox}.{self._requests}"
        self._asked, self._heard = batch, asyncio.get_running_loop().time()
        body = {
            "batch": batch,
            "expires": int(self.EXPIRES * NANOSECONDS),
            "idle_heartbeat": int(self.HEARTBEAT * NANOSECONDS),
        }
        try:
            await self._connection.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._streams.operations}.{CONSUMER}",
                json.dumps(body).encode(),
                reply=self._current,
            )
        except UnavailableError:
            self._asked = 0
            raise

    async def stop(self) -> None:
        """Take the request back, at once; returns when what was on its way has arrived."""
        inbox = self._abandon()
        if inbox:
            await self._connection.unsubscribe(f"{inbox}.*", takes_rest=True)

    def _abandon(self) -> str:
        """Whatever is under way does not count any more; returns its inbox."""
        inbox, self._inbox, self._current, self._asked = self._inbox, "", "", 0
        return inbox

    def _take_status(self, message: NatsMessage) -> None:
        if message.subject != self._current:
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
