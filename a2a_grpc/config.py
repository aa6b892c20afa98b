"""Settings of a server: frozen values with their units and defaults.

The environment is read by the command line only; everything else gets values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

MAX_INT = 2**31 - 1
"""The largest number that gRPC takes as an option; as milliseconds it means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server listens, limits, drains and keeps.

    Attributes:
        host: the address to bind; a public one deserves TLS and authentication in front.
        port: the TCP port, 0 for a free one.
        external_url: the gRPC address in the card, where it differs from host:port.
        grace: seconds that running turns get to end when the server stops.
        cancel_timeout: seconds that an agent's `cancel()`, and then its `execute()`, get to end.
        max_attempts: how often an agent is started for one message when processes die.
        deduplicate: which SendMessage calls are looked up among earlier ones: those marked as
            retries, all, or none.
        deduplication_window: seconds for which a message is remembered.
        retain_tasks: seconds for which a finished task is kept.
        compact_after: seconds after its end at which a task's log is folded into its snapshot.
        role: what this process does: everything, only gRPC, or only the agents' work.
        lease: seconds after which others take over the tasks of a replica that fell silent; also
            how long an agent goes on while the database can't be reached. For a store and a broker
            that are named by a URL; an object has its own.
        concurrency: turns that this process runs at a time; for a broker named by a URL.
        operation_metadata: keys of call metadata that reach the agent; never those of credentials.
        allow_private_webhooks: whether push notifications may go into private networks.
        assume_version: the protocol version of calls that name none; None refuses them.
        max_message_bytes: bytes of one request; answers have no limit here, but clients have
            (4 MiB, unless they say otherwise).
        max_concurrent_streams: RPCs open at a time on one connection.
        keepalive_time: seconds of silence on a connection before the server pings its client.
        keepalive_timeout: seconds that the client gets to answer.
        min_ping_interval: seconds between pings that a client may send on an idle connection.
        reuse_port: whether other processes of this service listen on the same port.
        max_connection_age: seconds after which a client is asked to connect again, so that load
            spreads over new replicas; calls that are open on the connection go on.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    external_url: str = ""
    grace: float = 10.0
    cancel_timeout: float = 5.0
    max_attempts: int = 3
    deduplicate: Literal["marked", "always", "never"] = "marked"
    deduplication_window: float = 300.0
    retain_tasks: float = 30 * 86400.0
    compact_after: float = 3600.0
    role: Literal["all", "frontend", "worker"] = "all"
    lease: float = 15.0
    concurrency: int = 10_000
    operation_metadata: tuple[str, ...] = ("traceparent", "tracestate", "x-request-id")
    allow_private_webhooks: bool = False
    assume_version: str | None = None
    max_message_bytes: int = 24 * 2**20
    max_concurrent_streams: int = 1000
    keepalive_time: float = 60.0
    keepalive_timeout: float = 20.0
    min_ping_interval: float = 10.0
    reuse_port: bool = False
    max_connection_age: float = 1800.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(field.name, getattr(self, field.name), field.default)
        credentials = {"authorization", "cookie", "proxy-authorization", "x-api-key"}
        if leaked := credentials.intersection(key.lower() for key in self.operation_metadata):
            raise ValueError(
                f"operation_metadata must not name credentials: {', '.join(sorted(leaked))}"
            )
        if self.deduplicate not in ("marked", "always", "never"):
            raise ValueError(f"deduplicate is {self.deduplicate!r}; use marked, always or never")
        if self.role not in ("all", "frontend", "worker"):
            raise ValueError(f"role is {self.role!r}; use all, frontend or worker")
        if self.lease < 1:
            raise ValueError(f"lease is {self.lease:g}; use 1 second or more")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; use 1 or more")
        if self.port > 65535:
            raise ValueError(f"port is {self.port}; use 0 to 65535")


def _check_number(name: str, value: Any, default: Any) -> None:
    """Raises TypeError and ValueError for a setting that is no number and has to be one."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return
    wanted = "a whole number" if isinstance(default, int) else "a number"
    numbers = (int,) if isinstance(default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, numbers):
        raise TypeError(f"{name} is {value!r}; use {wanted}")
    if isinstance(default, int) and value > MAX_INT:
        raise ValueError(f"{name} is {value!r}; use at most {MAX_INT}")
    if not value >= 0:  # which NaN is not either
        raise ValueError(f"{name} is {value!r}; use 0 or more")
