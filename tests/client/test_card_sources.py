"""Clients made from the URL of a card, and cards that have to be signed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from google.protobuf import json_format

from a2a_grpc import (
    A2AClient,
    AgentCardError,
    CardSignatureError,
    UnavailableError,
    pb,
)
from a2a_grpc.cards.signing import CardSigner, sign_card
from a2a_grpc.client.card_source import MAX_BYTES, WELL_KNOWN
from tests.client.support import FAST, a_card, listening, sent
from tests.support import COMPLETED, echo, serving, within

Answers = dict[str, tuple[int, dict[str, str], bytes]]


@asynccontextmanager
async def site(answers: Answers) -> AsyncIterator[str]:
    """A web site with these pages: status, headers, body."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        path = request.split(b" ")[1].decode()
        status, headers, body = answers.get(path, (404, {}, b"nothing here"))
        lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        with suppress(OSError):
            await writer.drain()
        writer.close()

    async with listening(handle) as address:
        yield f"http://{address}"


def page(card: pb.AgentCard) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "application/json"}, json_format.MessageToJson(card).encode()


@pytest.mark.parametrize("path", ["", "/", WELL_KNOWN, "/below", "/elsewhere/card.json"])
async def test_a_client_is_made_from_the_url_of_a_card_or_of_a_site(path: str) -> None:
    async with serving(echo) as s:
        card = page(a_card(s.server.address))
        answers = {WELL_KNOWN: card, f"/below{WELL_KNOWN}": card, "/elsewhere/card.json": card}
        async with site(answers) as url:
            client = A2AClient(url + path)
            assert client.address == ""
            async with client:
                assert client.address == s.server.address
                assert (await client.get_card()).name == "test"
                assert (await sent(client, "hello")).status.state == COMPLETED


async def test_fields_of_later_versions_do_not_matter() -> None:
    data = {**json_format.MessageToDict(a_card("127.0.0.1:1")), "later": {"a": 1}}
    async with (
        site({WELL_KNOWN: (200, {}, json.dumps(data).encode())}) as url,
        A2AClient(url) as client,
    ):
        assert client.address == "127.0.0.1:1"


async def test_redirects_are_followed_a_few_times() -> None:
    answers: Answers = {
        WELL_KNOWN: (302, {"location": "/moved.json"}, b""),
        "/moved.json": page(a_card("127.0.0.1:1")),
        "/loop.json": (302, {"location": "/loop.json"}, b""),
    }
    async with site(answers) as url:
        async with A2AClient(url) as client:
            assert client.address == "127.0.0.1:1"
        with pytest.raises(AgentCardError, match="redirects too often"):
            await within(A2AClient(f"{url}/loop.json").__aenter__())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, {"content-type": "text/html"}, b"<html>Hello</html>"), r"text/html.*no agent card"),
        ((200, {}, b"[]"), "no agent card"),
        ((200, {}, b"{}"), "no name"),
        ((200, {}, b"\xff\xfe"), "no agent card"),
        ((200, {}, b'{"name": 5}'), "no agent card"),
        ((200, {}, b"[" * 200_000), "no agent card"),
        ((200, {}, b" " * (MAX_BYTES + 1)), "1 MiB"),
        ((200, {"content-encoding": "gzip"}, b"not gzip"), "can't be decoded"),
        ((404, {}, b""), "HTTP status 404"),
        ((500, {}, b""), "HTTP status 500"),
        (
            page(pb.AgentCard(name="old", supported_interfaces=[pb.AgentInterface(url="x")])),
            "no interface with the binding GRPC",
        ),
    ],
    ids=[
        *("html", "list", "empty", "binary", "wrong", "deep", "large", "encoding", "404", "500"),
        "no grpc",
    ],
)
async def test_what_is_no_card_is_named(answer: Any, says: str) -> None:
    async with site({WELL_KNOWN: answer}) as url:
        with pytest.raises(AgentCardError, match=says) as caught:
            await within(A2AClient(url).__aenter__())
        assert len(caught.value.message) < 600


async def test_a_site_that_is_not_there_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"http://127.0.0.1:1/"):
        await within(A2AClient("http://127.0.0.1:1").__aenter__())


async def test_a_site_that_does_not_answer_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(silent) as address:
        with pytest.raises(UnavailableError, match="did not come within"):
            await within(A2AClient(f"http://{address}", timeout=0.2).__aenter__())


async def test_a_site_that_answers_a_byte_at_a_time_is_given_up() -> None:
    """The timeout is for all of the card, not for each byte."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)

    async with listening(slow) as address:
        with pytest.raises(UnavailableError, match="did not come within"):
            await within(A2AClient(f"http://{address}", timeout=0.2).__aenter__())


async def test_a_card_in_plaintext_from_elsewhere_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(UnavailableError):
        await within(A2AClient("http://nobody.invalid").__aenter__())
    assert "https is safer" in caplog.text


# Signatures.


class Signed:
    """A key pair, and cards signed with it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        self.public = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.keys = {"k": self.public}

    @property
    def private(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def card(self, card: pb.AgentCard) -> pb.AgentCard:
        return sign_card(card, CardSigner(self.private, key_id="k"))


async def test_a_card_that_is_given_has_to_be_signed() -> None:
    signed = Signed()
    card = signed.card(a_card("127.0.0.1:1"))
    assert A2AClient(card, card_keys=signed.keys).address == "127.0.0.1:1"
    with pytest.raises(CardSignatureError, match="no signature"):
        A2AClient(a_card("127.0.0.1:1"), card_keys=signed.keys)
    with pytest.raises(CardSignatureError):
        A2AClient(card, card_keys=Signed().keys)
    card.name = "changed"
    with pytest.raises(CardSignatureError, match="changed"):
        A2AClient(card, card_keys=signed.keys)
    assert A2AClient(card).address == "127.0.0.1:1", "without keys nothing is checked"


async def test_a_card_that_is_fetched_has_to_be_signed() -> None:
    signed = Signed()
    card = a_card("127.0.0.1:1")
    async with site({"/a.json": page(signed.card(card)), "/b.json": page(card)}) as url:
        async with A2AClient(f"{url}/a.json", card_keys=signed.keys) as client:
            assert client.address == "127.0.0.1:1"
        with pytest.raises(CardSignatureError):
            await A2AClient(f"{url}/b.json", card_keys=signed.keys).__aenter__()


async def test_cards_over_grpc_have_to_be_signed() -> None:
    signed = Signed()
    extended = pb.AgentCard(name="Extended")
    async with serving(echo, extended_card=extended) as s:
        with pytest.raises(CardSignatureError):
            await within(A2AClient(s.server.address, card_keys=signed.keys).__aenter__())
        card = signed.card(a_card(s.server.address))
        async with A2AClient(card, card_keys=signed.keys, retry=FAST) as client:
            assert await client.get_card() == card
            with pytest.raises(CardSignatureError):
                await within(client.get_extended_card())
            assert (await sent(client, "hello")).status.state == COMPLETED
    signer = CardSigner(signed.private, key_id="k")
    async with (
        serving(echo, extended_card=extended, card_signer=signer) as s,
        A2AClient(s.server.address, card_keys=signed.keys, retry=FAST) as client,
    ):
        assert (await client.get_extended_card()).name == "Extended"
        assert (await sent(client, "hello")).status.state == COMPLETED
