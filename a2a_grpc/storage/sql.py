"""`SqlStorage`: the storage on a SQL database, which is a SQLite file.

Writes go through one group writer, reads beside it; what both do to the tables is in `writes` and
`reader`, what only SQLite needs in `sqlite`.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from a2a_grpc import pb
from a2a_grpc.errors import ResourceExhaustedError, UnavailableError
from a2a_grpc.storage import reader, statements, sweeping
from a2a_grpc.storage.base import (
    EVENTS_BYTES,
    NO_SCOPE,
    Commit,
    Head,
    Operation,
    Outcome,
    PushTarget,
    Scope,
    Snapshot,
    Storage,
    TaskPage,
    TaskQuery,
    Turn,
)
from a2a_grpc.storage.group import GroupResult
from a2a_grpc.storage.renewal import SnapshotRenewer
from a2a_grpc.storage.rows import column_time, push_values, request_values
from a2a_grpc.storage.snapshots import RecentSnapshots
from a2a_grpc.storage.sqlite import DatabaseFullError, SqliteDatabase, database_path
from a2a_grpc.storage.writer import GroupWriter
from a2a_grpc.storage.writes import (
    Admit,
    ChangePushConfig,
    CommitTask,
    FinishOperation,
    HandBack,
    PutContext,
    SavePushConfig,
    StartTurn,
    Write,
)

ResultT = TypeVar("ResultT")

READ_DELAYS = (0.05, 0.2, 0.5)
"""Seconds between the attempts to read the task of a turn that was started."""


class SqlStorage(Storage[Any]):
    """Keeps everything in a SQLite database, which this process alone may use.

    What `Storage` promises, and: a write that returned survives the death of the process and the
    loss of power. Contexts hold any value that JSON can; others raise TypeError or ValueError. A
    commit costs what its entries cost; concurrent writes share transactions (see `GroupWriter` for
    the bounds).

    Args:
        url: `sqlite:///relative.db` or `sqlite:////absolute.db`, also with SQLAlchemy's
            `sqlite+aiosqlite:`. The file is created if need be, its directory is not.
        max_bytes: how large the file may grow; over it `admit` raises ResourceExhaustedError and
            other writes UnavailableError. None: as large as the disk allows.
        keep_entries: how many entries each task's log keeps at least; older ones may be forgotten
            when a snapshot has replaced them. None keeps all while the task is kept.
        cache_bytes: of recent tasks held in memory, counted as serialized events; a task larger
            than a 64th of it is not held.

    Raises ValueError for other URLs. Entering raises StorageOpenError, which names the file and the
    remedy: somebody else uses it, it can't be written, or a later version wrote it.
    """

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int | None = None,
        keep_entries: int | None = None,
        cache_bytes: int = 32 * 2**20,
    ) -> None:
        self._database = SqliteDatabase(database_path(url), max_bytes=max_bytes)
        self._keep_entries = keep_entries
        self._cache_bytes = cache_bytes
        self._recent = RecentSnapshots(cache_bytes)
        self._writer: GroupWriter | None = None
        self._renewer: SnapshotRenewer | None = None
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._database.open()
        self._resources.push_async_callback(self._database.close)
        self._recent = RecentSnapshots(self._cache_bytes)
        self._writer = GroupWriter(self._database, self._follow)
        self._resources.push_async_callback(self._writer.close)
        self._renewer = SnapshotRenewer(self._database, self._writer, self._keep_entries)
        self._resources.push_async_callback(self._renewer.close)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recent = RecentSnapshots(0)  # a closed storage answers nothing
        await self._resources.aclose()

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
        try:
            return await self._write(
                Admit(operation, request_values(operation), duplicates_since, save)
            )
        except DatabaseFullError as error:
            raise ResourceExhaustedError(error.message, retry_after=error.retry_after) from error

    async def load_operation(self, operation_id: str) -> Operation | None:
        return await self._database.read(partial(reader.load_operation, operation_id=operation_id))

    async def unfinished_operations(self) -> list[Operation]:
        return await self._database.read(reader.unfinished_operations)

    async def start_turn(self, operation_id: str) -> Turn | None:
        started = await self._write(StartTurn(operation_id))
        if started is None:
            return None
        operation, fence, version = started
        snapshot = None
        if version:
            # Nobody but the new turn can write the task now, so it is read beside the writer.
            try:
                snapshot = await self._load_started(operation.task_id, version)
            except UnavailableError:
                await self._write(HandBack(operation.id, operation.task_id, fence))
                raise
        return Turn(operation, fence, snapshot)

    async def _load_started(self, task_id: str, version: int) -> Snapshot | None:
        for delay in READ_DELAYS:
            try:
                return await self.load_snapshot(task_id, version=version)
            except UnavailableError:
                await asyncio.sleep(delay)
        return await self.load_snapshot(task_id, version=version)

    async def commit(self, commit: Commit) -> None:
        await self._write(CommitTask(commit))

    async def finish_operation(self, operation_id: str, outcome: Outcome) -> None:
        await self._write(FinishOperation(operation_id, outcome))

    # Reading tasks.

    async def load_head(self, task_id: str, *, scope: Scope | None = None) -> Head | None:
        return await self._database.read(partial(reader.load_head, task_id=task_id, scope=scope))

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
        return await self._database.read(
            partial(reader.load_context, scope=scope, context_id=context_id)
        )

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
        return await self._database.read(partial(reader.load_push_configs, task_id=task_id))

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        key = {"of_task": task_id, "of_config": config_id}
        await self._write(ChangePushConfig(statements.delete_push_config, task_id, key))

    async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
        return await self._database.read(partial(reader.due_push_targets, now=now, limit=limit))

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
        return await self._database.read(reader.next_push_attempt)

    # Housekeeping.

    async def sweep(self, *, tasks_before: float, operations_before: float) -> int:
        write = self._database.write
        forgotten = 0
        before = column_time(int(tasks_before * 1e9))
        while ids := await write(partial(sweeping.forget_tasks, before=before)):
            forgotten += len(ids)
            for task_id in ids:
                self._recent.forget(task_id)
        while await write(partial(sweeping.forget_operations, before=operations_before)):
            pass
        while await write(sweeping.forget_not_created):
            pass
        config: tuple[str, ...] | None = ("", "")
        while config is not None:
            config = await write(partial(sweeping.forget_push_configs, after=config))
        context: tuple[str, ...] | None = ("", "", "")
        while context is not None:
            context = await write(
                partial(sweeping.forget_contexts, before=tasks_before, after=context)
            )
        while await write(sweeping.delete_logs):
            pass
        return forgotten
