"""The events of a task over as many connections as it takes, each once and in order.

The server numbers its events (the sequence extension). When the connection breaks, the next one
goes on after the last number seen (SubscribeToTask with `last-event-id`). Nothing is read ahead:
who reads slowly is slowed down by HTTP/2's flow control, and buffers nothing here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import grpc

from a2a_grpc import pb
from a2a_grpc.client.call import ClientCall
from a2a_grpc.client.connection import Connection, is_cancelled
from a2a_grpc.client.errors import (
    ClientClosedError,
    StreamInterruptedError,
    is_connection_loss,
    is_worth_repeating,
)
from a2a_grpc.client.repetition import Deduplication, Repetition
from a2a_grpc.client.retry import RetryPolicy, Tries
from a2a_grpc.errors import A2AError
from a2a_grpc.extensions import LAST_SEQUENCE, SEQUENCE_EXTENSION
from a2a_grpc.task import INTERRUPTED_STATES, TERMINAL_STATES, trim_history


class TaskEvents:
    """One logical stream: an async iterator of StreamResponses without their sequence numbers.

    `sequence`, `is_reset`, `task_id` and `reconnects` are as EventStream describes them.

    Args:
        call: SendStreamingMessage or SubscribeToTask.
        last_sequence: the event after which a subscription begins; None for the task as it is.
    """

    _rpc: Any = None

    def __init__(
        self,
        call: ClientCall,
        connection: Connection,
        policy: RetryPolicy,
        deduplication: Deduplication,
        *,
        last_sequence: int | None = None,
    ) -> None:
        self._call = call
        self._connection = connection
        self._policy = policy
        self._tries = Tries(policy, call.timeout, call.method, connection.sleep)
        self._clock = asyncio.get_running_loop().time
        self._repetition: Repetition | None = None
        self._names_task = False  # a message to a task that exists
        if call.method == "SendStreamingMessage":
            message = call.request.message
            self._repetition = Repetition(deduplication, message.message_id)
            self._names_task = bool(message.task_id)
        self._opened = 0.0
        self._last_sequence = last_sequence  # None: nothing to go on from
        self._yielded = 0
        self._resumed = False  # this connection goes on after `_last_sequence`
        self._is_first = True  # what this connection brings next
        self._broken = False
        self._given_up = False  # its reader was cancelled while it waited
        self._reading = False
        self._at_end = False  # what was yielded last is where the stream may end
        self._unsure = False  # see `_note_state`
        self._over = False
        self.sequence = 0
        self.is_reset = False
        self.task_id: str = "" if self._repetition else call.request.id
        self.reconnects = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.StreamResponse:
        if self._reading:
            raise RuntimeError("another task is reading this stream; one at a time can")
        self._reading = True
        try:
            return await self._next()
        finally:
            self._reading = False

    async def _next(self) -> pb.StreamResponse:
        while not self._over:
            try:
                event = await self._read()
            except asyncio.CancelledError:
                if self._repetition is not None and self._rpc is not None:
                    self._repetition.may_have_arrived = True
                self._hang_up()
                if is_cancelled():
                    # Who gave up waiting may ask again: the stream is then taken up where it was.
                    self._broken = self._given_up = True
                    raise
                if not self._over:
                    self._over = True
                    raise ClientClosedError() from None
            except BaseException:
                self.close()
                raise
            else:
                if event is grpc.aio.EOF:
                    break
                if event is not None and self._took(event):
                    return event  # type: ignore[no-any-return]
        self.close()
        raise StopAsyncIteration

    async def _read(self) -> Any:
        """What comes next; None if it is worth another look."""
        try:
            if self._rpc is None:
                if self._given_up:
                    await self._after_giving_up()
                    return None
                self._rpc = await self._open()
                if self._over:
                    return None  # closed by somebody else meanwhile
            return self._connection.readable(await self._rpc.read(), self._call.method)
        except grpc.aio.AioRpcError as failure:
            self._hang_up()
            await self._recover(failure)
            return None

    def __del__(self) -> None:
        # Of a stream that was dropped, as by `break`: gRPC keeps calls that nobody reads.
        self._hang_up()

    def close(self) -> None:
        """End the call; the task goes on."""
        self._over = True
        self._hang_up()

    def _hang_up(self) -> None:
        rpc, self._rpc = self._rpc, None
        if rpc is not None:
            rpc.cancel()

    async def _open(self) -> Any:
        call = self._call
        remaining = self._tries.remaining()
        self._is_first = True
        self._opened = self._clock()
        if self._last_sequence is not None and not self._unsure:
            self._resumed = True
            request = pb.SubscribeToTaskRequest(tenant=call.request.tenant, id=self.task_id)
            after = ((LAST_SEQUENCE, str(self._last_sequence)),)
            return await self._connection.stream("SubscribeToTask", request, call, remaining, after)
        mark = self._repetition.mark if self._repetition else ()
        return await self._connection.stream(call.method, call.request, call, remaining, mark)

    # What comes.

    def _took(self, event: pb.StreamResponse) -> bool:
        """Whether the event is one to yield; keeps what the next connection has to know."""
        kind = event.WhichOneof("payload")
        if kind is None:
            return False  # of a later version of the protocol
        payload = getattr(event, kind)
        number, reset = _take_stamp(payload)
        reset = reset and kind == "task"
        is_first, self._is_first = self._is_first, False
        if is_first and self._broken:
            self._broken = False
            self.reconnects += 1
        if is_first and self._resumed and not reset:
            if kind != "task" or number != self._last_sequence:
                self.close()
                raise self._interrupted("the server does not go on after a sequence number")
            return False  # the task without what we have of it
        if is_first and self._unsure:
            if number == self._last_sequence:
                return False
            reset = True
        known = None if is_first or kind == "message" else self._last_sequence
        if known is not None and number != known + 1 and not reset:
            self.close()
            raise self._interrupted(f"event {number} came in place of the next one")
        self._yielded += 1
        self._unsure = False
        self._tries.progress()
        self.is_reset = reset
        self.sequence = number
        if number:
            self._last_sequence = number
        self.task_id = self.task_id or (payload.id if kind == "task" else payload.task_id)
        if kind == "message":
            self._at_end = True
            return True
        if kind != "artifact_update":
            self._note_state(payload.status.state, is_snapshot=kind == "task" and is_first)
        if reset and self._repetition is not None:
            configuration = self._call.request.configuration
            if configuration.HasField("history_length"):
                trim_history(event.task, configuration.history_length)
        if self._resumed and self._at_end:
            self.close()
        return True

    def _note_state(self, state: int, *, is_snapshot: bool) -> None:
        self._at_end = state in TERMINAL_STATES
        if self._repetition is None or state not in INTERRUPTED_STATES:
            return
        if is_snapshot and self._names_task and not self._resumed:
            # The task as the message found it, which waits for this very message. Or, if the
            # message was sent again, as the message left it: only the server can tell.
            self._unsure = self._repetition.may_have_arrived
        else:
            self._at_end = True

    # What goes wrong.

    async def _recover(self, failure: grpc.aio.AioRpcError) -> None:
        """Wait until the next connection may be tried; raises what ends the stream."""
        error = self._connection.error_of(failure, self._call.method)
        self._broken = True
        if not self._is_first and self._clock() - self._opened >= self._policy.max_backoff:
            self._tries.progress()  # it held for a while: an idle stream that a proxy closed
        if self._yielded == 0 or self._unsure:
            await self._before_first_event(failure, error)
        elif not (is_connection_loss(failure) or (self._resumed and is_worth_repeating(error))):
            raise error
        elif self._at_end:
            self._over = True
        elif self._last_sequence is None:
            raise self._interrupted("the server does not number its events") from error
        else:
            delay = self._tries.delay(error, resumes=True)
            if delay is None:
                raise self._interrupted(f"could not be taken up again: {error.message}") from error
            await self._tries.sleep(delay)

    async def _after_giving_up(self) -> None:
        """See that the next connection is allowed, after the reader dropped the last one."""
        if self._yielded == 0 or self._unsure:
            if self._repetition is not None:
                await self._repetition.permit(self._tries)
        elif self._at_end:
            self._over = True
        elif self._last_sequence is None:
            raise self._interrupted("the server does not number its events")
        self._given_up = False

    async def _before_first_event(self, failure: grpc.aio.AioRpcError, error: A2AError) -> None:
        if not is_worth_repeating(error):
            raise error
        if self._repetition is None:
            await self._tries.pause(error)
            return
        arrived = self._connection.may_have_arrived(failure)
        await self._repetition.prepare(error, self._tries, arrived=arrived)

    def _interrupted(self, why: str) -> StreamInterruptedError:
        where = self._last_sequence or 0
        remedy = (
            f"go on with subscribe({self.task_id!r}, last_sequence={where})"
            if where
            else f"read the task with get_task({self.task_id!r}), or follow it from now on with "
            f"subscribe({self.task_id!r})"
        )
        return StreamInterruptedError(
            f"the stream of task {self.task_id!r} broke and {why}; the task may go on: {remedy} "
            "(RetryPolicy.stream_patience is how long a stream tries by itself)",
            task_id=self.task_id,
            sequence=where,
            why=why,
        )


def _take_stamp(payload: Any) -> tuple[int, bool]:
    """The event's sequence number, 0 if it has none, and whether it is a reset; removes both."""
    if not payload.HasField("metadata"):
        return 0, False
    fields = payload.metadata.fields
    if SEQUENCE_EXTENSION not in fields:
        return 0, False
    stamp = fields[SEQUENCE_EXTENSION].struct_value.fields
    number = stamp["sequence"].number_value
    reset = stamp["reset"].bool_value
    del fields[SEQUENCE_EXTENSION]
    if not fields:
        payload.ClearField("metadata")
    return (int(number) if 0 < number < 2**53 else 0), reset
