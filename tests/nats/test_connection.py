"""Connections to NATS: being let in, TLS, coming back, and what is said when that fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import hashlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest

from a2a_grpc.broker.base import TaskSendParams
from a2a_grpc.broker.nats import NatsBroker
from a2a_grpc.bus.nats import NatsBus
from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.address import NatsAddress
from a2a_grpc.nats.client import NatsClient
from a2a_grpc.nats.connection import NatsConnection
from a2a_grpc.nats.dialer import MAX_PENDING, NatsDialer, NatsOpenError
from tests.client.test_tls import Authority
from tests.servers.nats import NatsServer, free_port
from tests.servers.nats import nats_server as running

SECRET = "secret-word"


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again; only for what gives no signal."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def works(url: str) -> None:
    """Broker and bus open, and the broker delivers."""
    async with NatsBus(url), NatsBroker(url) as broker:
        await broker.run_task(TaskSendParams("t", "o"))
        source = broker.receive_task_operations()
        async with asyncio.timeout(5):
            delivery = await anext(source)
        await delivery.ack()


async def failing(url: str) -> str:
    """What is said when it can't be opened."""
    with pytest.raises(NatsOpenError) as error:
        async with NatsConnection(NatsAddress.parse(url), name="test"):
            pass
    gc.collect()  # a socket that was left open would warn
    message = str(error.value)
    assert SECRET not in message
    return message


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def behaving(behaviour: Behaviour) -> AsyncIterator[str]:
    """The address of something that is no NATS server; its connections are over at the end."""
    connections: list[asyncio.Task[None]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        with contextlib.suppress(ConnectionError):
            await behaviour(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert connections
        await asyncio.wait_for(asyncio.gather(*connections), 5)


# Being let in.


async def test_user_and_password() -> None:
    users = [{"user": "me@home", "password": f"{SECRET}:/?,"}]
    with running({"authorization": {"users": users}}) as server:
        login = f"me%40home:{SECRET}%3A%2F%3F%2C@"
        await works(f"nats://{login}{server.address}")
        for wrong in ("", f"me:{SECRET}@", f"{SECRET}@"):
            message = await failing(f"nats://{wrong}{server.address}")
            assert server.address in message
            assert "credentials" in message


async def test_token() -> None:
    with running({"authorization": {"token": SECRET}}) as server:
        await works(f"nats://{server.address}?token={SECRET}")
        await works(f"nats://{SECRET}@{server.address}")
        assert "credentials" in await failing(f"nats://{server.address}?token=wrong")


def key_pair(prefix: int) -> tuple[Any, bytes, str]:
    """An NKey, its seed and its public key."""
    seed = bytes(nkeys.encode_seed(secrets.token_bytes(32), prefix))
    pair = nkeys.from_seed(bytearray(seed))
    return pair, seed, bytes(pair.public_key).decode()


async def test_nkey(tmp_path: Path) -> None:
    _, seed, public = key_pair(nkeys.PREFIX_BYTE_USER)
    path = tmp_path / "user.nk"
    path.write_bytes(seed + b"\n")
    with running({"authorization": {"users": [{"nkey": public}]}}) as server:
        await works(f"nats://{server.address}?nkey={path}")
        _, other, _ = key_pair(nkeys.PREFIX_BYTE_USER)
        path.write_bytes(other)
        assert "credentials" in await failing(f"nats://{server.address}?nkey={path}")
        missing = await failing(f"nats://{server.address}?nkey={tmp_path / 'none'}")
        assert "nkey" in missing
        assert "none" in missing


def jwt(issuer: Any, issuer_key: str, subject: str, kind: dict[str, Any]) -> str:
    """A claim as NATS has them."""
    claims = {"iss": issuer_key, "sub": subject, "iat": int(time.time()), "nats": kind}
    claims["jti"] = hashlib.sha256(json.dumps(claims).encode()).hexdigest()

    def encoded(value: Any) -> str:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    text = encoded({"typ": "JWT", "alg": "ed25519-nkey"}) + "." + encoded(claims)
    return text + "." + encoded(bytes(issuer.sign(text.encode())))


async def test_credentials_file(tmp_path: Path) -> None:
    operator, _, operator_key = key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, _, account_key = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    _, user_seed, user_key = key_pair(nkeys.PREFIX_BYTE_USER)
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    stores = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    limits = unlimited | stores | {"wildcards": True}
    _, _, system_key = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    config = {
        "operator": jwt(operator, operator_key, operator_key, {"type": "operator", "version": 2}),
        "resolver": "MEMORY",
        "system_account": system_key,
        "resolver_preload": {
            account_key: jwt(
                operator,
                operator_key,
                account_key,
                {"type": "account", "version": 2, "limits": limits},
            ),
            system_key: jwt(
                operator,
                operator_key,
                system_key,
                {"type": "account", "version": 2, "limits": unlimited | {"wildcards": True}},
            ),
        },
    }
    user = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
    path = tmp_path / "user.creds"
    path.write_text(
        "-----BEGIN NATS USER JWT-----\n"
        + jwt(account, account_key, user_key, user)
        + "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n"
        + user_seed.decode()
        + "\n------END USER NKEY SEED------\n"
    )
    with running(config) as server:
        await works(f"nats://{server.address}?credentials={path}")
        assert "credentials" in await failing(f"nats://{server.address}")
        path.write_text("nothing of use")
        message = await failing(f"nats://{server.address}?credentials={path}")
        assert server.address in message


# TLS.


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def written(directory: Path, name: str, pair: tuple[bytes, bytes]) -> tuple[str, str]:
    paths = directory / f"{name}.pem", directory / f"{name}-key.pem"
    for path, content in zip(paths, pair, strict=True):
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])


