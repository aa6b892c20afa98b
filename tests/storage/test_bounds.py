"""What the SQL storage never reads, holds, shows or repeats without a bound."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, Engine, event, insert
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from a2a_grpc import pb
from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql import forgetting, reader
from a2a_grpc.storage.sql.postgres import PostgresDatabase
from a2a_grpc.storage.sql.schema import contexts
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.values import OperationState, TaskQuery
from tests.storage.conftest import LEASE
from tests.storage.values import (
    ALICE,
    a_commit,
    an_operation,
    begin,
    chunk,
    created,
    done,
    new_id,
    start,
    store_task,
)

MIB = 2**20


@pytest.fixture
async def storage(storing_url: str) -> AsyncIterator[SqlStorage]:
    async with SqlStorage(storing_url, lease=LEASE) as opened:
        yield opened


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A session of its own, past the storage."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


# --- What is read under locks.


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of transactions that write, on PostgreSQL."""
    found: list[str] = []
    write = PostgresDatabase.write

    async def noting(self: PostgresDatabase, work: Any) -> Any:
        def noted(connection: Connection) -> Any:
            event.listen(connection, "before_cursor_execute", note)
            try:
                return work(connection)
            finally:
                event.remove(connection, "before_cursor_execute", note)

        return await write(self, noted)

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    monkeypatch.setattr(PostgresDatabase, "write", noting)
    return found


async def test_no_transaction_that_holds_locks_reads_what_may_be_large(
    postgres: str, written: list[str]
) -> None:
    async with SqlStorage(postgres, lease=LEASE) as storage:
        key = b"key"
        first = an_operation(deduplication_key=key)
        turn = await begin(storage, first)
        assert turn.operation.request == first.request
        again = await storage.admit(an_operation(deduplication_key=key), duplicates_since=0)
        assert (again.id, again.request) == (first.id, first.request)
        task_id = first.task_id
        await storage.commit(
            a_commit(
                task_id, created(task_id), fence=turn.fence, ends_turn=True, hands_back=first.id
            )
        )
        assert (await start(storage, task_id)).operation.handed_back == 1
        second = an_operation(task_id=await store_task(storage))
        turn = await begin(storage, second)
        assert turn.snapshot is not None
        assert list(turn.snapshot.task.history) == [second.request.message]
        large = re.compile(r"SELECT.*(requests|outcome_payload|log\.payload|snapshots\.body)", re.S)
        assert len(written) > 20
        assert [statement for statement in written if large.match(statement)] == []


