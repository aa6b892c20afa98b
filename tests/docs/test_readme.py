"""The README says what is so: about the set-up, the layout, the options and its first program.

That its programs run and its calls get the answers it shows is in `test_pages`.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from tests.cli.process import Process
from tests.docs.pages import COMMAND, SERVE
from tests.docs.readme import README, blocks
from tests.environments import ROOT
from tests.support import connected, text


def programs() -> list[str]:
    return [block.text for block in blocks() if block.language == "python"]


def test_the_first_program_is_an_example_of_at_most_eight_lines() -> None:
    example = (ROOT / "examples" / "echo.py").read_text(encoding="utf-8")
    first = programs()[0].strip()
    assert first in example
    assert len(first.splitlines()) <= 8


async def test_the_last_program_can_be_served(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(programs()[-1], encoding="utf-8")
    with Process("serve", file, "--port", "0", cwd=tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("hello")
            assert text(task.artifacts[0]) == "Echo: hello"
        assert process.stop() == 0


def test_every_agent_among_the_examples_is_served_and_called() -> None:
    commands = [block.command for block in blocks() if block.language == "sh"]
    served = {
        command.partition(SERVE)[2].partition(":")[0]
        for command, following in pairwise(commands)
        if SERVE in command and following.startswith(f"{COMMAND} ")
    }
    assert served == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_the_set_up_lines_are_those_that_ci_runs() -> None:
    set_up = [block.command for block in blocks() if block.command.startswith("python3 -m venv")]
    assert len(set_up) == 2
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in ci
    install = "python3 -m venv .venv && .venv/bin/pip install -q -c .ci/requirements.lock -e "
    assert set_up[0] == f"{install}. && {SERVE}examples/echo.py:Echo"
    assert set_up[1] == f"{install}'.[dev]' && .venv/bin/python -m pytest"


def test_every_path_of_the_layout_exists() -> None:
    layout = README.read_text(encoding="utf-8").partition("## Layout")[2]
    for line in layout.splitlines():
        if line.startswith("| `"):
            for path in re.findall(r"`([^`]+)`", line.split("|")[1]):
                assert (ROOT / path).exists(), path


def test_every_option_that_is_named_exists(tmp_path: Path) -> None:
    with Process("serve", "--help", cwd=tmp_path) as process:
        assert process.wait() == 0
    prose = README.read_text(encoding="utf-8").partition("## Configuration")[2]
    for option in set(re.findall(r"`(--[a-z-]+)", prose)):
        assert option in process.output, option
