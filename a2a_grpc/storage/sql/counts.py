"""How many tasks a scope has, by state and by period of their status: the totals of ListTasks.

Every write keeps the counts, in a shard of its process, so that no list has to count all that it
matches. A sweep folds the shards of a period that is over into one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert

from a2a_grpc.storage.sql.schema import SHARDED, task_counts
from a2a_grpc.storage.values import Scope

PERIOD = 6 * 3600 * 10**9
"""Nanoseconds; a total since a time counts the tasks of one period at the most."""

FOLDED = 0
"""The shard that only sweeps write, so that they never wait for a group."""

STEP_COUNTS = 500
"""Rows that are folded in one transaction."""


class Counted(NamedTuple):
    """What a row counts, but for its shard.

    In this order groups lock rows, so that no two of them wait for one another.
    """

    tenant: str
    principal: str
    state: int
    period: int


def counted(scope: Scope, state: int, status_at: int) -> Counted:
    """Where a task is counted; `status_at` is in nanoseconds since the epoch."""
    return Counted(*scope, state, period_of(status_at))


def period_of(status_at: int) -> int:
    """The number of the period that a time is in."""
    return status_at // PERIOD


def periods_to_fold(now: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first and the last period before and after those in which tasks change these days.

    Args:
        now: nanoseconds since the epoch; nothing depends on its being right.
    """
    period = period_of(now)
    return (-(2**63), period - 2), (period + 2, 2**63 - 1)


# Add `total` to a count.
add_to_count = upsert(task_counts)
add_to_count = add_to_count.on_conflict_do_update(
    index_elements=["tenant", "principal", "state", "period", "shard"],
    set_={"total": task_counts.c.total + add_to_count.excluded.total},
)

# Some counts of the periods from `first` to `last` that are still in shards. What a group is
# changing now stays for the next time.
counts_to_fold = (
    select(task_counts)
    .where(
        SHARDED,
        task_counts.c.period >= bindparam("first"),
        task_counts.c.period <= bindparam("last"),
    )
    .order_by(task_counts.c.period)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)

_this_count = (
    task_counts.c.tenant == bindparam("of_tenant"),
    task_counts.c.principal == bindparam("of_principal"),
    task_counts.c.state == bindparam("of_state"),
    task_counts.c.period == bindparam("of_period"),
    task_counts.c.shard == bindparam("of_shard"),
)
delete_count = delete(task_counts).where(*_this_count)
delete_empty_count = delete_count.where(task_counts.c.total == 0)


def add(connection: Connection, shard: int, changes: Mapping[Counted, int]) -> None:
    """Change counts in the shard of a process."""
    rows = [
        {**key._asdict(), "shard": shard, "total": change}
        for key, change in sorted(changes.items())
        if change
    ]
    if rows:
        connection.execute(add_to_count, rows)


def settle(connection: Connection, changes: Mapping[Counted, int]) -> None:
    """Change folded counts, and keep none that is zero; for sweeps, of which one runs at a time."""
    add(connection, FOLDED, changes)
    if changes:
        connection.execute(delete_empty_count, [_key(key, FOLDED) for key in sorted(changes)])


def fold(connection: Connection, first: int, last: int) -> bool:
    """Fold some shards of the periods from `first` to `last`; whether there may be more to do."""
    rows = connection.execute(
        counts_to_fold, {"first": first, "last": last, "limit": STEP_COUNTS}
    ).all()
    if rows:
        found = [(Counted(*key), shard, total) for *key, shard, total in rows]
        changes: Counter[Counted] = Counter()
        for key, _, total in found:
            changes[key] += total
        connection.execute(delete_count, [_key(key, shard) for key, shard, _ in found])
        settle(connection, changes)
    return len(rows) == STEP_COUNTS


def _key(key: Counted, shard: int) -> dict[str, object]:
    values = {**key._asdict(), "shard": shard}
    return {f"of_{name}": value for name, value in values.items()}
