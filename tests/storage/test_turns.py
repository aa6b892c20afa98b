"""The contract of `a2a_grpc.storage.base` about who runs what: leases, cancellation, what is left.

Over every backend as far as one process can see it; what several processes see of one another is in
`test_replicas`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from a2a_grpc import pb
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    Commit,
    FenceLostError,
    LogTruncatedError,
    Operation,
    OperationState,
    Outcome,
    OutcomeKind,
    Stranded,
)
from tests.storage.conftest import Open
from tests.storage.values import (
    ALICE,
    COMPLETED,
    INPUT_REQUIRED,
    SECOND,
    WORKING,
    a_commit,
    a_message,
    a_task,
    an_operation,
    begin,
    chunk,
    created,
    done,
    run_to_the_end,
    start,
    status,
    store_task,
)

# --- Cancellation.


async def test_a_request_to_cancel_is_there_for_the_next_turn(storage: AnyStorage) -> None:
    operation = an_operation()
    first = await begin(storage, operation)
    assert not first.cancel_requested
    await storage.request_cancel(operation.task_id)
    assert (await start(storage, operation.task_id)).cancel_requested


async def test_a_turn_that_finishes_its_operation_ends_the_request_to_cancel(
    storage: AnyStorage,
) -> None:
    task_id = await store_task(storage)
    operation = an_operation(task_id=task_id)
    turn = await begin(storage, operation)
    await storage.request_cancel(task_id)
    end = Commit(task_id, 2, fence=turn.fence, finished=done(operation, 2), ends_turn=True)
    await storage.commit(end)
    assert not (await begin(storage, an_operation(task_id=task_id))).cancel_requested


async def test_a_turn_that_is_handed_back_keeps_the_request_to_cancel(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    await storage.request_cancel(operation.task_id)
    back = Commit(operation.task_id, 0, fence=turn.fence, ends_turn=True, hands_back=operation.id)
    assert await storage.commit(back) is True
    assert (await start(storage, operation.task_id)).cancel_requested


async def test_a_request_to_cancel_what_no_turn_holds_is_nothing(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.request_cancel(task_id)
    await storage.request_cancel("nobody")
    assert not (await begin(storage, an_operation(task_id=task_id))).cancel_requested


async def test_attempts_that_were_handed_back_are_counted_apart(storage: AnyStorage) -> None:
    operation = an_operation()
    for number in range(1, 4):
        turn = await begin(storage, operation)
        counted = turn.operation
        assert (counted.attempts, counted.handed_back) == (number, number - 1)
        back = Commit(
            operation.task_id, 0, fence=turn.fence, ends_turn=True, hands_back=operation.id
        )
        await storage.commit(back)
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    assert (loaded.attempts, loaded.handed_back) == (3, 3)
    assert loaded.state is OperationState.STARTED


async def test_an_operation_that_runs_here_runs_here(storage: AnyStorage) -> None:
    operation = an_operation(runs_here=True)
    turn = await begin(storage, operation)
    assert turn.operation.runs_here
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    assert loaded.runs_here


# --- What is left.


async def test_a_fresh_operation_is_not_stranded(storage: AnyStorage) -> None:
    await storage.admit(an_operation())
    assert await storage.stranded_operations(10) == []


async def test_what_a_process_left_is_stranded_once(open_storage: Open) -> None:
    storage = open_storage()
    task_id = "task"
    queued, started = an_operation(), an_operation()
    behind = an_operation(task_id=started.task_id)
    async with storage:
        await storage.admit(queued)
        await begin(storage, started)
        await storage.admit(behind)
        await store_task(storage, task_id=task_id)
        await run_to_the_end(storage)
        assert await storage.stranded_operations(10) == []
    async with storage:
        assert await storage.stranded_operations(10) == [
            Stranded(queued.task_id, queued.id, 0),
            Stranded(started.task_id, started.id, 1),
        ]
        assert await storage.stranded_operations(10) == []
        turn = await start(storage, started.task_id)
        assert turn.operation.attempts == 2


async def test_stranded_operations_come_in_portions(open_storage: Open) -> None:
    storage = open_storage()
    operations = [an_operation() for _ in range(5)]
    async with storage:
        for operation in operations:
            await storage.admit(operation)
    async with storage:
        found = [await storage.stranded_operations(2) for _ in range(4)]
    ids = [[one.operation_id for one in portion] for portion in found]
    expected = [operation.id for operation in operations]
    assert ids == [expected[:2], expected[2:4], expected[4:], []]


async def test_the_fence_of_a_former_process_is_lost(open_storage: Open) -> None:
    storage = open_storage()
    operation = an_operation()
    async with storage:
        turn = await begin(storage, operation)
    async with storage:
        again = await start(storage, operation.task_id)
        assert again.fence > turn.fence
        late = a_commit(operation.task_id, created(operation.task_id), fence=turn.fence)
        with pytest.raises(FenceLostError):
            await storage.commit(late)


async def test_the_backend_can_be_reached(storage: AnyStorage) -> None:
    await storage.check()
    assert await storage.renew_lease() == []


# --- Several processes, as far as one can show it; where storage keeps more than one's memory.


async def test_the_lease_tells_what_is_to_be_canceled(storing: AnyStorage) -> None:
    mine, other = an_operation(), an_operation()
    turn = await begin(storing, mine)
    await begin(storing, other)
    await storing.request_cancel(mine.task_id)
    assert await storing.renew_lease() == [mine.task_id]
    assert await storing.renew_lease() == [mine.task_id]
    event = created(mine.task_id, state=COMPLETED)
    await storing.commit(
        a_commit(
            mine.task_id,
            event,
            state=COMPLETED,
            fence=turn.fence,
            finished=done(mine, 1),
            ends_turn=True,
        )
    )
    assert await storing.renew_lease() == []


async def test_a_lease_anew_gives_up_what_was_held(storing: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storing, operation)
    await storing.commit(a_commit(operation.task_id, created(operation.task_id), fence=turn.fence))
    await storing.request_cancel(operation.task_id)
    assert await storing.renew_lease(anew=True) == []
    head = await storing.load_head(operation.task_id)
    assert head is not None
    assert not head.running
    with pytest.raises(FenceLostError):
        await storing.commit(
            a_commit(operation.task_id, status(WORKING), version=1, fence=turn.fence)
        )
    assert await storing.stranded_operations(10) == [Stranded(operation.task_id, operation.id, 1)]
    again = await start(storing, operation.task_id)
    assert (again.operation.attempts, again.cancel_requested) == (2, True)
    assert again.fence > turn.fence


async def test_a_task_whose_process_is_gone_can_be_written_outside_a_turn(
    storing: AnyStorage,
) -> None:
    operation = an_operation()
    turn = await begin(storing, operation)
    await storing.commit(a_commit(operation.task_id, created(operation.task_id), fence=turn.fence))
    cancel = a_commit(operation.task_id, status(COMPLETED), version=1, state=COMPLETED)
    with pytest.raises(FenceLostError):
        await storing.commit(cancel)
    await storing.renew_lease(anew=True)
    await storing.commit(cancel)
    finished = await storing.start_turn(operation.task_id)
    assert isinstance(finished, Operation)
    assert finished.outcome == Outcome(OutcomeKind.TASK, 2)


async def test_a_running_task_may_be_stored_along_when_its_process_is_gone(
    storing: AnyStorage,
) -> None:
    task_id, other = await store_task(storing), await store_task(storing)
    await begin(storing, an_operation(task_id=other))
    await storing.renew_lease(anew=True)
    related = a_task(other, COMPLETED)
    await storing.commit(a_commit(task_id, status(WORKING), version=1, related=[related]))
    assert await storing.load_task(other) == related


# --- Compacting.


async def _ended(storage: AnyStorage, *, at: int = SECOND) -> str:
    """A task with a history, that ended."""
    task_id = await store_task(storage, at=at)
    values = [a_message("more"), chunk("a"), chunk("b" * 20_000), status(COMPLETED, at=at)]
    await storage.commit(a_commit(task_id, *values, version=1, state=COMPLETED, at=at))
    return task_id


async def _compact(storage: AnyStorage) -> None:
    assert await storage.sweep(tasks_before=0.0, operations_before=0.0, logs_before=20.0) == 0


async def test_of_a_compacted_task_the_snapshot_is_left(storing: AnyStorage) -> None:
    task_id = await _ended(storing)
    fresh = await _ended(storing, at=30 * SECOND)
    before = await storing.load_snapshot(task_id)
    head = await storing.load_head(task_id)
    await _compact(storing)
    assert await storing.load_snapshot(task_id) == before
    assert await storing.load_snapshot(task_id, version=5) == before
    assert await storing.load_head(task_id) == head
    assert await storing.load_events(task_id, 4, 10) == []
    for after in (0, 3):
        with pytest.raises(LogTruncatedError):
            await storing.load_events(task_id, after, 10)
    with pytest.raises(LogTruncatedError):
        await storing.load_snapshot(task_id, version=3)
    assert len(await storing.load_events(fresh, 0, 10)) == 4
    await _compact(storing)
    assert await storing.load_snapshot(task_id) == before


async def test_tasks_that_go_on_are_not_compacted(storing: AnyStorage) -> None:
    working = await store_task(storing, INPUT_REQUIRED, at=SECOND)
    operation = an_operation()
    turn = await begin(storing, operation)
    event = created(operation.task_id, state=COMPLETED, at=SECOND)
    await storing.commit(
        a_commit(operation.task_id, event, state=COMPLETED, at=SECOND, fence=turn.fence)
    )
    await _compact(storing)
    for task_id in (working, operation.task_id):
        assert len(await storing.load_events(task_id, 0, 10)) == 1


async def test_events_are_delivered_before_they_are_compacted(storing: AnyStorage) -> None:
    task_id = await store_task(storing, at=SECOND)
    config = pb.TaskPushNotificationConfig(id="a", task_id=task_id)
    await storing.save_push_config(config, scope=ALICE)
    end = a_commit(task_id, status(COMPLETED), version=1, state=COMPLETED, at=SECOND)
    await storing.commit(end)
    await _compact(storing)
    assert len(await storing.load_events(task_id, 1, 10)) == 1
    (target,) = await storing.load_push_configs(task_id)
    await storing.update_push_target(replace(target, delivered=2))
    await _compact(storing)
    with pytest.raises(LogTruncatedError):
        await storing.load_events(task_id, 1, 10)


async def test_a_disabled_target_keeps_no_log(storing: AnyStorage) -> None:
    task_id = await store_task(storing, at=SECOND)
    config = pb.TaskPushNotificationConfig(id="a", task_id=task_id)
    await storing.save_push_config(config, scope=ALICE)
    end = a_commit(task_id, status(COMPLETED), version=1, state=COMPLETED, at=SECOND)
    await storing.commit(end)
    (target,) = await storing.load_push_configs(task_id)
    await storing.update_push_target(replace(target, disabled=True))
    await _compact(storing)
    with pytest.raises(LogTruncatedError):
        await storing.load_events(task_id, 0, 10)


async def test_a_compacted_task_that_is_stored_again_goes_on(storing: AnyStorage) -> None:
    task_id, parent = await _ended(storing), await store_task(storing)
    await _compact(storing)
    related = a_task(task_id, COMPLETED, at=2 * SECOND)
    await storing.commit(a_commit(parent, status(WORKING), version=1, related=[related]))
    assert await storing.load_task(task_id) == related
    assert len(await storing.load_events(task_id, 4, 10)) == 1
    await _compact(storing)
    assert await storing.load_task(task_id) == related
    with pytest.raises(LogTruncatedError):
        await storing.load_events(task_id, 4, 10)


async def test_a_compacted_task_is_forgotten_like_any(storing: AnyStorage) -> None:
    ids = [await _ended(storing) for _ in range(120)]
    await _compact(storing)
    for task_id in (ids[0], ids[-1]):
        with pytest.raises(LogTruncatedError):
            await storing.load_events(task_id, 0, 10)
    assert await storing.sweep(tasks_before=20.0, operations_before=0.0, logs_before=20.0) == 120
    assert await storing.load_heads(ids) == []


async def test_logs_are_compacted_only_when_asked(storing: AnyStorage) -> None:
    task_id = await _ended(storing)
    assert await storing.sweep(tasks_before=0.0, operations_before=0.0) == 0
    assert len(await storing.load_events(task_id, 0, 10)) == 4
