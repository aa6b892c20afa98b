"""One task while it runs in this process: its requests, one turn after another."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

from a2a_grpc import pb
from a2a_grpc.active.agent_turn import ActiveParts, AgentTurn
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.agent.executor import Event
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.bus.base import Committed
from a2a_grpc.cancellation import cancel_idle_task
from a2a_grpc.errors import (
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
)
from a2a_grpc.storage.values import (
    Operation,
    Outcome,
    Scope,
    Turn,
    task_ended,
)
from a2a_grpc.subscription import Subscription
from a2a_grpc.task import TERMINAL_STATES, TaskFold

logger = logging.getLogger(__name__)


Settle = Callable[[bool], Awaitable[None]]
"""Tells the broker whether the operation that it delivered is over."""


class ActiveTask:
    """Runs a task's requests, one after another, and lets others follow and cancel it.

    Guarantees:

    - Never two `execute()` at once; requests run in the order in which they were recorded, and the
      events of one are stored before the next one starts.
    - As long as the task has operations that are not done, and this process may run them, it goes
      on, whether they were delivered here or not.
    - A reader never slows the agent down.

    What one turn guarantees is said at `AgentTurn`. One asyncio task, owned here, exists while
    there are requests. When there are none, and nobody holds a reference, the registry forgets the
    active task.

    Args:
        task_id: the task's id.
        parts: what active tasks share.
        on_idle: called when nothing runs or waits any more and nobody follows.
    """

    RETRY_DELAYS = (0.1, 0.2, 0.5, 1.0)
    """Seconds between tries to begin a turn while the storage fails; the last one repeats."""

    def __init__(
        self,
        task_id: str,
        parts: ActiveParts,
        *,
        on_idle: Callable[[ActiveTask], None] = lambda _: None,
    ) -> None:
        self._task_id = task_id
        self._parts = parts
        self._on_idle = on_idle
        self._wanted = False
        self._deliveries: dict[str, Settle] = {}
        self._contexts: dict[str, RequestContext] = {}
        self._producer: asyncio.Task[None] | None = None
        self._turn: AgentTurn | None = None
        self._cancellation: ServerCallContext | None = None
        self._references = 0
        self._draining = False
        self._interruption: str | None = None
        self._handing_back: set[asyncio.Task[None]] = set()

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._task_id

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits, and nobody holds a reference."""
        return self._producer is None and not self._references

    # Requests.

    async def start(
        self, call_context: ServerCallContext, create_task_if_missing: bool = False
    ) -> None:
        """Check that the task can take requests.

        Raises:
            TaskNotFoundError: it does not exist for the caller, and must.
            UnsupportedOperationError: it has ended.
        """
        scope = Scope(call_context.tenant, call_context.principal.id)
        head = await self._parts.storage.load_head(self._task_id, scope=scope)
        if head is None:
            if not create_task_if_missing:
                raise TaskNotFoundError.of(self._task_id)
        elif head.state in TERMINAL_STATES:
            raise task_ended(self._task_id, head.state)

    async def enqueue_request(self, request_context: RequestContext) -> uuid.UUID:
        """Record a request and let it wait its turn; returns its operation's id.

        The record carries none of the call's metadata: if the process dies before the turn, the
        agent does without.
        """
        if request_context.task_id != self._task_id:
            raise ValueError(
                f"the request is for task {request_context.task_id!r}, not {self._task_id!r}"
            )
        request = request_context.request
        if request is None:
            raise ValueError("the request has no message")
        call = request_context.call_context
        scope = Scope(call.tenant, call.principal.id)
        head = await self._parts.storage.load_head(self._task_id, scope=scope)
        request_id = uuid.uuid4()
        # Before it is recorded: a turn that ends meanwhile may begin with it at once.
        self._contexts[str(request_id)] = request_context
        await self._parts.storage.admit(
            Operation(
                id=str(request_id),
                task_id=self._task_id,
                context_id=request_context.context_id,
                request=request,
                scope=scope,
                creates_task=head is None,
                deadline=call.deadline,
                extensions=tuple(sorted(call.requested_extensions)),
            )
        )
        self._work()
        return request_id

    async def enqueue_operation(self, operation_id: str, settle: Settle) -> None:
        """Take a delivery of a recorded operation; `settle(done)` is called when no more is to do.

        It is called at once if a turn runs: the operation waits in storage alone, behind the one
        whose delivery stands for all of the task's. So it is when another process holds the task,
        since that one goes on with the operation.
        """
        if self._turn is not None and self._turn.operation_id != operation_id:
            self._work()
            await settle(True)
        else:
            self._deliveries[operation_id] = settle
            self._work()

    def _work(self) -> None:
        self._wanted = True
        if self._producer is None and self._interruption is None:
            self._producer = asyncio.create_task(
                self._produce(), name=f"active-task:{self._task_id}"
            )

    async def _produce(self) -> None:
        done = False
        try:
            failures, served = 0, False
            # What nobody else may run is still delivered while the process drains.
            while self._goes_on and not (self._draining and served):
                try:
                    await self._serve()
                    failures, served = 0, True
                except Exception as error:
                    # The record is in storage, with the number of attempts; nobody else may take
                    # the task as long as this process lives, so it is tried again here.
                    if not isinstance(error, UnavailableError):
                        logger.exception("task %s: its turn is given up", self._task_id)
                    elif not failures:
                        logger.warning(
                            "task %s: its turn can't begin now: %s", self._task_id, error
                        )
                    self._wanted = True
                    delay = self.RETRY_DELAYS[min(failures, len(self.RETRY_DELAYS) - 1)]
                    failures += 1
                    await asyncio.sleep(delay)
            done = not self._wanted
        finally:
            self._producer = None
            await self._settle_all(done)
            if self.is_idle:
                self._on_idle(self)

    @property
    def _goes_on(self) -> bool:
        return self._wanted and self._interruption is None and self._parts.lease.held

    async def _settle_all(self, done: bool) -> None:
        while self._deliveries:
            # From the back: what is handed back goes to the front of the queue.
            _, settle = self._deliveries.popitem()
            try:
                await settle(done)
            except Exception:
                logger.exception("task %s: the broker can't be told", self._task_id)

    async def _serve(self) -> None:
        """One turn, for the oldest operation, or what there is in place of one."""
        self._wanted, self._cancellation = False, None
        delivered = list(self._deliveries)
        lease = self._parts.lease
        lapses = lease.lapses
        found = await self._parts.storage.start_turn(self._task_id)
        if isinstance(found, Turn) and lease.lapses != lapses:
            raise UnavailableError("the lease ran out while a turn began")
        if found is None:
            # Done, or the business of whoever holds the task. What came meanwhile has another look.
            for operation_id in delivered:
                if (settle := self._deliveries.pop(operation_id, None)) is not None:
                    await settle(True)
        elif isinstance(found, Operation):
            self._parts.transient.take(found.id)
            self._wanted = True  # there may be more
            if found.outcome is not None:
                await self._tell(found, found.outcome)
        else:
            await self._run(found)

    async def _run(self, turn: Turn) -> None:
        context = self._contexts.pop(turn.operation.id, None)
        agent_turn = AgentTurn(turn, self._parts, context, interruption=self._interruption)
        cancellation = self._cancellation
        if cancellation is None and turn.cancel_requested:
            cancellation = ServerCallContext(method="CancelTask")
        if cancellation is not None:
            agent_turn.start_canceling(cancellation)
        self._turn = agent_turn
        try:
            ended = await agent_turn.run()
        finally:
            self._turn = None
        # A task that is lost may be free again, or this process's own: that is decided in storage.
        self._wanted = self._wanted or ended.more or ended.lost

    async def _tell(self, operation: Operation, outcome: Outcome) -> None:
        try:
            head = await self._parts.storage.load_head(operation.task_id)
        except UnavailableError:
            head = None  # who waits for the operation is told all the same
        await self._parts.bus.publish(
            Committed(
                operation.task_id,
                head.version if head else 0,
                head.sequence if head else 0,
                head.state if head else 0,
                operation_id=operation.id,
                outcome=outcome,
            )
        )

    # Ending it early.

    async def cancel(self, call_context: ServerCallContext) -> pb.Task:
        """Cancel the task; concurrent calls share one cancellation.

        Raises:
            TaskNotFoundError: the task does not exist yet, or not for this caller.
            TaskNotCancelableError: it has ended, or ended otherwise, or runs elsewhere.
        """
        storage = self._parts.storage
        scope = Scope(call_context.tenant, call_context.principal.id)
        asked = False
        while True:
            head = await storage.load_head(self._task_id, scope=scope)
            if head is None:
                raise TaskNotFoundError.of(self._task_id)
            if head.state in TERMINAL_STATES:
                if asked and head.state == pb.TaskState.TASK_STATE_CANCELED:
                    return await self.get_task()
                raise TaskNotCancelableError(f"task {self._task_id!r} has already ended")
            if head.running and self._producer is None:
                raise TaskNotCancelableError(f"task {self._task_id!r} does not run here")
            asked = True
            if head.running:
                await self.cancel_turn(call_context)
                if self._turn is None:
                    await asyncio.sleep(self.RETRY_DELAYS[0])  # one is about to begin
            else:
                await cancel_idle_task(storage, self._parts.bus, head, self._parts.on_commit)

    async def cancel_turn(self, call_context: ServerCallContext) -> None:
        """Cancel the turn that runs, if one does, and wait until it is over."""
        if self._turn is not None:
            await self._turn.cancel(call_context)
        else:
            self._cancellation = call_context  # of the turn that is being started, if one is

    def lose(self) -> None:
        """Cut the turn off, if one runs: this process no longer holds the task."""
        if self._turn is not None:
            self._turn.lose()
        if self._deliveries:
            handing_back = asyncio.create_task(
                self._settle_all(False), name=f"hand-back:{self._task_id}"
            )
            self._handing_back.add(handing_back)
            handing_back.add_done_callback(self._handing_back.discard)

    def drain(self) -> None:
        """End with the turn that runs: what waits is handed back."""
        self._draining = True

    async def interrupt(self, reason: str) -> None:
        """Stop for good: the turn is cut off, and requests that wait are handed back."""
        self._interruption = reason
        producer = self._producer
        if self._turn is not None:
            await self._turn.interrupt(reason)
        elif producer is not None:
            await asyncio.wait((producer,), timeout=self._parts.settings.cancel_timeout)

    # Reading it.

    async def get_task(self) -> pb.Task:
        """The task as it is now.

        Raises TaskNotFoundError before the agent has created it.
        """
        task = await self._parts.storage.load_task(self._task_id)
        if task is None:
            raise TaskNotFoundError.of(self._task_id)
        return task

    async def subscribe(
        self,
        *,
        request: RequestContext | None = None,
        include_initial_task: bool = False,
        replace_status_update_with_task: bool = False,
    ) -> AsyncIterator[Event]:
        """Follow the task; with a request, enqueue that and follow until it is over.

        Args:
            include_initial_task: begin with the Task as it is now, if it exists.
            replace_status_update_with_task: yield the whole Task in place of each status update.

        Raises TaskNotFoundError without a request, if the task does not exist.
        """
        self._references += 1
        try:
            storage, bus = self._parts.storage, self._parts.bus
            async with Subscription(storage, bus, self._task_id) as subscription:
                snapshot = await storage.load_snapshot(self._task_id)
                if request is not None:
                    watch = subscription.watch(str(await self.enqueue_request(request)))
                    # On a task that exists, from where the request's turn begins.
                    while snapshot is not None and not (watch.started or watch.ended):
                        await subscription.channel.changed()
                    if snapshot is not None and watch.started is not None:
                        snapshot = await subscription.begin(watch.started.version)
                elif snapshot is None:
                    raise TaskNotFoundError.of(self._task_id)
                fold = TaskFold()
                if snapshot is not None:
                    subscription.start_from(snapshot)
                    fold = TaskFold(snapshot.task)
                    if include_initial_task:
                        yield _copy(fold.task)
                async for streamed in subscription.events():
                    event = pb.StreamResponse.FromString(streamed.payload)
                    if replace_status_update_with_task:
                        fold.apply([streamed.entry()])
                    if replace_status_update_with_task and event.HasField("status_update"):
                        yield _copy(fold.task)
                    else:
                        kind = event.WhichOneof("payload")
                        assert kind is not None
                        yield getattr(event, kind)
        finally:
            self._references -= 1
            if self.is_idle:
                self._on_idle(self)


def _copy(task: pb.Task) -> pb.Task:
    copy = pb.Task()
    copy.CopyFrom(task)
    return copy
