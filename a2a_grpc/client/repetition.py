"""Whether a message may be sent again: only where the server is known to run it once.

Such a server declares the retry extension in its card, with the window for which it remembers a
message. A try that never left this machine may always be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from a2a_grpc import pb
from a2a_grpc.client.errors import ClientClosedError
from a2a_grpc.client.retry import Tries
from a2a_grpc.errors import A2AError, UnavailableError, UnsupportedOperationError
from a2a_grpc.extensions import RETRY_EXTENSION, RETRY_MARK

_MARKED = ((RETRY_MARK, "1"),)
_DEFAULT_WINDOW = 300.0


class Deduplication:
    """What is known of the server: for how long it remembers a message.

    Args:
        card: the agent's card, if it is known.
        discover: asks the server for it: seconds for the call -> card.
    """

    def __init__(
        self,
        card: pb.AgentCard | None,
        discover: Callable[[float | None], Awaitable[pb.AgentCard]],
    ) -> None:
        self._discover = discover
        self.is_known = False
        self._window: float | None = None
        if card is not None:
            self.learn(card)

    def learn(self, card: pb.AgentCard) -> None:
        """Take it from a card of this agent."""
        self.is_known = True
        self._window = None
        for extension in card.capabilities.extensions:
            if extension.uri == RETRY_EXTENSION:
                fields = extension.params.fields
                declared = fields["windowSeconds"].number_value if "windowSeconds" in fields else 0
                self._window = declared if declared > 0 else _DEFAULT_WINDOW

    async def window(self, timeout: float | None) -> float | None:
        """Seconds; None if the server does not deduplicate. Raises UnavailableError."""
        if not self.is_known:
            try:
                self.learn(await self._discover(timeout))
            except UnsupportedOperationError:
                self.is_known = True  # it offers no card over gRPC, so it says nothing of the kind
        return self._window


class Repetition:
    """The tries of one message."""

    # A try may wait for its connection; it must arrive before the server forgets.
    SHARE_OF_WINDOW = 0.8

    def __init__(self, deduplication: Deduplication, message_id: str) -> None:
        self._deduplication = deduplication
        self._message_id = message_id
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self.may_have_arrived = False

    @property
    def mark(self) -> tuple[tuple[str, str], ...]:
        """The metadata of the next try."""
        return _MARKED if self.may_have_arrived else ()

    async def prepare(self, error: A2AError, tries: Tries, *, arrived: bool) -> None:
        """Wait for the next try; raises `error`, or one that says why there is none.

        `arrived` says whether the try that failed may have reached the server and started work.
        """
        self.may_have_arrived |= arrived
        while True:
            if self.may_have_arrived and self._deduplication.is_known:
                await self._check(error, tries)
            await tries.pause(error)
            if not self.may_have_arrived:
                return
            try:
                await self._check(error, tries)
            except _StillUnavailable:
                continue
            return

    async def permit(self, tries: Tries) -> None:
        """See that the message may be sent again after its sender gave up in between.

        Raises UnavailableError that says why it may not.
        """
        if not self.may_have_arrived:
            return
        error = UnavailableError("nobody waited for the answer")
        try:
            await self._check(error, tries)
        except _StillUnavailable as failed:
            raise self._refused(error, "the server can't be asked now") from failed.__cause__

    async def _check(self, error: A2AError, tries: Tries) -> None:
        try:
            window = await self._deduplication.window(tries.remaining())
        except ClientClosedError:
            raise
        except UnavailableError as failed:
            raise _StillUnavailable from failed
        except A2AError as failed:
            raise self._refused(error, f"the server does not tell: {failed.message}") from failed
        if window is None:
            raise self._refused(
                error,
                f"the server does not declare {RETRY_EXTENSION}, so it was not sent again, which "
                "might run it twice; look for its task with list_tasks first",
            )
        if self._clock() - self._since > window * self.SHARE_OF_WINDOW:
            raise self._refused(
                error,
                f"the {window:g} seconds for which the server remembers it are about to pass, so "
                "it was not sent again; look for its task with list_tasks first",
            )

    def _refused(self, error: A2AError, why: str) -> UnavailableError:
        refused = UnavailableError(
            f"{error.message}; whether message {self._message_id!r} arrived is not known: {why}",
            metadata={"message_id": self._message_id},
        )
        refused.__cause__ = error
        return refused


class _StillUnavailable(Exception):
    """The server could not be asked for its card either."""
