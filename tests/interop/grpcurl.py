"""grpcurl, built from its sources with the Go toolchain into the user's cache directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.cli.process import PATIENCE
from tests.environments import unavailable

MODULE = "github.com/fullstorydev/grpcurl/cmd/grpcurl"
VERSION = "v1.9.3"  # newer ones need a newer Go
SERVICE = "lf.a2a.v1.A2AService"


@cache
def grpcurl_program() -> Path:
    """The path of grpcurl; built, if it is not there yet."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache_home / "a2a-grpc" / f"grpcurl-{VERSION}"
    program = directory / ("grpcurl.exe" if os.name == "nt" else "grpcurl")
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        unavailable("there is no Go toolchain to build grpcurl with")
    directory.mkdir(parents=True, exist_ok=True)
    # It writes the program in one step, so tests that run at once do not disturb each other.
    result = subprocess.run(
        [go, "install", f"{MODULE}@{VERSION}"],
        env={**os.environ, "GOBIN": str(directory), "GOFLAGS": "-modcacherw -buildvcs=false"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        unavailable(f"building grpcurl failed: {result.stderr.strip()[-500:]}")
    return program


class Grpcurl:
    """grpcurl for one server."""

    VERSION_HEADER = ("-H", "a2a-version: 1.0")

    def __init__(self, program: Path, address: str) -> None:
        self._program = program
        self._address = address

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`arguments` are those of the command; the last one follows the address, or both of
        `list X` and `describe X`."""
        split = len(arguments) - 1
        if "list" in arguments or "describe" in arguments:
            split = max(i for i, word in enumerate(arguments) if word in ("list", "describe"))
        return subprocess.run(
            [
                str(self._program),
                "-plaintext",
                *arguments[:split],
                self._address,
                *arguments[split:],
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def output(self, *arguments: str) -> str:
        """What it prints; it must succeed."""
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def call(self, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers of an A2A call."""
        return documents(
            self.output(*self.VERSION_HEADER, "-d", json.dumps(request), f"{SERVICE}/{method}")
        )

    def error(
        self, method: str, request: dict[str, Any], headers: Sequence[str] = VERSION_HEADER
    ) -> dict[str, Any]:
        """The google.rpc.Status that an A2A call fails with."""
        result = self.run(
            "-format-error", *headers, "-d", json.dumps(request), f"{SERVICE}/{method}"
        )
        assert result.returncode != 0, result.stdout
        found: dict[str, Any] = json.loads(result.stderr)
        return found


def documents(text: str) -> list[dict[str, Any]]:
    """The JSON documents that follow one another in `text`."""
    decoder, found, position = json.JSONDecoder(), [], 0
    text = text.strip()
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        found.append(document)
        while position < len(text) and text[position].isspace():
            position += 1
    return found
