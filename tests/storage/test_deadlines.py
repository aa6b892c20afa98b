"""What the storage promises when a database no longer answers, or answers slowly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.util import await_only

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql import reader
from a2a_grpc.storage.sql.postgres import PostgresDatabase
from a2a_grpc.storage.sql.replicas import Replica
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.values import OperationState, Turn
from tests.servers.postgres import shared_postgres
from tests.storage.conftest import LEASE
from tests.storage.stalling import StallingProxy
from tests.storage.values import (
    a_commit,
    an_operation,
    begin,
    created,
    store_task,
)

SHORT = 3.0
"""A lease, in seconds, with which a transaction may take one second."""

MUCH_LESS = 15.0
"""Seconds; the driver by itself would wait for 35."""


@pytest.fixture
async def proxy() -> AsyncIterator[StallingProxy]:
    async with StallingProxy(shared_postgres().port) as started:
        yield started


@pytest.fixture
async def behind(postgres: str, proxy: StallingProxy) -> AsyncIterator[SqlStorage]:
    """A storage that has some connections through the proxy."""
    url = postgres.replace(str(shared_postgres().port), str(proxy.port))
    async with SqlStorage(url, lease=SHORT) as storage:
        await _all_at_once(storage)
        yield storage


async def _all_at_once(storage: SqlStorage) -> None:
    await asyncio.gather(
        store_task(storage),
        storage.renew_lease(),
        storage.check(),
        storage.stranded_operations(10),
        storage.sweep(tasks_before=0.0, operations_before=0.0),
        *(storage.load_head("task") for _ in range(5)),
    )


Call = Callable[[SqlStorage], Awaitable[Any]]


@pytest.mark.parametrize(
    "call",
    [
        store_task,
        lambda storage: storage.load_head("task"),
        lambda storage: storage.load_events("task", 0, 1),
        lambda storage: storage.sweep(tasks_before=0.0, operations_before=0.0),
        lambda storage: storage.renew_lease(),
        lambda storage: storage.check(),
    ],
    ids=["write", "look", "read", "sweep", "renewal", "check"],
)
async def test_a_connection_that_falls_silent_is_given_up_soon_with_all_that_are_idle(
    behind: SqlStorage, proxy: StallingProxy, call: Call
) -> None:
    proxy.stall()
    async with asyncio.timeout(MUCH_LESS):
        with pytest.raises(UnavailableError):
            await call(behind)
        await _all_at_once(behind)
        await call(behind)


async def test_a_sweep_that_falls_silent_midway_is_given_up_soon(
    behind: SqlStorage, proxy: StallingProxy
) -> None:
    async with asyncio.timeout(MUCH_LESS):
        async with behind._database.sweeping() as run:
            assert run is not None
            proxy.stall()
            with pytest.raises(UnavailableError):
                await run(reader.check)
        await _all_at_once(behind)


async def test_writes_of_a_silent_group_may_be_tried_again(
    behind: SqlStorage, proxy: StallingProxy
) -> None:
    operations = [an_operation() for _ in range(20)]
    proxy.stall()
    async with asyncio.timeout(MUCH_LESS):
        results = await asyncio.gather(
            *(behind.admit(operation) for operation in operations), return_exceptions=True
        )
        assert any(isinstance(result, UnavailableError) for result in results)
        await asyncio.gather(*(behind.admit(operation) for operation in operations))
        assert len(await behind.load_progress([o.id for o in operations])) == 20


async def test_a_turn_whose_start_fell_silent_counts_one_attempt(
    behind: SqlStorage, proxy: StallingProxy
) -> None:
    operation = an_operation()
    await behind.admit(operation)
    proxy.stall()
    async with asyncio.timeout(MUCH_LESS):
        with pytest.raises(UnavailableError):
            await behind.start_turn(operation.task_id)
        turn = await behind.start_turn(operation.task_id)
    assert isinstance(turn, Turn)
    assert turn.operation.attempts == 1
    await behind.commit(a_commit(operation.task_id, created(operation.task_id), fence=turn.fence))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.9])
async def test_a_new_connection_that_falls_silent_is_given_up(
    behind: SqlStorage, proxy: StallingProxy, part: float
) -> None:
    async with asyncio.timeout(MUCH_LESS):
        proxy.stall()
        with pytest.raises(UnavailableError):
            await behind.check()
        await behind.check()
        # Of all that comes until a first statement is answered.
        proxy.stall_next_after = int(part * proxy.forwarded)
        proxy.stall()
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await behind.check()
        proxy.stall_next_after = None
        await _until(behind.check)


async def _until(call: Callable[[], Awaitable[Any]]) -> None:
    """Until it succeeds; a failure to connect is told to all for a moment."""
    while True:
        try:
            await call()
            return
        except UnavailableError:
            await asyncio.sleep(0.05)


# --- Checking.


@pytest.fixture
async def opened(storing_url: str) -> AsyncIterator[SqlStorage]:
    async with SqlStorage(storing_url, lease=LEASE) as storage:
        yield storage


async def test_a_database_that_is_read_much_is_not_away(opened: SqlStorage) -> None:
    asynchronous, synchronous = asyncio.Event(), threading.Event()
    reading: list[int] = []

    def slow(connection: Connection) -> None:
        reader.check(connection)
        reading.append(1)
        if connection.dialect.name == "postgresql":
            await_only(asynchronous.wait())
        else:
            synchronous.wait()

    readers = [asyncio.create_task(opened._database.read(slow)) for _ in range(20)]
    try:
        async with asyncio.timeout(5):
            while len(reading) < 4:  # noqa: ASYNC110 - of what threads do
                await asyncio.sleep(0.01)
            await opened.check()
            await asyncio.gather(*(opened.check() for _ in range(5)))
    finally:
        asynchronous.set()
        synchronous.set()
        await asyncio.gather(*readers)


async def test_a_write_that_nobody_answers_shows_in_the_check(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlStorage(postgres, lease=SHORT) as storage:
        write, answers = PostgresDatabase.write, asyncio.Event()

        async def silent(self: PostgresDatabase, work: Any) -> Any:
            await answers.wait()
            return await write(self, work)

        monkeypatch.setattr(PostgresDatabase, "write", silent)
        writing = asyncio.create_task(store_task(storage))
        await storage.check()

        async def for_ever() -> None:
            while True:
                await storage.check()
                await asyncio.sleep(0.05)

        with pytest.raises(UnavailableError, match="not answered a write"):
            await asyncio.wait_for(for_ever(), 10)
        answers.set()
        await writing
        await storage.check()


# --- Answers that were lost.


def _lose_answers(storage: SqlStorage, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    """Let the next transactions happen, and say that they failed."""
    write = storage._database.write
    left = [None] * count

    async def lossy(work: Any) -> Any:
        result = await write(work)
        if left:
            left.pop()
            raise UnavailableError("the answer was lost")
        return result

    monkeypatch.setattr(storage._database, "write", lossy)


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_start_whose_answer_was_lost_is_no_attempt(
    opened: SqlStorage, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    operation = an_operation()
    await opened.admit(operation)
    _lose_answers(opened, monkeypatch, lost)
    failures = 0
    turn = None
    while turn is None:
        try:
            turn = await opened.start_turn(operation.task_id)
        except UnavailableError:
            failures += 1
    assert isinstance(turn, Turn)
    assert failures == lost
    assert turn.operation.attempts == 1
    assert await opened.stranded_operations(10) == []
    event = created(operation.task_id)
    await opened.commit(a_commit(operation.task_id, event, fence=turn.fence))


async def test_a_start_whose_caller_went_away_is_no_attempt(opened: SqlStorage) -> None:
    for steps in range(30):
        operation = an_operation()
        await opened.admit(operation)
        starting = asyncio.create_task(opened.start_turn(operation.task_id))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
        if not starting.cancelled():
            continue
        turn = await opened.start_turn(operation.task_id)
        assert isinstance(turn, Turn)
        assert turn.operation.attempts == 1


@pytest.mark.parametrize("storing_url", ["postgresql"], indirect=True)
async def test_a_start_that_happens_late_is_undone(
    opened: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction ends while it is being undone, between the looks at task and operation.

    Of PostgreSQL: a process that has a SQLite file to itself has one writer.
    """
    database = opened._database
    assert isinstance(database, PostgresDatabase)
    write, ends, begun = database.write, asyncio.Event(), asyncio.Event()
    late: list[asyncio.Task[Any]] = []

    async def lossy(work: Any) -> Any:
        monkeypatch.setattr(database, "write", write)

        def held(connection: Connection) -> Any:
            result = work(connection)
            begun.set()
            await_only(ends.wait())
            return result

        late.append(asyncio.create_task(write(held)))
        await begun.wait()
        raise UnavailableError("the answer was lost")

    operation = an_operation()
    await opened.admit(operation)
    monkeypatch.setattr(database, "write", lossy)
    with pytest.raises(UnavailableError):
        await opened.start_turn(operation.task_id)
    again = asyncio.create_task(opened.start_turn(operation.task_id))
    url = database.address._dsn
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    waiting += "AND datname = current_database()"
    name = url.rpartition("/")[2]
    async with asyncio.timeout(10):
        while await asyncio.to_thread(_count, waiting, name) < 1:
            pass
    ends.set()
    await asyncio.gather(*late)
    turn = await again
    assert isinstance(turn, Turn)
    assert turn.operation.attempts == 1
    (progress,) = await opened.load_progress([operation.id])
    assert progress.state is OperationState.STARTED


def _count(statement: str, database: str) -> int:
    return int(shared_postgres().execute(statement, database=database))


# --- The lease.


async def test_a_renewal_that_comes_late_brings_no_id_back(opened: SqlStorage) -> None:
    operation = an_operation()
    await begin(opened, operation)
    on_its_way = Replica(opened.lease)
    on_its_way.id = opened._replica.id
    await opened.renew_lease(anew=True)
    with pytest.raises(UnavailableError, match="the lease ran out"):
        await opened._database.write(on_its_way.renew)
    # Nothing is held in the name of the old id: the new one begins at once.
    assert isinstance(await opened.start_turn(operation.task_id), Turn)
    assert await opened.renew_lease() == []


async def test_a_lease_that_was_forgotten_is_not_renewed_but_begun_anew(
    opened: SqlStorage,
) -> None:
    await opened._database.write(opened._replica.leave)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="anew=True"):
            await opened.renew_lease()
    assert await opened.renew_lease(anew=True) == []
    assert await opened.renew_lease() == []
