"""The README does what it says: its programs run, and its calls get the answers it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.process import PATIENCE, Process, environment_of
from tests.docs.readme import README, Block, Ids, blocks, comparable
from tests.environments import ROOT, environment
from tests.interop.grpcurl import grpcurl_program
from tests.interop.test_a2a_sdk_client import REQUIREMENTS
from tests.support import connected, text

# grpcurl is built on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(900)

ADDRESS = "127.0.0.1:50051"
SERVE = ".venv/bin/a2a-grpc serve "
LANGUAGES = {"python", "sh", "json", "text", "mermaid"}


@dataclass(frozen=True)
class Call:
    """A command that calls the example which the README serves at this point."""

    example: str
    command: Block
    shown: Block


def calls() -> list[Call]:
    """Every call in the README, with the answer below it."""
    found: list[Call] = []
    example, everything = "", blocks()
    for position, block in enumerate(everything):
        if block.language != "sh":
            continue
        if SERVE in block.command:
            example = block.command.partition(SERVE)[2]
        elif not block.command.endswith("-m pytest"):
            found.append(Call(example, block, everything[position + 1]))
    return found


def programs() -> list[Block]:
    return [block for block in blocks() if block.language == "python"]


def run(command: str, cwd: Path, address: str) -> str:
    """What a command of the README prints in a shell, with this environment and this server."""
    here = {
        ".venv/bin/python": shlex.quote(sys.executable),
        "examples/": f"{shlex.quote(str(ROOT / 'examples'))}/",
    }
    for shown, actual in here.items():
        command = command.replace(shown, actual)
    if command.startswith("grpcurl"):
        command = command.replace(ADDRESS, address)
        command = shlex.quote(str(grpcurl_program())) + command.removeprefix("grpcurl")
    else:
        command = f"{command} --target {address}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=environment_of(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return result.stdout


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    """Every example that the README calls, served."""
    running: dict[str, Process] = {}
    try:
        for call in calls():
            if call.example not in running:
                cwd = tmp_path_factory.mktemp("served")
                running[call.example] = Process(
                    "serve", ROOT / call.example, "--port", "0", "--grace", "0", cwd=cwd
                )
        yield running
        for process in running.values():
            assert process.stop() == 0
    finally:
        for process in running.values():
            process.__exit__(None, None, None)


@pytest.fixture(scope="module")
def ids() -> Ids:
    """The ids of the tasks; calls to one task follow one another."""
    return Ids()


@pytest.mark.parametrize("call", calls(), ids=lambda call: f"line {call.command.line}")
def test_a_call_gets_the_answer_that_is_shown(
    call: Call, servers: dict[str, Process], ids: Ids, tmp_path: Path
) -> None:
    assert call.shown.language in ("json", "text"), "the answer is missing"
    got = run(ids.put_in(call.command.command), tmp_path, servers[call.example].address)
    ids.learn(call.shown.text, got)
    assert comparable(got) == comparable(call.shown.text)


def test_every_example_is_called() -> None:
    called = {call.example for call in calls()}
    agents = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert called == agents - {"examples/call.py"}
    assert len(calls()) >= 10


def test_the_shortest_program_is_the_example() -> None:
    example = (ROOT / "examples" / "echo.py").read_text(encoding="utf-8")
    assert programs()[0].text.strip() in example


async def test_the_first_and_the_last_program_can_be_served(tmp_path: Path) -> None:
    for number in (0, -1):
        file = tmp_path / f"program{number}.py"
        file.write_text(programs()[number].text, encoding="utf-8")
        with Process("serve", file, "--port", "0", cwd=tmp_path) as process:
            async with connected(process.address) as client:
                task = await client.send("hello")
                assert text(task.artifacts[0]) == "Echo: hello"
            assert process.stop() == 0


def test_the_program_that_calls_gets_its_answer(
    servers: dict[str, Process], tmp_path: Path
) -> None:
    (caller,) = [block for block in programs() if "grpc.insecure_channel" in block.text]
    program = caller.text.replace(ADDRESS, servers["examples/echo.py"].address)
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment_of(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert found.stdout == "Echo: hello\n"


def test_the_client_of_a2a_sdk_gets_its_answer(servers: dict[str, Process], tmp_path: Path) -> None:
    (client,) = [block for block in programs() if "from a2a.client import" in block.text]
    compile(client.text, "README.md", "exec")
    python = environment("a2a-sdk-client", REQUIREMENTS)
    found = subprocess.run(
        [
            str(python),
            "-I",
            "-c",
            client.text.replace(ADDRESS, servers["examples/echo.py"].address),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert found.stdout == "Echo: hello\n"


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for block in blocks()} == LANGUAGES
    assert README.read_text(encoding="utf-8").count("```") == 2 * len(blocks())
    assert len(programs()) == 4


def test_the_set_up_lines_are_those_that_ci_runs() -> None:
    set_up = [block.command for block in blocks() if block.command.startswith("python3 -m venv")]
    assert len(set_up) == 2
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in ci
    install = "python3 -m venv .venv && .venv/bin/pip install -q -c .ci/requirements.lock -e "
    assert set_up[0] == f"{install}. && {SERVE}examples/echo.py"
    assert set_up[1] == f"{install}'.[dev]' && .venv/bin/python -m pytest"


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text(encoding="utf-8")):
        if target.startswith("#"):
            headings = re.findall(r"^## (.+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
            assert target[1:] in [heading.lower().replace(" ", "-") for heading in headings]
        elif not target.startswith("https://"):
            assert (ROOT / target).exists(), target


def test_every_path_of_the_layout_exists() -> None:
    layout = README.read_text(encoding="utf-8").partition("## Layout")[2]
    for line in layout.splitlines():
        if line.startswith("| `"):
            for path in re.findall(r"`([^`]+)`", line.split("|")[1]):
                assert (ROOT / path).exists(), path


def test_every_option_that_is_named_exists(tmp_path: Path) -> None:
    with Process("serve", "--help", cwd=tmp_path) as process:
        assert process.wait() == 0
    prose = README.read_text(encoding="utf-8")
    for option in set(re.findall(r"`(--[a-z-]+)", prose)):
        assert option in process.output, option
