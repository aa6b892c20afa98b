"""The Python environment of a2a-sdk: made once with pip, kept in the user's cache directory.

Its dependencies are pinned to the versions in use here, so that both servers stand on the same
grpc, protobuf and database driver.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SDK = "a2a-sdk[grpc,postgresql]==1.3.*"
_PINNED = ("grpcio", "protobuf", "uvloop", "sqlalchemy", "asyncpg")


def cache_directory() -> Path:
    """Where environments are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "a2a-grpc-benchmarks"


def sdk_python(say: Callable[[str], None]) -> Path:
    """The interpreter of an environment with a2a-sdk, made if there is none yet.

    Raises RuntimeError if pip fails.
    """
    requirements = [SDK]
    for name in _PINNED:
        try:
            requirements.append(f"{name}=={version(name)}")
        except PackageNotFoundError:
            continue
    key = hashlib.sha256(f"{sys.version}{requirements}".encode()).hexdigest()[:12]
    home = cache_directory() / f"a2a-sdk-{key}"
    python = home / "bin" / "python"
    complete = home / "complete"
    if complete.exists() and python.exists():
        return python
    say(f"making an environment with {' '.join(requirements)} in {home}")
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", *requirements])
    complete.touch()
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} failed; name an interpreter that has a2a-sdk with --sdk-python, "
            f"or leave it out with --servers:\n{done.stderr.strip()}"
        )
