"""The parent of a server process that is one of several: asked for a port, told of the start.

Both talk in lines of JSON over a socket that the parent opened, which lives as long as the parent:
when it closes, this process stops too, as if it got SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Self

logger = logging.getLogger(__name__)

VARIABLE = "A2A_GRPC_PARENT"
"""In the environment of such a process: the number of the socket."""

_PATIENCE = 30.0
"""Seconds beyond its grace that a process has to end when its parent is gone."""


@dataclass(frozen=True)
class Started:
    """What is said when a server, or all processes of one, serve.

    Attributes:
        address: host:port.
        store: where tasks are kept, without secrets; None if that is an object of the program.
        unnamed: whether the card names no address that clients elsewhere can call.
    """

    address: str
    store: str | None
    unnamed: bool


class Parent:
    """Reads what the parent says on a thread of its own, since the process may be busy."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.grace = 0.0
        """Seconds that running turns get when the parent is gone."""
        threading.Thread(target=self._read, name="parent", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> Self | None:
        """The parent, if a supervisor started this process; to be asked once.

        Raises OSError if the environment says so and it is not true.
        """
        number = os.environ.pop(VARIABLE, None)  # what an agent starts is no server of ours
        if number is None:
            return None
        try:
            connection = socket.socket(fileno=int(number))
            connection.set_inheritable(False)
        except (ValueError, OSError) as error:
            raise OSError(f"{VARIABLE} is set, and is no socket; unset it") from error
        return cls(connection)

    def reserve(self, host: str, port: int) -> int:
        """The port to listen on, together with the others.

        Raises OSError, which names the remedy, if the address can't be had.
        """
        self._send({"reserve": [host, port]})
        reply = self._replies.get()
        if "error" in reply:
            raise OSError(reply["error"])
        found: int = reply["port"]
        return found

    def tell_started(self, started: Started) -> None:
        """This process serves."""
        self._send({"started": asdict(started)})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            logger.debug("the parent does not listen")  # the reader finds out

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._replies.put(json.loads(line))
        except OSError:
            pass  # a parent that was killed with what we sent unread
        logger.warning("the process that started this one is gone; stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self.grace + _PATIENCE)
        os._exit(1)  # an agent that blocks the process must not keep it, and the port, for ever
