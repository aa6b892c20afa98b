"""Push delivery against real HTTP servers, from a real storage."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest

from a2a_grpc import pb
from a2a_grpc.errors import UnavailableError
from a2a_grpc.push.delivery import GATHER_INTERVAL, PushDelivery, PushSettings
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Commit,
    LogTruncatedError,
    PushTarget,
    Scope,
)
from a2a_grpc.task import event_entry

pytestmark = pytest.mark.asyncio

WORKING = pb.TaskState.TASK_STATE_WORKING
COMPLETED = pb.TaskState.TASK_STATE_COMPLETED
PATIENCE = 10.0  # seconds until a test that waits for something fails

# Failures are over at once, and nothing but wake() and the timers of retries leads to a delivery.
QUICK = PushSettings(
    timeout=5.0, backoff_base=0.001, backoff_max=0.01, poll_interval=600.0, allow_private=True
)


class Request(NamedTuple):
    """A request as the webhook saw it; header names in lower case."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def text(self) -> str:
        """The text of the status message."""
        return str(self.event["statusUpdate"]["status"]["message"]["parts"][0]["text"])


def http(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


OK = http(200, body=b"{}")
Answer = Callable[[Request], Awaitable[bytes]]


class Webhook:
    """A real HTTP server that records what it gets and answers what `answer` says."""

    def __init__(self, answer: Answer | bytes = OK) -> None:
        self._answer = answer
        self._arrived = asyncio.Condition()
        self.requests: list[Request] = []
        self.at_once = 0
        self.most_at_once = 0
        self.closed_by_peer = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Webhook:
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook?key=s3cret"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def received(self, count: int) -> list[Request]:
        async with asyncio.timeout(PATIENCE), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                request = await self._read(reader)
                self.at_once += 1
                self.most_at_once = max(self.at_once, self.most_at_once)
                async with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                try:
                    if isinstance(self._answer, bytes):
                        writer.write(self._answer)
                    else:
                        writer.write(await self._answer(request))
                finally:
                    self.at_once -= 1
                await writer.drain()
        except (EOFError, OSError):
            self.closed_by_peer.set()
        except asyncio.CancelledError:
            pass  # the end of the server; asyncio's streams would report it as an error
        finally:
            writer.close()
            self._connections.discard(task)

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.strip().split("\r\n")
        pairs = [entry.split(": ", 1) for entry in rest]
        headers = [(name.lower(), value) for name, value in pairs]
        body = await reader.readexactly(int(dict(headers)["content-length"]))
        return Request(line, headers, body)


def answers(*replies: bytes) -> Answer:
    """One reply after the other, the last one for ever."""
    remaining = list(replies)

    async def answer(request: Request) -> bytes:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return answer


@dataclass
class Gate:
    """Holds a webhook's answer back until it is opened."""

    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request) -> bytes:
        await self.open.wait()
        return OK


