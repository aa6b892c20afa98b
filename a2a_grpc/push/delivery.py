"""Delivery of push notifications: the events of a task, in order, to each of its webhooks.

The outbox is a cursor per configuration over the task's log, so there is no queue here that could
lose something: what is due is asked of the storage, and the cursor moves after a webhook has
acknowledged. Every event arrives at least once. What a webhook may be is the guard's business.
"""

from __future__ import annotations

import asyncio
import email.utils
import importlib.metadata
import logging
import random
import ssl
import time
import traceback as tracebacks
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from a2a_grpc import pb
from a2a_grpc.errors import A2AError, InvalidParamsError
from a2a_grpc.push import guard
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.values import (
    LogTruncatedError,
    PushTarget,
)

if TYPE_CHECKING:
    import httpcore

logger = logging.getLogger(__name__)

EVENTS_PER_TURN = 16  # a target with many events lets others have its place after so many
GATHER_INTERVAL = 0.02  # seconds between two looks into the storage, however often `wake` is called
CLAIM_MARGIN = 5.0  # seconds that a claim outlasts a request, for the storage's writes around it
RELEASE_TIMEOUT = 1.0  # seconds at closing to give back what was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """How webhooks are called.

    With the defaults a target is given up after 35 failures in a row: waits of 2 s, 4 s, ... up to
    an hour, which makes 24 hours altogether.
    """

    timeout: float = 10.0  # seconds for a whole request, name resolution and response included
    backoff_base: float = 2.0  # seconds after the first failure, doubled with each further one
    backoff_max: float = 3600.0  # seconds, before jitter; bounds Retry-After too
    backoff_jitter: float = 0.2  # part of a wait by which it varies, up and down
    max_failures: int = 35  # failures in a row until a target is disabled
    response_limit: int = 64 * 1024  # bytes of a response that are read, and dropped
    concurrency: int = 64  # requests at the same time, each to another target
    poll_interval: float = 30.0  # seconds between looks into the storage when nothing wakes it
    grace: float = 5.0  # seconds at closing for requests on their way
    allow_private: bool = False  # whether addresses outside the public internet may be called

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1, 2, ...), without jitter."""
        # The exponent is bounded since a float is.
        return min(self.backoff_max, self.backoff_base * 2.0 ** min(failures - 1, 64))


class _Key(NamedTuple):
    task_id: str
    config_id: str

    def __str__(self) -> str:
        return f"{self.task_id}/{self.config_id}"


class _Notification(NamedTuple):
    """`body` is what to post, None if the event has no JSON form; `more` if others follow it."""

    sequence: int
    body: bytes | None
    more: bool


class _Answer(NamedTuple):
    """What came of a request; `reason` is for the log and holds nothing of the response's body."""

    acknowledged: bool
    reason: str = ""
    gone: bool = False
    retry_after: float = 0.0  # seconds


