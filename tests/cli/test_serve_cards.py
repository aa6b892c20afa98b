"""`a2a-grpc serve --card --card-key --card-key-id`."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_grpc import pb
from a2a_grpc.cards.verification import verify_card
from tests.cards.values import pair
from tests.cli.process import Process
from tests.support import connected

ECHO = """
async def agent(context):
    return context.get_user_input()
"""
CARD = """
name: From the file
skills:
  - {id: echo, name: Echo, description: Repeats., tags: [echo]}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO, encoding="utf-8")
    (tmp_path / "card.yaml").write_text(CARD, encoding="utf-8")
    (tmp_path / "key.pem").write_bytes(pair("ES256").private)


def serve(cwd: Path, *arguments: str, **variables: str) -> Process:
    common = ("serve", "echo.py", "--port", "0", "--store", "memory:")
    return Process(*common, *arguments, cwd=cwd, variables=variables)


def failure(cwd: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """The exit code, and the one line that says why."""
    with serve(cwd, *arguments, **variables) as process:
        code = process.wait()
        (line,) = process.lines
        return code, line


async def card_of(address: str) -> pb.AgentCard:
    async with connected(address) as client:
        card: pb.AgentCard = await pb.DiscoveryStub(client.channel).GetAgentCard(
            pb.GetAgentCardRequest(), timeout=10
        )
        return card


@pytest.mark.parametrize("in_environment", [False, True])
async def test_the_card_is_read_completed_and_signed(tmp_path: Path, in_environment: bool) -> None:
    options = {"--card": "card.yaml", "--card-key": "key.pem", "--card-key-id": "2026"}
    arguments = [f"{name}={value}" for name, value in options.items()]
    variables = {
        "A2A_GRPC_" + name.removeprefix("--").replace("-", "_").upper(): value
        for name, value in options.items()
    }
    with serve(tmp_path, **variables) if in_environment else serve(tmp_path, *arguments) as process:
        card = await card_of(process.address)
        assert card.name == "From the file"
        assert [one.url for one in card.supported_interfaces] == [process.address]
        assert verify_card(card, {"2026": pair("ES256").public}, strict=True) == "2026"
        assert process.stop() == 0


async def test_without_a_key_the_card_has_no_signature(tmp_path: Path) -> None:
    with serve(tmp_path, "--card=card.yaml") as process:
        assert not (await card_of(process.address)).signatures
        assert process.stop() == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nmae: x", ["card.yaml: nmae", "did you mean name?"]),
        ("skills: [{id: a, name: a, description: a}]", ["card.yaml: skills[0].tags", "required"]),
        ("name: [", ["card.yaml: is not YAML"]),
        ("version: 1.0", ["card.yaml: version", "put it in quotes"]),
    ],
)
def test_a_wrong_card_is_refused_in_one_line(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    (tmp_path / "card.yaml").write_text(content, encoding="utf-8")
    code, line = failure(tmp_path, "--card=card.yaml")
    assert code == 1
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_files_that_are_not_there_are_refused_in_one_line(tmp_path: Path) -> None:
    code, line = failure(tmp_path, A2A_GRPC_CARD="missing.json")
    assert (code, line.split(":")[1].strip()) == (1, "missing.json")
    code, line = failure(tmp_path, "--card-key=missing.pem", "--card-key-id=k")
    assert (code, line.split(":")[1].strip()) == (1, "missing.pem")


def test_a_key_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    code, line = failure(tmp_path, "--card-key=card.yaml", "--card-key-id=k")
    assert code == 1
    assert "card.yaml: not a private key in PEM form" in line


@pytest.mark.parametrize("option", ["--card-key=key.pem", "--card-key-id=k"])
def test_key_and_key_id_go_together(tmp_path: Path, option: str) -> None:
    code, line = failure(tmp_path, option)
    assert code == 2
    assert "--card-key and --card-key-id go together" in line
