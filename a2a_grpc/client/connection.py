"""The channel to the agent and single tries on it: metadata, credentials, options.

What is tried again, and when, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakSet

import grpc
from google.protobuf.message import Message

from a2a_grpc import pb
from a2a_grpc.client.address import Address
from a2a_grpc.client.call import ClientCall
from a2a_grpc.client.errors import ClientClosedError, error_of, was_never_sent
from a2a_grpc.client.tls import ClientTLS
from a2a_grpc.errors import A2AError, InvalidAgentResponseError

logger = logging.getLogger(__name__)

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
Metadata: TypeAlias = Sequence[tuple[str, str]]
MetadataSource: TypeAlias = Metadata | Callable[[], Awaitable[Metadata]]

_KEY = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")

_OPTIONS: tuple[tuple[str, Any], ...] = (
    # Tasks hold parts of any size, and agents are chosen, not met by chance.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A service config, which DNS may bring, could set up retries of its own. What is left of
    # gRPC's are the transparent ones: calls that no server has begun to handle.
    ("grpc.service_config_disable_resolution", 1),
    # While a server restarts, connecting is tried about as often as calls are: those in between
    # fail at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # for one try to connect
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # Each client has its own connection, with its own credentials.
    ("grpc.use_local_subchannel_pool", 1),
)


class Connection:
    """One channel, and the calls on it, until `close`.

    Args:
        tls: None for plaintext; its files are loaded.
        token: the bearer token, or what returns it, asked for every try.
        metadata: what returns more call metadata, asked for every try.
        keepalive: seconds between pings on a connection with open calls.
        channel: used instead of one of our own, and left open.
    """

    def __init__(
        self,
        address: Address,
        *,
        tls: ClientTLS | None,
        token: Token | None,
        metadata: Callable[[], Awaitable[Metadata]] | None,
        keepalive: float,
        channel: grpc.aio.Channel | None,
    ) -> None:
        self.address = address.target
        self._token = token
        self._metadata = metadata
        self._owned = channel is None
        self._closed = asyncio.Event()
        self._open: WeakSet[Any] = WeakSet()  # weak: a stream that its reader drops ends
        if token is not None and tls is None and channel is None and not address.is_loopback:
            logger.warning(
                "the token is sent to %s in plaintext, where anybody on the way can read it; "
                "use grpcs:// or tls=True",
                address.target,
            )
        if channel is None:
            options = [*_OPTIONS]
            if keepalive > 0:
                options.append(("grpc.keepalive_time_ms", int(keepalive * 1000)))
            if tls is not None and tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            if tls is None:
                channel = grpc.aio.insecure_channel(address.target, options=options)
            else:
                channel = grpc.aio.secure_channel(
                    address.target, tls.credentials(), options=options
                )
        self._channel = channel
        self._agent: Any = pb.A2AServiceStub(channel)
        self._discovery: Any = pb.DiscoveryStub(channel)

    async def close(self) -> None:
        """Start no more tries, and end those that are open or wait for their turn."""
        self._closed.set()
        for rpc in list(self._open):
            rpc.cancel()
        if self._owned:
            await self._channel.close()

    async def sleep(self, seconds: float) -> None:
        """Wait so long; raises ClientClosedError as soon as the client is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise ClientClosedError()

    async def unary(self, call: ClientCall, timeout: float | None, more: Metadata = ()) -> Message:
        """One try.

        Raises grpc.aio.AioRpcError; ClientClosedError once the client is closed;
        InvalidAgentResponseError for bytes that are no answer.
        """
        stub = self._discovery if call.method == "GetAgentCard" else self._agent
        metadata = await self._metadata_for(call, more)
        rpc = getattr(stub, call.method)(call.request, metadata=metadata, timeout=timeout)
        self._open.add(rpc)
        try:
            response = await rpc
        except asyncio.CancelledError:
            if not is_cancelled():
                raise ClientClosedError() from None
            raise
        answer: Message = self.readable(response, call.method)
        return answer

    async def stream(
        self,
        method: str,
        request: Message,
        call: ClientCall,
        timeout: float | None,
        more: Metadata,
    ) -> Any:
        """The call object of one try."""
        metadata = await self._metadata_for(call, more)
        rpc = getattr(self._agent, method)(request, metadata=metadata, timeout=timeout)
        self._open.add(rpc)
        return rpc

    def readable(self, response: Any, method: str) -> Any:
        """The response; raises InvalidAgentResponseError for None, which is what gRPC makes of
        bytes that it can't parse."""
        if response is None:
            raise InvalidAgentResponseError(f"{method}: what {self.address} sent can't be parsed")
        return response

    def error_of(self, failure: grpc.aio.AioRpcError, method: str) -> A2AError:
        """The error that a failed try stands for."""
        error = error_of(failure, method, self.address)
        error.__cause__ = failure
        return error

    def may_have_arrived(self, failure: grpc.aio.AioRpcError) -> bool:
        """Whether the failed try may have started work, or have found some that is under way."""
        if failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return False  # an answer: what it refuses is not under way
        return not was_never_sent(failure, self._channel, self.address)

    async def _metadata_for(self, call: ClientCall, more: Metadata) -> Metadata:
        found = [*call.metadata, *more]
        if self._metadata is not None:
            provided = await self._metadata()
            check_metadata(provided)
            found.extend(provided)
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else self._token()
            if inspect.isawaitable(token):
                token = await token
            found.append(("authorization", f"Bearer {checked_token(token)}"))
        if self._closed.is_set():  # perhaps while a function of the program was asked
            raise ClientClosedError()
        return found


def is_cancelled() -> bool:
    """Whether a CancelledError is meant for this task; else its call was cancelled under it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def checked_token(token: Any) -> str:
    """The token; raises TypeError and ValueError for what can't be one, without showing it."""
    if not isinstance(token, str):
        raise TypeError(f"the token is a {type(token).__name__}; use a str or what returns one")
    if not token or not _VALUE.fullmatch(token) or token != token.strip():
        raise ValueError("the token is empty, or has blanks around it or characters beyond ASCII")
    return token


def check_metadata(metadata: Any) -> None:
    """Raises TypeError and ValueError for what gRPC would not send."""
    for entry in metadata:
        if not (
            isinstance(entry, tuple)
            and len(entry) == 2
            and isinstance(entry[0], str)
            and isinstance(entry[1], (str, bytes))
        ):
            raise TypeError("metadata holds pairs of str, such as [('x-request-id', '17')]")
        key, value = entry
        if not _KEY.fullmatch(key) or key.startswith("grpc-"):
            raise ValueError(
                f"metadata key {key!r}: use lower-case letters, digits, - _ and ., and none of "
                "gRPC's own (grpc-...)"
            )
        if isinstance(value, bytes) != key.endswith("-bin"):
            raise ValueError(f"metadata key {key!r}: bytes go with keys that end in -bin, only")
        if isinstance(value, str) and not _VALUE.fullmatch(value):
            raise ValueError(f"the value of metadata key {key!r} has characters beyond ASCII")