class WatchedStorage(InMemoryStorage[Any]):
    """Tells when a target was written."""

    def __init__(self) -> None:
        super().__init__()
        self._written = asyncio.Condition()
        self.writes: list[PushTarget] = []

    async def update_push_target(self, target: PushTarget) -> None:
        await super().update_push_target(target)
        async with self._written:
            self.writes.append(replace(target))
            self._written.notify_all()

    async def until(self, holds: Callable[[PushTarget], bool], config_id: str = "c") -> PushTarget:
        """Wait for a write of the target, a past one included, for which `holds` is true."""

        def found() -> PushTarget | None:
            matching = (w for w in self.writes if w.config.id == config_id and holds(w))
            return next(matching, None)

        async with asyncio.timeout(PATIENCE), self._written:
            await self._written.wait_for(lambda: found() is not None)
        target = found()
        assert target is not None
        return target

    async def start(self) -> pb.Task:
        message = pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=[pb.Part(text="hi")])
        return await self.submit_task("context", message)

    async def subscribe(
        self, task: pb.Task, url: str, config_id: str = "c", **fields: str
    ) -> pb.TaskPushNotificationConfig:
        config = pb.TaskPushNotificationConfig(
            id=config_id, task_id=task.id, url=url, token=fields.get("token", "")
        )
        if "scheme" in fields:
            config.authentication.scheme = fields["scheme"]
            config.authentication.credentials = fields.get("credentials", "")
        await self.save_push_config(config, scope=Scope())
        return config

    async def say(self, task: pb.Task, *texts: str, state: int = WORKING) -> None:
        """Commit one status update per text."""
        for text in texts:
            update = pb.TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id)
            update.status.state = state  # type: ignore[assignment]
            update.status.message.parts.add().text = text
            await self.publish(task, update)

    async def publish(self, task: pb.Task, update: pb.TaskStatusUpdateEvent) -> None:
        head = await self.load_head(task.id)
        assert head is not None
        entry = event_entry(
            pb.StreamResponse(status_update=update),
            version=head.version + 1,
            sequence=head.sequence + 1,
        )
        await self.commit(
            Commit(
                task.id,
                head.version,
                entries=[entry],
                state=update.status.state,
                status_at=time.time_ns(),
                context_id=task.context_id,
            )
        )

    async def target(self, task: pb.Task, config_id: str = "c") -> PushTarget:
        targets = {t.config.id: t for t in await self.load_push_configs(task.id)}
        return targets[config_id]


class CountingStorage(WatchedStorage):
    """Counts how often it is asked for what is due."""

    looks = 0

    async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
        self.looks += 1
        return await super().due_push_targets(now, limit)


def texts(requests: list[Request]) -> list[str]:
    return [request.text for request in requests]


