"""What `stream()` and `subscribe()` return."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from a2a_grpc import pb
from a2a_grpc.client.call import ClientCall, StreamInterceptor
from a2a_grpc.client.task_events import TaskEvents


class EventStream:
    """The events of a task; an async iterator of StreamResponse and an async context manager.

    Nothing is sent before the first event is asked for, and no event is read before it is asked
    for. Leaving the context, or `aclose()`, ends the call; the task goes on. One task reads a
    stream at a time. Who gives up waiting for an event (asyncio.timeout around one step) may go on
    iterating, unless interceptors are in use: the stream is taken up where it was.
    """

    def __init__(
        self,
        call: ClientCall,
        open_events: Callable[[ClientCall], TaskEvents],
        interceptors: Sequence[StreamInterceptor],
    ) -> None:
        self._call = call
        self._open_events = open_events
        self._interceptors = interceptors
        self._events: TaskEvents | None = None
        self._iterator: AsyncIterator[pb.StreamResponse] | None = None
        self._intercepted: list[AsyncIterator[pb.StreamResponse]] = []
        self._closed = False

    def _proceed(self, call: ClientCall, depth: int = 0) -> AsyncIterator[pb.StreamResponse]:
        """The events, as the interceptors from `depth` on pass them to the one before."""
        if depth < len(self._interceptors):
            found = self._interceptors[depth].intercept_stream(
                call, lambda call: self._proceed(call, depth + 1)
            )
            self._intercepted.append(found)
            return found
        if self._events is not None:
            self._events.close()  # an interceptor that begins again is done with the first one
        self._events = self._open_events(call)
        return self._events

    @property
    def sequence(self) -> int:
        """The sequence number of the event yielded last; 0 before, or where the server has none.

        `client.subscribe(stream.task_id, last_sequence=stream.sequence)` goes on after it.
        """
        return 0 if self._events is None else self._events.sequence

    @property
    def is_reset(self) -> bool:
        """Whether the event yielded last is a whole Task that replaces all that came before."""
        return self._events is not None and self._events.is_reset

    @property
    def task_id(self) -> str:
        """The task's id, once it is known."""
        if self._events is not None:
            return self._events.task_id
        subscribes = isinstance(self._call.request, pb.SubscribeToTaskRequest)
        return self._call.request.id if subscribes else ""

    @property
    def reconnects(self) -> int:
        """How often the stream was taken up again on another connection."""
        return 0 if self._events is None else self._events.reconnects

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[pb.StreamResponse]:
        if self._iterator is None:
            if self._closed:
                return _ended()
            self._iterator = self._proceed(self._call)
        return self._iterator.__anext__()

    async def aclose(self) -> None:
        """End the call; the task goes on. May be called twice."""
        self._closed = True
        if self._events is not None:
            self._events.close()
        # The outermost first. One that is running learns of the end from what it reads.
        async with AsyncExitStack() as stack:
            for iterator in reversed(self._intercepted):
                aclose: Any = getattr(iterator, "aclose", None)
                if aclose is not None and not getattr(iterator, "ag_running", False):
                    stack.push_async_callback(aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


async def _ended() -> pb.StreamResponse:
    raise StopAsyncIteration
