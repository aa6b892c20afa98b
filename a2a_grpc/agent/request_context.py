"""What an agent is told about the request it works on, and how that is put together."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.agent.conversation import Conversation
from a2a_grpc.agent.dependencies import NO_DEPENDENCIES
from a2a_grpc.agent.values import from_struct, text_of
from a2a_grpc.errors import InvalidParamsError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    Scope,
)


@dataclass(frozen=True, slots=True)
class IDGeneratorContext:
    """What is known already when an id is generated."""

    task_id: str | None = None
    context_id: str | None = None


class IDGenerator(Protocol):
    """Makes ids that are unique for ever and hard to guess."""

    def generate(self, context: IDGeneratorContext) -> str:
        """A new id."""
        ...


class UUIDGenerator:
    """Random UUIDs."""

    def generate(self, context: IDGeneratorContext) -> str:
        """A new random UUID."""
        return str(uuid.uuid4())


class RequestContext:
    """One request to an agent: the message, the task it belongs to, and the call that brought it.

    For `AgentExecutor.cancel` there is no message.

    Args:
        call_context: the call.
        request: the request; its message carries both ids when it comes from the engine.
        task_id, context_id: where the message carries none, or to be checked against it.
        task: the task as it is before this request; None for a new one.
        related_tasks: the tasks that the message refers to, as far as they are the caller's.
        attempt: 1, or more if the process died that tried before.

    Attributes:
        current_task: the task as it is before this request; None for a new one.
        is_cancelled: whether the task is being canceled.
        deps: the server's dependencies, by type or name.
        conversation: what is kept of the context id; None outside a server.

    Raises:
        InvalidParamsError: ids that contradict one another.
    """

    def __init__(
        self,
        call_context: ServerCallContext,
        request: pb.SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: pb.Task | None = None,
        related_tasks: list[pb.Task] | None = None,
        task_id_generator: IDGenerator | None = None,
        context_id_generator: IDGenerator | None = None,
        *,
        attempt: int = 1,
    ) -> None:
        message = request.message if request is not None else None
        sent = message.task_id if message is not None else ""
        sent_context = message.context_id if message is not None else ""
        if task_id and sent and task_id != sent:
            raise InvalidParamsError.field("message.task_id", f"is not {task_id!r}")
        if context_id and sent_context and context_id != sent_context:
            raise InvalidParamsError.field("message.context_id", f"is not {context_id!r}")
        if task is not None:
            task_id, context_id = task_id or task.id, context_id or task.context_id
            if task.id != task_id:
                raise InvalidParamsError.field("message.task_id", f"is not {task.id!r}")
            if task.context_id != context_id:
                raise InvalidParamsError.field("message.context_id", f"is not {task.context_id!r}")
        self._task_id: str = task_id or sent
        self._context_id: str = context_id or sent_context
        if not self._task_id:
            self._task_id = (task_id_generator or UUIDGenerator()).generate(
                IDGeneratorContext(context_id=self._context_id or None)
            )
        if not self._context_id:
            self._context_id = (context_id_generator or UUIDGenerator()).generate(
                IDGeneratorContext(task_id=self._task_id)
            )
        if message is not None:
            message.task_id, message.context_id = self._task_id, self._context_id
        self._request = request
        self._call_context = call_context
        self._related_tasks = list(related_tasks or ())
        self._attached_tasks: list[pb.Task] = []
        self._attempt = attempt
        self.current_task = task
        self.is_cancelled = False
        self.deps = NO_DEPENDENCIES
        self.conversation: Conversation | None = None

    @property
    def request(self) -> pb.SendMessageRequest | None:
        """The whole request; None for `cancel`."""
        return self._request

    @property
    def message(self) -> pb.Message | None:
        """The user's message; None for `cancel`."""
        return None if self._request is None else self._request.message

    @property
    def task_id(self) -> str:
        """The id of the task, also before the agent creates it."""
        return self._task_id

    @property
    def context_id(self) -> str:
        """The id of the context that groups tasks of one conversation (specification 3.4.1)."""
        return self._context_id

    @property
    def related_tasks(self) -> list[pb.Task]:
        """The tasks that `message.reference_task_ids` name, and those attached since."""
        return [*self._related_tasks, *self._attached_tasks]

    @property
    def attached_tasks(self) -> list[pb.Task]:
        """The tasks attached so far."""
        return list(self._attached_tasks)

    def attach_related_task(self, task: pb.Task) -> None:
        """Have another, finished task stored with this turn.

        It must be terminal, and its id new or one of the caller's own; otherwise the turn ends with
        InvalidAgentResponseError.
        """
        self._attached_tasks.append(task)

    @property
    def attempt(self) -> int:
        """How often `execute()` was started for this message, this time included."""
        return self._attempt

    @property
    def configuration(self) -> pb.SendMessageConfiguration | None:
        """The request's configuration (specification 3.2.2); None for `cancel`."""
        return None if self._request is None else self._request.configuration

    @property
    def call_context(self) -> ServerCallContext:
        """Principal, tenant, deadline, extensions and allow-listed metadata of the call."""
        return self._call_context

    @property
    def metadata(self) -> dict[str, Any]:
        """The request's metadata; whole numbers as int."""
        return {} if self._request is None else from_struct(self._request.metadata)

    @property
    def requested_extensions(self) -> set[str]:
        """URIs of the extensions that the client asked for (specification 4.6)."""
        return set(self._call_context.requested_extensions)

    @property
    def tenant(self) -> str:
        """The request's tenant, "" if it names none."""
        return self._call_context.tenant

    def get_user_input(self, delimiter: str = "\n") -> str:
        """The text parts of the message, joined; "" if there are none."""
        return "" if self._request is None else text_of(self._request.message.parts, delimiter)


