"""The backends that the contract suite runs over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.sql import SqlStorage


def open_storage(backend: str, directory: Path, **options: Any) -> AnyStorage:
    """A storage that is not entered yet."""
    if backend == "memory":
        return InMemoryStorage(**options)
    return SqlStorage(f"sqlite:///{directory / 'tasks.db'}", **options)


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AnyStorage]:
    """An empty storage of each backend."""
    async with open_storage(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=["sqlite"])
async def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AnyStorage]:
    """An empty storage, of the backends that forget the beginning of long logs."""
    async with open_storage(request.param, tmp_path, keep_entries=5) as opened:
        yield opened
