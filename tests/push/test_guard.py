"""The guard: what is admitted, and what is connected to."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpcore
import pytest

from a2a_grpc import pb
from a2a_grpc.errors import InvalidParamsError
from a2a_grpc.push import guard

PUBLIC = "93.184.216.34"

NOT_PUBLIC = [
    "127.0.0.1",
    "127.255.0.1",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "203.0.113.1",
    "168.63.129.16",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "5f00::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_outside_the_public_internet_are_recognized(address: str) -> None:
    assert not guard.is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        PUBLIC,
        "8.8.8.8",
        "172.32.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses_are_recognized(address: str) -> None:
    assert guard.is_public(address)


@pytest.mark.parametrize("text", ["", "example.com", "127.1", "0177.0.0.1", "1.2.3.4.5"])
def test_what_is_no_address_is_not_public(text: str) -> None:
    assert not guard.is_public(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "http://example.com",
        "HTTPS://Example.COM:8443/a/b?c=d#e",
        "https://exämple.example/ä",
        "https://my_service.example/",
        "https://8.8.8.8/hook",
        "https://[2606:4700::1111]:8443/hook",
        "https://localhost.example.com/",
        "https://4chan.example1/",
    ],
)
def test_public_urls_are_admitted(url: str) -> None:
    guard.check_url(url, allow_private=False)


def _refusal(url: str, *, allow_private: bool = False) -> str:
    with pytest.raises(InvalidParamsError) as caught:
        guard.check_url(url, allow_private=allow_private)
    (violation,) = caught.value.violations
    assert violation.field == "url"
    return violation.description


@pytest.mark.parametrize("allow_private", [False, True])
@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("", "https://"),
        ("example.com/hook", "https://"),
        ("//example.com/hook", "https://"),
        ("ftp://example.com/hook", "https://"),
        ("file:///etc/passwd", "https://"),
        ("gopher://example.com/", "https://"),
        ("https:///hook", "names no host"),
        ("https://", "names no host"),
        ("https://user:secret@example.com/", "field authentication"),
        ("https://user@example.com/", "field authentication"),
        ("http://example.com\\@10.0.0.1/", "field authentication"),
        ("https://example.com:0/", "1 to 65535"),
        ("https://example.com:65536/", "1 to 65535"),
        ("https://example.com:port/", "not a valid URL"),
        ("https://exa mple.com/", "neither a name nor an IP address"),
        ("https://%6cocalhost/", "neither a name nor an IP address"),
        ("https://a..b/", "neither a name nor an IP address"),
        ("https://-a.example/", "neither a name nor an IP address"),
        (f"https://{'a' * 64}.example/", "neither a name nor an IP address"),
        (f"https://{'a.' * 130}example/", "neither a name nor an IP address"),
        ("https://[::1/", "not a valid URL"),
        ("https://example.com/\r\nX: y", "not a valid URL"),
    ],
)
def test_malformed_urls_are_refused_with_a_remedy(
    url: str, remedy: str, allow_private: bool
) -> None:
    assert remedy in _refusal(url, allow_private=allow_private)


_PRIVATE_URLS = [
    *(f"http://[{a}]/" if ":" in a else f"http://{a}/" for a in NOT_PUBLIC if "%" not in a),
    "http://[fe80::1%25eth0]/",
    "http://localhost/",
    "http://LocalHost:8080/",
    "http://api.localhost/",
    "http://localhost./",
    "http://example.com./",
    "http://127.0.0.1./",
    "http://127.1/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0x7f.0.0.0x1/",
    "http://0X7F.1/",
    "http://0177.0.0.1/",
    "http://0x/",
    "http://1.2.3.4.5/",
    "http://127\u30020\u30020\u30021/",
]


@pytest.mark.parametrize("url", _PRIVATE_URLS)
def test_private_addresses_are_refused_in_every_spelling(url: str) -> None:
    assert _refusal(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/hook",
        "http://[::1]:8080/hook",
        "http://10.0.0.1/",
        "http://localhost/",
        "http://api.localhost/",
        "http://my_service:8080/",
    ],
)
def test_private_addresses_are_admitted_where_the_operator_allows_them(url: str) -> None:
    guard.check_url(url, allow_private=True)


def test_a_refusal_names_the_field_and_never_repeats_the_url() -> None:
    with pytest.raises(InvalidParamsError) as caught:
        guard.check_url(
            "https://user:hunter2@example.com/", allow_private=False, field="configuration.url"
        )
    assert caught.value.violations[0].field == "configuration.url"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", "a\r\nX-Evil: 1"),
        ("token", " a"),
        ("authentication.credentials", "a\nb"),
        ("authentication.credentials", "a\x00"),
        ("authentication.scheme", ""),
        ("authentication.scheme", "Bea rer"),
        ("authentication.scheme", "Bearer:"),
    ],
)
def test_values_that_do_not_fit_into_a_header_are_refused(field: str, value: str) -> None:
    config = pb.TaskPushNotificationConfig(url="https://example.com/", token="t")
    config.authentication.scheme, config.authentication.credentials = "Bearer", "c"
    guard.check_config(config, allow_private=False)
    *path, name = field.split(".")
    setattr(config.authentication if path else config, name, value)
    with pytest.raises(InvalidParamsError) as caught:
        guard.check_config(config, allow_private=False, prefix="config.")
    assert caught.value.violations[0].field == f"config.{field}"


def test_a_config_needs_neither_token_nor_authentication() -> None:
    guard.check_config(
        pb.TaskPushNotificationConfig(url="https://example.com/"), allow_private=False
    )


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://example.com/hook/secret?key=secret#secret", "https://example.com"),
        ("http://user:secret@[::1]:8080/", "http://[::1]:8080"),
        ("https://example.com:secret/", "(not a URL)"),
    ],
)
def test_redacted_urls_keep_scheme_host_and_port(url: str, redacted: str) -> None:
    assert guard.redact(url) == redacted


def test_the_http_client_is_loaded_only_where_it_is_used() -> None:
    program = "import sys, a2a_grpc.push.delivery; sys.exit('httpx' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


class _Answers:
    """A resolver that gives one answer after the other."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.remaining = list(answers)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self.remaining.pop(0)


