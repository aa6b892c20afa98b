"""How often and how late a call is tried again, and the time that all its tries have together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from a2a_grpc.client.errors import DeadlineExceededError
from a2a_grpc.errors import A2AError, RetryableError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with full jitter: each wait is random between 0 and the current backoff.

    Attributes:
        attempts: tries of a call at the most, the first one included.
        stream_patience: seconds for which a stream that had begun tries to go on when its server
            is away, as while it restarts; 0 for no repetition.
        initial_backoff: longest wait before the second try, in seconds.
        max_backoff: longest wait before any try, in seconds.
        multiplier: by which the longest wait grows from try to try.
        longest_wait: seconds that a server may ask us to wait (RetryInfo); if it asks for more, its
            error is raised.
    """

    attempts: int = 6
    stream_patience: float = 60.0
    initial_backoff: float = 0.25
    max_backoff: float = 4.0
    multiplier: float = 2.0
    longest_wait: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; use 1 for no repetition, or more")
        for name in ("stream_patience", "initial_backoff", "max_backoff", "longest_wait"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; use seconds, 0 or more")
        if not 1 <= self.multiplier < float("inf"):
            raise ValueError(f"multiplier is {self.multiplier}; use 1 or more")

    @classmethod
    def none(cls) -> Self:
        """Nothing is ever tried again."""
        return cls(attempts=1, stream_patience=0.0)

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; random."""
        longest = self.initial_backoff
        for _ in range(failures - 1):
            longest *= self.multiplier
            if longest >= self.max_backoff:
                break
        return random.random() * min(longest, self.max_backoff)


class Tries:
    """The tries of one call: counts them and keeps its deadline.

    Args:
        timeout: seconds from now for all of them; None for no limit.
        sleep: waits so many seconds; may raise in place of the next try.
    """

    __slots__ = ("_deadline", "_failing_since", "_loop", "_policy", "_what", "failures", "sleep")

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        what: str,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._what = what
        self.sleep = sleep
        self.failures = 0
        self._failing_since = 0.0

    def remaining(self) -> float | None:
        """Seconds that are left; raises DeadlineExceededError if none are."""
        if self._deadline is None:
            return None
        left = self._deadline - self._loop.time()
        if left <= 0:
            raise DeadlineExceededError(f"{self._what}: the timeout passed")
        return left

    def progress(self) -> None:
        """Something new came: the count begins again."""
        self.failures = 0

    def delay(self, error: A2AError, *, resumes: bool = False) -> float | None:
        """Seconds to wait before the next try; None if there is none, and the error stands.

        `resumes` says that it is a stream which had begun: those have time, not a number of tries.
        """
        now, policy = self._loop.time(), self._policy
        if not self.failures:
            self._failing_since = now
        self.failures += 1
        if self.failures >= policy.attempts and not resumes:
            return None
        delay = policy.backoff(self.failures)
        if isinstance(error, RetryableError) and error.retry_after is not None:
            if error.retry_after > policy.longest_wait:
                return None
            delay += error.retry_after  # with the jitter on top: many were told the same
        if resumes and now + delay - self._failing_since >= policy.stream_patience:
            return None
        if self._deadline is not None and now + delay >= self._deadline:
            return None  # known now already, and the error says more than a timeout would
        return delay

    async def pause(self, error: A2AError) -> None:
        """Wait until it is time for the next try; raises `error` if there is none."""
        delay = self.delay(error)
        if delay is None:
            raise error
        await self.sleep(delay)
