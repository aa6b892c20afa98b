"""Virtual environments for tests that need other packages than the ones pytest runs with.

They live in the user's cache directory, one for each set of requirements, and stay between runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent


def unavailable(reason: str) -> NoReturn:
    """Skips the test on a laptop that has no network; fails it in CI, where every test counts."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def dependencies() -> list[str]:
    """What pyproject.toml says that the package needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: list[str] = project["dependencies"]
    return found


def environment(name: str, requirements: Iterable[str]) -> Path:
    """The Python of an environment with exactly these requirements installed."""
    wanted = sorted(requirements)
    key = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "a2a-grpc"
    directory = cache / f"test-{name}-{key}"
    python = directory / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = directory / ".ready"
    with _locked(cache / f"test-{name}-{key}.lock"):
        if not ready.exists():
            _run(sys.executable, "-m", "venv", "--clear", str(directory))
            _run(str(python), "-m", "pip", "install", "--quiet", *wanted)
            ready.touch()
    return python


def run(python: Path | str, code: str, *options: str, **variables: str) -> str:
    """Runs code that sees the repository; returns what it prints, fails with what it complains."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_GRPC_", "PYTHON"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "generated")])
    if "PYTHONPATH" in variables:
        path = os.pathsep.join([variables.pop("PYTHONPATH"), path])
    result = subprocess.run(
        [str(python), *options, "-c", code],
        env={**inherited, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        unavailable(f"{' '.join(command)} failed: {result.stderr.strip()[-500:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps parallel test runs from building the same environment at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            import fcntl
        except ImportError:
            pass
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
