"""What only the broker over NATS promises: several replicas, lost connections, lost streams."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from a2a_grpc.broker import jetstream
from a2a_grpc.broker.base import BrokerOpenError, TaskIdParams, TaskOperation, TaskSendParams
from a2a_grpc.broker.nats import NatsBroker
from a2a_grpc.broker.pull import OperationPull
from a2a_grpc.errors import ResourceExhaustedError, UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.connection import NatsConnection
from a2a_grpc.nats.dialer import NatsDialer
from tests.broker.test_contract import operation_id, run, take
from tests.environments import ROOT
from tests.servers.nats import NatsServer, nats_cluster
from tests.servers.nats import nats_server as running
from tests.support import within


async def until(condition: Callable[[], bool], limit: float = 15.0) -> None:
    """Look again and again; only for what gives no signal."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def call(url: str, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JetStream API, as an operator uses it."""
    async with NatsConnection(NatsAddress.parse(url), name="operator") as connection:
        answer = await connection.request(f"$JS.API.{name}", json.dumps(body or {}).encode())
        assert answer is not None
        found: dict[str, Any] = json.loads(answer.data)
        return found


def streams_of(url: str) -> tuple[str, str]:
    namespace = NatsAddress.parse(url).namespace
    return f"{namespace}-operations", f"{namespace}-dead"


async def left_in(url: str) -> int:
    """How many operations are in the stream."""
    info = await call(url, f"STREAM.INFO.{streams_of(url)[0]}")
    count: int = info["state"]["messages"]
    return count


class Receiver:
    """Receives in the background and keeps what it got."""

    def __init__(self, broker: NatsBroker, *, acks: bool = True) -> None:
        self.got: list[TaskOperation] = []
        self._acks = acks
        self._broker = broker
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with aclosing(self._broker.receive_task_operations()) as source:  # type: ignore[type-var]
            async for delivery in source:
                self.got.append(delivery)
                if self._acks:
                    await delivery.ack()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> Receiver:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def ids(self) -> list[str]:
        return [operation_id(one) for one in self.got if one.operation == "run"]


# Several replicas.


RECEIVES_AND_HANGS = """
import asyncio, sys
from a2a_grpc.broker.nats import NatsBroker

async def main():
    async with NatsBroker(sys.argv[1], ack_wait=1.0) as broker:
        async for delivery in broker.receive_task_operations():
            print(delivery.params.operation_id, flush=True)

asyncio.run(main())
"""


async def test_operations_of_a_process_that_is_killed_come_to_another(nats_url: str) -> None:
    async with NatsBroker(nats_url, ack_wait=1.0) as broker:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", RECEIVES_AND_HANGS, nats_url],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'generated'}"},
        )
        try:
            for number in range(3):
                await broker.run_task(run(number))
            assert process.stdout is not None
            lines = [await asyncio.to_thread(process.stdout.readline) for _ in range(3)]
            assert lines == ["o0\n", "o1\n", "o2\n"]
            async with Receiver(broker) as receiver:
                await asyncio.sleep(1.5)  # it lives: what it holds stays with it
                assert not receiver.got
                process.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                await until(lambda: len(receiver.got) == 3)
                assert time.monotonic() - killed < 3
                assert sorted(receiver.ids) == ["o0", "o1", "o2"]
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


async def test_what_is_held_stays_held(nats_url: str) -> None:
    async with NatsBroker(nats_url, ack_wait=0.5) as one, NatsBroker(nats_url, ack_wait=0.5) as two:
        await one.run_task(run(1))
        source = one.receive_task_operations()
        (delivery,) = await take(source, 1)
        async with Receiver(two) as receiver:
            await asyncio.sleep(2.0)
            assert not receiver.got
            await delivery.ack()
            await asyncio.sleep(0.7)
            assert not receiver.got
    assert await left_in(nats_url) == 0


async def test_what_is_handed_back_comes_to_another_at_once(nats_url: str) -> None:
    async with NatsBroker(nats_url) as one, NatsBroker(nats_url) as two:
        await one.run_task(run(1))
        async with Receiver(one, acks=False) as first:
            await until(lambda: first.ids == ["o1"])
        # The first one drains: it receives no more, and then hands back what it held.
        async with Receiver(two) as second:
            await first.got[0].nak()
            await until(lambda: second.ids == ["o1"], 2.0)
            assert first.ids == ["o1"]


