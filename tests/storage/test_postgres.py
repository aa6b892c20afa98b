"""What the storage on PostgreSQL promises beyond the contract: opening, failures, cost."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, event, text

from a2a_grpc.errors import ResourceExhaustedError, UnavailableError
from a2a_grpc.storage.sql import counts, forgetting, replicas, statements
from a2a_grpc.storage.sql.failures import failure_of
from a2a_grpc.storage.sql.postgres import PostgresDatabase
from a2a_grpc.storage.sql.schema import metadata
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.sql.writes import StartedTurn, StartTurn
from a2a_grpc.storage.values import StorageOpenError, TaskQuery, Turn
from tests.servers.postgres import GUARDED, PASSWORD, PostgresServer, own_postgres, shared_postgres
from tests.storage.conftest import LEASE
from tests.storage.values import (
    ALICE,
    COMPLETED,
    WORKING,
    a_commit,
    an_operation,
    begin,
    chunk,
    created,
    run_to_the_end,
    status,
    store_task,
)


@pytest.fixture
async def storage(postgres: str) -> AsyncIterator[SqlStorage]:
    async with SqlStorage(postgres, lease=LEASE) as opened:
        yield opened


@pytest.fixture
async def database(storage: SqlStorage, postgres: str) -> AsyncIterator[PostgresDatabase]:
    """The database of `storage`, to look into it."""
    opened = PostgresDatabase(postgres, lease=LEASE, readers=2)
    await opened.open()
    yield opened
    await opened.close()


# --- Opening.


async def test_eight_replicas_may_start_at_once_on_an_empty_database(postgres: str) -> None:
    storages = [SqlStorage(postgres, lease=LEASE) for _ in range(8)]
    await asyncio.gather(*(storage.__aenter__() for storage in storages))
    try:
        await asyncio.gather(*(run_to_the_end(storage) for storage in storages))
        assert (await storages[0].list_tasks(TaskQuery(ALICE))).total == 8
    finally:
        await asyncio.gather(*(storage.__aexit__(None, None, None) for storage in storages))


async def test_migrated_schema_is_the_metadata(database: PostgresDatabase) -> None:
    def compare(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found: list[Any] = compare_metadata(context, metadata)
        return found

    def definitions(connection: Connection) -> set[str]:
        found = connection.execute(
            text(
                "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema() "
                "AND tablename <> 'alembic_version'"
            )
        )
        columns = connection.execute(
            text(
                "SELECT table_name || column_name || data_type || is_nullable || "
                "coalesce(collation_name, '') FROM information_schema.columns "
                "WHERE table_schema = current_schema() AND table_name <> 'alembic_version'"
            )
        )
        sequences = connection.execute(
            text("SELECT sequencename || increment_by FROM pg_sequences "
                 "WHERE schemaname = current_schema()")
        )  # fmt: skip
        rows = (*found.scalars(), *columns.scalars(), *sequences.scalars())
        return {re.sub(r"fresh\.|public\.", "", row) for row in rows}

    def fresh(connection: Connection) -> set[str]:
        connection.execute(text("CREATE SCHEMA fresh"))
        connection.execute(text("SET LOCAL search_path = fresh"))
        metadata.create_all(connection)
        return definitions(connection)

    assert await database.read(compare) == []
    assert await database.write(fresh) == await database.read(definitions)


async def test_the_urls_of_libpq_are_understood() -> None:
    server = shared_postgres()
    with server.database() as url:
        name = url.rpartition("/")[2]
        for form in (
            server.socket_url(name),
            url.replace("postgresql:", "postgresql+asyncpg:"),
            url.replace("postgresql:", "postgres:"),
            f"{url}?application_name=mine&connect_timeout=3&sslmode=prefer",
            f"postgresql://a2a@127.0.0.1:1,127.0.0.1:{server.port}/{name}"
            "?target_session_attrs=read-write",
        ):
            async with SqlStorage(form) as storage:
                await store_task(storage)
                assert storage.lease == 15.0
        async with SqlStorage(f"{url}?application_name=mine"):
            names = server.execute("SELECT DISTINCT application_name FROM pg_stat_activity")
            assert "mine" in names.split("\n")


async def _refusal(url: str, caplog: pytest.LogCaptureFixture) -> str:
    with pytest.raises(StorageOpenError) as refusal:
        await SqlStorage(url).__aenter__()
    shown, cause = str(refusal.value), refusal.value.__cause__ or refusal.value.__context__
    assert PASSWORD not in f"{shown} {cause!r} {caplog.text}"
    return shown


async def test_what_is_wrong_is_said_with_a_remedy_and_without_the_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = shared_postgres()
    secret = PASSWORD.replace(" ", "%20")
    at = f"127.0.0.1:{server.port}"
    wrong = await _refusal(f"postgresql://{GUARDED}:{secret}x@{at}/postgres", caplog)
    assert f"{GUARDED}@{at}/postgres" in wrong
    assert "check user and password" in wrong
    missing = await _refusal(f"postgresql://{GUARDED}:{secret}@{at}/nowhere", caplog)
    assert "create the database first" in missing
    nobody = await _refusal(f"postgresql://{GUARDED}:{secret}@127.0.0.1:1/postgres", caplog)
    assert "check that the server runs" in nobody
    unprivileged = await _refusal(f"postgresql://{GUARDED}:{secret}@{at}/postgres", caplog)
    assert "GRANT CREATE ON SCHEMA" in unprivileged


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:pass/word@host/database",
        "postgresql://user:pass#word@host/database",
        "postgresql+psycopg://user:password@host/database",
        "nonsense user:password",
    ],
)
def test_urls_that_cannot_be_read_are_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://") as refusal:
        SqlStorage(url)
    shown = str(refusal.value).replace("user:password@host", "")
    assert "pass" not in shown.replace("password percent-encoded", "").replace("the password", "")


async def test_a_password_that_looks_like_a_port_is_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(StorageOpenError) as refusal:
        await SqlStorage("postgresql://user@host:secret/database").__aenter__()
    assert "secret" not in str(refusal.value).replace("host:secret/database", "")


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("postgres", "address", "failures"):
        monkeypatch.delitem(sys.modules, f"a2a_grpc.storage.sql.{name}")
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ImportError, match=r"a2a-grpc\[postgres\]"):
        SqlStorage("postgresql://host/database")


async def test_a_database_of_a_later_version_is_refused(postgres: str) -> None:
    async with SqlStorage(postgres):
        pass
    name = postgres.rpartition("/")[2]
    shared_postgres().execute("UPDATE alembic_version SET version_num = '9999'", database=name)
    with pytest.raises(StorageOpenError, match="later version") as refusal:
        await SqlStorage(postgres).__aenter__()
    assert name in str(refusal.value)


async def test_a_storage_that_is_closed_says_so_and_can_be_opened_again(postgres: str) -> None:
    storage = SqlStorage(postgres)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="not open"):
            await storage.load_head("task")
        with pytest.raises(UnavailableError, match=r"not open|closed"):
            await store_task(storage)
        async with storage:
            await store_task(storage)


# --- Cancelled callers.


async def test_cancelled_callers_leave_the_connections_as_they_were(storage: SqlStorage) -> None:
    task_id = await store_task(storage)
    for steps in range(40):
        calls = [
            asyncio.create_task(storage.load_snapshot(task_id)),
            asyncio.create_task(storage.load_head(task_id)),
            asyncio.create_task(storage.sweep(tasks_before=0.0, operations_before=0.0)),
        ]
        for _ in range(steps):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    async with asyncio.timeout(10):
        assert await storage.load_head(task_id) is not None
        await store_task(storage, COMPLETED, at=1)
        assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


async def test_more_readers_than_connections_are_all_served(postgres: str) -> None:
    async with SqlStorage(postgres, readers=2) as storage:
        task_id = await store_task(storage)
        heads = await asyncio.gather(*(storage.load_head(task_id) for _ in range(200)))
        assert all(head is not None for head in heads)
        name = postgres.rpartition("/")[2]
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert int(shared_postgres().execute(count, database=name)) <= 2 + 4 + 1


# --- Failures of the server.


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, that keeps what it acknowledges."""
    with own_postgres(careless=False) as started:
        yield started


