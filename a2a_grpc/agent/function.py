"""The short form of an agent: a function, a generator, or an object with `run`.

Whatever a user hands to the server becomes an `AgentExecutor` here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from typing import Any, cast

from a2a_grpc import pb
from a2a_grpc.agent.executor import AgentExecutor, EventQueue, OnInterruption
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.agent.values import to_part

RETURNED_ARTIFACT = "final-answer"
STREAMED_ARTIFACT = "answer"


class FunctionExecutor(AgentExecutor):
    """Runs `async (context) -> str | dict | Message | Part(s) | None`, or a generator of str.

    What the function returns completes the task, as an artifact; None completes it without one.
    What a generator yields is streamed as one artifact. A Message that the function returns within
    `PROMPT` seconds is the direct reply; a function that takes longer gets its task, so that
    callers have something to follow, and its Message becomes the task's last status message.
    """

    PROMPT = 0.05

    def __init__(
        self, function: Callable[[RequestContext], Any], on_interruption: OnInterruption = "fail"
    ) -> None:
        self._function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.on_interruption = on_interruption  # type: ignore[misc]  # per agent, not per class

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        turn = _Turn(context, event_queue)
        result = self._function(context)
        if isinstance(result, AsyncIterable):
            await turn.stream(result)
        elif inspect.iscoroutine(result):
            await turn.complete(await self._returned(turn, result))
        else:
            raise TypeError(
                f"the agent {self._function!r} must be an async function or an async generator"
            )

    async def _returned(self, turn: _Turn, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if turn.continues:
            await turn.start()
            return await coroutine
        running = asyncio.create_task(coroutine, name=f"agent:{turn.task_id}")
        try:
            await asyncio.wait((running,), timeout=self.PROMPT)
            if not running.done():
                await turn.start()
            return await running
        finally:
            if not running.done():
                # The function gets to clean up before the turn goes on.
                running.cancel()
                await asyncio.wait((running,))


class _Turn:
    def __init__(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._context = context
        self._publish = event_queue.enqueue_event
        self._started = False
        self.task_id = context.task_id
        self.continues = context.current_task is not None

    async def stream(self, chunks: AsyncIterable[Any]) -> None:
        await self.start()
        append = False
        async for chunk in chunks:
            await self.artifact(STREAMED_ARTIFACT, [to_part(chunk)], append=append)
            append = True
        await self.status(pb.TaskState.TASK_STATE_COMPLETED)

    async def start(self) -> None:
        self._started = True
        working = pb.TaskState.TASK_STATE_WORKING
        if self.continues:
            await self.status(working)
            return
        await self._publish(
            pb.Task(
                id=self._context.task_id,
                context_id=self._context.context_id,
                status=pb.TaskStatus(state=working),
            )
        )

    async def status(
        self, state: pb.TaskState.ValueType, message: pb.Message | None = None
    ) -> None:
        await self._publish(
            pb.TaskStatusUpdateEvent(
                task_id=self._context.task_id,
                context_id=self._context.context_id,
                status=pb.TaskStatus(state=state, message=message),
            )
        )

    async def artifact(
        self, artifact_id: str, parts: Sequence[pb.Part], *, append: bool = False
    ) -> None:
        await self._publish(
            pb.TaskArtifactUpdateEvent(
                task_id=self._context.task_id,
                context_id=self._context.context_id,
                artifact=pb.Artifact(artifact_id=artifact_id, parts=parts),
                append=append,
            )
        )

    async def complete(self, result: Any) -> None:
        completed = pb.TaskState.TASK_STATE_COMPLETED
        if isinstance(result, pb.Message):
            if self._started:
                await self.status(completed, result)
            else:
                await self._publish(result)
            return
        if not self._started:
            await self.start()
        if result is not None:
            several = isinstance(result, Sequence) and not isinstance(result, str | bytes)
            parts = [to_part(item) for item in (result if several else [result])]
            await self.artifact(RETURNED_ARTIFACT, parts)
        await self.status(completed)


def as_executor(agent: Any) -> AgentExecutor:
    """The executor for whatever form an agent has (see the package's documentation).

    Raises TypeError, naming the forms, for anything that is not an agent.
    """
    if isinstance(agent, type):
        agent = agent()
    short = isinstance(agent, AgentExecutor) and type(agent).execute is AgentExecutor.execute
    if not short and callable(getattr(agent, "execute", None)):
        return cast(AgentExecutor, agent)  # ours, or one written for a2a-sdk
    function = agent if inspect.isroutine(agent) else getattr(agent, "run", None)
    if callable(function):
        on_interruption: Any = getattr(agent, "on_interruption", "fail")
        if on_interruption not in ("fail", "restart"):
            raise TypeError(
                f"on_interruption of {agent!r} is {on_interruption!r}; use 'fail' or 'restart'"
            )
        return FunctionExecutor(function, on_interruption)
    raise TypeError(
        f"{agent!r} is not an agent: give an AgentExecutor, an async function of a RequestContext, "
        "an async generator, or an object with such a method run"
    )