async def test_tls(authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    certificate, key = written(tmp_path, "server", authority.issue("127.0.0.1"))
    tls = {"cert_file": certificate, "key_file": key}
    with running({"tls": tls}) as server:
        await works(f"tls://{server.address}?tls_ca={ca}")
        await works(f"nats://{server.address}?tls_ca={ca}")
        message = await failing(f"tls://{server.address}")
        assert "tls_ca" in message
        assert server.address in message
        other = tmp_path / "other.pem"
        other.write_bytes(Authority().certificate)
        assert "tls_ca" in await failing(f"tls://{server.address}?tls_ca={other}")
        other.write_text("no certificate")
        assert "PEM" in await failing(f"tls://{server.address}?tls_ca={other}")
        assert "tls_ca" in await failing(f"tls://{server.address}?tls_ca={tmp_path / 'none'}")


async def test_certificate_for_another_name(authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    certificate, key = written(tmp_path, "server", authority.issue("nats.example.com"))
    with running({"tls": {"cert_file": certificate, "key_file": key}}) as server:
        message = await failing(f"tls://{server.address}?tls_ca={ca}")
        assert "not accepted" in message


async def test_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    certificate, key = written(tmp_path, "server", authority.issue("127.0.0.1"))
    mine, my_key = written(tmp_path, "client", authority.issue("client"))
    tls = {"cert_file": certificate, "key_file": key, "ca_file": str(ca), "verify": True}
    with running({"tls": tls}) as server:
        await works(f"tls://{server.address}?tls_ca={ca}&tls_cert={mine}&tls_key={my_key}")
        assert server.address in await failing(f"tls://{server.address}?tls_ca={ca}")


async def test_tls_that_is_asked_for_is_never_done_without(nats_server: NatsServer) -> None:
    """A server that speaks plaintext learns no password."""
    lines: list[bytes] = []

    async def plaintext(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1000}\r\n')
        while line := await reader.readline():
            lines.append(line)

    assert "TLS" in await failing(f"tls://u:{SECRET}@{nats_server.address}")
    async with behaving(plaintext) as address:
        assert "does not offer TLS" in await failing(f"tls://u:{SECRET}@{address}")
    assert not lines


# Not being let in.


async def test_server_that_is_not_there() -> None:
    port = free_port()
    start = time.monotonic()
    message = await failing(f"nats://u:{SECRET}@127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in message
    assert "running" in message
    assert time.monotonic() - start < 2


async def test_port_that_is_not_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NatsDialer, "CONNECT_TIMEOUT", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    for behaviour, words in ((silent, "does not answer"), (chatty, "can't be used")):
        async with behaving(behaviour) as address:
            message = await failing(f"nats://{address}")
            assert words in message
            assert address in message


async def test_any_of_several_servers_will_do(nats_server: NatsServer) -> None:
    for _ in range(5):
        await works(f"nats://127.0.0.1:{free_port()},nats://{nats_server.address}")


# Coming back.


async def test_calls_under_way_fail_when_the_connection_is_lost() -> None:
    with running() as server:
        address = NatsAddress.parse(server.url())
        async with (
            NatsConnection(address, name="one") as one,
            NatsConnection(address, name="two") as two,
        ):
            await two.subscribe("nobody.answers", lambda message: None)
            await two.confirm()
            calls = [asyncio.create_task(one.request("nobody.answers")) for _ in range(20)]
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.kill)
            start = time.monotonic()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, UnavailableError) for one in results), results
            assert time.monotonic() - start < 2
            assert not one._replies


