"""The totals of ListTasks: right at every moment, whatever narrows them, without counting all."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import asyncpg
import pytest
from sqlalchemy import Connection, text

from a2a_grpc import pb
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.sql import counts, statements
from a2a_grpc.storage.sql.counts import FOLDED, PERIOD, period_of
from a2a_grpc.storage.sql.postgres import PostgresDatabase
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.values import Scope, TaskQuery
from tests.servers.postgres import shared_postgres
from tests.storage.conftest import LEASE
from tests.storage.values import (
    ALICE,
    BOB,
    COMPLETED,
    INPUT_REQUIRED,
    SECOND,
    WORKING,
    a_commit,
    a_task,
    status,
    store_task,
)

FIRST, LAST = -62135596800 * SECOND, 253402300799 * SECOND
"""The years 1 and 9999."""
LONG_AGO = -1e11
"""Seconds since the epoch: nothing is older."""
STATES = (WORKING, INPUT_REQUIRED, COMPLETED)
NEVER = 0
"""For `updated_since`: all."""


class Stored(NamedTuple):
    """Where the lists should have a task."""

    scope: Scope
    state: pb.TaskState
    at: int
    version: int


class Tasks:
    """Tasks of storages, and the totals that a plain count of them gives."""

    def __init__(self) -> None:
        self.stored: dict[str, Stored] = {}

    async def put(
        self,
        storage: AnyStorage,
        task_id: str,
        state: pb.TaskState,
        at: int,
        scope: Scope = ALICE,
    ) -> None:
        """Store a task, or move one that is stored."""
        before = self.stored.get(task_id)
        if before is None:
            await store_task(storage, state, task_id=task_id, at=at, scope=scope)
            self.stored[task_id] = Stored(scope, state, at, 1)
        else:
            scope, version = before.scope, before.version
            await storage.commit(
                a_commit(
                    task_id,
                    status(state, at=at),
                    version=version,
                    state=state,
                    at=at,
                    scope=scope,
                )
            )
            self.stored[task_id] = Stored(scope, state, at, version + 1)

    def moving(self) -> list[tuple[str, Stored]]:
        """Those that have not ended."""
        return [one for one in self.stored.items() if one[1].state != COMPLETED]

    def forget(self, before: int) -> None:
        """As a sweep does."""
        self.stored = {
            task_id: task
            for task_id, task in self.stored.items()
            if task.state != COMPLETED or task.at >= before
        }

    async def check(self, storage: AnyStorage, *since: int) -> None:
        """Compare all totals, also since some times."""
        for scope in (ALICE, BOB):
            for state in (0, *STATES):
                for start in (NEVER, *since):
                    expected = sum(
                        task.scope == scope
                        and state in (0, task.state)
                        and (start == NEVER or task.at >= start)
                        for task in self.stored.values()
                    )
                    query = TaskQuery(scope, state=state, updated_since=start, page_size=1)
                    found = (await storage.list_tasks(query)).total
                    assert found == expected, (query, found, expected)


async def sweep(storage: AnyStorage, before: float = LONG_AGO) -> None:
    await storage.sweep(tasks_before=before, operations_before=0.0)


def this_period() -> int:
    """Its beginning."""
    return period_of(time.time_ns()) * PERIOD


def around(border: int) -> list[int]:
    return [border - 1, border, border + 1, border + PERIOD - 1]


# --- On every backend.


@pytest.mark.parametrize(
    "border",
    [-300_000 * PERIOD, -PERIOD, PERIOD, *(this_period() + n * PERIOD for n in (-5, 0, 3))],
    ids=["1764", "1969", "1970", "yesterday", "now", "soon"],
)
async def test_totals_at_the_borders_of_periods(storage: AnyStorage, border: int) -> None:
    since = [*around(border - PERIOD), *around(border), *around(border + PERIOD)]
    tasks = Tasks()
    for number, at in enumerate(since):
        for state in STATES:
            await tasks.put(storage, f"{state}-{number}", state, at)
        await tasks.put(storage, f"bob-{number}", WORKING, at, BOB)
    since = [at for at in since if at != NEVER]
    await tasks.check(storage, *since)
    await sweep(storage)
    await tasks.check(storage, *since)
    # From everywhere to everywhere else, in state, time and both.
    for number, (task_id, task) in enumerate(tasks.moving()):
        state = STATES[(number + STATES.index(task.state)) % len(STATES)]
        await tasks.put(storage, task_id, state, since[number * 5 % len(since)])
    await tasks.check(storage, *since)
    await sweep(storage)
    await tasks.check(storage, *since)
    await sweep(storage, (border + PERIOD) / SECOND)
    tasks.forget(border + PERIOD)
    await tasks.check(storage, *since)


async def test_totals_at_the_ends_of_time(storage: AnyStorage) -> None:
    tasks = Tasks()
    now = this_period()
    times = [FIRST, -(2**63) + PERIOD, -1, now, 2**63 - PERIOD, LAST]
    for number, at in enumerate(times * 2):
        await tasks.put(storage, f"{number}", STATES[number % 3], at)
    await tasks.check(storage, *times)
    await sweep(storage)
    await tasks.check(storage, *times)
    for number, (task_id, _) in enumerate(tasks.moving()):
        await tasks.put(storage, task_id, COMPLETED, times[number % 6])
    await tasks.check(storage, *times)
    await sweep(storage, now / SECOND)
    tasks.forget(now)
    await tasks.check(storage, *times)


async def test_totals_count_what_is_stored_along(storage: AnyStorage) -> None:
    now = this_period()
    related = [a_task(f"{number}", COMPLETED, at=now - number * PERIOD) for number in range(10)]
    owner = await store_task(storage, at=now)
    await storage.commit(a_commit(owner, status(WORKING), version=1, at=now, related=related))
    for _ in range(2):
        for number in range(10):
            since = now - number * PERIOD
            page = await storage.list_tasks(TaskQuery(ALICE, updated_since=since))
            assert page.total == len(page.tasks) == number + 2
        await sweep(storage)


@pytest.mark.parametrize("seed", range(3))
async def test_totals_are_those_of_a_plain_count(storage: AnyStorage, seed: int) -> None:
    choose = random.Random(seed)
    now = this_period()
    borders = [now + number * PERIOD for number in range(-6, 4)] + [-PERIOD, PERIOD]
    times = [at for border in borders for at in around(border)] + [FIRST, LAST]
    tasks = Tasks()
    for number in range(200):
        ids = [f"{number}", *(task_id for task_id, _ in tasks.moving())]
        at, scope = choose.choice(times), choose.choice((ALICE, BOB))
        await tasks.put(storage, choose.choice(ids), choose.choice(STATES), at, scope)
        if number % 10 == 5:
            before = choose.choice((int(LONG_AGO) * SECOND, *borders))
            await sweep(storage, before / SECOND)
            tasks.forget(before)
        if number % 20 == 19:
            await tasks.check(storage, *choose.sample(times, 5))
    await sweep(storage)
    await tasks.check(storage, *times)


# --- The rows that are kept.


def count_rows(url: str) -> list[tuple[int, int, int]]:
    """(state, shard, total) of Alice's counts, in their order."""
    statement = (
        "SELECT state, shard, total FROM task_counts WHERE principal = 'alice' "
        "ORDER BY state, period, shard"
    )
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    found = shared_postgres().execute(statement, database=url.rpartition("/")[2])
    return [tuple(map(int, line.split("|"))) for line in found.split("\n") if line]


