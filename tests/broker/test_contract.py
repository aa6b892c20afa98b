"""The contract of `Broker`, which every backend passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from a2a_grpc.broker.base import Broker, TaskIdParams, TaskOperation, TaskSendParams
from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.broker.nats import NatsBroker
from a2a_grpc.errors import ResourceExhaustedError, UnavailableError
from tests.support import within


@pytest.fixture(params=["memory", "nats"])
def make(request: pytest.FixtureRequest) -> Callable[..., Broker]:
    """Makes brokers; those of one test reach each other, if the backend can."""
    if request.param == "nats":
        return partial(NatsBroker, request.getfixturevalue("nats_url"))
    return lambda concurrency=10_000: InMemoryBroker(max_unacknowledged=concurrency)


@pytest.fixture
async def broker(make: Callable[..., Broker]) -> AsyncIterator[Broker]:
    async with make() as opened:
        yield opened


def run(number: int, task_id: str = "t") -> TaskSendParams:
    return TaskSendParams(task_id, f"o{number}")


def operation_id(delivery: TaskOperation) -> str:
    assert isinstance(delivery.params, TaskSendParams)
    return delivery.params.operation_id


async def take(source: AsyncIterator[TaskOperation], count: int) -> list[TaskOperation]:
    return [await within(anext(source), 5) for _ in range(count)]


async def nothing_comes(source: Any) -> None:
    """Nothing more is delivered; the source can't be used afterwards."""
    with pytest.raises(TimeoutError):
        await within(anext(source), 0.05)


async def test_operations_are_delivered_in_the_order_of_their_submission(broker: Broker) -> None:
    for number in range(20):
        await broker.run_task(run(number))
    deliveries = await take(broker.receive_task_operations(), 20)
    assert [operation_id(one) for one in deliveries] == [f"o{number}" for number in range(20)]
    assert all(one.operation == "run" and one.params.id == "t" for one in deliveries)
    for one in deliveries:
        await one.ack()


async def test_receiver_that_waits_is_woken(broker: Broker) -> None:
    waiting = asyncio.create_task(take(broker.receive_task_operations(), 1))
    await asyncio.sleep(0)
    await broker.run_task(run(1))
    (delivery,) = await waiting
    await delivery.ack()


async def test_acknowledged_operation_never_comes_again(broker: Broker) -> None:
    source = broker.receive_task_operations()
    await broker.run_task(run(1))
    (delivery,) = await take(source, 1)
    await delivery.ack()
    await nothing_comes(source)


async def test_operation_that_is_handed_back_comes_again(broker: Broker) -> None:
    source = broker.receive_task_operations()
    await broker.run_task(run(1))
    for _ in range(3):
        (delivery,) = await take(source, 1)
        assert operation_id(delivery) == "o1"
        await delivery.nak()
    (delivery,) = await take(source, 1)
    await delivery.ack()
    await nothing_comes(source)


async def test_operation_that_is_submitted_again_comes_once(broker: Broker) -> None:
    source = broker.receive_task_operations()
    for _ in range(3):
        await broker.run_task(run(1))
    (delivery,) = await take(source, 1)
    for _ in range(3):
        await broker.run_task(run(1))
    await broker.run_task(run(2))
    (other,) = await take(source, 1)
    assert operation_id(other) == "o2"
    await delivery.ack()
    await other.ack()
    await nothing_comes(source)


async def test_operation_that_is_over_may_be_submitted_anew(broker: Broker) -> None:
    source = broker.receive_task_operations()
    for _ in range(3):
        await broker.run_task(run(1))
        (delivery,) = await take(source, 1)
        assert operation_id(delivery) == "o1"
        await delivery.ack()
        await settled(broker)
    await nothing_comes(source)


async def settled(broker: Broker) -> None:
    """What was acknowledged has arrived: later submissions of this process come after it."""
    other = run(999_999)
    await broker.run_task(other)
    async for delivery in broker.receive_task_operations():
        await delivery.ack()
        if operation_id(delivery) == other.operation_id:
            return


async def test_ids_may_be_any_text(broker: Broker) -> None:
    source = broker.receive_task_operations()
    odd = [TaskSendParams("a b.*\r\n>ü", f"o.{n} *\n" + "x" * 300) for n in range(3)]
    for params in odd:
        await broker.run_task(params)
    deliveries = await take(source, 3)
    assert [delivery.params for delivery in deliveries] == odd
    for delivery in deliveries:
        await delivery.ack()
    await broker.cancel_task(TaskIdParams(odd[0].id))
    (cancellation,) = await take(source, 1)
    assert cancellation.params == TaskIdParams(odd[0].id)


async def test_operation_for_here_is_delivered_here_and_handed_back_here(broker: Broker) -> None:
    source = broker.receive_task_operations()
    params = TaskSendParams("t", "o1", here=True)
    for _ in range(2):
        await broker.run_task(params)
    for _ in range(3):
        (delivery,) = await take(source, 1)
        assert operation_id(delivery) == "o1"
        await delivery.nak()
    (delivery,) = await take(source, 1)
    await delivery.ack()
    await broker.run_task(run(2))
    (delivery,) = await take(source, 1)
    assert operation_id(delivery) == "o2"
    await delivery.ack()
    await nothing_comes(source)


async def test_burying_never_fails(broker: Broker) -> None:
    for _ in range(2):
        await broker.bury(run(1), "it was tried 3 times\n" + "x" * 100_000)


