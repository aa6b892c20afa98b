"""What only the bus over NATS promises: it may lose, it never waits, and it comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.bus.base import BusOpenError, Committed
from a2a_grpc.bus.catch_up import CatchUp
from a2a_grpc.bus.nats import NatsBus
from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.connection import NatsConnection
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import Commit, Operation, Outcome, OutcomeKind, Turn
from tests.bus.test_contract import arrived, commit
from tests.servers.nats import NatsServer
from tests.servers.nats import nats_server as running
from tests.support import COMPLETED, WORKING, message, within


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again; only for what gives no signal."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def own_server() -> Iterator[NatsServer]:
    with running() as server:
        yield server


async def test_commits_from_one_process_arrive_in_order_in_all_others(nats_url: str) -> None:
    async with NatsBus(nats_url) as writer, NatsBus(nats_url) as one, NatsBus(nats_url) as two:
        with ExitStack() as stack:
            channels = [stack.enter_context(bus.channel("t")) for bus in (writer, one, two)]
            for bus, channel in zip((writer, one, two), channels, strict=True):
                stack.enter_context(channel.reader())
                await bus.attached("t")
            for number in range(1, 1001):
                await writer.publish(commit(number))
            for channel in channels:
                await arrived(channel, 1000)
                # Nothing was missing in between, or the older ones would be gone.
                assert channel.read(0) == [b"%d" % number for number in range(1, 1001)]


async def test_what_is_published_here_is_not_heard_twice(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        with bus.channel("t") as channel:
            await bus.attached("t")
            await bus.publish(commit(1, operation_id="o", starts=True))
            assert channel.version == 1, "told at once"
            heard = channel.heard_at
            await bus._connection.confirm()
            assert channel.heard_at == heard


async def test_publishing_costs_little_and_never_waits(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        start = time.process_time()
        for number in range(1, 5001):
            await bus.publish(commit(number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert (time.process_time() - start) / 5000 < 0.0005  # some 10 microseconds


async def test_one_round_trip_attaches_many(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus, NatsBus(nats_url) as writer:
        names = [f"t{number}" for number in range(2000)]
        before = len(asyncio.all_tasks())
        with ExitStack() as stack:
            channels = [stack.enter_context(bus.channel(name)) for name in names]
            attaching = asyncio.gather(*(bus.attached(name) for name in names))
            await within(attaching)
            assert bus._connection._requests < 50
            assert len(asyncio.all_tasks()) <= before, "channels need no tasks"
            for name in names:
                await writer.publish(commit(1, task_id=name))
            await within(asyncio.gather(*(arrived(channel, 1) for channel in channels)))


async def test_closed_channel_is_unsubscribed(own_server: NatsServer) -> None:
    async with NatsBus(own_server.url()) as bus:
        for _ in range(3):
            with bus.channel("t"), bus.channel("u"):
                with bus.channel("t"):
                    await bus.attached("t")
                    await bus.attached("u")
                assert len(_event_subscriptions(bus)) == 2
            await until(lambda: not _event_subscriptions(bus))
        for _ in range(500):  # open for too short a time to be subscribed
            with bus.channel("t"):
                pass
        await until(lambda: not _event_subscriptions(bus) and not bus._changed)
        assert not bus._unconfirmed


def _event_subscriptions(bus: NatsBus) -> list[str]:
    return [name for name in bus._connection._subscriptions if ".events." in name]


async def test_what_is_larger_than_a_message_goes_by_reference() -> None:
    with running({"max_payload": 4096}) as server:
        url = server.url()
        async with NatsBus(url) as writer, NatsBus(url) as bus:
            with bus.channel("t") as channel, channel.reader(), channel.watch("o") as watch:
                await bus.attached("t")
                await writer.publish(commit(1))
                await writer.publish(Committed("t", 2, 2, WORKING, [b"x" * 5000]))
                await writer.publish(commit(3))
                await arrived(channel, 3)
                assert channel.read(0) is None
                assert channel.read(1) is None
                assert channel.read(2) == [b"3"]
                missed: list[str] = []
                bus.on_missed = missed.append
                outcome = Outcome(OutcomeKind.MESSAGE, payload=b"x" * 5000)
                await writer.publish(Committed("t", 4, 4, COMPLETED, [b"4"], "o", outcome=outcome))
                await arrived(channel, 4)
                assert channel.read(3) == [b"4"]
                assert missed == ["t"]
                assert not watch.settled.done()
            await writer.check()


async def test_large_outcome_is_looked_up_at_once() -> None:
    with running({"max_payload": 4096}) as server:
        url = server.url()
        storage: InMemoryStorage[Any] = InMemoryStorage()
        async with (
            NatsBus(url) as writer,
            NatsBus(url) as bus,
            CatchUp(storage, bus, interval=60),
        ):
            with bus.channel("t") as channel, channel.watch("o") as watch:
                await bus.attached("t")
                await _finish(storage, "o", outcome := _reply("x" * 5000))
                await writer.publish(Committed("t", 0, 0, 0, operation_id="o", outcome=outcome))
                assert (await within(watch.settled)).outcome == outcome


def _reply(text: str) -> Outcome:
    reply = pb.Message(message_id="m", parts=[pb.Part(text=text)])
    return Outcome(OutcomeKind.MESSAGE, payload=reply.SerializeToString())


async def _finish(storage: InMemoryStorage[Any], operation_id: str, outcome: Outcome) -> None:
    request = pb.SendMessageRequest(message=message(task_id="t", context_id="c"))
    await storage.admit(Operation(operation_id, "t", "c", request))
    turn = await storage.start_turn("t")
    assert isinstance(turn, Turn)
    await storage.commit(
        Commit("t", 0, fence=turn.fence, finished=[(operation_id, outcome)], ends_turn=True)
    )


async def test_what_was_lost_while_the_server_was_away_is_caught_up(
    own_server: NatsServer,
) -> None:
    url = own_server.url()
    storage: InMemoryStorage[Any] = InMemoryStorage()
    async with (
        NatsBus(url) as writer,
        NatsBus(url) as bus,
        CatchUp(storage, bus, interval=60),
    ):
        with bus.channel("t") as channel, channel.watch("o") as watch:
            await bus.attached("t")
            await asyncio.to_thread(own_server.kill)
            await until(lambda: not bus._connection.is_connected)
            await until(lambda: not writer._connection.is_connected)
            start = time.monotonic()
            outcome = _reply("hello")
            await _finish(storage, "o", outcome)
            await writer.publish(Committed("t", 0, 0, 0, operation_id="o", outcome=outcome))
            with bus.channel("u"):
                await bus.attached("u")
                for one in (bus, writer):
                    with pytest.raises(UnavailableError) as error:
                        await one.check()
                    assert error.value.retry_after == 1.0
                assert time.monotonic() - start < 0.5
                assert not watch.settled.done()
                await asyncio.to_thread(own_server.start)
                assert (await within(watch.settled, 10)).outcome == outcome
                # Every channel hears again, also the one that was opened meanwhile.
                await until(lambda: writer._connection.is_connected)
                await bus._connection.confirm()
                await writer.publish(commit(1))
                await writer.publish(commit(1, task_id="u"))
                await arrived(channel, 1)
                await until(lambda: dict(bus.channels())["u"].version == 1)


async def test_strange_messages_are_dropped(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = NatsAddress.parse(nats_url)
    async with NatsBus(nats_url) as bus, NatsBus(nats_url) as writer:
        with bus.channel("t") as channel:
            await bus.attached("t")
            async with NatsConnection(address, name="stranger") as stranger:
                for body in (b"", b"\x01", b"\xff" * 50, b'{"a": 1}', b"\x02" + b"\0" * 40):
                    await stranger.publish(f"{address.namespace}.events.t", body)
                await stranger.confirm()
            await writer.publish(commit(1))
            await arrived(channel, 1)
            assert caplog.text.count("is dropped") == 5


async def test_namespaces_are_apart(nats_server: NatsServer) -> None:
    async with NatsBus(nats_server.url()) as one, NatsBus(nats_server.url()) as two:
        with one.channel("t") as channel:
            await one.attached("t")
            await two.publish(commit(1))
            await two._connection.confirm()
            await one._connection.confirm()
            assert channel.version == 0


async def test_closing_lets_those_go_who_wait(nats_url: str) -> None:
    bus = NatsBus(nats_url)
    async with bus:
        bus.open("t")
        waiting = asyncio.create_task(bus.attached("t"))
        await asyncio.sleep(0)
    await within(waiting, 0.9)
    bus.close("t")
    await bus.publish(commit(1))
    with pytest.raises(UnavailableError):
        await bus.check()


async def test_subscriber_that_ends_is_told_and_fails_the_check(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.check()

        async def failing(*args: Any) -> None:
            raise RuntimeError("unheard of")

        monkeypatch.setattr(bus._connection, "subscribe", failing)
        with bus.channel("t"):
            await until(lambda: "RuntimeError: unheard of" in caplog.text)
            with pytest.raises(UnavailableError, match="nats-subscriber"):
                await bus.check()


async def test_server_that_is_not_there_is_told() -> None:
    with pytest.raises(BusOpenError) as error:
        async with NatsBus("nats://someone:secret-word@127.0.0.1:1"):
            pass
    assert "127.0.0.1:1" in str(error.value)
    assert "secret-word" not in str(error.value)


async def test_missing_permission_is_told() -> None:
    allowed = {"publish": [">"], "subscribe": ["_INBOX.>"]}
    users = [{"user": "u", "password": "secret-word", "permissions": allowed}]
    with running({"authorization": {"users": users}}, login="u:secret-word") as server:
        with pytest.raises(BusOpenError) as error:
            async with NatsBus(server.url("ns")):
                pass
        assert server.address in str(error.value)
        assert "ns.>" in str(error.value)
        assert "secret-word" not in str(error.value)
