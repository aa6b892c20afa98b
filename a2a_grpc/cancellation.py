"""Canceling a task that no turn holds: CANCELED is committed directly (specification 3.1.5)."""

from __future__ import annotations

import time

from a2a_grpc import pb
from a2a_grpc.bus.base import Committed, EventBus
from a2a_grpc.storage.base import AnyStorage, Commit, FenceLostError, Head, VersionConflictError
from a2a_grpc.task import event_entry


async def cancel_idle_task(storage: AnyStorage, bus: EventBus, head: Head) -> bool:
    """Commit and publish CANCELED; False if the task has moved on since `head` was read."""
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
    await bus.publish(
        Committed(head.task_id, entry.version, entry.sequence, canceled, [entry.payload])
    )
    return True