async def test_events_arrive_in_order_as_stream_responses() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        async with PushDelivery(storage, QUICK) as delivery:
            delivery.expect(task.id)
            numbers = [str(number) for number in range(40)]  # more than a turn takes
            for number in numbers:
                await storage.say(task, number)
                delivery.wake(task.id)
            await storage.say(task, "done", state=COMPLETED)
            delivery.wake(task.id)
            requests = await hook.received(41)
            await storage.until(lambda target: target.delivered == 42)
        assert texts(requests) == [*numbers, "done"]
        assert hook.most_at_once == 1
        update = requests[-1].event["statusUpdate"]
        assert update["taskId"] == task.id
        assert update["contextId"] == task.context_id
        assert update["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_deliveries_start_after_the_event_that_the_task_had_reached() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.say(task, "before")
        await storage.subscribe(task, hook.url)
        await storage.say(task, "after")
        async with PushDelivery(storage, QUICK):
            assert texts(await hook.received(1)) == ["after"]


async def test_a_request_has_exactly_these_headers() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(
            task, hook.url, token="t0ken", scheme="Bearer", credentials="cr3dentials"
        )
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            (request,) = await hook.received(1)
        assert request.line == "POST /hook?key=s3cret HTTP/1.1"
        headers = dict(request.headers)
        assert len(headers) == len(request.headers)
        assert headers.pop("user-agent").startswith("a2a-grpc/")
        assert headers == {
            "host": hook.url.split("/")[2],
            "content-type": "application/a2a+json",
            "content-length": str(len(request.body)),
            "authorization": "Bearer cr3dentials",
            "x-a2a-notification-token": "t0ken",
            "a2a-notification-token": "t0ken",
        }


async def test_without_credentials_and_token_their_headers_are_left_out() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            (request,) = await hook.received(1)
        names = {name for name, _ in request.headers}
        assert names == {"host", "user-agent", "content-type", "content-length"}


async def test_cookies_of_a_webhook_are_not_kept() -> None:
    async with Webhook(http(200, "Set-Cookie: a=b; Path=/")) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1", "2")
        async with PushDelivery(storage, QUICK):
            requests = await hook.received(2)
        assert "cookie" not in dict(requests[1].headers)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_every_2xx_acknowledges(status: int) -> None:
    async with Webhook(http(status)) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            target = await storage.until(lambda target: target.delivered == 2)
        assert target.attempts == 0


async def test_an_event_is_retried_until_it_is_acknowledged_and_the_next_waits_for_it() -> None:
    async with Webhook(answers(http(500), http(503), http(404), OK)) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1", "2")
        async with PushDelivery(storage, QUICK):
            assert texts(await hook.received(5)) == ["1", "1", "1", "1", "2"]
            target = await storage.until(lambda target: target.delivered == 3)
        assert target.attempts == 0
        assert {write.attempts for write in storage.writes} == {0, 1, 2, 3}


async def _wait_after(
    reply: bytes, *, earlier_failures: int = 0, jitter: float = 0.5, now: float = 1_000_000.0
) -> PushTarget:
    """The target after a failure at `now`, with the waits of the default settings."""
    settings = PushSettings(allow_private=True)
    async with Webhook(reply) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        await storage.update_push_target(
            replace(await storage.target(task), attempts=earlier_failures)
        )
        async with PushDelivery(storage, settings, clock=lambda: now, jitter=lambda: jitter):
            return await storage.until(lambda target: target.attempts > earlier_failures)


@pytest.mark.parametrize(
    ("earlier_failures", "jitter", "wait"),
    [
        (0, 0.5, 2.0),
        (1, 0.5, 4.0),
        (4, 0.5, 32.0),
        (30, 0.5, 3600.0),
        (4, 0.0, 25.6),
        (4, 1.0, 38.4),
    ],
)
async def test_waits_grow_up_to_a_bound_and_vary(
    earlier_failures: int, jitter: float, wait: float
) -> None:
    target = await _wait_after(http(500), earlier_failures=earlier_failures, jitter=jitter)
    assert target.next_attempt_at == pytest.approx(1_000_000.0 + wait)


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [
        ("120", 120.0),
        (email.utils.formatdate(1_000_120.0, usegmt=True), 120.0),
        ("1", 2.0),  # never sooner than without it
        ("1000000", 3600.0),
        ("9" * 400, 3600.0),
        (email.utils.formatdate(1.0, usegmt=True), 2.0),
        ("soon", 2.0),
        ("-5", 2.0),
        ("", 2.0),
    ],
)
async def test_retry_after_is_honoured_within_bounds(retry_after: str, wait: float) -> None:
    target = await _wait_after(http(429, f"Retry-After: {retry_after}"))
    assert target.next_attempt_at == pytest.approx(1_000_000.0 + wait)


async def test_the_default_waits_add_up_to_about_a_day() -> None:
    settings = PushSettings()
    waits = [settings.backoff(failures) for failures in range(1, settings.max_failures)]
    assert 24.0 <= sum(waits) / 3600 <= 25.0


async def test_a_hanging_target_delays_no_other() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hanging, Webhook() as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hanging.url, "hanging")
        await storage.subscribe(task, other.url, "other")
        async with PushDelivery(storage, QUICK) as delivery:
            for number in ("1", "2", "3"):
                await storage.say(task, number)
                delivery.wake(task.id)
            await hanging.received(1)
            assert texts(await other.received(3)) == ["1", "2", "3"]
            assert len(hanging.requests) == 1
            gate.open.set()
            assert texts(await hanging.received(3)) == ["1", "2", "3"]


async def test_the_retry_of_a_target_does_not_wait_for_a_hanging_one() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hanging, Webhook(answers(http(500), OK)) as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hanging.url, "hanging")
        await storage.subscribe(task, other.url, "other")
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            await hanging.received(1)
            assert texts(await other.received(2)) == ["1", "1"]
            gate.open.set()


async def test_requests_at_once_are_limited() -> None:
    async def takes_a_while(request: Request) -> bytes:
        await asyncio.sleep(0.01)
        return OK

    async with Webhook(takes_a_while) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        for number in range(6):
            await storage.subscribe(task, hook.url, f"c{number}")
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, concurrency=2)):
            await hook.received(6)
        assert hook.most_at_once == 2


