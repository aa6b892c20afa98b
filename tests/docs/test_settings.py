"""docs/settings.md: its tables are those of the code, and its programs run."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click

from a2a_grpc.commands.serve import serve
from a2a_grpc.config import ServerSettings
from a2a_grpc.wire.validation import ValidationLimits
from tests.cli.process import Process
from tests.docs.readme import blocks
from tests.environments import ROOT
from tests.support import connected, refused, text

SETTINGS = ROOT / "docs" / "settings.md"


def table(head: str) -> dict[str, list[str]]:
    """The rows of the table that begins with this column: name to the other cells."""
    rows = SETTINGS.read_text(encoding="utf-8").partition(f"| {head} |")[2].partition("\n\n")[0]
    found = [line.strip("| ").split("|") for line in rows.splitlines()[2:]]
    return {name.strip("` "): [cell.strip(" `") for cell in cells] for name, *cells in found}


def defaults(settings: Any) -> dict[str, str]:
    return {
        field.name: repr(field.default)
        for field in fields(settings)
        if field.default is not MISSING
    }


def test_every_setting_is_there_with_its_default() -> None:
    shown = {name: cells[1] for name, cells in table("setting").items()}
    assert shown == defaults(ServerSettings)
    assert all(cells[0] for cells in table("setting").values())


def test_every_option_that_sets_a_setting_is_there() -> None:
    shown = {name: cells[2] for name, cells in table("setting").items() if cells[2:] and cells[2]}
    names = {field.name for field in fields(ServerSettings)}
    options = [option for option in serve.params if isinstance(option, click.Option)]
    assert shown == {str(o.name): o.opts[0] for o in options if o.name in names}
    prose = SETTINGS.read_text(encoding="utf-8")
    for option in options:
        assert option.opts[0] in prose or option.name == "help", option.opts


def test_every_limit_is_there_with_its_default() -> None:
    assert {name: cells[1] for name, cells in table("limit").items()} == defaults(ValidationLimits)


async def test_its_programs_can_be_served(tmp_path: Path) -> None:
    careful, tokens = [block for block in blocks(SETTINGS) if block.language == "python"]
    for program, answer in ((careful, "done in attempt 1"), (tokens, "Hello, alice")):
        file = tmp_path / "program.py"
        file.write_text(program.text, encoding="utf-8")
        with Process("serve", file, "--port", "0", cwd=tmp_path) as process:
            async with connected(process.address) as client:
                alice = client.identified(("authorization", "Bearer a-long-secret"))
                assert text((await alice.send()).artifacts[0]) == answer
                if program is tokens:
                    status = await refused(client.send())
                    assert status.reason == "UNAUTHENTICATED"
            assert process.stop() == 0
