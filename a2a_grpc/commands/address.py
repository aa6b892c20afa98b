"""Whether an address can be bound, found out with a plain socket, and how one is kept for others.

grpc would find out too, but says so in lines of its own on stderr, tells no reasons apart, and
takes `localhost` for free as soon as one of its addresses is.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

_TRIES = 10
"""How many free ports are tried, until one is free on all addresses of a host."""


def check_address(host: str, port: int) -> None:
    """Raises OSError, which names the remedy, if the address can't be bound now."""
    with ExitStack() as stack:
        _bind(host, port, (socket.SO_REUSEADDR,) if os.name == "posix" else (), stack)


class Reservation:
    """A port that several processes of this user share, kept while they come and go.

    Its sockets are bound with SO_REUSEPORT and do not listen, so they take no connection; nobody
    who wants the port alone can have it. A context manager, or `close` it.

    Raises OSError, which names the remedy, if the address can't be bound, or is taken even by a
    program that would share it.
    """

    def __init__(self, host: str, port: int) -> None:
        if port:
            check_address(host, port)
        with ExitStack() as stack:
            try:
                self.port = _bind(host, port, (socket.SO_REUSEPORT,), stack)
                """The port that is bound."""
            except OSError:
                # Connections that a single server has closed a moment ago. With this option, what
                # `check_address` looks for is there only when one of the processes listens.
                both = (socket.SO_REUSEPORT, socket.SO_REUSEADDR)
                self.port = _bind(host, port, both, stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the port up."""
        self._stack.close()


def _bind(host: str, port: int, options: Sequence[int], stack: ExitStack) -> int:
    """Bind all addresses of a host to one port, with sockets that the stack closes."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OSError(
            f"can't listen on {host}: it is no address of this machine; use another --host, such "
            "as 127.0.0.1"
        ) from error
    for last in range(_TRIES, 0, -1):
        failures: list[OSError] = []
        bound = port
        with ExitStack() as sockets:
            for family, kind, protocol, _, address in found:
                try:
                    opened = sockets.enter_context(socket.socket(family, kind, protocol))
                    for option in options:
                        opened.setsockopt(socket.SOL_SOCKET, option, 1)
                    opened.bind((address[0], bound, *address[2:]))
                    bound = bound or opened.getsockname()[1]
                except OSError as error:
                    failures.append(error)
            # An address that is taken would get the calls meant for us; one that the machine does
            # not have, such as localhost's in IPv6, gets none.
            taken = [failure for failure in failures if failure.errno == errno.EADDRINUSE]
            failed = taken or (failures if len(failures) == len(found) else [])
            if not failed:
                stack.push(sockets.pop_all())
                return bound
        if port or not taken or last == 1:
            break
    raise OSError(
        f"can't listen on {host}:{port}: {_remedy(failed[0].errno, failed[0].strerror)}"
    ) from failed[0]


def _remedy(code: int | None, text: str | None) -> str:
    if code == errno.EADDRINUSE:
        return "the port is taken; stop the program that has it, or use another --port (0: any)"
    if code == errno.EADDRNOTAVAIL:
        return "the address is not this machine's; use another --host, such as 127.0.0.1"
    if code == errno.EACCES:
        return "this user may not use the port; use another --port, above 1023"
    return f"{text}; use another --host or --port"
