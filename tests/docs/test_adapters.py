"""docs/adapters.md: its programs run, and its signatures are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc.adapters import from_langgraph, from_pydantic_ai
from tests.cli.process import Process
from tests.docs.readme import blocks
from tests.environments import ROOT
from tests.support import COMPLETED, INPUT_REQUIRED, connected, text

PAGE = ROOT / "docs" / "adapters.md"


def served(number: int, directory: Path) -> Process:
    """A program of the page, served."""
    file = directory / "program.py"
    file.write_text(blocks(PAGE)[number].text, encoding="utf-8")
    return Process("serve", file, "--port", "0", "--grace", "0", cwd=directory)


async def test_the_pydantic_ai_agent_answers(tmp_path: Path) -> None:
    with served(0, tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("How many screws are there?")
            assert task.status.state == COMPLETED
            assert text(task.artifacts[0]) == '{"stock":17}'
        assert process.stop() == 0


async def test_the_langgraph_graph_asks_and_answers(tmp_path: Path) -> None:
    with served(1, tmp_path) as process:
        async with connected(process.address) as client:
            task = await client.send("A bicycle, please.")
            assert task.status.state == INPUT_REQUIRED
            assert text(task.status.message) == "Shall I order it?"
            task = await client.send("yes", task_id=task.id)
            assert text(task.artifacts[0]) == "Your order is on its way."
        assert process.stop() == 0


def test_there_are_no_other_programs() -> None:
    assert [block.language for block in blocks(PAGE)] == ["python", "python"]


@pytest.mark.parametrize("function", [from_pydantic_ai, from_langgraph])
def test_signatures_are_those_of_the_code(function: Any) -> None:
    (shown,) = re.findall(
        rf"^`({function.__name__}\([^`]*\))`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    actual = str(inspect.Signature(parameters)).replace("'", '"')
    assert " ".join(shown.split()) == function.__name__ + actual