async def test_a_dead_target_lets_go_of_its_place() -> None:
    async with Webhook(Gate().answer) as dead, Webhook() as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, dead.url, "dead")
        await storage.subscribe(task, other.url, "other")
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, concurrency=1, timeout=0.05)):
            await dead.received(1)
            await other.received(1)


async def test_a_busy_target_lets_others_have_their_turn() -> None:
    async with Webhook() as busy, Webhook() as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, busy.url, "busy")
        await storage.subscribe(task, other.url, "other")
        await storage.say(task, *[str(number) for number in range(100)])
        async with PushDelivery(storage, replace(QUICK, concurrency=1)):
            await busy.received(1)
            await other.received(1)
            assert len(busy.requests) < 100


async def test_a_target_is_disabled_after_so_many_failures_in_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Webhook(http(500)) as hook, Webhook() as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.subscribe(task, other.url, "other")
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, max_failures=3)) as delivery:
            target = await storage.until(lambda target: target.disabled)
            await storage.say(task, "2")
            delivery.wake(task.id)
            await other.received(2)
            await storage.until(lambda target: target.delivered == 3, "other")
        assert target.attempts == 3
        assert len(hook.requests) == 3
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("disabled after 3 failures in a row: it answered 500" in w for w in warnings)


async def test_gone_disables_at_once() -> None:
    async with Webhook(http(410)) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            target = await storage.until(lambda target: target.disabled)
        assert target.attempts == 1
        assert len(hook.requests) == 1


async def test_a_replaced_configuration_begins_anew_where_the_old_one_was() -> None:
    async with Webhook(http(410)) as old, Webhook() as new:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, old.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK) as delivery:
            await storage.until(lambda target: target.disabled)
            await storage.subscribe(task, new.url)
            delivery.wake()
            assert texts(await new.received(1)) == ["1"]


async def test_a_failure_of_the_old_url_does_not_count_against_the_new_one() -> None:
    gate = Gate()

    async def fails(request: Request) -> bytes:
        await gate.open.wait()
        return http(410)

    async with Webhook(fails) as old, Webhook() as new:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, old.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK) as delivery:
            await old.received(1)
            await storage.subscribe(task, new.url)
            delivery.wake(task.id)
            gate.open.set()
            assert texts(await new.received(1)) == ["1"]


async def test_what_was_read_before_a_turn_ended_does_not_move_its_cursor_back() -> None:
    class Slow(WatchedStorage):
        """Gives what it read only when it is released."""

        def __init__(self) -> None:
            super().__init__()
            self.has_read = asyncio.Event()
            self.release: asyncio.Event | None = None

        async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
            due = await super().due_push_targets(now, limit)
            if self.release is not None:
                self.has_read.set()
                await self.release.wait()
            return due

    gate = Gate()
    async with Webhook(gate.answer) as hook:
        storage = Slow()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK) as delivery:
            await hook.received(1)
            storage.release = asyncio.Event()
            await storage.subscribe(task, hook.url)  # replaced, and so due again
            delivery.wake(task.id)
            await storage.has_read.wait()
            (turn,) = [t for t in asyncio.all_tasks() if t.get_name() == f"push {task.id}/c"]
            gate.open.set()
            await turn
            storage.release.set()
            await storage.say(task, "2")
            delivery.wake(task.id)
            assert texts(await hook.received(2)) == ["1", "2"]


async def test_redirects_are_failures_and_not_followed() -> None:
    async with Webhook() as elsewhere, Webhook(http(307, f"Location: {elsewhere.url}")) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, max_failures=2)):
            await storage.until(lambda target: target.disabled)
        assert len(hook.requests) == 2
        assert elsewhere.requests == []


