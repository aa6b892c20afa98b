"""Storage in this process's memory: nothing survives it, and it has a bound.

Also the reference for what the seam means: each method is the contract of `storage.base` in the
fewest words. Nothing here waits, so every method is atomic in the event loop.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from a2a_grpc import pb
from a2a_grpc.errors import ResourceExhaustedError
from a2a_grpc.storage.base import (
    NO_SCOPE,
    Commit,
    ContextT,
    FenceLostError,
    Head,
    Operation,
    OperationState,
    Outcome,
    PushTarget,
    Scope,
    Snapshot,
    Storage,
    TaskPage,
    TaskQuery,
    Turn,
    VersionConflictError,
    check_related,
    finished_task_outcome,
)
from a2a_grpc.task import (
    TERMINAL_STATES,
    EntryKind,
    LogEntry,
    TaskFold,
    event_entry,
    message_entry,
    trim_history,
)

_Key = tuple[int, str]


class _Record:
    """One task: its head, its log, and a fold that follows the log when somebody reads.

    There are many of these, so a log is no more than the payloads of its entries: which of them are
    messages of the user is kept aside, and events have a list of their own only if there are any.
    """

    __slots__ = (
        "context_id",
        "events",
        "fence",
        "fold",
        "folded",
        "listed",
        "log",
        "messages",
        "running",
        "scope",
        "state",
        "status_at",
        "task_id",
    )

    def __init__(self, task_id: str, context_id: str, scope: Scope) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.state = 0
        self.status_at = 0
        self.fence = 0
        self.running = False
        self.log: list[bytes] = []
        self.messages: list[int] | None = None  # versions
        self.events = self.log
        self.fold: TaskFold | None = None
        self.folded = 0
        self.listed: tuple[_Key, int] | None = None

    def head(self) -> Head:
        return Head(
            self.task_id,
            self.context_id,
            self.scope,
            self.state,
            self.status_at,
            len(self.log),
            len(self.events),
            self.fence,
            self.running,
        )

    def append(self, entry: LogEntry) -> None:
        if entry.kind is EntryKind.MESSAGE:
            if self.messages is None:
                self.messages, self.events = [], self.log.copy()
            self.messages.append(entry.version)
        elif self.messages is not None:
            self.events.append(entry.payload)
        self.log.append(entry.payload)

    def sequence_at(self, version: int) -> int:
        return version - bisect_right(self.messages or (), version)

    def entries(self, start: int, stop: int) -> Iterator[LogEntry]:
        messages = self.messages or ()
        for version in range(start + 1, stop + 1):
            kind = EntryKind.MESSAGE if version in messages else EntryKind.EVENT
            yield LogEntry(version, self.sequence_at(version), kind, self.log[version - 1])

    def task_at(self, version: int) -> pb.Task:
        if version < self.folded:
            fold = TaskFold()
            fold.apply(self.entries(0, version))
            return fold.task
        if self.fold is None:
            self.fold = TaskFold()
        if version > self.folded:
            self.fold.apply(self.entries(self.folded, version))
            self.folded = version
        result = pb.Task()
        result.CopyFrom(self.fold.task)
        return result


class _TaskList:
    """The tasks of one scope in the order of ListTasks, by context and state.

    Sorted lean lists: what changes is nearly always the newest, so an insertion moves little.
    """

    __slots__ = ("_keys", "stale")

    def __init__(self) -> None:
        # "" and 0 stand for any context and any state.
        self._keys: dict[tuple[str, int], list[_Key]] = {}
        self.stale: dict[str, _Record] = {}

    @property
    def is_empty(self) -> bool:
        return not self._keys and not self.stale

    def refresh(self) -> None:
        for record in self.stale.values():
            self.remove(record)
            key = (record.status_at, record.task_id)
            for place in self._places(record.context_id, record.state):
                insort(self._keys.setdefault(place, []), key)
            record.listed = (key, record.state)
        self.stale.clear()

    def remove(self, record: _Record) -> None:
        if record.listed is None:
            return
        key, state = record.listed
        for place in self._places(record.context_id, state):
            keys = self._keys[place]
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._keys[place]
        record.listed = None

    def keys(self, context_id: str, state: int) -> list[_Key]:
        return self._keys.get((context_id, state), [])

    @staticmethod
    def _places(context_id: str, state: int) -> set[tuple[str, int]]:
        return {("", 0), ("", state), (context_id, 0), (context_id, state)}


class InMemoryStorage(Storage[ContextT]):
    """Keeps everything in memory, up to a bound.

    Args:
        max_tasks: how many tasks and unfinished operations it holds at the most.
        max_bytes: how many bytes of serialized events and messages.

    Over either bound the tasks that ended first are forgotten; when all that is left is unfinished,
    `admit` raises `ResourceExhaustedError`.
    """

    waits = False

    def __init__(self, *, max_tasks: int = 100_000, max_bytes: int = 2**30) -> None:
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._bytes = 0
        self._records: dict[str, _Record] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lists: dict[Scope, _TaskList] = {}
        self._operations: dict[str, Operation] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._deduplication: dict[bytes, Operation] = {}
        self._contexts: dict[tuple[Scope, str], ContextT] = {}
        self._targets: dict[str, dict[str, PushTarget]] = {}
        self._undelivered: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    # Operations and turns.

    async def admit(
        self,
        operation: Operation,
        *,
        duplicates_since: float | None = None,
        push_config: pb.TaskPushNotificationConfig | None = None,
    ) -> Operation:
        key = operation.deduplication_key
        if duplicates_since is not None and key:
            earlier = self._deduplication.get(key)
            recent = earlier is not None and earlier.created_at >= duplicates_since
            if recent and earlier is not None and not earlier.is_refused:
                return earlier.copy()
        self._make_room()
        record = self._operations[operation.id] = operation.copy()
        if key:
            self._deduplication[key] = record
        if push_config is not None:
            await self.save_push_config(push_config, scope=operation.scope)
        return operation

    def _make_room(self) -> None:
        while (
            len(self._records) + len(self._operations) - len(self._done) >= self._max_tasks
            or self._bytes > self._max_bytes
        ):
            if not self._ended:
                raise ResourceExhaustedError(
                    "the server holds as many unfinished tasks as its memory store may; "
                    "try again later",
                    retry_after=1.0,
                )
            self._forget_task(self._ended.popitem(last=False)[0])
        if len(self._done) >= self._max_tasks:
            self._forget_operation(self._done.popitem(last=False)[0])

    async def load_operation(self, operation_id: str) -> Operation | None:
        operation = self._operations.get(operation_id)
        return None if operation is None else operation.copy()

    async def unfinished_operations(self) -> list[Operation]:
        return [
            operation.copy()
            for operation in self._operations.values()
            if operation.state is not OperationState.DONE
        ]

    async def start_turn(self, operation_id: str) -> Turn | None:
        operation = self._operations.get(operation_id)
        if operation is None or operation.state is OperationState.DONE:
            return None
        record = self._records.get(operation.task_id)
        if record is None:
            # Invisible until the first entry of its log.
            record = _Record(operation.task_id, operation.context_id, operation.scope)
            self._records[operation.task_id] = record
        elif record.state in TERMINAL_STATES:
            await self.finish_operation(
                operation.id, finished_task_outcome(record.head(), operation.attempts)
            )
            return None
        version = len(record.log)
        if version and not operation.attempts:
            self._append(
                record,
                [
                    message_entry(
                        operation.request.message,
                        version=version + 1,
                        sequence=len(record.events),
                    )
                ],
            )
        operation.attempts += 1
        operation.state = OperationState.STARTED
        record.fence += 1
        record.running = True
        snapshot = self._snapshot(record, None, None) if version else None
        return Turn(operation.copy(), record.fence, snapshot)

    async def commit(self, commit: Commit) -> None:
        record = self._records.get(commit.task_id)
        if commit.fence:
            if record is None or not record.running or record.fence != commit.fence:
                raise FenceLostError(f"the turn no longer holds task {commit.task_id!r}")
        elif record is not None and record.running:
            raise FenceLostError(f"a turn holds task {commit.task_id!r}")
        version = 0 if record is None else len(record.log)
        if version != commit.expected_version:
            raise VersionConflictError(
                f"task {commit.task_id!r} is at version {version}, not {commit.expected_version}"
            )
        if commit.entries and record is not None and record.state in TERMINAL_STATES:
            raise VersionConflictError(f"task {commit.task_id!r} has ended")
        for related in commit.related:
            other = self._records.get(related.id)
            owner, running = (other.scope, other.running) if other else (None, False)
            check_related(related, commit.task_id, commit.scope, owner, running)
        if commit.entries:
            if record is None:
                record = _Record(commit.task_id, commit.context_id, commit.scope)
                self._records[commit.task_id] = record
            self._append(record, commit.entries)
            record.state, record.status_at = commit.state, commit.status_at
            self._changed(record)
        for related in commit.related:
            self._store_related(related, commit.scope)
        if commit.ends_turn and record is not None:
            record.running = False
        for operation_id, outcome in commit.finished:
            await self.finish_operation(operation_id, outcome)

    def _append(self, record: _Record, entries: Any) -> None:
        events = len(record.events)
        for entry in entries:
            record.append(entry)
            self._bytes += len(entry.payload)
        if len(record.events) > events:
            for config_id in self._targets.get(record.task_id, ()):
                self._undelivered.add((record.task_id, config_id))

    def _changed(self, record: _Record) -> None:
        if record.state in TERMINAL_STATES:
            self._ended[record.task_id] = None
        tasks = self._lists.get(record.scope)
        if tasks is None:
            tasks = self._lists[record.scope] = _TaskList()
        tasks.stale[record.task_id] = record

    def _store_related(self, related: pb.Task, scope: Scope) -> None:
        self._forget_task(related.id)
        record = _Record(related.id, related.context_id, scope)
        record.state = related.status.state
        record.status_at = related.status.timestamp.ToNanoseconds()
        self._records[related.id] = record
        self._append(record, [event_entry(pb.StreamResponse(task=related), version=1, sequence=1)])
        self._changed(record)

    async def finish_operation(self, operation_id: str, outcome: Outcome) -> None:
        operation = self._operations.get(operation_id)
        if operation is not None and operation.state is not OperationState.DONE:
            operation.state = OperationState.DONE
            operation.outcome = outcome
            self._done[operation_id] = None
            record = self._records.get(operation.task_id)
            if record is not None and not record.log and not record.running:
                # Never created. Until now its fence kept late commits of this operation out.
                del self._records[operation.task_id]

    # Reading tasks.

    def _visible(self, task_id: str, scope: Scope | None) -> _Record | None:
        record = self._records.get(task_id)
        if record is None or not record.log or (scope is not None and record.scope != scope):
            return None
        return record

    async def load_head(self, task_id: str, *, scope: Scope | None = None) -> Head | None:
        record = self._visible(task_id, scope)
        return None if record is None else record.head()

    async def load_snapshot(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        version: int | None = None,
        history_length: int | None = None,
    ) -> Snapshot | None:
        record = self._visible(task_id, scope)
        return None if record is None else self._snapshot(record, version, history_length)

    @staticmethod
    def _snapshot(record: _Record, version: int | None, history_length: int | None) -> Snapshot:
        if version is None:
            version = len(record.log)
        task = record.task_at(version)
        trim_history(task, history_length)
        return Snapshot(task, version, record.sequence_at(version))

    async def load_events(self, task_id: str, after: int, limit: int) -> list[bytes]:
        record = self._visible(task_id, None)
        return [] if record is None else record.events[after : after + limit]

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        tasks = self._lists.get(query.scope)
        if tasks is None:
            return TaskPage([], None, 0)
        tasks.refresh()
        keys = tasks.keys(query.context_id, query.state)
        oldest = bisect_left(keys, (query.updated_since, "")) if query.updated_since else 0
        end = len(keys) if query.after is None else bisect_left(keys, query.after)
        start = max(oldest, end - query.page_size)
        page: list[pb.Task] = []
        for _, task_id in reversed(keys[start:end]):
            record = self._records[task_id]
            task = record.task_at(len(record.log))
            if not query.include_artifacts:
                task.ClearField("artifacts")
            trim_history(task, query.history_length)
            page.append(task)
        next_after = keys[start] if oldest < start < end else None
        return TaskPage(page, next_after, len(keys) - oldest)

    # Contexts.

    async def load_context(self, context_id: str, *, scope: Scope = NO_SCOPE) -> ContextT | None:
        # A copy, so that only what is given to update_context is kept.
        return copy.deepcopy(self._contexts.get((scope, context_id)))

    async def update_context(
        self, context_id: str, context: ContextT, *, scope: Scope = NO_SCOPE
    ) -> None:
        self._contexts[scope, context_id] = copy.deepcopy(context)

    # Push configurations and their outbox.

    async def save_push_config(
        self, config: pb.TaskPushNotificationConfig, *, scope: Scope
    ) -> None:
        kept = pb.TaskPushNotificationConfig()
        kept.CopyFrom(config)
        targets = self._targets.setdefault(config.task_id, {})
        earlier = targets.get(config.id)
        record = self._records.get(config.task_id)
        if earlier is not None:
            delivered = earlier.delivered
        else:
            delivered = 0 if record is None else len(record.events)
        targets[config.id] = PushTarget(kept, scope, delivered=delivered)
        if record is not None and delivered < len(record.events):
            self._undelivered.add((config.task_id, config.id))

    async def load_push_configs(self, task_id: str) -> list[PushTarget]:
        targets = self._targets.get(task_id, {})
        return [replace(targets[config_id]) for config_id in sorted(targets)]

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        targets = self._targets.get(task_id)
        if targets is None:
            return
        targets.pop(config_id, None)
        if not targets:
            del self._targets[task_id]
        self._undelivered.discard((task_id, config_id))

    async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
        due = [target for target in self._waiting() if target.next_attempt_at <= now]
        due.sort(key=lambda target: target.next_attempt_at)
        return [replace(target) for target in due[:limit]]

    async def update_push_target(self, target: PushTarget) -> None:
        task_id, config_id = target.config.task_id, target.config.id
        kept = self._targets.get(task_id, {}).get(config_id)
        if kept is None:
            return
        kept.delivered = target.delivered
        kept.attempts = target.attempts
        kept.next_attempt_at = target.next_attempt_at
        kept.disabled = target.disabled
        record = self._records.get(task_id)
        if record is None or kept.disabled or kept.delivered >= len(record.events):
            self._undelivered.discard((task_id, config_id))

    async def next_push_attempt(self) -> float | None:
        return min((target.next_attempt_at for target in self._waiting()), default=None)

    def _waiting(self) -> list[PushTarget]:
        targets = [self._targets[task_id][config_id] for task_id, config_id in self._undelivered]
        return [target for target in targets if not target.disabled]

    # Housekeeping.

    async def sweep(self, *, tasks_before: float, operations_before: float) -> int:
        forgotten = 0
        limit = int(tasks_before * 1e9)
        needed = {task_id for task_id, _ in self._undelivered}
        needed.update(operation.task_id for operation in await self.unfinished_operations())
        for task_id in list(self._ended):
            if self._records[task_id].status_at < limit and task_id not in needed:
                self._forget_task(task_id)
                forgotten += 1
        for operation_id in list(self._done):
            if self._operations[operation_id].created_at < operations_before:
                del self._done[operation_id]
                self._forget_operation(operation_id)
        return forgotten

    def _forget_task(self, task_id: str) -> None:
        record = self._records.pop(task_id, None)
        if record is None:
            return
        self._ended.pop(task_id, None)
        self._bytes -= sum(map(len, record.log))
        tasks = self._lists.get(record.scope)
        if tasks is not None:
            tasks.stale.pop(task_id, None)
            tasks.remove(record)
            if tasks.is_empty:
                del self._lists[record.scope]
        for config_id in self._targets.pop(task_id, ()):
            self._undelivered.discard((task_id, config_id))

    def _forget_operation(self, operation_id: str) -> None:
        operation = self._operations.pop(operation_id)
        if self._deduplication.get(operation.deduplication_key) is operation:
            del self._deduplication[operation.deduplication_key]
