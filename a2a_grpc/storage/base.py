"""The storage seam: the truth about operations, tasks, contexts and push configurations.

A task is kept as a head (state, version, sequence number) and an append-only log; its snapshot is
the fold of that log (`a2a_grpc.task.TaskFold`). Every write of a task is one `Commit`: conditional
on the version it was made from and on the fence of the turn that made it, all or nothing.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from a2a_grpc import pb, task
from a2a_grpc.errors import (
    A2AError,
    InvalidAgentResponseError,
    TaskNotFoundError,
    UnsupportedOperationError,
    dump_error,
    load_error,
)

ContextT = TypeVar("ContextT")


class StorageError(Exception):
    """A storage refused a write; nothing of it was kept."""


class FenceLostError(StorageError):
    """The turn no longer holds the task: another process does, or the turn is over."""


class VersionConflictError(StorageError):
    """The task is at another version than the commit expected."""


class LogTruncatedError(StorageError):
    """The log does not reach back to the asked sequence number any more."""


class StorageOpenError(Exception):
    """The storage can't be opened; the message names it and the remedy."""


class Scope(NamedTuple):
    """Whose data it is: every look-up for a caller is limited to it (specification 13.1)."""

    tenant: str = ""
    principal: str = ""


EVENTS_BYTES = 4 * 2**20
"""Payload of the events that `load_events` returns at once, unless told otherwise."""

NO_SCOPE = Scope()
"""That of an open server, to which all callers are one."""


class OperationState(IntEnum):
    """Where an operation is: recorded, started at least once, or over."""

    QUEUED = 0
    STARTED = 1
    DONE = 2


