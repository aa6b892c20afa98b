"""Fixtures of the whole suite: `serve` runs a server over every store that there is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.servers.nats import NatsServer
from tests.servers.nats import nats_server as running_nats_server
from tests.servers.postgres import shared_postgres
from tests.support import Serving, replicated, serving

STORES = ["memory"]
if importlib.util.find_spec("a2a_grpc.storage.sql.storage") is not None:
    STORES.append("sqlite")

Serve = Callable[..., AbstractAsyncContextManager[Serving]]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store, new for every test."""
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'a2a.db'}"


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    """The URL of a SQLite store, for what has to survive a restart."""
    if "sqlite" not in STORES:
        pytest.skip("there is no SQLite store yet")
    return f"sqlite:///{tmp_path / 'a2a.db'}"


@pytest.fixture(params=[*STORES, "replicas"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """`serving`, over each store in turn; and two replicas, on PostgreSQL and NATS."""
    if request.param == "memory":
        return partial(serving, storage="memory:")
    if request.param == "sqlite":
        return partial(serving, storage=f"sqlite:///{tmp_path / 'a2a.db'}")
    database, broker = request.getfixturevalue("postgres"), request.getfixturevalue("nats_url")
    return partial(replicated, storage=database, broker=broker)


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of an empty database in PostgreSQL."""
    with shared_postgres().database() as url:
        yield url


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """The NATS server of the session; tests that stop or kill one start their own."""
    with running_nats_server() as server:
        yield server


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    """The URL of a NATS server, with a namespace that is new for every test."""
    return nats_server.url()