async def test_leaving_hands_everything_back(nats_url: str) -> None:
    async with NatsBroker(nats_url) as two:
        async with NatsBroker(nats_url) as one:
            for number in range(100):
                await one.run_task(run(number))
            async with Receiver(one, acks=False) as receiver:
                await until(lambda: len(receiver.got) == 100)
        # Handed back long before anybody would miss it (ack_wait is 15 seconds).
        async with Receiver(two) as receiver:
            await until(lambda: len(receiver.got) == 100, 3.0)
            assert sorted(receiver.ids) == sorted(f"o{number}" for number in range(100))
    assert await left_in(nats_url) == 0


async def test_draining_hands_back_what_waits_at_once(nats_url: str) -> None:
    async with NatsBroker(nats_url) as one, NatsBroker(nats_url) as two:
        source = one.receive_task_operations()
        for number in range(20):
            await one.run_task(run(number))
        (held,) = await take(source, 1)
        await until(lambda: len(one._queue) == 19)
        await one.drain()
        assert len(one._held) == 1
        waiting = asyncio.create_task(take(source, 1))
        async with Receiver(two) as elsewhere:
            # Long before anybody would miss it (ack_wait is 15 seconds).
            await until(lambda: len(elsewhere.got) == 19, 2.0)
            for number in range(20, 40):  # submitted here, too
                await one.run_task(run(number))
            await until(lambda: len(elsewhere.got) == 39, 2.0)
            assert len(one._held) == 1
            assert not waiting.done()
            await two.cancel_task(TaskIdParams("t"))
            (cancellation,) = await waiting
            assert cancellation.operation == "cancel"
            await held.nak()
            await until(lambda: operation_id(held) in elsewhere.ids, 2.0)
    assert await left_in(nats_url) == 0


async def test_draining_broker_gives_nothing_to_who_asks_right_after(nats_url: str) -> None:
    async with NatsBroker(nats_url) as broker:
        source: Any = broker.receive_task_operations()
        for number in range(3):
            await broker.run_task(run(number))
        await take(source, 1)
        await until(lambda: len(broker._queue) == 2)
        draining = asyncio.create_task(broker.drain())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await within(anext(source), 0.2)
        await draining


async def test_who_does_not_receive_is_given_nothing(nats_url: str) -> None:
    async with NatsBroker(nats_url) as frontend, NatsBroker(nats_url) as worker:
        receiver = Receiver(frontend)
        await asyncio.sleep(0.05)
        await receiver.stop()
        async with Receiver(worker) as receiver:
            for number in range(200):
                await frontend.run_task(run(number))
            await until(lambda: len(receiver.got) == 200, 3.0)


async def test_replicas_share_a_burst(nats_url: str) -> None:
    async with (
        NatsBroker(nats_url) as one,
        NatsBroker(nats_url) as two,
        NatsBroker(nats_url) as frontend,
        Receiver(one) as first,
        Receiver(two) as second,
    ):
        await asyncio.sleep(0.1)
        await asyncio.gather(*(frontend.run_task(run(number)) for number in range(1000)))
        await until(lambda: len(first.got) + len(second.got) == 1000)
        assert len(set(first.ids) | set(second.ids)) == 1000
        assert min(len(first.got), len(second.got)) > 250


async def test_each_replica_holds_as_many_as_it_has_room_for(nats_url: str) -> None:
    async with (
        NatsBroker(nats_url, concurrency=3) as one,
        NatsBroker(nats_url, concurrency=40) as two,
        Receiver(one, acks=False) as first,
        Receiver(two, acks=False) as second,
    ):
        for number in range(60):
            await one.run_task(run(number))
        await until(lambda: len(first.got) == 3 and len(second.got) == 40)
        await asyncio.sleep(0.1)
        assert len(first.got) == 3
        assert len(second.got) == 40
        for delivery in second.got[:17]:
            await delivery.ack()
        await until(lambda: len(second.got) == 57)
        assert len(first.got) == 3


