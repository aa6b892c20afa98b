"""The load: bytes in, bytes out, so that the client is no slower than it must be."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from a2a_grpc import pb
from benchmarks.agent import user_message

METADATA = (("a2a-version", "1.0"),)
_SERVICE = "/lf.a2a.v1.A2AService/"
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
# The smallest window that grpc has, and never a larger one.
_NARROW: tuple[tuple[str, int], ...] = (
    ("grpc.http2.lookahead_bytes", 1024),
    ("grpc.http2.bdp_probe", 0),
)

UnaryCall = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
StreamCall = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]


class Client:
    """One connection to a server.

    Args:
        address: host:port.
        narrow: ask for a small flow-control window, so that a reader that stops reading is felt by
            the server soon.
    """

    def __init__(self, address: str, *, narrow: bool = False) -> None:
        options = _OPTIONS + _NARROW if narrow else _OPTIONS
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self.send_message: UnaryCall = self._unary("SendMessage")
        self.get_task: UnaryCall = self._unary("GetTask")
        self.list_tasks: UnaryCall = self._unary("ListTasks")
        self.cancel_task: UnaryCall = self._unary("CancelTask")
        self.send_streaming_message: StreamCall = self._streaming("SendStreamingMessage")
        self.subscribe_to_task: StreamCall = self._streaming("SubscribeToTask")

    def _unary(self, method: str) -> UnaryCall:
        return self._channel.unary_unary(_SERVICE + method)

    def _streaming(self, method: str) -> StreamCall:
        return self._channel.unary_stream(_SERVICE + method)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


class Requests:
    """Serialized SendMessageRequests, each with a message id of its own."""

    def __init__(self) -> None:
        self._number = 0

    def make(self, count: int, *, return_immediately: bool = False) -> list[bytes]:
        """`count` new ones."""
        made = []
        for _ in range(count):
            self._number += 1
            request = pb.SendMessageRequest(message=user_message(pb, self._number))
            if return_immediately:
                request.configuration.return_immediately = True
            made.append(request.SerializeToString())
        return made


@dataclass(slots=True)
class Answers:
    """What calls came to; a call that failed leaves its error in place of an answer."""

    data: list[bytes] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


async def call_all(call: UnaryCall, requests: Sequence[bytes], concurrency: int) -> Answers:
    """Make all calls, `concurrency` of them at a time."""
    answers = Answers()
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            begun = time.perf_counter()
            try:
                data = await call(request, metadata=METADATA)
            except grpc.aio.AioRpcError as error:
                answers.errors[error_text(error)] += 1
            else:
                answers.latencies.append(time.perf_counter() - begun)
                answers.data.append(data)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return answers


class Reader:
    """Reads one stream to its end.

    Args:
        call: the method.
        request: what to call it with.
        pause: seconds to wait after each event while `hurry` is not set.
        timed: keep the time of every event, nanoseconds of `time.monotonic_ns`, in `arrivals`.
    """

    def __init__(
        self, call: StreamCall, request: bytes, *, pause: float = 0.0, timed: bool = False
    ) -> None:
        self._call = call
        self._request = request
        self._pause = pause
        self._timed = timed
        self.arrivals: list[int] = []
        self.hurry = asyncio.Event()
        self.events: list[bytes] = []
        self.error: str | None = None
        self.begun = 0.0
        self.first = 0.0
        self.ended = 0.0
        self._reached: dict[int, asyncio.Event] = {}

    def reached(self, count: int) -> asyncio.Event:
        """An event that is set when `count` events have come, or the stream has ended."""
        event = self._reached[count] = asyncio.Event()
        return event

    async def read(self) -> None:
        """Make the call and take in its events; an error ends up in `error`."""
        events = self.events
        self.begun = time.perf_counter()
        call = self._call(self._request, metadata=METADATA)
        try:
            async for data in call:
                if not events:
                    self.first = time.perf_counter()
                events.append(data)
                if self._timed:
                    self.arrivals.append(time.monotonic_ns())
                if self._reached and (event := self._reached.get(len(events))):
                    event.set()
                if self._pause and not self.hurry.is_set():
                    await asyncio.sleep(self._pause)
        except grpc.aio.AioRpcError as error:
            self.error = error_text(error)
        finally:
            self.ended = time.perf_counter()
            for event in self._reached.values():
                event.set()


def error_text(error: grpc.aio.AioRpcError) -> str:
    """The status in a few words."""
    return f"{error.code().name}: {(error.details() or '')[:100]}"
