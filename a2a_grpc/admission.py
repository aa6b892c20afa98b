"""Admission: a message becomes an operation, or is refused before anything is recorded.

Here a call is checked against the card and the task it names, duplicates are found, ids are given,
and what an operation carries along is chosen: principal, tenant, extensions, deadline and the
allow-listed metadata, never credentials.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.agent.request_context import IDGeneratorContext, RequestContextBuilder
from a2a_grpc.broker.base import Broker, TaskSendParams
from a2a_grpc.bus.base import Committed, EventBus
from a2a_grpc.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    ResourceExhaustedError,
    TaskNotFoundError,
)
from a2a_grpc.extensions import RETRY_MARK
from a2a_grpc.media_types import essence, is_listed
from a2a_grpc.push.guard import check_config
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    NO_SCOPE,
    Head,
    Operation,
    Scope,
    error_outcome,
    task_ended,
)
from a2a_grpc.task import TERMINAL_STATES
from a2a_grpc.transient import TransientContexts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How calls are admitted and answered.

    Attributes:
        deduplicate: which SendMessage calls are looked up among earlier ones: those that are marked
            as retries, all, or none.
        deduplication_window: seconds for which a message is remembered.
        operation_metadata: keys of the call metadata that an operation carries to the agent.
        allow_private_webhooks: whether push targets may be in private networks.
        max_push_configs: push configurations per task.
        runs_agents: whether this process works on operations, or others do.
        cancel_poll: seconds between looks into storage while a cancellation is under way.
    """

    deduplicate: Literal["marked", "always", "never"] = "marked"
    deduplication_window: float = 300.0
    operation_metadata: tuple[str, ...] = ("traceparent", "tracestate", "x-request-id")
    allow_private_webhooks: bool = False
    max_push_configs: int = 100
    runs_agents: bool = True
    cancel_poll: float = 1.0


class Prepared(NamedTuple):
    """An operation that may be recorded.

    `head` is that of the task which the message names; `duplicates_since` is in seconds since the
    epoch, None if the message is not looked up among earlier ones.
    """

    operation: Operation
    head: Head | None
    push_config: pb.TaskPushNotificationConfig | None
    duplicates_since: float | None


