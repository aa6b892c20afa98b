"""The canonical form of an agent: wire events in, nothing hidden."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

from a2a_grpc import pb
from a2a_grpc.agent.request_context import RequestContext

Event = pb.Message | pb.Task | pb.TaskStatusUpdateEvent | pb.TaskArtifactUpdateEvent
"""What an agent publishes."""

OnInterruption = Literal["fail", "restart"]


class EventQueue(Protocol):
    """Where an agent publishes: the engine's queue of one turn, or one of a test's own."""

    async def enqueue_event(self, event: Event) -> None:
        """Publish an event; it may wait until what came before is stored.

        Raises InvalidAgentResponseError if the protocol does not allow the event here; the turn
        will end with the task FAILED, even if the agent ignores the error.
        """
        ...

    async def enqueue_events(self, *events: Event) -> None:
        """Publish several events, which are stored in one commit; see `enqueue_event`."""
        for event in events:
            await self.enqueue_event(event)

    async def flush(self) -> None:
        """Wait until what was published so far is stored, and others can see it."""

    def is_closed(self) -> bool:
        """Whether the turn is over; what is published then is dropped."""
        ...


class AgentExecutor:
    """An agent: a subclass defines `execute`, and `cancel` if it has something to say then.

    A subclass that defines `async run(context)` in place of `execute` has the short form
    (`agent.function`).

    `on_interruption` says what becomes of a task whose process died: "fail" makes it FAILED,
    "restart" runs `execute()` again, with `context.attempt` above 1.
    """

    on_interruption: ClassVar[OnInterruption] = "fail"

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on one message.

        Publish either one Message, or a Task (the first time) followed by status and artifact
        updates. Return when the turn is over, having published a terminal state, or when the agent
        needs something, having published INPUT_REQUIRED or AUTH_REQUIRED; an agent that gets
        credentials out of band may stay in AUTH_REQUIRED and go on later (specification 7.6).
        Never runs twice at once for one task. Anything raised ends the task FAILED; an A2AError
        about the request, such as InvalidParamsError, also reaches the caller.
        """
        raise TypeError(f"{type(self).__name__} defines neither execute nor run")

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Called once when a running task is to be canceled; then `execute()` is cancelled.

        It may publish updates and a terminal state. If it publishes none in time, the engine writes
        CANCELED, so doing nothing, as here, is a valid implementation.
        """
