"""An agent served by a2a-sdk's own server; runs where a2a-sdk is installed and this package is not.

Prints its address. What the agent does depends on the first word that it is told.
"""

# mypy: disable-error-code="import-not-found"
# The environment that checks types has no a2a-sdk.

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, a2a_pb2_grpc
from a2a.types import a2a_pb2 as pb


class Words(AgentExecutor):
    def __init__(self) -> None:
        self.go: dict[str, asyncio.Event] = {}

    async def execute(self, context: Any, event_queue: Any) -> None:
        word, _, rest = context.get_user_input().partition(" ")
        ids = {"task_id": context.task_id, "context_id": context.context_id}

        def status(state: Any) -> Any:
            return pb.TaskStatusUpdateEvent(status=pb.TaskStatus(state=state), **ids)

        def piece(text: str, *, append: bool) -> Any:
            artifact = pb.Artifact(artifact_id="a", parts=[pb.Part(text=text)])
            return pb.TaskArtifactUpdateEvent(artifact=artifact, append=append, **ids)

        if word == "reply":
            reply = pb.Message(message_id="m", role=pb.Role.ROLE_AGENT, parts=[pb.Part(text=rest)])
            await event_queue.enqueue_event(reply)
            return
        if context.current_task is None:
            state = pb.TaskState.TASK_STATE_WORKING
            task = pb.Task(
                id=context.task_id,
                context_id=context.context_id,
                status=pb.TaskStatus(state=state),
                history=[context.message],
            )
            await event_queue.enqueue_event(task)
        if word == "ask":
            await event_queue.enqueue_event(status(pb.TaskState.TASK_STATE_INPUT_REQUIRED))
            return
        for number, text in enumerate(rest.split()):
            await event_queue.enqueue_event(piece(text, append=number > 0))
        if word == "wait":
            await asyncio.Event().wait()
        await event_queue.enqueue_event(status(pb.TaskState.TASK_STATE_COMPLETED))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        state = pb.TaskState.TASK_STATE_CANCELED
        await event_queue.enqueue_event(
            pb.TaskStatusUpdateEvent(
                task_id=context.task_id,
                context_id=context.context_id,
                status=pb.TaskStatus(state=state),
            )
        )


async def main() -> None:
    card = AgentCard(
        name="other",
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
    )
    handler = DefaultRequestHandler(
        Words(),
        InMemoryTaskStore(),
        agent_card=card,
        push_config_store=InMemoryPushNotificationConfigStore(),
    )
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
