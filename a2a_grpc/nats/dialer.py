"""Getting into a NATS deployment: which server, with what, and what is said if none lets us in."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import ssl
from collections.abc import Callable
from typing import Any

from a2a_grpc.nats.address import NatsAddress, NatsServer
from a2a_grpc.nats.client import NatsClient, OnMessage

MAX_PENDING = 8 * 2**20
"""Bytes that wait for the socket; beyond it nothing is published."""


class NatsOpenError(Exception):
    """NATS can't be used; the message names the server and the remedy, and no secret."""


class NatsDialer:
    """Connects to one of the servers, those of the URL or others of their cluster.

    Args:
        address: where to, and with what.
        name: what the server's operators see.
    """

    CONNECT_TIMEOUT = 3
    PING_INTERVAL = 4  # seconds; a server that answers none of two pings is given up

    def __init__(self, address: NatsAddress, *, name: str) -> None:
        self._address = address
        self._name = name
        self._context: ssl.SSLContext | None = None
        self._servers = list(address.servers)
        self._server: NatsServer | None = None

    @property
    def shown(self) -> str:
        """The server that was connected to last, or all, without their credentials."""
        return self._address.shown if self._server is None else self._server.shown

    async def connect(
        self, on_message: OnMessage, on_error: Callable[[Exception], None]
    ) -> NatsClient:
        """Connect to any of the servers, in random order. Raises NatsOpenError."""
        problem: NatsOpenError | None = None
        for server in random.sample(self._servers, len(self._servers)):
            client = NatsClient(on_message, on_error)
            try:
                options = await asyncio.to_thread(self._options, server)
                async with asyncio.timeout(2 * self.CONNECT_TIMEOUT):
                    await client.open(server.shown, needs_tls=server.tls, **options)
            except Exception as error:
                client.abort()  # nothing runs in it yet that had to be ended
                # That one lets nobody in says more than that another is away.
                if problem is None or not isinstance(error, OSError):
                    problem = NatsOpenError(self._diagnosis(server, error))
                    problem.__cause__ = error
            except BaseException:
                client.abort()
                raise
            else:
                self._server = server
                self._learn_servers(client, server)
                return client
        assert problem is not None
        raise problem

    def _options(self, server: NatsServer) -> dict[str, Any]:
        address = self._address
        options: dict[str, Any] = {
            "name": f"a2a-grpc {self._name}",
            "no_echo": True,
            "connect_timeout": self.CONNECT_TIMEOUT,
            "ping_interval": self.PING_INTERVAL,
            "max_outstanding_pings": 2,
            "pending_size": 4 * MAX_PENDING,  # never reached: nats-py would wait without a limit
            "user_credentials": address.credentials,
            # Read anew for each connection, and without the line break at its end.
            "nkeys_seed_str": None if address.nkey is None else _text(address.nkey),
            "token": address.token,
            "tls": self._context if server.tls else None,
            "tls_hostname": server.tls_name,
        }
        if server.password is None:
            options["token"] = options["token"] or server.user  # as NATS reads nats://token@host
        else:
            options["user"], options["password"] = server.user, server.password
        return options

    def _learn_servers(self, client: NatsClient, told_by: NatsServer) -> None:
        """The other servers of the cluster, to be tried after those that the URL names."""
        known = {(server.host, server.port) for server in self._address.servers}
        self._servers = list(self._address.servers)
        for url in client.discovered_servers:
            if url.hostname and url.port and (url.hostname, url.port) not in known:
                self._servers.append(
                    NatsServer(
                        url.hostname,
                        url.port,
                        told_by.tls,
                        told_by.user,
                        told_by.password,
                        told_by.tls_name or told_by.host,
                    )
                )

    def read_files(self) -> None:
        """Read what the URL names, before the first connection. Raises NatsOpenError."""
        address = self._address
        for name in ("credentials", "nkey", "tls_ca", "tls_cert", "tls_key"):
            path = getattr(address, name)
            try:
                if path is not None:
                    with open(path, "rb"):
                        pass
            except OSError as error:
                raise NatsOpenError(
                    f"{name} of NATS at {self.shown}: can't read {path}: {error.strerror}"
                ) from error
        if (address.credentials or address.nkey) and importlib.util.find_spec("nkeys") is None:
            raise NatsOpenError(
                "credentials and nkey need the package nkeys: pip install 'a2a-grpc[nats]'"
            )
        if any(server.tls for server in address.servers):
            try:
                self._context = address.tls_context()
            except (OSError, ssl.SSLError) as error:
                raise NatsOpenError(
                    f"the certificates for NATS at {self.shown} can't be used: {error}; tls_ca, "
                    "tls_cert and tls_key name PEM files"
                ) from error

    def _diagnosis(self, server: NatsServer, error: Exception) -> str:
        at = f"NATS at {server.shown}"
        text = str(error).removeprefix("nats: ").strip("'")
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {at} is not accepted: {error.verify_message}; name its "
                "authority with tls_ca, and the server as its certificate does"
            )
        if "authorization" in text.lower() or "authentication" in text.lower():
            return (
                f"{at} does not accept the credentials; give user and password in the address, "
                "token=, nkey= or credentials="
            )
        if "does not offer TLS" in text:
            return f"{at} does not offer TLS; use nats:// if that is wanted"
        if isinstance(error, ssl.SSLError):
            return f"TLS with {at} failed: {text}; check tls_cert and tls_key"
        if isinstance(error, TimeoutError):
            return f"{at} does not answer; check the address, and whether it speaks TLS"
        if isinstance(error, OSError):
            return f"{at} can't be reached: {text or type(error).__name__}; is it running?"
        return f"{at} can't be used: {type(error).__name__} {text}"


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
