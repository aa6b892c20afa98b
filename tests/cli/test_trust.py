"""TLS, and signatures of cards, as client commands use them."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_public_key,
)

from a2a_grpc import pb
from a2a_grpc.cards.signing import CardSigner, sign_card
from tests.cards.values import Pair, a_card, pair
from tests.cli.commands import a2a
from tests.support import echo, serving

# gRPC itself writes of broken handshakes to stderr, unless it is told not to.
QUIET = {"GRPC_VERBOSITY": "NONE"}


def certify(directory: Path) -> None:
    """A certificate for 127.0.0.1 that signs itself: `cert.pem` and `key.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "key.pem").write_bytes(pem)


class Greeter(pb.A2AServiceServicer):
    async def SendMessage(self, request: Any, context: Any) -> pb.SendMessageResponse:
        answer = pb.Message(message_id="1", role=pb.Role.ROLE_AGENT, parts=[pb.Part(text="hi")])
        return pb.SendMessageResponse(message=answer)


@asynccontextmanager
async def behind_tls(directory: Path) -> AsyncIterator[str]:
    """An agent that speaks TLS, and wants a certificate of its clients."""
    certify(directory)
    chain, key = ((directory / name).read_bytes() for name in ("cert.pem", "key.pem"))
    server = grpc.aio.server()
    pb.add_A2AServiceServicer_to_server(Greeter(), server)  # type: ignore[abstract]
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(
            [(key, chain)], root_certificates=chain, require_client_auth=True
        ),
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_certificates_are_checked_and_presented(tmp_path: Path) -> None:
    async with behind_tls(tmp_path) as address:
        files = ["--tls-ca", "cert.pem", "--tls-cert", "cert.pem", "--tls-key", "key.pem"]
        ran = await a2a("send", "hello", *files, target=address, cwd=tmp_path)
        assert (ran.code, ran.out, ran.err) == (0, "hi\n", "")
        by_variables = await a2a(
            "send", "hello", target=address, cwd=tmp_path, A2A_GRPC_TLS_CA="cert.pem",
            A2A_GRPC_CLIENT_TLS_CERT="cert.pem", A2A_GRPC_CLIENT_TLS_KEY="key.pem",
        )  # fmt: skip
        assert (by_variables.code, by_variables.out) == (0, "hi\n")
        unknown = await a2a("send", "hello", "--tls", target=address, **QUIET)
        assert unknown.code == 5
        assert "its certificate is not trusted; give --tls-ca" in unknown.error
        none = await a2a("send", "hello", "--tls-ca", "key.pem", target=address, cwd=tmp_path)
        assert none.code == 2
        assert none.error.startswith("--tls-ca (key.pem) holds no CERTIFICATE")
        in_the_clear = await a2a("send", "hello", target=address, **QUIET)
        assert in_the_clear.code in (1, 5)
        assert address in in_the_clear.error


@pytest.mark.parametrize("form", ["pem", "jwk", "jwks"])
async def test_the_signature_of_a_card_is_verified(form: str, tmp_path: Path) -> None:
    right, wrong = pair("ES256"), pair("ES256", 1)
    signed = sign_card(a_card(), CardSigner(right.private, key_id="key-1"))
    async with serving(echo, card=signed) as serve:
        address = serve.server.address

        async def verified(key: Pair) -> Any:
            (tmp_path / "key").write_bytes(written(key, form))
            return await a2a("card", "--verify", tmp_path / "key", target=address)

        good = await verified(right)
        unchecked = await a2a("card", target=address)
        bad = await verified(wrong)
    assert good.code == 0, good.err
    assert "ES256 with key key-1, verified" in good.out
    assert "ES256 with key key-1 (--verify KEYFILE checks it)" in unchecked.out
    assert (bad.code, bad.out) == (1, "")
    assert "signature" in bad.error


def written(key: Pair, form: str) -> bytes:
    """A public key as a file has it."""
    if form == "pem":
        return key.public
    public = load_pem_public_key(key.public)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    numbers = public.public_numbers()
    jwk = {"kty": "EC", "crv": "P-256", "kid": "key-1"}
    for name, number in (("x", numbers.x), ("y", numbers.y)):
        jwk[name] = base64.urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()
    return json.dumps(jwk if form == "jwk" else {"keys": [jwk]}).encode()


async def test_a_card_without_a_signature_does_not_verify(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(written(pair("ES256"), "pem"))
    async with serving(echo) as serve:
        ran = await a2a("card", "--verify", tmp_path / "key", target=serve.server.address)
    assert ran.code == 1
    assert "no signature" in ran.error


@pytest.mark.parametrize("content", [None, b"nonsense", b"[]"])
async def test_a_file_without_a_key_is_a_usage_error(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    ran = await a2a("card", "--verify", tmp_path / "key", target="127.0.0.1:1")
    assert ran.code == 2
    assert str(tmp_path / "key") in ran.error
