"""The calls of one open client: what goes with each of them, and the way through interceptors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from a2a_grpc import pb
from a2a_grpc.client.agent_source import AgentSource
from a2a_grpc.client.call import (
    ClientCall,
    ClientInterceptor,
    ProceedUnary,
    StreamInterceptor,
    UnaryInterceptor,
)
from a2a_grpc.client.connection import (
    Connection,
    Metadata,
    MetadataSource,
    Token,
    check_metadata,
    checked_token,
)
from a2a_grpc.client.errors import NotAnA2AServerError
from a2a_grpc.client.event_stream import EventStream
from a2a_grpc.client.repetition import Deduplication
from a2a_grpc.client.retry import RetryPolicy
from a2a_grpc.client.task_events import TaskEvents
from a2a_grpc.client.unary_calls import UnaryCalls
from a2a_grpc.errors import UnsupportedOperationError
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from a2a_grpc.wire.call import EXTENSIONS_KEY, SUPPORTED_VERSION, VERSION_KEY


class Session:
    """Opened and closed once; the arguments are those of A2AClient, but for `tenant`.

    Args:
        tenant: returns the tenant of the calls that the session makes by itself.
    """

    def __init__(
        self,
        source: AgentSource,
        *,
        tenant: Callable[[], str],
        token: Token | None,
        metadata: MetadataSource,
        extensions: Sequence[str],
        timeout: float | None,
        retry: RetryPolicy,
        interceptors: Sequence[ClientInterceptor],
        keepalive: float,
        channel: grpc.aio.Channel | None,
    ) -> None:
        self._source = source
        self._tenant = tenant
        self._token = token if token is None or callable(token) else checked_token(token)
        self._provide: Callable[[], Awaitable[Metadata]] | None = None
        self._metadata: Metadata = ()
        if callable(metadata):
            self._provide = metadata
        else:
            self._metadata = tuple(metadata)
            check_metadata(self._metadata)
        self._extensions = listed("extensions", extensions)
        self._timeout = checked_timeout(timeout)
        self._retry = retry
        for one in interceptors:
            if not isinstance(one, (UnaryInterceptor, StreamInterceptor)):
                raise TypeError(
                    f"{one!r} is no interceptor: it has no intercept_unary and no intercept_stream"
                )
        self._unary_interceptors = [i for i in interceptors if isinstance(i, UnaryInterceptor)]
        self._stream_interceptors = [i for i in interceptors if isinstance(i, StreamInterceptor)]
        self._keepalive = keepalive
        self._channel = channel
        self._connection: Connection | None = None
        self._deduplication: Deduplication | None = None
        self._calls: UnaryCalls | None = None

    async def open(self) -> None:
        """Find the agent, and check its card if it has to be signed.

        Otherwise the connection is made by the first call.
        """
        if self._connection is not None:
            raise RuntimeError("this A2AClient is open, or was; make another one")
        address = await self._source.resolve(self._timeout)
        self._connection = Connection(
            address,
            tls=self._source.security(),
            token=self._token,
            metadata=self._provide,
            keepalive=self._keepalive,
            channel=self._channel,
        )
        self._deduplication = Deduplication(self._source.card, self._discover_once)
        self._calls = UnaryCalls(self._connection, self._retry, self._deduplication)
        if self._source.has_to_verify:
            try:
                await self.discover(self._timeout)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """End the calls that are open."""
        self._calls = None
        if self._connection is not None:
            await self._connection.close()

    async def unary(
        self,
        method: str,
        request: Message,
        timeout: float | None,
        extensions: Sequence[str] = (),
    ) -> Any:
        """Make a call that has one answer; its type is that of the method."""
        proceed: ProceedUnary = self._opened().make
        for interceptor in reversed(self._unary_interceptors):
            proceed = _around(interceptor, proceed)
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        metadata = self._call_metadata(listed("extensions", extensions))
        return await proceed(ClientCall(method, request, metadata, seconds))

    def stream(
        self,
        method: str,
        request: Message,
        timeout: float | None,
        extensions: Sequence[str] = (),
        last_sequence: int | None = None,
    ) -> EventStream:
        """Prepare a call that is answered with events."""
        self._opened()
        wanted = (*listed("extensions", extensions), SEQUENCE_EXTENSION)
        call = ClientCall(method, request, self._call_metadata(wanted), checked_timeout(timeout))

        def open_events(call: ClientCall) -> TaskEvents:
            self._opened()
            assert self._connection is not None
            assert self._deduplication is not None
            return TaskEvents(
                call,
                self._connection,
                self._retry,
                self._deduplication,
                last_sequence=last_sequence,
            )

        return EventStream(call, open_events, self._stream_interceptors)

    async def discover(self, timeout: float | None) -> pb.AgentCard:
        """The card over gRPC; raises UnsupportedOperationError if the server does not offer it."""
        card = await self._discover(self.unary, timeout)
        assert self._deduplication is not None
        self._deduplication.learn(card)
        return card

    async def _discover_once(self, timeout: float | None) -> pb.AgentCard:
        """One try, seen by no interceptor."""
        return await self._discover(self._try_once, timeout)

    async def _discover(
        self,
        make: Callable[[str, Message, float | None], Awaitable[Message]],
        timeout: float | None,
    ) -> pb.AgentCard:
        request = pb.GetAgentCardRequest(tenant=self._tenant())
        try:
            card = await make("GetAgentCard", request, timeout)
        except NotAnA2AServerError as error:
            assert self._connection is not None
            raise UnsupportedOperationError(
                f"{self._connection.address} does not offer its card over gRPC; make the client "
                "from the URL of the card"
            ) from error
        assert isinstance(card, pb.AgentCard)
        return self._source.verified(card)

    async def _try_once(self, method: str, request: Message, timeout: float | None) -> Message:
        assert self._connection is not None
        call = ClientCall(method, request, self._call_metadata(()), timeout)
        try:
            return await self._connection.unary(call, timeout)
        except grpc.aio.AioRpcError as failure:
            raise self._connection.error_of(failure, method) from failure

    def _call_metadata(self, extensions: Sequence[str]) -> list[tuple[str, str]]:
        found = [(VERSION_KEY, SUPPORTED_VERSION), *self._metadata]
        if wanted := list(dict.fromkeys((*self._extensions, *extensions))):
            found.append((EXTENSIONS_KEY, ",".join(wanted)))
        return found

    def _opened(self) -> UnaryCalls:
        if self._calls is None:
            state = "is closed" if self._connection is not None else "is not open yet"
            raise RuntimeError(f"this A2AClient {state}; use it inside `async with A2AClient(...)`")
        return self._calls


def _around(interceptor: UnaryInterceptor, proceed: ProceedUnary) -> ProceedUnary:
    return lambda call: interceptor.intercept_unary(call, proceed)


def listed(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """The values; raises TypeError for a str in place of a list, and for other values."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} takes a list of str")
    return tuple(values)


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout; raises ValueError unless it is above 0."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout}; use seconds above 0, or None for no limit")
    return timeout
