"""Ports that are kept for several processes."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from a2a_grpc.commands.address import Reservation, check_address


def listening(port: int, *options: int) -> socket.socket:
    """A socket that listens, with these options set."""
    opened = socket.socket()
    try:
        for option in options:
            opened.setsockopt(socket.SOL_SOCKET, option, 1)
        opened.bind(("127.0.0.1", port))
        opened.listen()
    except BaseException:
        opened.close()
        raise
    return opened


def test_a_reserved_port_is_taken_for_all_but_those_who_share_it() -> None:
    with Reservation("127.0.0.1", 0) as kept:
        assert kept.port > 0
        with pytest.raises(OSError, match="the port is taken"):
            check_address("127.0.0.1", kept.port)
        with pytest.raises(OSError, match="the port is taken"):
            Reservation("127.0.0.1", kept.port)
        with (
            closing(listening(kept.port, socket.SO_REUSEPORT)),
            closing(listening(kept.port, socket.SO_REUSEPORT)),
            closing(socket.create_connection(("127.0.0.1", kept.port))),
        ):
            pass
    check_address("127.0.0.1", kept.port)


def test_a_reservation_takes_no_connection() -> None:
    with (
        Reservation("127.0.0.1", 0) as kept,
        pytest.raises(ConnectionRefusedError),
    ):
        socket.create_connection(("127.0.0.1", kept.port))


def test_a_name_with_several_addresses_has_one_port_on_all_of_them() -> None:
    with Reservation("localhost", 0) as kept:
        for host in {found[4][0] for found in socket.getaddrinfo("localhost", kept.port)}:
            with pytest.raises(OSError, match="the port is taken"):
                check_address(str(host), kept.port)


def test_a_port_can_be_reserved_right_after_a_single_server_has_left_it() -> None:
    with closing(listening(0, socket.SO_REUSEADDR)) as server:
        port = server.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            connection, _ = server.accept()
            connection.close()  # who closes first has to remember the connection for a while
            assert client.recv(1) == b""
    with pytest.raises(OSError, match="in use"):
        listening(port, socket.SO_REUSEPORT)
    with Reservation("127.0.0.1", port) as kept:
        assert kept.port == port


@pytest.mark.parametrize(
    ("host", "words"),
    [("192.0.2.1", "not this machine's"), ("no.such.host.invalid", "no address of this machine")],
)
def test_an_address_that_is_not_this_machines_is_refused(host: str, words: str) -> None:
    with pytest.raises(OSError, match=words):
        Reservation(host, 0)
