"""The URL of NATS: what it may say, what is refused with a remedy, and that it keeps secrets."""

from __future__ import annotations

import pytest

from a2a_grpc.nats.address import NatsAddress, NatsServer


def test_one_server_is_enough() -> None:
    address = NatsAddress.parse("nats://host")
    assert address.servers == (NatsServer("host", 4222, False),)
    assert (address.namespace, address.replicas) == ("a2a-grpc", 1)
    assert (address.credentials, address.nkey, address.token) == (None, None, None)
    assert (address.tls_ca, address.tls_cert, address.tls_key) == (None, None, None)


def test_several_servers() -> None:
    address = NatsAddress.parse("nats://a:1,nats://u:p%40%3A@b:2,c,tls://[::1]:5/?replicas=3")
    assert address.servers == (
        NatsServer("a", 1, False),
        NatsServer("b", 2, False, "u", "p@:"),
        NatsServer("c", 4222, False),
        NatsServer("::1", 5, True),
    )
    assert address.shown == "nats://a:1,nats://b:2,nats://c:4222,tls://[::1]:5"
    assert address.replicas == 3


def test_certificates_mean_tls() -> None:
    address = NatsAddress.parse("nats://a,b?tls_ca=/ca.pem&namespace=my-agents_1")
    assert all(server.tls for server in address.servers)
    assert address.tls_ca == "/ca.pem"
    assert address.namespace == "my-agents_1"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nats://h?namespace=a.b", "namespace is 'a.b'; use up to 64 letters"),
        ("nats://h?namespace=" + "x" * 65, "namespace"),
        ("nats://h?namespace=%20", "namespace"),
        ("nats://h?namespace=a&namespace=b", "namespace is given twice"),
        ("nats://h?replicas=2", "replicas is '2'; use 1, 3 or 5"),
        ("nats://h?repicas=3", "unknown parameter 'repicas'.*; use namespace, credentials, nkey"),
        ("nats://h?token=", "token is empty"),
        ("nats://h?tls_cert=/c.pem", "tls_cert and tls_key belong together"),
        ("nats://h?nkey=/n&token=secret-word", "several credentials: nkey, token; give one"),
        ("nats://u:secret-word@h?nkey=/n", "several credentials: nkey, user and password"),
        ("amqp://u:secret-word@h", "no scheme of NATS.*use nats://host:4222"),
        ("nats://u:secret-word@h:port", "malformed; use nats://host:4222"),
        ("nats://u:secret-word@h/path", "malformed"),
        ("nats://u:secret-word@[h", "malformed"),
        ("nats://u:secret-word@", "malformed"),
        ("nats://a,,b", "malformed"),
        ("nats://", "malformed"),
        ("", "no scheme"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy_and_no_secret(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        NatsAddress.parse(url)
    assert "secret-word" not in str(error.value)
    assert error.value.__cause__ is None


def test_nothing_secret_is_shown() -> None:
    for url in ("nats://user:secret-word@h:1", "nats://h:1?token=secret-word"):
        address = NatsAddress.parse(url)
        shown = f"{address!r} {address} {address.servers!r} {address.shown}"
        assert "secret-word" not in shown
        assert "user" not in shown
        assert "h:1" in shown
