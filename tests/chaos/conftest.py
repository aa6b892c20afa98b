"""PostgreSQL for the whole suite; a database, a NATS server and a cluster for each module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.services import Services
from tests.servers.postgres import PostgresServer, own_postgres

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of the suite's own, since it will be mistreated."""
    with own_postgres(careless=False) as server:
        yield server


@pytest.fixture(scope="module")
def services(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Services]:
    """A new database, and NATS with an empty store."""
    with Services(postgres, tmp_path_factory.mktemp("services")) as services:
        yield services


@pytest.fixture(scope="module")
def make_cluster(
    services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    """Makes the module's cluster: arguments of every replica, and of each by its name."""
    with ExitStack() as stack:

        def make(*arguments: str, roles: dict[str, Sequence[str]] | None = None) -> Cluster:
            named = roles or {"a": [], "b": [], "c": []}
            directory = tmp_path_factory.mktemp("cluster")
            cluster = Cluster(directory, [*services.arguments, *arguments], named)
            return stack.enter_context(cluster)

        yield make
