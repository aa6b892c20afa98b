"""The comfortable form of an agent: one method that gets a `TaskContext`."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import ClassVar

from a2a_grpc import pb
from a2a_grpc.agent.code import check_parameter, mentions
from a2a_grpc.agent.executor import AgentExecutor, EventQueue, OnInterruption
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.agent.spoken import text_part
from a2a_grpc.agent.task_context import LIFECYCLE_METHODS, TaskContext
from a2a_grpc.agent.turn_events import TurnEvents, announced, says

logger = logging.getLogger(__name__)


class Worker(ABC):
    """An agent: a subclass defines `handle`.

    Attributes:
        on_interruption: what becomes of a task whose process died: "fail" makes it FAILED,
            "restart" runs `handle` again, with `ctx.attempt` above 1.
        replies_directly: whether `handle` may end with `reply_directly`, which a Task that callers
            have seen rules out. If so, callers see a new Task only when the agent says something;
            otherwise after 50 ms at the latest. None: found out by whether `reply_directly` occurs
            in a method of the class, or in a function of its module that one calls; where it is
            called from elsewhere, say True.
    """

    on_interruption: ClassVar[OnInterruption] = "fail"
    replies_directly: ClassVar[bool | None] = None

    @abstractmethod
    async def handle(self, ctx: TaskContext) -> None:
        """Work on one message, and end the turn with exactly one lifecycle method of `ctx`.

        Never runs twice at once for one task, but for many tasks at once: what belongs to a task is
        kept in local variables, or by `ctx.update_context`. Anything raised ends the task FAILED;
        its text goes to the log only.
        """

    async def cancel(self, ctx: TaskContext) -> str | None:
        """Called once when a running task is to be canceled; then `handle` is cancelled.

        What it returns is the text of the CANCELED status. It may also send a last artifact or
        status. `ctx` has the task, but no message.
        """
        return None


class WorkerExecutor(AgentExecutor):
    """Runs a Worker as an AgentExecutor.

    Args:
        worker: the worker; one object works on all tasks.

    Raises TypeError for a worker that can't work.
    """

    def __init__(self, worker: Worker) -> None:
        handle = inspect.unwrap(worker.handle)
        if inspect.isgeneratorfunction(handle) or inspect.isasyncgenfunction(handle):
            raise TypeError(
                f"{type(worker).__name__}.handle() is a generator; take out the yield, and stream "
                "with ctx.emit_text_artifact()"
            )
        check_parameter(worker.handle, "TaskContext", "ctx")
        self._worker = worker
        self.name = type(worker).__name__
        self.on_interruption = worker.on_interruption  # type: ignore[misc]  # of this worker
        declared = worker.replies_directly
        self._replies_directly = (
            mentions(type(worker), "reply_directly", below=Worker) if declared is None else declared
        )

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run `handle` for one message."""
        events = TurnEvents(context, event_queue)
        ctx = TaskContext(context, event_queue, events)
        try:
            if events.continues:
                await events.start()
            if events.continues or self._replies_directly:
                result = await self._handled(ctx)
            else:
                async with announced(events, ctx.task_id):
                    result = await self._handled(ctx)
        finally:
            events.over = True  # for what the agent has left behind
        if not (ctx.turn_ended or ctx.is_cancelled):
            returned = "" if result is None else f" {type(result).__name__}, which nobody gets,"
            raise RuntimeError(
                f"{self.name}.handle() returned{returned} without ending the turn: it has to await "
                "one of " + ", ".join(f"{name}()" for name in LIFECYCLE_METHODS)
            )

    def _handled(self, ctx: TaskContext) -> Awaitable[object]:
        running = self._worker.handle(ctx)
        if not inspect.isawaitable(running):
            raise TypeError(
                f"{self.name}.handle() returned a {type(running).__name__}: it must be an `async "
                "def` without a yield"
            )
        return running

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the worker's `cancel`."""
        events = TurnEvents(context, event_queue)
        events.started = events.continues  # callers know that the agent was at work
        ctx = TaskContext(context, event_queue, events)
        try:
            text = await self._worker.cancel(ctx)
            if text is not None and not ctx.turn_ended:
                message = says(text_part(f"{self.name}.cancel", "its result", text))
                await events.publish(events.status(pb.TaskState.TASK_STATE_CANCELED, message))
        finally:
            events.over = True