async def test_what_is_over_is_folded_into_one_row(storing_url: str) -> None:
    now = this_period()
    for _ in range(6):  # another shard each time, where there are several
        async with SqlStorage(storing_url, lease=LEASE) as storage:
            for at in (now, now - 3 * PERIOD, now + 5 * PERIOD):
                await store_task(storage, at=at)
            gone = await store_task(storage, at=now - 3 * PERIOD)
            end = status(COMPLETED, at=now - 3 * PERIOD)
            moved = now - 3 * PERIOD
            await storage.commit(a_commit(gone, end, version=1, state=COMPLETED, at=moved))
    async with SqlStorage(storing_url, lease=LEASE) as storage:
        await sweep(storage)
        rows = count_rows(storing_url)
        old, *recent, far = [row for row in rows if row[0] == WORKING]
        assert old == far == (WORKING, FOLDED, 6)
        assert sum(total for _, _, total in recent) == 6
        assert all(shard > FOLDED for _, shard, _ in recent)
        assert [row for row in rows if row[0] == COMPLETED] == [(COMPLETED, FOLDED, 6)]
        await sweep(storage, before=(now - 2 * PERIOD) / SECOND)
        assert count_rows(storing_url) == [row for row in rows if row[0] == WORKING]


async def test_more_is_folded_than_one_step_holds(storing: AnyStorage, storing_url: str) -> None:
    count = 2 * counts.STEP_COUNTS + 7
    owner = await store_task(storing, at=this_period())
    related = [a_task(f"{number}", COMPLETED, at=number * PERIOD) for number in range(count)]
    await storing.commit(
        a_commit(owner, status(WORKING), version=1, at=this_period(), related=related)
    )
    await sweep(storing)
    rows = [row for row in count_rows(storing_url) if row[0] == COMPLETED]
    assert rows == [(COMPLETED, FOLDED, 1)] * count
    query = TaskQuery(ALICE, updated_since=7 * PERIOD)
    assert (await storing.list_tasks(query)).total == count + 1 - 7


