"""What several processes that share a PostgreSQL database promise one another.

Two storages on one database stand for two replicas. Leases end when a test says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from a2a_grpc import pb
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.sql.storage import SqlStorage
from a2a_grpc.storage.values import (
    Commit,
    FenceLostError,
    LogTruncatedError,
    Operation,
    OperationState,
    Outcome,
    OutcomeKind,
    Stranded,
    TaskQuery,
    Turn,
    VersionConflictError,
)
from tests.servers.postgres import shared_postgres
from tests.storage.conftest import LEASE
from tests.storage.values import (
    ALICE,
    CANCELED,
    COMPLETED,
    SECOND,
    WORKING,
    a_commit,
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

Replicas = tuple[SqlStorage, SqlStorage]


@pytest.fixture
async def replicas(postgres: str) -> AsyncIterator[Replicas]:
    async with SqlStorage(postgres, lease=LEASE) as one, SqlStorage(postgres, lease=LEASE) as two:
        yield one, two


def execute(url: str, statement: str) -> str:
    """Run a statement, past the storages."""
    return shared_postgres().execute(statement, database=url.rpartition("/")[2])


async def expire(url: str, *living: SqlStorage) -> None:
    """Let all leases end but those of the `living`."""
    execute(url, "UPDATE replicas SET lease_until = 0")
    for storage in living:
        await storage.renew_lease()


# --- Turns.


async def test_one_of_two_replicas_starts_a_turn(replicas: Replicas) -> None:
    operations = [an_operation() for _ in range(50)]
    for operation in operations:
        await replicas[0].admit(operation)
    started = await asyncio.gather(
        *(storage.start_turn(o.task_id) for o in operations for storage in replicas)
    )
    turns = [turn for turn in started if isinstance(turn, Turn)]
    assert sorted(turn.operation.id for turn in turns) == sorted(o.id for o in operations)
    assert {turn.operation.attempts for turn in turns} == {1}
    assert [one for one in started if one is None] == [None] * 50


async def test_one_of_two_replicas_goes_on_with_a_task(replicas: Replicas) -> None:
    tasks = [await store_task(replicas[0]) for _ in range(50)]
    await asyncio.gather(*(replicas[1].admit(an_operation(task_id=t)) for t in tasks))
    started = await asyncio.gather(
        *(storage.start_turn(task_id) for task_id in tasks for storage in replicas)
    )
    assert Counter(type(one) for one in started) == {Turn: 50, type(None): 50}
    for task_id in tasks:
        task = await replicas[0].load_task(task_id)
        assert task is not None
        assert len(task.history) == 1


async def test_a_task_that_another_holds_is_left_to_it(replicas: Replicas) -> None:
    one, two = replicas
    operation = an_operation()
    turn = await begin(one, operation)
    later = an_operation(task_id=operation.task_id)
    await two.admit(later)
    assert await two.start_turn(operation.task_id) is None
    event = created(operation.task_id)
    end = a_commit(
        operation.task_id, event, fence=turn.fence, finished=done(operation, 1), ends_turn=True
    )
    assert await one.commit(end) is True
    assert (await start(two, operation.task_id)).operation.id == later.id


async def test_operations_run_in_the_order_of_their_acknowledgement(replicas: Replicas) -> None:
    task_id = await store_task(replicas[0])
    admitted = []
    for number in range(20):
        operation = an_operation(task_id=task_id)
        await replicas[number % 2].admit(operation)
        admitted.append(operation.id)
    ran = []
    more = True
    while more:
        storage = replicas[len(ran) % 2]
        turn = await start(storage, task_id)
        assert turn.snapshot is not None
        version = turn.snapshot.version
        ran.append(turn.operation.id)
        finished = done(turn.operation, version)
        more = await storage.commit(
            Commit(task_id, version, fence=turn.fence, finished=finished, ends_turn=True)
        )
    assert ran == admitted


async def test_no_operation_is_forgotten_between_two_replicas(replicas: Replicas) -> None:
    """Whoever is told that nothing is left, or that another holds the task, may forget it."""
    one, two = replicas
    for _ in range(30):
        first = an_operation()
        turn = await begin(one, first)
        second = an_operation(task_id=first.task_id)

        async def hand_over(second: Operation = second) -> Turn | Operation | None:
            await two.admit(second)
            return await two.start_turn(second.task_id)

        event = created(first.task_id)
        end = a_commit(
            first.task_id, event, fence=turn.fence, finished=done(first, 1), ends_turn=True
        )
        more, started = await asyncio.gather(one.commit(end), hand_over())
        assert more or isinstance(started, Turn)


async def test_a_lost_lease_loses_the_task(replicas: Replicas, postgres: str) -> None:
    one, two = replicas
    operation = an_operation()
    old = await begin(one, operation)
    await one.commit(a_commit(operation.task_id, created(operation.task_id), fence=old.fence))
    assert await two.stranded_operations(10) == []
    await expire(postgres, two)
    assert await two.stranded_operations(10) == [Stranded(operation.task_id, operation.id, 1)]
    new = await start(two, operation.task_id)
    assert (new.fence, new.operation.attempts) == (old.fence + 1, 2)
    late = a_commit(operation.task_id, status(COMPLETED), version=1, state=COMPLETED)
    for fence in (old.fence, 0):
        with pytest.raises(FenceLostError):
            await one.commit(replace(late, fence=fence))
    await one.renew_lease()
    assert await one.start_turn(operation.task_id) is None
    await two.commit(replace(late, fence=new.fence))


async def test_a_replica_that_closes_leaves_its_tasks_at_once(postgres: str) -> None:
    operation = an_operation()
    async with SqlStorage(postgres, lease=LEASE) as two:
        async with SqlStorage(postgres, lease=LEASE) as one:
            await begin(one, operation)
            assert await two.start_turn(operation.task_id) is None
        assert await two.stranded_operations(10) == [Stranded(operation.task_id, operation.id, 1)]
        assert (await start(two, operation.task_id)).operation.attempts == 2


async def test_a_head_tells_who_runs_a_task_to_everybody(replicas: Replicas, postgres: str) -> None:
    one, two = replicas
    task_id = await store_task(one)
    await begin(one, an_operation(task_id=task_id))
    (head,) = await two.load_heads([task_id])
    assert head.running
    await expire(postgres, two)
    (head,) = await two.load_heads([task_id])
    assert not head.running


async def test_an_operation_that_runs_elsewhere_waits_for_its_process(
    replicas: Replicas, postgres: str
) -> None:
    one, two = replicas
    operation = an_operation(runs_here=True)
    await one.admit(operation)
    assert await two.start_turn(operation.task_id) is None
    execute(postgres, "UPDATE operations SET submitted_at = 0")
    assert await two.stranded_operations(10) == []
    assert len(await one.stranded_operations(10)) == 1
    await expire(postgres, two)
    assert len(await two.stranded_operations(10)) == 1
    assert (await start(two, operation.task_id)).operation.runs_here


async def test_two_replicas_submit_different_operations_again(
    replicas: Replicas, postgres: str
) -> None:
    operations = [an_operation() for _ in range(40)]
    for operation in operations:
        await replicas[0].admit(operation)
    execute(postgres, "UPDATE operations SET submitted_at = 0")
    found = await asyncio.gather(*(storage.stranded_operations(100) for storage in replicas))
    ids = [one.operation_id for portion in found for one in portion]
    assert sorted(ids) == sorted(operation.id for operation in operations)


async def test_a_request_to_cancel_reaches_whoever_holds_the_task(replicas: Replicas) -> None:
    one, two = replicas
    operation = an_operation()
    await begin(one, operation)
    await two.request_cancel(operation.task_id)
    assert await two.renew_lease() == []
    assert await one.renew_lease() == [operation.task_id]


async def test_one_terminal_state_wins_between_replicas(replicas: Replicas) -> None:
    one, two = replicas
    for _ in range(20):
        task_id = await store_task(one)
        results = await asyncio.gather(
            one.commit(a_commit(task_id, status(COMPLETED), version=1, state=COMPLETED)),
            two.commit(a_commit(task_id, status(CANCELED), version=1, state=CANCELED)),
            return_exceptions=True,
        )
        assert Counter(type(one) for one in results) == {bool: 1, VersionConflictError: 1}


async def test_an_operation_is_refused_or_started_but_not_both(replicas: Replicas) -> None:
    one, two = replicas
    operations = [an_operation() for _ in range(40)]
    for operation in operations:
        await one.admit(operation)
    outcome = Outcome(OutcomeKind.REFUSED, payload=b"full")
    results = await asyncio.gather(
        *(two.refuse_operation(operation.id, outcome) for operation in operations),
        *(one.start_turn(operation.task_id) for operation in operations),
    )
    refused, started = results[:40], results[40:]
    for operation, was_refused, turn in zip(operations, refused, started, strict=True):
        assert was_refused == (turn is None)
        (progress,) = await one.load_progress([operation.id])
        state = OperationState.DONE if was_refused else OperationState.STARTED
        assert progress.state is state


# --- Admission.


async def test_one_key_is_admitted_once_by_all_replicas(replicas: Replicas) -> None:
    for number in range(20):
        key = f"key-{number}".encode()
        operations = [an_operation(deduplication_key=key, created_at=100) for _ in range(8)]
        admitted = await asyncio.gather(
            *(
                replicas[place % 2].admit(operation, duplicates_since=50)
                for place, operation in enumerate(operations)
            )
        )
        assert len({operation.id for operation in admitted}) == 1
        assert len(await replicas[0].load_progress([o.id for o in operations])) == 1


async def test_many_keys_at_once_never_stand_in_each_others_way(replicas: Replicas) -> None:
    keys = [f"key-{number}".encode() for number in range(100)]
    mine = [an_operation(deduplication_key=key) for key in keys]
    theirs = [an_operation(deduplication_key=key) for key in reversed(keys)]
    admitted = await asyncio.gather(
        *(replicas[0].admit(operation, duplicates_since=0) for operation in mine),
        *(replicas[1].admit(operation, duplicates_since=0) for operation in theirs),
    )
    assert len({operation.id for operation in admitted}) == 100


async def test_an_operation_may_be_admitted_again_by_another_replica(replicas: Replicas) -> None:
    operation = an_operation()
    admitted = await asyncio.gather(*(storage.admit(operation) for storage in replicas * 5))
    assert {one.id for one in admitted} == {operation.id}
    assert await replicas[0].load_operation(operation.id) == operation


# --- Reading what another wrote.


async def test_reads_show_what_another_replica_wrote(replicas: Replicas) -> None:
    one, two = replicas
    task_id = await store_task(one)
    assert await two.load_task(task_id) == await one.load_task(task_id)
    await two.commit(a_commit(task_id, chunk("a"), version=1))
    for storage in replicas:
        snapshot = await storage.load_snapshot(task_id)
        assert snapshot is not None
        assert (snapshot.version, len(snapshot.task.artifacts)) == (2, 1)
    await one.commit(a_commit(task_id, chunk("b"), version=2))
    for version in (1, 2, 3):
        snapshots = [await storage.load_snapshot(task_id, version=version) for storage in replicas]
        assert snapshots[0] == snapshots[1]
        assert snapshots[0] is not None
        assert sum(len(a.parts) for a in snapshots[0].task.artifacts) == version - 1


async def test_counts_of_all_replicas_are_one(replicas: Replicas) -> None:
    await asyncio.gather(*(run_to_the_end(storage) for storage in replicas * 20))
    tasks = [await store_task(storage) for storage in replicas * 5]
    for task_id, storage in zip(tasks, reversed(replicas * 5), strict=True):
        end = a_commit(task_id, status(COMPLETED), version=1, state=COMPLETED, at=SECOND)
        await storage.commit(end)
    for storage in replicas:
        assert (await storage.list_tasks(TaskQuery(ALICE))).total == 50
        assert (await storage.list_tasks(TaskQuery(ALICE, state=COMPLETED))).total == 50
        assert (await storage.list_tasks(TaskQuery(ALICE, state=WORKING))).total == 0
    assert await replicas[1].sweep(tasks_before=20.0, operations_before=0.0) == 50
    assert (await replicas[0].list_tasks(TaskQuery(ALICE))).total == 0


async def test_two_replicas_write_one_task_without_a_gap(replicas: Replicas) -> None:
    task_id = await store_task(replicas[0])

    async def write(storage: AnyStorage) -> int:
        written = 0
        while written < 25:
            head = await storage.load_head(task_id)
            assert head is not None
            try:
                await storage.commit(a_commit(task_id, chunk("x"), version=head.version))
            except VersionConflictError:
                continue
            written += 1
        return written

    await asyncio.gather(*(write(storage) for storage in replicas))
    head = await replicas[0].load_head(task_id)
    assert head is not None
    assert (head.version, head.sequence) == (51, 51)
    assert len(await replicas[1].load_events(task_id, 0, 100)) == 51


async def test_a_delivery_and_a_commit_at_once_lose_no_event(replicas: Replicas) -> None:
    one, two = replicas
    for _ in range(30):
        task_id = await store_task(one)
        config = pb.TaskPushNotificationConfig(id="a", task_id=task_id)
        await one.save_push_config(config, scope=ALICE)
        await one.commit(a_commit(task_id, chunk("a"), version=1))
        (target,) = await two.load_push_configs(task_id)
        await asyncio.gather(
            one.commit(a_commit(task_id, chunk("b"), version=2)),
            two.update_push_target(replace(target, delivered=2)),
        )
        due = {target.config.task_id for target in await one.due_push_targets(1.0, 1000)}
        assert task_id in due


# --- Housekeeping.


async def test_replicas_that_sweep_at_once_forget_everything_once(replicas: Replicas) -> None:
    for _ in range(250):
        await store_task(replicas[0], COMPLETED, at=SECOND)
    swept = await asyncio.gather(
        *(storage.sweep(tasks_before=20.0, operations_before=0.0) for storage in replicas * 2)
    )
    assert sum(swept) == 250
    for storage in replicas:
        assert (await storage.list_tasks(TaskQuery(ALICE))).total == 0
        assert await storage.sweep(tasks_before=20.0, operations_before=0.0) == 0


async def test_sweeping_while_another_replica_writes(replicas: Replicas) -> None:
    one, two = replicas
    for _ in range(150):
        await store_task(one, COMPLETED, at=SECOND)

    async def sweep() -> int:
        return await two.sweep(tasks_before=20.0, operations_before=20.0, logs_before=40.0)

    sweeping = asyncio.create_task(sweep())
    await asyncio.gather(*(run_to_the_end(one) for _ in range(100)))
    forgotten = await sweeping + await sweep()
    # Those of run_to_the_end ended at 2 ns after the epoch.
    assert forgotten == 250
    assert (await one.list_tasks(TaskQuery(ALICE))).total == 0


async def test_a_compacted_task_says_so_to_every_replica(replicas: Replicas) -> None:
    one, two = replicas
    task_id = await store_task(one, at=SECOND)
    end = a_commit(task_id, status(COMPLETED), version=1, state=COMPLETED, at=SECOND)
    await one.commit(end)
    await two.sweep(tasks_before=0.0, operations_before=0.0, logs_before=20.0)
    for storage in replicas:
        with pytest.raises(LogTruncatedError):
            await storage.load_events(task_id, 0, 10)
        with pytest.raises(LogTruncatedError):
            await storage.load_snapshot(task_id, version=1)
        task = await storage.load_task(task_id)
        assert task is not None
        assert task.status.state == COMPLETED


async def test_replicas_that_are_gone_are_forgotten(replicas: Replicas, postgres: str) -> None:
    assert execute(postgres, "SELECT count(*) FROM replicas") == "2"
    await expire(postgres, replicas[0])
    await replicas[0].sweep(tasks_before=0.0, operations_before=0.0)
    assert execute(postgres, "SELECT count(*) FROM replicas") == "1"


async def test_a_turn_left_behind_on_an_ended_task_keeps_nothing(
    replicas: Replicas, postgres: str
) -> None:
    one, two = replicas
    operation = an_operation()
    turn = await begin(one, operation)
    event = created(operation.task_id, state=COMPLETED)
    commit = a_commit(operation.task_id, event, state=COMPLETED, fence=turn.fence)
    await one.commit(replace(commit, finished=done(operation, 1)))
    assert await two.sweep(tasks_before=20.0, operations_before=0.0) == 0
    await expire(postgres, two)
    assert await two.sweep(tasks_before=20.0, operations_before=0.0) == 1
