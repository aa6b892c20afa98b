"""Whether an address can be bound, found out with a plain socket.

grpc would find out too, but says so in lines of its own on stderr, tells no reasons apart, and
takes `localhost` for free as soon as one of its addresses is.
"""

from __future__ import annotations

import errno
import os
import socket


def check_address(host: str, port: int) -> None:
    """Raises OSError, which names the remedy, if the address can't be bound now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OSError(
            f"can't listen on {host}: it is no address of this machine; use another --host, such "
            "as 127.0.0.1"
        ) from error
    failures: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                if os.name == "posix":
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            failures.append(error)
    for failure in failures:
        # An address that is taken would get the calls meant for us; one that the machine does not
        # have, such as localhost's in IPv6, gets none.
        if failure.errno == errno.EADDRINUSE or len(failures) == len(found):
            raise OSError(
                f"can't listen on {host}:{port}: {_remedy(failure.errno, failure.strerror)}"
            ) from failure


def _remedy(code: int | None, text: str | None) -> str:
    if code == errno.EADDRINUSE:
        return "the port is taken; stop the program that has it, or use another --port (0: any)"
    if code == errno.EADDRNOTAVAIL:
        return "the address is not this machine's; use another --host, such as 127.0.0.1"
    if code == errno.EACCES:
        return "this user may not use the port; use another --port, above 1023"
    return f"{text}; use another --host or --port"
