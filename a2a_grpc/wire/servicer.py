"""A2AService on the wire: bytes in, the service called, bytes out.

Requests are parsed and answers serialized here rather than by grpc, so that a request which is no
protobuf gets a proper status, and an event that many follow is serialized once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.errors import A2AError
from a2a_grpc.middleware import Middleware, Streaming, Unary, around_streaming, around_unary
from a2a_grpc.service import A2AService
from a2a_grpc.wire.call import Gate, ServicerContext
from a2a_grpc.wire.status import abort
from a2a_grpc.wire.validation import ValidationLimits, parse, validate

logger = logging.getLogger(__name__)

SERVICE_NAME = "lf.a2a.v1.A2AService"

_TASK, _MESSAGE = b"\x0a", b"\x12"  # field 1 and field 2 of SendMessageResponse


RequestT = TypeVar("RequestT", bound=Message)


class A2AServicer:
    """The eleven RPCs.

    Args:
        service: what answers them.
        gate: what every call has to pass first.
        limits: how large a request's parts may be.
        middleware: what is around every operation.
    """

    def __init__(
        self,
        service: A2AService,
        gate: Gate,
        limits: ValidationLimits,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._service = service
        self._gate = gate
        self._limits = limits
        self._middleware = middleware

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to register with a `grpc.aio` server."""
        service = self._service
        methods = {
            "SendMessage": self._unary(
                "SendMessage", pb.SendMessageRequest, service.send_message, _send_message_response
            ),
            "SendStreamingMessage": self._streaming(
                "SendStreamingMessage", pb.SendMessageRequest, service.send_streaming_message
            ),
            "GetTask": self._unary("GetTask", pb.GetTaskRequest, service.get_task),
            "ListTasks": self._unary("ListTasks", pb.ListTasksRequest, service.list_tasks),
            "CancelTask": self._unary("CancelTask", pb.CancelTaskRequest, service.cancel_task),
            "SubscribeToTask": self._streaming(
                "SubscribeToTask", pb.SubscribeToTaskRequest, service.subscribe_to_task
            ),
            "CreateTaskPushNotificationConfig": self._unary(
                "CreateTaskPushNotificationConfig",
                pb.TaskPushNotificationConfig,
                service.create_push_config,
                also_required=("task_id",),
            ),
            "GetTaskPushNotificationConfig": self._unary(
                "GetTaskPushNotificationConfig",
                pb.GetTaskPushNotificationConfigRequest,
                service.get_push_config,
            ),
            "ListTaskPushNotificationConfigs": self._unary(
                "ListTaskPushNotificationConfigs",
                pb.ListTaskPushNotificationConfigsRequest,
                service.list_push_configs,
            ),
            "GetExtendedAgentCard": self._unary(
                "GetExtendedAgentCard",
                pb.GetExtendedAgentCardRequest,
                service.get_extended_agent_card,
            ),
            "DeleteTaskPushNotificationConfig": self._unary(
                "DeleteTaskPushNotificationConfig",
                pb.DeleteTaskPushNotificationConfigRequest,
                service.delete_push_config,
                _empty,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def _enter(
        self,
        method: str,
        data: bytes,
        request_type: type[RequestT],
        also_required: tuple[str, ...],
        context: ServicerContext,
    ) -> tuple[RequestT, ServerCallContext]:
        call = await self._gate.enter(method, context)
        request = parse(request_type, data)
        validate(request, self._limits, also_required=also_required)
        call.tenant = request.tenant  # type: ignore[attr-defined]  # all requests have one
        await self._gate.negotiate(call, context)
        return request, call

    def _unary(
        self,
        method: str,
        request_type: type[RequestT],
        operation: Unary,
        serialize: Callable[[Any], bytes] | None = None,
        *,
        also_required: tuple[str, ...] = (),
    ) -> grpc.RpcMethodHandler[Any, Any]:
        operation = around_unary(operation, self._middleware)

        async def handle(data: bytes, context: ServicerContext) -> bytes:
            try:
                with self._gate.passing():
                    request, call = await self._enter(
                        method, data, request_type, also_required, context
                    )
                    result = await operation(request, call)
                    return result.SerializeToString() if serialize is None else serialize(result)
            except (Exception, asyncio.CancelledError) as error:
                await self._fail(method, error, context)
                raise AssertionError("unreachable") from error

        return grpc.unary_unary_rpc_method_handler(handle)

    def _streaming(
        self, method: str, request_type: type[RequestT], operation: Streaming
    ) -> grpc.RpcMethodHandler[Any, Any]:
        operation = around_streaming(operation, self._middleware)

        async def handle(data: bytes, context: ServicerContext) -> None:
            try:
                with self._gate.passing():
                    request, call = await self._enter(method, data, request_type, (), context)
                    async with aclosing(operation(request, call)) as events:  # type: ignore[type-var]
                        async for event in events:
                            await context.write(event)
            except (Exception, asyncio.CancelledError) as error:
                await self._fail(method, error, context)

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _fail(
        self, method: str, error: Exception | asyncio.CancelledError, context: ServicerContext
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            if not self._gate.is_closed:
                raise error
            # Not the client's doing: the server has no time for the call any more.
            error = self._gate.closing_error()
        elif not isinstance(error, A2AError):
            logger.error("%s failed", method, exc_info=error)
        await abort(context, error)


def _send_message_response(result: pb.Task | pb.Message) -> bytes:
    # SendMessageResponse with its one field set, without a copy of the Task.
    data = result.SerializeToString()
    length = len(data)
    prefix = bytearray(_TASK if isinstance(result, pb.Task) else _MESSAGE)
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + data


def _empty(_: None) -> bytes:
    return b""
