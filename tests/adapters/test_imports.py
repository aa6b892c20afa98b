"""The frameworks are extras: imported when they are needed, and missed by name."""

from __future__ import annotations

import socket
import subprocess
import sys
import tomllib

import pytest

import a2a_grpc.adapters
from tests.cli.process import environment_of
from tests.environments import ROOT


def run(program: str) -> str:
    """What a program prints that runs in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment_of(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_the_public_names_are_pinned() -> None:
    assert a2a_grpc.adapters.__all__ == ["from_langgraph", "from_pydantic_ai"]


def test_no_framework_is_imported_before_it_is_needed() -> None:
    program = """
import sys
from a2a_grpc.adapters import from_langgraph, from_pydantic_ai
roots = {name.split(".")[0] for name in sys.modules}
print(sorted(roots & {"langchain_core", "langgraph", "pydantic", "pydantic_ai", "pydantic_core"}))
"""
    assert run(program) == "[]\n"


@pytest.mark.parametrize(
    ("function", "framework", "extra"),
    [
        ("from_pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("from_langgraph", "langgraph", "langgraph"),
        ("from_langgraph", "langchain_core", "langgraph"),
    ],
)
def test_a_missing_framework_is_an_error_that_names_the_extra(
    function: str, framework: str, extra: str
) -> None:
    program = f"""
import sys
sys.modules[{framework!r}] = None
from a2a_grpc import adapters
try:
    adapters.{function}(None)
except ImportError as error:
    print(error)
"""
    assert run(program) == f"{function}() needs the extra {extra}: install 'a2a-grpc[{extra}]'\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]


def test_what_a_framework_itself_misses_is_not_taken_for_the_extra() -> None:
    program = """
import sys
sys.modules["pydantic_graph"] = None
from a2a_grpc import adapters
try:
    adapters.from_pydantic_ai(None)
except ImportError as error:
    print(error.name)
"""
    assert run(program).startswith("pydantic_graph")


@pytest.mark.parametrize("host", ["model.example", "192.0.2.1"])
def test_no_test_here_reaches_a_network(host: str) -> None:
    with pytest.raises(PermissionError, match="no network"):
        socket.create_connection((host, 443), timeout=1)
