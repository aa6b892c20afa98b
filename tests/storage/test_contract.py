"""The contract of `a2a_grpc.storage.base`, the same for every backend."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.errors import InvalidAgentResponseError, TaskNotFoundError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Commit,
    FenceLostError,
    LogTruncatedError,
    Operation,
    OperationState,
    Outcome,
    OutcomeKind,
    Progress,
    PushTarget,
    Scope,
    TaskPage,
    TaskQuery,
    Turn,
    VersionConflictError,
)
from tests.storage.conftest import Open
from tests.storage.values import (
    ALICE,
    BOB,
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    SECOND,
    SUBMITTED,
    WORKING,
    a_commit,
    a_message,
    a_task,
    an_operation,
    begin,
    chunk,
    created,
    done,
    entries,
    new_id,
    run_to_the_end,
    start,
    status,
    store_task,
)

# --- Operations and turns.


async def test_an_admitted_operation_is_loaded_as_it_was(storage: AnyStorage) -> None:
    operation = an_operation(
        deadline=12.5,
        metadata={"traceparent": "00-1"},
        extensions=("urn:one", "urn:two"),
        deduplication_key=b"\x00key",
        created_at=100.25,
    )
    assert await storage.admit(operation) == operation
    loaded = await storage.load_operation(operation.id)
    assert loaded == operation
    assert loaded is not operation
    assert loaded.state is OperationState.QUEUED


async def test_an_unknown_operation_is_none(storage: AnyStorage) -> None:
    assert await storage.load_operation("nobody") is None
    assert await storage.start_turn("nobody") is None
    assert not await storage.refuse_operation("nobody", Outcome(OutcomeKind.REFUSED))
    assert await storage.load_progress(["nobody"]) == []


async def test_admit_is_atomic_per_deduplication_key(storage: AnyStorage) -> None:
    operations = [an_operation(deduplication_key=b"key", created_at=100) for _ in range(20)]
    admitted = await asyncio.gather(
        *(storage.admit(operation, duplicates_since=50) for operation in operations)
    )
    assert len({operation.id for operation in admitted}) == 1
    ids = [operation.id for operation in operations]
    assert len(await storage.load_progress(ids)) == 1


async def test_admit_returns_a_duplicate_with_its_outcome(storage: AnyStorage) -> None:
    first = await run_to_the_end(storage, an_operation(deduplication_key=b"key", created_at=100))
    again = an_operation(deduplication_key=b"key", created_at=200)
    found = await storage.admit(again, duplicates_since=100)
    assert found.id == first.id
    assert found.outcome == Outcome(OutcomeKind.TASK, 3)
    assert await storage.load_operation(again.id) is None


async def test_admit_looks_for_duplicates_only_since_then(storage: AnyStorage) -> None:
    await storage.admit(an_operation(deduplication_key=b"key", created_at=100))
    again = an_operation(deduplication_key=b"key", created_at=200)
    assert await storage.admit(again, duplicates_since=100.5) == again


async def test_admit_looks_for_duplicates_only_when_asked(storage: AnyStorage) -> None:
    await storage.admit(an_operation(deduplication_key=b"key", created_at=100))
    again = an_operation(deduplication_key=b"key", created_at=100)
    assert (await storage.admit(again)).id == again.id
    # What was admitted without being asked about is found by those who ask.
    asking = an_operation(deduplication_key=b"key", created_at=100)
    assert (await storage.admit(asking, duplicates_since=50)).id == again.id


async def test_operations_without_a_key_have_no_duplicates(storage: AnyStorage) -> None:
    first, second = an_operation(), an_operation()
    await storage.admit(first, duplicates_since=0)
    assert (await storage.admit(second, duplicates_since=0)).id == second.id


async def test_a_duplicate_brings_no_push_configuration(storage: AnyStorage) -> None:
    first = an_operation(deduplication_key=b"key")
    await storage.admit(first, duplicates_since=0)
    config = pb.TaskPushNotificationConfig(id="a", task_id=first.task_id)
    again = an_operation(deduplication_key=b"key")
    await storage.admit(again, duplicates_since=0, push_config=config)
    assert await storage.load_push_configs(first.task_id) == []


async def test_turns_take_the_operations_of_a_task_in_the_order_of_admission(
    storage: AnyStorage,
) -> None:
    task_id = await store_task(storage, INPUT_REQUIRED)
    operations = [an_operation(task_id=task_id, created_at=100 - n) for n in range(4)]
    for operation in operations:
        await storage.admit(operation)
    refusal = Outcome(OutcomeKind.REFUSED, payload=b"full")
    assert await storage.refuse_operation(operations[1].id, refusal)
    for number, more in ((0, True), (2, True), (3, False)):
        turn = await start(storage, task_id)
        assert turn.operation.id == operations[number].id
        assert turn.snapshot is not None
        version = turn.snapshot.version
        commit = Commit(
            task_id,
            version,
            fence=turn.fence,
            finished=done(turn.operation, version),
            ends_turn=True,
        )
        assert await storage.commit(commit) is more
    assert await storage.start_turn(task_id) is None


async def test_a_commit_that_does_not_end_the_turn_says_nothing_of_what_is_left(
    storage: AnyStorage,
) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    await storage.admit(an_operation(task_id=operation.task_id))
    commit = a_commit(operation.task_id, created(operation.task_id), fence=turn.fence)
    assert await storage.commit(commit) is False
    end = Commit(operation.task_id, 1, fence=turn.fence, ends_turn=True)
    assert await storage.commit(end) is True


async def test_progress_tells_how_far_operations_are(storage: AnyStorage) -> None:
    operations = [an_operation() for _ in range(3)]
    for operation in operations:
        await storage.admit(operation)
    await start(storage, operations[1].task_id)
    outcome = Outcome(OutcomeKind.REFUSED, payload=b"full")
    await storage.refuse_operation(operations[2].id, outcome)
    ids = [operation.id for operation in operations]
    progress = await storage.load_progress([*ids, "nobody"])
    assert {one.operation_id: (one.state, one.outcome) for one in progress} == {
        ids[0]: (OperationState.QUEUED, None),
        ids[1]: (OperationState.STARTED, None),
        ids[2]: (OperationState.DONE, outcome),
    }
    assert await storage.load_progress([]) == []


async def test_an_operation_is_refused_before_it_starts_or_not_at_all(storage: AnyStorage) -> None:
    outcome = Outcome(OutcomeKind.REFUSED, payload=b"full")
    queued, started = an_operation(), an_operation()
    await storage.admit(queued)
    await begin(storage, started)
    assert await storage.refuse_operation(queued.id, outcome)
    assert not await storage.refuse_operation(queued.id, Outcome(OutcomeKind.TASK))
    assert not await storage.refuse_operation(started.id, outcome)
    assert (await _operation(storage, queued)).outcome == outcome
    assert (await _operation(storage, started)).outcome is None
    assert await storage.start_turn(queued.task_id) is None


async def test_many_heads_and_progresses_are_read_at_once(storage: AnyStorage) -> None:
    tasks = [await store_task(storage) for _ in range(3)]
    many = [f"nobody-{number}" for number in range(700)]
    assert {head.task_id for head in await storage.load_heads([*tasks, *many])} == set(tasks)
    assert await storage.load_heads([]) == []
    assert await storage.load_heads(tasks[:1]) == [await storage.load_head(tasks[0])]


async def test_start_turn_counts_attempts_and_fences(storage: AnyStorage) -> None:
    operation = an_operation()
    first = await begin(storage, operation)
    second = await start(storage, operation.task_id)
    assert (first.operation.attempts, second.operation.attempts) == (1, 2)
    assert second.fence > first.fence
    assert (await _operation(storage, operation)).attempts == 2
    assert operation.attempts == 0, "the caller's own operation was changed"


async def test_a_task_is_invisible_before_its_first_event(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    assert turn.snapshot is None
    await _expect_no_task(storage, operation.task_id)
    await storage.commit(a_commit(operation.task_id, fence=turn.fence, ends_turn=True))
    await _expect_no_task(storage, operation.task_id)


async def _expect_no_task(storage: AnyStorage, task_id: str) -> None:
    assert await storage.load_head(task_id) is None
    assert await storage.load_snapshot(task_id) is None
    assert await storage.load_task(task_id) is None
    assert await storage.load_events(task_id, 0, 10) == []
    assert await storage.list_tasks(TaskQuery(ALICE)) == TaskPage([], None, 0)


async def test_a_direct_message_leaves_no_task(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    outcome = Outcome(OutcomeKind.MESSAGE, 0, a_message().SerializeToString())
    await storage.commit(
        a_commit(
            operation.task_id,
            fence=turn.fence,
            finished=((operation.id, outcome),),
            ends_turn=True,
        )
    )
    await _expect_no_task(storage, operation.task_id)
    loaded = await _operation(storage, operation)
    assert (loaded.state, loaded.outcome) == (OperationState.DONE, outcome)


async def test_start_turn_puts_the_message_into_the_history_once(storage: AnyStorage) -> None:
    task_id = await store_task(storage, INPUT_REQUIRED)
    operation = an_operation(task_id=task_id, text="answer")
    first = await begin(storage, operation)
    assert first.snapshot is not None
    assert [m.parts[0].text for m in first.snapshot.task.history] == ["answer"]
    assert (first.snapshot.version, first.snapshot.sequence) == (2, 1)
    second = await start(storage, operation.task_id)
    assert second.snapshot == first.snapshot
    assert await storage.load_snapshot(task_id) == first.snapshot


async def test_the_question_enters_the_history_before_the_answer(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.commit(
        a_commit(task_id, status(INPUT_REQUIRED, "which one?"), version=1, state=INPUT_REQUIRED)
    )
    turn = await begin(storage, an_operation(task_id=task_id, text="that one"))
    assert turn.snapshot is not None
    history = [message.parts[0].text for message in turn.snapshot.task.history]
    assert history == ["which one?", "that one"]
    assert not turn.snapshot.task.status.HasField("message")


async def test_a_second_attempt_finds_the_task_of_the_first(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id, history=[operation.request.message])
    await storage.commit(a_commit(operation.task_id, event, fence=turn.fence))
    again = await start(storage, operation.task_id)
    assert again.snapshot is not None
    assert again.snapshot.version == 1
    assert len(again.snapshot.task.history) == 1


async def test_start_turn_of_a_finished_operation_is_none(storage: AnyStorage) -> None:
    operation = await run_to_the_end(storage)
    before = await storage.load_head(operation.task_id)
    assert await storage.start_turn(operation.task_id) is None
    assert await storage.load_head(operation.task_id) == before


async def test_start_turn_of_a_finished_task_finishes_the_operation(storage: AnyStorage) -> None:
    task_id = await store_task(storage, COMPLETED)
    operation = an_operation(task_id=task_id)
    await storage.admit(operation)
    before = await storage.load_head(task_id)
    finished = await storage.start_turn(task_id)
    assert isinstance(finished, Operation)
    loaded = await _operation(storage, operation)
    assert finished == loaded
    assert loaded.state is OperationState.DONE
    assert loaded.outcome is not None
    assert loaded.outcome.kind is OutcomeKind.ERROR
    assert b"UNSUPPORTED_OPERATION" in loaded.outcome.payload
    assert await storage.load_head(task_id) == before
    assert await storage.start_turn(task_id) is None


async def test_an_attempt_that_ended_the_task_and_died_came_to_the_task(
    storage: AnyStorage,
) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id, state=COMPLETED)
    await storage.commit(a_commit(operation.task_id, event, state=COMPLETED, fence=turn.fence))
    assert isinstance(await storage.start_turn(operation.task_id), Operation)
    assert (await _operation(storage, operation)).outcome == Outcome(OutcomeKind.TASK, 1)


async def test_the_first_outcome_stays(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    first = Outcome(OutcomeKind.ERROR, payload=b"INTERNAL\nwhy")
    for outcome in (first, Outcome(OutcomeKind.TASK, 3)):
        finished = ((operation.id, outcome),)
        await storage.commit(Commit(operation.task_id, 0, fence=turn.fence, finished=finished))
    assert (await _operation(storage, operation)).outcome == first


async def _operation(storage: AnyStorage, operation: Operation) -> Operation:
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    return loaded


# --- Commits.


async def test_a_commit_is_seen_by_every_later_read(storage: AnyStorage) -> None:
    operation = await run_to_the_end(storage)
    head = await storage.load_head(operation.task_id)
    assert head is not None
    assert (head.state, head.status_at, head.version, head.sequence) == (COMPLETED, 2, 3, 3)
    assert (head.scope, head.context_id, head.running) == (ALICE, "context", False)
    snapshot = await storage.load_snapshot(operation.task_id)
    assert snapshot is not None
    assert (snapshot.version, snapshot.sequence) == (3, 3)
    assert snapshot.task.artifacts[0].parts[0].text == "echo"
    assert snapshot.task.status.state == COMPLETED
    assert len(await storage.load_events(operation.task_id, 0, 10)) == 3
    page = await storage.list_tasks(TaskQuery(ALICE, include_artifacts=True))
    assert page.tasks == [snapshot.task]
    loaded = await _operation(storage, operation)
    assert (loaded.state, loaded.outcome) == (OperationState.DONE, Outcome(OutcomeKind.TASK, 3))


async def test_commit_with_old_fence_is_refused(storage: AnyStorage) -> None:
    operation = an_operation()
    old = await begin(storage, operation)
    new = await start(storage, operation.task_id)
    with pytest.raises(FenceLostError):
        await storage.commit(
            a_commit(operation.task_id, created(operation.task_id), fence=old.fence)
        )
    await storage.commit(a_commit(operation.task_id, created(operation.task_id), fence=new.fence))
    with pytest.raises(FenceLostError):
        await storage.commit(
            a_commit(operation.task_id, status(WORKING), version=1, fence=old.fence)
        )


async def test_commit_of_a_turn_that_has_ended_is_refused(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id)
    await storage.commit(a_commit(operation.task_id, event, fence=turn.fence, ends_turn=True))
    with pytest.raises(FenceLostError):
        await storage.commit(
            a_commit(operation.task_id, status(WORKING), version=1, fence=turn.fence)
        )


async def test_commit_of_a_turn_that_was_handed_back_is_refused(storage: AnyStorage) -> None:
    operation = an_operation()
    old = await begin(storage, operation)
    await storage.commit(a_commit(operation.task_id, fence=old.fence, ends_turn=True))
    assert (await _operation(storage, operation)).state is OperationState.STARTED
    await storage.start_turn(operation.task_id)
    with pytest.raises(FenceLostError):
        await storage.commit(
            a_commit(operation.task_id, created(operation.task_id), fence=old.fence)
        )


async def test_commit_outside_a_turn_is_refused_while_one_runs(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    turn = await begin(storage, an_operation(task_id=task_id))
    cancel = a_commit(task_id, status(CANCELED), version=2, sequence=1, state=CANCELED)
    with pytest.raises(FenceLostError):
        await storage.commit(cancel)
    await storage.commit(a_commit(task_id, version=2, sequence=1, fence=turn.fence, ends_turn=True))
    await storage.commit(cancel)


async def test_commit_with_another_version_is_refused(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    for version in (0, 2):
        with pytest.raises(VersionConflictError):
            await storage.commit(a_commit(task_id, status(WORKING), version=version))
    with pytest.raises(VersionConflictError):
        await storage.commit(a_commit(new_id(), status(WORKING), version=1))


async def test_one_of_concurrent_commits_wins(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    results = await asyncio.gather(
        *(
            storage.commit(a_commit(task_id, status(WORKING, str(number)), version=1))
            for number in range(20)
        ),
        return_exceptions=True,
    )
    assert [type(result) for result in results].count(bool) == 1
    assert [type(result) for result in results].count(VersionConflictError) == 19
    head = await storage.load_head(task_id)
    assert head is not None
    assert head.version == 2


async def test_first_terminal_state_wins(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    finish, cancel = (
        a_commit(task_id, status(state), version=1, state=state) for state in (COMPLETED, CANCELED)
    )
    results = await asyncio.gather(
        storage.commit(finish), storage.commit(cancel), return_exceptions=True
    )
    assert results[0] is False
    assert isinstance(results[1], VersionConflictError)
    with pytest.raises(VersionConflictError):
        await storage.commit(a_commit(task_id, status(WORKING), version=2))
    task = await storage.load_task(task_id)
    assert task is not None
    assert task.status.state == COMPLETED


async def test_a_turn_ends_on_a_finished_task(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id, state=COMPLETED)
    await storage.commit(a_commit(operation.task_id, event, state=COMPLETED, fence=turn.fence))
    await storage.commit(
        a_commit(
            operation.task_id,
            version=1,
            fence=turn.fence,
            finished=done(operation, 1),
            ends_turn=True,
        )
    )
    head = await storage.load_head(operation.task_id)
    assert head is not None
    assert (head.state, head.version, head.running) == (COMPLETED, 1, False)


async def test_a_refused_commit_leaves_nothing(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    operation, related_id = an_operation(task_id=task_id), new_id()
    await storage.admit(operation)
    before = await storage.load_snapshot(task_id)
    with pytest.raises(VersionConflictError):
        await storage.commit(
            a_commit(
                task_id,
                status(COMPLETED),
                version=7,
                state=COMPLETED,
                finished=done(operation, 8),
                related=[a_task(related_id, COMPLETED)],
            )
        )
    assert await storage.load_snapshot(task_id) == before
    assert (await _operation(storage, operation)).state is OperationState.QUEUED
    assert await storage.load_task(related_id) is None


async def test_versions_and_sequence_numbers_have_no_gap(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    version, sequence = 1, 1
    for round_number in range(3):
        operation = an_operation(task_id=task_id)
        turn = await begin(storage, operation)
        assert turn.snapshot is not None
        assert (turn.snapshot.version, turn.snapshot.sequence) == (version + 1, sequence)
        events = [chunk(f"{round_number}"), status(INPUT_REQUIRED, f"{round_number}?")]
        await storage.commit(
            a_commit(
                task_id,
                *events,
                version=version + 1,
                sequence=sequence,
                state=INPUT_REQUIRED,
                fence=turn.fence,
                finished=done(operation, version + 3),
                ends_turn=True,
            )
        )
        version, sequence = version + 3, sequence + 2
    head = await storage.load_head(task_id)
    assert head is not None
    assert (head.version, head.sequence) == (10, 7)
    assert len(await storage.load_events(task_id, 0, 100)) == 7


async def test_a_cancelled_write_happens_or_does_not(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    for steps in range(12):
        head = await storage.load_head(task_id)
        assert head is not None
        commit = a_commit(task_id, status(WORKING), version=head.version)
        writing = asyncio.create_task(storage.commit(commit))
        for _ in range(steps):
            await asyncio.sleep(0)
        writing.cancel()
        (result,) = await asyncio.gather(writing, return_exceptions=True)
        assert result is False or isinstance(result, asyncio.CancelledError)
        # A write that began may still be on its way; whatever comes after it is behind it.
        await storage.update_context("after", steps)
        after = await storage.load_head(task_id)
        assert after is not None
        assert after.version - head.version in ((1,) if result is False else (0, 1))
        assert after.sequence == after.version


async def test_a_commit_costs_the_same_on_a_large_task(storage: AnyStorage) -> None:
    small, large = await store_task(storage), await store_task(storage)
    version = 1
    for _ in range(50):
        events = [chunk("x" * 20_000, append=True) for _ in range(10)]
        await storage.commit(a_commit(large, *events, version=version))
        version += len(events)

    async def seconds(task_id: str, version: int) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(20):
                await storage.commit(a_commit(task_id, chunk("x"), version=version))
                version += 1
            best = min(best, time.perf_counter() - start)
        return best

    # Ten megabytes against nothing: in proportion it would be thousands of times.
    assert await seconds(large, version) < 10 * await seconds(small, 1) + 0.1


# --- Related tasks.


async def test_related_tasks_are_stored_along(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    related = a_task(new_id(), COMPLETED, at=7, history=[a_message("from elsewhere")])
    await storage.commit(a_commit(task_id, status(WORKING), version=1, related=[related]))
    assert await storage.load_task(related.id, scope=ALICE) == related
    assert await storage.load_task(related.id, scope=BOB) is None
    head = await storage.load_head(related.id)
    assert head is not None
    assert (head.state, head.status_at, head.version, head.sequence) == (COMPLETED, 7, 1, 1)
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 2


async def test_a_related_task_that_comes_again_is_replaced(storage: AnyStorage) -> None:
    task_id, related_id = await store_task(storage), new_id()
    for version, state in ((1, COMPLETED), (2, CANCELED)):
        related = a_task(related_id, state)
        await storage.commit(a_commit(task_id, status(WORKING), version=version, related=[related]))
    assert await storage.load_task(related_id) == a_task(related_id, CANCELED)
    assert len(await storage.load_events(related_id, 0, 10)) == 2
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 2
    assert (await storage.list_tasks(TaskQuery(ALICE, state=COMPLETED))).total == 0


async def test_a_related_task_goes_on_with_the_log_of_its_task(storage: AnyStorage) -> None:
    task_id, related_id = await store_task(storage), await store_task(storage)
    await storage.commit(a_commit(related_id, a_message(), status(INPUT_REQUIRED), version=1))
    (before,) = await storage.load_events(related_id, 1, 10)
    related = a_task(related_id, COMPLETED, at=9)
    await storage.commit(a_commit(task_id, status(WORKING), version=1, related=[related]))
    events = await storage.load_events(related_id, 1, 10)
    whole = pb.StreamResponse(task=related).SerializeToString()
    assert events == [before, whole]
    assert await storage.load_task(related_id) == related
    head = await storage.load_head(related_id)
    assert head is not None
    assert (head.state, head.version, head.sequence) == (COMPLETED, 4, 3)
    assert [task.id for task in (await storage.list_tasks(TaskQuery(ALICE))).tasks] == [
        related_id,
        task_id,
    ]


async def test_a_bad_related_task_leaves_nothing_of_the_commit(storage: AnyStorage) -> None:
    task_id, related_id = await store_task(storage), new_id()
    bad = a_task(new_id(), COMPLETED)
    bad.status.timestamp.seconds = 2**60
    commit = a_commit(
        task_id, status(WORKING), version=1, related=[a_task(related_id, COMPLETED), bad]
    )
    with pytest.raises(InvalidAgentResponseError):
        await storage.commit(commit)
    assert await storage.load_head(related_id) is None
    assert len(await storage.load_events(task_id, 0, 10)) == 1


async def test_a_related_task_of_another_scope_is_refused(storage: AnyStorage) -> None:
    task_id, theirs = await store_task(storage), await store_task(storage, scope=BOB)
    before = await storage.load_task(theirs)
    with pytest.raises(InvalidAgentResponseError):
        await storage.commit(
            a_commit(task_id, status(WORKING), version=1, related=[a_task(theirs, COMPLETED)])
        )
    assert await storage.load_task(theirs) == before
    head = await storage.load_head(task_id)
    assert head is not None
    assert head.version == 1


async def test_a_related_task_has_ended_and_is_another_that_does_not_run(
    storage: AnyStorage,
) -> None:
    task_id = await store_task(storage)
    running = await store_task(storage)
    await begin(storage, an_operation(task_id=running))
    for related in (
        a_task(new_id(), WORKING),
        a_task("", COMPLETED),
        a_task(task_id, COMPLETED),
        a_task(running, COMPLETED),
    ):
        before = await storage.load_task(related.id)
        commit = a_commit(task_id, status(WORKING), version=1, related=[related])
        with pytest.raises(InvalidAgentResponseError):
            await storage.commit(commit)
        assert await storage.load_task(related.id) == before


async def test_the_last_of_related_tasks_with_one_id_stays(storage: AnyStorage) -> None:
    task_id, related_id = await store_task(storage), new_id()
    related = [a_task(related_id, state) for state in (COMPLETED, CANCELED)]
    await storage.commit(a_commit(task_id, status(WORKING), version=1, related=related))
    assert await storage.load_task(related_id) == a_task(related_id, CANCELED)
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 2
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


# --- Reading tasks.


async def test_reads_with_a_scope_show_nothing_of_another(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    for scope in (BOB, Scope("other", "alice"), Scope()):
        assert await storage.load_head(task_id, scope=scope) is None
        assert await storage.load_snapshot(task_id, scope=scope) is None
        assert await storage.load_task(task_id, scope=scope) is None
        for narrowed in ({}, {"context_id": "context"}, {"state": WORKING}, {"updated_since": 1}):
            query = TaskQuery(scope, **narrowed)
            assert await storage.list_tasks(query) == TaskPage([], None, 0)
    assert await storage.load_head(task_id, scope=ALICE) is not None
    assert await storage.load_task(task_id, scope=ALICE) is not None


async def test_snapshot_as_of_version(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.commit(a_commit(task_id, chunk("a"), chunk("b"), version=1))
    operation = an_operation(task_id=task_id, text="question")
    turn = await begin(storage, operation)
    await storage.commit(
        a_commit(
            task_id, status(COMPLETED), version=4, sequence=3, state=COMPLETED, fence=turn.fence
        )
    )
    seen = []
    for version in range(1, 6):
        snapshot = await storage.load_snapshot(task_id, version=version)
        assert snapshot is not None
        assert snapshot.version == version
        task = snapshot.task
        parts = sum(len(artifact.parts) for artifact in task.artifacts)
        seen.append((snapshot.sequence, parts, len(task.history), task.status.state))
    assert seen == [
        (1, 0, 0, WORKING),
        (2, 1, 0, WORKING),
        (3, 2, 0, WORKING),
        (3, 2, 1, WORKING),
        (4, 2, 1, COMPLETED),
    ]


async def test_snapshot_as_of_version_of_a_long_log(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    for version in range(1, 200):
        await storage.commit(a_commit(task_id, chunk("x" * 1000), version=version))
    for version in (1, 2, 100, 199, 200):
        snapshot = await storage.load_snapshot(task_id, version=version)
        assert snapshot is not None
        assert (snapshot.version, snapshot.sequence) == (version, version)
        parts = sum(len(artifact.parts) for artifact in snapshot.task.artifacts)
        assert parts == version - 1


async def test_a_loaded_task_belongs_to_the_receiver(storage: AnyStorage) -> None:
    task_id = await store_task(storage, history=[a_message("one"), a_message("two")])
    for history_length in (None, 1, 0):
        loaded = await storage.load_task(task_id, history_length)
        assert loaded is not None
        loaded.Clear()
    again = await storage.load_task(task_id)
    assert again is not None
    assert [message.parts[0].text for message in again.history] == ["one", "two"]


@pytest.mark.parametrize(
    ("history_length", "expected"),
    [(None, ["1", "2", "3"]), (0, []), (2, ["2", "3"]), (9, ["1", "2", "3"])],
)
async def test_history_length_keeps_the_newest(
    storage: AnyStorage, history_length: int | None, expected: list[str]
) -> None:
    task_id = await store_task(storage, history=[a_message(text) for text in "123"])
    loaded = await storage.load_task(task_id, history_length)
    page = await storage.list_tasks(TaskQuery(ALICE, history_length=history_length))
    assert loaded is not None
    for task in (loaded, *page.tasks):
        assert [message.parts[0].text for message in task.history] == expected


async def test_load_events_goes_on_without_gap_or_duplicate(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    version = 1
    for number in range(1, 20):
        sequence = number
        values = [a_message(), chunk(str(number))]
        await storage.commit(a_commit(task_id, *values, version=version, sequence=sequence))
        version += 2
    read: list[str] = []
    after = 1
    while events := await storage.load_events(task_id, after, 4):
        assert len(events) <= 4
        after += len(events)
        parsed = [pb.StreamResponse.FromString(event) for event in events]
        read += [event.artifact_update.artifact.parts[0].text for event in parsed]
    assert read == [str(number) for number in range(1, 20)]
    assert await storage.load_events(task_id, 100, 4) == []


async def test_load_events_has_a_bound_of_bytes(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.commit(a_commit(task_id, *[chunk("x" * 1000) for _ in range(5)], version=1))
    events = await storage.load_events(task_id, 0, 10)
    assert len(events) == 6
    assert await storage.load_events(task_id, 1, 10, max_bytes=1) == events[1:2]
    assert await storage.load_events(task_id, 1, 10, max_bytes=2 * len(events[1])) == events[1:3]


async def test_load_events_while_events_are_committed(storage: AnyStorage) -> None:
    task_id = await store_task(storage)

    async def write() -> None:
        for version in range(1, 100):
            await storage.commit(a_commit(task_id, chunk(str(version)), version=version))

    async def follow() -> list[str]:
        read: list[str] = []
        while len(read) < 99:
            events = await storage.load_events(task_id, 1 + len(read), 7)
            parsed = [pb.StreamResponse.FromString(event) for event in events]
            read += [event.artifact_update.artifact.parts[0].text for event in parsed]
            await asyncio.sleep(0)
        return read

    _, *readers = await asyncio.gather(write(), follow(), follow())
    assert readers == [[str(number) for number in range(1, 100)]] * 2


async def _fill_until_truncated(storage: AnyStorage, task_id: str) -> int:
    """Append to a log until its beginning is gone; its version then."""
    for version in range(1, 2000):
        await storage.commit(a_commit(task_id, chunk("x" * 5000), version=version))
        try:
            await storage.load_events(task_id, 0, 1)
        except LogTruncatedError:
            return version + 1
    raise AssertionError("the log was never truncated")


async def test_a_truncated_log_says_so(forgetful: AnyStorage) -> None:
    task_id = await store_task(forgetful)
    version = await _fill_until_truncated(forgetful, task_id)
    with pytest.raises(LogTruncatedError):
        await forgetful.load_snapshot(task_id, version=1)
    with pytest.raises(LogTruncatedError):
        await forgetful.load_events(task_id, 0, 100)
    newest = await forgetful.load_events(task_id, version - 5, 100)
    assert len(newest) == 5
    snapshot = await forgetful.load_snapshot(task_id)
    assert snapshot is not None
    assert (snapshot.version, snapshot.sequence) == (version, version)
    assert len(snapshot.task.artifacts[0].parts) == version - 1


async def test_a_log_is_not_truncated_before_it_is_delivered(forgetful: AnyStorage) -> None:
    task_id, other = await store_task(forgetful), await store_task(forgetful)
    config = pb.TaskPushNotificationConfig(id="a", task_id=task_id)
    await forgetful.save_push_config(config, scope=ALICE)
    for version in range(1, 100):
        await forgetful.commit(a_commit(task_id, chunk("x" * 5000), version=version))
    await _fill_until_truncated(forgetful, other)
    assert len(await forgetful.load_events(task_id, 1, 1000)) == 99
    (target,) = await forgetful.load_push_configs(task_id)
    await forgetful.update_push_target(replace(target, delivered=100))
    for version in range(100, 2000):
        await forgetful.commit(a_commit(task_id, chunk("x" * 5000), version=version))
        await forgetful.update_push_target(replace(target, delivered=version + 1))
        try:
            await forgetful.load_events(task_id, 1, 1)
        except LogTruncatedError:
            return
    raise AssertionError("the log was never truncated")


# --- ListTasks.


async def _all_pages(storage: AnyStorage, query: TaskQuery) -> list[TaskPage]:
    pages = [await storage.list_tasks(query)]
    while (after := pages[-1].next_after) is not None:
        pages.append(await storage.list_tasks(query._replace(after=after)))
    return pages


async def test_list_is_newest_first_then_by_id(storage: AnyStorage) -> None:
    stored = [
        (at, await store_task(storage, task_id=task_id, at=at))
        for at, task_id in [(5, "b"), (9, "a"), (5, "c"), (1, "z"), (5, "a2")]
    ]
    page = await storage.list_tasks(TaskQuery(ALICE))
    assert [task.id for task in page.tasks] == [
        task_id for _, task_id in sorted(stored, reverse=True)
    ]


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7])
async def test_list_pages_end_where_the_tasks_end(storage: AnyStorage, count: int) -> None:
    # Equal timestamps across the borders of the pages.
    ids = [await store_task(storage, at=1 + number // 4) for number in range(count)]
    pages = await _all_pages(storage, TaskQuery(ALICE, page_size=3))
    assert [len(page.tasks) for page in pages] == {
        0: [0],
        1: [1],
        5: [3, 2],
        6: [3, 3],
        7: [3, 3, 1],
    }[count]
    listed = [task.id for page in pages for task in page.tasks]
    assert sorted(listed) == sorted(ids)
    assert {page.total for page in pages} == {count}


async def test_list_is_narrowed_down(storage: AnyStorage) -> None:
    for number in range(12):
        await store_task(
            storage,
            (WORKING, COMPLETED)[number % 2],
            task_id=f"{number:02}",
            at=number * SECOND,
            context_id=f"context-{number % 3}",
            scope=ALICE,
        )
        await store_task(storage, at=number * SECOND, context_id="context-1", scope=BOB)

    async def listed(**narrowed: Any) -> list[int]:
        pages = await _all_pages(storage, TaskQuery(ALICE, page_size=2, **narrowed))
        found = [int(task.id) for page in pages for task in page.tasks]
        assert {page.total for page in pages} == {len(found)}
        return found

    assert await listed() == list(range(11, -1, -1))
    assert await listed(state=COMPLETED) == [11, 9, 7, 5, 3, 1]
    assert await listed(context_id="context-1") == [10, 7, 4, 1]
    assert await listed(updated_since=9 * SECOND) == [11, 10, 9]
    assert await listed(state=WORKING, context_id="context-0") == [6, 0]
    assert await listed(state=WORKING, updated_since=5 * SECOND) == [10, 8, 6]
    assert await listed(context_id="context-2", updated_since=5 * SECOND) == [11, 8, 5]
    assert await listed(context_id="context-2", state=WORKING, updated_since=3 * SECOND) == [8]
    assert await listed(state=CANCELED) == []
    assert await listed(context_id="nowhere") == []


async def test_list_takes_timestamps_to_the_ends_of_time(storage: AnyStorage) -> None:
    first, last = -62135596800 * SECOND, 253402300799 * SECOND
    await store_task(storage, task_id="first", at=first)
    await store_task(storage, task_id="last", at=last)
    await storage.commit(
        a_commit(
            "first", status(WORKING), version=1, at=2, related=[a_task("end", COMPLETED, at=last)]
        )
    )

    async def listed(**narrowed: Any) -> list[str]:
        pages = await _all_pages(storage, TaskQuery(ALICE, page_size=1, **narrowed))
        return [task.id for page in pages for task in page.tasks]

    assert await listed() == ["last", "end", "first"]
    assert await listed(updated_since=first) == ["last", "end", "first"]
    assert await listed(updated_since=last) == ["last", "end"]
    assert await listed(after=(last, "m")) == ["last", "end", "first"]
    assert await listed(after=(first, "m")) == []


async def test_list_moves_a_task_whose_status_changed(storage: AnyStorage) -> None:
    first = await store_task(storage, at=1)
    second = await store_task(storage, at=2)
    await storage.commit(a_commit(first, status(COMPLETED, at=3), version=1, state=COMPLETED, at=3))
    page = await storage.list_tasks(TaskQuery(ALICE))
    assert [task.id for task in page.tasks] == [first, second]
    assert (await storage.list_tasks(TaskQuery(ALICE, state=WORKING))).total == 1
    assert (await storage.list_tasks(TaskQuery(ALICE, state=COMPLETED))).total == 1
    assert (await storage.list_tasks(TaskQuery(ALICE, context_id="context"))).total == 2


async def test_list_is_stable_while_tasks_are_added(storage: AnyStorage) -> None:
    before = [await store_task(storage, at=number + 1) for number in range(10)]
    query = TaskQuery(ALICE, page_size=3)
    listed: list[str] = []
    page = await storage.list_tasks(query)
    while True:
        listed += [task.id for task in page.tasks]
        await store_task(storage, at=100 + len(listed))
        if page.next_after is None:
            break
        page = await storage.list_tasks(query._replace(after=page.next_after))
    assert listed == before[::-1]


async def test_list_leaves_artifacts_out_unless_asked(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    # Enough to have a stored snapshot, where there is such a thing.
    for version in range(1, 50):
        await storage.commit(a_commit(task_id, chunk("x" * 2000), version=version))
    without = await storage.list_tasks(TaskQuery(ALICE))
    assert not without.tasks[0].artifacts
    assert without.tasks[0].status.state == WORKING
    with_them = await storage.list_tasks(TaskQuery(ALICE, include_artifacts=True))
    assert with_them.tasks[0] == await storage.load_task(task_id)
    assert len(with_them.tasks[0].artifacts[0].parts) == 49


# --- Contexts.


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "text": "héllo \u0000 \U0001f600"}], "n": 1.5},
        [1, "two", None, True, []],
        "text",
        0,
        False,
        None,
        {},
    ],
)
async def test_a_context_holds_any_json_value(storage: AnyStorage, value: Any) -> None:
    await storage.update_context("context", value, scope=ALICE)
    assert await storage.load_context("context", scope=ALICE) == value


async def test_contexts_belong_to_a_scope(storage: AnyStorage) -> None:
    await storage.update_context("context", "alice's", scope=ALICE)
    await storage.update_context("context", "nobody's")
    assert await storage.load_context("context", scope=ALICE) == "alice's"
    assert await storage.load_context("context", scope=BOB) is None
    assert await storage.load_context("context") == "nobody's"
    assert await storage.load_context("other", scope=ALICE) is None


async def test_a_context_is_replaced_only_by_update(storage: AnyStorage) -> None:
    value: dict[str, Any] = {"turns": [1]}
    await storage.update_context("context", value)
    value["turns"].append(2)
    loaded = await storage.load_context("context")
    assert loaded == {"turns": [1]}
    loaded["turns"].append(3)
    assert await storage.load_context("context") == {"turns": [1]}
    await storage.update_context("context", {"turns": [1, 2]})
    assert await storage.load_context("context") == {"turns": [1, 2]}


# --- Push configurations and their outbox.


def _config(task_id: str, config_id: str = "a", url: str = "https://a") -> Any:
    return pb.TaskPushNotificationConfig(id=config_id, task_id=task_id, url=url)


async def _target(storage: AnyStorage, task_id: str) -> PushTarget:
    (target,) = await storage.load_push_configs(task_id)
    return target


async def test_push_configs_are_listed_by_id_and_deleted(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    for config_id in "cab":
        await storage.save_push_config(_config(task_id, config_id), scope=ALICE)
    targets = await storage.load_push_configs(task_id)
    assert [target.config.id for target in targets] == ["a", "b", "c"]
    assert targets[0] == PushTarget(_config(task_id), ALICE, delivered=1)
    await storage.delete_push_config(task_id, "b")
    await storage.delete_push_config(task_id, "b")
    await storage.delete_push_config("nobody", "b")
    targets = await storage.load_push_configs(task_id)
    assert [target.config.id for target in targets] == ["a", "c"]


async def test_deliveries_start_with_the_event_after_the_head(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    assert await storage.due_push_targets(1.0, 10) == []
    assert await storage.next_push_attempt() is None
    await storage.commit(a_commit(task_id, status(WORKING), version=1))
    assert await storage.due_push_targets(1.0, 10) == [await _target(storage, task_id)]
    assert (await _target(storage, task_id)).delivered == 1
    assert await storage.next_push_attempt() == 0.0


async def test_deliveries_of_a_new_task_start_with_its_first_event(storage: AnyStorage) -> None:
    operation = an_operation()
    await storage.admit(operation, push_config=_config(operation.task_id))
    assert await storage.due_push_targets(1.0, 10) == []
    turn = await start(storage, operation.task_id)
    assert await storage.due_push_targets(1.0, 10) == []
    await storage.commit(a_commit(operation.task_id, created(operation.task_id), fence=turn.fence))
    (due,) = await storage.due_push_targets(1.0, 10)
    assert (due.config.id, due.scope, due.delivered) == ("a", ALICE, 0)


async def test_a_message_of_the_user_is_nothing_to_deliver(storage: AnyStorage) -> None:
    task_id = await store_task(storage, INPUT_REQUIRED)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await begin(storage, an_operation(task_id=task_id))
    assert await storage.due_push_targets(1.0, 10) == []


async def test_the_cursor_moves_with_deliveries(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.commit(a_commit(task_id, status(WORKING), status(WORKING), version=1))
    target = await _target(storage, task_id)
    await storage.update_push_target(replace(target, delivered=2))
    assert (await _target(storage, task_id)).delivered == 2
    assert len(await storage.due_push_targets(1.0, 10)) == 1
    await storage.update_push_target(replace(target, delivered=3))
    assert await storage.due_push_targets(1.0, 10) == []
    assert await storage.next_push_attempt() is None


async def test_a_failed_delivery_waits_for_its_next_attempt(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.commit(a_commit(task_id, status(WORKING), version=1))
    target = await _target(storage, task_id)
    failed = replace(target, attempts=3, next_attempt_at=50.5)
    await storage.update_push_target(failed)
    assert await _target(storage, task_id) == failed
    assert await storage.next_push_attempt() == 50.5
    assert await storage.due_push_targets(50.0, 10) == []
    assert await storage.due_push_targets(50.5, 10) == [failed]


async def test_due_targets_come_longest_due_first(storage: AnyStorage) -> None:
    for due_at in (30.0, 10.0, 20.0, 99.0):
        task_id = await store_task(storage)
        await storage.save_push_config(_config(task_id), scope=ALICE)
        await storage.commit(a_commit(task_id, status(WORKING), version=1))
        target = await _target(storage, task_id)
        await storage.update_push_target(replace(target, next_attempt_at=due_at))
    due = await storage.due_push_targets(50.0, 10)
    assert [target.next_attempt_at for target in due] == [10.0, 20.0, 30.0]
    assert len(await storage.due_push_targets(50.0, 2)) == 2
    assert await storage.next_push_attempt() == 10.0


async def test_of_several_who_find_a_target_due_one_may_deliver(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.commit(a_commit(task_id, status(WORKING), version=1))
    (due,) = await storage.due_push_targets(50.0, 10)
    claims = await asyncio.gather(*(storage.claim_push_target(due, 99.5) for _ in range(5)))
    assert sorted(claims) == [False] * 4 + [True]
    assert await storage.due_push_targets(50.0, 10) == []
    (later,) = await storage.due_push_targets(99.5, 10)
    assert later == replace(due, next_attempt_at=99.5)
    assert await storage.claim_push_target(later, 120.25)
    await storage.delete_push_config(task_id, due.config.id)
    assert not await storage.claim_push_target(replace(later, next_attempt_at=120.25), 200.0)


async def test_a_disabled_target_gets_nothing_more(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.commit(a_commit(task_id, status(WORKING), version=1))
    target = await _target(storage, task_id)
    await storage.update_push_target(replace(target, attempts=9, disabled=True))
    await storage.commit(a_commit(task_id, status(WORKING), version=2))
    assert await storage.due_push_targets(1e12, 10) == []
    assert await storage.next_push_attempt() is None
    assert (await _target(storage, task_id)).disabled


async def test_a_replaced_config_keeps_its_cursor_and_is_enabled(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.commit(a_commit(task_id, status(WORKING), status(WORKING), version=1))
    target = await _target(storage, task_id)
    await storage.update_push_target(replace(target, delivered=2, attempts=9, disabled=True))
    await storage.save_push_config(_config(task_id, url="https://b"), scope=ALICE)
    replaced = await _target(storage, task_id)
    assert (replaced.config.url, replaced.delivered, replaced.disabled) == ("https://b", 2, False)
    assert await storage.due_push_targets(1.0, 10) == [replaced]


async def test_updating_a_deleted_target_does_nothing(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    target = await _target(storage, task_id)
    await storage.delete_push_config(task_id, "a")
    await storage.update_push_target(target)
    assert await storage.load_push_configs(task_id) == []


# --- Housekeeping.


async def test_sweep_forgets_old_finished_tasks_with_all_they_have(storage: AnyStorage) -> None:
    old = await store_task(storage, COMPLETED, at=10 * SECOND)
    fresh = await store_task(storage, COMPLETED, at=30 * SECOND)
    working = await store_task(storage, WORKING, at=10 * SECOND)
    await storage.save_push_config(_config(old), scope=ALICE)
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1
    assert await storage.load_head(old) is None
    assert await storage.load_snapshot(old) is None
    assert await storage.load_events(old, 0, 10) == []
    assert await storage.load_push_configs(old) == []
    page = await storage.list_tasks(TaskQuery(ALICE))
    assert ([task.id for task in page.tasks], page.total) == ([fresh, working], 2)
    assert (await storage.list_tasks(TaskQuery(ALICE, state=COMPLETED))).total == 1
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 0


async def test_sweep_forgets_more_than_one_step_holds(storage: AnyStorage) -> None:
    task_id = await store_task(storage)
    related = [a_task(f"{number:04}", COMPLETED, at=SECOND) for number in range(1050)]
    await storage.commit(a_commit(task_id, status(WORKING), version=1, related=related))
    long = await store_task(storage, task_id="long", at=SECOND)
    events = [chunk(str(number)) for number in range(4500)]
    await storage.commit(a_commit(long, *events, version=1))
    await storage.commit(a_commit(long, status(COMPLETED), version=4501, state=COMPLETED, at=1))
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1051
    assert await storage.load_events(long, 0, 10) == []
    page = await storage.list_tasks(TaskQuery(ALICE))
    assert ([task.id for task in page.tasks], page.total) == ([task_id], 1)
    # The id is free again, and nothing of before shows.
    await store_task(storage, task_id=long)
    assert len(await storage.load_events(long, 0, 10)) == 1


async def test_sweep_keeps_tasks_with_undelivered_events(storage: AnyStorage) -> None:
    task_id = await store_task(storage, at=SECOND)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.commit(a_commit(task_id, status(COMPLETED), version=1, state=COMPLETED, at=2))
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 0
    target = await _target(storage, task_id)
    await storage.update_push_target(replace(target, delivered=2))
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


async def test_sweep_keeps_tasks_with_unfinished_operations(storage: AnyStorage) -> None:
    task_id = await store_task(storage, INPUT_REQUIRED, at=SECOND)
    operation = an_operation(task_id=task_id)
    await storage.admit(operation)
    await storage.commit(a_commit(task_id, status(CANCELED), version=1, state=CANCELED, at=2))
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 0
    assert isinstance(await storage.start_turn(task_id), Operation)
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


async def test_sweep_does_not_depend_on_the_order_of_ending(storage: AnyStorage) -> None:
    for at in (50, 10, 40, 5):
        await store_task(storage, COMPLETED, at=at * SECOND)
        await run_to_the_end(storage, an_operation(created_at=at))
    assert await storage.sweep(tasks_before=20.0, operations_before=20.0) == 6
    assert (await storage.list_tasks(TaskQuery(ALICE))).total == 2


async def test_sweep_forgets_old_finished_operations(storage: AnyStorage) -> None:
    old = await run_to_the_end(storage, an_operation(created_at=10, deduplication_key=b"key"))
    waiting = an_operation(created_at=10)
    await storage.admit(waiting)
    await storage.sweep(tasks_before=0.0, operations_before=time.time() + 60)
    assert await storage.load_operation(old.id) is None
    assert await storage.load_operation(waiting.id) is not None
    assert await storage.load_task(old.task_id) is not None
    again = an_operation(created_at=40, deduplication_key=b"key")
    assert (await storage.admit(again, duplicates_since=0)).id == again.id


async def test_sweep_keeps_an_operation_that_took_long_until_it_was_done_for_a_while(
    storage: AnyStorage,
) -> None:
    ran = await run_to_the_end(storage, an_operation(created_at=10, deduplication_key=b"key"))
    refused = an_operation(created_at=10)
    await storage.admit(refused)
    await storage.refuse_operation(refused.id, Outcome(OutcomeKind.REFUSED, payload=b"full"))
    canceled = an_operation(created_at=10, task_id=ran.task_id)
    await storage.admit(canceled)
    assert isinstance(await storage.start_turn(ran.task_id), Operation)
    ids = {ran.id, refused.id, canceled.id}
    await storage.sweep(tasks_before=0.0, operations_before=time.time() - 60)
    assert {one.operation_id for one in await storage.load_progress(list(ids))} == ids
    # It is no duplicate all the same.
    again = an_operation(created_at=100, deduplication_key=b"key")
    assert (await storage.admit(again, duplicates_since=50)).id == again.id


async def test_sweep_while_tasks_are_written(storage: AnyStorage) -> None:
    async def write() -> list[str]:
        return [await store_task(storage, COMPLETED, at=50 * SECOND) for _ in range(50)]

    for _ in range(150):
        await store_task(storage, COMPLETED, at=SECOND)
    kept, forgotten = await asyncio.gather(
        write(), storage.sweep(tasks_before=20.0, operations_before=0.0)
    )
    assert forgotten == 150
    pages = await _all_pages(storage, TaskQuery(ALICE))
    assert {task.id for page in pages for task in page.tasks} == set(kept)
    assert pages[0].total == 50


async def _cleaning_up(storage: AnyStorage) -> tuple[Operation, int]:
    """A task that has ended while its turn goes on."""
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id, state=COMPLETED, at=SECOND)
    await storage.commit(
        a_commit(
            operation.task_id,
            event,
            state=COMPLETED,
            at=SECOND,
            fence=turn.fence,
            finished=done(operation, 1),
        )
    )
    return operation, turn.fence


async def test_sweep_keeps_tasks_that_a_turn_holds(storage: AnyStorage) -> None:
    operation, fence = await _cleaning_up(storage)
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 0
    await storage.commit(Commit(operation.task_id, expected_version=1, fence=fence, ends_turn=True))
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


async def test_a_task_that_a_lost_turn_ended_is_forgotten(storage: AnyStorage) -> None:
    operation = an_operation()
    turn = await begin(storage, operation)
    event = created(operation.task_id, state=COMPLETED)
    commit = a_commit(operation.task_id, event, state=COMPLETED, fence=turn.fence)
    await storage.commit(commit)
    assert isinstance(await storage.start_turn(operation.task_id), Operation)
    assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 1


async def test_sweep_forgets_contexts_that_nothing_uses(storage: AnyStorage) -> None:
    await store_task(storage, COMPLETED, at=SECOND, context_id="ended")
    await store_task(storage, context_id="working")
    operation = an_operation(context_id="queued")
    await storage.admit(operation)
    ids = ["ended", "working", "queued", "unused"]
    for context_id in ids:
        await storage.update_context(context_id, {"of": context_id}, scope=ALICE)
    await storage.update_context("working", 1, scope=BOB)

    async def left() -> list[str]:
        return [i for i in ids if await storage.load_context(i, scope=ALICE) is not None]

    await storage.sweep(tasks_before=time.time() - 60, operations_before=0.0)
    assert await left() == ids
    await storage.sweep(tasks_before=time.time() + 60, operations_before=0.0)
    assert await left() == ["working", "queued"]
    assert await storage.load_context("working", scope=BOB) is None
    await storage.refuse_operation(operation.id, Outcome(OutcomeKind.REFUSED))
    await storage.sweep(tasks_before=time.time() + 60, operations_before=0.0)
    assert await left() == ["working"]


async def test_sweep_forgets_more_keys_than_one_step_holds(storage: AnyStorage) -> None:
    ids = [f"{number:04}" for number in range(1100)]
    for context_id in ids:
        await asyncio.gather(
            storage.update_context(context_id, 1, scope=ALICE),
            storage.save_push_config(_config(context_id), scope=ALICE),
        )
    await storage.sweep(tasks_before=time.time() + 60, operations_before=0.0)
    for context_id in (ids[0], ids[500], ids[-1]):
        assert await storage.load_context(context_id, scope=ALICE) is None
        assert await storage.load_push_configs(context_id) == []


async def test_sweep_forgets_push_configs_of_tasks_that_never_came(storage: AnyStorage) -> None:
    operation = an_operation()
    await storage.admit(operation, push_config=_config(operation.task_id))
    task_id = await store_task(storage)
    await storage.save_push_config(_config(task_id), scope=ALICE)
    await storage.sweep(tasks_before=0.0, operations_before=0.0)
    assert await storage.load_push_configs(operation.task_id) != []
    await storage.refuse_operation(operation.id, Outcome(OutcomeKind.REFUSED))
    await storage.sweep(tasks_before=0.0, operations_before=0.0)
    assert await storage.load_push_configs(operation.task_id) == []
    assert await storage.load_push_configs(task_id) != []


async def test_a_done_operation_has_no_request_left(storage: AnyStorage) -> None:
    operation = await run_to_the_end(storage)
    loaded = await storage.load_operation(operation.id)
    assert loaded is not None
    assert loaded.request == pb.SendMessageRequest()
    assert operation.request != pb.SendMessageRequest()


# --- Conveniences.


async def test_submit_load_and_update_a_task(storage: AnyStorage) -> None:
    task = await storage.submit_task("context", a_message("hello"), scope=ALICE)
    assert task.status.state == SUBMITTED
    assert await storage.load_task(task.id, scope=ALICE) == task
    assert await storage.load_task(task.id, scope=BOB) is None
    artifact = pb.Artifact(artifact_id="a", parts=[pb.Part(text="result")])
    updated = await storage.update_task(task.id, WORKING, [artifact], [a_message("more")])
    assert updated == await storage.load_task(task.id)
    assert updated.status.state == WORKING
    assert [a.artifact_id for a in updated.artifacts] == ["a"]
    assert [m.parts[0].text for m in updated.history] == ["hello", "more"]
    assert {m.task_id for m in updated.history} == {task.id}
    await storage.update_task(task.id, COMPLETED)
    with pytest.raises(VersionConflictError):
        await storage.update_task(task.id, WORKING)


async def test_update_task_refuses_what_is_not_there_or_taken(storage: AnyStorage) -> None:
    with pytest.raises(TaskNotFoundError):
        await storage.update_task("nobody", WORKING)
    task = await storage.submit_task("context", a_message(), scope=ALICE)
    await begin(storage, an_operation(task_id=task.id))
    with pytest.raises(FenceLostError):
        await storage.update_task(task.id, WORKING)


# --- Opening and closing.


async def test_closing_waits_for_the_writes_that_were_called(open_storage: Open) -> None:
    async with open_storage() as storage:
        writes = [asyncio.create_task(store_task(storage)) for _ in range(50)]
        await asyncio.sleep(0)
    await asyncio.gather(*writes)


async def test_a_storage_leaves_no_tasks_behind(open_storage: Open) -> None:
    before = asyncio.all_tasks()
    async with open_storage() as storage:
        await store_task(storage)
    assert asyncio.all_tasks() == before


async def test_opening_and_closing_can_be_cancelled_anywhere(open_storage: Open) -> None:
    async def use() -> None:
        async with open_storage() as storage:
            await store_task(storage)

    before = asyncio.all_tasks()
    for steps in range(0, 60, 3):
        using = asyncio.create_task(use())
        for _ in range(steps):
            await asyncio.sleep(0)
        using.cancel()
        await asyncio.wait((using,))
        # Whatever was open is closed, and can be opened again.
        async with asyncio.timeout(10), open_storage() as storage:
            await store_task(storage)
        assert asyncio.all_tasks() == before


# --- All of it together.


async def _sorted(found: Awaitable[list[Progress]]) -> list[Progress]:
    return sorted(await found, key=lambda one: one.operation_id)


@pytest.fixture
async def pair(storing: AnyStorage) -> AsyncIterator[tuple[AnyStorage, AnyStorage]]:
    """The reference and a backend that is compared with it."""
    async with InMemoryStorage[Any]() as memory:
        yield memory, storing


@pytest.mark.parametrize("seed", range(4))
async def test_backends_agree_on_any_history(
    pair: tuple[AnyStorage, AnyStorage], seed: int
) -> None:
    choose = random.Random(seed)
    known = [f"task-{number}" for number in range(6)]
    operations: dict[str, str] = {}  # and their tasks
    fences: dict[str, int] = {}

    async def both(call: Callable[[AnyStorage], Any]) -> Any:
        results = await asyncio.gather(*map(call, pair), return_exceptions=True)
        outcomes = [type(r) if isinstance(r, Exception) else r for r in results]
        assert outcomes[0] == outcomes[1]
        return results[1]

    async def random_commit() -> Commit:
        task_id = choose.choice(known)
        head = await pair[1].load_head(task_id)
        version, sequence = (head.version, head.sequence) if head else (0, 0)
        fence = fences.get(task_id, 0)
        if choose.random() < 0.1:
            version += choose.choice((-1, 1))
        state = choose.choice((WORKING, WORKING, INPUT_REQUIRED, COMPLETED))
        at = choose.randrange(1, 50)
        if head is None:
            values: list[Any] = [created(task_id, state=state, at=at)]
        else:
            values = [status(state, "now", at=at)]
            values += [chunk(str(choose.random())) for _ in range(choose.randrange(3))]
            values = [*values[1:], values[0]]
        mine = [operation for operation, of in operations.items() if of == task_id]
        outcome = Outcome(OutcomeKind.TASK, version)
        return Commit(
            task_id=task_id,
            expected_version=version,
            fence=choose.choice((0, fence, fence, max(0, fence - 1))),
            entries=entries(values, version=version, sequence=sequence),
            state=state,
            status_at=at,
            scope=choose.choice((ALICE, ALICE, BOB)) if head is None else head.scope,
            context_id=choose.choice("xy") if head is None else head.context_id,
            finished=[(choose.choice(mine), outcome)] if mine and choose.random() < 0.5 else (),
            ends_turn=choose.random() < 0.5,
        )

    async def step() -> None:
        task_id = choose.choice(known)
        match choose.randrange(10):
            case 0 | 1:
                head = await pair[1].load_head(task_id)
                operation = an_operation(
                    task_id="" if head is None else task_id,
                    scope=ALICE if head is None else head.scope,
                    deduplication_key=choose.choice((b"", b"1", b"2")),
                    created_at=float(choose.randrange(100)),
                )
                since = choose.choice((None, 50.0))
                admitted = await both(lambda s: s.admit(operation, duplicates_since=since))
                operations[admitted.id] = admitted.task_id
                known.append(admitted.task_id)
            case 2 | 3 if operations:
                operation_id = choose.choice(list(operations))
                turn = await both(lambda s: s.start_turn(operations[operation_id]))
                if isinstance(turn, Turn):
                    fences[turn.operation.task_id] = turn.fence
            case 4 | 5 | 6:
                commit = await random_commit()
                await both(lambda s: s.commit(commit))
            case 7:
                config = _config(task_id, choose.choice("ab"))
                await both(lambda s: s.save_push_config(config, scope=ALICE))
            case 8:
                head = await pair[1].load_head(task_id)
                for target in await pair[1].load_push_configs(task_id):
                    target.delivered = min(target.delivered + 1, head.sequence if head else 0)
                    target.next_attempt_at = float(choose.randrange(5))
                    await both(lambda s, t=target: s.update_push_target(replace(t)))
            case 9:
                before = float(choose.randrange(40)) / SECOND
                await both(lambda s: s.sweep(tasks_before=before, operations_before=0.0))

    for number in range(150):
        await step()
        if number % 10 != 9:
            continue
        for task_id in known:
            await both(lambda s, t=task_id: s.load_snapshot(t))
            await both(lambda s, t=task_id: s.load_head(t))
            await both(lambda s, t=task_id: s.load_events(t, 0, 100))
        for scope in (ALICE, BOB):
            for query in (
                TaskQuery(scope, page_size=2),
                TaskQuery(scope, state=COMPLETED),
                TaskQuery(scope, context_id="x"),
            ):
                await both(lambda s, q=query: s.list_tasks(q))
        for operation_id in operations:
            await both(lambda s, o=operation_id: s.load_operation(o))
        await both(lambda s: _sorted(s.load_progress(list(operations))))
        await both(lambda s: s.next_push_attempt())
