"""The storage seam: the truth about operations, tasks, contexts and push configurations."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from a2a_grpc import pb, task
from a2a_grpc.errors import TaskNotFoundError
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

ContextT = TypeVar("ContextT")


class Storage(ABC, Generic[ContextT]):
    """Keeps everything; an async context manager.

    Guarantees, each held by the contract suite for every backend:

    - A write that returned is seen by every later read, and survives what the backend survives.
    - `commit` is atomic and ordered; versions and sequence numbers have no gap.
    - The first terminal state wins: a commit on a finished task with entries is refused with
      `VersionConflictError`.
    - A commit with a fence that is not the task's newest, or whose turn has ended, is refused with
      `FenceLostError`.
    - `admit` is atomic per deduplication key.
    - A read with a scope never shows what belongs to another scope.
    - The cost of a commit does not grow with the size of its task.
    - One process at a time holds a task. A storage that several processes share has a `lease`: a
      process that has not called `renew_lease` for so long has lost every task that it held.

    `waits` says whether calls wait for something, so that a caller may be cancelled in the middle.

    Errors: the ones named here; `UnavailableError` when the backend can't be reached;
    `ResourceExhaustedError` from `admit` when the backend is full.
    """

    waits: ClassVar[bool] = True

    lease: float | None = None
    """Seconds for which `renew_lease` holds; None where one process has the storage to itself."""

    deployment: str = ""
    """A name that all have in common who share the data, and nobody else; known once it is open."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    # Operations and turns.

    @abstractmethod
    async def admit(
        self,
        operation: Operation,
        *,
        duplicates_since: float | None = None,
        push_config: pb.TaskPushNotificationConfig | None = None,
    ) -> Operation:
        """Record an operation, and the push configuration that came with it.

        With `duplicates_since` (seconds since the epoch), an operation recorded since then with the
        same deduplication key is returned instead, and nothing is recorded; one that was refused
        does not count.
        """

    @abstractmethod
    async def load_operation(self, operation_id: str) -> Operation | None:
        """The record, or None if there is none (any more)."""

    @abstractmethod
    async def start_turn(self, task_id: str) -> Turn | Operation | None:
        """Begin a turn: take the task for the oldest of its operations that are not done.

        The attempt is counted, and the message enters the history, once, however many attempts
        there are, if the task exists.

        Returns an Operation, finished with `finished_task_outcome`, in place of a turn if the task
        has ended; there may be more of them. None if there is nothing to do here: no operation is
        left, or another process holds the task, which goes on with them when its turn is over, or
        the oldest one may run in another process only (`Operation.runs_here`).

        With `UnavailableError` no attempt is counted, unless the backend can't even undo that. A
        turn that this process began and gave up makes way for the new one.
        """

    @abstractmethod
    async def commit(self, commit: Commit) -> bool:
        """Apply a commit, all or nothing.

        Returns, for one that ends the turn, whether the task has operations that are not done: to
        begin the next turn is the business of the process that ended this one.

        Raises:
            FenceLostError, VersionConflictError: see the class; nothing was kept.
            InvalidAgentResponseError: a related task does not pass `check_related`.
        """

    @abstractmethod
    async def refuse_operation(self, operation_id: str, outcome: Outcome) -> bool:
        """End an operation that never started; False, and nothing, if it did or is unknown."""

    @abstractmethod
    async def request_cancel(self, task_id: str) -> None:
        """Remember, while a turn holds the task, that it is to be canceled.

        The process that holds it learns of it from `renew_lease`, the next one to hold it from
        `Turn.cancel_requested`. A turn that finishes its operation ends the request.
        """

    # Several processes.

    @abstractmethod
    async def renew_lease(self, *, anew: bool = False) -> list[str]:
        """Say that this process lives; returns the tasks it holds that are to be canceled.

        With `anew`, it gives up every task that it held before. Raises UnavailableError if the
        lease has run out, and nothing but `anew` helps.
        """

    @abstractmethod
    async def stranded_operations(self, limit: int) -> list[Stranded]:
        """Operations to be submitted to the broker again, the oldest of each task, oldest first.

        They are not done; their task is held by no process that lives; and they were neither
        recorded nor returned here within the last two seconds, unless by a process that is gone.
        """

    @abstractmethod
    async def check(self) -> None:
        """Raises UnavailableError if the backend can't be reached."""

    # Reading tasks.

    @abstractmethod
    async def load_head(self, task_id: str, *, scope: Scope | None = None) -> Head | None:
        """The head, or None; with a scope only if the task is in it."""

    @abstractmethod
    async def load_heads(self, task_ids: Sequence[str]) -> list[Head]:
        """The heads of those tasks that exist."""

    @abstractmethod
    async def load_progress(self, operation_ids: Sequence[str]) -> list[Progress]:
        """How far those operations are that are known."""

    @abstractmethod
    async def load_snapshot(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        version: int | None = None,
        history_length: int | None = None,
    ) -> Snapshot | None:
        """The task now, or as it was at `version`; None if there is none (in the scope).

        Raises LogTruncatedError if the log does not reach back to `version` any more.
        """

    @abstractmethod
    async def load_events(
        self, task_id: str, after: int, limit: int, *, max_bytes: int = EVENTS_BYTES
    ) -> list[bytes]:
        """Up to `limit` events with sequence numbers `after` + 1, ...; serialized StreamResponses.

        They are `max_bytes` together at the most, but one event at least: fewer than `limit` do not
        say that there are no more.

        Raises LogTruncatedError if the log starts later than that.
        """

    @abstractmethod
    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """One page.

        The tasks of a page cost what they are, however many are stored. So does the total of a
        scope or a state; with a context or `updated_since` it may cost a count of all matches, in
        an index.
        """

    # Contexts: any value that JSON can hold.

    @abstractmethod
    async def load_context(self, context_id: str, *, scope: Scope = NO_SCOPE) -> ContextT | None:
        """What was kept for the context id (of this scope), or None."""

    @abstractmethod
    async def update_context(
        self, context_id: str, context: ContextT, *, scope: Scope = NO_SCOPE
    ) -> None:
        """Keep a value for the context id (of this scope), in place of the former one."""

    # Push configurations and their outbox.

    @abstractmethod
    async def save_push_config(
        self, config: pb.TaskPushNotificationConfig, *, scope: Scope
    ) -> None:
        """Create or replace the configuration `config.id` of `config.task_id`.

        Deliveries start with the event after the task's head, or with its first if it is not
        created yet; a replaced configuration keeps its cursor, and is enabled again.
        """

    @abstractmethod
    async def load_push_configs(self, task_id: str) -> list[PushTarget]:
        """All of a task's targets, by id."""

    @abstractmethod
    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        """Delete it if it exists."""

    @abstractmethod
    async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
        """Targets with undelivered events whose next attempt is due; longest due first."""

    @abstractmethod
    async def claim_push_target(self, target: PushTarget, until: float) -> bool:
        """Move its next attempt to `until` (seconds since the epoch), for whoever reads it next.

        False, and nothing, if it was moved, replaced or deleted since `target` was read: of several
        processes that found it due, one alone gets it.
        """

    @abstractmethod
    async def update_push_target(self, target: PushTarget) -> None:
        """Store cursor, attempts, next attempt and `disabled`; nothing if it was deleted."""

    @abstractmethod
    async def next_push_attempt(self) -> float | None:
        """When the earliest attempt is due (seconds since the epoch), None if nothing waits."""

    # Housekeeping.

    @abstractmethod
    async def sweep(
        self, *, tasks_before: float, operations_before: float, logs_before: float = 0.0
    ) -> int:
        """Forget finished tasks whose status is older than `tasks_before`, with all that belongs to
        them, and operations that were done before `operations_before` (seconds since the epoch).

        Of finished tasks whose status is older than `logs_before` the snapshot alone is kept, where
        the backend stores snapshots: their log no longer reaches back.

        Tasks that a turn holds, with undelivered events or unfinished operations stay. Contexts go
        that were last updated before `tasks_before`, and push configurations of tasks that never
        came to be, once neither a task nor an unfinished operation needs them. Returns how many
        tasks were forgotten.
        """

    # Conveniences in FastA2A's words, on the one fenced commit.

    async def load_task(
        self, task_id: str, history_length: int | None = None, *, scope: Scope | None = None
    ) -> pb.Task | None:
        """The task, or None; `history_length`: None = all, 0 = none, n = the newest n."""
        snapshot = await self.load_snapshot(task_id, scope=scope, history_length=history_length)
        return None if snapshot is None else snapshot.task

    async def submit_task(
        self, context_id: str, message: pb.Message, *, scope: Scope = NO_SCOPE
    ) -> pb.Task:
        """Create a task in state SUBMITTED with `message` in its history, and return it."""
        created = pb.Task(id=str(uuid.uuid4()), context_id=context_id)
        entered = created.history.add()
        entered.CopyFrom(message)
        entered.task_id, entered.context_id = created.id, context_id
        created.status.state = pb.TaskState.TASK_STATE_SUBMITTED
        now = time.time_ns()
        created.status.timestamp.FromNanoseconds(now)
        entry = task.event_entry(pb.StreamResponse(task=created), version=1, sequence=1)
        await self.commit(
            Commit(
                task_id=created.id,
                expected_version=0,
                entries=[entry],
                state=created.status.state,
                status_at=now,
                scope=scope,
                context_id=context_id,
            )
        )
        return created

    async def update_task(
        self,
        task_id: str,
        state: int,
        new_artifacts: Sequence[pb.Artifact] | None = None,
        new_messages: Sequence[pb.Message] | None = None,
    ) -> pb.Task:
        """Append artifacts and messages, set the state, and return the task.

        Raises:
            TaskNotFoundError: there is no such task.
            FenceLostError: a turn holds the task: its agent publishes events instead.
            VersionConflictError: the task has ended, or somebody else wrote it meanwhile.
        """
        head = await self.load_head(task_id)
        if head is None:
            raise TaskNotFoundError.of(task_id)
        now = time.time_ns()
        entries: list[task.LogEntry] = []
        version, sequence = head.version, head.sequence
        for message in new_messages or ():
            entered = pb.Message()
            entered.CopyFrom(message)
            entered.task_id, entered.context_id = task_id, head.context_id
            version += 1
            entries.append(task.message_entry(entered, version=version, sequence=sequence))
        events = [
            pb.StreamResponse(
                artifact_update=pb.TaskArtifactUpdateEvent(
                    task_id=task_id, context_id=head.context_id, artifact=artifact, last_chunk=True
                )
            )
            for artifact in new_artifacts or ()
        ]
        status = pb.TaskStatusUpdateEvent(task_id=task_id, context_id=head.context_id)
        status.status.state = state  # type: ignore[assignment]
        status.status.timestamp.FromNanoseconds(now)
        events.append(pb.StreamResponse(status_update=status))
        for event in events:
            version, sequence = version + 1, sequence + 1
            entries.append(task.event_entry(event, version=version, sequence=sequence))
        await self.commit(
            Commit(
                task_id=task_id,
                expected_version=head.version,
                entries=entries,
                state=state,
                status_at=now,
                scope=head.scope,
                context_id=head.context_id,
            )
        )
        updated = await self.load_task(task_id)
        if updated is None:
            raise TaskNotFoundError.of(task_id)
        return updated


AnyStorage = Storage[Any]