async def test_a_webhook_on_a_private_address_is_never_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url.replace("127.0.0.1", "rebind.example"))
        await storage.say(task, "1")
        settings = replace(QUICK, allow_private=False, max_failures=2)
        async with PushDelivery(storage, settings, resolve=resolve):
            await storage.until(lambda target: target.disabled)
        assert hook.requests == []
    assert "127.0.0.1 is not a public address" in caplog.text


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "ftp://127.0.0.1/", "nothing", "http://[::1", "http://\x00/"]
)
async def test_a_url_that_can_not_be_called_is_a_failure(url: str) -> None:
    storage = WatchedStorage()
    task = await storage.start()
    await storage.subscribe(task, url)
    await storage.say(task, "1")
    async with PushDelivery(storage, replace(QUICK, max_failures=2)):
        await storage.until(lambda target: target.disabled)


@pytest.mark.parametrize("reply", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-"])
async def test_an_answer_that_is_no_http_is_a_failure(reply: bytes) -> None:
    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()

    server = await asyncio.start_server(breaks_off, "127.0.0.1", 0)
    async with server:
        storage = WatchedStorage()
        task = await storage.start()
        port = server.sockets[0].getsockname()[1]
        await storage.subscribe(task, f"http://127.0.0.1:{port}/")
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, max_failures=2)):
            await storage.until(lambda target: target.disabled)


async def test_a_long_response_is_cut_off_and_its_status_counts() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
    async with Webhook(head + b"x" * 1_000_000) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, timeout=600, response_limit=1000)):
            target = await storage.until(lambda target: target.delivered == 2)
            async with asyncio.timeout(PATIENCE):
                await hook.closed_by_peer.wait()
        assert target.attempts == 0


async def test_a_response_that_never_ends_is_left_and_its_status_counts() -> None:
    async with Webhook(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n...") as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, timeout=0.05)):
            target = await storage.until(lambda target: target.delivered == 2)
        assert target.attempts == 0


async def test_the_next_delivery_goes_on_from_the_cursor() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1", "2")
        async with PushDelivery(storage, QUICK):
            await storage.until(lambda target: target.delivered == 3)
        await storage.say(task, "3", "4")
        async with PushDelivery(storage, QUICK):
            assert texts(await hook.received(4)) == ["1", "2", "3", "4"]


async def test_an_event_that_was_cut_off_at_closing_is_due_again_at_once() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, grace=0.01)):
            await hook.received(1)
        target = await storage.target(task)
        assert (target.delivered, target.attempts) == (1, 0)
        assert target.next_attempt_at <= time.time()
        gate.open.set()
        async with PushDelivery(storage, QUICK):
            assert texts(await hook.received(2)) == ["1", "1"]


async def test_the_claim_of_a_process_that_died_runs_out() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        claimed = replace(await storage.target(task), next_attempt_at=time.time() + 0.1)
        await storage.update_push_target(claimed)
        async with PushDelivery(storage, QUICK):
            await hook.received(1)
        assert time.time() >= claimed.next_attempt_at


async def test_a_second_process_leaves_alone_what_the_first_is_delivering() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hook, Webhook() as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            await hook.received(1)
            async with PushDelivery(storage, QUICK) as second:
                await storage.subscribe(task, other.url, "other")
                await storage.say(task, "2")
                second.wake(task.id)
                await other.received(1)
                assert len(hook.requests) == 1
            gate.open.set()
            assert texts(await hook.received(2)) == ["1", "2"]


async def test_closing_lets_a_request_finish() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1", "2")
        delivery = await PushDelivery(storage, replace(QUICK, grace=PATIENCE)).__aenter__()
        await hook.received(1)
        closing = asyncio.create_task(delivery.__aexit__(None, None, None))
        await asyncio.sleep(0)
        assert not closing.done()
        gate.open.set()
        await closing
        assert (await storage.target(task)).delivered == 2
        assert texts(hook.requests) == ["1"]


async def test_closing_is_bounded_though_webhook_and_storage_hang() -> None:
    class Hanging(WatchedStorage):
        hangs = False

        async def load_push_configs(self, task_id: str) -> list[PushTarget]:
            if self.hangs:
                await asyncio.Event().wait()
            return await super().load_push_configs(task_id)

    async with Webhook(Gate().answer) as hook:
        storage = Hanging()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with asyncio.timeout(PATIENCE):
            async with PushDelivery(storage, replace(QUICK, grace=0.01, timeout=600)):
                await hook.received(1)
                storage.hangs = True


