"""The backends that the contract suite runs over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.sql.storage import SqlStorage
from tests.servers.postgres import shared_postgres

BACKENDS = ["memory", "sqlite", "postgresql"]

LEASE = 600.0
"""Seconds, longer than any test here: nobody renews it."""

Open = Callable[..., AnyStorage]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn."""
    name: str = request.param
    return name


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL database that is empty."""
    with shared_postgres().database() as url:
        yield url


@pytest.fixture
def open_storage(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """Makes a storage that is not entered yet, on the one database of the test."""
    if backend == "memory":
        return InMemoryStorage
    if backend == "sqlite":
        return partial(SqlStorage, f"sqlite:///{tmp_path / 'tasks.db'}")
    return partial(SqlStorage, request.getfixturevalue("postgres"), lease=LEASE)


@pytest.fixture
async def storage(open_storage: Open) -> AsyncIterator[AnyStorage]:
    """An empty storage of each backend."""
    async with open_storage() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def storing_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, for each backend that stores snapshots beside the log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    url: str = request.getfixturevalue("postgres")
    return url


@pytest.fixture
async def storing(storing_url: str) -> AsyncIterator[AnyStorage]:
    """An empty storage, of the backends that store snapshots beside the log."""
    async with SqlStorage(storing_url, lease=LEASE) as opened:
        yield opened


@pytest.fixture
async def forgetful(storing_url: str) -> AsyncIterator[AnyStorage]:
    """The same; it forgets the beginning of long logs."""
    async with SqlStorage(storing_url, keep_entries=5, lease=LEASE) as opened:
        yield opened