async def test_server_that_sends_everybody_away_is_come_back_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As when credentials end or a limit is reached: nats-py would stay away."""
    caplog.set_level(logging.WARNING)
    with running({"max_control_line": 1024}) as server:
        address = NatsAddress.parse(server.url())
        async with NatsConnection(address, name="one") as one:
            got: list[bytes] = []
            await one.subscribe("here.*", lambda message: got.append(message.data))
            back = asyncio.Event()
            one.on_back = back.set
            await one.publish("x" * 2000)
            async with asyncio.timeout(5):
                await back.wait()
            async with NatsConnection(address, name="two") as two:
                await two.publish("here.1", b"hello")
                await two.confirm()
            await until(lambda: got == [b"hello"])


@pytest.fixture
async def slow(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[NatsConnection, asyncio.Event]]:
    """A connection, and what has to be set for its subscriptions to go on once they are sent."""
    goes_on = asyncio.Event()
    subscribe = NatsClient.subscribe

    async def slow(self: NatsClient, subject: str, **options: Any) -> Any:
        subscription = await subscribe(self, subject, **options)
        await goes_on.wait()
        return subscription

    async with NatsConnection(NatsAddress.parse(nats_server.url()), name="slow") as connection:
        monkeypatch.setattr(NatsClient, "subscribe", slow)
        yield connection, goes_on


Slow = tuple[NatsConnection, asyncio.Event]


async def test_subscription_that_two_make_at_once_is_one(
    slow: Slow, nats_server: NatsServer
) -> None:
    connection, goes_on = slow
    got: list[bytes] = []
    one = asyncio.create_task(connection.subscribe("twice", lambda m: got.append(m.data)))
    await asyncio.sleep(0)
    again = asyncio.create_task(connection._subscribe_again())
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(one, again)
    async with NatsConnection(NatsAddress.parse(nats_server.url()), name="other") as other:
        await other.publish("twice", b"hello")
        await other.confirm()
        await connection.confirm()
        assert got == [b"hello"]
        await connection.unsubscribe("twice")
        await connection.confirm()
        assert await other.request("twice") is None, "nobody listens"


async def test_subscription_that_was_given_up_meanwhile_does_not_stay(
    slow: Slow, nats_server: NatsServer
) -> None:
    connection, goes_on = slow
    subscribing = asyncio.create_task(connection.subscribe("gone", lambda message: None))
    await asyncio.sleep(0)
    await connection.unsubscribe("gone")
    goes_on.set()
    await subscribing
    await connection.confirm()
    async with NatsConnection(NatsAddress.parse(nats_server.url()), name="other") as other:
        assert await other.request("gone", limit=1.0) is None, "nobody listens"
    assert connection._client is not None
    assert len(connection._client._subs) == 1


async def test_keeper_that_ends_is_told_and_fails_the_check(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing() -> None:
        raise RuntimeError("unheard of")

    address = NatsAddress.parse(nats_server.url())
    async with NatsConnection(address, name="kept") as connection:
        connection.check()
        monkeypatch.setattr(connection, "_connect_again", failing)
        assert connection._client is not None
        connection._client.abort()
        await until(lambda: "RuntimeError: unheard of" in caplog.text)
        with pytest.raises(UnavailableError, match="nats:kept"):
            connection.check()


async def test_confirming_tells_of_what_was_refused_since(caplog: pytest.LogCaptureFixture) -> None:
    permissions = {"publish": {"deny": ["no.*"]}}
    users = [{"user": "u", "password": SECRET, "permissions": permissions}]
    with running({"authorization": {"users": users}}, login=f"u:{SECRET}") as server:
        async with NatsConnection(NatsAddress.parse(server.url()), name="one") as connection:
            for _ in range(2):
                denials = connection.denials
                await connection.publish("no.1")
                with pytest.raises(NatsOpenError, match=r"no\.1"):
                    await connection.confirm(denials=denials)
                await connection.confirm()
            assert caplog.text.lower().count("permissions violation") == 1


async def test_what_waits_for_a_server_that_takes_nothing_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NatsDialer, "PING_INTERVAL", 60)
    with running() as server:
        async with NatsConnection(NatsAddress.parse(server.url()), name="one") as one:
            with server.frozen():
                sent = 0
                problem = ""
                while not problem:
                    try:
                        await one.publish("x.y", b"x" * 100_000)
                    except UnavailableError as error:
                        problem = str(error)
                    sent += 100_000
                    await asyncio.sleep(0)
                assert "too long" in problem
                assert sent < 4 * MAX_PENDING
            async with asyncio.timeout(10):
                while True:
                    try:
                        await one.confirm()
                        break
                    except UnavailableError:
                        await asyncio.sleep(0.05)


async def test_leaving_while_it_tries_to_come_back_takes_no_time() -> None:
    """Also when the cancellation gets lost, as it does in nats-py now and then."""
    users = [{"user": "u", "password": SECRET}]
    with running({"authorization": {"users": users}}, login=f"u:{SECRET}") as server:
        url = server.url()
        server.config["authorization"]["users"][0]["password"] = "another"
        connections = [NatsConnection(NatsAddress.parse(url), name=f"{n}") for n in range(50)]
        for one in connections:
            one.FIRST_WAIT = one.LONGEST_WAIT = 0.01  # type: ignore[misc]
            await one.__aenter__()
        await asyncio.to_thread(server.restart)
        await asyncio.sleep(0.2)
        async with asyncio.timeout(5):
            for one in connections:
                await one.__aexit__(None, None, None)


async def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    users = [{"user": "u", "password": SECRET}]
    with running({"authorization": {"users": users}}, login=f"u:{SECRET}") as server:
        url = server.url()
        async with NatsBroker(url) as broker, NatsBus(url) as bus:
            await asyncio.to_thread(server.kill)
            await until(lambda: not broker._connection.is_connected)
            await until(lambda: not bus._connection.is_connected)
            with pytest.raises(UnavailableError) as error:
                await broker.run_task(TaskSendParams("t", "o"))
            server.config["authorization"]["users"][0]["password"] = "another"
            await asyncio.to_thread(server.start)
            await until(lambda: "does not accept" in caplog.text)
            shown = f"{broker!r} {bus!r} {error.value} {broker._connection.shown}"
    assert SECRET not in caplog.text
    assert SECRET not in shown