async def test_closing_that_is_cancelled_leaves_no_task_behind() -> None:
    async with Webhook(Gate().answer) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        delivery = await PushDelivery(storage, replace(QUICK, grace=600)).__aenter__()
        await hook.received(1)
        closing = asyncio.create_task(delivery.__aexit__(None, None, None))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not {name for name in names if name.startswith("push")}


async def test_a_delivery_is_entered_only_once() -> None:
    delivery = PushDelivery(InMemoryStorage(), QUICK)
    delivery.wake()
    async with delivery:
        pass
    delivery.wake()
    with pytest.raises(RuntimeError, match="make another one"):
        async with delivery:
            pass


async def test_a_deleted_configuration_gets_nothing_more() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hook, Webhook() as other:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.subscribe(task, other.url, "other")
        await storage.say(task, "1", "2", "3")
        async with PushDelivery(storage, QUICK) as delivery:
            await hook.received(1)
            await storage.delete_push_config(task.id, "c")
            gate.open.set()
            await storage.say(task, "4")
            delivery.wake(task.id)
            await other.received(4)
            await storage.until(lambda target: target.delivered == 5, "other")
        assert texts(hook.requests) == ["1"]


async def test_where_the_log_was_truncated_the_task_is_delivered_as_it_is() -> None:
    class Truncated(WatchedStorage):
        async def load_events(
            self, task_id: str, after: int, limit: int, **bounds: int
        ) -> list[bytes]:
            if after < 3:
                raise LogTruncatedError
            return await super().load_events(task_id, after, limit, **bounds)

    async with Webhook() as hook:
        storage = Truncated()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1", "2")
        async with PushDelivery(storage, QUICK) as delivery:
            (request,) = await hook.received(1)
            await storage.until(lambda target: target.delivered == 3)
            await storage.say(task, "3")
            delivery.wake(task.id)
            assert (await hook.received(2))[1].text == "3"
        assert request.event["task"]["id"] == task.id
        assert request.event["task"]["status"]["message"]["parts"][0]["text"] == "2"


async def test_an_event_without_a_json_form_is_logged_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        update = pb.TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id)
        update.status.state = WORKING
        update.metadata["number"] = float("nan")
        await storage.publish(task, update)
        await storage.say(task, "2")
        async with PushDelivery(storage, QUICK):
            assert texts(await hook.received(1)) == ["2"]
    assert f"event 2 of task {task.id} has no JSON form" in caplog.text


async def test_delivery_goes_on_after_the_storage_was_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver_error = ValueError("INSERT ... s3cret")

    class Flaky(WatchedStorage):
        failures = 6

        def _fail(self) -> None:
            if self.failures:
                self.failures -= 1
                # One that the seam declares, or a driver's, which quotes what it was given.
                raise driver_error if self.failures % 2 else UnavailableError("away")

        async def due_push_targets(self, now: float, limit: int) -> list[PushTarget]:
            self._fail()
            return await super().due_push_targets(now, limit)

        async def next_push_attempt(self) -> float | None:
            self._fail()
            return await super().next_push_attempt()

        async def load_push_configs(self, task_id: str) -> list[PushTarget]:
            self._fail()
            return await super().load_push_configs(task_id)

    async with Webhook() as hook:
        storage = Flaky()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, replace(QUICK, poll_interval=0.01)):
            assert texts(await hook.received(1)) == ["1"]
    assert "can't use the storage, will try again: ValueError" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_failed_claim_is_tried_again() -> None:
    class Forgetful(WatchedStorage):
        fails = True

        async def update_push_target(self, target: PushTarget) -> None:
            if self.fails:
                self.fails = False
                raise UnavailableError
            await super().update_push_target(target)

    async with Webhook() as hook:
        storage = Forgetful()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK):
            assert texts(await hook.received(1)) == ["1"]


