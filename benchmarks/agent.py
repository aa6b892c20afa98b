"""The agent that every server runs, and what it publishes.

Imported by processes with different A2A classes, so those are passed in.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import ModuleType
from typing import Any

ARTIFACT_ID = "answer"
_ID_LENGTH = 36


@dataclass(frozen=True, slots=True)
class Plan:
    """What the agent does for each message: the Task, chunks of one artifact, COMPLETED.

    Attributes:
        segments: numbers of chunks; before every segment but the first the agent waits for a gate.
        chunk_bytes: bytes of text in a chunk.
        pace: seconds to wait after each chunk; 0 lets the event loop go round, as an agent does
            that awaits each chunk from a model; with None a segment is published without a pause.
    """

    segments: tuple[int, ...] = (1,)
    chunk_bytes: int = 64
    pace: float | None = None

    @property
    def chunks(self) -> int:
        """Chunks of one task."""
        return sum(self.segments)


class Gates:
    """Gates that the load generator opens, one after another."""

    def __init__(self) -> None:
        self.opened = 0
        self._waiting: list[asyncio.Future[None]] = []

    def open_next(self) -> None:
        """Open one more."""
        self.opened += 1
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def passed(self, number: int) -> None:
        """Wait until `number` gates are open."""
        while self.opened < number:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter


def chunk_text(index: int, size: int) -> str:
    """The text of a chunk, which begins with its number."""
    return f"{index:08d}".ljust(size, ".")


def chunk_number(text: str) -> int:
    """The number of the chunk with this text."""
    return int(text[:8])


def user_message(pb: ModuleType, number: int) -> Any:
    """The Message that the load generator sends."""
    return pb.Message(
        message_id=f"{number:0{_ID_LENGTH}d}",
        role=pb.Role.ROLE_USER,
        parts=[pb.Part(text="How are things on the line today?")],
    )


def first_task(pb: ModuleType, task_id: str, context_id: str, message: Any) -> Any:
    """The first event."""
    task = pb.Task(
        id=task_id,
        context_id=context_id,
        status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_WORKING),
        history=[message],
    )
    task.status.timestamp.GetCurrentTime()
    return task


def chunk_event(pb: ModuleType, task_id: str, context_id: str, index: int, chunk_bytes: int) -> Any:
    """The event of one chunk."""
    return pb.TaskArtifactUpdateEvent(
        task_id=task_id,
        context_id=context_id,
        artifact=pb.Artifact(
            artifact_id=ARTIFACT_ID, parts=[pb.Part(text=chunk_text(index, chunk_bytes))]
        ),
        append=index > 0,
    )


def last_status(pb: ModuleType, task_id: str, context_id: str) -> Any:
    """The last event."""
    event = pb.TaskStatusUpdateEvent(
        task_id=task_id,
        context_id=context_id,
        status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_COMPLETED),
    )
    event.status.timestamp.GetCurrentTime()
    return event


class BenchmarkAgent:
    """An AgentExecutor, the same for a2a-grpc and a2a-sdk.

    Args:
        pb: the module with the A2A classes of this process.
        plan: what to do for each message.
        gates: what to wait for between segments.
    """

    def __init__(self, pb: ModuleType, plan: Plan, gates: Gates) -> None:
        self._pb = pb
        self._plan = plan
        self._gates = gates

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Publish what the plan says."""
        pb, plan, gates = self._pb, self._plan, self._gates
        task_id, context_id = context.task_id, context.context_id
        opened = gates.opened
        await event_queue.enqueue_event(first_task(pb, task_id, context_id, context.message))
        published = 0
        for number, count in enumerate(plan.segments):
            if number:
                await gates.passed(opened + number)
            for index in range(published, published + count):
                await event_queue.enqueue_event(
                    chunk_event(pb, task_id, context_id, index, plan.chunk_bytes)
                )
                if plan.pace is not None:
                    await asyncio.sleep(plan.pace)
            published += count
        await event_queue.enqueue_event(last_status(pb, task_id, context_id))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Nothing in the benchmark is canceled."""
