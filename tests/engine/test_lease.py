"""A process works on tasks only as long as it holds its lease (promise 3), and takes them up again.

The storage here is in memory and has a lease like one that replicas share; real replicas are in
`tests/chaos`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from a2a_grpc.active.lease_keeper import Lease, LeaseKeeper
from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.bus.base import Committed
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.errors import UnavailableError
from a2a_grpc.health import BROKER, STORAGE, Readiness
from a2a_grpc.recovery import Resubmitter
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import Operation, Turn
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    Gated,
    a_task,
    chunk,
    collect,
    outline,
    request,
    serving,
    status_update,
    take,
    within,
)

LEASE = 0.6
"""Seconds; enough for three renewals on a busy machine."""


class Leased(InMemoryStorage[Any]):
    """Has a lease; `away` makes it unreachable, `renewed` counts renewals, `anew` the new ones."""

    lease = LEASE

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.renewed: asyncio.Queue[bool] = asyncio.Queue()
        self.to_cancel: list[str] = []

    async def renew_lease(self, *, anew: bool = False) -> list[str]:
        self._reach()
        self.renewed.put_nowait(anew)
        return self.to_cancel

    async def start_turn(self, task_id: str) -> Turn | Operation | None:
        self._reach()
        return await super().start_turn(task_id)

    async def check(self) -> None:
        self._reach()

    def _reach(self) -> None:
        if self.away:
            raise UnavailableError("the storage is away", retry_after=1.0)

    async def renews(self, *, anew: bool = False) -> None:
        """Wait for the next renewal of this kind."""
        async with asyncio.timeout(10):
            while await self.renewed.get() is not anew:
                pass


class Losing(InMemoryBroker):
    """A broker between processes, as far as the server can tell."""


def shared(storage: Leased) -> dict[str, Any]:
    return {"storage": storage, "broker": Losing()}


async def test_lease_is_renewed_while_agents_work() -> None:
    storage, agent = Leased(), Gated()
    async with serving(agent, **shared(storage)) as s:
        stream = s.stream()
        await take(stream, 1)
        began = time.monotonic()
        while time.monotonic() - began < 1.5 * LEASE:
            await storage.renews()
        agent.go.set()
        assert outline(await collect(stream))[-1:] == ["status COMPLETED"]


async def test_agent_is_cut_off_when_the_lease_runs_out_and_fails_when_it_is_back() -> None:
    storage, agent = Leased(), Gated()
    async with serving(agent, **shared(storage)) as s:
        stream = s.stream()
        task = (await take(stream, 1))[0].task
        await storage.renews()
        storage.away = True
        await within(agent.cancelled.wait())
        # Nothing is written before the lease is back: another process may have the task.
        assert (await s.get(task.id)).status.state == WORKING
        storage.away = False
        await storage.renews(anew=True)
        assert outline(await collect(stream))[-1:] == ["status FAILED"]
        failed = await s.get(task.id)
        assert failed.status.state == FAILED
        assert "lost the task" in failed.status.message.parts[0].text


async def test_agent_that_restarts_runs_again_when_the_lease_is_back() -> None:
    attempts: list[int] = []
    begun, cut_off = asyncio.Event(), asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            await queue.enqueue_event(a_task())
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cut_off.set()
        await queue.enqueue_event(status_update(COMPLETED))

    storage = Leased()
    async with serving(Agent(execute, on_interruption="restart"), **shared(storage)) as s:
        answer = asyncio.ensure_future(s.call("SendMessage", request()))
        await within(begun.wait())
        await storage.renews()
        storage.away = True
        await within(cut_off.wait())
        storage.away = False
        assert (await within(answer)).task.status.state == COMPLETED
    assert attempts == [1, 2]


async def test_frozen_process_does_not_let_its_agents_take_another_step() -> None:
    storage = Leased()
    steps: list[float] = []
    begun = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        while True:
            steps.append(time.monotonic())
            begun.set()
            await asyncio.sleep(0.01)

    async with serving(Agent(execute), **shared(storage)) as s:
        await s.send(immediately=True)
        await within(begun.wait())
        await storage.renews()
        frozen = time.monotonic()
        time.sleep(LEASE + 0.1)  # noqa: ASYNC251  as SIGSTOP does
        await storage.renews(anew=True)
        assert steps
        assert steps[-1] <= frozen


async def test_task_that_storage_wants_canceled_is_canceled_with_a_renewal() -> None:
    storage, agent = Leased(), Gated()
    async with serving(agent, **shared(storage)) as s:
        task = await s.send(immediately=True)
        storage.to_cancel = [task.id]
        await within(agent.cancelled.wait())
        storage.to_cancel = []
        async with asyncio.timeout(10):
            while (await s.get(task.id)).status.state != CANCELED:
                pass


async def test_storage_without_a_lease_is_left_alone() -> None:
    storage = Leased()
    storage.lease = None  # type: ignore[assignment]
    async with LeaseKeeper(storage, Lease(), on_lapse=lambda: None, on_cancel=lambda _: None):
        assert storage.renewed.empty()


# What the broker does not bring.


class Forgetful(InMemoryBroker):
    """Takes every operation, and delivers only the first."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    async def run_task(self, params: Any) -> None:
        self.taken += 1
        if self.taken == 1:
            await super().run_task(params)


