"""Fixtures of the whole suite: `serve` runs a server over every store that there is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import Serving, serving

STORES = ["memory"]
if importlib.util.find_spec("a2a_grpc.storage.sql") is not None:
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


@pytest.fixture
def serve(store: str) -> Callable[..., Any]:
    """`serving`, over each store in turn."""
    return partial(serving, storage=store)