class RequestContextBuilder(ABC):
    """Makes the RequestContext of a turn, and the ids of new tasks and contexts."""

    def __init__(
        self,
        task_id_generator: IDGenerator | None = None,
        context_id_generator: IDGenerator | None = None,
    ) -> None:
        self.task_id_generator: IDGenerator = task_id_generator or UUIDGenerator()
        self.context_id_generator: IDGenerator = context_id_generator or UUIDGenerator()

    @abstractmethod
    async def build(
        self,
        context: ServerCallContext,
        params: pb.SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: pb.Task | None = None,
        *,
        attempt: int = 1,
    ) -> RequestContext:
        """The context of one turn; see `RequestContext` for the arguments."""


class SimpleRequestContextBuilder(RequestContextBuilder):
    """Loads the tasks that the message refers to.

    Args:
        should_populate_referred_tasks: whether `reference_task_ids` are loaded into
            `related_tasks`; only those of the same principal and tenant are found.
        task_store: the storage to load from; the server fills in its own.
    """

    MAX_REFERRED_TASKS = 32
    """Tasks that one message may have loaded; a message that names more is refused."""

    def __init__(
        self,
        should_populate_referred_tasks: bool = True,
        task_store: AnyStorage | None = None,
        task_id_generator: IDGenerator | None = None,
        context_id_generator: IDGenerator | None = None,
    ) -> None:
        super().__init__(task_id_generator, context_id_generator)
        self.task_store = task_store
        self._should_populate_referred_tasks = should_populate_referred_tasks

    async def build(
        self,
        context: ServerCallContext,
        params: pb.SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: pb.Task | None = None,
        *,
        attempt: int = 1,
    ) -> RequestContext:
        related: list[pb.Task] = []
        if self._should_populate_referred_tasks and params is not None and self.task_store:
            if len(params.message.reference_task_ids) > self.MAX_REFERRED_TASKS:
                raise InvalidParamsError.field(
                    "message.reference_task_ids",
                    f"names more than {self.MAX_REFERRED_TASKS} tasks; name fewer",
                )
            scope = Scope(context.tenant, context.principal.id)
            for referred in dict.fromkeys(params.message.reference_task_ids):
                found = await self.task_store.load_task(referred, scope=scope)
                if found is not None:
                    related.append(found)
        return RequestContext(
            context,
            params,
            task_id,
            context_id,
            task,
            related,
            self.task_id_generator,
            self.context_id_generator,
            attempt=attempt,
        )
