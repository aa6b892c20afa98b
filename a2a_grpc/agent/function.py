"""The short form of an agent: a function, a generator, or an object with `run`.

Whatever a user hands to the server becomes an `AgentExecutor` here.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Sequence,
)
from contextlib import aclosing
from typing import Any, cast

from a2a_grpc import pb
from a2a_grpc.agent.code import check_parameter
from a2a_grpc.agent.executor import AgentExecutor, EventQueue, OnInterruption
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.agent.task_context import FINAL_ARTIFACT, STREAMED_ARTIFACT
from a2a_grpc.agent.turn_events import TurnEvents, announced
from a2a_grpc.agent.values import to_part
from a2a_grpc.agent.worker import Worker, WorkerExecutor

_COMPLETED = pb.TaskState.TASK_STATE_COMPLETED


class FunctionExecutor(AgentExecutor):
    """Runs `async (context) -> str | dict | Message | Part(s) | None`, or a generator of str.

    What the function returns completes the task, as an artifact; None completes it without one.
    What a generator yields is streamed as one artifact. A Message that the function returns within
    50 ms is the direct reply; a function that takes longer gets its task, so that
    callers have something to follow, and its Message becomes the task's last status message.
    """

    def __init__(
        self,
        function: Callable[[RequestContext], Any],
        *,
        name: str,
        on_interruption: OnInterruption,
        cancel: Callable[[RequestContext, EventQueue], Awaitable[None]] | None,
    ) -> None:
        self._function = function
        self.name = name
        self.on_interruption = on_interruption  # type: ignore[misc]  # per agent, not per class
        self._cancel = cancel

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Call the function, and publish what it returns or yields."""
        events = TurnEvents(context, event_queue)
        result = self._function(context)
        if isinstance(result, AsyncGenerator):
            async with aclosing(result):  # it gets to clean up before the turn goes on
                await _stream(events, result)
        elif isinstance(result, AsyncIterable):
            await _stream(events, result)
        elif inspect.iscoroutine(result):
            if events.continues:
                await events.start()
            async with announced(events, context.task_id):
                returned = await result
            await _complete(events, returned)
        else:
            raise TypeError(
                f"the agent {self._function!r} must be an async function or an async generator"
            )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Call the `cancel` of an AgentExecutor with `run`; other forms have none."""
        if self._cancel is not None:
            await self._cancel(context, event_queue)


async def _stream(events: TurnEvents, chunks: AsyncIterable[Any]) -> None:
    await events.start()
    append = False
    async for chunk in chunks:
        artifact = pb.Artifact(artifact_id=STREAMED_ARTIFACT, parts=[to_part(chunk)])
        await events.publish(events.artifact(artifact, append=append))
        append = True
    await events.publish(events.status(_COMPLETED))


async def _complete(events: TurnEvents, result: Any) -> None:
    if isinstance(result, pb.Message):
        if events.started:
            await events.publish(events.status(_COMPLETED, result))
        else:
            await events.reply(result)
        return
    if isinstance(result, list | tuple) and not result:
        result = None  # no parts: an artifact without any is none
    if result is None:
        await events.publish(events.status(_COMPLETED))
        return
    several = isinstance(result, Sequence) and not isinstance(result, str | bytes)
    parts = [to_part(item) for item in (result if several else [result])]
    artifact = pb.Artifact(artifact_id=FINAL_ARTIFACT, parts=parts)
    await events.publish(events.artifact(artifact, last_chunk=True), events.status(_COMPLETED))


def as_executor(agent: Any) -> AgentExecutor:
    """The executor for whatever form an agent has (see the package's documentation).

    Raises TypeError, naming the forms, for anything that is not an agent.
    """
    if isinstance(agent, type):
        agent = _made(agent)
    on_interruption: Any = getattr(agent, "on_interruption", "fail")
    if on_interruption not in ("fail", "restart"):
        raise TypeError(
            f"on_interruption of {agent!r} is {on_interruption!r}; use 'fail' or 'restart'"
        )
    if isinstance(agent, Worker):
        return WorkerExecutor(agent)
    short = isinstance(agent, AgentExecutor) and type(agent).execute is AgentExecutor.execute
    if not short and callable(getattr(agent, "execute", None)):
        return cast(AgentExecutor, agent)  # ours, or one written for a2a-sdk
    function = agent if inspect.isroutine(agent) else getattr(agent, "run", None)
    if callable(function):
        check_parameter(function, "RequestContext", "context")
        return FunctionExecutor(
            function,
            name=getattr(agent, "__name__", type(agent).__name__),
            on_interruption=on_interruption,
            cancel=agent.cancel if isinstance(agent, AgentExecutor) else None,
        )
    if isinstance(agent, pb.AgentCard):
        raise TypeError("an AgentCard is not an agent; give it to A2AServer(agent, card=...)")
    raise TypeError(
        f"{agent!r} is not an agent: give a Worker, an AgentExecutor, an async function of a "
        "RequestContext, an async generator, or an object with such a method run"
    )


def _made(cls: type) -> Any:
    abstract = sorted(getattr(cls, "__abstractmethods__", ()))
    if abstract:
        raise TypeError(f"the agent {cls.__name__} lacks {', '.join(abstract)}; define it")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise TypeError(
            f"the agent {cls.__name__} can't be made without arguments ({error}); give an object, "
            f"{cls.__name__}(...), in place of the class"
        ) from None
    except ValueError:
        pass  # a class of C, which does not say what it takes
    return cls()
