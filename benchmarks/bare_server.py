"""The limit: a grpc.aio server that answers with bytes made beforehand and does no task work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

import grpc

from a2a_grpc import pb
from benchmarks.agent import (
    ARTIFACT_ID,
    Gates,
    Plan,
    chunk_event,
    chunk_text,
    first_task,
    last_status,
    user_message,
)
from benchmarks.serving import ServerOptions, serve

PAGE_SIZE = 50
_TASK_ID, _CONTEXT_ID = "0" * 36, "1" * 36

Context = grpc.aio.ServicerContext[bytes, bytes]


class BareServicer:
    """What a2a-grpc would answer, without finding out."""

    def __init__(self, plan: Plan, gates: Gates) -> None:
        self._gates = gates
        self._pace = plan.pace
        message = user_message(pb, 0)
        message.task_id, message.context_id = _TASK_ID, _CONTEXT_ID
        task = first_task(pb, _TASK_ID, _CONTEXT_ID, message)
        events = [pb.StreamResponse(task=task)]
        events += (
            pb.StreamResponse(
                artifact_update=chunk_event(pb, _TASK_ID, _CONTEXT_ID, index, plan.chunk_bytes)
            )
            for index in range(plan.chunks)
        )
        events.append(pb.StreamResponse(status_update=last_status(pb, _TASK_ID, _CONTEXT_ID)))
        stream = [event.SerializeToString() for event in events]
        self._parts: list[list[bytes]] = []
        start = 0
        for end in accumulate(plan.segments):
            self._parts.append(stream[start : end + 1])
            start = end + 1
        self._parts[-1].append(stream[-1])

        task.status.CopyFrom(events[-1].status_update.status)
        listed = pb.Task()
        listed.CopyFrom(task)
        artifact = task.artifacts.add(artifact_id=ARTIFACT_ID)
        for index in range(plan.chunks):
            artifact.parts.add().text = chunk_text(index, plan.chunk_bytes)
        self._task: bytes = task.SerializeToString()
        self._answer: bytes = pb.SendMessageResponse(task=task).SerializeToString()
        self._page: bytes = pb.ListTasksResponse(
            tasks=[listed] * PAGE_SIZE,
            next_page_token="0" * 96,
            page_size=PAGE_SIZE,
            total_size=5_000,
        ).SerializeToString()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to register."""

        async def send(_: bytes, context: Context) -> bytes:
            return self._answer

        async def get(_: bytes, context: Context) -> bytes:
            return self._task

        async def page(_: bytes, context: Context) -> bytes:
            return self._page

        async def stream(_: bytes, context: Context) -> None:
            opened = self._gates.opened
            for number, part in enumerate(self._parts):
                if number:
                    await self._gates.passed(opened + number)
                for event in part:
                    await context.write(event)
                    if self._pace:
                        await asyncio.sleep(self._pace)

        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "SendMessage": grpc.unary_unary_rpc_method_handler(send),
            "GetTask": grpc.unary_unary_rpc_method_handler(get),
            "ListTasks": grpc.unary_unary_rpc_method_handler(page),
            "SendStreamingMessage": grpc.unary_stream_rpc_method_handler(stream),
            "SubscribeToTask": grpc.unary_stream_rpc_method_handler(stream),
        }
        return grpc.method_handlers_generic_handler("lf.a2a.v1.A2AService", methods)


@asynccontextmanager
async def open_server(options: ServerOptions, gates: Gates) -> AsyncIterator[int]:
    """Start the server."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((BareServicer(options.plan, gates).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


if __name__ == "__main__":
    serve(open_server, "grpcio", "protobuf")
