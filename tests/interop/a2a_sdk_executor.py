"""What somebody has written for a2a-sdk alone: nothing in it knows of another package.

It runs where a2a-sdk is installed, in a server that test_a2a_sdk_executor.py starts; that it calls
everything an executor can call there is checked from that test.
"""

# mypy: disable-error-code="import-not-found"
# The environment that checks types has no a2a-sdk.

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from a2a.helpers import (
    get_artifact_text,
    get_data_parts,
    get_message_text,
    get_raw_parts,
    get_stream_response_text,
    get_text_parts,
    get_url_parts,
    new_artifact,
    new_data_artifact,
    new_data_artifact_update_event,
    new_data_message,
    new_data_part,
    new_message,
    new_raw_artifact,
    new_raw_artifact_update_event,
    new_raw_message,
    new_raw_part,
    new_task,
    new_task_from_user_message,
    new_text_artifact,
    new_text_artifact_update_event,
    new_text_message,
    new_text_part,
    new_text_status_update_event,
    new_url_artifact,
    new_url_artifact_update_event,
    new_url_message,
    new_url_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.id_generator import IDGenerator, IDGeneratorContext
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    Artifact,
    Message,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils import errors

URL = "https://example.org/file.txt"


class Numbers(IDGenerator):
    """Ids that are numbers."""

    def __init__(self) -> None:
        self._last = 0

    def generate(self, context: IDGeneratorContext) -> str:
        assert context.task_id
        assert context.context_id
        self._last += 1
        return str(self._last)


class WordExecutor(AgentExecutor):
    """Does what the first word of a message says."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        word, *more = context.get_user_input().split()
        rest = " ".join(more)
        if word in ("direct", "open"):
            self._gates[rest].set()
            await event_queue.enqueue_event(
                new_text_message(f"{word} {rest}", context_id=context.context_id)
            )
        elif word == "error":
            raise getattr(errors, rest)("say it in other words", data={"said": rest})
        elif word in ("update", "events", "helpers", "reply", "context"):
            await getattr(self, f"_{word}")(rest, context, event_queue)
        else:
            await self._work(word, rest, context, event_queue)

    async def _work(
        self, word: str, rest: str, context: RequestContext, event_queue: EventQueue
    ) -> None:
        task = context.current_task
        if task is None and word == "stream":
            task = new_task(context.task_id, context.context_id, TaskState.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(task)
        elif task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if word == "reject":
            await updater.reject(updater.new_agent_message([new_text_part("not this")]))
            return
        await updater.start_work()
        if word == "stream":
            chunks = rest.split()
            for number, chunk in enumerate(chunks):
                await updater.add_artifact(
                    [new_text_part(chunk)],
                    artifact_id="stream",
                    name="The stream",
                    append=number > 0,
                    last_chunk=number == len(chunks) - 1,
                )
        elif word in ("hold", "stubborn"):
            await updater.add_artifact([new_text_part("before")], name=word)
            await self._gates[rest].wait()
            await updater.add_artifact([new_text_part("after")], name=word)
        elif word == "raise":
            raise ValueError("secret")
        elif word == "done":
            said = [get_message_text(m) for m in task.history if m.role == Role.ROLE_USER]
            await updater.add_artifact([new_text_part(f"first {said[0]}, then {said[1]}")])
        else:
            await updater.requires_input(updater.new_agent_message([new_text_part("go on")]))
            return
        await updater.complete(updater.new_agent_message([new_text_part("finished")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.current_task.artifacts and context.current_task.artifacts[0].name == "stubborn":
            raise errors.UnsupportedOperationError("never")
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        before = len(context.current_task.artifacts)
        told = {
            "message": context.message is not None,
            "configuration": context.configuration is not None,
            "input": context.get_user_input(),
            "metadata": context.metadata,
            "related": len(context.related_tasks),
            "extensions": sorted(context.requested_extensions),
        }
        parts = [new_text_part(f"stopped after {before} artifacts"), new_data_part(told)]
        await updater.cancel(updater.new_agent_message(parts))

    async def _update(self, name: str, context: RequestContext, event_queue: EventQueue) -> None:
        """Calls one method of TaskUpdater."""
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(
            event_queue,
            context.task_id,
            context.context_id,
            artifact_id_generator=Numbers(),
            message_id_generator=Numbers(),
        )
        said = updater.new_agent_message([new_text_part(name)], metadata={"by": name})
        if name == "submit":
            await updater.submit(said)
        elif name == "start_work":
            await updater.start_work(said)
        elif name == "complete":
            await updater.complete(said)
        elif name == "failed":
            await updater.failed(said)
        elif name == "reject":
            await updater.reject(said)
        elif name == "cancel":
            await updater.cancel(said)
        elif name == "requires_input":
            await updater.requires_input(said)
        elif name == "requires_auth":
            await updater.requires_auth(said)
        elif name == "update_status":
            await updater.update_status(
                TaskState.TASK_STATE_WORKING,
                message=said,
                timestamp="2026-01-02T03:04:05Z",
                metadata={"percent": 50},
            )
        elif name == "add_artifact":
            await updater.add_artifact(
                [new_text_part("one")],
                artifact_id="a",
                name="The first",
                metadata={"by": name},
                append=False,
                last_chunk=False,
                extensions=["https://example.org/extensions/artifact"],
            )
            more = [new_text_part("two")]
            await updater.add_artifact(more, artifact_id="a", append=True, last_chunk=True)
            await updater.add_artifact([new_text_part("numbered")])
        elif name == "again":
            await updater.complete(said)
            try:
                await updater.complete(said)
            except RuntimeError:
                return
            raise AssertionError("a second end is an error of TaskUpdater's")
        if name in ("submit", "start_work", "update_status", "add_artifact"):
            await updater.complete()

    async def _events(self, _: str, context: RequestContext, event_queue: EventQueue) -> None:
        """Publishes without TaskUpdater, and reads what it is given while it does."""
        ids = {"task_id": context.task_id, "context_id": context.context_id}
        task = Task(
            id=context.task_id,
            context_id=context.context_id,
            status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            history=[context.message],
        )
        await event_queue.enqueue_event(task)
        await event_queue.enqueue_event(
            TaskStatusUpdateEvent(
                **ids,
                status=TaskStatus(
                    state=TaskState.TASK_STATE_WORKING, message=new_text_message("working")
                ),
            )
        )
        artifact = Artifact(artifact_id="a", parts=[new_text_part("one")])
        await event_queue.enqueue_event(TaskArtifactUpdateEvent(**ids, artifact=artifact))
        await event_queue.enqueue_event(
            TaskStatusUpdateEvent(**ids, status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED))
        )

    async def _helpers(self, _: str, context: RequestContext, event_queue: EventQueue) -> None:
        """Publishes what every helper makes."""
        publish = event_queue.enqueue_event
        working, completed = TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED
        ids = (context.task_id, context.context_id)
        made = [
            new_artifact([new_text_part("parts")], "parts", "of parts", artifact_id="parts"),
            new_text_artifact("text", "text", media_type="text/plain", artifact_id="text"),
            new_data_artifact("data", {"n": 1}, artifact_id="data"),
            new_raw_artifact("raw", b"raw", "text/plain", "raw.txt", artifact_id="raw"),
            new_url_artifact("url", URL, "text/plain", "url.txt", artifact_id="url"),
        ]
        await publish(new_task(*ids, working, artifacts=made, history=[context.message]))
        await publish(new_text_status_update_event(*ids, working, "on it"))
        for event in (
            new_text_artifact_update_event(
                *ids, "text", " and more", append=True, last_chunk=True, artifact_id="text"
            ),
            new_data_artifact_update_event(*ids, "data 2", {"n": 2}, artifact_id="data 2"),
            new_raw_artifact_update_event(*ids, "raw 2", b"raw 2", artifact_id="raw 2"),
            new_url_artifact_update_event(*ids, "url 2", URL, artifact_id="url 2"),
        ):
            await publish(event)
        parts = context.message.parts
        read = {
            "message": get_message_text(context.message, "|"),
            "artifact": get_artifact_text(made[0]),
            "texts": get_text_parts(parts),
            "data": get_data_parts(parts),
            "raw": [raw.decode() for raw in get_raw_parts(parts)],
            "urls": get_url_parts(parts),
            "response": get_stream_response_text(StreamResponse(message=context.message), "|"),
        }
        updater = TaskUpdater(event_queue, *ids)
        await updater.update_status(completed, updater.new_agent_message([new_data_part(read)]))

    async def _reply(self, kind: str, context: RequestContext, event_queue: EventQueue) -> None:
        """Answers with a Message that a helper makes."""
        to: dict[str, Any] = {"context_id": context.context_id, "role": Role.ROLE_AGENT}
        made: Message = {
            "text": new_text_message("text", media_type="text/plain", **to),
            "data": new_data_message({"n": 1}, **to),
            "raw": new_raw_message(b"raw", "text/plain", "raw.txt", **to),
            "url": new_url_message(URL, "text/plain", "url.txt", **to),
            "parts": new_message([new_raw_part(b"raw"), new_url_part(URL)], **to),
        }[kind]
        await event_queue.enqueue_event(made)

    async def _context(self, _: str, context: RequestContext, event_queue: EventQueue) -> None:
        """Tells everything that the context says."""
        created = context.current_task is None
        context.current_task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(context.current_task)
        attached = new_task(
            f"{context.task_id}-2", context.context_id, TaskState.TASK_STATE_COMPLETED
        )
        related = [task.id for task in context.related_tasks]
        context.attach_related_task(attached)
        call = context.call_context
        state = dict(call.state)
        call.state["seen"] = True
        told = {
            "same_ids": [
                context.message.task_id == context.task_id == context.current_task.id,
                context.message.context_id == context.context_id == attached.context_id,
            ],
            "input": [context.get_user_input(), context.get_user_input(" + ")],
            "metadata": context.metadata,
            "tenant": context.tenant,
            "extensions": sorted(context.requested_extensions),
            "modes": list(context.configuration.accepted_output_modes),
            "related": related,
            "attached": _ids(context.related_tasks[len(related) :]) == [attached.id],
            "created": created,
            "authenticated": call.user.is_authenticated,
            "user": call.user.user_name,
            "call_tenant": call.tenant,
            "call_extensions": sorted(call.requested_extensions),
            "state": ["tested" in state, context.call_context.state["seen"]],
        }
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.add_artifact([new_data_part(told)])
        await updater.complete()


def _ids(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]
