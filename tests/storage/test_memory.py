"""The bounds of `InMemoryStorage`."""

from __future__ import annotations

import pytest

from a2a_grpc.errors import ResourceExhaustedError
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Commit,
    Outcome,
    OutcomeKind,
)
from tests.storage.values import (
    COMPLETED,
    a_commit,
    an_operation,
    begin,
    created,
    run_to_the_end,
)


async def test_a_task_makes_room_only_when_its_turn_is_over() -> None:
    storage = InMemoryStorage[object](max_tasks=2)
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id, state=COMPLETED)
    await storage.commit(a_commit(operation.task_id, event, state=COMPLETED, fence=turn.fence))
    with pytest.raises(ResourceExhaustedError):
        await storage.admit(an_operation())
    outcome = Outcome(OutcomeKind.TASK, 1)
    await storage.commit(
        Commit(
            operation.task_id,
            expected_version=1,
            fence=turn.fence,
            finished=[(operation.id, outcome)],
            ends_turn=True,
        )
    )
    for _ in range(2):
        await storage.admit(an_operation())
    assert await storage.load_head(operation.task_id) is None


async def test_requests_count_until_their_operations_are_done() -> None:
    storage = InMemoryStorage[object](max_bytes=10_000)
    first = an_operation(text="x" * 6000)
    await storage.admit(first)
    with pytest.raises(ResourceExhaustedError):
        await storage.admit(an_operation(text="x" * 6000))
    assert await storage.admit(first) == first, "sent again it counts once"
    await storage.refuse_operation(first.id, Outcome(OutcomeKind.REFUSED))
    await storage.admit(an_operation(text="x" * 6000))


async def test_outcomes_count_and_the_oldest_make_room() -> None:
    storage = InMemoryStorage[object](max_bytes=10_000)
    operations = [an_operation() for _ in range(4)]
    for operation in operations:
        await storage.admit(operation)
        outcome = Outcome(OutcomeKind.MESSAGE, payload=b"x" * 4000)
        await storage.refuse_operation(operation.id, outcome)
    kept = [await storage.load_operation(operation.id) is not None for operation in operations]
    assert kept == [False, True, True, True]


async def test_nothing_is_left_of_what_was_counted() -> None:
    storage = InMemoryStorage[object](max_bytes=1000)
    for _ in range(50):
        await run_to_the_end(storage)
    await storage.sweep(tasks_before=2.0**40, operations_before=2.0**40)
    # All of the bound is there again.
    await storage.admit(an_operation(text="x" * 850))