# --- Several processes.


@pytest.fixture
async def replicas(postgres: str) -> AsyncIterator[tuple[SqlStorage, SqlStorage]]:
    async with SqlStorage(postgres, lease=LEASE) as one, SqlStorage(postgres, lease=LEASE) as two:
        yield one, two


async def test_a_sweep_leaves_counts_that_somebody_is_changing(
    replicas: tuple[SqlStorage, SqlStorage], postgres: str
) -> None:
    one, two = replicas
    await store_task(one, at=SECOND)
    await store_task(one, COMPLETED, at=SECOND)
    connection = await asyncpg.connect(postgres)
    try:
        async with connection.transaction():
            await connection.execute(f"UPDATE task_counts SET total = 2 WHERE state = {WORKING}")
            await sweep(two)
            assert (await two.list_tasks(TaskQuery(ALICE))).total == 2
        assert (await two.list_tasks(TaskQuery(ALICE))).total == 3
    finally:
        await connection.close()
    assert [row[1] > FOLDED for row in count_rows(postgres)] == [True, False]
    await sweep(two)
    assert count_rows(postgres) == [(WORKING, FOLDED, 2), (COMPLETED, FOLDED, 1)]


async def test_totals_are_right_at_every_moment_while_counts_are_folded(
    replicas: tuple[SqlStorage, SqlStorage], postgres: str
) -> None:
    choose = random.Random(1)
    now = this_period()
    borders = [now - number * PERIOD for number in range(3, 7)]
    times = [border + number for border in borders for number in range(3)]
    tasks = Tasks()
    for number in range(40):
        await tasks.put(replicas[0], f"{number}", WORKING, times[0])

    async def move(storage: SqlStorage, task_id: str) -> None:
        for _ in range(2):
            state = choose.choice((WORKING, INPUT_REQUIRED))
            await tasks.put(storage, task_id, state, choose.choice(times))

    async def watch(moving: asyncio.Future[Any]) -> int:
        seen = 0
        while not moving.done():
            for storage in replicas:
                query = TaskQuery(ALICE, updated_since=choose.choice((NEVER, borders[-1])))
                assert (await storage.list_tasks(query)).total == 40
                seen += 1
        return seen

    async def sweeps(moving: asyncio.Future[Any]) -> None:
        while not moving.done():
            await sweep(choose.choice(replicas))

    for _ in range(50):
        moving = asyncio.gather(*(move(replicas[number % 2], f"{number}") for number in range(40)))
        _, seen, _ = await asyncio.gather(moving, watch(moving), sweeps(moving))
        assert seen
    await tasks.check(replicas[0], *times)
    await sweep(replicas[1])
    await tasks.check(replicas[1], *times)
    rows = count_rows(postgres)
    assert {shard for _, shard, _ in rows} == {FOLDED}
    assert all(total > 0 for *_, total in rows)


