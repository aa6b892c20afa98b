"""Where webhooks may go: the check of a URL at admission, and connections that hold the same rule.

Admission sees only the text of a URL. What counts is the address that is connected to, so the
connection pool opened here resolves a name itself, checks every address of the answer and connects
to what it checked; TLS still verifies the name. There are no redirects, proxies or cookies here.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, cast

from a2a_grpc.errors import InvalidParamsError

if TYPE_CHECKING:
    # At run time they are imported where they are used: most processes never send a webhook.
    import httpcore
    import httpx

    from a2a_grpc import pb

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""All addresses of a host and port, as text; raises OSError where there are none."""

_IPV6_GLOBAL_UNICAST = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_REFUSED = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's host agent, at an address that looks public
        "192.0.0.0/24",  # protocol assignments; older versions of ipaddress know only a part
        "192.88.99.0/24",  # relays of 6to4
        "2001::/32",  # Teredo and 6to4 carry an IPv4 address that somebody else unpacks
        "2002::/16",
        "3fff::/20",  # documentation; the same
    )
)
# What inet_aton, and so many a resolver, reads as IPv4: 127.1, 0x7f000001, 0177.0.0.1, 2130706433.
_NUMERIC_LABEL = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)
_MAX_HOST_LENGTH = 253  # characters, RFC 1035
_SCHEME_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_OPERATOR_HINT = "an operator can allow private addresses with --allow-private-webhooks"


class BlockedAddressError(Exception):
    """The webhook's host resolves to an address that must not be connected to."""


def is_public(address: str) -> bool:
    """Whether an IP address, as text, is one of the public internet.

    An IPv4 address inside an IPv6 one (mapped, NAT64) is judged as what it is. False too for
    private, loopback, link-local, shared (CGNAT), multicast, reserved and unspecified addresses,
    for 6to4 and Teredo, and for what is no address.
    """
    try:
        ip: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip not in _IPV6_GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in net for net in _REFUSED)


def check_url(url: str, *, allow_private: bool, field: str = "url") -> None:
    """Admit the URL of a webhook (specification 13.2).

    Names are not resolved here: what they stand for is checked when they are connected to.

    Args:
        url: what the client gave.
        allow_private: do not look at the address; everything else is checked.
        field: the path of the field in the request, for the error.

    Raises:
        InvalidParamsError: with the field and what would be right; it never repeats the URL.
    """
    import httpx

    def refuse(description: str) -> InvalidParamsError:
        return InvalidParamsError.field(field, description)

    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise refuse("is not a valid URL; give one like https://example.com/hook") from error
    if parsed.scheme not in ("http", "https"):
        raise refuse("must begin with https:// or http://")
    if parsed.userinfo:
        raise refuse(
            "must not contain a user name or password; use the field authentication instead"
        )
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise refuse("has a port that does not exist; ports are 1 to 65535")
    host = parsed.raw_host.decode("ascii")
    if not host:
        raise refuse("names no host; give one like https://example.com/hook")
    literal = _is_literal(host)
    if not literal and not _is_host_name(host):
        raise refuse("has a host that is neither a name nor an IP address")
    if not allow_private:
        description = _why_not_public(host, literal=literal)
        if description:
            raise refuse(description)


def check_config(
    config: pb.TaskPushNotificationConfig, *, allow_private: bool, prefix: str = ""
) -> None:
    """Admit a push configuration: its URL, and token and credentials as values of HTTP headers.

    `prefix` is the path of the configuration in the request, with a dot at its end. Raises
    InvalidParamsError as `check_url` does; it never repeats a value.
    """
    check_url(config.url, allow_private=allow_private, field=f"{prefix}url")
    authentication = config.authentication
    if config.HasField("authentication") and not _SCHEME_TOKEN.fullmatch(authentication.scheme):
        raise InvalidParamsError.field(
            f"{prefix}authentication.scheme", "must be an HTTP authentication scheme, like Bearer"
        )
    for name, value in (
        ("token", config.token),
        ("authentication.credentials", authentication.credentials),
    ):
        if value != value.strip() or not value.isprintable():
            raise InvalidParamsError.field(
                f"{prefix}{name}",
                "must not contain control characters or begin or end with a space:"
                " it is sent in an HTTP header",
            )


