"""What can't work is refused at once, by an error that names it and says what would work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc import A2AClient, AgentCardError, ClientTLS, pb
from a2a_grpc.client.address import address_of_card, parse_address
from a2a_grpc.client.card_source import card_url
from tests.client.support import a_card


@pytest.mark.parametrize(
    ("text", "target", "secure"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051", None),
        ("localhost:1", "localhost:1", None),
        ("agent.example.com:443", "agent.example.com:443", None),
        ("[::1]:50051", "[::1]:50051", None),
        ("grpc://agent:50051", "agent:50051", False),
        ("grpcs://agent:50051", "agent:50051", True),
        ("grpcs://agent", "agent:443", True),
        ("GRPCS://agent", "agent:443", True),
        (" 127.0.0.1:50051\n", "127.0.0.1:50051", None),
    ],
)
def test_addresses(text: str, target: str, secure: bool | None) -> None:
    found = parse_address(text)
    assert (found.target, found.secure) == (target, secure)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "host:port"),
        ("agent", "no port"),
        ("agent:", "no port"),
        ("agent:port", "no address"),
        ("agent:70000", "no address"),
        (":50051", "no host"),
        ("grpc://agent", "no port"),
        ("ftp://agent:1", "scheme ftp"),
        ("agent:1/path", "no address"),
        ("user@agent:1", "no address"),
        ("one two:1", "no address"),
    ],
)
def test_addresses_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        A2AClient(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False)],
)
def test_loopback_addresses(host: str, loopback: bool) -> None:
    assert parse_address(host).is_loopback is loopback


def card_with(*interfaces: tuple[str, str, str]) -> pb.AgentCard:
    card = pb.AgentCard(name="Somebody")
    for url, binding, version in interfaces:
        card.supported_interfaces.add(url=url, protocol_binding=binding, protocol_version=version)
    return card


def test_the_first_grpc_interface_of_version_1_is_taken() -> None:
    card = card_with(
        ("https://a/json", "JSONRPC", "1.0"),
        ("old:1", "GRPC", "0.3"),
        ("new:1", "grpc", "1.2"),
        ("newer:1", "GRPC", "1.0"),
    )
    card.supported_interfaces[2].tenant = "t"
    found = address_of_card(card)
    assert (found.target, found.secure, found.tenant) == ("new:1", None, "t")


@pytest.mark.parametrize(
    ("url", "target", "secure"),
    [
        ("https://agent", "agent:443", True),
        ("https://agent:8443/", "agent:8443", True),
        ("http://agent:80", "agent:80", False),
        ("http://agent", "agent:80", False),
        ("grpcs://agent", "agent:443", True),
        ("grpc://agent:5", "agent:5", False),
    ],
)
def test_the_scheme_of_an_interface_says_whether_it_is_tls(
    url: str, target: str, secure: bool
) -> None:
    found = address_of_card(card_with((url, "GRPC", "1.0")))
    assert (found.target, found.secure) == (target, secure)


def test_a_card_without_a_grpc_interface_lists_what_it_has() -> None:
    card = card_with(("https://a/json", "JSONRPC", "1.0"), ("old:1", "GRPC", "0.3"))
    with pytest.raises(AgentCardError, match=r"JSONRPC 1.0 at https://a/json, GRPC 0.3 at old:1"):
        A2AClient(card)
    with pytest.raises(AgentCardError, match="none at all"):
        A2AClient(pb.AgentCard(name="Nobody"))


@pytest.mark.parametrize("url", ["", "agent", "ftp://agent:1", "https://agent/path"])
def test_an_interface_that_can_not_be_called_is_named(url: str) -> None:
    with pytest.raises(AgentCardError, match="interface"):
        A2AClient(card_with((url, "GRPC", "1.0")))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://a.org", "https://a.org/.well-known/agent-card.json"),
        ("https://a.org/", "https://a.org/.well-known/agent-card.json"),
        ("https://a.org/agents/x", "https://a.org/agents/x/.well-known/agent-card.json"),
        ("http://a.org/card.json", "http://a.org/card.json"),
        ("https://a.org/card.json?v=1", "https://a.org/card.json?v=1"),
    ],
)
def test_urls_of_cards(text: str, url: str) -> None:
    assert card_url(text) == url


@pytest.mark.parametrize("text", ["http://", "http://a:port"])
def test_urls_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL|host"):
        A2AClient(text)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"agent": 5}, TypeError, "agent is a int"),
        ({"agent": None}, TypeError, "NoneType"),
        ({"token": ""}, ValueError, "token"),
        ({"token": "two\nlines"}, ValueError, "token"),
        ({"token": 5}, TypeError, "token"),
        ({"metadata": [("Key", "v")]}, ValueError, "'Key'.*lower-case"),
        ({"metadata": [("grpc-timeout", "1S")]}, ValueError, "grpc-timeout"),
        ({"metadata": [("key", "schön")]}, ValueError, "'key'"),
        ({"metadata": [("key", b"bytes")]}, ValueError, "-bin"),
        ({"metadata": [("key-bin", "str")]}, ValueError, "-bin"),
        ({"metadata": {"key": "value"}}, TypeError, "pairs"),
        ({"extensions": "urn:one"}, TypeError, "extensions"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": -1.0}, ValueError, "timeout"),
        ({"interceptors": [object()]}, TypeError, "no interceptor"),
        ({"agent": "grpc://a:1", "tls": True}, ValueError, "contradicts"),
        ({"agent": "grpcs://a:1", "tls": False}, ValueError, "contradicts"),
        ({"agent": "grpc://a:1", "tls": ClientTLS()}, ValueError, "contradicts"),
        ({"tls": ClientTLS(root_certificates="no/such.pem")}, ValueError, "no/such.pem"),
        ({"tls": ClientTLS(root_certificates=b"no")}, ValueError, "root_certificates.*PEM"),
        ({"tls": ClientTLS(root_certificates=Path("/"))}, ValueError, "can't read"),
    ],
    ids=str,
)
def test_arguments_of_the_client(how: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        A2AClient(**{"agent": "127.0.0.1:1", **how})


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="private_key"):
        ClientTLS(certificate="c.pem")
    with pytest.raises(ValueError, match="private_key"):
        ClientTLS(private_key="k.pem")


def test_a_private_key_is_not_shown() -> None:
    tls = ClientTLS(certificate=b"c", private_key=b"secret")
    assert "secret" not in repr(tls)


Send = Callable[..., Any]


@pytest.mark.parametrize("how", ["send", "stream"])
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("",), ValueError, "empty"),
        ((b"",), ValueError, "empty"),
        (([],), ValueError, "empty"),
        ((["text", ""],), ValueError, r"content\[1\] is empty"),
        ((pb.Message(),), ValueError, "empty"),
        ((pb.Part(),), ValueError, "Part without"),
        ((None,), TypeError, "NoneType"),
        ((5,), TypeError, "int"),
        ((["text", 5],), TypeError, r"content\[1\] is a int"),
        (([["nested"]],), TypeError, "list"),
        (({"a": object()},), ValueError, "JSON"),
        (({1: float("nan")},), ValueError, "JSON"),
    ],
    ids=repr,
)
async def test_content_that_says_nothing_or_is_none(
    how: str, arguments: tuple[Any, ...], error: type[Exception], says: str
) -> None:
    async with A2AClient("127.0.0.1:1") as client:
        with pytest.raises(error, match=says):
            await _called(getattr(client, how), *arguments)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: c.send("x", task_id=5), TypeError, "task_id is a int"),
        (lambda c: c.send(pb.Message(task_id="a"), task_id="b"), ValueError, "empty"),
        (
            lambda c: c.send(pb.Message(task_id="a", parts=[pb.Part(text="x")]), task_id="b"),
            ValueError,
            "task_id is 'b'",
        ),
        (lambda c: c.send("x", metadata={"a": object()}), ValueError, "metadata"),
        (lambda c: c.send("x", message_metadata={"a": {1}}), ValueError, "message_metadata"),
        (lambda c: c.send("x", reference_task_ids="abc"), TypeError, "reference_task_ids"),
        (lambda c: c.send("x", accepted_output_modes="text/plain"), TypeError, "accepted"),
        (lambda c: c.send("x", extensions="urn:one"), TypeError, "extensions"),
        (lambda c: c.send("x", timeout=0), ValueError, "timeout"),
        (lambda c: c.stream("x", timeout=-1), ValueError, "timeout"),
        (lambda c: c.get_task(""), ValueError, "task_id is empty"),
        (lambda c: c.get_task(None), TypeError, "task_id is a NoneType"),
        (lambda c: c.cancel_task(""), ValueError, "task_id is empty"),
        (lambda c: c.subscribe(""), ValueError, "task_id is empty"),
        (lambda c: c.subscribe("t", last_sequence=-1), ValueError, "last_sequence"),
        (lambda c: c.subscribe("t", last_sequence="3"), ValueError, "last_sequence"),
        (lambda c: c.create_push_config("t", ""), ValueError, "url is empty"),
        (lambda c: c.get_push_config("t", ""), ValueError, "id is empty"),
        (lambda c: c.delete_push_config("", "c"), ValueError, "task_id is empty"),
    ],
)
async def test_arguments_of_calls(call: Any, error: type[Exception], says: str) -> None:
    async with A2AClient("127.0.0.1:1") as client:
        with pytest.raises(error, match=says):
            await _called(call, client)


async def test_a_card_is_copied_when_it_is_given() -> None:
    card = a_card("127.0.0.1:1")
    client = A2AClient(card)
    card.Clear()
    assert client.address == "127.0.0.1:1"


async def _called(function: Any, *arguments: Any) -> None:
    found = function(*arguments)
    if hasattr(found, "__await__"):
        await found
