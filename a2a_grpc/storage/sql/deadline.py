"""How long PostgreSQL may take to answer: a connection that hears nothing for longer is dropped.

A host that dies, or an address that moves to another one, says nothing to the connections that are
there; TCP alone notices after minutes. Connections are aborted rather than closed, since to close
one is to ask the server again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine

_TIMER = "deadline"


class Deadline:
    """Bounds the transactions of the engines that it watches.

    Args:
        seconds: for one transaction, and to set up a new connection.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._idle: WeakSet[Any] = WeakSet()

    def watch(self, engine: AsyncEngine) -> None:
        """Look after the connections of an engine, before its first one."""
        # Before those of SQLAlchemy, which ask the server for its types.
        event.listen(engine.sync_engine, "connect", self._on_connect, insert=True)
        event.listen(engine.sync_engine, "checkout", self._on_checkout)
        event.listen(engine.sync_engine, "checkin", self._on_checkin)

    @contextmanager
    def over(self, connection: Any) -> Iterator[None]:
        """Bound what runs in it on a connection of the driver.

        Raises TimeoutError in place of the driver's error when it has dropped the connection;
        nobody knows then what became of the transaction.
        """
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            _drop(connection)
            # They may be as dead, and the next to wait for.
            for idle in list(self._idle):
                _drop(idle)

        timer = asyncio.get_running_loop().call_later(self.seconds, expire)
        try:
            yield
        except Exception as error:
            if not expired:
                raise
            raise TimeoutError(f"no answer for {self.seconds:g}s: connection dropped") from error
        finally:
            timer.cancel()

    def _on_connect(self, connection: Any, record: Any) -> None:
        loop = asyncio.get_running_loop()
        record.info[_TIMER] = loop.call_later(self.seconds, _drop, connection.driver_connection)

    def _on_checkout(self, connection: Any, record: Any, proxy: Any) -> None:
        if (timer := record.info.pop(_TIMER, None)) is not None:
            timer.cancel()
        self._idle.discard(connection.driver_connection)
        if connection.driver_connection.is_closed():
            raise DisconnectionError("the connection is closed")

    def _on_checkin(self, connection: Any | None, record: Any) -> None:
        if connection is not None:
            self._idle.add(connection.driver_connection)


def _drop(connection: Any) -> None:
    if not connection.is_closed():
        connection.terminate()
