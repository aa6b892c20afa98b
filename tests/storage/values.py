"""Operations, events and commits for the tests of the storage, with as little as they need."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from a2a_grpc import pb
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    Commit,
    Operation,
    Outcome,
    OutcomeKind,
    Scope,
    Turn,
)
from a2a_grpc.task import LogEntry, event_entry, message_entry

SUBMITTED = pb.TaskState.TASK_STATE_SUBMITTED
WORKING = pb.TaskState.TASK_STATE_WORKING
INPUT_REQUIRED = pb.TaskState.TASK_STATE_INPUT_REQUIRED
COMPLETED = pb.TaskState.TASK_STATE_COMPLETED
CANCELED = pb.TaskState.TASK_STATE_CANCELED

ALICE = Scope("tenant", "alice")
BOB = Scope("tenant", "bob")

SECOND = 10**9


def new_id() -> str:
    return str(uuid.uuid4())


def a_message(text: str = "hello", message_id: str = "") -> pb.Message:
    return pb.Message(
        message_id=message_id or new_id(), role=pb.Role.ROLE_USER, parts=[pb.Part(text=text)]
    )


def an_operation(
    *, task_id: str = "", scope: Scope = ALICE, text: str = "hello", **fields: Any
) -> Operation:
    """For a new task, or a message to the task `task_id`."""
    return Operation(
        id=new_id(),
        task_id=task_id or new_id(),
        context_id=fields.pop("context_id", "context"),
        request=pb.SendMessageRequest(message=a_message(text)),
        scope=scope,
        creates_task=not task_id,
        **fields,
    )


def a_task(task_id: str, state: pb.TaskState = WORKING, *, at: int = 1, **fields: Any) -> pb.Task:
    """A Task with its status at a time in nanoseconds."""
    task = pb.Task(id=task_id, context_id=fields.pop("context_id", "context"), **fields)
    task.status.state = state
    task.status.timestamp.FromNanoseconds(at)
    return task


def created(task_id: str, **fields: Any) -> pb.StreamResponse:
    return pb.StreamResponse(task=a_task(task_id, **fields))


def status(state: pb.TaskState, text: str = "", *, at: int = 2) -> pb.StreamResponse:
    update = pb.TaskStatusUpdateEvent()
    update.status.state = state
    update.status.timestamp.FromNanoseconds(at)
    if text:
        update.status.message.message_id = text
        update.status.message.parts.add().text = text
    return pb.StreamResponse(status_update=update)


def chunk(text: str, artifact_id: str = "artifact", *, append: bool = True) -> pb.StreamResponse:
    artifact = pb.Artifact(artifact_id=artifact_id, parts=[pb.Part(text=text)])
    return pb.StreamResponse(
        artifact_update=pb.TaskArtifactUpdateEvent(artifact=artifact, append=append)
    )


def entries(
    values: Sequence[pb.StreamResponse | pb.Message], *, version: int = 0, sequence: int = 0
) -> list[LogEntry]:
    """The log entries for events and messages that follow a version and a sequence number."""
    made = []
    for value in values:
        version += 1
        if isinstance(value, pb.Message):
            made.append(message_entry(value, version=version, sequence=sequence))
        else:
            sequence += 1
            made.append(event_entry(value, version=version, sequence=sequence))
    return made


def a_commit(
    task_id: str,
    *values: pb.StreamResponse | pb.Message,
    version: int = 0,
    sequence: int | None = None,
    state: pb.TaskState = WORKING,
    at: int = 1,
    scope: Scope = ALICE,
    context_id: str = "context",
    **fields: Any,
) -> Commit:
    """A commit of events and messages after a version; without `sequence` all were events."""
    after = version if sequence is None else sequence
    return Commit(
        task_id=task_id,
        expected_version=version,
        entries=entries(values, version=version, sequence=after),
        state=state,
        status_at=at,
        scope=scope,
        context_id=context_id,
        **fields,
    )


def done(operation: Operation, version: int) -> tuple[tuple[str, Outcome]]:
    """`Commit.finished` for an operation that came to the task at a version."""
    return ((operation.id, Outcome(OutcomeKind.TASK, version)),)


async def begin(storage: AnyStorage, operation: Operation) -> Turn:
    """Admit an operation and start its turn."""
    await storage.admit(operation)
    return await start(storage, operation.task_id)


async def start(storage: AnyStorage, task_id: str) -> Turn:
    """Start the turn of a task that has something to do."""
    turn = await storage.start_turn(task_id)
    assert isinstance(turn, Turn)
    return turn


async def store_task(
    storage: AnyStorage,
    state: pb.TaskState = WORKING,
    *,
    task_id: str = "",
    at: int = 1,
    scope: Scope = ALICE,
    context_id: str = "context",
    **fields: Any,
) -> str:
    """Create a task outside any turn; its id."""
    task_id = task_id or new_id()
    event = created(task_id, state=state, at=at, context_id=context_id, **fields)
    await storage.commit(
        a_commit(task_id, event, state=state, at=at, scope=scope, context_id=context_id)
    )
    return task_id


async def run_to_the_end(storage: AnyStorage, operation: Operation | None = None) -> Operation:
    """Admit, start, and finish in one commit of three events, as an agent that echoes does."""
    operation = operation or an_operation(created_at=time.time())
    turn = await begin(storage, operation)
    events = (
        created(operation.task_id, history=[operation.request.message]),
        chunk("echo", append=False),
        status(COMPLETED),
    )
    await storage.commit(
        a_commit(
            operation.task_id,
            *events,
            state=COMPLETED,
            at=2,
            scope=operation.scope,
            fence=turn.fence,
            finished=done(operation, 3),
            ends_turn=True,
        )
    )
    return operation
