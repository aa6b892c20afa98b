"""Clients that choose replicas themselves: calls that are tried again elsewhere, and followers.

A follower reads one task to its end, over as many replicas as it takes, and keeps all it was told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from a2a_grpc import pb
from a2a_grpc.extensions import LAST_SEQUENCE, RETRY_MARK, SEQUENCE_EXTENSION
from tests.chaos.cluster import PATIENCE, Replica
from tests.support import (
    CHANNEL_OPTIONS,
    SEQUENCED,
    TERMINAL,
    Client,
    Status,
    fold,
    sequence_of,
    state_name,
    status_of,
)

T = TypeVar("T")

Choose = Callable[[], Replica]

LONG = 90.0
"""Seconds that one call may take."""

PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a good client tries again elsewhere. gRPC itself ends calls with CANCELLED that reach a
replica in the moment in which it closes its port; nothing of ours has seen them."""

RECONNECTING = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
)


class Clients:
    """A connection to each replica, made when it is needed; an async context manager.

    Attributes:
        told: the tasks that a server has told of, by id, with their tenants.
    """

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stack = AsyncExitStack()
        self.told: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def channel(self, replica: Replica) -> grpc.aio.Channel:
        """The connection to it; it outlives the replica's processes."""
        if replica.address not in self._channels:
            channel = grpc.aio.insecure_channel(
                replica.address, options=(*CHANNEL_OPTIONS, *RECONNECTING)
            )
            self._stack.push_async_callback(channel.close)
            self._channels[replica.address] = channel
        return self._channels[replica.address]

    def at(self, replica: Replica) -> Client:
        """The bare stub."""
        return Client(self.channel(replica))

    async def get(self, replica: Replica, task_id: str) -> pb.Task:
        """GetTask at this replica, of a task that was told."""
        request = pb.GetTaskRequest(id=task_id, tenant=self.told[task_id])
        task: pb.Task = await self.at(replica).call("GetTask", request, timeout=LONG)
        return task

    async def cancel(self, replica: Replica, task_id: str) -> pb.Task:
        """CancelTask at this replica, of a task that was told."""
        request = pb.CancelTaskRequest(id=task_id, tenant=self.told[task_id])
        task: pb.Task = await self.at(replica).call("CancelTask", request, timeout=LONG)
        return task

    async def send(self, replica: Replica, request: pb.SendMessageRequest) -> pb.Task:
        """SendMessage at this replica, once, answered with a Task."""
        answer = await self.at(replica).call("SendMessage", request, timeout=LONG)
        return self._told(answer, request)

    async def send_somewhere(
        self, choose: Choose, request: pb.SendMessageRequest, *, first: Replica | None = None
    ) -> pb.Task:
        """SendMessage as a good client sends it: once more, elsewhere, until it is answered."""
        answer = await self.somewhere(choose, "SendMessage", request, first=first)
        return self._told(answer, request)

    def _told(self, answer: pb.SendMessageResponse, request: pb.SendMessageRequest) -> pb.Task:
        assert answer.WhichOneof("payload") == "task", answer
        self.told[answer.task.id] = request.tenant
        return answer.task

    async def somewhere(
        self, choose: Choose, method: str, request: Any, *, first: Replica | None = None
    ) -> Any:
        """Any call with one answer, tried again for as long as there is none."""
        refusals: list[Status] = []
        async with asyncio.timeout(PATIENCE):
            while True:
                replica = first if first is not None and not refusals else choose()
                mark = ((RETRY_MARK, "1"),) if refusals and method == "SendMessage" else ()
                try:
                    return await self.at(replica).call(
                        method, request, metadata=mark, timeout=PATIENCE
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() not in PASSING:
                        raise
                    refusals.append(status_of(error))
                    await pause_after(refusals[-1])

    async def log(self, replica: Replica, task_id: str) -> list[pb.StreamResponse]:
        """All events of a task that has ended, or those until it does."""
        call = self.at(replica).call(
            "SubscribeToTask",
            pb.SubscribeToTaskRequest(id=task_id, tenant=self.told[task_id]),
            metadata=(*SEQUENCED, (LAST_SEQUENCE, "0")),
            timeout=LONG,
        )
        _, *events = [event async for event in call]
        return events

    def follower(self, task_id: str, choose: Choose, **how: Any) -> Follower:
        """A follower of a task that was told."""
        return Follower(self, choose, task_id=task_id, tenant=self.told[task_id], **how)

    def streaming(self, request: pb.SendMessageRequest, choose: Choose, **how: Any) -> Follower:
        """A follower that begins with SendStreamingMessage."""
        return Follower(self, choose, tenant=request.tenant, request=request, **how)


class Follower:
    """Reads a task to its end and notes everything.

    Args:
        clients: whose connections are used.
        choose: the replica for the next connection.
        task_id: the task; or
        request: the message, sent with SendStreamingMessage, that begins one.
        tenant: of the task.
        hops: go elsewhere after so many events; 0 for never.
        silence: go elsewhere after so many seconds without an event; None for never.
        after: begin behind this event rather than with the Task as it is.

    Attributes:
        first: the Task with which it began.
        events: the events after `first`; their sequence numbers go on from its number, `began_at`.
        connections: replicas it was connected to, in turn.
        refusals: what made it go elsewhere.
    """

    def __init__(
        self,
        clients: Clients,
        choose: Choose,
        *,
        tenant: str,
        task_id: str = "",
        request: pb.SendMessageRequest | None = None,
        hops: int = 0,
        silence: float | None = None,
        after: int | None = None,
    ) -> None:
        self.task_id = task_id
        self.tenant = tenant
        self.first: pb.Task | None = None
        self.began_at = after or 0
        self.events: list[pb.StreamResponse] = []
        self.connections: list[Replica] = []
        self.refusals: list[Status] = []
        self._clients = clients
        self._choose = choose
        self._request = request
        self._hops = hops
        self._silence = silence
        self._sequence = after
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._state = 0

    @property
    def sequence(self) -> int:
        """Of the event it saw last."""
        return self._sequence or 0

    @property
    def state(self) -> str:
        """The task's state as far as it knows."""
        return "" if not self._state else state_name(self._state)

    @property
    def knows(self) -> dict[str, str]:
        """The text of each artifact, put together from what it was told."""
        first = [] if self.first is None else [pb.StreamResponse(task=self.first)]
        return fold([*first, *self.events])[1]

    @property
    def has_ended(self) -> bool:
        return self._state in TERMINAL

    async def saw(self, sequence: int) -> None:
        """Wait until it has seen this event."""
        assert self._running is not None, "start the follower first"
        async with asyncio.timeout(PATIENCE):
            while self.sequence < sequence:
                if self._running.done():
                    self._running.result()
                    raise AssertionError(f"task {self.task_id} ended with event {self.sequence}")
                self._changed.clear()
                await self._changed.wait()

    async def more(self, count: int) -> None:
        """Wait until it has seen so many more events than now."""
        await self.saw(self.sequence + count)

    def start(self) -> Self:
        """Begin to follow; `ended` waits for the end."""
        self._running = asyncio.create_task(self._run(), name="follower")
        self._running.add_done_callback(lambda _: self._changed.set())
        return self

    async def ended(self) -> Self:
        """Wait until it has seen the end of the task."""
        assert self._running is not None, "start the follower first"
        await self._running
        return self

    def stop(self) -> None:
        """Follow no more."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        async with asyncio.timeout(LONG):
            while not self.has_ended:
                try:
                    await self._connect(self._choose())
                except grpc.aio.AioRpcError as error:
                    if error.code() not in PASSING:
                        raise
                    self.refusals.append(status_of(error))
                    await pause_after(self.refusals[-1])

    async def _connect(self, replica: Replica) -> None:
        self.connections.append(replica)
        call = self._call(self._clients.at(replica))
        is_first, taken = True, 0
        try:
            while not (self._hops and taken >= self._hops):
                try:
                    async with asyncio.timeout(self._silence):
                        event = await call.read()
                except TimeoutError:
                    return
                if event is grpc.aio.EOF:
                    return
                self._take(event, is_first=is_first)
                taken += not is_first
                is_first = False
        finally:
            call.cancel()

    def _call(self, client: Client) -> Any:
        if not self.task_id:
            assert self._request is not None
            mark = ((RETRY_MARK, "1"),) if self.refusals else ()
            return client.call(
                "SendStreamingMessage", self._request, metadata=(*SEQUENCED, *mark), timeout=LONG
            )
        metadata = list(SEQUENCED)
        if self._sequence is not None:
            metadata.append((LAST_SEQUENCE, str(self._sequence)))
        request = pb.SubscribeToTaskRequest(id=self.task_id, tenant=self.tenant)
        return client.call("SubscribeToTask", request, metadata=metadata, timeout=LONG)

    def _take(self, event: pb.StreamResponse, *, is_first: bool) -> None:
        kind = event.WhichOneof("payload")
        assert kind != "message", event
        # What comes before the first event has no number.
        sequence = 0 if is_first and self._sequence == 0 else sequence_of(event)
        where = f"task {self.task_id}, {self.connections[-1]!r}, after event {self.sequence}"
        if is_first:
            # The Task as it is: no event, but what the next ones come after.
            assert kind == "task", f"{where}: a stream began with {kind} {sequence}"
            if self._sequence is not None:
                assert sequence == self._sequence, f"{where}: the stream resumed at {sequence}"
                assert not event.task.artifacts, f"{where}: a resumed stream repeats artifacts"
                return
            self.first, self.began_at = event.task, sequence
            self.task_id = event.task.id
            self._clients.told[self.task_id] = self.tenant
        else:
            assert sequence == self.sequence + 1, f"{where}: came {kind} {sequence}"
            self.events.append(event)
        if kind == "task":
            self._state = event.task.status.state
        elif kind == "status_update":
            self._state = event.status_update.status.state
        self._sequence = sequence
        self._changed.set()


async def answered(call: Awaitable[T]) -> T | Status:
    """What a call was answered with, or its error."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return status_of(error)


async def pause_after(refusal: Status) -> None:
    """What a good client waits before the next try; a server that says how long is believed."""
    await asyncio.sleep((refusal.retry_after or 0.05) * random.uniform(0.5, 1.0))


def one_of(replicas: Callable[[], Sequence[Replica]]) -> Choose:
    """Chooses at random among those that there are then."""
    return lambda: random.choice(replicas())


def in_turn(replicas: Sequence[Replica], *, start: int = 0) -> Choose:
    """One after the other, dead or alive."""
    count = start - 1

    def choose() -> Replica:
        nonlocal count
        count += 1
        return replicas[count % len(replicas)]

    return choose


def without_number(event: pb.StreamResponse) -> pb.StreamResponse:
    """The event without its sequence number."""
    found = pb.StreamResponse()
    found.CopyFrom(event)
    kind = found.WhichOneof("payload")
    assert kind is not None
    metadata = getattr(found, kind).metadata
    metadata.fields.pop(SEQUENCE_EXTENSION, None)
    return found