class Admission:
    """Takes messages in.

    Args:
        card_for: the public card of a tenant's agent; raises InvalidParamsError for an unknown one.
        on_push_config: called with the task's id when a message brings a push configuration.
        transient: request contexts of middleware, on their way to the agent.
    """

    def __init__(
        self,
        *,
        storage: AnyStorage,
        broker: Broker,
        bus: EventBus,
        builder: RequestContextBuilder,
        card_for: Callable[[str], pb.AgentCard],
        on_push_config: Callable[[str], None],
        transient: TransientContexts,
        settings: ServiceSettings,
    ) -> None:
        self._storage = storage
        self._broker = broker
        self._bus = bus
        self._builder = builder
        self._card_for = card_for
        self._on_push_config = on_push_config
        self._transient = transient
        self._settings = settings
        self._under_way: set[asyncio.Task[Operation]] = set()

    async def prepare(self, request: pb.SendMessageRequest, call: ServerCallContext) -> Prepared:
        """Check the message and make it an operation (specification 3.1.1, 3.4)."""
        scope = scope_of(call)
        message = request.message
        card = self._card_for(call.tenant)
        _check_media_types(message, card)
        # Before the ids are filled in: a retry looks like the first call did.
        key = _deduplication_key(message, scope)
        push_config = self._inline_push_config(request, card)
        head = await self._head_of(message, scope)
        if head is not None and push_config is not None:
            await self.check_push_room(head.task_id, push_config.id)
        looks_up = self._looks_up(call)
        if head is not None and head.state in TERMINAL_STATES and not looks_up:
            raise task_ended(head.task_id, head.state)
        self._fill_in_ids(message, head)
        if push_config is not None:
            push_config.task_id = message.task_id
        now = time.time()
        operation = Operation(
            id=str(uuid.uuid4()),
            task_id=message.task_id,
            context_id=message.context_id,
            request=request,
            scope=scope,
            creates_task=head is None,
            deadline=call.deadline,
            metadata={
                key: call.metadata[key]
                for key in self._settings.operation_metadata
                if key in call.metadata
            },
            extensions=tuple(sorted(call.requested_extensions)),
            deduplication_key=key,
            created_at=now,
            runs_here=bool(call.request_context),
        )
        if operation.runs_here and not self._settings.runs_agents:
            logger.error("middleware gave a request_context, and no agent runs in this process")
            raise InternalError
        since = now - self._settings.deduplication_window if looks_up else None
        return Prepared(operation, head, push_config, since)

    async def take_in(self, prepared: Prepared, call: ServerCallContext) -> Operation:
        """Record the operation and hand it to the broker; or the earlier one that it repeats.

        A caller who goes away meanwhile does not stop it half-way: what is recorded also runs.
        """
        if not (self._storage.waits or self._broker.waits):
            return await self._take_in(prepared, call.request_context)
        task = asyncio.create_task(
            self._take_in(prepared, call.request_context),
            name=f"take-in:{prepared.operation.task_id}",
        )
        self._under_way.add(task)
        task.add_done_callback(self._is_over)
        return await asyncio.shield(task)

    def _is_over(self, task: asyncio.Task[Operation]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # nobody asks for it if the caller went away

    async def _take_in(self, prepared: Prepared, request_context: dict[str, Any]) -> Operation:
        operation_id = prepared.operation.id
        # Before it is recorded: whoever has the task may begin with it at once.
        self._transient.keep(operation_id, request_context)
        try:
            operation = await self._storage.admit(
                prepared.operation,
                duplicates_since=prepared.duplicates_since,
                push_config=prepared.push_config,
            )
            if operation.id != operation_id:
                self._transient.take(operation_id)
                return operation
            if prepared.push_config is not None:
                self._on_push_config(operation.task_id)
            await self._submit(prepared, operation)
        except BaseException:
            self._transient.take(operation_id)
            raise
        return operation

    async def _submit(self, prepared: Prepared, operation: Operation) -> None:
        """Hand a recorded operation to the broker; what that refuses is over."""
        try:
            await self._broker.run_task(
                TaskSendParams(operation.task_id, operation.id, here=operation.runs_here)
            )
        except A2AError as error:
            # The caller is told, and whoever sent the same, so the record must not run later.
            outcome = error_outcome(error, refused=True)
            if not await self._storage.refuse_operation(operation.id, outcome):
                return  # whoever holds the task found it in storage, and works on it
            await self._bus.publish(
                Committed(operation.task_id, 0, 0, 0, operation_id=operation.id, outcome=outcome)
            )
            if prepared.push_config is not None and prepared.head is None:
                # Of a task that will never be.
                await self._storage.delete_push_config(operation.task_id, prepared.push_config.id)
            raise

    async def _head_of(self, message: pb.Message, scope: Scope) -> Head | None:
        if not message.task_id:
            return None
        head = await self._storage.load_head(message.task_id, scope=scope)
        if head is None:
            raise TaskNotFoundError.of(message.task_id)
        if message.context_id and message.context_id != head.context_id:
            raise InvalidParamsError.field(
                "message.context_id",
                f"is not the context of task {head.task_id!r}; leave it out or send the task's",
            )
        return head

    def _fill_in_ids(self, message: pb.Message, head: Head | None) -> None:
        if head is not None:
            message.context_id = head.context_id
            return
        builder = self._builder
        message.task_id = builder.task_id_generator.generate(
            IDGeneratorContext(context_id=message.context_id or None)
        )
        if not message.context_id:
            message.context_id = builder.context_id_generator.generate(
                IDGeneratorContext(task_id=message.task_id)
            )

    def _looks_up(self, call: ServerCallContext) -> bool:
        if self._settings.deduplicate == "always":
            return True
        return self._settings.deduplicate == "marked" and _is_marked_as_retry(call)

    def _inline_push_config(
        self, request: pb.SendMessageRequest, card: pb.AgentCard
    ) -> pb.TaskPushNotificationConfig | None:
        if not request.configuration.HasField("task_push_notification_config"):
            return None
        require_push(card)
        field = "configuration.task_push_notification_config."
        config = pb.TaskPushNotificationConfig()
        config.CopyFrom(request.configuration.task_push_notification_config)
        if config.task_id and config.task_id != request.message.task_id:
            raise InvalidParamsError.field(
                f"{field}task_id", "is not the message's task; leave it out"
            )
        self.check_push_config(config, field)
        config.tenant = request.tenant
        return config

    async def check_push_room(self, task_id: str, config_id: str) -> None:
        """Raises ResourceExhaustedError if the task has no room for another configuration."""
        targets = await self._storage.load_push_configs(task_id)
        if len(targets) >= self._settings.max_push_configs and all(
            target.config.id != config_id for target in targets
        ):
            raise ResourceExhaustedError(
                f"task {task_id!r} has {len(targets)} push configurations; delete one first"
            )

    def check_push_config(self, config: pb.TaskPushNotificationConfig, prefix: str = "") -> None:
        """Check a configuration and give it an id; `prefix` is its path in the request.

        Raises InvalidParamsError.
        """
        check_config(config, allow_private=self._settings.allow_private_webhooks, prefix=prefix)
        config.id = config.id or str(uuid.uuid4())


def scope_of(call: ServerCallContext) -> Scope:
    """Whose data the call may see."""
    tenant, principal = call.tenant, call.principal.id
    # The one scope of an open server is kept with every operation and task: one object will do.
    return Scope(tenant, principal) if tenant or principal else NO_SCOPE


def require_push(card: pb.AgentCard) -> None:
    """Raises PushNotificationNotSupportedError unless the card declares push (3.3.4)."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError()


def _deduplication_key(message: pb.Message, scope: Scope) -> bytes:
    # The message holds its id; the lengths keep (ab, c) and (a, bc) apart.
    owner = f"{len(scope.tenant)} {len(scope.principal)} {scope.tenant}{scope.principal}".encode()
    content = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(owner + b"\0" + content, digest_size=16).digest()


def _is_marked_as_retry(call: ServerCallContext) -> bool:
    metadata = call.metadata
    return (
        metadata.get("grpc-previous-rpc-attempts", "0") != "0"
        or metadata.get("x-envoy-attempt-count", "1") != "1"
        or RETRY_MARK in metadata
    )


def _check_media_types(message: pb.Message, card: pb.AgentCard) -> None:
    accepted: set[str] | None = None
    for index, part in enumerate(message.parts):
        if not part.media_type:
            continue
        if accepted is None:
            modes = [*card.default_input_modes]
            for skill in card.skills:
                modes.extend(skill.input_modes)
            accepted = {essence(mode) for mode in modes}
        if accepted and not is_listed(part.media_type, accepted):
            raise ContentTypeNotSupportedError(
                f"message.parts[{index}] has media type {part.media_type!r}; this agent takes "
                + ", ".join(sorted(accepted)),
                metadata={"media_type": part.media_type},
            )
