"""One turn: the agent works on one message, or is canceled or interrupted; then it is finished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from a2a_grpc import pb
from a2a_grpc.active.event_consumer import EventConsumer
from a2a_grpc.active.event_queue import TurnEventQueue
from a2a_grpc.active.lease_keeper import Lease
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.agent.conversation import Conversation
from a2a_grpc.agent.dependencies import Dependencies
from a2a_grpc.agent.executor import AgentExecutor
from a2a_grpc.agent.request_context import RequestContext, RequestContextBuilder
from a2a_grpc.broker.base import TaskSendParams
from a2a_grpc.bus.base import Committed, EventBus, OnCommit, ignore_commit
from a2a_grpc.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    UnavailableError,
    as_a2a_error,
)
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.patience import patiently
from a2a_grpc.storage.values import (
    Operation,
    Outcome,
    OutcomeKind,
    Turn,
    error_outcome,
)
from a2a_grpc.transient import TransientContexts

logger = logging.getLogger(__name__)

FAILED_TEXT = "The agent failed; the server's log says why."
UNFINISHED_TEXT = "The agent returned without finishing the turn; the server's log says more."
INTERRUPTED_TEXT = "The server stopped, or lost the task, while the agent was working."
NO_AGENT_TEXT = "The server has no agent for the task's tenant any more."
EXHAUSTED_TEXT = "The server stopped, or lost the task, at every attempt of the agent."

_FAILED = pb.TaskState.TASK_STATE_FAILED
_CANCELED = pb.TaskState.TASK_STATE_CANCELED


@dataclass(frozen=True, slots=True)
class ActiveSettings:
    """How active tasks behave.

    Attributes:
        cancel_timeout: seconds that `AgentExecutor.cancel()`, and then `execute()`, get to end.
        max_attempts: how often `execute()` is started for one message before it is given up.
    """

    cancel_timeout: float = 5.0
    max_attempts: int = 3


@dataclass(frozen=True, slots=True)
class ActiveParts:
    """What all active tasks of a process share.

    Attributes:
        executor_for: the agent of a tenant.
        on_commit: called after every commit with events.
        on_push_config: called with the task's id when a turn begins whose message brought a push
            configuration.
        deps: what agents find in their context.
        transient: request contexts of middleware in this process.
        lease: on which turns depend.
        bury: what becomes of an operation that is given up after too many attempts.
    """

    storage: AnyStorage
    bus: EventBus
    builder: RequestContextBuilder
    executor_for: Callable[[str], AgentExecutor]
    settings: ActiveSettings = ActiveSettings()
    on_commit: OnCommit = ignore_commit
    on_push_config: Callable[[str], None] = lambda _: None
    deps: Dependencies = field(default_factory=Dependencies)
    transient: TransientContexts = field(default_factory=TransientContexts)
    lease: Lease = field(default_factory=Lease)
    bury: Callable[[TaskSendParams, str], Awaitable[None]] | None = None


class TurnEnd(NamedTuple):
    """How a turn ended: `more` if the task has operations that are not done, its own among them if
    that was handed back; `lost` if the task was lost to another process, or for want of a lease.
    """

    more: bool = False
    lost: bool = False


_left_behind: set[asyncio.Task[None]] = set()
"""Agents that ignored their cancellation: kept, so that they are not collected while they run."""


class AgentTurn:
    """Runs the agent for one operation, once.

    Guarantees:

    - `AgentExecutor.cancel()` is called at most once; then `execute()` is cancelled; the turn is
      over within twice `cancel_timeout`, with CANCELED if the agent published no terminal state.
    - Anything the agent raises ends the task FAILED, after the events that it published before.

    Args:
        turn: the turn, as storage began it.
        parts: what active tasks share.
        context: the request's context where there is one already; otherwise it is built.
        interruption: why the turn is cut off before it begins, if it is.
    """

    def __init__(
        self,
        turn: Turn,
        parts: ActiveParts,
        context: RequestContext | None,
        *,
        interruption: str | None = None,
    ) -> None:
        self._turn = turn
        self._parts = parts
        self._context = context
        self._executor: AgentExecutor | None
        try:
            self._executor = parts.executor_for(turn.operation.scope.tenant)
        except InvalidParamsError:
            self._executor = None  # served when the message was admitted, and no longer
        self._consumer = EventConsumer(
            turn,
            storage=parts.storage,
            bus=parts.bus,
            on_lost=self._stop_executing,
            on_commit=parts.on_commit,
            goes_on=self._agent_goes_on,
        )
        self._queue = TurnEventQueue(self._consumer, self._attached)
        self._agent: asyncio.Task[None] | None = None
        self._executed: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancellation: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._interruption = interruption
        # Taken now, whether the agent is started or not: another attempt goes without.
        self._request_context = parts.transient.take(turn.operation.id)

    @property
    def operation_id(self) -> str:
        """The operation that it works on."""
        return self._turn.operation.id

    async def run(self) -> TurnEnd:
        """Work, and return how it ended.

        Raises UnavailableError if the storage can't be reached for long.
        """
        try:
            snapshot = self._turn.snapshot
            if snapshot is not None:
                # Whoever follows the task learns that the message is in.
                await self._parts.bus.publish(
                    Committed(
                        snapshot.task.id,
                        snapshot.version,
                        snapshot.sequence,
                        snapshot.task.status.state,
                        operation_id=self._turn.operation.id,
                        starts=True,
                    )
                )
            return await self._run()
        finally:
            self._end()

    def _end(self) -> None:
        self._queue.close()
        if not self._over.done():
            self._over.set_result(None)

    async def _run(self) -> TurnEnd:
        consumer = self._consumer
        if self._brings_push_config:
            self._parts.on_push_config(self._id)
        error: Exception | None = None
        # What is to be canceled is CANCELED, however often it was tried.
        given_up = "" if self._cancellation else self._reason_to_give_up()
        if given_up:
            consumer.set_status(_FAILED, given_up)
        else:
            error = await self._execute()
        if self._cancellation is not None:
            # What the agent says in cancel() still counts, also after execute() has ended.
            await asyncio.wait((self._cancellation,))
            consumer.set_status(_CANCELED)
        if error is not None and (self._cancellation or self._interruption):
            logger.info("task %s: execute() raised when it was ended", self._id, exc_info=error)
            error = None
        self._queue.close()
        if consumer.lost:
            return TurnEnd(lost=True)
        if self._interruption is not None and error is None and not consumer.settled:
            if self._restarts:
                return TurnEnd(more=await consumer.finish(None))
            consumer.set_status(_FAILED, self._interruption)
        more = await self._finish(error)
        if given_up is EXHAUSTED_TEXT and self._parts.bury is not None:
            await self._parts.bury(TaskSendParams(self._id, self.operation_id), given_up)
        return TurnEnd(more=more)

    @property
    def _id(self) -> str:
        return self._turn.operation.task_id

    @property
    def _restarts(self) -> bool:
        # An agent that was not written for this package may lack the attribute.
        return getattr(self._executor, "on_interruption", "fail") == "restart"

    def _reason_to_give_up(self) -> str:
        operation = self._turn.operation
        # An attempt that was handed back in order did no harm, and says nothing about the next.
        attempts = operation.attempts - operation.handed_back
        if self._executor is None:
            return NO_AGENT_TEXT
        if attempts <= 1:
            return ""
        if not self._restarts:
            return INTERRUPTED_TEXT
        return EXHAUSTED_TEXT if attempts > self._parts.settings.max_attempts else ""

    async def _execute(self) -> Exception | None:
        """Run the agent to its end, whatever that is; returns what it raised.

        It runs in a task of its own, so that one which ignores its cancellation can be left behind.
        """
        if self._cancellation or self._interruption is not None or self._consumer.lost:
            return None
        self._agent = agent = asyncio.create_task(self._call_agent(), name=f"agent:{self._id}")
        self._executed = executed = asyncio.get_running_loop().create_future()
        agent.add_done_callback(self._agent_is_done)
        try:
            await executed
        except asyncio.CancelledError:
            agent.cancel()
            raise
        if not agent.done():
            return None  # left behind
        if agent.cancelled():
            if self._cancellation or self._interruption or self._consumer.lost:
                return None
            return RuntimeError("execute() ended with a CancelledError of its own")
        error = agent.exception()
        return error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))

    async def _call_agent(self) -> None:
        # It may read the tasks that the message refers to.
        context = await patiently(self._parts.storage, self._build_context)
        self._context = context
        if self._cancellation or self._consumer.lost or self._executor is None:
            return
        try:
            await self._executor.execute(context, self._queue)
        except SystemExit as error:
            raise RuntimeError("the agent called sys.exit()") from error

    async def _build_context(self) -> RequestContext:
        operation, snapshot = self._turn.operation, self._turn.snapshot
        task = None if snapshot is None else snapshot.task
        if self._context is not None:
            self._context.current_task = task
            return self._furnish(self._context)
        # A copy: what the agent does to its message must not get into the history.
        request = pb.SendMessageRequest()
        request.CopyFrom(operation.request)
        call = call_context_of(operation)
        call.request_context = self._request_context
        context = await self._parts.builder.build(
            call,
            request,
            operation.task_id,
            operation.context_id,
            task,
            attempt=operation.attempts,
        )
        return self._furnish(context)

    def _furnish(self, context: RequestContext) -> RequestContext:
        """Give the context what the server has for agents."""
        operation = self._turn.operation
        context.deps = self._parts.deps
        context.conversation = Conversation(
            self._parts.storage, operation.scope, operation.context_id
        )
        return context

    async def _finish(self, error: Exception | None) -> bool:
        more = await self._settle(error)
        if not self._consumer.visible and not self._consumer.lost:
            # There is no task, so nothing will ever be pushed to what the message registered.
            await self._forget_push_config()
        return more

    @property
    def _brings_push_config(self) -> bool:
        configuration = self._turn.operation.request.configuration
        return configuration.HasField("task_push_notification_config")

    async def _forget_push_config(self) -> None:
        if self._brings_push_config:
            for target in await self._parts.storage.load_push_configs(self._id):
                await self._parts.storage.delete_push_config(self._id, target.config.id)

    async def _settle(self, error: Exception | None) -> bool:
        consumer = self._consumer
        related = self._attached()
        problem: A2AError | None = consumer.violation
        if problem is None and error is not None:
            problem = as_a2a_error(error)
            if problem is None or isinstance(problem, InternalError):
                problem = None
                logger.error("task %s: the agent raised", self._id, exc_info=error)
                consumer.set_status(_FAILED, FAILED_TEXT)
            else:
                # Meant for the caller, and often the caller's own mistake.
                logger.info("task %s: the agent refuses: %s", self._id, problem.message)
            if consumer.terminal:
                problem = None  # the task had ended before: nothing changes that
        elif problem is None and consumer.reply is None and not consumer.settled:
            logger.error(
                "task %s: execute() returned without a Message, a terminal state, INPUT_REQUIRED "
                "or AUTH_REQUIRED",
                self._id,
            )
            consumer.set_status(_FAILED, UNFINISHED_TEXT)
        if problem is None:
            try:
                return await consumer.finish(self._outcome(), related=related)
            except InvalidAgentResponseError as refused:
                problem = refused
        if isinstance(problem, InvalidAgentResponseError):
            logger.error("task %s: %s", self._id, problem.message)
            consumer.set_status(_FAILED, problem.message)
        elif consumer.visible:
            consumer.set_status(_FAILED, problem.message)
        return await consumer.finish(error_outcome(problem))

    def _attached(self) -> tuple[pb.Task, ...]:
        # `cancel()` and an agent that never got its context have attached nothing.
        return () if self._context is None else tuple(self._context.attached_tasks)

    def _outcome(self) -> Outcome:
        reply = self._consumer.reply
        if reply is not None:
            return Outcome(OutcomeKind.MESSAGE, payload=reply.SerializeToString())
        return Outcome(OutcomeKind.TASK)

    # Ending it early.

    async def cancel(self, call: ServerCallContext) -> None:
        """Cancel the task's turn, and wait until it is over; every further call only waits."""
        self.start_canceling(call)
        await asyncio.wait((self._over,), timeout=3 * self._parts.settings.cancel_timeout)

    def start_canceling(self, call: ServerCallContext) -> None:
        """Cancel the task's turn, unless that is under way or the task has ended."""
        if self._cancellation is None and not self._consumer.terminal:
            self._cancellation = asyncio.create_task(self._cancel(call), name=f"cancel:{self._id}")

    async def _cancel(self, call: ServerCallContext) -> None:
        if self._context is not None:
            self._context.is_cancelled = True
        try:
            if self._agent is not None and not self._agent.done():
                await self._tell_agent(call)
        finally:
            if not self._consumer.lost:
                await self._stop()

    async def _tell_agent(self, call: ServerCallContext) -> None:
        timeout = self._parts.settings.cancel_timeout
        operation = self._turn.operation
        try:
            task = await self._parts.storage.load_task(self._id)
        except UnavailableError:
            task = None  # canceling does not depend on it
        # A cancellation comes without its caller; it is the task's owner.
        owned = call_context_of(operation)
        told = replace(owned, method=call.method, metadata=call.metadata, deadline=call.deadline)
        context = RequestContext(
            told, task_id=operation.task_id, context_id=operation.context_id, task=task
        )
        context.is_cancelled = True
        try:
            async with asyncio.timeout(timeout):
                if self._executor is not None:
                    await self._executor.cancel(self._furnish(context), self._queue)
        except TimeoutError:
            logger.warning("task %s: cancel() took longer than %gs", self._id, timeout)
        except Exception:
            logger.exception("task %s: cancel() raised", self._id)

    async def interrupt(self, reason: str) -> None:
        """Cut the turn off, as the process is about to end.

        The task fails with `reason`, or the operation is handed back, as the agent's
        `on_interruption` says.
        """
        self._interruption = reason
        await self._stop()
        await asyncio.wait((self._over,), timeout=self._parts.settings.cancel_timeout)

    async def _stop(self, *, cancelled: bool = False) -> None:
        """Cancel execute(); an agent that does not end is left behind, and the turn goes on."""
        agent = self._agent
        if agent is None or agent.done():
            return
        if not cancelled:
            agent.cancel()
        _, pending = await asyncio.wait((agent,), timeout=self._parts.settings.cancel_timeout)
        if pending:
            logger.error("task %s: execute() ignores its cancellation; left behind", self._id)
            _left_behind.add(agent)
            agent.add_done_callback(_left_behind.discard)
            self._queue.close()
            self._agent_is_done(agent)

    def _agent_goes_on(self) -> bool:
        return self._agent is not None and not self._agent.done()

    def _agent_is_done(self, agent: asyncio.Task[None]) -> None:
        if self._executed is not None and not self._executed.done():
            self._executed.set_result(None)

    def lose(self) -> None:
        """Cut the turn off at once: the process holds the task no longer, so nothing is written."""
        self._consumer.lose()

    def _stop_executing(self) -> None:
        if self._agent is not None:
            self._agent.cancel()  # at once: before the agent takes another step
        if self._cancellation is not None:
            self._cancellation.cancel()
        if self._stopping is None:
            stop = self._stop(cancelled=True)
            self._stopping = asyncio.create_task(stop, name=f"stop:{self._id}")


def call_context_of(operation: Operation) -> ServerCallContext:
    """The call as the operation carries it."""
    return ServerCallContext(
        principal=Principal(operation.scope.principal),
        tenant=operation.scope.tenant,
        deadline=operation.deadline,
        metadata=operation.metadata,
        requested_extensions=frozenset(operation.extensions),
        method="SendMessage",
    )
