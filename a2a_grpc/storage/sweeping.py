"""Forgetting, in steps that each hold the writer for a few milliseconds.

Each function is one step: a transaction of its own, between the groups. What a step starts, a later
one may finish, also after a restart.
"""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection

from a2a_grpc.storage import statements

STEP_TASKS = 100
STEP_OPERATIONS = 500
STEP_KEYS = 500
STEP_ENTRIES = 2000
"""Rows per step."""


def release_ended(connection: Connection) -> None:
    """Free the ended tasks from turns that a former process left behind."""
    connection.execute(statements.release_ended)


def forget_tasks(connection: Connection, before: int) -> list[str]:
    """Forget some tasks that ended before `before` (nanoseconds since the epoch).

    Returns their ids; none are left to forget if it is empty. Their logs go later.
    """
    rows = connection.execute(
        statements.tasks_to_forget, {"before": before, "limit": STEP_TASKS}
    ).all()
    if not rows:
        return []
    numbers = [{"of": row.number} for row in rows]
    connection.execute(statements.delete_task, numbers)
    connection.execute(statements.delete_snapshot, numbers)
    connection.execute(statements.delete_push_configs, [{"of": row.id} for row in rows])
    connection.execute(
        statements.insert_forgotten,
        [{"task_number": row.number, "next": 1, "last": row.version} for row in rows],
    )
    counts = Counter((row.tenant, row.principal, row.state) for row in rows)
    connection.execute(
        statements.add_to_count,
        [
            {"tenant": tenant, "principal": principal, "state": state, "total": -count}
            for (tenant, principal, state), count in counts.items()
        ],
    )
    return [row.id for row in rows]


def delete_logs(connection: Connection) -> bool:
    """Delete some entries of forgotten tasks; whether there is more to do."""
    budget = STEP_ENTRIES
    slices, done = [], []
    for row in connection.execute(statements.forgotten_logs, {"limit": STEP_TASKS}).all():
        if budget <= 0:
            break
        last = min(row.last, row.next + budget - 1)
        slices.append({"of": row.task_number, "first": row.next, "last": last})
        budget -= last - row.next + 1
        if last == row.last:
            done.append({"of": row.task_number})
        else:
            connection.execute(
                statements.update_forgotten, {"of": row.task_number, "next": last + 1}
            )
    if slices:
        connection.execute(statements.delete_slice, slices)
    if done:
        connection.execute(statements.delete_forgotten, done)
    return bool(slices)


def forget_operations(connection: Connection, before: float) -> bool:
    """Forget some operations that are over; whether there is more to do.

    Args:
        before: seconds since the epoch.
    """
    rows = connection.execute(
        statements.operations_to_forget, {"before": before, "limit": STEP_OPERATIONS}
    ).all()
    if rows:
        numbers = [{"of": row.number} for row in rows]
        connection.execute(statements.delete_operation, numbers)
        connection.execute(statements.delete_request, numbers)
    return bool(rows)


def forget_not_created(connection: Connection) -> bool:
    """Forget some fences that no operation needs any more; whether there is more to do."""
    deleted = connection.execute(statements.delete_not_created, {"limit": STEP_OPERATIONS})
    return bool(deleted.rowcount)


def forget_push_configs(connection: Connection, after: tuple[str, ...]) -> tuple[str, ...] | None:
    """Forget the configurations of tasks that never came to be, among some behind a key.

    Returns the key to go on behind; None at the end.
    """
    key = dict(zip(("after_task", "after_config"), after, strict=True))
    rows = connection.execute(statements.push_configs_after, {**key, "limit": STEP_KEYS}).all()
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
        statements.contexts_after, {**key, "before": before, "limit": STEP_KEYS}
    ).all()
    unused = [
        {"of_tenant": row.tenant, "of_principal": row.principal, "of_context": row.context_id}
        for row in rows
        if row.unused
    ]
    if unused:
        connection.execute(statements.delete_context, unused)
    if len(rows) < STEP_KEYS:
        return None
    return rows[-1].tenant, rows[-1].principal, rows[-1].context_id
