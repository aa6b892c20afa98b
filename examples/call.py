"""Sends a message to an agent and prints what the agent does, event by event.

python examples/call.py [--target 127.0.0.1:50051] [--task ID] TEXT...
"""

import argparse
import uuid
from collections.abc import Iterable

import grpc

from a2a_grpc import Message, Part, Role, SendMessageRequest, StreamResponse, TaskState, TaskStatus
from a2a_grpc.pb import A2AServiceStub


def main() -> None:
    parser = argparse.ArgumentParser(description="Send a message to an agent, print its answer.")
    parser.add_argument("--target", default="127.0.0.1:50051", help="host:port of the server")
    parser.add_argument("--task", default="", help="the task that the message continues")
    parser.add_argument("text", nargs="+")
    arguments = parser.parse_args()
    message = Message(
        message_id=str(uuid.uuid4()),
        task_id=arguments.task,
        role=Role.ROLE_USER,
        parts=[Part(text=" ".join(arguments.text))],
    )
    with grpc.insecure_channel(arguments.target) as channel:
        events = A2AServiceStub(channel).SendStreamingMessage(
            SendMessageRequest(message=message), metadata=(("a2a-version", "1.0"),)
        )
        try:
            for event in events:
                print(in_words(event), flush=True)
        except grpc.RpcError as error:
            raise SystemExit(f"{error.code().name}: {error.details()}") from error


def in_words(event: StreamResponse) -> str:
    kind = event.WhichOneof("payload")
    if kind == "task":
        return f"task {event.task.id} {state(event.task.status)}"
    if kind == "status_update":
        return f"status {state(event.status_update.status)}"
    if kind == "artifact_update":
        return f"artifact {texts(event.artifact_update.artifact.parts)}"
    return f"message {texts(event.message.parts)}"


def state(status: TaskStatus) -> str:
    name = TaskState.Name(status.state).removeprefix("TASK_STATE_")
    return f"{name} {texts(status.message.parts)}".rstrip()


def texts(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts)


if __name__ == "__main__":
    main()