async def test_many_unacknowledged_operations_do_not_stop_others(nats_url: str) -> None:
    async with (
        NatsBroker(nats_url) as one,
        NatsBroker(nats_url) as two,
        Receiver(one, acks=False) as first,
    ):
        await asyncio.gather(*(one.run_task(run(number)) for number in range(2000)))
        await until(lambda: len(first.got) == 2000)
        async with Receiver(two) as second:
            for number in range(2000, 2050):
                await two.run_task(run(number))
            await until(lambda: len(first.got) + len(second.got) == 2050, 3.0)


async def test_operation_that_comes_again_while_it_is_held_is_one_delivery(nats_url: str) -> None:
    async with NatsBroker(nats_url) as broker:
        source = broker.receive_task_operations()
        await broker.run_task(run(1))
        (delivery,) = await take(source, 1)
        reply: str = delivery.reply  # type: ignore[attr-defined]
        async with NatsConnection(NatsAddress.parse(nats_url), name="tester") as connection:
            # As if this process had been frozen for longer than ack_wait.
            await connection.publish(reply, b"-NAK")
            await connection.confirm()
        await until(lambda: delivery.reply != reply)  # type: ignore[attr-defined]
        waiting = asyncio.create_task(anext(source))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await left_in(nats_url) == 1
        await delivery.ack()
        await broker.run_task(run(2))
        other = await within(waiting)
        assert operation_id(other) == "o2"
        await other.ack()
    assert await left_in(nats_url) == 0


async def test_cancellation_reaches_every_process_that_receives(nats_url: str) -> None:
    async with (
        NatsBroker(nats_url) as one,
        NatsBroker(nats_url, concurrency=1) as two,
        Receiver(one, acks=False) as first,
        Receiver(two, acks=False) as second,
    ):
        for number in range(40):  # the second one is full
            await one.run_task(run(number))
        await one.cancel_task(TaskIdParams("t"))
        for receiver in (first, second):
            await until(lambda r=receiver: any(d.operation == "cancel" for d in r.got), 2.0)
            cancellations = [one for one in receiver.got if one.operation == "cancel"]
            assert [one.params for one in cancellations] == [TaskIdParams("t")]
            await cancellations[0].ack()


async def test_namespaces_are_apart(nats_server: NatsServer) -> None:
    async with (
        NatsBroker(nats_server.url()) as one,
        NatsBroker(nats_server.url()) as two,
        Receiver(two) as receiver,
    ):
        await one.run_task(run(1))
        await one.cancel_task(TaskIdParams("t"))
        await two.run_task(run(2))
        await until(lambda: len(receiver.got) == 1)
        assert receiver.ids == ["o2"]


async def test_operations_for_here_stay_here(nats_url: str) -> None:
    async with (
        NatsBroker(nats_url) as one,
        NatsBroker(nats_url) as two,
        Receiver(two) as elsewhere,
    ):
        for number in range(20):
            await one.run_task(TaskSendParams("t", f"o{number}", here=True))
        # Submitted to all by mistake: it is here, and once.
        await one.run_task(run(0))
        async with Receiver(one) as here:
            await until(lambda: len(here.got) >= 20)
        assert len(set(here.ids)) == 20
        assert set(elsewhere.ids) <= {"o0"}


async def test_operations_for_here_have_a_bound(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NatsBroker, "MAX_WAITING", 2)
    async with NatsBroker(nats_url) as broker:
        for number in range(2):
            await broker.run_task(TaskSendParams("t", f"o{number}", here=True))
        with pytest.raises(ResourceExhaustedError) as error:
            await broker.run_task(TaskSendParams("t", "o2", here=True))
        assert error.value.retry_after
        for number in range(5):  # the oldest cancellations are forgotten
            await broker.cancel_task(TaskIdParams(f"t{number}"))


async def test_operation_comes_at_once_to_who_waits(nats_url: str) -> None:
    async with NatsBroker(nats_url) as frontend, NatsBroker(nats_url) as worker:
        source = worker.receive_task_operations()
        took = []
        for number in range(50):
            waiting = asyncio.create_task(anext(source))  # type: ignore[arg-type]
            await asyncio.sleep(0.002)
            start = time.perf_counter()
            await frontend.run_task(run(number))
            delivery = await within(waiting)
            took.append(time.perf_counter() - start)
            await delivery.ack()
        assert statistics.median(took) < 0.02  # some 0.3 ms, and no round of polling


# What JetStream keeps.