async def _until_it_answers(storage: SqlStorage) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await storage.check()
                await storage.renew_lease()
                return
            except UnavailableError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_the_server_loses_nothing_that_was_acknowledged(
    server: PostgresServer, mode: str
) -> None:
    admitted: list[str] = []
    versions: dict[str, int] = {}
    failures: list[UnavailableError] = []
    async with SqlStorage(server.url(), lease=LEASE) as storage:
        halt = False

        async def work() -> None:
            while not halt:
                operation = an_operation()
                try:
                    await storage.admit(operation)
                    admitted.append(operation.id)
                    turn = await storage.start_turn(operation.task_id)
                    assert isinstance(turn, Turn)
                    task_id = operation.task_id
                    await storage.commit(a_commit(task_id, created(task_id), fence=turn.fence))
                    versions[task_id] = 1
                    two = a_commit(task_id, chunk("x"), chunk("y"), version=1, fence=turn.fence)
                    await storage.commit(two)
                    versions[task_id] = 3
                except UnavailableError as error:
                    failures.append(error)
                    await asyncio.sleep(0.05)

        async def more_than(count: int) -> None:
            async with asyncio.timeout(30):
                while len(versions) < count:  # noqa: ASYNC110 - of what others do
                    await asyncio.sleep(0.01)

        working = [asyncio.create_task(work()) for _ in range(8)]
        await more_than(40)
        await asyncio.to_thread(server.restart, mode)
        before = len(versions)
        await more_than(before + 40)
        halt = True
        await asyncio.gather(*working)
        assert failures
        assert len(await storage.load_progress(admitted)) == len(admitted)
        heads = {head.task_id: head for head in await storage.load_heads(list(versions))}
        for task_id, version in versions.items():
            assert heads[task_id].version >= version
            # A commit is there as a whole or not at all.
            assert heads[task_id].version in (1, 3)


