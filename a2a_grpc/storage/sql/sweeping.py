"""Forgetting, in steps that each hold the writer for a few milliseconds.

Each step is a function and a transaction of its own, between the groups. What a step starts, a
later one may finish, also after a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy import Connection

from a2a_grpc.storage.sql import counts, forgetting, statements
from a2a_grpc.storage.sql.counts import Counted
from a2a_grpc.storage.sql.database import Run
from a2a_grpc.storage.sql.rows import column_time
from a2a_grpc.storage.values import Scope

STEP_TASKS = 100
STEP_OPERATIONS = 500
STEP_KEYS = 500
STEP_ENTRIES = 2000
"""Rows per step."""


COMPACTED_AT_ONCE = 8
"""Tasks that are in memory while their logs are replaced by snapshots."""


async def sweep(run: Run, tasks_before: float, operations_before: float) -> list[str]:
    """All steps of `Storage.sweep` but for the logs; returns the ids of the forgotten tasks."""
    forgotten: list[str] = []
    before = column_time(int(tasks_before * 1e9))
    await run(release_ended)
    while ids := await run(partial(forget_tasks, before=before)):
        forgotten += ids
    while await run(partial(forget_operations, before=operations_before)):
        pass
    while await run(forget_not_created):
        pass
    config: tuple[str, ...] | None = ("", "")
    while config is not None:
        config = await run(partial(forget_push_configs, after=config))
    context: tuple[str, ...] | None = ("", "", "")
    while context is not None:
        context = await run(partial(forget_contexts, before=tasks_before, after=context))
    for first, last in counts.periods_to_fold(time.time_ns()):
        while await run(partial(counts.fold, first=first, last=last)):
            pass
    await run(forget_replicas)
    return forgotten


async def compact(
    run: Run, logs_before: float, compact_one: Callable[[str], Awaitable[None]]
) -> None:
    """Have the logs of tasks that ended before `logs_before` replaced by their snapshots.

    Args:
        logs_before: seconds since the epoch.
        compact_one: replaces one task's; the entries go later.
    """
    before = column_time(int(logs_before * 1e9))
    after = (column_time(-(2**63)), "")
    while found := await run(partial(tasks_to_compact, before=before, after=after)):
        for start in range(0, len(found), COMPACTED_AT_ONCE):
            some = found[start : start + COMPACTED_AT_ONCE]
            await asyncio.gather(*(compact_one(task_id) for _, task_id in some))
        after = found[-1]


async def delete_all_logs(run: Run) -> None:
    """Delete what is left of the logs of forgotten and of compacted tasks."""
    while await run(delete_logs):
        pass


def release_ended(connection: Connection) -> None:
    """Free the ended tasks from turns that a process left behind which is gone."""
    connection.execute(forgetting.release_ended)


def forget_tasks(connection: Connection, before: int) -> list[str]:
    """Forget some tasks that ended before `before` (nanoseconds since the epoch).

    Returns their ids; none are left to forget if it is empty. Their logs go later.
    """
    rows = connection.execute(
        forgetting.tasks_to_forget, {"before": before, "limit": STEP_TASKS}
    ).all()
    if not rows:
        return []
    numbers = [{"of": row.number} for row in rows]
    connection.execute(forgetting.delete_task, numbers)
    connection.execute(statements.delete_snapshot, numbers)
    connection.execute(statements.delete_push_configs, [{"of": row.id} for row in rows])
    connection.execute(
        forgetting.put_forgotten,
        [{"task_number": row.number, "next": 1, "last": row.version} for row in rows],
    )
    gone: Counter[Counted] = Counter()
    for row in rows:
        scope = Scope(row.tenant, row.principal)
        gone[counts.counted(scope, row.state, row.status_at)] -= 1
    counts.settle(connection, gone)
    return [row.id for row in rows]


def delete_logs(connection: Connection) -> bool:
    """Delete some entries of forgotten tasks; whether there is more to do."""
    budget = STEP_ENTRIES
    slices, done = [], []
    for row in connection.execute(forgetting.forgotten_logs, {"limit": STEP_TASKS}).all():
        if budget <= 0:
            break
        last = min(row.last, row.next + budget - 1)
        slices.append({"of": row.task_number, "first": row.next, "last": last})
        budget -= last - row.next + 1
        if last == row.last:
            done.append({"of": row.task_number})
        else:
            connection.execute(
                forgetting.update_forgotten, {"of": row.task_number, "next": last + 1}
            )
    if slices:
        connection.execute(forgetting.delete_slice, slices)
    if done:
        connection.execute(forgetting.delete_forgotten, done)
    return bool(slices)


def forget_operations(connection: Connection, before: float) -> bool:
    """Forget some operations that are over; whether there is more to do.

    Not by when they were recorded: whoever waits for a long one has yet to hear of its end.

    Args:
        before: when they were done, in seconds since the epoch.
    """
    rows = connection.execute(
        forgetting.operations_to_forget, {"before": before, "limit": STEP_OPERATIONS}
    ).all()
    if rows:
        numbers = [{"of": row.number} for row in rows]
        connection.execute(forgetting.delete_operation, numbers)
        connection.execute(forgetting.delete_request, numbers)
    return bool(rows)


def forget_not_created(connection: Connection) -> bool:
    """Forget some fences that no operation needs any more; whether there is more to do."""
    deleted = connection.execute(forgetting.delete_not_created, {"limit": STEP_OPERATIONS})
    return bool(deleted.rowcount)


def forget_push_configs(connection: Connection, after: tuple[str, ...]) -> tuple[str, ...] | None:
    """Forget the configurations of tasks that never came to be, among some behind a key.

    Returns the key to go on behind; None at the end.
    """
    key = dict(zip(("after_task", "after_config"), after, strict=True))
    rows = connection.execute(forgetting.push_configs_after, {**key, "limit": STEP_KEYS}).all()
    unused = [{"of_task": row.task_id, "of_config": row.config_id} for row in rows if row.unused]
    if unused:
        connection.execute(statements.delete_push_config, unused)
    return (rows[-1].task_id, rows[-1].config_id) if len(rows) == STEP_KEYS else None


def forget_contexts(
    connection: Connection, before: float, after: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Forget contexts last updated before `before` that nothing uses, among some behind a key.

    Returns the key to go on behind; None at the end.
    """
    key = dict(zip(("after_tenant", "after_principal", "after_context"), after, strict=True))
    rows = connection.execute(
        forgetting.contexts_after, {**key, "before": before, "limit": STEP_KEYS}
    ).all()
    unused = [
        {
            "of_tenant": row.tenant,
            "of_principal": row.principal,
            "of_context": row.context_id,
            "before": before,
        }
        for row in rows
        if row.unused
    ]
    if unused:
        connection.execute(forgetting.delete_context, unused)
    if len(rows) < STEP_KEYS:
        return None
    return rows[-1].tenant, rows[-1].principal, rows[-1].context_id


def tasks_to_compact(
    connection: Connection, before: int, after: tuple[int, str]
) -> list[tuple[int, str]]:
    """Some tasks whose log the snapshot shall replace, behind a place in their order.

    Args:
        before: of their status, in nanoseconds since the epoch.
        after: a place, as they are returned.
    """
    rows = connection.execute(
        forgetting.tasks_to_compact,
        {"before": before, "after_time": after[0], "after_id": after[1], "limit": STEP_TASKS},
    )
    return [(row.status_at, row.id) for row in rows]


def forget_replicas(connection: Connection) -> None:
    """Forget the replicas that are gone."""
    connection.execute(forgetting.delete_replicas)
