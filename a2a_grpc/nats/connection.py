"""A connection to NATS that comes back: publish, subscribe, request, and its health.

Nothing waits for a connection that is lost: calls raise UnavailableError at once, and nothing is
kept for later. Subscriptions are made again when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import random
import ssl
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.address import NatsAddress, NatsServer
from a2a_grpc.nats.client import NatsClient

logger = logging.getLogger(__name__)

MAX_PENDING = 8 * 2**20
"""Bytes that wait for the socket; beyond it nothing is published."""


class NatsOpenError(Exception):
    """NATS can't be used; the message names the server and the remedy."""


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

    CONNECT_TIMEOUT = 3
    PING_INTERVAL = 4  # seconds; a server that answers none of two pings is given up
    FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0  # seconds

    def __init__(self, address: NatsAddress, *, name: str) -> None:
        self._address = address
        self._name = name
        self._client: NatsClient | None = None
        self._context: ssl.SSLContext | None = None
        self._server: NatsServer | None = None
        self._servers = list(address.servers)
        self._keeper: asyncio.Task[None] | None = None
        self._inbox = self.new_inbox()
        self._requests = 0
        self._replies: dict[str, tuple[str, asyncio.Future[NatsMessage]]] = {}
        self._handlers: dict[str, Handler] = {}
        self._subscriptions: dict[str, Subscription | None] = {}
        self._denied: list[str] = []
        self._problem = ""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the connection is lost."""
        self.on_back: Callable[[], None] = lambda: None
        """Called when it is back, and every subscription with it."""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._read_files)
        self._client = await self._connect()
        try:
            await self.subscribe(f"{self._inbox}.*", self._take_reply)
            await self.confirm()
        except BaseException:
            await self._leave()
            raise
        self._keeper = asyncio.create_task(self._keep(), name=f"nats:{self._name}")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._fail_replies()
        await self._leave()

    async def _leave(self) -> None:
        client, self._client = self._client, None
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
        return self._address.shown if self._server is None else self._server.shown

    def check(self) -> None:
        """Raises UnavailableError unless there is a connection."""
        if not self.is_connected:
            raise self._unavailable()

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
        self._subscriptions[subject] = None
        await self._send_subscription(subject)

    async def _send_subscription(self, subject: str) -> None:
        client = self._client
        if client is None or client.lost.is_set():
            return
        with contextlib.suppress(OSError, NatsError):
            # A future, which stays unused, keeps nats-py from making an iterator of it.
            subscription = await client.subscribe(subject, future=_NOBODY)
            if subject in self._subscriptions:
                self._subscriptions[subject] = subscription

    async def unsubscribe(self, subject: str, *, takes_rest: bool = False) -> None:
        """Receive no more; with `takes_rest`, after what is on its way has come."""
        subscription = self._subscriptions.pop(subject, None)
        client = self._client
        if subscription is not None and client is not None and not client.lost.is_set():
            with contextlib.suppress(OSError, NatsError, UnavailableError):
                if takes_rest:
                    await client.stop_delivery(subscription)
                    await self.confirm()
                await subscription.unsubscribe()
        if subject not in self._subscriptions:
            self._handlers.pop(subject, None)

    @staticmethod
    def new_inbox() -> str:
        """A subject of one's own, to be answered at."""
        return f"_INBOX.{uuid.uuid4().hex}"

    async def confirm(self, *, limit: float = 5.0) -> None:
        """Wait until the server has taken what was sent so far.

        A request that nobody answers, and not a PING: nats-py sends that before all that waits.

        Raises UnavailableError, and NatsOpenError if the server refused anything.
        """
        await self.request(f"{self._inbox}-nobody", limit=limit)
        if self._denied:
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
        if text not in self._denied:
            logger.error("NATS at %s: %s", self.shown, text)
            self._denied = [*self._denied[-9:], text]
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
                return await self._connect()
            except NatsOpenError as error:
                self._problem = str(error)
                logger.debug("%s", error)
                wait = min(2 * wait, self.LONGEST_WAIT)

    async def _connect(self) -> NatsClient:
        """Connect to any of the servers, in random order."""
        problem: NatsOpenError | None = None
        for server in random.sample(self._servers, len(self._servers)):
            client = NatsClient(self._take_in, self._take_error)
            try:
                options = await asyncio.to_thread(self._options, server)
                async with asyncio.timeout(2 * self.CONNECT_TIMEOUT):
                    await client.open(server.shown, needs_tls=server.tls, **options)
            except Exception as error:
                client.abort()  # nothing runs in it yet that had to be ended
                # That one lets nobody in says more than that another is away.
                if problem is None or not isinstance(error, OSError):
                    problem = NatsOpenError(self._diagnosis(server, error))
                    problem.__cause__ = error
            except BaseException:
                client.abort()
                raise
            else:
                self._server = server
                self._learn_servers(client, server)
                return client
        assert problem is not None
        raise problem

    def _options(self, server: NatsServer) -> dict[str, Any]:
        address = self._address
        options: dict[str, Any] = {
            "name": f"a2a-grpc {self._name}",
            "no_echo": True,
            "connect_timeout": self.CONNECT_TIMEOUT,
            "ping_interval": self.PING_INTERVAL,
            "max_outstanding_pings": 2,
            "pending_size": 4 * MAX_PENDING,  # never reached: nats-py would wait without a limit
            "user_credentials": address.credentials,
            # Read anew for each connection, and without the line break at its end.
            "nkeys_seed_str": None if address.nkey is None else _text(address.nkey),
            "token": address.token,
            "tls": self._context if server.tls else None,
            "tls_hostname": server.tls_name,
        }
        if server.password is None:
            options["token"] = options["token"] or server.user  # as NATS reads nats://token@host
        else:
            options["user"], options["password"] = server.user, server.password
        return options

    def _learn_servers(self, client: NatsClient, told_by: NatsServer) -> None:
        """The other servers of the cluster, to be tried after those that the URL names."""
        known = {(server.host, server.port) for server in self._address.servers}
        self._servers = list(self._address.servers)
        for url in client.discovered_servers:
            if url.hostname and url.port and (url.hostname, url.port) not in known:
                self._servers.append(
                    NatsServer(
                        url.hostname,
                        url.port,
                        told_by.tls,
                        told_by.user,
                        told_by.password,
                        told_by.tls_name or told_by.host,
                    )
                )

    def _read_files(self) -> None:
        address = self._address
        for name in ("credentials", "nkey", "tls_ca", "tls_cert", "tls_key"):
            path = getattr(address, name)
            try:
                if path is not None:
                    with open(path, "rb"):
                        pass
            except OSError as error:
                raise NatsOpenError(
                    f"{name} of NATS at {self.shown}: can't read {path}: {error.strerror}"
                ) from error
        if (address.credentials or address.nkey) and importlib.util.find_spec("nkeys") is None:
            raise NatsOpenError(
                "credentials and nkey need the package nkeys: pip install 'a2a-grpc[nats]'"
            )
        if any(server.tls for server in address.servers):
            try:
                self._context = address.tls_context()
            except (OSError, ssl.SSLError) as error:
                raise NatsOpenError(
                    f"the certificates for NATS at {self.shown} can't be used: {error}; tls_ca, "
                    "tls_cert and tls_key name PEM files"
                ) from error

    def _diagnosis(self, server: NatsServer, error: Exception) -> str:
        at = f"NATS at {server.shown}"
        text = str(error).removeprefix("nats: ").strip("'")
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {at} is not accepted: {error.verify_message}; name its "
                "authority with tls_ca, and the server as its certificate does"
            )
        if "authorization" in text.lower() or "authentication" in text.lower():
            return (
                f"{at} does not accept the credentials; give user and password in the address, "
                "token=, nkey= or credentials="
            )
        if "does not offer TLS" in text:
            return f"{at} does not offer TLS; use nats:// if that is wanted"
        if isinstance(error, ssl.SSLError):
            return f"TLS with {at} failed: {text}; check tls_cert and tls_key"
        if isinstance(error, TimeoutError):
            return f"{at} does not answer; check the address, and whether it speaks TLS"
        if isinstance(error, OSError):
            return f"{at} can't be reached: {text or type(error).__name__}; is it running?"
        return f"{at} can't be used: {type(error).__name__} {text}"


_NOBODY: Any = object()


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


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
