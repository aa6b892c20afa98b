"""What the storage on SQLite promises beyond the contract."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, Select, create_engine, event
from sqlalchemy.dialects import sqlite as sqlite_dialect

from a2a_grpc import pb
from a2a_grpc.errors import ResourceExhaustedError, UnavailableError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.sql import counts, forgetting, replicas, statements, writer
from a2a_grpc.storage.sql.group import Appended
from a2a_grpc.storage.sql.schema import metadata
from a2a_grpc.storage.sql.snapshots import RecentSnapshots
from a2a_grpc.storage.sql.sqlite import SqliteDatabase
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.sql.writes import StartedTurn, StartTurn
from a2a_grpc.storage.values import (
    FenceLostError,
    OperationState,
    StorageOpenError,
    Stranded,
    TaskQuery,
    Turn,
    VersionConflictError,
)
from tests.storage.values import (
    ALICE,
    BOB,
    COMPLETED,
    SECOND,
    WORKING,
    a_commit,
    a_task,
    an_operation,
    begin,
    chunk,
    created,
    done,
    entries,
    new_id,
    run_to_the_end,
    start,
    status,
    store_task,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqlStorage]:
    async with SqlStorage(f"sqlite:///{path}") as opened:
        yield opened


def _python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process with this project on its path."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=ROOT,
    )


# --- The URL and the lock.


@pytest.mark.parametrize(
    "url",
    ["sqlite:///{}", "sqlite+aiosqlite:///{}", "sqlite+pysqlite:///{}"],
)
async def test_urls_name_the_file(path: Path, url: str) -> None:
    async with SqlStorage(url.format(path)) as storage:
        await store_task(storage)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "nonsense", "sqlite:///f?mode=ro"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///file\.db"):
        SqlStorage(url)


async def test_a_second_storage_in_this_process_is_refused(
    storage: SqlStorage, path: Path, tmp_path: Path
) -> None:
    alias = tmp_path / "alias.db"
    alias.symlink_to(path)
    for name in (path, alias):
        with pytest.raises(StorageOpenError, match=re.escape(str(path))) as refusal:
            await SqlStorage(f"sqlite:///{name}").__aenter__()
        assert "stop it first" in str(refusal.value)
    await store_task(storage)


OPEN_AND_WAIT = """
import asyncio, sys
from a2a_grpc.storage.sql.storage import SqlStorage

async def main():
    async with SqlStorage("sqlite:///" + sys.argv[1]):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


async def test_a_second_process_is_refused_until_the_first_is_gone(path: Path) -> None:
    for end in (signal.SIGKILL, None):
        with _python(OPEN_AND_WAIT, path) as first:
            assert first.stdin is not None
            assert first.stdout is not None
            assert first.stdout.readline() == "open\n"
            with pytest.raises(StorageOpenError, match=re.escape(str(path))):
                await SqlStorage(f"sqlite:///{path}").__aenter__()
            if end is None:
                first.stdin.write("\n")
                first.stdin.close()
            else:
                first.send_signal(end)
        async with SqlStorage(f"sqlite:///{path}") as storage:
            await store_task(storage)


@pytest.fixture
def letter(path: Path) -> Path:
    """A file that is no database."""
    path.write_text("something else entirely, and longer than a database's first page " * 100)
    return path


async def test_a_file_that_is_no_database_is_refused(letter: Path) -> None:
    for _ in range(2):  # and the lock is given back
        with pytest.raises(StorageOpenError, match=f"{re.escape(str(letter))}.*not a database"):
            await SqlStorage(f"sqlite:///{letter}").__aenter__()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageOpenError, match="directory") as refusal:
        await SqlStorage(f"sqlite:///{tmp_path}/nowhere/tasks.db").__aenter__()
    assert str(tmp_path) in str(refusal.value)


async def test_a_storage_that_is_not_open_says_so(path: Path) -> None:
    storage = SqlStorage(f"sqlite:///{path}")
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await storage.load_head("task")
        with pytest.raises(UnavailableError):
            await store_task(storage)
        async with storage:
            await store_task(storage)