async def test_open_broker_passes_its_check_and_a_closed_one_does_not(
    make: Callable[..., Broker],
) -> None:
    async with make() as broker:
        await broker.check()
    with pytest.raises(UnavailableError):
        await broker.check()


async def test_unacknowledged_operations_have_a_bound(make: Callable[..., Broker]) -> None:
    async with make(concurrency=2) as broker:
        source = broker.receive_task_operations()
        for number in range(4):
            await broker.run_task(run(number))
        one, two = await take(source, 2)
        third = asyncio.create_task(take(source, 1))
        await asyncio.sleep(0.05)
        assert not third.done()
        # A cancellation still comes through.
        await broker.cancel_task(TaskIdParams("t"))
        (cancellation,) = await within(third)
        assert cancellation.operation == "cancel"
        await one.ack()
        (three,) = await take(source, 1)
        assert operation_id(three) == "o2"
        await two.nak()  # which makes room, too
        (four,) = await take(source, 1)
        assert operation_id(four) in ("o1", "o3")
        await three.ack()
        await four.ack()


async def test_several_receivers_share_the_operations(broker: Broker) -> None:
    got: list[str] = []
    enough = asyncio.Event()

    async def receive() -> None:
        async for delivery in broker.receive_task_operations():
            got.append(operation_id(delivery))
            await delivery.ack()
            await asyncio.sleep(0)
            if len(got) == 100:
                enough.set()

    receivers = [asyncio.create_task(receive()) for _ in range(4)]
    for number in range(100):
        await broker.run_task(run(number, f"t{number}"))
    await within(enough.wait())
    for receiver in receivers:
        receiver.cancel()
    await asyncio.gather(*receivers, return_exceptions=True)
    assert sorted(got) == sorted(f"o{number}" for number in range(100))


async def test_receiver_that_is_cancelled_loses_nothing(broker: Broker) -> None:
    for number in range(50):
        waiting = asyncio.create_task(take(broker.receive_task_operations(), 1))
        await asyncio.sleep(0)
        if number % 2:
            await broker.run_task(run(number))
        waiting.cancel()
        found = (await asyncio.gather(waiting, return_exceptions=True))[0]
        if isinstance(found, list):
            await found[0].nak()
    async with asyncio.timeout(5):
        source = broker.receive_task_operations()
        got = set()
        while len(got) < 25:
            delivery = await anext(source)
            got.add(operation_id(delivery))
            await delivery.ack()


async def test_cancellation_is_delivered_at_once(make: Callable[..., Broker]) -> None:
    async with make() as broker:
        for number in range(10):
            await broker.run_task(run(number))
        await broker.cancel_task(TaskIdParams("t"))
        (delivery,) = await take(broker.receive_task_operations(), 1)
        assert delivery.operation == "cancel"
        assert delivery.params == TaskIdParams("t")
        await delivery.ack()


async def test_draining_broker_still_delivers_cancellations_and_what_is_for_here(
    broker: Broker,
) -> None:
    await broker.run_task(run(1))
    source = broker.receive_task_operations()
    (held,) = await take(source, 1)
    waiting = asyncio.create_task(take(source, 1))
    await asyncio.sleep(0)
    for _ in range(2):
        await within(broker.drain(), 1)
    assert not waiting.done()
    await broker.cancel_task(TaskIdParams("t"))
    (cancellation,) = await waiting
    assert cancellation.params == TaskIdParams("t")
    await cancellation.ack()
    await broker.run_task(TaskSendParams("t", "o2", here=True))
    (here,) = await take(source, 1)
    assert operation_id(here) == "o2"
    await here.ack()
    await held.ack()
    await nothing_comes(source)


async def test_submitting_never_waits_for_a_worker(broker: Broker) -> None:
    for number in range(1000):
        await within(broker.run_task(run(number)), 1)


async def test_closed_broker_takes_nothing_and_ends_its_receivers(
    make: Callable[..., Broker],
) -> None:
    broker = make()
    async with broker:
        source = broker.receive_task_operations()
        waiting = asyncio.create_task(anext(source, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert await within(waiting) is None
    with pytest.raises(UnavailableError):
        await broker.run_task(run(1))
    with pytest.raises(UnavailableError):
        await broker.cancel_task(TaskIdParams("t"))


async def test_settling_after_the_broker_was_closed_is_fine(make: Callable[..., Broker]) -> None:
    async with make() as broker:
        await broker.run_task(run(1))
        await broker.run_task(run(2))
        source: Any = broker.receive_task_operations()
        async with aclosing(source):
            one, two = await take(source, 2)
    await one.ack()
    await two.nak()


async def test_full_broker_refuses_and_says_when_to_come_back() -> None:
    async with InMemoryBroker(max_queued=2) as broker:
        await broker.run_task(run(1))
        await broker.run_task(run(2))
        with pytest.raises(ResourceExhaustedError) as error:
            await broker.run_task(run(3))
        assert error.value.retry_after
        await broker.cancel_task(TaskIdParams("t"))


async def test_operation_that_is_handed_back_comes_before_later_ones_in_memory() -> None:
    """Nobody relies on it: the record knows the order of a task's operations."""
    async with InMemoryBroker() as broker:
        source = broker.receive_task_operations()
        await broker.run_task(run(1))
        (delivery,) = await take(source, 1)
        await broker.run_task(run(2))
        await delivery.nak()
        assert [operation_id(one) for one in await take(source, 2)] == ["o1", "o2"]