async def test_a_server_that_is_away_is_not_stormed_and_found_again(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqlStorage(server.url(), lease=LEASE) as storage:
        task_id = await store_task(storage)
        await asyncio.to_thread(server.stop)
        start = time.monotonic()
        for _ in range(20):
            calls = [storage.load_head(task_id) for _ in range(10)]
            calls += [storage.load_head(task_id) for _ in range(10)]
            results = await asyncio.gather(
                *calls, store_task(storage), storage.check(), return_exceptions=True
            )
            for result in results:
                assert isinstance(result, UnavailableError)
                assert result.retry_after == 1.0
        took = time.monotonic() - start
        away = [record for record in caplog.records if "can't connect" in record.getMessage()]
        assert len(away) == 1
        assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) < 20 + 5 * took
        await asyncio.to_thread(server.start)
        await _until_it_answers(storage)
        assert await storage.load_head(task_id) is not None
        await store_task(storage)


async def test_a_read_after_a_restart_does_not_fail(server: PostgresServer) -> None:
    async with SqlStorage(server.url(), lease=LEASE) as storage:
        task_id = await store_task(storage)
        for _ in range(3):
            await asyncio.gather(*(storage.load_head(task_id) for _ in range(20)))
            await asyncio.to_thread(server.restart, "immediate")
            heads = await asyncio.gather(*(storage.load_head(task_id) for _ in range(20)))
            assert all(head is not None for head in heads)


