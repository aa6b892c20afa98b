"""nats-py's client for one connection, mended where a service that runs for months needs it.

All that is not nats-py's public API is used here and nowhere else. A client lives as long as its
connection; `NatsConnection` makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error, NoServersError

logger = logging.getLogger(__name__)

OnMessage = Callable[[str, str, bytes, dict[str, str] | None], None]
"""Called with subject, reply subject, data and headers of a message; must not wait."""


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks that use a client, and wait until they have ended.

    Again and again: nats-py, and `asyncio.wait_for` of Python 3.11, which it uses, lose a
    cancellation now and then.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=0.05)
    await asyncio.gather(*tasks, return_exceptions=True)  # nobody else asks for their exceptions


class NatsClient(Client):
    """One connection.

    - Messages are handed over as they are read, in order. nats-py would put each into a queue per
      subscription, emptied by a task per subscription: a second trip through the event loop for
      each message, a task for each task that somebody follows, and losses when a queue is full.
    - `lost` is set at once when the connection is, before nats-py has tidied up; and then the
      socket is aborted: waiting for a peer that is gone to take what is left takes minutes.
    - Over TLS or not at all, if TLS is asked for: nats-py leaves that to the server's INFO, and
      would send credentials in the clear.
    - A PONG that nobody waits for any more is no error; nats-py's reader would die of it.
    """

    def __init__(self, on_message: OnMessage, on_error: Callable[[Exception], None]) -> None:
        super().__init__()
        self._on_message = on_message
        self._on_error = on_error
        self._needs_tls = False
        self._is_leaving = False
        self.lost = asyncio.Event()

    async def open(self, server: str, *, needs_tls: bool, **options: Any) -> None:
        """Connect to one server, once. Raises OSError, TimeoutError and nats.errors.Error."""
        self._needs_tls = needs_tls

        problem: Exception | None = None

        async def error_cb(error: Exception) -> None:
            nonlocal problem
            problem = error
            self._on_error(error)

        try:
            await self.connect(
                [server],
                error_cb=error_cb,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                **options,
            )
        except NoServersError:
            if problem is None:
                raise
            raise problem from None  # why there is none

    async def leave(self) -> None:
        """Send what is left, and close."""
        self._is_leaving = True
        await self.close()

    def abort(self) -> None:
        """Close at once."""
        self._pending.clear()
        self._pending_data_size = 0
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def stop_delivery(self, subscription: Subscription) -> None:
        """Tell the server to send no more; what is on its way still arrives."""
        await self._send_unsubscribe(subscription._id)

    @property
    def info(self) -> dict[str, Any]:
        """What the server said of itself."""
        return self._server_info

    # What nats-py calls.

    def _build_message(self, *args: Any) -> Any:
        subject, reply, data, headers = args[-4:]
        try:
            self._on_message(subject.decode(), reply.decode(), data, headers)
        except Exception:
            logger.exception("a message from NATS could not be taken in")
        return None  # which ends nats-py's part in it

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self.lost.set()
        if not self._is_leaving:
            self.abort()
        await super()._close(status, do_cbs)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    def _connect_command(self) -> bytes:
        if self._needs_tls and not self._server_info.get("tls_required"):
            raise Error("the server does not offer TLS")
        return super()._connect_command()