async def test_full_stream_refuses_and_says_when_to_come_back(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "MAX_OPERATIONS", 2)
    async with NatsBroker(nats_url) as broker:
        await broker.run_task(run(1))
        await broker.run_task(run(2))
        with pytest.raises(ResourceExhaustedError) as error:
            await broker.run_task(run(3))
        assert error.value.retry_after
        await broker.run_task(run(2))  # it is there already


async def test_message_that_is_no_operation_is_dropped(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = NatsAddress.parse(nats_url).namespace
    async with NatsBroker(nats_url) as broker, Receiver(broker) as receiver:
        async with NatsConnection(NatsAddress.parse(nats_url), name="stranger") as connection:
            for number, body in enumerate((b"", b"{}", b"[]", b"\xff", b"null")):
                await connection.request(f"{namespace}.run.x{number}", body)
                await connection.publish(f"{namespace}.cancel", body)
        await broker.run_task(run(1))
        await until(lambda: receiver.ids == ["o1"])
        assert "is no operation" in caplog.text
        assert "is no cancellation" in caplog.text
    assert await left_in(nats_url) == 0


async def test_operation_that_was_given_up_is_where_operators_look(nats_url: str) -> None:
    async with NatsBroker(nats_url) as broker:
        await broker.bury(TaskSendParams("t.1", "o.1"), "it was tried 3 times")
        await broker.bury(TaskSendParams("t.1", "o.1"), "it was tried 4 times")
    dead = streams_of(nats_url)[1]
    info = await call(nats_url, f"STREAM.INFO.{dead}")
    assert info["state"]["messages"] == 1  # the newest word on each operation
    assert info["config"]["max_age"] == 30 * 86400 * 10**9
    async with NatsConnection(NatsAddress.parse(nats_url), name="operator") as connection:
        answer = await connection.request(
            f"$JS.API.STREAM.MSG.GET.{dead}", json.dumps({"seq": 2}).encode()
        )
    assert answer is not None
    kept = json.loads(base64.b64decode(json.loads(answer.data)["message"]["data"]))
    assert kept.pop("time").startswith("20")
    assert kept == {"task_id": "t.1", "operation_id": "o.1", "reason": "it was tried 4 times"}


async def test_streams_are_as_documented(nats_url: str) -> None:
    async with NatsBroker(nats_url, ack_wait=7.0):
        stream = streams_of(nats_url)[0]
        config = (await call(nats_url, f"STREAM.INFO.{stream}"))["config"]
        assert (config["retention"], config["storage"]) == ("workqueue", "file")
        assert (config["discard"], config["max_msgs_per_subject"]) == ("new", 1)
        assert config["discard_new_per_subject"]
        config = (await call(nats_url, f"CONSUMER.INFO.{stream}.workers"))["config"]
        assert (config["ack_policy"], config["ack_wait"]) == ("explicit", 7 * 10**9)
        assert (config["max_deliver"], config["max_ack_pending"]) == (-1, -1)


async def test_replicas_that_open_together_all_open(nats_url: str) -> None:
    brokers = [NatsBroker(nats_url) for _ in range(8)]
    await asyncio.gather(*(broker.__aenter__() for broker in brokers))
    try:
        await brokers[0].run_task(run(1))
        await take(brokers[7].receive_task_operations(), 1)
    finally:
        await asyncio.gather(*(broker.__aexit__(None, None, None) for broker in brokers))


async def test_changed_settings_are_taken_over(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams_of(nats_url)[0]
    async with NatsBroker(nats_url, ack_wait=5.0) as broker:
        await broker.run_task(run(1))
        monkeypatch.setattr(jetstream, "MAX_OPERATIONS", 77)
        async with NatsBroker(nats_url, ack_wait=9.0):
            config = (await call(nats_url, f"CONSUMER.INFO.{stream}.workers"))["config"]
            assert config["ack_wait"] == 9 * 10**9
            assert (await call(nats_url, f"STREAM.INFO.{stream}"))["config"]["max_msgs"] == 77
            assert await left_in(nats_url) == 1


# What is lost comes back.


@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_what_somebody_deletes_is_made_again(nats_url: str, what: str) -> None:
    stream = streams_of(nats_url)[0]
    async with NatsBroker(nats_url) as broker, Receiver(broker, acks=False) as receiver:
        await broker.run_task(run(1))
        await until(lambda: receiver.ids == ["o1"])
        name = (
            f"CONSUMER.DELETE.{stream}.workers" if what == "consumer" else f"STREAM.DELETE.{stream}"
        )
        assert (await call(nats_url, name))["success"]
        await broker.run_task(run(2))
        await until(lambda: "o2" in receiver.ids)
        # Submitted again from storage, which holds that this process has it.
        await broker.run_task(run(1))
        await asyncio.sleep(0.2)
        assert receiver.ids == ["o1", "o2"]
        for delivery in receiver.got:
            await delivery.ack()
    assert await left_in(nats_url) == 0


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Any:
    with running() as server:
        yield server


async def test_restart_keeps_what_was_submitted(
    own_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = own_server.url()
    async with NatsBroker(url, ack_wait=2.0) as broker, Receiver(broker, acks=False) as receiver:
        await broker.run_task(run(1))
        await until(lambda: receiver.ids == ["o1"])
        async with NatsBroker(url, ack_wait=2.0) as frontend:
            await receiver.stop()
            for number in range(2, 50):
                await frontend.run_task(run(number))
        for end in (own_server.stop, own_server.kill):
            await asyncio.to_thread(end)
            await until(lambda: not broker._connection.is_connected)
            start = time.monotonic()
            for _ in range(3):
                with pytest.raises(UnavailableError) as error:
                    await broker.run_task(run(99))
                assert error.value.retry_after == 1.0
            with pytest.raises(UnavailableError):
                await broker.check()
            with pytest.raises(UnavailableError):
                await broker.cancel_task(TaskIdParams("t"))
            await broker.bury(run(1), "best effort")
            assert time.monotonic() - start < 0.5
            await asyncio.to_thread(own_server.start)
            await until(lambda: broker._connection.is_connected)
        await broker.check()
        async with Receiver(broker, acks=False) as again:
            await until(lambda: len(again.ids) == 48)
            await broker.run_task(run(50))
            await until(lambda: "o50" in again.ids)
            await asyncio.sleep(2.5)  # longer than ack_wait
            assert sorted(again.ids) == sorted(f"o{number}" for number in range(2, 51))
            for delivery in [*again.got, *receiver.got]:
                await delivery.ack()
    assert await left_in(url) == 0
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("a2a_grpc.nats")]
    assert len([text for text in messages if "broker of" in text or "is lost" in text]) == 2
    assert len([text for text in messages if "is back" in text]) == 2


async def test_server_that_comes_back_empty_gets_its_streams_again(
    tmp_path: Any, own_server: NatsServer
) -> None:
    url = own_server.url()
    async with NatsBroker(url) as broker, Receiver(broker) as receiver:
        await broker.run_task(run(1))
        await until(lambda: receiver.ids == ["o1"])
        own_server.config["jetstream"]["store_dir"] = str(tmp_path / "other")
        await asyncio.to_thread(own_server.restart)
        await until(lambda: broker._connection.is_connected)
        await broker.run_task(run(2))
        await until(lambda: receiver.ids == ["o1", "o2"])


async def test_frozen_server_is_found_out(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NatsBroker, "SUBMIT_TIMEOUT", 0.5)
    monkeypatch.setattr(NatsDialer, "PING_INTERVAL", 0.3)
    url = own_server.url()
    async with NatsBroker(url) as broker, Receiver(broker) as receiver:
        with own_server.frozen():
            start = time.monotonic()
            with pytest.raises(UnavailableError):
                await broker.run_task(run(1))
            assert time.monotonic() - start < 2
            await until(lambda: not broker._connection.is_connected)
        await until(lambda: broker._connection.is_connected)
        await broker.run_task(run(1))
        await broker.run_task(run(2))
        await until(lambda: {"o1", "o2"} <= set(receiver.ids))


class Counted(NatsBroker):
    """Knows the most that it held at a time."""

    most = 0

    def _enqueue(self, delivery: Any) -> None:
        super()._enqueue(delivery)
        self.most = max(self.most, len(self._held))


async def held_by_jetstream(url: str) -> int:
    """How many operations are with a replica, as far as JetStream knows."""
    info = await call(url, f"CONSUMER.INFO.{streams_of(url)[0]}.workers")
    count: int = info["num_ack_pending"]
    return count


async def fills_without_more(broker: Counted, url: str) -> None:
    """However many operations there are, it is given one."""
    async with NatsBroker(url) as frontend:
        for number in range(8):
            await frontend.run_task(run(number))
    await until(lambda: bool(broker._held))
    await asyncio.sleep(0.3)
    assert broker.most == 1
    assert await held_by_jetstream(url) == 1


async def test_reconnecting_replica_holds_no_more_than_it_has_room_for(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its earlier requests are with JetStream still, which serves those that somebody hears."""
    monkeypatch.setattr(NatsConnection, "FIRST_WAIT", 0.01)
    url = own_server.url()
    async with Counted(url, concurrency=1) as broker, Receiver(broker, acks=False):
        for requests in range(1, 5):
            await until(lambda r=requests: broker._pull._requests == r and not broker._pull.is_idle)
            await broker._connection.confirm()
            if requests < 4:
                client = broker._connection._client
                assert client is not None
                client.abort()
                await until(lambda c=client: broker._connection._client is not c)
        await fills_without_more(broker, url)
        assert len([s for s in broker._connection._subscriptions if "INBOX" in s]) == 2


async def test_replica_whose_server_was_frozen_holds_no_more_than_it_has_room_for(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(OperationPull, "HEARTBEAT", 0.2)
    url = own_server.url()
    async with Counted(url, concurrency=1) as broker, Receiver(broker, acks=False):
        await until(lambda: not broker._pull.is_idle)
        await broker._connection.confirm()
        client = broker._connection._client
        for number in range(1, 3):
            with own_server.frozen():
                await until(lambda n=number: caplog.text.count("fell silent") == n)
                await asyncio.sleep(1.0)
            await until(lambda: not broker._pull.is_idle)
        assert broker._connection._client is client, "it was not found out by its silence alone"
        await fills_without_more(broker, url)
        assert client is not None
        assert len(client._subs) == 3  # replies, cancellations and the request


async def test_what_a_silent_server_still_sends_is_counted(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations that the abandoned request brings take the room of the next one."""
    monkeypatch.setattr(OperationPull, "HEARTBEAT", 0.2)
    url = own_server.url()
    async with (
        NatsBroker(url) as frontend,
        Counted(url, concurrency=2) as broker,
        Receiver(broker, acks=False),
    ):
        await until(lambda: not broker._pull.is_idle)
        await broker._connection.confirm()
        with own_server.frozen():
            submitting = [asyncio.create_task(frontend.run_task(run(n))) for n in range(8)]
            await until(lambda: broker._pull.is_idle)
            await asyncio.sleep(2.2)  # it is no longer waited for what is on its way
        await asyncio.gather(*submitting)
        await until(lambda: len(broker._held) == 2, 5.0)
        await asyncio.sleep(0.3)
        assert broker.most == 2
        assert await held_by_jetstream(url) == 2


async def test_leaving_while_the_server_is_away_takes_no_time(own_server: NatsServer) -> None:
    async with NatsBroker(own_server.url()) as broker:
        await broker.run_task(run(1))
        source = broker.receive_task_operations()
        await take(source, 1)
        await asyncio.to_thread(own_server.kill)
        start = time.monotonic()
    assert time.monotonic() - start < 2


async def test_cluster_goes_on_when_one_of_three_servers_is_killed() -> None:
    with nats_cluster(3) as servers:
        addresses = ",".join(f"nats://{server.address}" for server in servers)
        url = f"{addresses}?namespace=c&replicas=3"
        async with (
            NatsBroker(url) as one,
            NatsBroker(url) as two,
            Receiver(one) as first,
            Receiver(two) as second,
        ):
            for number in range(50):
                await one.run_task(run(number))
            await until(lambda: len(first.got) + len(second.got) == 50)
            # The one that leads the stream, which is the worst.
            info = await call(url, "STREAM.INFO.c-operations")
            leader = int(info["cluster"]["leader"][1:])
            await asyncio.to_thread(servers[leader].kill)
            submitted = 50
            async with asyncio.timeout(60):
                while submitted < 100:
                    with suppress(UnavailableError):
                        await one.run_task(run(submitted))
                        submitted += 1
                        continue
                    await asyncio.sleep(0.1)
            expected = {f"o{number}" for number in range(100)}
            await until(lambda: {*first.ids, *second.ids} == expected, 60)


async def test_server_of_the_cluster_that_the_url_does_not_name_is_found() -> None:
    with nats_cluster(3) as servers:
        url = f"nats://{servers[0].address}?namespace=c&replicas=3"
        async with NatsBroker(url) as broker:
            await asyncio.to_thread(servers[0].kill)
            await until(lambda: broker._connection.is_connected and _moved(broker, servers[0]))


def _moved(broker: NatsBroker, server: NatsServer) -> bool:
    return str(server.port) not in broker._connection.shown


# What goes wrong for good.


@pytest.fixture
async def may_not_bury() -> AsyncIterator[str]:
    """The URL of a server whose user may do anything else."""
    permissions = {"publish": {"deny": ["ns.dead.*"]}}
    users = [{"user": "u", "password": "p", "permissions": permissions}]
    with running({"authorization": {"users": users}}, login="u:p") as server:
        yield server.url("ns")


async def test_denied_burial_keeps_nobody_from_handing_back(
    may_not_bury: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with NatsBroker(may_not_bury) as two:
        async with NatsBroker(may_not_bury) as one:
            source = one.receive_task_operations()
            await one.run_task(run(1))
            await take(source, 1)
            await one.bury(run(7), "it was tried 3 times")
            assert "is not in the stream" in caplog.text
            await one._connection.confirm()  # it was another message that was refused
        async with Receiver(two) as receiver:
            await until(lambda: receiver.ids == ["o1"], 2.0)


@pytest.mark.parametrize("name", ["run", "_say_in_progress"])
async def test_task_that_ends_is_told_and_fails_the_check(
    nats_url: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(self: Any) -> None:
        await begins.wait()
        raise RuntimeError("unheard of")

    begins = asyncio.Event()
    monkeypatch.setattr(OperationPull if name == "run" else NatsBroker, name, failing)
    async with NatsBroker(nats_url) as broker:
        await broker.check()
        begins.set()
        await until(lambda: "RuntimeError: unheard of" in caplog.text)
        with pytest.raises(UnavailableError, match="nats-"):
            await broker.check()
    monkeypatch.undo()
    async with broker:  # opened anew, it is well
        await broker.check()


# What keeps it from opening.


async def test_wrong_url_is_refused_before_it_is_opened() -> None:
    with pytest.raises(ValueError, match="namespace"):
        NatsBroker("nats://localhost?namespace=a.b")
    with pytest.raises(ValueError, match="ack_wait"):
        NatsBroker("nats://localhost", ack_wait=0)
    with pytest.raises(ValueError, match="concurrency"):
        NatsBroker("nats://localhost", concurrency=0)


async def failing(url: str) -> str:
    with pytest.raises(BrokerOpenError) as error:
        async with NatsBroker(url):
            pass
    return str(error.value)


async def test_no_jetstream_is_told() -> None:
    with running() as server:
        server.stop()
        del server.config["jetstream"]
        server.start()
        start = time.monotonic()
        message = await failing(server.url())
        assert server.address in message
        assert "-js" in message
        assert time.monotonic() - start < 3


async def test_stream_of_that_name_that_is_another_is_told(nats_url: str) -> None:
    stream = streams_of(nats_url)[0]
    body = {"name": stream, "subjects": [f"{stream}.x"], "retention": "limits"}
    await call(nats_url, f"STREAM.CREATE.{stream}", body)
    message = await failing(nats_url)
    assert stream in message
    assert "namespace" in message
    assert await call(nats_url, f"STREAM.DELETE.{stream}")


async def test_more_replicas_than_servers_are_told(nats_server: NatsServer) -> None:
    message = await failing(nats_server.url(replicas="3"))
    assert "replicas=3" in message


async def test_missing_permission_is_told() -> None:
    with running(
        {
            "authorization": {
                "users": [
                    {
                        "user": "u",
                        "password": "secret-word",
                        "permissions": {"publish": ["_INBOX.>"], "subscribe": ["_INBOX.>"]},
                    }
                ]
            }
        },
        login="u:secret-word",
    ) as server:
        message = await failing(server.url("ns"))
        assert server.address in message
        assert "ns." in message
        assert "secret-word" not in message
