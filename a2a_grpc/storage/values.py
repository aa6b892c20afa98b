"""The values of the storage seam: operations, heads, snapshots, commits, queries, and its errors.

A task is kept as a head (state, version, sequence number) and an append-only log; its snapshot is
the fold of that log (`a2a_grpc.task.TaskFold`). Every write of a task is one `Commit`: conditional
on the version it was made from and on the fence of the turn that made it, all or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from a2a_grpc import pb, task
from a2a_grpc.errors import (
    A2AError,
    InvalidAgentResponseError,
    UnsupportedOperationError,
    dump_error,
    load_error,
)


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

RESUBMIT_AFTER = 2.0
"""Seconds that an operation has to reach a worker before it is taken for stranded."""

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
        handed_back: how many of the attempts were cut off in order, by a process that drained.
        runs_here: as long as the process that admitted it lives, no other runs it.
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
    handed_back: int = 0
    runs_here: bool = False
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
            self.handed_back,
            self.runs_here,
            self.state,
            self.outcome,
        )


class Turn(NamedTuple):
    """What `start_turn` hands to the engine.

    `fence` must be given with every commit of the turn. `snapshot` is the task before the turn,
    with the message already in its history; None if there is no task yet. `cancel_requested` says
    that somebody asked for its cancellation while an earlier turn, which is lost, held the task.
    """

    operation: Operation
    fence: int
    snapshot: Snapshot | None
    cancel_requested: bool = False


class Stranded(NamedTuple):
    """An unfinished operation that no process seems to work on.

    `attempts` as in `Operation`; `here` says that this process alone may run it.
    """

    task_id: str
    operation_id: str
    attempts: int
    here: bool = False


class Progress(NamedTuple):
    """How far an operation is; `outcome` is None until it is done."""

    operation_id: str
    state: OperationState
    outcome: Outcome | None


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
        hands_back: the id of the turn's operation, if that is to be started again.
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
    hands_back: str = ""
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
