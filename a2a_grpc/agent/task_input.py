"""What a turn has to go on: the message, the task so far, the call, and what lasts beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.agent.content import (
    FileInfo,
    HistoryMessage,
    PreviousArtifact,
    data_of,
    files_of,
    previous_artifact,
    said_before,
)
from a2a_grpc.agent.dependencies import Dependencies
from a2a_grpc.agent.read_only import computed_once
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.agent.values import from_struct
from a2a_grpc.media_types import is_listed


class TaskInput:
    """A request to an agent as plain values, read-only; a `TaskContext` without what it says.

    Args:
        context: the request.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    # The message, and what it belongs to.

    @property
    def message(self) -> pb.Message:
        """The message as it was sent; without parts in `Worker.cancel`, where there is none."""
        return self._context.message or pb.Message()

    @property
    def user_text(self) -> str:
        """The text parts of the message, joined by line breaks; "" if there are none."""
        return self._context.get_user_input()

    @property
    def parts(self) -> Sequence[pb.Part]:
        """The parts of the message."""
        return self.message.parts

    @computed_once
    def files(self) -> list[FileInfo]:
        """The files that came with the message."""
        return files_of(self.parts)

    @computed_once
    def data_parts(self) -> list[Any]:
        """The JSON values that came with the message; whole numbers as int."""
        return data_of(self.parts)

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._context.task_id

    @property
    def context_id(self) -> str:
        """The id of the conversation that the task belongs to."""
        return self._context.context_id

    @property
    def message_id(self) -> str:
        """The message's id, which its sender chose."""
        return self.message.message_id

    @computed_once
    def metadata(self) -> dict[str, Any]:
        """The metadata of the request, and over it that of its message; whole numbers as int."""
        return {**self._context.metadata, **from_struct(self.message.metadata)}

    @computed_once
    def history(self) -> list[HistoryMessage]:
        """What was said in this task before this message, oldest first; `[]` in its first turn.

        When `attempt` is above 1, also what the agent said before it was cut off.
        """
        task = self._context.current_task
        return [] if task is None else said_before(task, self.message_id)

    @computed_once
    def previous_artifacts(self) -> list[PreviousArtifact]:
        """The artifacts that the task has from earlier turns.

        When `attempt` is above 1, also those that the agent had begun before it was cut off.
        """
        task = self._context.current_task
        return [] if task is None else [previous_artifact(artifact) for artifact in task.artifacts]

    @property
    def related_tasks(self) -> list[pb.Task]:
        """The tasks that the message refers to, as far as they are the caller's."""
        return self._context.related_tasks

    # The call, and the server.

    @property
    def call(self) -> ServerCallContext:
        """Principal, tenant, deadline, extensions and allow-listed metadata of the call."""
        return self._context.call_context

    @property
    def request_context(self) -> Mapping[str, Any]:
        """What the server's middleware learned about the call.

        It is never stored, so it is empty when `attempt` is above 1.
        """
        return MappingProxyType(self._context.call_context.request_context)

    @property
    def deps(self) -> Dependencies:
        """The server's dependencies: `ctx.deps[Database]`, `ctx.deps.get("name", default)`."""
        return self._context.deps

    @property
    def attempt(self) -> int:
        """How often `handle` was started for this message, this time included."""
        return self._context.attempt

    @property
    def is_cancelled(self) -> bool:
        """Whether the task is being canceled; `handle` is cancelled soon after."""
        return self._context.is_cancelled

    def accepts(self, mime_type: str) -> bool:
        """Whether the client takes this media type: it listed it, or a pattern for it, or nothing.

        Case and parameters do not matter (specification 3.2.2, `accepted_output_modes`).
        """
        configuration = self._context.configuration
        listed = () if configuration is None else configuration.accepted_output_modes
        return not listed or is_listed(mime_type, listed)

    # What lasts beyond the task.

    async def load_context(self) -> Any:
        """What `update_context` kept for this context id and caller; None if nothing was."""
        conversation = self._context.conversation
        return None if conversation is None else await conversation.load()

    async def update_context(self, context: Any) -> None:
        """Keep any JSON value for this context id and caller, in place of the former one.

        Raises ValueError for what is no JSON.
        """
        if self._context.conversation is not None:
            await self._context.conversation.update(context)

    async def conversation(self, *, limit: int = 100) -> list[HistoryMessage]:
        """What was said under this context id before this message, oldest first, in all tasks.

        This task's come last. At most the newest `limit` messages. An artifact counts as said by
        the agent. Direct replies leave no task, so they are not in it.
        """
        if self._context.conversation is None or limit < 1:
            return []
        return await self._context.conversation.messages(
            limit=limit,
            task_id=self.task_id,
            current=self._context.current_task,
            message_id=self.message_id,
        )
