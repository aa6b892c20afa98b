"""Storage in this process's memory: nothing survives it, and it has a bound.

Also the reference for what the seam means: each method is the contract of `storage.base` in the
fewest words. Nothing here waits, so every method is atomic in the event loop.
"""

from __future__ import annotations

import copy
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from a2a_grpc import pb
from a2a_grpc.errors import ResourceExhaustedError
from a2a_grpc.storage.base import ContextT, Storage
from a2a_grpc.storage.records import Record, TaskList
from a2a_grpc.storage.values import (
    EVENTS_BYTES,
    NO_SCOPE,
    RESUBMIT_AFTER,
    Commit,
    FenceLostError,
    Head,
    Operation,
    OperationState,
    Outcome,
    Progress,
    PushTarget,
    Scope,
    Snapshot,
    Stranded,
    TaskPage,
    TaskQuery,
    Turn,
    VersionConflictError,
    check_related,
    finished_task_outcome,
    within_bytes,
)
from a2a_grpc.task import (
    TERMINAL_STATES,
    LogEntry,
    event_entry,
    message_entry,
    trim_history,
)


class InMemoryStorage(Storage[ContextT]):
    """Keeps everything in memory, up to a bound.

    Args:
        max_tasks: how many tasks and unfinished operations it holds at the most.
        max_bytes: how many bytes of serialized events, messages, requests and outcomes.

    Over either bound the tasks that ended first are forgotten, over that of bytes the operations
    that were done first, too; when all that is left is unfinished, `admit` raises
    `ResourceExhaustedError`.
    """

    waits = False

    def __init__(self, *, max_tasks: int = 100_000, max_bytes: int = 2**30) -> None:
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._bytes = 0
        self._records: dict[str, Record] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()  # and no turn holds them
        self._lists: dict[Scope, TaskList] = {}
        self._operations: dict[str, Operation] = {}
        self._sizes: dict[str, int] = {}  # of operations
        self._done: OrderedDict[str, float] = OrderedDict()  # and when
        # Of each task, oldest first; when each was submitted, as far as this process did it.
        self._unfinished: dict[str, dict[str, float]] = {}
        self._opened = 0
        self._deduplication: dict[bytes, Operation] = {}
        self._contexts: dict[tuple[Scope, str], tuple[ContextT, float]] = {}
        self._targets: dict[str, dict[str, PushTarget]] = {}
        self._undelivered: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Self:
        self._opened += 1  # whoever held a task before is gone
        for unfinished in self._unfinished.values():
            unfinished.update(dict.fromkeys(unfinished, 0.0))
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
        # A caller may try again what it got no answer to.
        known = self._operations.get(operation.id)
        if known is not None:
            return known.copy()
        key = operation.deduplication_key
        if duplicates_since is not None and key:
            earlier = self._deduplication.get(key)
            recent = earlier is not None and earlier.created_at >= duplicates_since
            if recent and earlier is not None and not earlier.is_refused:
                return earlier.copy()
        size = operation.request.ByteSize()
        self._make_room(size)
        record = self._operations[operation.id] = operation.copy()
        self._sizes[operation.id] = size
        self._bytes += size
        self._unfinished.setdefault(operation.task_id, {})[operation.id] = time.monotonic()
        if key:
            self._deduplication[key] = record
        if push_config is not None:
            await self.save_push_config(push_config, scope=operation.scope)
        return operation

    def _make_room(self, size: int) -> None:
        while (
            too_many := len(self._records) + len(self._operations) - len(self._done)
            >= self._max_tasks
        ) or self._bytes + size > self._max_bytes:
            if not self._ended and (too_many or not self._done):
                raise ResourceExhaustedError(
                    "the server holds as many unfinished tasks as its memory store may; "
                    "try again later",
                    retry_after=1.0,
                )
            if self._ended:
                self._forget_task(next(iter(self._ended)))
            # Both kinds in turn: an operation is about as old as its task.
            if self._done and self._bytes + size > self._max_bytes:
                self._forget_operation(next(iter(self._done)))
        if len(self._done) >= self._max_tasks:
            self._forget_operation(next(iter(self._done)))

    async def load_operation(self, operation_id: str) -> Operation | None:
        operation = self._operations.get(operation_id)
        return None if operation is None else operation.copy()

    async def start_turn(self, task_id: str) -> Turn | Operation | None:
        unfinished = self._unfinished.get(task_id)
        if not unfinished:
            return None
        operation = self._operations[next(iter(unfinished))]
        record = self._records.get(task_id)
        if record is None:
            # Invisible until the first entry of its log.
            record = Record(task_id, operation.context_id, operation.scope)
            self._records[task_id] = record
        elif record.state in TERMINAL_STATES:
            record.running = False
            self._changed(record)
            self._finish(operation, finished_task_outcome(record.head(), operation.attempts))
            return operation.copy()
        version = len(record.log)
        if version and operation.state is OperationState.QUEUED:
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
        record.owner = self._opened
        snapshot = self._snapshot(record, None, None) if version else None
        return Turn(operation.copy(), record.fence, snapshot, record.cancel_requested)

    async def commit(self, commit: Commit) -> bool:
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
        # Nothing fails from here on.
        wholes = [pb.StreamResponse(task=related) for related in commit.related]
        if commit.entries:
            if record is None:
                record = Record(commit.task_id, commit.context_id, commit.scope)
                self._records[commit.task_id] = record
            self._append(record, commit.entries)
            record.state, record.status_at = commit.state, commit.status_at
            self._changed(record)
        for whole in wholes:
            self._store_related(whole, commit.scope)
        if commit.ends_turn and record is not None:
            record.running = False
            if record.log:
                self._changed(record)
            if commit.finished:
                record.cancel_requested = False
        for operation_id, outcome in commit.finished:
            operation = self._operations.get(operation_id)
            if operation is not None and operation.state is not OperationState.DONE:
                self._finish(operation, outcome)
        if commit.hands_back:
            self._operations[commit.hands_back].handed_back += 1
        return commit.ends_turn and commit.task_id in self._unfinished

    def _append(self, record: Record, entries: Iterable[LogEntry]) -> None:
        events = len(record.events)
        for entry in entries:
            record.append(entry)
            self._bytes += len(entry.payload)
        if len(record.events) > events:
            for config_id in self._targets.get(record.task_id, ()):
                self._undelivered.add((record.task_id, config_id))

    def _changed(self, record: Record) -> None:
        if record.state in TERMINAL_STATES and not record.running:
            self._ended[record.task_id] = None
        tasks = self._lists.get(record.scope)
        if tasks is None:
            tasks = self._lists[record.scope] = TaskList()
        tasks.stale[record.task_id] = record

    def _store_related(self, whole: pb.StreamResponse, scope: Scope) -> None:
        related = whole.task
        record = self._records.get(related.id)
        if record is None:
            record = self._records[related.id] = Record(related.id, related.context_id, scope)
        record.state = related.status.state
        record.status_at = related.status.timestamp.ToNanoseconds()
        entry = event_entry(whole, version=len(record.log) + 1, sequence=len(record.events) + 1)
        self._append(record, [entry])
        self._changed(record)

    def _finish(self, operation: Operation, outcome: Outcome) -> None:
        operation.state = OperationState.DONE
        operation.outcome = outcome
        # Duplicates need the key and the outcome.
        operation.request = pb.SendMessageRequest()
        self._bytes += len(outcome.payload) - self._sizes[operation.id]
        self._sizes[operation.id] = len(outcome.payload)
        self._done[operation.id] = time.time()
        unfinished = self._unfinished[operation.task_id]
        del unfinished[operation.id]
        if not unfinished:
            del self._unfinished[operation.task_id]
        record = self._records.get(operation.task_id)
        if record is not None and not record.log and not record.running:
            # Never created. Until now its fence kept late commits of this operation out.
            del self._records[operation.task_id]

    async def refuse_operation(self, operation_id: str, outcome: Outcome) -> bool:
        operation = self._operations.get(operation_id)
        if operation is None or operation.state is not OperationState.QUEUED:
            return False
        self._finish(operation, outcome)
        return True

    async def request_cancel(self, task_id: str) -> None:
        record = self._records.get(task_id)
        if record is not None and record.running:
            record.cancel_requested = True

    # Several processes, of which there is but one.

    async def renew_lease(self, *, anew: bool = False) -> list[str]:
        return []

    async def stranded_operations(self, limit: int) -> list[Stranded]:
        now = time.monotonic()
        stranded: list[Stranded] = []
        for task_id, unfinished in self._unfinished.items():
            operation_id, submitted_at = next(iter(unfinished.items()))
            record = self._records.get(task_id)
            held = record is not None and record.running and record.owner == self._opened
            if held or now - submitted_at < RESUBMIT_AFTER:
                continue
            unfinished[operation_id] = now
            attempts = self._operations[operation_id].attempts
            stranded.append(Stranded(task_id, operation_id, attempts))
            if len(stranded) == limit:
                break
        return stranded

    async def check(self) -> None: ...

    # Reading tasks.

    def _visible(self, task_id: str, scope: Scope | None) -> Record | None:
        record = self._records.get(task_id)
        if record is None or not record.log or (scope is not None and record.scope != scope):
            return None
        return record

    async def load_head(self, task_id: str, *, scope: Scope | None = None) -> Head | None:
        record = self._visible(task_id, scope)
        return None if record is None else record.head()

    async def load_heads(self, task_ids: Sequence[str]) -> list[Head]:
        visible = (self._visible(task_id, None) for task_id in task_ids)
        return [record.head() for record in visible if record is not None]

    async def load_progress(self, operation_ids: Sequence[str]) -> list[Progress]:
        found = (self._operations.get(operation_id) for operation_id in operation_ids)
        return [Progress(one.id, one.state, one.outcome) for one in found if one is not None]

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
    def _snapshot(record: Record, version: int | None, history_length: int | None) -> Snapshot:
        if version is None:
            version = len(record.log)
        task = record.task_at(version)
        trim_history(task, history_length)
        return Snapshot(task, version, record.sequence_at(version))

    async def load_events(
        self, task_id: str, after: int, limit: int, *, max_bytes: int = EVENTS_BYTES
    ) -> list[bytes]:
        record = self._visible(task_id, None)
        return (
            [] if record is None else within_bytes(record.events[after : after + limit], max_bytes)
        )

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
        kept = self._contexts.get((scope, context_id))
        return None if kept is None else copy.deepcopy(kept[0])

    async def update_context(
        self, context_id: str, context: ContextT, *, scope: Scope = NO_SCOPE
    ) -> None:
        self._contexts[scope, context_id] = copy.deepcopy(context), time.time()

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

    async def claim_push_target(self, target: PushTarget, until: float) -> bool:
        kept = self._targets.get(target.config.task_id, {}).get(target.config.id)
        if kept is None or kept.next_attempt_at != target.next_attempt_at:
            return False
        kept.next_attempt_at = until
        return True

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

    async def sweep(
        self, *, tasks_before: float, operations_before: float, logs_before: float = 0.0
    ) -> int:
        forgotten = 0
        limit = int(tasks_before * 1e9)
        working = set(self._unfinished)
        needed = working.union(task_id for task_id, _ in self._undelivered)
        for task_id in list(self._ended):
            if self._records[task_id].status_at < limit and task_id not in needed:
                self._forget_task(task_id)
                forgotten += 1
        for operation_id, done_at in list(self._done.items()):
            if done_at < operations_before:
                self._forget_operation(operation_id)
        for record in [record for record in self._records.values() if not record.log]:
            if record.task_id not in working:
                del self._records[record.task_id]
        for task_id in self._targets.keys() - self._records.keys() - working:
            for config_id in self._targets.pop(task_id):
                self._undelivered.discard((task_id, config_id))
        used = {(record.scope, record.context_id) for record in self._records.values()}
        for operations in self._unfinished.values():
            for operation in map(self._operations.__getitem__, operations):
                used.add((operation.scope, operation.context_id))
        for key in self._contexts.keys() - used:
            if self._contexts[key][1] < tasks_before:
                del self._contexts[key]
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
        self._done.pop(operation_id, None)
        self._bytes -= self._sizes.pop(operation_id)
        if self._deduplication.get(operation.deduplication_key) is operation:
            del self._deduplication[operation.deduplication_key]
