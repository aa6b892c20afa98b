"""Puts finished tasks into a database, many at once: copies of one that the storage made itself.

What a row holds beside ids, state and time is whatever the storage wrote for the first task, so
this needs to know little of its tables.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from a2a_grpc import pb
from a2a_grpc.storage.sql.counts import FOLDED, PERIOD
from a2a_grpc.storage.sql.storage import SqlStorage
from benchmarks.agent import chunk_event, user_message
from benchmarks.services import PostgreSQL

STATES = (
    (pb.TaskState.TASK_STATE_COMPLETED, 0.90),
    (pb.TaskState.TASK_STATE_FAILED, 0.06),
    (pb.TaskState.TASK_STATE_CANCELED, 0.03),
    (pb.TaskState.TASK_STATE_REJECTED, 0.01),
)
AGE = 20 * 86_400
"""Seconds over which the tasks ended, one after the other; less than they are retained."""
CONTEXT_SIZE = 4
"""Tasks of a context, except of the one that is large."""
LARGE_CONTEXT_SHARE = 0.1
BATCH = 50_000


@dataclass(slots=True)
class Loaded:
    """What is in a database.

    Attributes:
        count: tasks.
        states: how many there are in each state.
        ids: of some tasks.
        contexts: of some small ones, each with its number of tasks.
        large_context: the id of the large one.
        in_large: how many tasks of that there are in each state.
        times: when the tasks ended, in order, nanoseconds since the epoch.
    """

    count: int
    states: Counter[int] = field(default_factory=Counter)
    ids: list[str] = field(default_factory=list)
    contexts: dict[str, int] = field(default_factory=dict)
    large_context: str = ""
    in_large: Counter[int] = field(default_factory=Counter)
    times: list[int] = field(default_factory=list)


async def load(
    postgres: PostgreSQL, database: str, count: int, say: Callable[[str], None]
) -> Loaded:
    """Fill an empty database with `count` finished tasks."""
    await _first_task(postgres.url(database))
    async with postgres.connected(database) as connection:
        task_row = dict(await connection.fetchrow("SELECT * FROM tasks"))
        snapshot_row = dict(await connection.fetchrow("SELECT * FROM snapshots"))
        if await connection.fetchval("SELECT count(*) FROM log"):
            raise RuntimeError("the finished task still has its log; sweep() did not compact it")
        await connection.execute("DELETE FROM snapshots; DELETE FROM tasks;")
        loaded = Loaded(count)
        rows = _rows(loaded, task_row, snapshot_row)
        done = 0
        while done < count:
            tasks, snapshots = [], []
            for task, snapshot in rows:
                tasks.append(task)
                snapshots.append(snapshot)
                if len(tasks) == BATCH:
                    break
            for name, columns, records in (
                ("tasks", task_row, tasks),
                ("snapshots", snapshot_row, snapshots),
            ):
                await connection.copy_records_to_table(name, columns=list(columns), records=records)
            done += len(tasks)
            say(f"loading {done:,} of {count:,} tasks")
        await _count(connection, count)
        say(f"vacuum and analyze with {count:,} tasks")
        await connection.execute("VACUUM (ANALYZE)")
    return loaded


async def _first_task(url: str) -> None:
    """One finished task, at the form that it has when its log was folded into its snapshot."""
    async with SqlStorage(url) as storage:
        task = await storage.submit_task(str(uuid.uuid4()), user_message(pb, 1))
        answer = chunk_event(pb, task.id, task.context_id, 0, 256).artifact
        await storage.update_task(task.id, pb.TaskState.TASK_STATE_COMPLETED, [answer])
        await storage.sweep(tasks_before=0, operations_before=0, logs_before=time.time() + 60)


def _rows(
    loaded: Loaded, task_row: dict[str, Any], snapshot_row: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The rows of the next task and its snapshot, their columns as in the rows of the first."""
    chance = random.Random(1)
    count = loaded.count
    body = pb.Task.FromString(snapshot_row["body"])
    large = int(count * LARGE_CONTEXT_SHARE)
    in_large = set(chance.sample(range(count), large))
    large_context = _new_id(chance)
    loaded.large_context = large_context
    states = chance.choices([state for state, _ in STATES], [share for _, share in STATES], k=count)
    loaded.states.update(states)
    loaded.in_large.update(states[index] for index in in_large)
    context, in_context = _new_id(chance), 0
    begin = time.time_ns() - AGE * 10**9
    sampled = max(1, count // 2_000)
    for index, state in enumerate(states):
        if in_context == CONTEXT_SIZE:
            if len(loaded.contexts) < 1_000 and chance.random() < 5_000 / count:
                loaded.contexts[context] = CONTEXT_SIZE
            context, in_context = _new_id(chance), 0
        in_context += index not in in_large
        task_id = _new_id(chance)
        if index % sampled == 0:
            loaded.ids.append(task_id)
        at = begin + (index * AGE * 10**9) // count
        loaded.times.append(at)
        body.id = task_id
        body.context_id = large_context if index in in_large else context
        body.status.state = state
        body.status.timestamp.FromNanoseconds(at)
        for message in body.history:
            message.task_id, message.context_id = body.id, body.context_id
        task_row |= {
            "number": index + 1,
            "id": task_id,
            "context_id": body.context_id,
            "state": state,
            "status_at": at,
        }
        snapshot_row |= {"task_number": index + 1, "body": body.SerializeToString()}
        yield tuple(task_row.values()), tuple(snapshot_row.values())


def _new_id(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


async def _count(connection: Any, count: int) -> None:
    """Set the totals, and let the next numbers follow."""
    await connection.execute("DELETE FROM task_counts")
    await connection.execute(
        "INSERT INTO task_counts (tenant, principal, state, period, shard, total) "
        f"SELECT tenant, principal, state, status_at / {PERIOD}, {FOLDED}, count(*) "
        "FROM tasks GROUP BY 1, 2, 3, 4"
    )
    await connection.execute(f"SELECT setval('task_numbers', {count + 1_000})")