async def test_a_replica_that_cannot_end_its_lease_closes_all_the_same(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(30), SqlStorage(server.url(), lease=LEASE) as storage:
        await store_task(storage)
        await asyncio.to_thread(server.stop, "immediate")
    assert "can't end the lease" in caplog.text


async def test_a_turn_whose_start_was_acknowledged_by_nobody_can_be_started_again(
    server: PostgresServer,
) -> None:
    async with SqlStorage(server.url(), lease=LEASE) as storage:
        operation = an_operation()
        await storage.admit(operation)
        starting = asyncio.create_task(storage.start_turn(operation.task_id))
        await asyncio.to_thread(server.restart, "immediate")
        await asyncio.wait((starting,))
        starting.exception()
        await _until_it_answers(storage)
        turn = await storage.start_turn(operation.task_id)
        assert isinstance(turn, Turn)
        await storage.commit(
            a_commit(operation.task_id, created(operation.task_id), fence=turn.fence)
        )


async def test_a_session_frozen_in_a_transaction_holds_a_task_for_a_third_of_the_lease(
    postgres: str,
) -> None:
    async with SqlStorage(postgres, lease=3.0) as storage:
        task_id, other = await store_task(storage), await store_task(storage)
        settings = {"idle_in_transaction_session_timeout": "1000"}
        frozen = await asyncpg.connect(postgres, server_settings=settings)
        try:
            await frozen.execute("BEGIN")
            await frozen.execute("SELECT * FROM tasks WHERE id = $1 FOR UPDATE", task_id)
            async with asyncio.timeout(10):
                await asyncio.gather(
                    storage.commit(a_commit(task_id, chunk("a"), version=1)),
                    storage.commit(a_commit(other, chunk("a"), version=1)),
                    store_task(storage),
                )
        finally:
            frozen.terminate()


async def test_sessions_have_their_bounds(database: PostgresDatabase) -> None:
    def look(connection: Connection) -> dict[str, str]:
        names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
        more = (
            "tcp_user_timeout",
            "application_name",
            "transaction_isolation",
            "transaction_read_only",
        )
        return {
            name: str(connection.execute(text(f"SHOW {name}")).scalar_one())
            for name in names + more
        }

    shown = await database.write(look)
    assert shown == {
        "idle_in_transaction_session_timeout": "200s",
        "lock_timeout": "1s",
        "statement_timeout": "30s",
        "tcp_user_timeout": "200000",
        "application_name": "a2a-grpc",
        "transaction_isolation": "read committed",
        "transaction_read_only": "off",
    }
    shown = await database.read(look)
    assert shown["transaction_isolation"] == "repeatable read"
    assert shown["transaction_read_only"] == "on"


async def test_a_full_disk_is_resource_exhausted_for_admit(
    storage: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: Any, work: Any) -> Any:
        raise failure_of(asyncpg.DiskFullError("no space left")) or AssertionError

    monkeypatch.setattr(PostgresDatabase, "write", full)
    with pytest.raises(ResourceExhaustedError):
        await storage.admit(an_operation())
    with pytest.raises(UnavailableError):
        await store_task(storage)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("error", "available"),
    [
        (asyncpg.TooManyConnectionsError("x"), False),
        (asyncpg.CannotConnectNowError("x"), False),
        (asyncpg.AdminShutdownError("x"), False),
        (asyncpg.QueryCanceledError("x"), False),
        (asyncpg.ReadOnlySQLTransactionError("x"), False),
        (asyncpg.IdleInTransactionSessionTimeoutError("x"), False),
        (asyncpg.ConnectionDoesNotExistError("x"), False),
        (asyncpg.InvalidPasswordError("x"), False),
        (asyncpg.InterfaceError("connection is closed"), False),
        (ConnectionResetError("x"), False),
        (TimeoutError("x"), False),
        (asyncpg.UndefinedTableError("x"), True),
        (asyncpg.DataError("x"), True),
        (ValueError("x"), True),
    ],
)
def test_errors_of_the_driver_are_those_of_the_database_or_of_the_work(
    error: Exception, available: bool
) -> None:
    assert (failure_of(error) is None) == available


async def test_a_write_that_the_database_cannot_take_harms_nobody_else(
    storage: SqlStorage,
) -> None:
    results = await asyncio.gather(
        store_task(storage),
        storage.update_context("no\x00body", 1),
        store_task(storage),
        return_exceptions=True,
    )
    assert [isinstance(result, str) for result in results] == [True, False, True]
    assert not isinstance(results[1], UnavailableError)
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 2


# --- Cost.


@pytest.fixture
def executed() -> Iterator[list[str]]:
    """The statements that any engine executes."""
    found: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


async def test_the_number_of_statements_does_not_grow_with_the_group(
    storage: SqlStorage, executed: list[str]
) -> None:
    counts = {}
    await run_to_the_end(storage)
    for writers in (1, 40):
        executed.clear()
        operations = [an_operation() for _ in range(writers)]
        await asyncio.gather(*(storage.admit(operation) for operation in operations))
        turns = await asyncio.gather(*(storage._write(StartTurn(o.task_id, o)) for o in operations))
        await asyncio.gather(
            *(
                storage.commit(
                    a_commit(
                        turn.operation.task_id, created(turn.operation.task_id), fence=turn.fence
                    )
                )
                for turn in turns
                if isinstance(turn, StartedTurn)
            )
        )
        counts[writers] = len(executed)
    # The first write of each round goes alone, the others together.
    assert counts[40] <= 2 * counts[1] + 1