async def test_a_closed_storage_answers_nothing_from_its_cache(path: Path) -> None:
    async with SqlStorage(f"sqlite:///{path}") as storage:
        task_id = await store_task(storage)
        assert await storage.load_task(task_id) is not None
    with pytest.raises(UnavailableError, match="not open"):
        await storage.load_task(task_id)


async def _fail_reads(storage: SqlStorage, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    load = storage.load_snapshot
    failures = iter(range(times))

    async def fail(*arguments: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise UnavailableError("the storage can't be reached now")
        return await load(*arguments, **options)

    monkeypatch.setattr(storage, "load_snapshot", fail)
    monkeypatch.setattr("a2a_grpc.storage.sql.storage.READ_DELAYS", (0.0, 0.0, 0.0))


async def test_a_turn_that_could_not_be_read_is_no_attempt(
    storage: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await store_task(storage)
    operation = an_operation(task_id=task_id)
    await storage.admit(operation)
    await _fail_reads(storage, monkeypatch, times=4)
    with pytest.raises(UnavailableError):
        await storage.start_turn(operation.task_id)
    head = await storage.load_head(task_id)
    assert head is not None
    assert not head.running
    turn = await start(storage, operation.task_id)
    assert turn.operation.attempts == 1
    assert turn.snapshot is not None
    assert len(turn.snapshot.task.history) == 1, "the message enters once"


async def test_a_turn_is_read_again_before_it_is_handed_back(
    storage: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = an_operation(task_id=await store_task(storage))
    await storage.admit(operation)
    await _fail_reads(storage, monkeypatch, times=3)
    turn = await start(storage, operation.task_id)
    assert (turn.operation.attempts, turn.fence) == (1, 1)


async def test_a_turn_that_was_started_for_nobody_is_handed_back(
    storage: SqlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller was cancelled, or the answer to the commit was lost, and it was kept after all."""
    operation = an_operation()
    await storage.admit(operation)
    write = SqliteDatabase.write

    async def lose_the_answer(self: SqliteDatabase, work: Any) -> Any:
        await write(self, work)
        raise UnavailableError("the answer is lost")

    with monkeypatch.context() as broken:
        broken.setattr(SqliteDatabase, "write", lose_the_answer)
        with pytest.raises(UnavailableError):
            await storage.start_turn(operation.task_id)
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    assert loaded.attempts == 1
    await storage.stranded_operations(10)
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    assert loaded.attempts == 0
    turn = await start(storage, operation.task_id)
    assert (turn.operation.attempts, turn.fence) == (1, 2)
    # That turn is not given up with the first one.
    await storage.stranded_operations(10)
    event = created(operation.task_id)
    await storage.commit(a_commit(operation.task_id, event, fence=turn.fence))


async def test_a_cancelled_start_leaves_no_turn_behind(storage: SqlStorage) -> None:
    for steps in range(30):
        operation = an_operation()
        await storage.admit(operation)
        starting = asyncio.create_task(storage.start_turn(operation.task_id))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        (result,) = await asyncio.gather(starting, return_exceptions=True)
        await storage.stranded_operations(10)
        loaded = await storage.load_operation(operation.id)
        assert loaded is not None
        assert loaded.attempts == (1 if isinstance(result, Turn) else 0)


async def test_turns_of_a_former_process_keep_no_ended_task(path: Path) -> None:
    operation = an_operation()
    async with SqlStorage(f"sqlite:///{path}") as storage:
        turn = await begin(storage, operation)
        event = created(operation.task_id, state=COMPLETED)
        commit = a_commit(operation.task_id, event, state=COMPLETED, fence=turn.fence)
        await storage.commit(replace(commit, finished=done(operation, 1)))
        assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 0
    async with SqlStorage(f"sqlite:///{path}") as storage:
        assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


# --- What survives.


async def _everything(storage: AnyStorage, task_id: str) -> list[Any]:
    return [
        await storage.load_head(task_id),
        await storage.load_snapshot(task_id),
        await storage.load_snapshot(task_id, version=2),
        await storage.load_events(task_id, 0, 1000),
        await storage.list_tasks(TaskQuery(ALICE, include_artifacts=True)),
        await storage.load_heads([task_id]),
        await storage.load_push_configs(task_id),
        await storage.due_push_targets(1.0, 10),
        await storage.load_context("context", scope=ALICE),
    ]


async def test_everything_survives_reopening(path: Path) -> None:
    async with SqlStorage(f"sqlite:///{path}") as storage:
        operation = await run_to_the_end(storage, an_operation(deduplication_key=b"key"))
        task_id = await store_task(storage)
        config = pb.TaskPushNotificationConfig(id="a", task_id=task_id, url="https://a")
        await storage.save_push_config(config, scope=ALICE)
        for version in range(1, 100):
            await storage.commit(a_commit(task_id, chunk("x" * 1000), version=version))
        await storage.admit(waiting := an_operation(task_id=task_id))
        await storage.update_context("context", {"a": [1]}, scope=ALICE)
        before = await _everything(storage, task_id)
    async with SqlStorage(f"sqlite:///{path}") as storage:
        assert await _everything(storage, task_id) == before
        again = an_operation(deduplication_key=b"key")
        assert (await storage.admit(again, duplicates_since=0)).id == operation.id
        (stranded,) = await storage.stranded_operations(10)
        assert stranded == Stranded(task_id, waiting.id, 0)
        turn = await start(storage, task_id)
        await storage.commit(
            a_commit(task_id, status(COMPLETED), version=101, sequence=100, fence=turn.fence)
        )


WRITE_AND_ACKNOWLEDGE = """
import asyncio, sys
from a2a_grpc.storage.sql.storage import SqlStorage
from tests.storage.values import *

async def main():
    async with SqlStorage("sqlite:///" + sys.argv[1]) as storage:
        async def work():
            while True:
                operation = an_operation()
                await storage.admit(operation)
                print("admitted", operation.task_id, operation.id, flush=True)
                turn = await storage.start_turn(operation.task_id)
                task_id = operation.task_id
                print("started", operation.task_id, turn.fence, flush=True)
                await storage.commit(a_commit(task_id, created(task_id), fence=turn.fence))
                print("version", task_id, 1, flush=True)
                version = 1
                while version < 20:
                    events = [chunk("x" * 1000), chunk("y" * 1000)]
                    await storage.commit(
                        a_commit(task_id, *events, version=version, fence=turn.fence)
                    )
                    version += 2
                    print("version", task_id, version, flush=True)
        await asyncio.gather(*(work() for _ in range(8)))

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    admitted, fences, versions = dict[str, str](), dict[str, int](), dict[str, int]()
    with _python(WRITE_AND_ACKNOWLEDGE, path) as process:
        assert process.stdout is not None
        lines = 0
        for line in process.stdout:
            words = line.split()
            if not line.endswith("\n"):
                break
            if words[0] == "admitted":
                admitted[words[1]] = words[2]
            elif words[0] == "started":
                fences[words[1]] = int(words[2])
            else:
                versions[words[1]] = int(words[2])
            lines += 1
            if lines == 1500:
                # What it still prints until it is dead is read and counts too.
                process.kill()
    assert lines >= 1500
    async with SqlStorage(f"sqlite:///{path}") as storage:
        stranded = {one.task_id: one for one in await storage.stranded_operations(100_000)}
        for task_id, operation_id in admitted.items():
            assert stranded[task_id].operation_id == operation_id
        for task_id in fences:
            assert stranded[task_id].attempts == 1
        for task_id, version in versions.items():
            head = await storage.load_head(task_id)
            assert head is not None
            assert head.version >= version
            # A commit is there as a whole or not at all.
            assert head.version % 2 == 1
            assert not head.running, "its process is dead"
            assert len(await storage.load_events(task_id, 0, 100)) == head.sequence
            task = await storage.load_task(task_id)
            assert task is not None
            assert sum(len(a.parts) for a in task.artifacts) == head.version - 1
        total = (await storage.list_tasks(TaskQuery(ALICE))).total
        assert total >= len(versions)
        # Every turn can be taken over.
        for task_id in fences:
            turn = await start(storage, task_id)
            assert turn.fence > fences[task_id]


async def test_a_copy_of_the_file_and_its_log_is_a_database(path: Path, tmp_path: Path) -> None:
    """What is in the files when a write returns is enough, without the process."""
    copy = tmp_path / "copy.db"
    async with SqlStorage(f"sqlite:///{path}") as storage:
        operation = await run_to_the_end(storage)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    async with SqlStorage(f"sqlite:///{copy}") as storage:
        head = await storage.load_head(operation.task_id)
        assert head is not None
        assert head.version == 3


# --- Groups.


async def test_a_refused_write_leaves_the_others_of_its_group_alone(storage: SqlStorage) -> None:
    task_id = await store_task(storage)
    stale = a_commit(task_id, status(COMPLETED), version=5, state=COMPLETED)
    fenceless = a_commit(task_id, status(COMPLETED), version=1, fence=7, state=COMPLETED)
    results = await asyncio.gather(
        store_task(storage, task_id="one"),
        storage.commit(stale),
        storage.commit(a_commit(task_id, status(WORKING, "first"), version=1)),
        storage.commit(a_commit(task_id, status(WORKING, "late"), version=1)),
        storage.commit(fenceless),
        storage.commit(a_commit(task_id, status(WORKING, "second"), version=2)),
        store_task(storage, task_id="two"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        str,
        VersionConflictError,
        bool,
        VersionConflictError,
        FenceLostError,
        bool,
        str,
    ]
    task = await storage.load_task(task_id)
    assert task is not None
    assert task.status.message.message_id == "second"
    assert await storage.load_head("one") is not None
    assert await storage.load_head("two") is not None


async def test_a_write_that_the_database_cannot_take_harms_nobody_else(
    storage: SqlStorage,
) -> None:
    results = await asyncio.gather(
        store_task(storage, task_id="one"),
        storage.commit(a_commit("bad", created("bad"), context_id="\ud800")),
        store_task(storage, task_id="two"),
        return_exceptions=True,
    )
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 2


async def test_a_whole_life_fits_into_one_group(storage: SqlStorage) -> None:
    """Writes of one task that share a transaction see each other, in their order."""
    operation = an_operation()
    task_id = operation.task_id
    config = pb.TaskPushNotificationConfig(id="a", task_id=task_id)
    _, turn, _, more, none, _ = await asyncio.gather(
        storage.admit(operation, push_config=config),
        storage._write(StartTurn(task_id, operation)),
        storage.commit(a_commit(task_id, created(task_id), fence=1)),
        storage.commit(
            a_commit(
                task_id,
                status(COMPLETED),
                version=1,
                state=COMPLETED,
                fence=1,
                finished=done(operation, 2),
                ends_turn=True,
            )
        ),
        storage.start_turn(operation.task_id),
        storage.delete_push_config(task_id, "a"),
    )
    assert isinstance(turn, StartedTurn)
    assert (turn.fence, more) == (1, False)
    assert none is None
    assert await storage.load_push_configs(task_id) == []
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    assert loaded.state is OperationState.DONE
    assert (await storage.list_tasks(TaskQuery(ALICE, state=COMPLETED))).total == 1


async def test_more_writers_than_fit_are_all_served(storage: SqlStorage) -> None:
    count = 2 * writer.MAX_WAITING
    ids = await asyncio.gather(*(store_task(storage) for _ in range(count)))
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == count == len(set(ids))


async def test_cancelled_writers_leave_the_others_alone(storage: SqlStorage) -> None:
    count = 2 * writer.MAX_WAITING
    writes = [asyncio.create_task(store_task(storage, task_id=f"{n}")) for n in range(count)]
    await asyncio.sleep(0)
    for write in writes[::2]:
        write.cancel()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert results[1::2] == [f"{n}" for n in range(1, count, 2)]
    assert (await storage.list_tasks(TaskQuery(ALICE))).total >= count // 2


async def _fill(storage: AnyStorage, task_id: str) -> int:
    """Append until there is no room; the task's version then."""
    for version in range(1, 100):
        try:
            await storage.commit(a_commit(task_id, chunk("x" * 50_000), version=version))
        except UnavailableError:
            return version
    raise AssertionError("the database was never full")


async def test_a_full_database_refuses_and_goes_on(path: Path) -> None:
    async with SqlStorage(f"sqlite:///{path}", max_bytes=2**20) as storage:
        old = await store_task(storage, COMPLETED, at=SECOND)
        task_id = await store_task(storage)
        version = await _fill(storage, task_id)
        results = await asyncio.gather(
            storage.admit(an_operation(text="x" * 200_000)),
            storage.commit(a_commit(task_id, chunk("x" * 200_000), version=version)),
            return_exceptions=True,
        )
        assert isinstance(results[0], ResourceExhaustedError)
        assert isinstance(results[1], UnavailableError)
        # All readable, nothing half done, and small writes go on when there is room again.
        snapshot = await storage.load_snapshot(task_id)
        assert snapshot is not None
        assert snapshot.version == version
        assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1
        assert await storage.load_head(old) is None


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
    path: Path, executed: list[str]
) -> None:
    counts = {}
    for writers in (1, 40):
        async with SqlStorage(f"sqlite:///{path}-{writers}") as storage:
            await run_to_the_end(storage)
            executed.clear()
            operations = [an_operation() for _ in range(writers)]
            await asyncio.gather(*(storage.admit(operation) for operation in operations))
            turns = await asyncio.gather(
                *(storage._write(StartTurn(o.task_id, o)) for o in operations)
            )
            await asyncio.gather(
                *(
                    storage.commit(
                        a_commit(
                            turn.operation.task_id,
                            created(turn.operation.task_id),
                            fence=turn.fence,
                        )
                    )
                    for turn in turns
                    if isinstance(turn, StartedTurn)
                )
            )
            counts[writers] = len(executed)
    # The first write of each round goes alone, the others together.
    assert counts[40] <= 2 * counts[1]


# --- Snapshots.


async def test_snapshots_cost_no_more_than_the_log(path: Path) -> None:
    async with SqlStorage(f"sqlite:///{path}") as storage:
        task_id = await store_task(storage)
        for version in range(1, 1000):
            await storage.commit(a_commit(task_id, chunk("x" * 1000), version=version))
    with sqlite3.connect(path) as connection:
        (stored,) = connection.execute("SELECT version FROM snapshots").fetchall()
        tail = connection.execute("SELECT count(*) FROM log WHERE version > ?", stored).fetchone()
    connection.close()
    # Reading folds at most about as much as the snapshot has.
    assert tail[0] < 700
    async with SqlStorage(f"sqlite:///{path}") as storage:
        task = await storage.load_task(task_id)
        assert task is not None
        assert len(task.artifacts[0].parts) == 999


def _appended(task_id: str, text: str, *, after: int = 0) -> Appended:
    value = chunk(text) if after else created(task_id)
    return Appended(task_id, ALICE, after, entries([value], version=after, sequence=after))


def test_the_cache_keeps_the_newest_within_its_bound() -> None:
    recent = RecentSnapshots(64_000)
    ids = [f"{number}" for number in range(1000)]
    for task_id in ids:
        recent.follow(_appended(task_id, ""))
    kept = [task_id for task_id in ids if recent.load(task_id, None, None, None) is not None]
    assert 100 < len(kept) < 250
    assert kept == ids[-len(kept) :]


def test_the_cache_keeps_no_large_task() -> None:
    recent = RecentSnapshots(64_000)
    recent.follow(_appended("task", ""))
    recent.follow(_appended("task", "x" * 100, after=1))
    snapshot = recent.load("task", ALICE, None, None)
    assert snapshot is not None
    assert (snapshot.version, len(snapshot.task.artifacts)) == (2, 1)
    recent.follow(_appended("task", "x" * 1000, after=2))
    assert recent.load("task", ALICE, None, None) is None
    # Without its beginning it does not come back.
    recent.follow(_appended("task", "x", after=3))
    assert recent.load("task", ALICE, None, None) is None


@pytest.mark.parametrize("cache_bytes", [0, 64_000, 32 * 2**20])
async def test_reads_are_the_same_with_any_cache(path: Path, cache_bytes: int) -> None:
    async with SqlStorage(f"sqlite:///{path}", cache_bytes=cache_bytes) as storage:
        for _ in range(300):
            operation = await run_to_the_end(storage)
            task = await storage.load_task(operation.task_id, scope=ALICE)
            assert task is not None
            assert (task.status.state, len(task.artifacts)) == (COMPLETED, 1)
            assert await storage.load_task(operation.task_id, scope=BOB) is None
            assert await storage.load_snapshot(operation.task_id, version=1) is not None


# --- The schema and its plans.


async def test_migrated_schema_is_the_metadata(storage: SqlStorage, path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        migrated = _definitions(connection.connection)
    engine.dispose()
    fresh = create_engine("sqlite://")
    with fresh.connect() as connection:
        metadata.create_all(connection)
        # Conditions of indexes and storage of tables, which the comparison does not see.
        assert _definitions(connection.connection) == migrated
    fresh.dispose()


def _definitions(connection: Any) -> set[str]:
    rows = connection.cursor().execute(
        "SELECT sql FROM sqlite_master WHERE sql NOT NULL AND name NOT LIKE 'alembic%'"
    )
    return {re.sub(r"\s+|'|\"", " ", sql) for (sql,) in rows}


async def test_migrating_again_changes_nothing(path: Path) -> None:
    for _ in range(2):
        async with SqlStorage(f"sqlite:///{path}") as storage:
            task_id = await store_task(storage)
        assert task_id


async def test_a_database_of_a_later_version_is_refused(path: Path) -> None:
    async with SqlStorage(f"sqlite:///{path}") as storage:
        await store_task(storage)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StorageOpenError, match="later version") as refusal:
        await SqlStorage(f"sqlite:///{path}").__aenter__()
    assert str(path) in str(refusal.value)


async def test_a_commit_is_synced_to_the_disk(storage: SqlStorage) -> None:
    found = []

    def look(connection: Connection) -> None:
        found.append(
            [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous")
            ]
        )

    event.listen(Engine, "commit", look)
    await store_task(storage)
    event.remove(Engine, "commit", look)
    full = 2
    assert found == [["wal", full]]


@pytest.fixture
def reading(storage: SqlStorage, path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


AFTER = (5, "id")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (TaskQuery(ALICE), "tasks_by_scope (tenant=? AND principal=?"),
        (TaskQuery(ALICE, after=AFTER), "tasks_by_scope (tenant=? AND principal=?"),
        (TaskQuery(ALICE, updated_since=3), "tasks_by_scope (tenant=? AND principal=?"),
        (
            TaskQuery(ALICE, context_id="c", after=AFTER),
            "tasks_by_context (tenant=? AND principal=? AND context_id=?",
        ),
        (
            TaskQuery(ALICE, state=WORKING, after=AFTER),
            "tasks_by_state (tenant=? AND principal=? AND state=?",
        ),
    ],
)
async def test_pages_come_from_an_index(
    reading: sqlite3.Connection, query: TaskQuery, index: str
) -> None:
    (step,) = _plan(reading, statements.page(query))  # one step: nothing is sorted
    assert f"SEARCH tasks USING INDEX {index}" in step
    assert ("(status_at,id)<(?,?)" in step) == (query.after is not None)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (TaskQuery(ALICE, context_id="c"), "tasks_by_context"),
        (TaskQuery(ALICE, context_id="c", state=WORKING), "tasks_by_context"),
    ],
)
async def test_totals_are_counted_in_an_index(
    reading: sqlite3.Connection, query: TaskQuery, index: str
) -> None:
    (step,) = _plan(reading, statements.total(query))
    assert step.startswith(f"SEARCH tasks USING COVERING INDEX {index} (")


@pytest.mark.parametrize(("state", "index"), [(0, "tasks_by_scope"), (WORKING, "tasks_by_state")])
async def test_totals_since_a_time_count_no_more_than_the_rest_of_a_period(
    reading: sqlite3.Connection, state: int, index: str
) -> None:
    plan = _plan(reading, statements.total(TaskQuery(ALICE, state=state, updated_since=3)))
    later, rest = [step for step in plan if "task" in step]
    assert later.startswith("SEARCH task_counts USING PRIMARY KEY (tenant=? AND principal=?")
    assert rest.startswith(f"SEARCH tasks USING COVERING INDEX {index} (")
    assert "status_at>? AND status_at<?" in rest


@pytest.mark.parametrize("state", [0, WORKING])
async def test_the_usual_totals_are_kept(reading: sqlite3.Connection, state: int) -> None:
    (step,) = _plan(reading, statements.total(TaskQuery(ALICE, state=state)))
    assert step.startswith("SEARCH task_counts USING PRIMARY KEY (tenant=? AND principal=?")


@pytest.mark.parametrize(
    ("statement", "values", "expected"),
    [
        (statements.unfinished_of_tasks, {"ids": ["a"]}, "operations_unfinished"),
        (replicas.stranded_operations, {"of": "me", "limit": 5}, "operations_submitted"),
        (replicas.tasks_to_cancel, {"of": "me"}, "tasks_to_cancel"),
        (
            forgetting.tasks_to_compact,
            {"before": 1, "after_time": 0, "after_id": "", "limit": 5},
            "tasks_to_compact",
        ),
        (
            statements.operations_for_update,
            {"ids": ["a"], "of_tasks": ["b"]},
            "operations_unfinished (task_id=?",
        ),
        (statements.newest_operations_by_key, {"keys": [b"k"]}, "operations_by_key"),
        (forgetting.operations_to_forget, {"before": 1.0, "limit": 5}, "operations_done"),
        (
            forgetting.tasks_to_forget,
            {"before": 1, "limit": 5},
            "tasks_ended (running=? AND status_at<?",
        ),
        (statements.due_push_configs, {"now": 1.0, "limit": 5}, "push_configs_pending"),
        (statements.next_push_attempt, {}, "push_configs_pending"),
        (
            forgetting.contexts_after,
            {
                "after_tenant": "",
                "after_principal": "",
                "after_context": "",
                "before": 1.0,
                "limit": 5,
            },
            "SEARCH contexts USING INDEX sqlite_autoindex_contexts_1",
        ),
        (
            forgetting.push_configs_after,
            {"after_task": "", "after_config": "", "limit": 5},
            "SEARCH push_configs USING COVERING INDEX sqlite_autoindex_push_configs_1",
        ),
        (statements.tails_by_number, {"numbers": [1]}, "task_number=? AND version>?"),
        (
            counts.counts_to_fold,
            {"first": 1, "last": 9, "limit": 5},
            "task_counts_to_fold (period>? AND period<?",
        ),
    ],
)
async def test_no_statement_reads_a_whole_table(
    reading: sqlite3.Connection, statement: Select[Any], values: dict[str, Any], expected: str
) -> None:
    plan = _plan(reading, statement.params(values))
    assert any(expected in step for step in plan), plan
    whole = [step for step in plan if step.startswith("SCAN") and "INDEX" not in step]
    assert whole == []


def _plan(connection: sqlite3.Connection, statement: Select[Any]) -> list[str]:
    compiled = statement.compile(dialect=sqlite_dialect.dialect())
    expanded = compiled.construct_expanded_state()
    plan = connection.execute(
        f"EXPLAIN QUERY PLAN {expanded.statement}", expanded.positional_parameters
    )
    return [row[3] for row in plan]


async def test_the_cost_of_a_page_does_not_grow_with_the_tasks(storage: SqlStorage) -> None:
    async def fill(count: int) -> None:
        owner = await store_task(storage)
        related = [
            a_task(new_id(), COMPLETED, at=1 + number, context_id=f"{number % 100}")
            for number in range(count)
        ]
        await storage.commit(a_commit(owner, status(WORKING), version=1, related=related))

    async def seconds() -> float:
        queries = [
            TaskQuery(ALICE),
            TaskQuery(ALICE, after=(2000, "")),
            TaskQuery(ALICE, state=COMPLETED, after=(1000, "")),
            TaskQuery(ALICE, context_id="7", page_size=10),
        ]
        best = float("inf")
        for _ in range(10):
            start = time.perf_counter()
            for query in queries:
                await storage.list_tasks(query)
            best = min(best, time.perf_counter() - start)
        return best

    await fill(5_000)
    few = await seconds()
    await fill(15_000)
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 20_002
    assert await seconds() < 2.5 * few + 0.005
