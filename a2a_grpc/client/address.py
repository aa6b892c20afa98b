"""Where an agent is: from what a program writes, or from the interfaces of the agent's card."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from a2a_grpc import pb
from a2a_grpc.client.errors import AgentCardError

BINDING = "GRPC"


@dataclass(frozen=True, slots=True)
class Address:
    """Where calls go.

    Attributes:
        target: host:port.
        secure: whether the scheme asks for TLS; None where there is none.
        tenant: the agent behind this address; "" for the only one.
    """

    target: str
    secure: bool | None
    tenant: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine."""
        host = self.target.rpartition(":")[0].strip("[]")
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def is_card_url(agent: str) -> bool:
    """Whether it is the address of a card, and not of the agent."""
    return agent.lower().startswith(("http://", "https://"))


def parse_address(text: str) -> Address:
    """`host:port`, `grpc://host:port`, `grpcs://host[:443]`; raises ValueError."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "", text.strip()
    if scheme.lower() not in ("", "grpc", "grpcs"):
        raise ValueError(
            f"{text!r} has the scheme {scheme}://; use host:port, grpc://host:port or "
            "grpcs://host:port, or the http(s) URL of the agent's card"
        )
    secure = {"": None, "grpc": False, "grpcs": True}[scheme.lower()]
    return Address(_host_and_port(rest, text, 443 if secure else None), secure)


def address_of_card(card: pb.AgentCard) -> Address:
    """The first interface with the binding GRPC and protocol version 1.x (specification 4.4.6).

    Raises AgentCardError, which lists what the card has.
    """
    for interface in card.supported_interfaces:
        if interface.protocol_binding.upper() == BINDING and _is_version_1(interface):
            return _address_of(interface)
    offered = ", ".join(
        f"{i.protocol_binding or 'unnamed'} {i.protocol_version or '?'} at {i.url}"
        for i in card.supported_interfaces
    )
    raise AgentCardError(
        f"the card of {card.name!r} has no interface with the binding {BINDING} and protocol "
        f"version 1.x; it has {offered or 'none at all'}"
    )


def _is_version_1(interface: pb.AgentInterface) -> bool:
    return interface.protocol_version.partition(".")[0] == "1"


def _address_of(interface: pb.AgentInterface) -> Address:
    url = interface.url.strip()
    scheme, separator, rest = url.partition("://")
    secure: bool | None = None
    if separator:
        if scheme.lower() not in ("http", "https", "grpc", "grpcs"):
            raise AgentCardError(
                f"the card's gRPC interface has the url {url!r}; this client knows host:port, "
                "grpc://, grpcs://, http:// and https://"
            )
        secure = scheme.lower() in ("https", "grpcs")
        url = rest.rstrip("/")
    default = None if secure is None else (443 if secure else 80)
    try:
        target = _host_and_port(url, interface.url, default)
    except ValueError as error:
        raise AgentCardError(f"the card's gRPC interface can't be used: {error}") from error
    return Address(target, secure, interface.tenant)


def _host_and_port(rest: str, text: str, default_port: int | None) -> str:
    if not rest or any(c in rest for c in "/?#@ \t\n\\"):
        raise ValueError(f"{text!r} is no address; use host:port, such as 127.0.0.1:50051")
    try:
        split = urlsplit(f"//{rest}")
        host, port = split.hostname, split.port
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no address ({error}); use host:port, such as [::1]:50051"
        ) from error
    port = default_port if port is None else port
    if not host:
        raise ValueError(f"{text!r} has no host; use host:port, such as 127.0.0.1:50051")
    if not port:
        raise ValueError(f"{text!r} has no port; use host:port, such as {host}:50051")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
