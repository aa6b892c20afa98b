"""The comfortable view of one turn: what came in as plain values, what goes out as method calls.

Here is what goes out; what came in is `TaskInput`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from a2a_grpc import pb
from a2a_grpc.agent.executor import EventQueue
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.agent.spoken import (
    artifact_named,
    data_part,
    file_part,
    strings,
    struct,
    text_part,
    valid_text,
)
from a2a_grpc.agent.task_input import TaskInput
from a2a_grpc.agent.turn_events import TurnEvents, says

logger = logging.getLogger(__name__)

FINAL_ARTIFACT = "final-answer"
STREAMED_ARTIFACT = "answer"

LIFECYCLE_METHODS = (
    "complete",
    "complete_json",
    "respond",
    "reply_directly",
    "fail",
    "reject",
    "request_input",
    "request_auth",
)
"""Exactly one of them ends a turn."""


class TaskContext(TaskInput):
    """One turn of a task, for `Worker.handle`.

    Exactly one lifecycle method ends the turn: `complete`, `complete_json`, `respond`,
    `reply_directly`, `fail`, `reject`, `request_input` or `request_auth`. What it says (artifact,
    state and message) is stored in one commit, together with what is pending. Every method that
    says something raises RuntimeError once the turn has been ended or `handle` has returned, and
    TypeError or ValueError, naming the argument, for what can't be sent; then nothing was said.
    """

    def __init__(
        self, context: RequestContext, event_queue: EventQueue, events: TurnEvents | None = None
    ) -> None:
        super().__init__(context)
        self._queue = event_queue
        self._events = events or TurnEvents(context, event_queue)
        self._ended_by = ""
        self._said = ""  # the first method that said something

    @property
    def turn_ended(self) -> bool:
        """Whether a lifecycle method has ended the turn."""
        return bool(self._ended_by)

    # Saying something, while the turn goes on.

    async def send_status(self, message: str | None = None) -> None:
        """Say that the agent is at work; with a message, wait until that is stored.

        The message is what GetTask shows until the next one, and then part of the history.
        """
        self._check_open("send_status")
        text = None if message is None else says(text_part("send_status", "message", message))
        self._said = self._said or "send_status"
        if text is None:
            await self._events.start()
            return
        await self._events.publish(self._events.status(pb.TaskState.TASK_STATE_WORKING, text))
        await self._queue.flush()

    async def emit_text_artifact(
        self,
        text: str,
        *,
        artifact_id: str = STREAMED_ARTIFACT,
        append: bool = False,
        last_chunk: bool = False,
    ) -> None:
        """Send a chunk of text; see `emit_artifact`."""
        part = text_part("emit_text_artifact", "text", text)
        await self._emit("emit_text_artifact", artifact_id, part, append, last_chunk)

    async def emit_data_artifact(
        self,
        data: Any,
        *,
        artifact_id: str = STREAMED_ARTIFACT,
        media_type: str = "application/json",
        append: bool = False,
        last_chunk: bool = False,
    ) -> None:
        """Send a JSON value; see `emit_artifact`."""
        part = data_part("emit_data_artifact", data, media_type)
        await self._emit("emit_data_artifact", artifact_id, part, append, last_chunk)

    async def emit_artifact(
        self,
        *,
        artifact_id: str,
        text: str | None = None,
        data: Any = None,
        file_bytes: bytes | None = None,
        file_url: str | None = None,
        media_type: str | None = None,
        filename: str | None = None,
        name: str | None = None,
        description: str | None = None,
        append: bool = False,
        last_chunk: bool = False,
        metadata: Mapping[str, Any] | None = None,
        extensions: Sequence[str] | None = None,
    ) -> None:
        """Send an artifact, or a chunk of one (specification 4.1.7, 4.2.2).

        Args:
            artifact_id: which artifact.
            text, data, file_bytes, file_url: the content; exactly one of them.
            media_type: of the content; by default `application/json` for data and
                `application/octet-stream` for bytes.
            filename: of the content.
            name, description, metadata, extensions: of the artifact.
            append: add to the artifact rather than replace it. The first chunk of an artifact
                starts it, whatever this says; where an earlier turn or attempt has begun it
                (`previous_artifacts`), it goes on.
            last_chunk: whether the artifact is complete with it.

        Raises:
            ValueError: none or several contents; data or metadata that are no JSON.
        """
        call = "emit_artifact"
        given = {
            key: value
            for key, value in (
                ("text", text),
                ("data", data),
                ("file_bytes", file_bytes),
                ("file_url", file_url),
            )
            if value is not None
        }
        if len(given) != 1:
            raise ValueError(
                "emit_artifact() takes exactly one of text, data, file_bytes and file_url, not "
                + (" and ".join(given) or "none")
            )
        if text is not None:
            part = text_part(call, "text", text)
        elif file_bytes is not None:
            part = file_part(call, "file_bytes", file_bytes)
        elif file_url is not None:
            part = pb.Part(url=valid_text(call, "file_url", file_url))
        else:
            part = data_part(call, data, "application/json")
        if media_type:
            part.media_type = valid_text(call, "media_type", media_type)
        if filename:
            part.filename = valid_text(call, "filename", filename)
        artifact = pb.Artifact(
            name=valid_text(call, "name", name or ""),
            description=valid_text(call, "description", description or ""),
            extensions=strings(call, "extensions", extensions or ()),
            metadata=None if metadata is None else struct(call, "metadata", metadata),
        )
        await self._emit(call, artifact_id, part, append, last_chunk, artifact)

    async def _emit(
        self,
        call: str,
        artifact_id: str,
        part: pb.Part,
        append: bool,
        last_chunk: bool,
        artifact: pb.Artifact | None = None,
    ) -> None:
        self._check_open(call)
        artifact = artifact_named(call, artifact_id, artifact)
        artifact.parts.append(part)
        self._said = self._said or call
        await self._events.publish(
            self._events.artifact(artifact, append=bool(append), last_chunk=bool(last_chunk))
        )

    # Ending the turn.

    async def complete(self, text: str | None = None, *, artifact_id: str = FINAL_ARTIFACT) -> None:
        """COMPLETED, with the text as an artifact if it is given."""
        part = None if text is None else text_part("complete", "text", text)
        await self._complete("complete", artifact_id, part)

    async def complete_json(self, data: Any, *, artifact_id: str = FINAL_ARTIFACT) -> None:
        """COMPLETED, with a JSON value as an artifact of media type application/json.

        The protocol's numbers are doubles: send integers beyond 2^53 as text.
        """
        part = data_part("complete_json", data, "application/json")
        await self._complete("complete_json", artifact_id, part)

    async def respond(self, text: str | None = None) -> None:
        """COMPLETED, with the text as the status message and no artifact."""
        part = None if text is None else text_part("respond", "text", text)
        await self._end("respond", pb.TaskState.TASK_STATE_COMPLETED, part)

    async def reply_directly(self, text: str) -> None:
        """Answer with a Message in place of a Task; nothing of it is kept, and no turn follows.

        The Message is sent when `handle` returns. On a task that exists already, from an earlier
        turn, it is the same as `respond`.
        """
        part = text_part("reply_directly", "text", text)
        self._check_open("reply_directly")
        if self._said:
            raise RuntimeError(
                f"reply_directly() after {self._said}(): the task exists by now; end it with "
                "respond(), or reply before anything else"
            )
        if self._events.started and not self._events.continues:
            logger.warning(
                "task %s: reply_directly() comes after callers were given a task to follow; set "
                "replies_directly = True on the Worker",
                self.task_id,
            )
        if self._events.started or self._events.continues:
            await self._end("reply_directly", pb.TaskState.TASK_STATE_COMPLETED, part)
            return
        self._close("reply_directly")
        await self._events.reply(says(part))

    async def fail(self, reason: str) -> None:
        """FAILED, with the reason as the status message; callers can read it."""
        part = text_part("fail", "reason", reason)
        await self._end("fail", pb.TaskState.TASK_STATE_FAILED, part)

    async def reject(self, reason: str | None = None) -> None:
        """REJECTED: the agent will not do this."""
        part = None if reason is None else text_part("reject", "reason", reason)
        await self._end("reject", pb.TaskState.TASK_STATE_REJECTED, part)

    async def request_input(self, question: str) -> None:
        """INPUT_REQUIRED: the next message to the task runs `handle` again, with the history."""
        part = text_part("request_input", "question", question)
        await self._end("request_input", pb.TaskState.TASK_STATE_INPUT_REQUIRED, part)

    async def request_auth(
        self,
        details: str | None = None,
        *,
        schemes: Sequence[str] | None = None,
        credentials_hint: str | None = None,
        auth_url: str | None = None,
    ) -> None:
        """AUTH_REQUIRED (specification 7.6): what is needed, as text and as a data part.

        Args:
            details: for a person to read.
            schemes: names of authentication schemes that will do.
            credentials_hint: which credentials are meant.
            auth_url: where to get them.
        """
        text = text_part("request_auth", "details", details or "Authentication is required.")
        wanted = {
            "schemes": schemes and strings("request_auth", "schemes", schemes),
            "credentialsHint": credentials_hint
            and valid_text("request_auth", "credentials_hint", credentials_hint),
            "authUrl": auth_url and valid_text("request_auth", "auth_url", auth_url),
        }
        data = {key: value for key, value in wanted.items() if value}
        await self._end(
            "request_auth",
            pb.TaskState.TASK_STATE_AUTH_REQUIRED,
            text,
            data_part("request_auth", data, "application/json"),
        )

    async def _complete(self, call: str, artifact_id: str, part: pb.Part | None) -> None:
        artifact = artifact_named(call, artifact_id)
        self._close(call)
        events = self._events
        completed = events.status(pb.TaskState.TASK_STATE_COMPLETED)
        if part is None:
            await events.publish(completed)
            return
        artifact.parts.append(part)
        await events.publish(events.artifact(artifact, last_chunk=True), completed)

    async def _end(self, call: str, state: pb.TaskState.ValueType, *parts: pb.Part | None) -> None:
        self._close(call)
        message = says(*(part for part in parts if part is not None))
        await self._events.publish(self._events.status(state, message if message.parts else None))

    def _close(self, call: str) -> None:
        self._check_open(call)
        self._ended_by = call

    def _check_open(self, call: str) -> None:
        if self._ended_by:
            raise RuntimeError(
                f"{call}() after {self._ended_by}(): {self._ended_by}() has ended the turn, and "
                "nothing more can be said in it"
            )
        if self._events.over or self._queue.is_closed():
            raise RuntimeError(
                f"{call}() after the turn: the agent has returned, or was given up; await "
                "everything that it starts"
            )
