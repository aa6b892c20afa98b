"""What lasts beyond a task: the conversation that a context id stands for (specification 3.4.1)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from a2a_grpc import pb
from a2a_grpc.agent.content import HistoryMessage, message_of, message_of_artifact, said_before
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.patience import patiently
from a2a_grpc.storage.values import (
    Scope,
    TaskQuery,
)


class Conversation:
    """Everything of one context id, for one caller; another caller's is another conversation.

    Args:
        storage: where it is kept; it outlives the process as far as the storage does.
        scope: whose conversation it is.
        context_id: which one.
    """

    PAGE_SIZE = 20
    """Tasks that are read from storage at a time, at the most."""
    MAX_BYTES = 16 * 2**20
    """Of what `update` keeps, as JSON."""

    def __init__(self, storage: AnyStorage, scope: Scope, context_id: str) -> None:
        self._storage = storage
        self._scope = scope
        self._context_id = context_id

    async def load(self) -> Any:
        """What `update` kept last; None if nothing was."""
        return await patiently(
            self._storage,
            lambda: self._storage.load_context(self._context_id, scope=self._scope),
        )

    async def update(self, context: Any) -> None:
        """Keep any JSON value, in place of the former one; the last of two writers wins.

        Raises ValueError for what is no JSON, or more than 16 MiB of it.
        """
        try:
            text = json.dumps(context, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"update_context(context) must be a JSON value: {error}") from error
        if len(text) > self.MAX_BYTES:
            raise ValueError(
                f"update_context(context) takes {self.MAX_BYTES} bytes of JSON at the most, not "
                f"{len(text)}; keep large things elsewhere, and their place here"
            )
        # Every storage gives back the same: lists for tuples, strings for a dictionary's keys.
        value = json.loads(text)
        await patiently(
            self._storage,
            lambda: self._storage.update_context(self._context_id, value, scope=self._scope),
        )

    async def messages(
        self, *, limit: int, task_id: str = "", current: pb.Task | None = None, message_id: str = ""
    ) -> list[HistoryMessage]:
        """The newest `limit` messages of the context's tasks, oldest first.

        Tasks come in the order in which they last changed, the current one last. Of each come its
        history, then what its status says, then its artifacts, as the agent's. Direct replies leave
        no task, so they are not in it.

        Args:
            limit: 1 or more.
            task_id: the task that is worked on, if one is.
            current: that task as its turn began; None if it is new. What it has said since is left
                out.
            message_id: the message that the turn works on, which is left out.
        """
        newest_first: list[HistoryMessage] = []
        if current is not None:
            newest_first.extend(reversed(_of(current, message_id)))
        query = TaskQuery(
            scope=self._scope,
            context_id=self._context_id,
            page_size=min(limit, self.PAGE_SIZE),
            include_artifacts=True,
        )
        while len(newest_first) < limit:
            page = await patiently(self._storage, partial(self._storage.list_tasks, query))
            for task in page.tasks:
                if task.id != task_id:
                    newest_first.extend(reversed(_of(task)))
            if page.next_after is None:
                break
            query = query._replace(after=page.next_after)
        return newest_first[:limit][::-1]


def _of(task: pb.Task, without: str = "") -> list[HistoryMessage]:
    found = said_before(task, without)
    if task.status.HasField("message"):
        found.append(message_of(task.status.message, task.id))
    found.extend(message_of_artifact(artifact, task.id) for artifact in task.artifacts)
    return found