async def test_waiting_messages_are_worked_on_though_none_of_them_was_delivered() -> None:
    seen: list[str] = []
    go = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        seen.append(context.get_user_input())
        if context.current_task is None:
            await queue.enqueue_event(a_task())
            await go.wait()
        if len(seen) == 5:
            await queue.enqueue_event(status_update(COMPLETED))
        else:
            await queue.enqueue_event(chunk("x", f"a{len(seen)}"))
            await queue.enqueue_event(status_update(INPUT_REQUIRED))

    async with serving(Agent(execute), broker=Forgetful()) as s:
        task = await s.send("0", immediately=True)
        for number in range(1, 5):
            await s.send(str(number), task_id=task.id, immediately=True)
        go.set()
        async with asyncio.timeout(10):
            while (await s.get(task.id)).status.state != COMPLETED:
                pass
    assert seen == ["0", "1", "2", "3", "4"]


async def test_message_that_the_broker_lost_is_submitted_again(monkeypatch: Any) -> None:
    class Lossy(Forgetful):
        async def run_task(self, params: Any) -> None:
            self.taken += 1
            if self.taken > 1:
                await InMemoryBroker.run_task(self, params)

    monkeypatch.setattr(Resubmitter, "OWN_INTERVAL", 0.05)
    monkeypatch.setattr("a2a_grpc.storage.memory.RESUBMIT_AFTER", 0.1)
    agent = Gated()
    agent.go.set()
    broker = Lossy()
    async with serving(agent, broker=broker) as s:
        assert (await s.send()).status.state == COMPLETED
    assert broker.taken == 2


# Readiness.


async def test_health_tells_of_each_dependency(monkeypatch: Any) -> None:
    monkeypatch.setattr(Readiness, "INTERVAL", 0.02)
    serving_now = health_pb2.HealthCheckResponse.SERVING
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    storage = Leased()
    async with serving(Gated(), **shared(storage)) as s:
        stub = health_pb2_grpc.HealthStub(s.channel)

        async def status(service: str) -> Any:
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

        for service in ("", "lf.a2a.v1.A2AService", STORAGE, BROKER):
            assert await status(service) == serving_now
        whole = aiter(stub.Watch(health_pb2.HealthCheckRequest(service="")))
        assert (await within(anext(whole))).status == serving_now
        storage.away = True
        assert (await within(anext(whole))).status == not_serving
        assert await status(STORAGE) == not_serving
        assert await status("lf.a2a.v1.A2AService") == not_serving
        assert await status(BROKER) == serving_now
        storage.away = False
        assert (await within(anext(whole))).status == serving_now
        assert await status(STORAGE) == serving_now


# Between the two.


async def test_agent_is_not_started_when_the_lease_is_lost_as_its_turn_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publishing, go, lapsed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    lapse = Lease.lapse

    def noted(lease: Lease) -> None:
        lapse(lease)
        asyncio.get_running_loop().call_soon(lapsed.set)  # when the turns know

    monkeypatch.setattr(Lease, "lapse", noted)
    started: list[int] = []

    class SlowBus(InMemoryBus):
        async def publish(self, committed: Committed) -> None:
            if committed.starts and not publishing.is_set():
                publishing.set()
                await go.wait()
            await super().publish(committed)

    async def execute(context: Any, queue: Any) -> None:
        started.append(context.attempt)
        await queue.enqueue_event(
            a_task() if context.current_task is None else status_update(INPUT_REQUIRED)
        )
        if context.current_task is None:
            await queue.enqueue_event(status_update(INPUT_REQUIRED))

    storage = Leased()
    agent = Agent(execute, on_interruption="restart")
    async with serving(agent, bus=SlowBus(), **shared(storage)) as s:
        task = await s.send()
        answer = asyncio.ensure_future(s.call("SendMessage", request(task_id=task.id)))
        await within(publishing.wait())
        await storage.renews()
        storage.away = True
        await within(lapsed.wait())
        go.set()
        storage.away = False
        await within(answer)
    assert started == [1, 2]


async def test_clean_up_of_an_agent_that_lost_its_lease_is_not_interrupted() -> None:
    storage = Leased()
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    async with serving(Agent(execute), **shared(storage)) as s:
        await s.send(immediately=True)
        await within(begun.wait())
        storage.away = True
        await within(cleaned.wait())
        storage.away = False


async def test_agent_that_reads_goes_on_when_the_storage_was_away_for_a_moment() -> None:
    """Without asking for it: whole Tasks are compared with what is stored."""

    class Away(Leased):
        failures = 3

        async def load_snapshot(self, *how: Any, **more: Any) -> Any:
            if self.failures and begun.is_set():
                self.failures -= 1
                raise UnavailableError("the storage is away", retry_after=1.0)
            return await super().load_snapshot(*how, **more)

    begun = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        begun.set()
        await queue.enqueue_event(a_task(COMPLETED))

    storage = Away()
    async with serving(Agent(execute), **shared(storage)) as s:
        events = await collect(s.stream())
        assert outline(events)[-1] == "task COMPLETED"
    assert storage.failures == 0
