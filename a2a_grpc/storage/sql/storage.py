"""`SqlStorage`: the storage on a SQL database: a SQLite file, or PostgreSQL.

Writes go through one group writer, reads beside it; what both do to the tables is in `writes` and
`reader`, what only one database needs in `sqlite` and `postgres`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection

from a2a_grpc import pb
from a2a_grpc.errors import ResourceExhaustedError, UnavailableError
from a2a_grpc.storage.base import Storage
from a2a_grpc.storage.sql import reader, statements, sweeping
from a2a_grpc.storage.sql.database import Database, DatabaseFullError
from a2a_grpc.storage.sql.group import GroupResult, OldestChangedError
from a2a_grpc.storage.sql.renewal import SnapshotRenewer
from a2a_grpc.storage.sql.replicas import Replica
from a2a_grpc.storage.sql.rows import push_values, request_values
from a2a_grpc.storage.sql.snapshots import RecentSnapshots
from a2a_grpc.storage.sql.sqlite import SqliteDatabase, database_path
from a2a_grpc.storage.sql.writer import GroupWriter
from a2a_grpc.storage.sql.writes import (
    Admit,
    ChangePushConfig,
    CommitTask,
    HandBack,
    PutContext,
    RefuseOperation,
    RequestCancel,
    SavePushConfig,
    StartedTurn,
    StartTurn,
    Write,
)
from a2a_grpc.storage.values import (
    EVENTS_BYTES,
    NO_SCOPE,
    Commit,
    Head,
    Operation,
    Outcome,
    Progress,
    PushTarget,
    Scope,
    Snapshot,
    Stranded,
    TaskPage,
    TaskQuery,
    Turn,
)

ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)

MAX_FRESH = 2_000
FRESH_BYTES = 16 * 1024
"""Operations that were admitted here and have not begun, of that size at the most, kept at hand."""

READ_DELAYS = (0.05, 0.2, 0.5)
"""Seconds between the attempts to read the task of a turn that was started."""


class SqlStorage(Storage[Any]):
    """Keeps everything in a SQL database: in a SQLite file, which this process alone may use, or on
    PostgreSQL, which many may share.

    What `Storage` promises, and: a write that returned survives the death of the process and the
    loss of power. Contexts hold any value that JSON can; others raise TypeError or ValueError. A
    commit costs what its entries cost; concurrent writes share transactions (see `GroupWriter` for
    the bounds). On PostgreSQL nothing is lost that was acknowledged as long as the server loses
    nothing; while it is away, calls raise UnavailableError.

    Args:
        url: `sqlite:///relative.db` or `sqlite:////absolute.db`, also with SQLAlchemy's
            `sqlite+aiosqlite:`; the file is created if need be, its directory is not. Or
            `postgresql://user:password@host:5432/database` as libpq takes it: several hosts,
            `?host=/socket/directory`, `sslmode`, `sslrootcert`, `passfile`,
            `target_session_attrs`; the database must exist.
        max_bytes: how large a SQLite file may grow; over it `admit` raises ResourceExhaustedError
            and other writes UnavailableError. None: as large as the disk allows.
        keep_entries: how many entries each task's log keeps at least; older ones may be forgotten
            when a snapshot has replaced them. None keeps all while the task is kept.
        cache_bytes: of recent tasks held in memory, counted as serialized events; a task larger
            than a 64th of it is not held.
        lease: seconds after which other processes take over what this one held, on PostgreSQL. All
            of them must have the same. `storage.lease` is None on SQLite.
        readers: connections for reading, on PostgreSQL; four more are for writing.

    Raises ValueError for other URLs, ImportError without the driver. Entering raises
    StorageOpenError, which names the database, but never its password, and the remedy: somebody
    else uses it, it can't be reached or written, or a later version wrote it.
    """

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int | None = None,
        keep_entries: int | None = None,
        cache_bytes: int = 32 * 2**20,
        lease: float = 15.0,
        readers: int = 8,
    ) -> None:
        if lease <= 0 or readers < 1:
            raise ValueError(f"lease is {lease:g} and readers is {readers}; use more than 0")
        self._database: Database = _database(url, max_bytes, lease, readers)
        self.lease = self._database.lease
        self._keep_entries = keep_entries
        self._cache_bytes = cache_bytes
        self._recent = RecentSnapshots(0)
        self._replica = Replica(self.lease)
        self._starting: dict[str, StartTurn] = {}
        self._fresh: dict[str, Operation] = {}
        self._writer: GroupWriter | None = None
        self._renewer: SnapshotRenewer | None = None
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._database.open()
        self._resources.push_async_callback(self._database.close)
        try:
            self._replica = Replica(self.lease)
            self.deployment = await self._database.write(self._replica.enter)
            self._resources.push_async_callback(self._leave)
            self._recent = RecentSnapshots(self._cache_bytes, shared=self.lease is not None)
            self._writer = GroupWriter(self._database, self._replica, self._follow)
            self._resources.push_async_callback(self._writer.close)
            self._renewer = SnapshotRenewer(self._database, self._writer, self._keep_entries)
            self._resources.push_async_callback(self._renewer.close)
        except BaseException:
            await self._resources.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recent = RecentSnapshots(0)  # a closed storage answers nothing
        self._starting.clear()
        self._fresh.clear()
        await self._resources.aclose()

    async def _leave(self) -> None:
        try:
            await self._database.write(self._replica.leave)
        except UnavailableError as error:
            logger.warning("can't end the lease now, others wait until it is over: %s", error)

    def _follow(self, result: GroupResult) -> None:
        for appended in result.appended:
            self._recent.follow(appended)
        if result.due and self._renewer is not None:
            self._renewer.want(result.due)

    async def _write(self, write: Write[ResultT]) -> ResultT:
        if self._writer is None:
            raise UnavailableError("the storage is not open: use it within `async with`")
        return await self._writer.submit(write)

    # Operations and turns.

    async def admit(
        self,
        operation: Operation,
        *,
        duplicates_since: float | None = None,
        push_config: pb.TaskPushNotificationConfig | None = None,
    ) -> Operation:
        save = None
        if push_config is not None:
            save = SavePushConfig(push_values(push_config, operation.scope))
        admit = Admit(operation, request_values(operation), duplicates_since, save)
        try:
            while not isinstance(admitted := await self._write(admit), Operation):
                earlier = await self.load_operation(admitted)
                if earlier is not None:
                    return earlier
        except DatabaseFullError as error:
            raise ResourceExhaustedError(error.message, retry_after=error.retry_after) from error
        if admit.size <= FRESH_BYTES:
            # Most likely it runs here, and soon: then nobody reads it back.
            self._fresh.setdefault(operation.task_id, operation)
            if len(self._fresh) > MAX_FRESH:
                del self._fresh[next(iter(self._fresh))]
        return admitted

    async def load_operation(self, operation_id: str) -> Operation | None:
        work = partial(reader.load_operation, operation_id=operation_id)
        return await self._database.read(work, single=True)

    async def start_turn(self, task_id: str) -> Turn | Operation | None:
        earlier = self._starting.get(task_id)
        if earlier is not None and earlier.given_up:
            await self._hand_back(earlier)
        start = self._starting[task_id] = StartTurn(task_id)
        try:
            result = await self._start_turn(start)
        except BaseException:
            # Perhaps it was kept, and this process holds a task that nobody works on.
            start.given_up = True
            raise
        self._settle(start)
        return result

    async def _start_turn(self, start: StartTurn) -> Turn | Operation | None:
        started = await self._begin(start)
        if not isinstance(started, StartedTurn):
            return started
        snapshot = None
        if started.version:
            # Nobody but the new turn can write the task now, so it is read beside the writer.
            try:
                snapshot = await self._load_started(start.task_id, started.version)
            except UnavailableError:
                await self._hand_back(start)
                raise
        return Turn(started.operation, started.fence, snapshot, started.cancel_requested)

    async def _begin(self, start: StartTurn) -> StartedTurn | Operation | None:
        start.operation = self._fresh.pop(start.task_id, None)
        while True:
            if start.operation is None:
                read = partial(reader.oldest_operation, task_id=start.task_id)
                start.operation = await self._database.read(read, single=True)
            try:
                return await self._write(start)
            except OldestChangedError:
                start.operation = None  # another turn went on meanwhile

    async def _hand_back(self, start: StartTurn) -> None:
        await self._write(HandBack(start))
        self._settle(start)

    def _settle(self, start: StartTurn) -> None:
        # A later start of the same task has taken the place of this one.
        if self._starting.get(start.task_id) is start:
            del self._starting[start.task_id]

    async def _load_started(self, task_id: str, version: int) -> Snapshot | None:
        for delay in READ_DELAYS:
            try:
                return await self.load_snapshot(task_id, version=version)
            except UnavailableError:
                await asyncio.sleep(delay)
        return await self.load_snapshot(task_id, version=version)

    async def commit(self, commit: Commit) -> bool:
        return await self._write(CommitTask(commit))

    async def refuse_operation(self, operation_id: str, outcome: Outcome) -> bool:
        return await self._write(RefuseOperation(operation_id, outcome))

    async def request_cancel(self, task_id: str) -> None:
        await self._write(RequestCancel(task_id))

    # Several processes.

    async def renew_lease(self, *, anew: bool = False) -> list[str]:
        replica = self._replica
        if not anew:
            return await self._database.write(replica.renew)
        successor = str(uuid.uuid4())
        await self._database.write(partial(replica.succeed, successor=successor))
        replica.id = successor
        return []

    async def stranded_operations(self, limit: int) -> list[Stranded]:
        for start in list(self._starting.values()):
            if start.given_up:
                await self._hand_back(start)
        return await self._database.write(partial(self._replica.stranded, limit=limit))

    async def check(self) -> None:
        if self._writer is not None:
            self._writer.check()
        await self._database.check(reader.check)

    # Reading tasks.

    async def load_head(self, task_id: str, *, scope: Scope | None = None) -> Head | None:
        work = partial(reader.load_head, task_id=task_id, scope=scope)
        return await self._database.read(work, single=True)

    async def load_heads(self, task_ids: Sequence[str]) -> list[Head]:
        work = partial(reader.load_heads, task_ids=task_ids)
        return await self._database.read(work, single=True)

    async def load_progress(self, operation_ids: Sequence[str]) -> list[Progress]:
        work = partial(reader.load_progress, operation_ids=operation_ids)
        return await self._database.read(work, single=True)

    async def load_snapshot(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        version: int | None = None,
        history_length: int | None = None,
    ) -> Snapshot | None:
        recent = self._recent.load(task_id, scope, version, history_length)
        if recent is not None:
            return recent
        return await self._database.read(
            partial(
                reader.load_snapshot,
                task_id=task_id,
                scope=scope,
                version=version,
                history_length=history_length,
            )
        )

    async def load_events(
        self, task_id: str, after: int, limit: int, *, max_bytes: int = EVENTS_BYTES
    ) -> list[bytes]:
        return await self._database.read(
            partial(
                reader.load_events, task_id=task_id, after=after, limit=limit, max_bytes=max_bytes
            )
        )

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        return await self._database.read(partial(reader.list_tasks, query=query))

    # Contexts.

    async def load_context(self, context_id: str, *, scope: Scope = NO_SCOPE) -> Any:
        work = partial(reader.load_context, scope=scope, context_id=context_id)
        return await self._database.read(work, single=True)

    async def update_context(
        self, context_id: str, context: Any, *, scope: Scope = NO_SCOPE
    ) -> None:
        value = json.dumps(context, allow_nan=False)
        await self._write(PutContext(scope, context_id, value, time.time()))

    # Push configurations and their outbox.

    async def save_push_config(
        self, config: pb.TaskPushNotificationConfig, *, scope: Scope
    ) -> None:
        await self._write(SavePushConfig(push_values(config, scope)))

    async def load_push_configs(self, task_id: str) -> list[PushTarget]:
        work = partial(reader.load_push_configs, task_id=task_id)
        return await self._database.read(work, single=True)

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        key = {"of_task": task_id, "of_config": config_id}
        await self._write(ChangePushConfig(statements.delete_push_config, task_id, key))

    async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
        work = partial(reader.due_push_targets, now=now, limit=limit)
        return await self._database.read(work, single=True)

    async def claim_push_target(self, target: PushTarget, until: float) -> bool:
        key = {"of_task": target.config.task_id, "of_config": target.config.id}
        values = {**key, "seen": target.next_attempt_at, "until": until}

        def claim(connection: Connection) -> bool:
            return bool(connection.execute(statements.claim_push_config, values).rowcount)

        return await self._database.write(claim)

    async def update_push_target(self, target: PushTarget) -> None:
        task_id = target.config.task_id
        values = {
            "of_task": task_id,
            "of_config": target.config.id,
            "delivered": target.delivered,
            "attempts": target.attempts,
            "next_attempt_at": target.next_attempt_at,
            "disabled": int(target.disabled),
        }
        await self._write(ChangePushConfig(statements.update_push_config, task_id, values))

    async def next_push_attempt(self) -> float | None:
        return await self._database.read(reader.next_push_attempt, single=True)

    # Housekeeping.

    async def sweep(
        self, *, tasks_before: float, operations_before: float, logs_before: float = 0.0
    ) -> int:
        async with self._database.sweeping() as run:
            if run is None:
                return 0
            forgotten = await sweeping.sweep(run, tasks_before, operations_before)
            for task_id in forgotten:
                self._recent.forget(task_id)
            if logs_before:
                await sweeping.compact(run, logs_before, self._compact)
            await sweeping.delete_all_logs(run)
        return len(forgotten)

    async def _compact(self, task_id: str) -> None:
        # Folded beside the writer: a large task holds up nobody.
        fold = partial(reader.renewed_snapshot, task_id=task_id, compacts=True)
        write = await self._database.read(fold)
        if write is not None:
            await self._write(write)
            self._recent.forget(task_id)


def _database(url: str, max_bytes: int | None, lease: float, readers: int) -> Database:
    if url.partition(":")[0] in ("postgresql", "postgres", "postgresql+asyncpg"):
        try:
            from a2a_grpc.storage.sql.postgres import PostgresDatabase
        except ModuleNotFoundError as error:
            raise ImportError(
                f"PostgreSQL needs {error.name}: pip install 'a2a-grpc[postgres]'"
            ) from error
        return PostgresDatabase(url, lease=lease, readers=readers)
    return SqliteDatabase(database_path(url), max_bytes=max_bytes)
