"""Calls with one answer, tried again where that is safe."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message

from a2a_grpc import pb
from a2a_grpc.client.call import ClientCall
from a2a_grpc.client.connection import Connection
from a2a_grpc.client.errors import is_worth_repeating
from a2a_grpc.client.repetition import Deduplication, Repetition
from a2a_grpc.client.retry import RetryPolicy, Tries
from a2a_grpc.errors import A2AError, TaskNotCancelableError


class UnaryCalls:
    """Makes the calls of one client."""

    def __init__(
        self, connection: Connection, policy: RetryPolicy, deduplication: Deduplication
    ) -> None:
        self._connection = connection
        self._policy = policy
        self._deduplication = deduplication

    async def make(self, call: ClientCall) -> Message:
        """The answer, after as many tries as it takes and the policy allows; raises A2AError."""
        if call.method == "SendMessage":
            return await self._send(call)
        return await self._repeat(call)

    async def _send(self, call: ClientCall) -> Message:
        tries = Tries(self._policy, call.timeout, call.method, self._connection.sleep)
        repetition = Repetition(self._deduplication, call.request.message.message_id)
        while True:
            try:
                return await self._connection.unary(call, tries.remaining(), repetition.mark)
            except grpc.aio.AioRpcError as failure:
                error = self._connection.error_of(failure, call.method)
                arrived = self._connection.may_have_arrived(failure)
            if not is_worth_repeating(error):
                raise error
            await repetition.prepare(error, tries, arrived=arrived)

    async def _repeat(self, call: ClientCall) -> Message:
        """For everything that may be done twice."""
        tries = Tries(self._policy, call.timeout, call.method, self._connection.sleep)
        while True:
            try:
                return await self._connection.unary(call, tries.remaining())
            except grpc.aio.AioRpcError as failure:
                error = self._connection.error_of(failure, call.method)
            if isinstance(error, TaskNotCancelableError) and tries.failures:
                return await self._canceled_before(call, error, tries)
            if not is_worth_repeating(error):
                raise error
            await tries.pause(error)

    async def _canceled_before(self, call: ClientCall, error: A2AError, tries: Tries) -> Message:
        """The CANCELED task, if an earlier try of this call may have canceled it."""
        request = pb.GetTaskRequest(tenant=call.request.tenant, id=call.request.id)
        read = ClientCall("GetTask", request, call.metadata, tries.remaining())
        task: Any = await self._repeat(read)
        if task.status.state != pb.TaskState.TASK_STATE_CANCELED:
            raise error
        return task  # type: ignore[no-any-return]