async def test_a_failed_write_of_the_cursor_repeats_the_event_and_loses_none() -> None:
    class Forgetful(WatchedStorage):
        fails = True

        async def update_push_target(self, target: PushTarget) -> None:
            if self.fails and target.delivered == 2:
                self.fails = False
                raise UnavailableError
            await super().update_push_target(target)

    async with Webhook() as hook:
        storage = Forgetful()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1", "2")

        def clock() -> float:
            # After the failure a minute has passed, and the claim has run out.
            return time.time() + (0.0 if storage.fails else 60.0)

        async with PushDelivery(storage, QUICK, clock=clock):
            assert texts(await hook.received(3)) == ["1", "1", "2"]


async def test_polling_finds_what_nobody_announced() -> None:
    async with Webhook() as hook:
        storage = WatchedStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        async with PushDelivery(storage, replace(QUICK, poll_interval=0.05)):
            await storage.say(task, "1")
            await hook.received(1)


async def test_many_wakes_are_few_looks_into_the_storage() -> None:
    storage = CountingStorage()
    async with PushDelivery(storage, QUICK) as delivery:
        begun = time.monotonic()
        while time.monotonic() < begun + 10 * GATHER_INTERVAL:
            delivery.wake()
            await asyncio.sleep(0)
    assert 2 <= storage.looks <= 12


async def test_a_target_that_is_due_again_while_it_is_called_makes_no_busy_loop() -> None:
    gate = Gate()
    async with Webhook(gate.answer) as hook:
        storage = CountingStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK) as delivery:
            await hook.received(1)
            await storage.subscribe(task, hook.url)
            delivery.wake(task.id)
            await asyncio.sleep(5 * GATHER_INTERVAL)
            assert storage.looks <= 3
            gate.open.set()


async def test_commits_of_tasks_without_targets_cost_nothing() -> None:
    async with Webhook() as hook:
        storage = CountingStorage()
        task = await storage.start()
        await storage.subscribe(task, hook.url)
        await storage.say(task, "1")
        async with PushDelivery(storage, QUICK) as delivery:
            await storage.until(lambda target: target.delivered == 2)
            await asyncio.sleep(2 * GATHER_INTERVAL)
            looks = storage.looks
            begun = time.monotonic()
            while time.monotonic() < begun + 3 * GATHER_INTERVAL:
                delivery.wake("another task")
                await asyncio.sleep(0)
            assert storage.looks == looks
            # What was delivered once is expected from then on.
            await storage.say(task, "2")
            delivery.wake(task.id)
            await hook.received(2)


async def test_secrets_never_get_into_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def echo(request: Request) -> bytes:
        return http(500, body=repr(request).encode())

    async with Webhook(echo) as hook:
        storage = WatchedStorage()
        task = await storage.start()
        secrets = {"token": "s3cret-token", "scheme": "Bearer", "credentials": "s3cret-credentials"}
        await storage.subscribe(task, hook.url, "failing", **secrets)
        refused = hook.url.replace("http://127.0.0.1", "http://user:s3cret@127.0.0.1:1/s3cret#")
        await storage.subscribe(task, refused, "refused", **secrets)
        illegal = secrets | {"token": "s3cret\r\nX-Injected: 1"}
        await storage.subscribe(task, hook.url, "illegal", **illegal)
        await storage.subscribe(task, "ftp://s3cret.example/s3cret", "unknown", **secrets)
        await storage.say(task, "s3cret text")
        async with PushDelivery(storage, replace(QUICK, max_failures=2)):
            for config_id in ("failing", "refused", "illegal", "unknown"):
                await storage.until(lambda target: target.disabled, config_id)
        assert len(hook.requests) == 2
    assert caplog.text.count("is disabled after 2 failures") == 4
    assert "s3cret" not in caplog.text.replace("ftp://s3cret.example", "")
