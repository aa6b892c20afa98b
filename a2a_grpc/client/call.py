"""What an interceptor of the client sees: one call, as the program made it.

Interceptors wrap the logical call: whatever is tried again or taken up again happens inside
`proceed`, once for all of them, and metadata that they add goes with every try. Credentials that
have to be fresh for each try belong into `token` or `metadata` of the client instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from google.protobuf.message import Message

from a2a_grpc import pb


@dataclass(slots=True)
class ClientCall:
    """One call of the program, before it is made; everything may be changed.

    Attributes:
        method: the RPC's name, such as `SendMessage`.
        request: its request message.
        metadata: the call metadata, without credentials and what the client adds to a single try.
        timeout: seconds for all tries together; None for no limit.
    """

    method: str
    request: Any
    metadata: list[tuple[str, str]] = field(default_factory=list)
    timeout: float | None = None


ProceedUnary: TypeAlias = Callable[[ClientCall], Awaitable[Message]]
ProceedStream: TypeAlias = Callable[[ClientCall], AsyncIterator[pb.StreamResponse]]


@runtime_checkable
class UnaryInterceptor(Protocol):
    """Wraps every call that has one answer."""

    async def intercept_unary(self, call: ClientCall, proceed: ProceedUnary) -> Message:
        """Return the RPC's response message, usually that of `await proceed(call)`.

        Calling `proceed` again makes another call: it is no repetition that a server knows as one.
        """
        ...


@runtime_checkable
class StreamInterceptor(Protocol):
    """Wraps SendStreamingMessage and SubscribeToTask."""

    def intercept_stream(
        self, call: ClientCall, proceed: ProceedStream
    ) -> AsyncIterator[pb.StreamResponse]:
        """Yield the events of `proceed(call)`; an async generator will do.

        The attributes of the EventStream are those of the event read last: pass on one at a time.
        """
        ...


ClientInterceptor: TypeAlias = UnaryInterceptor | StreamInterceptor
