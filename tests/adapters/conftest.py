"""No model is asked anything over a network here: not by a framework, and not past one."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pydantic_ai.models
import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets of Python reach this machine only; gRPC has sockets of its own."""
    monkeypatch.setattr(pydantic_ai.models, "ALLOW_MODEL_REQUESTS", False)
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded(self: socket.socket, address: Any) -> None:
        internet = self.family in (socket.AF_INET, socket.AF_INET6)
        if internet and not ipaddress.ip_address(address[0]).is_loopback:
            raise PermissionError(f"these tests have no network: {address}")
        connect(self, address)

    def resolved(host: Any, *arguments: Any, **named: Any) -> Any:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise PermissionError(f"these tests have no network: {host}") from None
        return resolve(host, *arguments, **named)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
