"""The agents that every replica serves: each message is an `Order`.

The tenant says what becomes of a task whose process died: `restart` or
`fail`. What the agents do is written to the journal before it is published.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from a2a_grpc import (
    A2AServer,
    AgentCapabilities,
    AgentCard,
    AgentExecutor,
    EventQueue,
    RequestContext,
    ServerSettings,
    pb,
)
from tests.chaos.journal import JOURNAL, What, Writer
from tests.chaos.orders import ARTIFACT, Order

LONGEST_WAIT = 100.0
"""Seconds after which an agent that waits for its gate gives up: no test takes so long."""


class Actor(AgentExecutor):
    """Does what its orders say."""

    def __init__(self) -> None:
        self._directory = Path(os.environ[JOURNAL])
        self._journal = Writer(self._directory)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        turn = _Turn(context, event_queue, self._journal, self._directory)
        turn.write("start")
        try:
            await turn.run()
        except asyncio.CancelledError:
            turn.write("cancelled")
            await asyncio.sleep(turn.order.linger)
            raise
        turn.write("end")

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._journal.write(context.task_id, "", context.attempt, "told to cancel")


class _Turn:
    def __init__(
        self, context: RequestContext, queue: EventQueue, journal: Writer, directory: Path
    ) -> None:
        self._context = context
        self._queue = queue
        self._journal = journal
        self._directory = directory
        self.order = Order(**json.loads(context.get_user_input()))

    def write(self, what: What, number: int = 0) -> None:
        context = self._context
        assert context.message is not None
        self._journal.write(
            context.task_id, context.message.message_id, context.attempt, what, number
        )

    async def run(self) -> None:
        match self.order.do:
            case "stream":
                await self._begin()
                await self._stream()
                await self._status(pb.TaskState.TASK_STATE_COMPLETED)
            case "ask":
                states, stop = pb.TaskState, self.order.stop
                await self._begin()
                await self._status(states.TASK_STATE_WORKING)
                await self._gate_open()
                await self._status(
                    states.TASK_STATE_COMPLETED if stop else states.TASK_STATE_INPUT_REQUIRED
                )
            case "wait":
                await self._begin()
                await asyncio.sleep(LONGEST_WAIT)
            case "reply":
                reply = pb.Message(role=pb.Role.ROLE_AGENT, parts=[pb.Part(text="here you are")])
                reply.message_id = f"reply to {self._context.message.message_id}"  # type: ignore[union-attr]
                await self._queue.enqueue_event(reply)
            case "echo":
                await self._begin()
                await self._gate_open()
                await self._echo()
                await self._status(pb.TaskState.TASK_STATE_COMPLETED)
            case "die":
                await self._begin()
                await self._queue.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    async def _begin(self) -> None:
        if self._context.current_task is None:
            working = pb.TaskStatus(state=pb.TaskState.TASK_STATE_WORKING)
            await self._queue.enqueue_event(pb.Task(status=working))

    async def _status(self, state: pb.TaskState.ValueType) -> None:
        update = pb.TaskStatusUpdateEvent(status=pb.TaskStatus(state=state))
        await self._queue.enqueue_event(update)

    async def _stream(self) -> None:
        order, context = self.order, self._context
        number = 0 if order.begin_again else self._done()
        pause = order.pause
        if context.attempt > 1 and order.later_pause is not None:
            pause = order.later_pause
        deadline = time.monotonic() + LONGEST_WAIT
        while number < order.steps or not self._may_end():
            assert time.monotonic() < deadline, f"nobody opened the gate {order.gate}"
            self.write("step", number)
            artifact = pb.Artifact(artifact_id=ARTIFACT, parts=[pb.Part(text=f"{number},")])
            await self._queue.enqueue_event(
                pb.TaskArtifactUpdateEvent(artifact=artifact, append=number > 0)
            )
            number += 1
            await asyncio.sleep(pause)

    def _done(self) -> int:
        task = self._context.current_task
        artifacts = [] if task is None else task.artifacts
        return sum(len(one.parts) for one in artifacts if one.artifact_id == ARTIFACT)

    async def _gate_open(self) -> None:
        async with asyncio.timeout(LONGEST_WAIT):
            while not self._may_end():  # noqa: ASYNC110  a file has no event
                await asyncio.sleep(0.01)

    def _may_end(self) -> bool:
        return not self.order.gate or (self._directory / self.order.gate).exists()

    async def _echo(self) -> None:
        message = self._context.message
        assert message is not None
        raw = [part for part in message.parts if part.raw]
        for number, part in enumerate(raw):
            self.write("step", number)
            artifact = pb.Artifact(artifact_id=f"raw-{number}", parts=[part])
            await self._queue.enqueue_event(pb.TaskArtifactUpdateEvent(artifact=artifact))


class Restarting(Actor):
    """Its tasks run again elsewhere."""

    on_interruption = "restart"


class Failing(Actor):
    """Its tasks are FAILED by an interruption."""


server = A2AServer(
    agents={"restart": Restarting(), "fail": Failing()},
    card=AgentCard(name="Chaos", capabilities=AgentCapabilities(streaming=True)),
    settings=ServerSettings(cancel_timeout=1.0),
)
