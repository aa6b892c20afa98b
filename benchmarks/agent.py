"""The agent that every server runs, and what it publishes.

Imported by processes with different A2A classes, so those are passed in.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
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
        stamped: each chunk says which process published it, and when; see `stamp_of`.
        endless: the agent goes on publishing chunks, at its pace, until it is canceled.
        noted: the agent tells the runner when it begins, is canceled and is cut off.
    """

    segments: tuple[int, ...] = (1,)
    chunk_bytes: int = 64
    pace: float | None = None
    stamped: bool = False
    endless: bool = False
    noted: bool = False

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


def chunk_text(index: int, size: int, stamp: str = "") -> str:
    """The text of a chunk, which begins with its number."""
    return f"{index:08d}{stamp}".ljust(size, ".")


def chunk_number(text: str) -> int:
    """The number of the chunk with this text."""
    return int(text[:8])


def stamp_now() -> str:
    """What a stamped chunk says after its number: the process, and nanoseconds.

    They are those of `time.monotonic_ns`, a clock that all processes of the machine share.
    """
    return f" {os.getpid()} {time.monotonic_ns()} "


def stamp_of(text: str) -> tuple[int, int]:
    """The process that published the chunk with this text, and when."""
    _, pid, at, _ = text.split(" ", 3)
    return int(pid), int(at)


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


def chunk_event(
    pb: ModuleType, task_id: str, context_id: str, index: int, chunk_bytes: int, stamp: str = ""
) -> Any:
    """The event of one chunk."""
    return pb.TaskArtifactUpdateEvent(
        task_id=task_id,
        context_id=context_id,
        artifact=pb.Artifact(
            artifact_id=ARTIFACT_ID, parts=[pb.Part(text=chunk_text(index, chunk_bytes, stamp))]
        ),
        append=index > 0,
    )


def last_status(pb: ModuleType, task_id: str, context_id: str, *, canceled: bool = False) -> Any:
    """The last event."""
    states = pb.TaskState
    state = states.TASK_STATE_CANCELED if canceled else states.TASK_STATE_COMPLETED
    event = pb.TaskStatusUpdateEvent(
        task_id=task_id, context_id=context_id, status=pb.TaskStatus(state=state)
    )
    event.status.timestamp.GetCurrentTime()
    return event


def ignore_note(what: str, task_id: str) -> None:
    """An `OnNote` that does nothing."""


OnNote = Callable[[str, str], None]
"""Tells the runner what happened to a task: "began", "canceled" or "cut off"."""


class BenchmarkAgent:
    """An AgentExecutor, the same for a2a-grpc and a2a-sdk.

    Args:
        pb: the module with the A2A classes of this process.
        plan: what to do for each message.
        gates: what to wait for between segments.
        note: tells the runner, if the plan says so.
    """

    def __init__(
        self, pb: ModuleType, plan: Plan, gates: Gates, note: OnNote = ignore_note
    ) -> None:
        self._pb = pb
        self._plan = plan
        self._gates = gates
        self._note = note if plan.noted else ignore_note

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Publish what the plan says."""
        self._note("began", context.task_id)
        try:
            await self._work(context, event_queue)
        except asyncio.CancelledError:
            self._note("cut off", context.task_id)
            raise

    async def _work(self, context: Any, event_queue: Any) -> None:
        pb, plan, gates = self._pb, self._plan, self._gates
        task_id, context_id = context.task_id, context.context_id
        opened = gates.opened
        await event_queue.enqueue_event(first_task(pb, task_id, context_id, context.message))

        async def publish(index: int) -> None:
            stamp = stamp_now() if plan.stamped else ""
            await event_queue.enqueue_event(
                chunk_event(pb, task_id, context_id, index, plan.chunk_bytes, stamp)
            )
            if plan.pace is not None:
                await asyncio.sleep(plan.pace)

        published = 0
        for number, count in enumerate(plan.segments):
            if number:
                await gates.passed(opened + number)
            for index in range(published, published + count):
                await publish(index)
            published += count
        while plan.endless:
            await publish(published)
            published += 1
        await event_queue.enqueue_event(last_status(pb, task_id, context_id))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Say that the task is canceled."""
        self._note("canceled", context.task_id)
        await event_queue.enqueue_event(
            last_status(self._pb, context.task_id, context.context_id, canceled=True)
        )


class RestartedAgent(BenchmarkAgent):
    """One whose tasks begin again when their process died."""

    on_interruption = "restart"
