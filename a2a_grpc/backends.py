"""Which backend a URL names, and which bus goes with a broker.

Libraries that a backend needs are imported here, when it is asked for.
"""

from __future__ import annotations

from a2a_grpc.broker.base import Broker
from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.bus.base import EventBus
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.config import ServerSettings
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.memory import InMemoryStorage

SQL_SCHEMES = ("sqlite", "postgresql", "postgres")
NATS_SCHEMES = ("nats", "tls")


def open_storage(storage: AnyStorage | str | None, settings: ServerSettings) -> AnyStorage:
    """The storage that is named, not entered yet.

    Raises ValueError for a URL that names none, ImportError if a library is missing.
    """
    if storage is None or storage == "memory:":
        return InMemoryStorage()
    if not isinstance(storage, str):
        return storage
    scheme = storage.partition(":")[0].partition("+")[0]
    if scheme not in SQL_SCHEMES:
        # Its scheme alone: the rest may hold a password.
        problem = f"unknown store '{scheme}:'" if scheme else "no store is named"
        raise ValueError(f"{problem}; use memory:, sqlite:///file.db or postgresql://host/database")
    from a2a_grpc.storage.sql.storage import SqlStorage

    return SqlStorage(storage, lease=settings.lease)


def is_in_memory(broker: Broker | str | None) -> bool:
    """Whether the broker stays within its process."""
    return broker is None or broker == "memory:" or isinstance(broker, InMemoryBroker)


def check_broker(broker: Broker | str | None) -> None:
    """Raises ValueError for a URL that names no broker, ImportError if a library is missing."""
    if isinstance(broker, str) and broker != "memory:":
        open_broker(broker, ServerSettings(), "")


def open_broker(broker: Broker | str | None, settings: ServerSettings, deployment: str) -> Broker:
    """The broker that is named, not entered yet.

    Args:
        deployment: of the storage whose operations it carries.

    Raises ValueError for a URL that names none, ImportError if a library is missing.
    """
    if broker is None or broker == "memory:":
        return InMemoryBroker(max_unacknowledged=settings.concurrency)
    if not isinstance(broker, str):
        return broker
    scheme = broker.partition(":")[0]
    if scheme not in NATS_SCHEMES:
        problem = f"unknown broker '{scheme}:'" if scheme else "no broker is named"
        raise ValueError(f"{problem}; use memory: or nats://host:4222")
    from a2a_grpc.broker.nats import NatsBroker

    return NatsBroker(
        _namespaced(broker, deployment),
        ack_wait=settings.lease,
        concurrency=settings.concurrency,
    )


def _namespaced(url: str, deployment: str) -> str:
    """The URL with a namespace, so that services that share a NATS server are kept apart."""
    head, _, query = url.partition("?")
    given = query.split("&") if query else []
    if not deployment or any(one.startswith("namespace=") for one in given):
        return url
    return f"{head}?{'&'.join([*given, f'namespace=a2a-grpc-{deployment[:8]}'])}"


def bus_for(broker: Broker) -> EventBus:
    """The bus that goes with a broker, not entered yet.

    Raises ValueError for a broker between processes that none is known for.
    """
    if is_in_memory(broker):
        return InMemoryBus()
    url = getattr(broker, "url", None)
    if url is None:
        raise ValueError(
            f"{type(broker).__name__} needs a bus that reaches its other processes; give bus=..."
        )
    from a2a_grpc.bus.nats import NatsBus

    return NatsBus(url)