class OutcomeKind(IntEnum):
    """What an operation came to.

    REFUSED is an error from before anything ran, such as a full queue: sent again, the message is
    new work.
    """

    TASK = 0
    MESSAGE = 1
    ERROR = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an operation.

    `version` is the task's version at its end (0 where there is no task); `payload` is a serialized
    Message for MESSAGE, and for ERROR and REFUSED what `errors.dump_error` made of the error.
    """

    kind: OutcomeKind
    version: int = 0
    payload: bytes = b""

    def error(self) -> A2AError | None:
        """The error for the caller, if it is one."""
        failed = self.kind in (OutcomeKind.ERROR, OutcomeKind.REFUSED)
        return load_error(self.payload) if failed else None


@dataclass(slots=True)
class Operation:
    """A message on its way to an agent; the record is the truth, brokers carry its id.

    Attributes:
        id: a UUID, also the request id that `ActiveTask.enqueue_request` returns.
        task_id: of an existing task, or of the task that the agent will create.
        context_id: the task's context.
        request: the request, its message completed with both ids; empty once the operation is
            done.
        scope: tenant and principal of the caller.
        creates_task: whether the task was new when the message was admitted.
        deadline: of the caller's call, seconds since the epoch; it bounds the call, not the task.
        metadata: the call's metadata as far as the allow-list lets it through; never credentials.
        extensions: URIs of the extensions that the caller asked for.
        deduplication_key: equal for the same principal, tenant, message id and content.
        created_at: seconds since the epoch.
        attempts: how often `execute()` was started for it.
        state: STARTED from its first turn on, also if that was handed back without an attempt.
    """

    id: str
    task_id: str
    context_id: str
    request: pb.SendMessageRequest
    scope: Scope = NO_SCOPE
    creates_task: bool = True
    deadline: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    deduplication_key: bytes = b""
    created_at: float = field(default_factory=time.time)
    attempts: int = 0
    state: OperationState = OperationState.QUEUED
    outcome: Outcome | None = None

    @property
    def is_refused(self) -> bool:
        """Whether it never ran, so that the same message is no duplicate of it."""
        return self.outcome is not None and self.outcome.kind is OutcomeKind.REFUSED

    def copy(self) -> Operation:
        """The same, to be changed apart; quicker than `dataclasses.replace`."""
        return Operation(
            self.id,
            self.task_id,
            self.context_id,
            self.request,
            self.scope,
            self.creates_task,
            self.deadline,
            self.metadata,
            self.extensions,
            self.deduplication_key,
            self.created_at,
            self.attempts,
            self.state,
            self.outcome,
        )


class Turn(NamedTuple):
    """What `start_turn` hands to the engine.

    `fence` must be given with every commit of the turn. `snapshot` is the task before the turn,
    with the message already in its history; None if there is no task yet.
    """

    operation: Operation
    fence: int
    snapshot: Snapshot | None


class Head(NamedTuple):
    """The small facts about a task.

    `version` counts the entries of its log, `sequence` those of them that subscribers see, `fence`
    the turns that were ever started on it; `running` is whether a turn holds the task now.
    """

    task_id: str
    context_id: str
    scope: Scope
    state: int
    status_at: int  # nanoseconds since the epoch
    version: int
    sequence: int
    fence: int
    running: bool


class Snapshot(NamedTuple):
    """A task as it was at `version`; `sequence` is the last event in it.

    The task belongs to the receiver, who may change it.
    """

    task: pb.Task
    version: int
    sequence: int


@dataclass(slots=True)
class Commit:
    """One atomic change of a task.

    Attributes:
        task_id: the task. With `fence` 0 the commit stands outside any turn: it is refused
            (`FenceLostError`) while a turn holds the task.
        expected_version: the head's version that the entries follow; 0 for a task that is created.
        entries: what is appended to the log; may be empty (a direct Message).
        state, status_at: of the task after the entries.
        scope, context_id: of the task, needed when it is created.
        finished: operations that end with this commit, and what they came to.
        ends_turn: the turn lets go of the task.
        related: whole tasks, terminal, stored along under the same scope. One that exists already
            is replaced by an event of its log, so its versions and sequence numbers go on; its head
            keeps the context.
    """

    task_id: str
    expected_version: int
    fence: int = 0
    entries: Sequence[task.LogEntry] = ()
    state: int = 0
    status_at: int = 0
    scope: Scope = NO_SCOPE
    context_id: str = ""
    finished: Sequence[tuple[str, Outcome]] = ()
    ends_turn: bool = False
    related: Sequence[pb.Task] = ()


def error_outcome(error: A2AError, *, refused: bool = False) -> Outcome:
    """The outcome of an operation that ends with an error for its caller."""
    kind = OutcomeKind.REFUSED if refused else OutcomeKind.ERROR
    return Outcome(kind, payload=dump_error(error))


def finished_task_outcome(head: Head, attempts: int) -> Outcome:
    """What an operation comes to whose task has ended before its turn (specification 3.1.1).

    After an earlier attempt it was the operation itself that ended the task.
    """
    if attempts:
        return Outcome(OutcomeKind.TASK, head.version)
    return error_outcome(task_ended(head.task_id, head.state))


def task_ended(task_id: str, state: int) -> UnsupportedOperationError:
    """The error for a message to a task that has ended."""
    name = pb.TaskState.Name(state)  # type: ignore[arg-type]
    return UnsupportedOperationError(
        f"task {task_id!r} has ended ({name}) and takes no more messages; send one without task_id",
        metadata={"task_id": task_id},
    )


def check_related(
    related: pb.Task, parent_id: str, scope: Scope, owner: Scope | None, running: bool
) -> None:
    """Check a task that a turn of `parent_id`, in `scope`, wants stored along.

    `owner` is the scope of the stored task of the same id, None if there is none; `running` is
    whether a turn holds that. Raises InvalidAgentResponseError.
    """
    problem = ""
    if related.status.state not in task.TERMINAL_STATES:
        problem = "has not ended"
    elif not related.id:
        problem = "has no id"
    elif related.id == parent_id:
        problem = "is the task itself"
    elif owner is not None and owner != scope:
        problem = "is not the caller's own"
    elif running:
        problem = "is running"
    else:
        try:
            related.status.timestamp.ToNanoseconds()
        except ValueError:
            problem = "has a timestamp out of range"
    if problem:
        raise InvalidAgentResponseError(
            f"the attached task {related.id!r} {problem}", metadata={"task_id": parent_id}
        )


def within_bytes(payloads: Iterable[bytes], max_bytes: int) -> list[bytes]:
    """The first payloads that are `max_bytes` together at the most, but one at least."""
    taken: list[bytes] = []
    for payload in payloads:
        max_bytes -= len(payload)
        if taken and max_bytes < 0:
            break
        taken.append(payload)
    return taken


class TaskQuery(NamedTuple):
    """What ListTasks asks for (specification 3.1.4).

    `after` is the (status_at, task_id) of the last task of the page before; a page goes on with
    what is older. `updated_since` is in nanoseconds since the epoch, inclusive.
    """

    scope: Scope
    context_id: str = ""
    state: int = 0
    updated_since: int = 0
    page_size: int = 50
    after: tuple[int, str] | None = None
    history_length: int | None = None
    include_artifacts: bool = False


class TaskPage(NamedTuple):
    """One page: tasks by status timestamp, newest first, equal ones by id, descending.

    `next_after` is None on the last page, also when that is exactly full; `total` counts all
    matches.
    """

    tasks: list[pb.Task]
    next_after: tuple[int, str] | None
    total: int


@dataclass(slots=True)
class PushTarget:
    """A push configuration with its place in the outbox.

    The outbox is a cursor per configuration over the task's log: events up to `delivered` are done.
    `attempts` counts failures since the last success; `next_attempt_at` is in seconds since the
    epoch; a target that is `disabled` gets nothing more.
    """

    config: pb.TaskPushNotificationConfig
    scope: Scope
    delivered: int = 0
    attempts: int = 0
    next_attempt_at: float = 0.0
    disabled: bool = False


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

    `waits` says whether calls wait for something, so that a caller may be cancelled in the middle.

    Errors: the ones named here; `UnavailableError` when the backend can't be reached;
    `ResourceExhaustedError` from `admit` when the backend is full.
    """

    waits: ClassVar[bool] = True

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
    async def unfinished_operations(self) -> list[Operation]:
        """All operations that are not done, in the order of their admission."""

    @abstractmethod
    async def start_turn(self, operation_id: str) -> Turn | None:
        """Begin an attempt: count it, take the task, put the message into its history if it exists.

        The message enters the history once, however many attempts there are. None if the operation
        is done or unknown. If the task has ended meanwhile, the operation is finished with
        `finished_task_outcome`, and None is returned; an earlier attempt's turn is over then. With
        `UnavailableError` no attempt is counted, unless the backend can't even undo that.
        """

    @abstractmethod
    async def commit(self, commit: Commit) -> None:
        """Apply a commit, all or nothing.

        Raises:
            FenceLostError, VersionConflictError: see the class; nothing was kept.
            InvalidAgentResponseError: a related task does not pass `check_related`.
        """

    @abstractmethod
    async def finish_operation(self, operation_id: str, outcome: Outcome) -> None:
        """End an operation outside any turn; nothing if it is done or unknown."""

    # Reading tasks.

    @abstractmethod
    async def load_head(self, task_id: str, *, scope: Scope | None = None) -> Head | None:
        """The head, or None; with a scope only if the task is in it."""

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
    async def update_push_target(self, target: PushTarget) -> None:
        """Store cursor, attempts, next attempt and `disabled`; nothing if it was deleted."""

    @abstractmethod
    async def next_push_attempt(self) -> float | None:
        """When the earliest attempt is due (seconds since the epoch), None if nothing waits."""

    # Housekeeping.

    @abstractmethod
    async def sweep(self, *, tasks_before: float, operations_before: float) -> int:
        """Forget finished tasks whose status is older than `tasks_before`, with all that belongs to
        them, and finished operations older than `operations_before` (seconds since the epoch).

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