# --- What they cost.


async def test_a_total_since_a_time_reads_one_period_at_the_most(postgres: str) -> None:
    periods, each = 40, 500
    async with SqlStorage(postgres, lease=LEASE) as storage:
        await sweep(storage)
        database = PostgresDatabase(postgres, lease=LEASE, readers=2)
        await database.open()
        try:
            await database.write(lambda connection: _fill(connection, periods, each))
            for number in (0, 1, 20, periods - 1):
                for offset in (0, PERIOD // 3, PERIOD - 1):
                    for state in (0, COMPLETED):
                        since = number * PERIOD + offset or 1
                        query = TaskQuery(ALICE, state=state, updated_since=since, page_size=1)
                        read = Counter[str]()
                        plan = await database.write(lambda c, q=query: _explain(c, q))
                        _count(plan, read)
                        assert read["tasks"] <= each, plan
                        assert 0 < read["task_counts"] <= 2 * periods, plan
                        page = await storage.list_tasks(query)
                        assert page.total == _later(number, offset, periods, each, state)
        finally:
            await database.close()


def _fill(connection: Connection, periods: int, each: int) -> None:
    """In every period as many tasks, at equal distances, a half of them completed."""
    step = PERIOD // each
    every = f"FROM generate_series(0, {periods - 1}) p, generate_series(0, {each - 1}) n"
    for statement in (
        "INSERT INTO tasks (number, id, context_id, tenant, principal, state, status_at, version, "
        "sequence, fence, running, cancel_requested, compacted, log_bytes, renew_at) "
        f"SELECT 1000000 + p * {each} + n, p || '-' || n, 'context', 'tenant', 'alice', "
        f"CASE n % 2 WHEN 0 THEN {WORKING} ELSE {COMPLETED} END, "
        f"p * {PERIOD}::bigint + n * {step}::bigint, 1, 1, 1, 0, 0, 0, 10, 16384 {every}",
        "INSERT INTO task_counts (tenant, principal, state, period, shard, total) "
        f"SELECT tenant, principal, state, status_at / {PERIOD}, 0, count(*) FROM tasks "
        "GROUP BY 1, 2, 3, 4",
        "ANALYZE",
    ):
        connection.execute(text(statement))


def _later(number: int, offset: int, periods: int, each: int, state: int) -> int:
    step = PERIOD // each
    kept = [n for n in range(each) if not state or n % 2]
    since = offset or (0 if number else 1)
    here = sum(n * step >= since for n in kept)
    return here + (periods - 1 - number) * len(kept)


def _explain(connection: Connection, query: TaskQuery) -> dict[str, Any]:
    compiled = statements.total(query).compile(connection)
    expanded = compiled.construct_expanded_state({})
    found = connection.exec_driver_sql(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {expanded.statement}",
        tuple(expanded.positional_parameters),
    ).scalar_one()
    plans = json.loads(found) if isinstance(found, str) else found
    plan: dict[str, Any] = plans[0]["Plan"]
    return plan


def _count(plan: dict[str, Any], read: Counter[str]) -> None:
    """How many rows the scans of each table looked at."""
    if relation := plan.get("Relation Name"):
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        rows += plan.get("Rows Removed by Index Recheck", 0)
        read[relation] += int(rows * plan["Actual Loops"])
    for part in plan.get("Plans", ()):
        _count(part, read)
