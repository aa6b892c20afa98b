"""Canceling a task that no turn holds: CANCELED is committed directly (specification 3.1.5)."""

from __future__ import annotations

import asyncio
import time

from a2a_grpc import pb
from a2a_grpc.bus.base import Committed, EventBus, OnCommit
from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    Commit,
    FenceLostError,
    Head,
    VersionConflictError,
)
from a2a_grpc.task import event_entry

_under_way: set[asyncio.Task[bool]] = set()


async def cancel_idle_task(
    storage: AnyStorage, bus: EventBus, head: Head, on_commit: OnCommit
) -> bool:
    """Commit and publish CANCELED; False if the task has moved on since `head` was read.

    A caller who goes away does not stop it between the two. `on_commit` is called afterwards.
    """
    task = asyncio.create_task(
        _cancel_idle_task(storage, bus, head, on_commit), name=f"cancel:{head.task_id}"
    )
    _under_way.add(task)
    task.add_done_callback(_is_over)
    return await asyncio.shield(task)


def _is_over(task: asyncio.Task[bool]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # nobody asks for it if the caller went away


async def _cancel_idle_task(
    storage: AnyStorage, bus: EventBus, head: Head, on_commit: OnCommit
) -> bool:
    now = time.time_ns()
    canceled = pb.TaskState.TASK_STATE_CANCELED
    update = pb.TaskStatusUpdateEvent(task_id=head.task_id, context_id=head.context_id)
    update.status.state = canceled
    update.status.timestamp.FromNanoseconds(now)
    entry = event_entry(
        pb.StreamResponse(status_update=update),
        version=head.version + 1,
        sequence=head.sequence + 1,
    )
    try:
        await storage.commit(
            Commit(
                task_id=head.task_id,
                expected_version=head.version,
                entries=[entry],
                state=canceled,
                status_at=now,
                scope=head.scope,
                context_id=head.context_id,
            )
        )
    except (FenceLostError, VersionConflictError):
        return False
    except UnavailableError:
        # Perhaps only the answer was lost.
        after = await storage.load_head(head.task_id)
        if after is None or (after.state, after.version) != (canceled, entry.version):
            raise
    committed = Committed(head.task_id, entry.version, entry.sequence, canceled, [entry.payload])
    await bus.publish(committed)
    on_commit(committed, head.state)
    return True