async def test_a_start_reads_again_when_another_operation_is_the_oldest(
    storage: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = an_operation()
    second = an_operation(task_id=first.task_id)
    await storage.admit(first)
    await storage.admit(second)
    found = [first, second]

    def read(connection: Connection, task_id: str) -> Any:
        return found.pop(0)

    monkeypatch.setattr(reader, "oldest_operation", read)
    turn = await start(storage, first.task_id)
    assert turn.operation.id == first.id
    found[:] = [first, second]
    await storage.commit(
        a_commit(
            first.task_id,
            created(first.task_id),
            fence=turn.fence,
            ends_turn=True,
            finished=done(first, 1),
        )
    )
    turn = await start(storage, first.task_id)
    assert (turn.operation.id, turn.operation.attempts) == (second.id, 1)
    assert turn.operation.state is OperationState.STARTED
    assert found == []


# --- What is read at once.


@pytest.fixture
def fetched() -> Iterator[list[int]]:
    """The bytes of payload that each statement on PostgreSQL made the driver fetch."""
    found: list[int] = []

    def note(connection: Any, cursor: Any, *rest: Any) -> None:
        rows = getattr(cursor, "_rows", None) or ()
        found.append(sum(len(value) for row in rows for value in row if isinstance(value, bytes)))

    event.listen(Engine, "after_cursor_execute", note)
    yield found
    event.remove(Engine, "after_cursor_execute", note)


async def test_events_over_the_bound_are_not_fetched(postgres: str, fetched: list[int]) -> None:
    async with SqlStorage(postgres, lease=LEASE, cache_bytes=0) as storage:
        task_id = await store_task(storage)
        payload = "x" * MIB
        for first in range(0, 300, 50):
            chunks = (chunk(payload) for _ in range(50))
            await storage.commit(a_commit(task_id, *chunks, version=1 + first))
        fetched.clear()
        events = await storage.load_events(task_id, 1, 1000, max_bytes=4 * MIB)
        assert len(events) == 3
        assert 3 * MIB < sum(fetched) < 4 * MIB
        fetched.clear()
        assert len(await storage.load_events(task_id, 1, 1000, max_bytes=1)) == 1
        assert len(await storage.load_events(task_id, 1, 2, max_bytes=9 * MIB)) == 2
        assert sum(fetched) < 4 * MIB


async def test_a_page_of_large_tasks_is_read_in_parts(
    storage: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [pb.Message(message_id=f"{n}", parts=[pb.Part(text="x" * MIB)]) for n in range(2)]
    ids = [await store_task(storage, at=1 + n, history=large) for n in range(6)]
    small = [await store_task(storage, at=100 + n) for n in range(6)]
    parts: list[int] = []
    folds = reader._folds

    def noting(connection: Connection, numbers: Any, include_artifacts: bool) -> Any:
        parts.append(len(numbers))
        return folds(connection, numbers, include_artifacts)

    monkeypatch.setattr(reader, "_folds", noting)
    monkeypatch.setattr(reader, "PART_BYTES", 5 * MIB)
    page = await storage.list_tasks(TaskQuery(ALICE, page_size=100, history_length=1))
    assert [task.id for task in page.tasks] == [*reversed(small), *reversed(ids)]
    assert [len(task.history) for task in page.tasks] == [0] * 6 + [1] * 6
    assert parts == [6 + 2, 2, 2]
    parts.clear()
    await storage.list_tasks(TaskQuery(ALICE, page_size=6))
    assert parts == [6]


# --- What waits.


async def test_a_call_finds_one_that_is_still_being_recorded_elsewhere(postgres: str) -> None:
    key = b"key"
    async with (
        SqlStorage(postgres, lease=LEASE) as one,
        SqlStorage(postgres, lease=LEASE) as two,
        connected(postgres) as other,
    ):
        first, second = (an_operation(deduplication_key=key) for _ in range(2))
        transaction = other.transaction()
        await transaction.start()
        # The first admission stands still behind its number, with the key locked, before its rows
        # are there.
        await other.execute("LOCK TABLE requests IN EXCLUSIVE MODE")
        admitting = asyncio.create_task(one.admit(first))
        await _until_somebody_waits(postgres, "relation")
        repeating = asyncio.create_task(two.admit(second, duplicates_since=0))
        await _until_somebody_waits(postgres, "advisory")
        await transaction.rollback()
        assert (await admitting).id == first.id
        assert (await repeating).id == first.id


async def _until_somebody_waits(url: str, kind: str) -> None:
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = $1 AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    async with connected(url) as looking, asyncio.timeout(10):
        while not await looking.fetchval(waiting, kind):  # noqa: ASYNC110 - it is the server's
            await asyncio.sleep(0.01)


async def test_what_waits_in_a_broker_is_submitted_again_ever_more_seldom(postgres: str) -> None:
    count = 200
    async with (
        SqlStorage(postgres, lease=LEASE) as one,
        SqlStorage(postgres, lease=LEASE) as two,
        connected(postgres) as other,
    ):
        await asyncio.gather(*(one.admit(an_operation()) for _ in range(count)))

        async def pass_by(seconds: float) -> None:
            await other.execute(
                "UPDATE operations SET created_at = created_at - $1::float, "
                "submitted_at = submitted_at - $1::float",
                seconds,
            )

        async def found() -> int:
            return sum([len(await storage.stranded_operations(count)) for storage in (one, two)])

        await pass_by(40.0)
        assert await found() == count
        resubmitted = []
        for _ in range(9):
            await pass_by(4.0)
            resubmitted.append(await found())
        # After 40 s, three times 4 s are more than a quarter of the age, later it takes longer.
        assert sum(resubmitted) <= 3 * count
        assert resubmitted[:2] == [0, 0]
        await pass_by(30 * 24 * 3600.0)
        assert await found() == count
        await pass_by(700.0)  # whatever its age
        assert await found() == count
        await other.execute("UPDATE operations SET submitted_by = 'gone'")
        assert await found() == count


# --- What is shown.


async def test_no_error_shows_what_a_statement_was_given(storage: SqlStorage) -> None:
    secret = new_id()
    key = {"tenant": "tenant", "principal": "alice", "context_id": "context"}

    def twice(connection: Connection) -> None:
        for _ in range(2):
            connection.execute(insert(contexts), {**key, "value": secret, "updated_at": 1.0})

    with pytest.raises((IntegrityError, UnavailableError)) as failure:
        await storage._database.write(twice)
    shown = "".join(traceback.format_exception(failure.value))
    assert "INSERT INTO contexts" in shown
    assert secret not in shown


# --- What forgetting looks at.


def test_unfinished_operations_are_looked_up_task_by_task() -> None:
    for statement in (
        forgetting.tasks_to_forget,
        forgetting.delete_not_created,
        forgetting.push_configs_after,
    ):
        shown = str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
        assert not re.search(r"NOT IN\s+\(SELECT operations", shown)
        assert "operations.task_id = " in shown