async def test_a_commit_takes_few_statements(storage: SqlStorage, executed: list[str]) -> None:
    turn = await begin(storage, operation := an_operation())
    task_id = operation.task_id
    await storage.commit(a_commit(task_id, created(task_id), fence=turn.fence))
    executed.clear()
    await storage.commit(a_commit(task_id, chunk("x"), version=1, fence=turn.fence))
    # The task's row, its new entry, the row again, what waits for push.
    assert len(executed) == 4, executed


async def _fill(storage: SqlStorage, database: PostgresDatabase) -> None:
    """Enough rows for the planner to choose as it does in earnest."""
    await run_to_the_end(storage)
    many = [
        "INSERT INTO tasks SELECT 1000000 + n, 'task-' || n, 'context-' || n % 500, 'tenant', "
        "'alice', n % 3 + 1, n, 1, 1, 1, 0, NULL, 0, 0, 10, 16384 FROM generate_series(1, 20000) n",
        "INSERT INTO operations (number, id, task_id, created_at, attempts, handed_back, "
        "submitted_at, submitted_by, state, done_at, outcome_kind, outcome_version, "
        "outcome_payload) SELECT 1000000 + n, 'operation-' || n, 'task-' || n, n, 1, 0, n, 'gone', "
        "CASE WHEN n % 1000 = 0 THEN 1 ELSE 2 END, n, 0, 1, '' FROM generate_series(1, 20000) n",
        "INSERT INTO requests SELECT 1000000 + n, '', 'context', 'tenant', 'alice', 1, NULL, "
        "'{}', '[]' FROM generate_series(1, 20000) n",
        "INSERT INTO log SELECT 1000000 + n, v, v, 0, '' FROM generate_series(1, 5000) n, "
        "generate_series(1, 4) v",
        "INSERT INTO push_configs SELECT 'task-' || n, 'a', 'tenant', 'alice', '', 1, 0, 0, 0, "
        "CASE WHEN n % 100 = 0 THEN 1 ELSE 0 END FROM generate_series(1, 20000) n",
        "INSERT INTO task_counts SELECT 'tenant', 'user-' || n / 40, 3, n % 40, n % 4, 1 "
        "FROM generate_series(1, 20000) n",
        "INSERT INTO contexts SELECT 'tenant', 'alice', 'context-' || n, '1', n "
        "FROM generate_series(1, 20000) n",
    ]

    def fill(connection: Connection) -> None:
        for statement in many:
            connection.execute(text(statement))
        connection.execute(text("ANALYZE"))

    await database.write(fill)


async def _plan(
    database: PostgresDatabase, statement: Any, values: dict[str, Any] | None = None
) -> str:
    def explain(connection: Connection) -> str:
        compiled = statement.compile(connection)
        expanded = compiled.construct_expanded_state(values or {})
        found = connection.exec_driver_sql(
            f"EXPLAIN {expanded.statement}", tuple(expanded.positional_parameters)
        )
        return "\n".join(found.scalars())

    return await database.write(explain)


AFTER = (15_000, "id")


async def test_pages_come_from_an_index_without_sorting(
    storage: SqlStorage, database: PostgresDatabase
) -> None:
    await _fill(storage, database)
    for query, index in [
        (TaskQuery(ALICE), "tasks_by_scope"),
        (TaskQuery(ALICE, after=AFTER), "tasks_by_scope"),
        (TaskQuery(ALICE, updated_since=3), "tasks_by_scope"),
        (TaskQuery(ALICE, context_id="context-7", after=AFTER), "tasks_by_context"),
        (TaskQuery(ALICE, state=WORKING, after=AFTER), "tasks_by_state"),
    ]:
        plan = await _plan(database, statements.page(query))
        assert f"Scan Backward using {index}" in plan, plan
        assert "Sort" not in plan
        assert ("ROW(status_at, id) < ROW" in plan) == (query.after is not None)
    for query, index in [
        (TaskQuery(ALICE, context_id="context-7"), "tasks_by_context"),
        (TaskQuery(ALICE, context_id="context-7", state=WORKING), "tasks_by_context"),
        (TaskQuery(ALICE, updated_since=19_000), "tasks_by_scope"),
        (TaskQuery(ALICE, state=WORKING, updated_since=19_900), "tasks_by_state"),
    ]:
        plan = await _plan(database, statements.total(query))
        assert re.search(rf"Index (Only )?Scan (using|on) {index}", plan), plan
    for state in (0, WORKING):
        plan = await _plan(database, statements.total(TaskQuery(ALICE, state=state)))
        assert "task_counts" in plan
        assert " tasks" not in plan


