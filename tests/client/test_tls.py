"""TLS and mutual TLS with real certificates, and what is said when they do not fit."""

from __future__ import annotations

import datetime
import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from a2a_grpc import A2AClient, ClientTLS, RetryPolicy, UnavailableError, pb
from tests.client.support import FAST, LATE, failing, read
from tests.support import COMPLETED, WORKING, a_task, outline, status_update


class Authority:
    """Signs certificates; everything is PEM."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.certificate = self._signed(self._name, self._key, None)

    def issue(self, *names: str) -> tuple[bytes, bytes]:
        """A certificate for these names and addresses, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        found: list[x509.GeneralName] = []
        for name in names:
            try:
                found.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                found.append(x509.DNSName(name))
        certificate = self._signed(subject, key, x509.SubjectAlternativeName(found))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate, private

    def _signed(self, subject: x509.Name, key: Any, names: Any) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )
        if names is None:
            builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        else:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


class Servicer(pb.A2AServiceServicer):
    """An agent behind TLS: it answers, streams, and notes who called."""

    def __init__(self) -> None:
        self.callers: list[dict[str, Any]] = []
        self.metadata: list[dict[str, Any]] = []

    async def GetTask(self, request: Any, context: Any) -> pb.Task:
        self.callers.append(context.auth_context())
        self.metadata.append(dict(context.invocation_metadata()))
        return a_task(WORKING, id=request.id)

    async def SendStreamingMessage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.StreamResponse(task=a_task(WORKING, id="t"))
        yield pb.StreamResponse(status_update=status_update(COMPLETED))


@asynccontextmanager
async def secure(
    certificate: bytes, key: bytes, *, client_authority: bytes | None = None
) -> AsyncIterator[tuple[Servicer, str]]:
    """The servicer on a port with TLS, and mutual TLS if there is an authority for clients."""
    servicer, server = Servicer(), grpc.aio.server()  # type: ignore[abstract]
    pb.add_A2AServiceServicer_to_server(servicer, server)
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)],
        root_certificates=client_authority,
        require_client_auth=client_authority is not None,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def test_a_server_with_a_certificate_is_called(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(authority.certificate)
    async with secure(*authority.issue("127.0.0.1")) as (_, address):
        for roots in (authority.certificate, path, str(path)):
            for agent in (address, f"grpcs://{address}"):
                tls = ClientTLS(root_certificates=roots)
                async with A2AClient(agent, tls=tls) as client:
                    assert (await client.get_task("t")).id == "t"
                    events = await read(client.stream("hello"))
                    assert outline(events) == ["task WORKING", "status COMPLETED"]


async def test_files_are_read_when_the_client_is_made(authority: Authority, tmp_path: Path) -> None:
    """Opening it, in the event loop, reads no disk."""
    path = tmp_path / "ca.pem"
    path.write_bytes(authority.certificate)
    async with secure(*authority.issue("127.0.0.1")) as (_, address):
        client = A2AClient(address, tls=ClientTLS(root_certificates=path))
        path.unlink()
        async with client:
            assert (await client.get_task("t")).id == "t"


async def test_a_card_with_https_is_called_with_tls(authority: Authority) -> None:
    async with secure(*authority.issue("127.0.0.1")) as (_, address):
        card = pb.AgentCard(name="secure")
        card.supported_interfaces.add(
            url=f"https://{address}", protocol_binding="GRPC", protocol_version="1.0"
        )
        async with A2AClient(card, retry=FAST) as client:
            error = await failing(client.get_task("t"))
            assert "not trusted" in error.message, "TLS, with the usual authorities"
        tls = ClientTLS(root_certificates=authority.certificate)
        async with A2AClient(card, tls=tls) as client:
            assert (await client.get_task("t")).id == "t"


async def test_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("client")
    (tmp_path / "c.pem").write_bytes(certificate)
    (tmp_path / "k.pem").write_bytes(key)
    pair = authority.issue("127.0.0.1")
    async with secure(*pair, client_authority=authority.certificate) as (servicer, address):
        tls = ClientTLS(
            root_certificates=authority.certificate,
            certificate=tmp_path / "c.pem",
            private_key=str(tmp_path / "k.pem"),
        )
        async with A2AClient(address, tls=tls) as client:
            await client.get_task("t")
        assert servicer.callers[0]["x509_common_name"] == [b"client"]
        tls = ClientTLS(root_certificates=authority.certificate)
        policy = RetryPolicy(attempts=2, initial_backoff=0.01)
        async with A2AClient(address, tls=tls, retry=policy) as client:
            assert isinstance(await failing(client.get_task("t")), UnavailableError)
        assert len(servicer.callers) == 1


async def test_a_certificate_for_another_name(authority: Authority) -> None:
    async with secure(*authority.issue("agent.example.com")) as (_, address):
        tls = ClientTLS(root_certificates=authority.certificate, server_name="agent.example.com")
        async with A2AClient(address, tls=tls) as client:
            assert (await client.get_task("t")).id == "t"
        async with A2AClient(
            address, tls=ClientTLS(root_certificates=authority.certificate), retry=FAST
        ) as client:
            error = await failing(client.get_task("t"))
            assert isinstance(error, UnavailableError)
            assert "server_name" in error.message


async def test_a_certificate_that_is_not_trusted(authority: Authority) -> None:
    async with secure(*authority.issue("127.0.0.1")) as (servicer, address):
        for tls in (True, ClientTLS(root_certificates=Authority().certificate)):
            async with A2AClient(address, tls=tls, retry=LATE) as client:
                error = await failing(client.get_task("t"))
                assert isinstance(error, UnavailableError)
                assert "root_certificates" in error.message
        assert not servicer.callers


async def test_tls_to_a_port_that_speaks_plaintext(authority: Authority) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with A2AClient(f"grpcs://127.0.0.1:{port}", retry=LATE) as client:
            error = await failing(client.get_task("t"))
            assert isinstance(error, UnavailableError)
            assert "plaintext" in error.message
    finally:
        await server.stop(None)


async def test_plaintext_to_a_port_that_speaks_tls(authority: Authority) -> None:
    policy = RetryPolicy(attempts=2, initial_backoff=0.01)
    async with (
        secure(*authority.issue("127.0.0.1")) as (_, address),
        A2AClient(address, retry=policy) as client,
    ):
        error = await failing(client.get_task("t"))
        assert isinstance(error, UnavailableError)
        assert address in error.message


async def test_a_token_is_sent_over_tls_without_a_warning(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with secure(*authority.issue("127.0.0.1")) as (servicer, address):
        tls = ClientTLS(root_certificates=authority.certificate)
        async with A2AClient(address, tls=tls, token="secret") as client:
            await client.get_task("t")
        assert servicer.metadata[0]["authorization"] == "Bearer secret"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