def redact(url: str) -> str:
    """A URL for logs: scheme, host and port; paths and queries often hold secrets."""
    import httpx

    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return "(not a URL)"
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"


async def resolve(host: str, port: int, *, executor: Executor | None = None) -> list[str]:
    """Ask the system's resolver; `executor` bounds how many threads wait for name servers."""
    lookup = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(executor, lookup)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def open_pool(
    *,
    allow_private: bool,
    max_connections: int,
    resolve: Resolver = resolve,
    ssl_context: ssl.SSLContext | None = None,
) -> httpcore.AsyncConnectionPool:
    """A pool of guarded HTTP/1.1 connections, an async context manager.

    It is httpcore's and not an httpx client: a client would keep the cookies of one webhook for
    another and log whole URLs. Requests raise httpcore's errors, and BlockedAddressError.
    """
    import httpcore
    import httpx

    backend = GuardedBackend(httpcore.AnyIOBackend(), resolve=resolve, allow_private=allow_private)
    return httpcore.AsyncConnectionPool(
        ssl_context=ssl_context or httpx.create_ssl_context(),
        max_connections=max_connections,
        keepalive_expiry=15.0,  # seconds
        # Not a subclass of httpcore's class, which would have to be imported for it.
        network_backend=cast("httpcore.AsyncNetworkBackend", backend),
    )


class GuardedBackend:
    """A network backend of httpcore that connects only to addresses it has checked itself.

    A name is resolved once per connection. All addresses of the answer must be public, and those
    same addresses are connected to, so that an answer that changes (DNS rebinding) gains nothing.
    """

    def __init__(
        self, inner: httpcore.AsyncNetworkBackend, *, resolve: Resolver, allow_private: bool
    ) -> None:
        self._inner = inner
        self._resolve = resolve
        self._allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one of the host's addresses, in the resolver's order.

        `timeout` is in seconds, shared by the addresses. Raises BlockedAddressError,
        `httpcore.ConnectError`, `httpcore.ConnectTimeout`.
        """
        import httpcore

        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the host does not resolve: {error}") from error
        if not self._allow_private:
            for address in addresses:
                if not is_public(address):
                    raise BlockedAddressError(f"{address} is not a public address")
        failure: Exception = httpcore.ConnectError("the name of the host has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(
                    address,
                    port,
                    timeout=None if timeout is None else timeout / len(addresses),
                    local_address=local_address,
                    socket_options=socket_options,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        """Part of httpcore's interface."""
        await self._inner.sleep(seconds)


def request_url(url: str) -> tuple[httpcore.URL, bytes]:
    """A URL as httpcore takes it, with the value of the Host header.

    Raises ValueError if it is not a URL.
    """
    import httpcore
    import httpx

    try:
        parsed: httpx.URL = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError("not a URL") from error
    target = httpcore.URL(
        scheme=parsed.raw_scheme,
        host=parsed.raw_host,
        port=parsed.port,
        target=parsed.raw_path,
    )
    return target, parsed.netloc


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_host_name(host: str) -> bool:
    name = host.removesuffix(".")
    return len(name) <= _MAX_HOST_LENGTH and all(
        _HOST_LABEL.fullmatch(label) for label in name.split(".")
    )


def _why_not_public(host: str, *, literal: bool) -> str | None:
    if literal:
        if is_public(host):
            return None
        return f"must not point to an address that is not public; {_OPERATOR_HINT}"
    if host.endswith("."):
        return "has a host that ends with a dot; leave the dot out"
    labels = host.lower().split(".")
    if labels[-1] == "localhost":
        return f"must not point to this host itself; {_OPERATOR_HINT}"
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        return "has an IPv4 address in an unusual spelling; write four decimal numbers"
    return None