class _Recorder(httpcore.AsyncNetworkBackend):
    """Records where connections go; those in `dead` are refused, the others answer 204."""

    def __init__(self, dead: Sequence[str] = ()) -> None:
        self.dead = dead
        self.connected: list[tuple[str, int]] = []
        self.timeouts: list[float | None] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        self.timeouts.append(timeout)
        if host in self.dead:
            raise httpcore.ConnectError("refused")
        return httpcore.AsyncMockStream([b"HTTP/1.1 204 No Content\r\n\r\n"])


def _backend(
    recorder: _Recorder, *answers: Sequence[str], allow_private: bool = False
) -> guard.GuardedBackend:
    return guard.GuardedBackend(recorder, resolve=_Answers(*answers), allow_private=allow_private)


@pytest.mark.asyncio
async def test_rebinding_does_not_help() -> None:
    recorder = _Recorder()
    backend = _backend(recorder, [PUBLIC], ["127.0.0.1"])
    await backend.connect_tcp("rebind.example", 80)
    # The address that was checked, not the name, which could mean something else by now.
    assert recorder.connected == [(PUBLIC, 80)]
    with pytest.raises(guard.BlockedAddressError, match=r"127\.0\.0\.1"):
        await backend.connect_tcp("rebind.example", 80)
    assert recorder.connected == [(PUBLIC, 80)]


