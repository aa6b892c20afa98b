"""What an agent says in a turn, as the events that the protocol wants, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a_grpc import pb
from a2a_grpc.agent.executor import Event, EventQueue
from a2a_grpc.agent.request_context import RequestContext

PROMPT = 0.05
"""Seconds after which an agent that has said nothing yet gets its Task, so that callers have
something to follow and to cancel."""


class TurnEvents:
    """Publishes a turn's events; the Task comes before the first of them, without being asked for.

    Args:
        context: the turn's request.
        event_queue: where to publish.
    """

    __slots__ = ("_context", "_queue", "continues", "over", "started")

    def __init__(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._context = context
        self._queue = event_queue
        self.continues = context.current_task is not None
        """Whether the task exists from an earlier turn."""
        self.started = False
        """Whether this turn has shown that it works on the task, or has replied without one."""
        self.over = False
        """Whether the agent's method has returned, so that nothing may be said any more."""

    async def start(self) -> None:
        """Show the task as WORKING; only the first call does."""
        if not self.started:
            await self.publish()

    async def publish(self, *events: Event) -> None:
        """Publish events that are stored together, after `start`."""
        if not self.started:
            self.started = True
            events = (self._working(), *events)
        await self._queue.enqueue_events(*events)

    async def reply(self, message: pb.Message) -> None:
        """Publish a Message in place of a Task."""
        self.started = True
        await self._queue.enqueue_event(message)

    def _working(self) -> Event:
        working = pb.TaskState.TASK_STATE_WORKING
        if self.continues:
            return self.status(working)
        return pb.Task(
            id=self._context.task_id,
            context_id=self._context.context_id,
            status=pb.TaskStatus(state=working),
        )

    def status(
        self, state: pb.TaskState.ValueType, message: pb.Message | None = None
    ) -> pb.TaskStatusUpdateEvent:
        """A status update."""
        return pb.TaskStatusUpdateEvent(
            task_id=self._context.task_id,
            context_id=self._context.context_id,
            status=pb.TaskStatus(state=state, message=message),
        )

    def artifact(
        self, artifact: pb.Artifact, *, append: bool = False, last_chunk: bool = False
    ) -> pb.TaskArtifactUpdateEvent:
        """A chunk of an artifact, or all of it."""
        return pb.TaskArtifactUpdateEvent(
            task_id=self._context.task_id,
            context_id=self._context.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last_chunk,
        )


@asynccontextmanager
async def announced(events: TurnEvents, task_id: str) -> AsyncIterator[None]:
    """Within the block: an agent that has said nothing for `PROMPT` gets its Task shown."""
    announcement: asyncio.Task[None] | None = None

    def announce() -> None:
        nonlocal announcement
        if not events.started:
            announcement = asyncio.create_task(events.start(), name=f"announce:{task_id}")

    timer = asyncio.get_running_loop().call_later(PROMPT, announce)
    try:
        yield
    finally:
        timer.cancel()
        if announcement is not None:
            # What it may raise ends the turn anyway: the queue remembers a violation.
            await asyncio.gather(announcement, return_exceptions=True)


def says(*parts: pb.Part) -> pb.Message:
    """A message of the agent; the engine gives it its ids."""
    return pb.Message(role=pb.Role.ROLE_AGENT, parts=parts)
