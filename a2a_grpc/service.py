"""The operations of A2A, one method each, whatever transport brought the call (specification 3.1).

The service decides who may see what and what is admitted; agents run elsewhere. It meets them
through storage (the record), the broker (the way there) and the bus (the way back).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext

from a2a_grpc import pb
from a2a_grpc.admission import Admission, ServiceSettings, require_push, scope_of
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.agent.request_context import RequestContextBuilder
from a2a_grpc.broker.base import Broker, TaskIdParams
from a2a_grpc.bus.base import (
    Committed,
    EventBus,
    OnCommit,
    OperationWatch,
    TaskChannel,
    ignore_commit,
)
from a2a_grpc.cancellation import cancel_idle_task
from a2a_grpc.cards.publishing import PublishedCards
from a2a_grpc.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedOperationError,
)
from a2a_grpc.extensions import LAST_SEQUENCE, SEQUENCE_EXTENSION
from a2a_grpc.paging import page_token, read_page_token
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    Head,
    LogTruncatedError,
    Operation,
    OperationState,
    Outcome,
    OutcomeKind,
    TaskQuery,
)
from a2a_grpc.subscription import Streamed, Subscription
from a2a_grpc.task import (
    INTERRUPTED_STATES,
    TERMINAL_STATES,
    EntryKind,
    LogEntry,
    TaskFold,
    trim_history,
)
from a2a_grpc.transient import TransientContexts

logger = logging.getLogger(__name__)


class A2AService:
    """All operations of A2AService.

    Every method takes the request and the call, raises errors of `a2a_grpc.errors`, and sees only
    what belongs to the call's principal and tenant.

    Args:
        cards_for: the cards of a tenant's agent; raises InvalidParamsError for an unknown tenant.
        on_commit: called after a commit that the service itself made.
        transient: request contexts of middleware, on their way to the agent.
        on_push_config: called with the task's id when it gets a push configuration.
    """

    IDLE_PATIENCE = 5.0
    """Seconds that a message may take to enter a task that nobody works on, before its sender gets
    the task as it is."""
    ASKED_PATIENCE = 0.5
    """The same for a task whose agent has asked for input and is about to return; or has begun with
    the answer, and not said anything yet."""

    def __init__(
        self,
        *,
        storage: AnyStorage,
        broker: Broker,
        bus: EventBus,
        builder: RequestContextBuilder,
        cards_for: Callable[[str], PublishedCards],
        on_commit: OnCommit = ignore_commit,
        transient: TransientContexts | None = None,
        on_push_config: Callable[[str], None] = lambda _: None,
        settings: ServiceSettings | None = None,
    ) -> None:
        self._settings = settings or ServiceSettings()
        self._on_commit = on_commit
        self._on_push_config = on_push_config
        self._admission = Admission(
            storage=storage,
            broker=broker,
            bus=bus,
            builder=builder,
            card_for=lambda tenant: cards_for(tenant).public,
            on_push_config=on_push_config,
            transient=transient or TransientContexts(),
            settings=self._settings,
        )
        self._storage = storage
        self._broker = broker
        self._bus = bus
        self._cards_for = cards_for

    # Sending messages.

    async def send_message(
        self, request: pb.SendMessageRequest, call: ServerCallContext
    ) -> pb.Task | pb.Message:
        """Specification 3.1.1: wait for the outcome, or with `return_immediately` for the task."""
        prepared = await self._admission.prepare(request, call)
        operation, head = prepared.operation, prepared.head
        immediately = request.configuration.return_immediately
        with (
            self._bus.channel(operation.task_id) as channel,
            channel.watch(operation.id) as watch,
            # The whole task comes by, perhaps from another process: nobody has to read it back.
            channel.reader() if head is None and self._storage.lease else nullcontext(),
        ):
            await self._bus.attached(operation.task_id)
            taken_in = await self._admission.take_in(prepared, call)
            if taken_in.id == operation.id:
                if not immediately:
                    settled = await watch.settled
                    return await self._result(operation, settled, request, channel)
                if head is not None:
                    await self._message_is_in(head, watch, channel)
                else:
                    while not (watch.ended or channel.version):
                        await channel.changed()
                if watch.ended is not None:
                    return await self._result(operation, watch.ended, request)
                return await self._task_result(operation.task_id, None, request)
        return await self._repeat(taken_in, request)

    async def _message_is_in(self, head: Head, watch: OperationWatch, channel: TaskChannel) -> None:
        """Wait until the message has entered the task, unless it has to wait behind others."""
        if _is_busy(head):
            return
        patience = self.ASKED_PATIENCE if head.running else self.IDLE_PATIENCE
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not (watch.started or watch.ended):
                    await channel.changed()

    async def _repeat(
        self, operation: Operation, request: pb.SendMessageRequest
    ) -> pb.Task | pb.Message:
        """What an earlier operation came to, or comes to."""
        with (
            self._bus.channel(operation.task_id) as channel,
            channel.watch(operation.id) as watch,
        ):
            await self._bus.attached(operation.task_id)
            # Looked up once more now that the channel is open: its end is not missed.
            operation = await self._storage.load_operation(operation.id) or operation
            if operation.outcome is not None:
                return await self._outcome(operation, operation.outcome, request)
            head = await self._storage.load_head(operation.task_id)
            immediately = request.configuration.return_immediately
            if head is None and immediately:
                while not (channel.version or watch.ended):
                    await channel.changed()
                if watch.ended is None:
                    return await self._task_result(operation.task_id, None, request)
            if head is not None and (immediately or _is_interrupted_by(operation, head)):
                return await self._task_result(operation.task_id, head.version, request)
            return await self._result(operation, await watch.settled, request)

    async def _result(
        self,
        operation: Operation,
        settled: Committed,
        request: pb.SendMessageRequest,
        channel: TaskChannel | None = None,
    ) -> pb.Task | pb.Message:
        if settled.outcome is not None and settled.outcome.kind is not OutcomeKind.TASK:
            return await self._outcome(operation, settled.outcome, request)
        if channel is not None and (task := _folded(channel, settled)) is not None:
            trim_history(task, _history_length(request.configuration))
            return task
        return await self._task_result(operation.task_id, settled.version, request)

    async def _outcome(
        self, operation: Operation, outcome: Outcome, request: pb.SendMessageRequest
    ) -> pb.Task | pb.Message:
        if (error := outcome.error()) is not None:
            raise error
        if outcome.kind is OutcomeKind.MESSAGE:
            return pb.Message.FromString(outcome.payload)
        return await self._task_result(operation.task_id, outcome.version, request)

    async def _task_result(
        self, task_id: str, version: int | None, request: pb.SendMessageRequest
    ) -> pb.Task:
        history_length = _history_length(request.configuration)
        try:
            snapshot = await self._storage.load_snapshot(
                task_id, version=version, history_length=history_length
            )
        except LogTruncatedError:
            snapshot = await self._storage.load_snapshot(task_id, history_length=history_length)
        if snapshot is None:
            raise TaskNotFoundError.of(task_id)
        return snapshot.task

    async def send_streaming_message(
        self, request: pb.SendMessageRequest, call: ServerCallContext
    ) -> AsyncIterator[bytes]:
        """Specification 3.1.2: serialized StreamResponses, the Task first, or one Message."""
        self._require_streaming(call)
        prepared = await self._admission.prepare(request, call)
        operation, head = prepared.operation, prepared.head
        history_length = _history_length(request.configuration)
        numbered = SEQUENCE_EXTENSION in call.requested_extensions
        async with Subscription(self._storage, self._bus, operation.task_id) as subscription:
            watch = subscription.watch(operation.id)
            taken_in = await self._admission.take_in(prepared, call)
            if taken_in.id == operation.id:
                if head is not None:
                    # The Task as the turn begins; one that is busy is shown, and followed, at once.
                    await self._message_is_in(head, watch, subscription.channel)
                    version = watch.started.version if watch.started else None
                    yield await self._first(subscription, version, history_length, numbered)
                async for event in self._follow(subscription, history_length, numbered):
                    yield event
                return
        async for event in self._stream_again(taken_in, history_length, numbered):
            yield event

    async def _stream_again(
        self, operation: Operation, history_length: int | None, numbered: bool
    ) -> AsyncIterator[bytes]:
        """Follow an earlier operation: the Task as it is now, then the rest; or the Message."""
        async with Subscription(self._storage, self._bus, operation.task_id) as subscription:
            subscription.watch(operation.id)
            operation = await self._storage.load_operation(operation.id) or operation
            outcome = operation.outcome
            if outcome is not None and outcome.kind is OutcomeKind.MESSAGE:
                yield _response(pb.Message.FromString(outcome.payload))
                return
            if outcome is not None and (error := outcome.error()) is not None:
                raise error
            if outcome is not None or await self._storage.load_head(operation.task_id) is not None:
                version = None if outcome is None else outcome.version
                yield await self._first(subscription, version, history_length, numbered)
            if outcome is None:
                async for event in self._follow(subscription, history_length, numbered):
                    yield event

    async def _first(
        self,
        subscription: Subscription,
        version: int | None,
        history_length: int | None,
        numbered: bool,
    ) -> bytes:
        """The Task with which a stream begins; the subscription goes on after it."""
        try:
            snapshot = await subscription.begin(version)
        except LogTruncatedError:
            snapshot = await subscription.begin()
        trim_history(snapshot.task, history_length)
        first = Streamed(snapshot.sequence, _response(snapshot.task))
        return first.stamped() if numbered else first.payload

    async def _follow(
        self, subscription: Subscription, history_length: int | None, numbered: bool
    ) -> AsyncIterator[bytes]:
        async for event in subscription.events():
            if history_length is not None and event.is_task:
                event = event._replace(payload=_trimmed(event.payload, history_length))
            yield event.stamped() if numbered else event.payload

    # Reading and canceling.

    async def get_task(self, request: pb.GetTaskRequest, call: ServerCallContext) -> pb.Task:
        """Specification 3.1.3."""
        snapshot = await self._storage.load_snapshot(
            request.id, scope=scope_of(call), history_length=_history_length(request)
        )
        if snapshot is None:
            raise TaskNotFoundError.of(request.id)
        return snapshot.task

    async def list_tasks(
        self, request: pb.ListTasksRequest, call: ServerCallContext
    ) -> pb.ListTasksResponse:
        """Specification 3.1.4: newest status first, by cursor."""
        since = 0
        if request.HasField("status_timestamp_after"):
            since = request.status_timestamp_after.ToNanoseconds()
        query = TaskQuery(
            scope=scope_of(call),
            context_id=request.context_id,
            state=request.status,
            updated_since=since,
            page_size=request.page_size if request.HasField("page_size") else 50,
            history_length=_history_length(request),
            include_artifacts=request.include_artifacts,
        )
        filters = f"{query.context_id}\n{query.state}\n{query.updated_since}"
        if request.page_token:
            query = query._replace(after=read_page_token(request.page_token, filters))
        page = await self._storage.list_tasks(query)
        return pb.ListTasksResponse(
            tasks=page.tasks,
            next_page_token=(
                "" if page.next_after is None else page_token(page.next_after, filters)
            ),
            page_size=query.page_size,
            total_size=page.total,
        )

    async def cancel_task(self, request: pb.CancelTaskRequest, call: ServerCallContext) -> pb.Task:
        """Specification 3.1.5: through the agent if a turn runs, directly if none does."""
        scope = scope_of(call)
        asked = False
        with self._bus.channel(request.id) as channel:
            await self._bus.attached(request.id)
            while True:
                head = await self._storage.load_head(request.id, scope=scope)
                if head is None:
                    raise TaskNotFoundError.of(request.id)
                if head.state in TERMINAL_STATES:
                    if asked and head.state == pb.TaskState.TASK_STATE_CANCELED:
                        break
                    raise TaskNotCancelableError(
                        f"task {request.id!r} has already ended",
                        metadata={"task_id": request.id},
                    )
                if not head.running:
                    asked = True
                    if await cancel_idle_task(self._storage, self._bus, head, self._on_commit):
                        break
                    continue
                # Asked again at every look: whoever runs the task counts it once.
                await self._ask_to_cancel(request.id)
                asked = True
                try:
                    async with asyncio.timeout(self._settings.cancel_poll):
                        await channel.changed()
                except TimeoutError:
                    continue
        return await self.get_task(pb.GetTaskRequest(tenant=request.tenant, id=request.id), call)

    async def _ask_to_cancel(self, task_id: str) -> None:
        """Tell whoever runs the task, at once; and by way of storage, should that not arrive."""
        try:
            await self._broker.cancel_task(TaskIdParams(task_id))
        except UnavailableError as error:
            logger.warning("task %s: canceling takes longer: %s", task_id, error)
        await self._storage.request_cancel(task_id)

    async def subscribe_to_task(
        self, request: pb.SubscribeToTaskRequest, call: ServerCallContext
    ) -> AsyncIterator[bytes]:
        """Specification 3.1.6: the Task, then its events; serialized StreamResponses.

        A client that names the last sequence number it saw (metadata `last-event-id`) gets the Task
        without artifacts and the events after that number, also when the task has ended; or, when
        the log no longer reaches back, the full Task, marked as a reset.
        """
        self._require_streaming(call)
        scope = scope_of(call)
        seen = _last_sequence(call)
        numbered = seen is not None or SEQUENCE_EXTENSION in call.requested_extensions
        async with Subscription(self._storage, self._bus, request.id) as subscription:
            snapshot = await self._storage.load_snapshot(request.id, scope=scope)
            if snapshot is None:
                raise TaskNotFoundError.of(request.id)
            state = snapshot.task.status.state
            if state in TERMINAL_STATES and seen is None:
                raise UnsupportedOperationError(
                    f"task {request.id!r} has ended; read it with GetTask",
                    metadata={"task_id": request.id},
                )
            after, reset = snapshot.sequence, False
            if seen is not None:
                if seen > snapshot.sequence:
                    raise InvalidParamsError.field(
                        LAST_SEQUENCE, f"the task has only {snapshot.sequence} events"
                    )
                try:
                    await self._storage.load_events(request.id, seen, 1)
                except LogTruncatedError:
                    reset = True
                else:
                    after = seen
                    snapshot.task.ClearField("artifacts")
            subscription.start_from(snapshot, after=after)
            first = Streamed(after, _response(snapshot.task), reset)
            yield first.stamped() if numbered else first.payload
            async for event in subscription.events():
                yield event.stamped() if numbered else event.payload

    # Push configurations.

    async def create_push_config(
        self, request: pb.TaskPushNotificationConfig, call: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Specification 3.1.7; without an id, the configuration gets one."""
        require_push(self._cards_for(call.tenant).public)
        head = await self._visible_task(request.task_id, call)
        config = pb.TaskPushNotificationConfig()
        config.CopyFrom(request)
        self._admission.check_push_config(config)
        await self._admission.check_push_room(head.task_id, config.id)
        await self._storage.save_push_config(config, scope=head.scope)
        self._on_push_config(head.task_id)
        return config

    async def get_push_config(
        self, request: pb.GetTaskPushNotificationConfigRequest, call: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """Specification 3.1.8; an unknown configuration is a TaskNotFoundError."""
        require_push(self._cards_for(call.tenant).public)
        head = await self._visible_task(request.task_id, call)
        for target in await self._storage.load_push_configs(head.task_id):
            if target.config.id == request.id:
                return target.config
        raise TaskNotFoundError(
            f"task {head.task_id!r} has no push configuration {request.id!r}",
            metadata={"task_id": head.task_id, "id": request.id},
        )

    async def list_push_configs(
        self, request: pb.ListTaskPushNotificationConfigsRequest, call: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """Specification 3.1.9, by id; without a page size, all of them."""
        require_push(self._cards_for(call.tenant).public)
        head = await self._visible_task(request.task_id, call)
        configs = [t.config for t in await self._storage.load_push_configs(head.task_id)]
        if request.page_token:
            _, last = read_page_token(request.page_token, head.task_id)
            configs = [config for config in configs if config.id > last]
        page = configs[: request.page_size or None]
        more = len(page) < len(configs)
        return pb.ListTaskPushNotificationConfigsResponse(
            configs=page,
            next_page_token=page_token((0, page[-1].id), head.task_id) if more else "",
        )

    async def delete_push_config(
        self, request: pb.DeleteTaskPushNotificationConfigRequest, call: ServerCallContext
    ) -> None:
        """Specification 3.1.10: idempotent."""
        require_push(self._cards_for(call.tenant).public)
        head = await self._visible_task(request.task_id, call)
        await self._storage.delete_push_config(head.task_id, request.id)

    async def _visible_task(self, task_id: str, call: ServerCallContext) -> Head:
        head = await self._storage.load_head(task_id, scope=scope_of(call))
        if head is None:
            raise TaskNotFoundError.of(task_id)
        return head

    # Cards and capabilities (specification 3.3.4).

    async def get_extended_agent_card(
        self, request: pb.GetExtendedAgentCardRequest, call: ServerCallContext
    ) -> pb.AgentCard:
        """Specification 3.1.11: for authenticated callers, if the card declares how to be one."""
        cards = self._cards_for(call.tenant)
        if not cards.public.capabilities.extended_agent_card:
            raise UnsupportedOperationError(
                "this agent does not declare the capability extended_agent_card in its card"
            )
        if cards.public.security_schemes and not call.principal.is_authenticated:
            schemes = ", ".join(sorted(cards.public.security_schemes))
            raise UnauthenticatedError(
                f"the extended card needs credentials of one of the card's schemes: {schemes}"
            )
        if cards.extended is None:
            raise ExtendedAgentCardNotConfiguredError()
        return await cards.extended(call)

    def _require_streaming(self, call: ServerCallContext) -> None:
        if not self._cards_for(call.tenant).public.capabilities.streaming:
            raise UnsupportedOperationError(
                "this agent does not declare the capability streaming in its card; use SendMessage"
            )


def _folded(channel: TaskChannel, committed: Committed) -> pb.Task | None:
    """The task as of a commit, if the channel holds all that makes it."""
    count = committed.sequence
    # A version more than events is a message of the user, which is no event.
    if not count or committed.version != count:
        return None
    events = channel.read(0)
    if events is None or len(events) < count:
        return None
    fold = TaskFold()
    fold.apply(
        LogEntry(number, number, EntryKind.EVENT, payload)
        for number, payload in enumerate(events[:count], 1)
    )
    return fold.task


def _is_busy(head: Head) -> bool:
    # An agent that has asked for input is about to return.
    return head.running and head.state != pb.TaskState.TASK_STATE_INPUT_REQUIRED


def _is_interrupted_by(operation: Operation, head: Head) -> bool:
    # That the state is of this turn, and not of the one before, shows in its timestamp.
    return (
        head.state in INTERRUPTED_STATES
        and operation.state is OperationState.STARTED
        and (operation.creates_task or head.status_at >= operation.created_at * 1e9)
    )


def _history_length(
    request: pb.GetTaskRequest | pb.ListTasksRequest | pb.SendMessageConfiguration,
) -> int | None:
    return request.history_length if request.HasField("history_length") else None


def _response(result: pb.Task | pb.Message) -> bytes:
    if isinstance(result, pb.Task):
        return pb.StreamResponse(task=result).SerializeToString()
    return pb.StreamResponse(message=result).SerializeToString()


def _trimmed(payload: bytes, history_length: int) -> bytes:
    event = pb.StreamResponse.FromString(payload)
    if event.HasField("task"):
        trim_history(event.task, history_length)
    return event.SerializeToString()


def _last_sequence(call: ServerCallContext) -> int | None:
    value = call.metadata.get(LAST_SEQUENCE)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise InvalidParamsError.field(LAST_SEQUENCE, "must be a sequence number, such as 17")
    return int(value)
