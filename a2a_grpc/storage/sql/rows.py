"""Rows of the SQL storage as values, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from a2a_grpc import pb
from a2a_grpc.storage.values import (
    Head,
    Operation,
    OperationState,
    Outcome,
    OutcomeKind,
    PushTarget,
    Scope,
)

SNAPSHOT_FLOOR = 16 * 1024
"""Bytes of log that are folded on reading rather than kept in a snapshot."""


def column_time(nanoseconds: int) -> int:
    """A time since the epoch that a column can hold: timestamps reach further, to the year 9999.

    Beyond its ends, in 1677 and 2262, all times are equal to the lists.
    """
    return max(-(2**63), min(nanoseconds, 2**63 - 1))


class TaskRow:
    """A row of `tasks` while a group works on it.

    `stored` is whether the database has the row; `listed` is the (state, status_at) under which the
    lists of the database have the task, None if they do not.
    """

    __slots__ = (
        "cancel_requested",
        "compacted",
        "context_id",
        "fence",
        "id",
        "listed",
        "log_bytes",
        "number",
        "owner",
        "renew_at",
        "running",
        "scope",
        "sequence",
        "state",
        "status_at",
        "stored",
        "version",
    )

    def __init__(self, number: int, task_id: str, context_id: str, scope: Scope) -> None:
        self.number = number
        self.id = task_id
        self.context_id = context_id
        self.scope = scope
        self.state = 0
        self.status_at = 0
        self.version = 0
        self.sequence = 0
        self.fence = 0
        self.running = False
        self.owner: str | None = None
        self.cancel_requested = False
        self.compacted = False
        self.log_bytes = 0
        self.renew_at = SNAPSHOT_FLOOR
        self.stored = False
        self.listed: tuple[int, int] | None = None

    @classmethod
    def load(cls, row: Row[Any]) -> TaskRow:
        """The value of a row of `tasks`."""
        loaded = cls(row.number, row.id, row.context_id, Scope(row.tenant, row.principal))
        loaded.state = row.state
        loaded.status_at = row.status_at or 0
        loaded.version = row.version
        loaded.sequence = row.sequence
        loaded.fence = row.fence
        loaded.running = bool(row.running)
        loaded.owner = row.owner
        loaded.cancel_requested = bool(row.cancel_requested)
        loaded.compacted = bool(row.compacted)
        loaded.log_bytes = row.log_bytes
        loaded.renew_at = row.renew_at
        loaded.stored = True
        loaded.listed = loaded.listing
        return loaded

    @property
    def listing(self) -> tuple[int, int] | None:
        """The (state, status_at) that the lists should have; None before the task is created."""
        return (self.state, self.status_at) if self.version else None

    def head(self, *, held: bool) -> Head:
        """The facts that readers see; `held` is whether a process that lives runs a turn."""
        return Head(
            self.id,
            self.context_id,
            self.scope,
            self.state,
            self.status_at,
            self.version,
            self.sequence,
            self.fence,
            held,
        )

    def release(self) -> None:
        """No turn holds the task any more."""
        self.running, self.owner = False, None

    def changing_values(self) -> dict[str, Any]:
        """For `update_turn`."""
        return {
            "of": self.number,
            "version": self.version,
            "sequence": self.sequence,
            "fence": self.fence,
            "running": int(self.running),
            "owner": self.owner,
            "cancel_requested": int(self.cancel_requested),
            "compacted": int(self.compacted),
            "log_bytes": self.log_bytes,
            "renew_at": self.renew_at,
        }

    def status_values(self) -> dict[str, Any]:
        """For `update_task`."""
        status_at = self.status_at if self.version else None
        return {**self.changing_values(), "state": self.state, "status_at": status_at}

    def values(self) -> dict[str, Any]:
        """For `insert_task`."""
        values = self.status_values()
        del values["of"]
        return {
            "number": self.number,
            "id": self.id,
            "context_id": self.context_id,
            "tenant": self.scope.tenant,
            "principal": self.scope.principal,
            **values,
        }


@dataclass(slots=True)
class OperationRow:
    """A row of `operations` while a group works on it: what decides, and nothing large.

    `home` is the only replica to run it, None for any; `is_refused` is as in `Operation`.
    """

    number: int
    id: str
    task_id: str
    deduplication_key: bytes
    created_at: float
    home: str | None
    attempts: int = 0
    handed_back: int = 0
    state: OperationState = OperationState.QUEUED
    is_refused: bool = False

    @classmethod
    def load(cls, row: Row[Any]) -> OperationRow:
        """The value of a row of `operations`."""
        return cls(
            row.number,
            row.id,
            row.task_id,
            row.deduplication_key or b"",
            row.created_at,
            row.home,
            row.attempts,
            row.handed_back,
            OperationState(row.state),
            row.outcome_kind == int(OutcomeKind.REFUSED),
        )


def operation_of(row: Row[Any]) -> Operation:
    """The value of a row of `operations` with `requests`."""
    outcome = outcome_of(row)
    return Operation(
        id=row.id,
        task_id=row.task_id,
        context_id=row.context_id,
        request=pb.SendMessageRequest.FromString(b"" if outcome else row.request),
        scope=Scope(row.tenant, row.principal),
        creates_task=bool(row.creates_task),
        deadline=row.deadline,
        metadata=json.loads(row.metadata),
        extensions=tuple(json.loads(row.extensions)),
        deduplication_key=row.deduplication_key or b"",
        created_at=row.created_at,
        attempts=row.attempts,
        handed_back=row.handed_back,
        runs_here=row.home is not None,
        state=OperationState(row.state),
        outcome=outcome,
    )


def outcome_of(row: Row[Any]) -> Outcome | None:
    """The outcome in a row of `operations`."""
    if row.outcome_kind is None:
        return None
    return Outcome(OutcomeKind(row.outcome_kind), row.outcome_version, row.outcome_payload)


def operation_values(operation: Operation, replica: str) -> dict[str, Any]:
    """For `insert_operation`, but for the number; `replica` admits it."""
    return {
        "id": operation.id,
        "task_id": operation.task_id,
        "deduplication_key": operation.deduplication_key or None,
        "created_at": operation.created_at,
        "attempts": operation.attempts,
        "handed_back": operation.handed_back,
        "home": replica if operation.runs_here else None,
        "submitted_by": replica,
        "state": int(operation.state),
    }


def request_values(operation: Operation) -> dict[str, Any]:
    """For `insert_request`, but for the number."""
    return {
        "request": operation.request.SerializeToString(),
        "context_id": operation.context_id,
        "tenant": operation.scope.tenant,
        "principal": operation.scope.principal,
        "creates_task": int(operation.creates_task),
        "deadline": operation.deadline,
        "metadata": json.dumps(dict(operation.metadata)),
        "extensions": json.dumps(operation.extensions),
    }


def push_values(config: pb.TaskPushNotificationConfig, scope: Scope) -> dict[str, Any]:
    """For `put_push_config`, with the cursor still to be set."""
    return {
        "task_id": config.task_id,
        "config_id": config.id,
        "tenant": scope.tenant,
        "principal": scope.principal,
        "config": config.SerializeToString(),
        "delivered": 0,
        "attempts": 0,
        "next_attempt_at": 0.0,
        "disabled": 0,
        "pending": 0,
    }


def push_target(row: Row[Any]) -> PushTarget:
    """The value of a row of `push_configs`."""
    return PushTarget(
        config=pb.TaskPushNotificationConfig.FromString(row.config),
        scope=Scope(row.tenant, row.principal),
        delivered=row.delivered,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        disabled=bool(row.disabled),
    )