class PushDelivery:
    """Delivers push notifications while it is entered; an async context manager.

    - A target gets the events of its task in their order, one request at a time.
    - Every event is delivered at least once, until the target is disabled or deleted. A receiver
      sees one again when its acknowledgement got lost, or its process died before it was stored.
    - A slow or dead target delays no other, as long as fewer than `concurrency` are slow at once;
      and then for no longer than `timeout`.
    - A deleted configuration gets nothing that was not already on its way.
    - Closing takes `grace` seconds and a moment more at the most; what was cut off is due at once
      for the next one who delivers.
    - Credentials, tokens, paths of URLs and bodies never get into a log.

    A target is claimed, for the time of a request, by moving its next attempt into the future, so
    that other processes on the same storage leave it alone. An event that has no JSON form (a NaN
    in a Struct, say) is logged and skipped, since no attempt could ever deliver it. Where the log
    no longer reaches back to the cursor, the Task is delivered as it is now.

    Args:
        storage: where targets and events are; it must stay open longer than the delivery.
        settings: see `PushSettings`.
        resolve: resolves names, in place of the system's resolver.
        ssl_context: for https, in place of one with the usual certificate authorities.
        clock: seconds since the epoch.
        jitter: a number from 0 to 1.
    """

    MAX_EXPECTED = 100_000
    """Tasks whose commits wake the delivery; those of others wait for `poll_interval`."""

    def __init__(
        self,
        storage: AnyStorage,
        settings: PushSettings | None = None,
        *,
        resolve: guard.Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._storage = storage
        self._settings = settings or PushSettings()
        self._resolve = resolve
        self._ssl_context = ssl_context
        self._clock = clock
        self._jitter = jitter
        self._user_agent = _user_agent()
        self._expected: OrderedDict[str, None] = OrderedDict()
        self._wakeup = asyncio.Event()
        self._stop = asyncio.Event()
        self._in_flight: set[_Key] = set()
        self._runner: asyncio.Task[None] | None = None
        self._pool: httpcore.AsyncConnectionPool
        self._resolver_threads: ThreadPoolExecutor

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise RuntimeError("a PushDelivery can be entered only once; make another one")
        # Threads of its own: names that nobody answers for must not keep the process's others busy.
        self._resolver_threads = ThreadPoolExecutor(
            self._settings.concurrency, thread_name_prefix="push-resolver"
        )
        self._pool = guard.open_pool(
            allow_private=self._settings.allow_private,
            max_connections=self._settings.concurrency,
            resolve=self._resolve or partial(guard.resolve, executor=self._resolver_threads),
            ssl_context=self._ssl_context,
        )
        await self._pool.__aenter__()
        self._runner = asyncio.create_task(self._run(), name="push-delivery")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        self._stop.set()
        self._wakeup.set()
        try:
            await asyncio.wait({self._runner}, timeout=self._settings.grace)
        finally:
            self._runner.cancel()
            try:
                await asyncio.wait({self._runner})
                await self._release_interrupted()
            finally:
                self._resolver_threads.shutdown(wait=False, cancel_futures=True)
                await self._pool.__aexit__(exc_type, exc, traceback)

    def expect(self, task_id: str) -> None:
        """Say that a task has targets, so that its commits are worth a look.

        Of tasks that once had something to deliver in this process it is known already.
        """
        self._expected[task_id] = None
        self._expected.move_to_end(task_id)
        if len(self._expected) > self.MAX_EXPECTED:
            self._expected.popitem(last=False)

    def wake(self, task_id: str | None = None) -> None:
        """Say that there may be something to deliver, of this task or of any; cheap, never waits.

        To be called after every commit, in the event loop's thread. Of tasks that are not expected
        to have targets it takes no notice. Calls close to each other count as one; before entering
        and after closing they do nothing.
        """
        if task_id is None or task_id in self._expected:
            self._wakeup.set()

    async def _run(self) -> None:
        outages = 0
        async with asyncio.TaskGroup() as turns:
            while not self._stop.is_set():
                self._wakeup.clear()
                try:
                    pause = await self._start_due(turns)
                except Exception as error:
                    outages += 1
                    if outages == 1:
                        _log_failure("push delivery can't use the storage, will try again", error)
                    pause = min(self._settings.poll_interval, self._settings.backoff(outages))
                    await _wait(self._stop, pause)
                else:
                    if outages:
                        logger.info("push delivery can use the storage again")
                        outages = 0
                    await _wait(self._stop, min(pause, GATHER_INTERVAL))
                    await _wait(self._wakeup, pause - GATHER_INTERVAL)

    async def _start_due(self, turns: asyncio.TaskGroup) -> float:
        """Begin a turn for every target that is due; returns seconds until the next one is."""
        # As of before the reading: a turn that ends meanwhile makes what was read of it stale.
        busy = frozenset(self._in_flight)
        limit = self._settings.concurrency
        if len(busy) >= limit:
            return self._settings.poll_interval  # the end of a turn wakes
        now = self._clock()
        for target in await self._storage.due_push_targets(now, limit):
            key = _Key(target.config.task_id, target.config.id)
            self.expect(key.task_id)
            if key in busy:
                continue
            if len(self._in_flight) >= limit:
                break
            self._in_flight.add(key)
            claimed = False
            try:
                claimed = await self._storage.claim_push_target(target, self._claim())
            finally:
                if not claimed:
                    self._in_flight.discard(key)
            if claimed:
                turns.create_task(self._turn(key), name=f"push {key}")
        next_attempt = await self._storage.next_push_attempt()
        if next_attempt is None or next_attempt <= now:
            # Nothing waits; or it waits for the end of a turn, or was just committed: both wake.
            return self._settings.poll_interval
        return min(self._settings.poll_interval, max(0.0, next_attempt - self._clock()))

    def _claim(self) -> float:
        return self._clock() + self._settings.timeout + CLAIM_MARGIN

    async def _turn(self, key: _Key) -> None:
        """Deliver some events to one target, which is claimed."""
        try:
            for remaining in reversed(range(EVENTS_PER_TURN)):
                if not await self._deliver_next(key, may_continue=remaining > 0):
                    break
        except Exception as error:
            # The claim runs out, and then it is due again.
            _log_failure(f"push target {key} has to wait, will try again", error)
        # Not reached when cancelled: what is in flight then is given back at closing.
        self._in_flight.discard(key)
        self._wakeup.set()

    async def _deliver_next(self, key: _Key, *, may_continue: bool) -> bool:
        """Deliver the target's next event; returns whether another one follows at once."""
        # Read anew each time: it may have been deleted or replaced since the last event.
        target = await self._load(key)
        if target is None or target.disabled:
            return False
        notification = await self._next_notification(target)
        if notification is None:
            await self._storage.update_push_target(replace(target, next_attempt_at=self._clock()))
            return False
        if notification.body is not None:
            answer = await self._post(target.config, notification.body)
            if not answer.acknowledged:
                await self._record_failure(target, answer)
                return False
        else:
            logger.error(
                "event %d of task %s has no JSON form and is not delivered to push target %s",
                notification.sequence,
                key.task_id,
                key,
            )
        goes_on = may_continue and notification.more and not self._stop.is_set()
        await self._storage.update_push_target(
            replace(
                target,
                delivered=notification.sequence,
                attempts=0,
                next_attempt_at=self._claim() if goes_on else self._clock(),
            )
        )
        if target.attempts:
            logger.info("push target %s acknowledges again", key)
        return goes_on

    async def _load(self, key: _Key) -> PushTarget | None:
        targets = await self._storage.load_push_configs(key.task_id)
        return next((target for target in targets if target.config.id == key.config_id), None)

    async def _next_notification(self, target: PushTarget) -> _Notification | None:
        task_id = target.config.task_id
        try:
            events = await self._storage.load_events(task_id, target.delivered, 2)
        except LogTruncatedError:
            snapshot = await self._storage.load_snapshot(task_id)
            if snapshot is None:
                return None
            body = _body(pb.StreamResponse(task=snapshot.task))
            return _Notification(snapshot.sequence, body, more=False)
        if not events:
            return None
        return _Notification(target.delivered + 1, _body(events[0]), more=len(events) > 1)

    async def _post(self, config: pb.TaskPushNotificationConfig, body: bytes) -> _Answer:
        import httpcore  # at run time only where it is used, as in the guard

        answer: _Answer | None = None
        reason = ""
        try:
            # Again, since h11 and httpcore would quote a value that fits into no header, and since
            # the configuration may have been admitted under other settings.
            guard.check_config(config, allow_private=self._settings.allow_private)
            url, host = guard.request_url(config.url)
            headers = [(b"Host", host), *_headers(config, self._user_agent)]
            async with (
                asyncio.timeout(self._settings.timeout),
                self._pool.stream(
                    b"POST",
                    url,
                    headers=headers,
                    content=body,
                    extensions={"timeout": {"connect": self._settings.timeout}},
                ) as response,
            ):
                answer = _judge(response, self._clock())
                read = 0
                async for chunk in response.aiter_stream():
                    read += len(chunk)
                    if read > self._settings.response_limit:
                        break
        except InvalidParamsError as error:
            reason = f"can not be called: {error.message}"
        except (httpcore.ConnectError, guard.BlockedAddressError) as error:
            reason = f"could not be connected to: {error}"
        except (TimeoutError, httpcore.TimeoutException):
            reason = f"did not answer within {self._settings.timeout:g} s"
        except Exception as error:
            # Whatever it is, it is this webhook's failure. Without its text, which may quote
            # headers of the request or bytes of the response.
            reason = f"could not be called: {type(error).__name__}"
        # Once there is a status it counts, whatever becomes of the rest of the response.
        return answer or _Answer(False, reason)

    async def _record_failure(self, target: PushTarget, answer: _Answer) -> None:
        config = target.config
        key = _Key(config.task_id, config.id)
        current = await self._load(key)
        if current is None or current.config != config:
            return  # the failure was another configuration's; the new one begins anew
        failures = target.attempts + 1
        settings = self._settings
        spread = 1 + settings.backoff_jitter * (2 * self._jitter() - 1)
        asked = min(answer.retry_after, settings.backoff_max)
        wait = max(settings.backoff(failures) * spread, asked)
        disabled = answer.gone or failures >= settings.max_failures
        await self._storage.update_push_target(
            replace(
                target,
                attempts=failures,
                next_attempt_at=self._clock() + wait,
                disabled=disabled,
            )
        )
        where = guard.redact(config.url)
        if disabled:
            logger.warning(
                "push target %s at %s is disabled after %d failures in a row: it %s",
                key,
                where,
                failures,
                answer.reason,
            )
        else:
            logger.log(
                logging.WARNING if failures == 1 else logging.INFO,
                "push target %s at %s %s; failure %d, next attempt in %.1f s",
                key,
                where,
                answer.reason,
                failures,
                wait,
            )

    async def _release_interrupted(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                for key in self._in_flight:
                    target = await self._load(key)
                    if target is not None:
                        await self._storage.update_push_target(
                            replace(target, next_attempt_at=self._clock())
                        )
        except Exception as error:
            # The claims run out by themselves.
            _log_failure("push delivery could not give back what it was delivering", error)


def _headers(config: pb.TaskPushNotificationConfig, user_agent: bytes) -> list[tuple[bytes, bytes]]:
    headers = [(b"User-Agent", user_agent), (b"Content-Type", b"application/a2a+json")]
    authentication = config.authentication
    if authentication.scheme:
        value = f"{authentication.scheme} {authentication.credentials}".strip()
        headers.append((b"Authorization", value.encode()))
    if config.token:
        # The specification gives this header no name; receivers look for one or the other.
        token = config.token.encode()
        headers += [(b"X-A2A-Notification-Token", token), (b"A2A-Notification-Token", token)]
    return headers


def _user_agent() -> bytes:
    try:
        version = importlib.metadata.version("a2a-grpc")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        version = "0"
    return f"a2a-grpc/{version}".encode()


def _body(event: pb.StreamResponse | bytes) -> bytes | None:
    try:
        if isinstance(event, bytes):
            event = pb.StreamResponse.FromString(event)
        return json_format.MessageToJson(event, indent=None, ensure_ascii=False).encode()
    except (DecodeError, json_format.Error, ValueError, OverflowError):
        return None


def _judge(response: httpcore.Response, now: float) -> _Answer:
    status = response.status
    if 200 <= status < 300:
        return _Answer(True)
    reason = f"answered {status}"
    if 300 <= status < 400:
        reason += ", and redirects are not followed"
    values = (value for name, value in response.headers if name.lower() == b"retry-after")
    return _Answer(False, reason, gone=status == 410, retry_after=_seconds(next(values, b""), now))


def _seconds(retry_after: bytes, now: float) -> float:
    """The value of Retry-After, seconds or a date, in seconds from now; 0 if it is neither."""
    text = retry_after.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def _log_failure(what: str, error: Exception) -> None:
    # Neither the error's text nor the chain behind it: a driver quotes the values of a statement.
    if isinstance(error, A2AError):
        logger.warning("%s: %s", what, error.message)
    else:
        frames = "".join(tracebacks.format_tb(error.__traceback__))
        logger.error("%s: %s\n%s", what, type(error).__name__, frames)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
