"""The README as a program: its fenced blocks, in their order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.environments import ROOT

README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_COUNTED = re.compile(r"(?<=Stopped after )\d+|\b\d+(?= of 600 steps)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and where it is."""

    language: str
    text: str
    line: int

    @property
    def command(self) -> str:
        return self.text.strip()


def blocks(path: Path = README) -> list[Block]:
    """All fenced blocks."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in _FENCE.finditer(text)
    ]


@dataclass
class Ids:
    """Which id of this run stands for which id in the README."""

    actual: dict[str, str] = field(default_factory=dict)

    def put_in(self, command: str) -> str:
        """The command with this run's ids."""
        return _UUID.sub(lambda match: self.actual.get(match[0], match[0]), command)

    def learn(self, shown: str, got: str) -> None:
        """Take the ids that two outputs have at the same places for the same."""
        for one, other in zip(_UUID.findall(shown), _UUID.findall(got), strict=False):
            self.actual.setdefault(one, other)


def comparable(output: str) -> str:
    """Output without what differs from run to run; the same id is the same in all of it."""
    seen: dict[str, str] = {}
    output = _UUID.sub(lambda match: seen.setdefault(match[0], f"id-{len(seen)}"), output)
    output = _COUNTED.sub("some", output)
    return "\n".join(line.rstrip() for line in _TIME.sub("time", output).strip().splitlines())