@pytest.mark.asyncio
async def test_a_pool_resolves_and_checks_again_for_every_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = _Recorder()
    monkeypatch.setattr(httpcore, "AnyIOBackend", lambda: recorder)
    pool = guard.open_pool(
        allow_private=False, max_connections=1, resolve=_Answers([PUBLIC], ["10.0.0.1"])
    )
    async with pool:
        headers = [("Connection", "close")]
        assert (await pool.request("POST", "http://rebind.example/", headers=headers)).status == 204
        with pytest.raises(guard.BlockedAddressError):
            await pool.request("POST", "http://rebind.example/", headers=headers)
    assert recorder.connected == [(PUBLIC, 80)]


@pytest.mark.asyncio
@pytest.mark.parametrize("addresses", [[PUBLIC, "10.0.0.1"], ["::1", PUBLIC], ["fe80::1%eth0"]])
async def test_one_private_address_blocks_the_whole_answer(addresses: list[str]) -> None:
    recorder = _Recorder()
    with pytest.raises(guard.BlockedAddressError):
        await _backend(recorder, addresses).connect_tcp("mixed.example", 443)
    assert recorder.connected == []


@pytest.mark.asyncio
async def test_further_addresses_are_tried_within_the_same_time() -> None:
    recorder = _Recorder(dead=["2606:4700::1111"])
    backend = _backend(recorder, ["2606:4700::1111", PUBLIC])
    await backend.connect_tcp("dual.example", 443, timeout=10.0)
    assert recorder.connected == [("2606:4700::1111", 443), (PUBLIC, 443)]
    assert recorder.timeouts == [5.0, 5.0]


@pytest.mark.asyncio
async def test_no_address_and_no_live_address_are_connect_errors() -> None:
    recorder = _Recorder(dead=[PUBLIC])
    for answer in ([], [PUBLIC]):
        with pytest.raises(httpcore.ConnectError):
            await _backend(recorder, answer).connect_tcp("gone.example", 80)

    async def fails(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    backend = guard.GuardedBackend(recorder, resolve=fails, allow_private=False)
    with pytest.raises(httpcore.ConnectError, match="no such name"):
        await backend.connect_tcp("gone.example", 80)


@pytest.mark.asyncio
async def test_private_addresses_are_connected_to_where_the_operator_allows_them() -> None:
    recorder = _Recorder()
    backend = _backend(recorder, ["127.0.0.1"], allow_private=True)
    await backend.connect_tcp("localhost", 80)
    assert recorder.connected == [("127.0.0.1", 80)]


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1"])
async def test_the_systems_resolver_is_held_to_the_same_rule(host: str) -> None:
    recorder = _Recorder()
    backend = guard.GuardedBackend(recorder, resolve=guard.resolve, allow_private=False)
    with pytest.raises((guard.BlockedAddressError, httpcore.ConnectError)):
        await backend.connect_tcp(host, 80)
    assert recorder.connected == []


def _certificate(directory: Path, host: str) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes a certificate with the openssl command")
    key, certificate = directory / "key.pem", directory / "cert.pem"
    arguments = ["req", "-x509", "-nodes", "-days", "2"]
    arguments += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    arguments += ["-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={host}"]
    arguments += ["-addext", f"subjectAltName=DNS:{host}"]
    subprocess.run([openssl, *arguments], check=True, capture_output=True)
    return key, certificate


@contextlib.asynccontextmanager
async def _tls_server(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.asyncio
async def test_tls_verifies_the_name_and_not_the_address(tmp_path: Path) -> None:
    key, certificate = _certificate(tmp_path, "hook.example")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate, key)
    async with (
        _tls_server(served) as port,
        guard.open_pool(
            allow_private=True,
            max_connections=2,
            resolve=_Answers(["127.0.0.1"], ["127.0.0.1"]),
            ssl_context=ssl.create_default_context(cafile=str(certificate)),
        ) as pool,
    ):
        assert (await pool.request("POST", f"https://hook.example:{port}/")).status == 204
        with pytest.raises(httpcore.ConnectError, match=r"(?i)hostname"):
            await pool.request("POST", f"https://other.example:{port}/")