async def test_no_statement_reads_a_whole_table(
    storage: SqlStorage, database: PostgresDatabase
) -> None:
    await _fill(storage, database)
    ids = {"ids": ["task-1", "task-2"]}
    for statement, values in [
        (statements.operations_by_id, ids),
        (statements.operations_for_update, {**ids, "of_tasks": ["task-100", "task-3"]}),
        (statements.unfinished_of_tasks, ids),
        (statements.progress, ids),
        (statements.tasks_for_update, ids),
        (statements.head, {"task_id": "task-1"}),
        (statements.heads, ids),
        (statements.task_with_snapshot, {"task_id": "task-1"}),
        (statements.log_between, {"of": 1000001, "after": 0, "upto": 5}),
        (statements.events, {"of": 1000001, "after": 0, "limit": 5, "max_bytes": 9}),
        (statements.tails_by_number, {"numbers": [1000001, 1000002]}),
        (statements.push_configs_of_task, {"task_id": "task-1"}),
        (statements.due_push_configs, {"now": 1.0, "limit": 5}),
        (statements.next_push_attempt, {}),
        (replicas.tasks_to_cancel, {"of": "me"}),
        (replicas.stranded_operations, {"of": "me", "limit": 5}),
        (forgetting.operations_to_forget, {"before": 100.0, "limit": 5}),
        (forgetting.tasks_to_forget, {"before": 100, "limit": 5}),
        (
            forgetting.tasks_to_compact,
            {"before": 100, "after_time": 0, "after_id": "", "limit": 5},
        ),
        (forgetting.push_configs_after, {"after_task": "", "after_config": "", "limit": 5}),
        (
            forgetting.contexts_after,
            {
                "after_tenant": "",
                "after_principal": "",
                "after_context": "",
                "before": 1.0,
                "limit": 5,
            },
        ),
        (counts.counts_to_fold, {"first": -9, "last": 9, "limit": 5}),
        (forgetting.delete_not_created, {"limit": 5}),
        (forgetting.release_ended, {}),
    ]:
        plan = await _plan(database, statement, values)
        whole = re.findall(r"Seq Scan on (\w+)", plan)
        assert set(whole) <= {"replicas", "snapshots"}, plan  # which are all but empty here


async def test_the_cost_of_a_page_does_not_grow_with_the_tasks(
    storage: SqlStorage, database: PostgresDatabase
) -> None:
    for number in range(60):
        await store_task(storage, at=1_000_000 + number)

    async def seconds() -> float:
        queries = [
            TaskQuery(ALICE),
            TaskQuery(ALICE, state=WORKING),
            TaskQuery(ALICE, context_id="context"),
        ]
        best = float("inf")
        for _ in range(10):
            begun = time.perf_counter()
            for query in queries:
                await storage.list_tasks(query)
            best = min(best, time.perf_counter() - begun)
        return best

    few = await seconds()
    await _fill(storage, database)
    assert await seconds() < 2.5 * few + 0.02


async def test_a_long_log_is_renewed_and_shortened(postgres: str) -> None:
    async with SqlStorage(postgres, lease=LEASE, keep_entries=10) as storage:
        task_id = await store_task(storage)
        for version in range(1, 200):
            await storage.commit(a_commit(task_id, chunk("x" * 2000), version=version))
        end = a_commit(task_id, status(COMPLETED), version=200, state=COMPLETED)
        await storage.commit(end)
    left = shared_postgres().execute(
        "SELECT count(*) FROM log", database=postgres.rpartition("/")[2]
    )
    assert int(left) < 150


async def test_commits_wait_for_the_disk_unless_the_url_says_otherwise(postgres: str) -> None:
    """Whatever the database's default: the tests' own server does not wait."""

    async def setting(of: str) -> str:
        async with SqlStorage(of) as storage:
            found: list[str] = []

            def look(connection: Connection) -> None:
                found.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

            await storage._database.write(look)
            return found[0]

    assert await setting(postgres) == "on"
    assert await setting(f"{postgres}?synchronous_commit=off") == "off"
    assert await setting(f"{postgres}?synchronous_commit=remote_apply") == "remote_apply"
