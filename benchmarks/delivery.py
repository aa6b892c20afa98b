"""Whether what was delivered is complete and in order; looked at after the clock has stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from a2a_grpc import pb
from benchmarks.agent import Plan, chunk_number

COMPLETED = pb.TaskState.TASK_STATE_COMPLETED


@dataclass(slots=True)
class Faults:
    """What went wrong.

    Attributes:
        lost: chunks and final statuses that never came.
        repeated: chunks that came more than once.
        disordered: chunks that came after a later one.
        readers: streams that lost something.
        silent: those of them that ended with status OK all the same.
        errors: other failures, with how often each occurred.
    """

    lost: int = 0
    repeated: int = 0
    disordered: int = 0
    readers: int = 0
    silent: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.lost or self.repeated or self.disordered or self.errors)

    def add(self, other: Faults) -> None:
        """Count those of `other` too."""
        self.lost += other.lost
        self.repeated += other.repeated
        self.disordered += other.disordered
        self.readers += other.readers
        self.silent += other.silent
        self.errors.update(other.errors)


def check_stream(events: Iterable[bytes], plan: Plan, error: str | None = None) -> Faults:
    """The faults of one stream that should bring the Task, every chunk, and COMPLETED."""
    faults = Faults()
    numbers: list[int] = []
    completed = False
    for position, data in enumerate(events):
        event = pb.StreamResponse.FromString(data)
        kind = event.WhichOneof("payload")
        if (kind == "task") != (position == 0):
            faults.errors[f"event {position} is a {kind}"] += 1
        if completed:
            faults.errors["an event after COMPLETED"] += 1
        if kind == "task":
            # What the Task holds already must not come again.
            numbers += _chunks(event.task)
        elif kind == "artifact_update":
            numbers += (chunk_number(part.text) for part in event.artifact_update.artifact.parts)
        elif kind == "status_update":
            completed = event.status_update.status.state == COMPLETED
    _count(numbers, plan, faults)
    faults.lost += not completed
    if error is not None:
        faults.errors[error] += 1
    if faults.lost:
        faults.readers = 1
        faults.silent = error is None
    return faults


def check_task(task: pb.Task, plan: Plan) -> Faults:
    """The faults of a Task that should be COMPLETED and hold every chunk."""
    faults = Faults()
    _count(_chunks(task), plan, faults)
    faults.lost += task.status.state != COMPLETED
    if len(task.history) != 1:
        faults.errors[f"a history of {len(task.history)} messages"] += 1
    return faults


def _chunks(task: pb.Task) -> list[int]:
    return [chunk_number(part.text) for artifact in task.artifacts for part in artifact.parts]


def _count(numbers: list[int], plan: Plan, faults: Faults) -> None:
    seen = set(numbers)
    faults.lost += plan.chunks - len(seen)
    faults.repeated += len(numbers) - len(seen)
    faults.disordered += sum(later < earlier for earlier, later in pairwise(numbers))
