"""A connection to NATS that comes back: publish, subscribe, request, and its health.

Nothing waits for a connection that is lost: calls raise UnavailableError at once, and nothing is
kept for later. Subscriptions are made again when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.client import NatsClient, cancelled
from a2a_grpc.nats.dialer import MAX_PENDING, NatsDialer, NatsOpenError

logger = logging.getLogger(__name__)


class NatsMessage(NamedTuple):
    """A message; `status` is that of a message which the server made itself, else 0."""

    subject: str
    reply: str
    data: bytes
    status: int
    headers: dict[str, str]


Handler = Callable[[NatsMessage], None]
"""Called for each message of a subscription, in order; must not wait."""

_NO_RESPONDERS = 503


class NatsConnection:
    """A connection; an async context manager.

    Entering raises NatsOpenError if no server takes us in. After that the connection is made again
    whenever it is lost, for ever, with growing and jittered waits.

    Args:
        address: where to.
        name: what the server's operators see.
    """

    FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds

    def __init__(self, address: NatsAddress, *, name: str) -> None:
        self._address = address
        self._name = name
        self._client: NatsClient | None = None
        self._dialer = NatsDialer(address, name=name)
        self._keeper: asyncio.Task[None] | None = None
        self._inbox = self.new_inbox()
        self._requests = 0
        self._replies: dict[str, tuple[str, asyncio.Future[NatsMessage]]] = {}
        self._handlers: dict[str, Handler] = {}
        self._subscriptions: dict[str, Subscription | None] = {}
        self._denied: list[str] = []
        self._denials = 0
        self._problem = ""
        self._ended = ""  # the essential task that is no more
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the connection is lost."""
        self.on_back: Callable[[], None] = lambda: None
        """Called when it is back, and every subscription with it."""

    async def __aenter__(self) -> Self:
        self._ended = ""
        await asyncio.to_thread(self._dialer.read_files)
        denials = self._denials
        self._client = await self._dialer.connect(self._take_in, self._take_error)
        try:
            await self.subscribe(f"{self._inbox}.*", self._take_reply)
            await self.confirm(denials=denials)
        except BaseException:
            await self._leave()
            raise
        self._keeper = self.essential(self._keep(), name=f"nats:{self._name}")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keeper is not None:
            await cancelled(self._keeper)
        self._fail_replies()
        await self._leave()
        self._ended = ""  # in order

    async def _leave(self) -> None:
        client, self._client = self._client, None
        self._subscriptions.clear()
        if client is not None:
            await _closed(client)

    # State.

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._client is not None and not self._client.lost.is_set()

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server takes."""
        return 2**20 if self._client is None else self._client.max_payload

    @property
    def lacks_jetstream(self) -> bool:
        """Whether the server has no JetStream, and no cluster that may have it."""
        info = {} if self._client is None else self._client.info
        return not info.get("jetstream") and "cluster" not in info

    @property
    def shown(self) -> str:
        """The server, or the servers, without their credentials."""
        return self._dialer.shown

    def check(self) -> None:
        """Raises UnavailableError unless there is a connection, and all that it needs runs."""
        if self._ended:
            raise UnavailableError(
                f"the task {self._ended} has ended and nothing replaces it; restart the process, "
                "whose log says why"
            )
        if not self.is_connected:
            raise self._unavailable()

    def essential(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """A task that runs until its owner cancels it; `check` fails once it has ended."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._ended = task.get_name()
        if not task.cancelled():
            logger.critical(
                "the task %s has ended, which it must not; restart the process",
                self._ended,
                exc_info=task.exception(),
            )

    @property
    def denials(self) -> int:
        """How often the server refused something, for `confirm`."""
        return self._denials

    def _unavailable(self) -> UnavailableError:
        if self._problem:
            logger.debug("NATS at %s: %s", self.shown, self._problem)
        return UnavailableError("NATS can't be reached; try again later", retry_after=1.0)

    # Messages.

    async def publish(self, subject: str, payload: bytes = b"", *, reply: str = "") -> None:
        """Send a message; returns when it is on its way.

        Raises UnavailableError without a connection, or if too much waits for the server already.
        """
        client = self._client
        if client is None or client.lost.is_set():
            raise self._unavailable()
        if client.pending_data_size + len(payload) > MAX_PENDING:
            raise UnavailableError("NATS takes too long; try again later", retry_after=1.0)
        try:
            await client.publish(subject, payload, reply)
        except (OSError, NatsError) as error:
            raise self._unavailable() from error

    async def request(
        self, subject: str, payload: bytes = b"", *, limit: float = 5.0
    ) -> NatsMessage | None:
        """Send a message and wait for its answer, for `limit` seconds; None if nobody listens.

        Raises UnavailableError, also when the connection is lost meanwhile, and NatsOpenError if
        the server does not allow it.
        """
        self._requests += 1
        word = str(self._requests)
        answer: asyncio.Future[NatsMessage] = asyncio.get_running_loop().create_future()
        self._replies[word] = subject, answer
        try:
            await self.publish(subject, payload, reply=f"{self._inbox}.{word}")
            async with asyncio.timeout(limit):
                message = await answer
        except TimeoutError:
            raise UnavailableError(
                "NATS does not answer in time; try again later", retry_after=1.0
            ) from None
        finally:
            self._replies.pop(word, None)
        return None if message.status == _NO_RESPONDERS else message

    def route(self, subject: str, handler: Handler) -> None:
        """Give messages with this subject, or `prefix.*`, to the handler."""
        self._handlers[subject] = handler

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Receive what is published under this subject, or `prefix.*`, from now on.

        Without a connection, from when it is back.
        """
        self._handlers[subject] = handler
        if self._subscriptions.setdefault(subject, None) is None:
            await self._send_subscription(subject)

    async def _send_subscription(self, subject: str) -> None:
        client = self._client
        if client is None or client.lost.is_set():
            return
        with contextlib.suppress(OSError, NatsError):
            # A future, which stays unused, keeps nats-py from making an iterator of it.
            subscription = await client.subscribe(subject, future=_NOBODY)
            # Meanwhile it may have been given up, or made by another, or the connection be lost.
            if self._client is client and self._subscriptions.get(subject, _NOBODY) is None:
                self._subscriptions[subject] = subscription
            else:
                await subscription.unsubscribe()

    async def unsubscribe(self, subject: str, *, takes_rest: bool = False) -> None:
        """Receive no more; with `takes_rest`, after what is on its way has come.

        For that it waits two seconds at the most.
        """
        subscription = self._subscriptions.pop(subject, None)
        client = self._client
        if subscription is not None and client is not None and not client.lost.is_set():
            with contextlib.suppress(OSError, NatsError, UnavailableError):
                if takes_rest:
                    await client.stop_delivery(subscription)
                    with contextlib.suppress(NatsOpenError):  # of something else
                        await self.confirm(limit=2.0)
                # Not if that was not confirmed: the rest may come yet.
                await subscription.unsubscribe()
        if subject not in self._subscriptions:
            self._handlers.pop(subject, None)

    def forget(self, subject: str) -> None:
        """Do not receive this again when the connection, which is lost, is back."""
        self._subscriptions.pop(subject, None)
        self._handlers.pop(subject, None)

    @staticmethod
    def new_inbox() -> str:
        """A subject of one's own, to be answered at."""
        return f"_INBOX.{uuid.uuid4().hex}"

    async def confirm(self, *, limit: float = 5.0, denials: int | None = None) -> None:
        """Wait until the server has taken what was sent so far.

        A request that nobody answers, and not a PING: nats-py sends that before all that waits.

        Raises UnavailableError, and NatsOpenError if the server refused anything meanwhile, or
        since `denials` was read.
        """
        before = self._denials if denials is None else denials
        await self.request(f"{self._inbox}-nobody", limit=limit)
        if self._denials > before and self._denied:
            raise NatsOpenError(self._permission_missing(self._denied[-1]))

    def _permission_missing(self, what: str) -> str:
        return (
            f"NATS at {self.shown} does not allow it: {what}; the user needs permission to "
            f"publish and subscribe to {self._address.namespace}.>, _INBOX.>, $JS.API.> and "
            "$JS.ACK.>"
        )

    def _take_in(
        self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None
    ) -> None:
        handler = self._handlers.get(subject)
        if handler is None:
            handler = self._handlers.get(subject.rpartition(".")[0] + ".*")
            if handler is None:
                return
        status = int(headers.get("Status") or 0) if headers else 0
        handler(NatsMessage(subject, reply, data, status, headers or {}))

    def _take_reply(self, message: NatsMessage) -> None:
        _, answer = self._replies.get(message.subject.rpartition(".")[2], (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _take_error(self, error: Exception) -> None:
        text = str(error)
        if "permissions violation" not in text.lower():
            logger.debug("NATS at %s: %s", self.shown, text)
            return
        text = text.removeprefix("nats: ")
        self._denials += 1
        if text in self._denied:
            self._denied.remove(text)
        else:
            logger.error("NATS at %s: %s", self.shown, text)
        self._denied = [*self._denied[-9:], text]  # the newest comes last
        for subject, answer in list(self._replies.values()):
            # nats-py tells in lower case what the server said.
            if f'"{subject.lower()}"' in text.lower() and not answer.done():
                answer.set_exception(NatsOpenError(self._permission_missing(text)))

    def _fail_replies(self) -> None:
        for _, answer in list(self._replies.values()):
            if not answer.done():
                answer.set_exception(self._unavailable())

    # Connecting.

    async def _keep(self) -> None:
        while True:
            client = self._client
            assert client is not None
            await client.lost.wait()
            logger.warning("the connection to NATS at %s is lost", self.shown)
            self._fail_replies()
            _call(self.on_lost)
            await _closed(client)
            for subject in self._subscriptions:
                self._subscriptions[subject] = None
            self._client = await self._connect_again()
            self._denied = []
            await self._subscribe_again()
            if self.is_connected:
                logger.warning("the connection to NATS is back, at %s", self.shown)
                _call(self.on_back)

    async def _subscribe_again(self) -> None:
        for number, subject in enumerate(list(self._subscriptions)):
            if self._subscriptions.get(subject, _NOBODY) is None:
                await self._send_subscription(subject)
            if number % 256 == 255:
                await asyncio.sleep(0)  # others have their turn
        with contextlib.suppress(UnavailableError, NatsOpenError):
            await self.confirm()

    async def _connect_again(self) -> NatsClient:
        wait = self.FIRST_WAIT
        while True:
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            try:
                return await self._dialer.connect(self._take_in, self._take_error)
            except NatsOpenError as error:
                self._problem = str(error)
                logger.debug("%s", error)
                wait = min(2 * wait, self.LONGEST_WAIT)


_NOBODY: Any = object()


async def _closed(client: NatsClient) -> None:
    """Closed, within two seconds."""
    try:
        async with asyncio.timeout(2.0):
            await client.leave()
    except Exception as error:
        logger.debug("closing a connection to NATS: %s", error)
    finally:
        client.abort()


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback of the NATS connection failed")
