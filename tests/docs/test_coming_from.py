"""docs/coming-from.md: nothing is left out, every name of ours exists, and the programs run."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value

import a2a_grpc
from a2a_grpc import (
    A2AClient,
    A2AServer,
    RequestContext,
    SendMessageRequest,
    ServerCallContext,
    TaskContext,
)
from tests.cli.process import Process
from tests.docs.public_names import LIBRARIES, names
from tests.docs.readme import blocks
from tests.environments import ROOT, dependencies, environment, run
from tests.support import COMPLETED, INPUT_REQUIRED, Agent, Client, connected, echo, text

# An environment is made on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

PAGE = ROOT / "docs" / "coming-from.md"
PINNED = json.loads((ROOT / "tests" / "data" / "other_libraries.json").read_text(encoding="utf-8"))
SECTIONS = {"a2a-sdk": "a2a-sdk", "fasta2a": "FastA2A", "a2akit": "a2akit"}
"""The heading of each library's part of the page."""
REQUIREMENTS = [*dependencies(), "a2a-sdk==1.3.0"]


@dataclass(frozen=True)
class Row:
    """A row of a table: names of theirs, and code of ours."""

    line: int
    theirs: tuple[str, ...]
    ours: tuple[str, ...]


def section(library: str) -> tuple[int, str]:
    """The number of its first line, and its text."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(f"\n## {SECTIONS[library]}\n")
    return before.count("\n") + 2, rest.partition("\n## ")[0]


def rows(library: str) -> Iterator[Row]:
    """Every row of the library's tables."""
    first, body = section(library)
    holder = ""
    for number, line in enumerate(body.splitlines(), first + 1):
        if not line.startswith("|") or line.startswith("| ---"):
            continue
        theirs, ours, differs = (cell.strip() for cell in line.strip("|").split("|"))
        if (ours, differs) == ("ours", "what differs"):
            holder = theirs.strip("`")
            continue
        keys = (key_of(code, holder) for code in codes(theirs))
        yield Row(number, tuple(keys), tuple(codes(ours)))


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def key_of(code: str, holder: str) -> str:
    """`.member()` and `argument=` belong to the class in the table's head."""
    if code.startswith("."):
        return holder + code.removesuffix("()")
    return f"{holder}({code[:-1]})" if code.endswith("=") else code


# Theirs.


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_public_name_is_on_the_page_and_no_other(library: str) -> None:
    found = {key for row in rows(library) for key in row.theirs}
    pinned = set(PINNED[library]["names"])
    assert pinned - found == set(), "missing on the page"
    assert found - pinned == set(), f"not in {library} {PINNED[library]['version']}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_page_names_the_version_that_is_pinned(library: str) -> None:
    version = PINNED[library]["version"].removesuffix(".0")
    shown = re.search(
        rf"compared:.*{SECTIONS[library]} ([\d.]*\d)", PAGE.read_text(encoding="utf-8")
    )
    assert shown is not None
    assert version.startswith(shown[1])


def test_the_names_of_a2a_sdk_are_those_of_the_installed_one() -> None:
    python = environment("a2a-sdk-executor", REQUIREMENTS)
    where = "import importlib.metadata as m, a2a; print(m.version('a2a-sdk'), *a2a.__path__)"
    version, directory = run(python, where).split()
    assert version == PINNED["a2a-sdk"]["version"]
    assert names("a2a-sdk", Path(directory)) == PINNED["a2a-sdk"]["names"]


# Ours.


class Queue:
    """Takes nothing."""

    async def enqueue_event(self, event: Any) -> None: ...


def of_the_page() -> dict[str, Any]:
    """What the page calls by these names."""
    call = ServerCallContext()
    context = RequestContext(call, SendMessageRequest())
    agent = Agent(echo)
    return {
        "ctx": TaskContext(context, Queue()),
        "context": context,
        "call": call,
        "client": A2AClient("127.0.0.1:1"),
        "server": A2AServer(agent),
        "agent": agent,
        "executor": agent,
        "factory": object,
        "builder": None,
        "adapters": importlib.import_module("a2a_grpc.adapters"),
    }


def resolved(node: ast.expr, known: dict[str, Any]) -> Any:
    """The object that an expression of the page stands for; what it would return is not known."""
    if isinstance(node, ast.Name):
        assert node.id in known or node.id in a2a_grpc.__all__, f"{node.id} is not exported"
        return known[node.id] if node.id in known else getattr(a2a_grpc, node.id)
    if isinstance(node, ast.Attribute):
        return member(resolved(node.value, known), node.attr)
    if isinstance(node, ast.Call):
        function = resolved(node.func, known)
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
            resolved(value, known)
        check_arguments(function, len(node.args), [str(k.arg) for k in node.keywords])
        return None
    if isinstance(node, ast.List | ast.Tuple):
        for value in node.elts:
            resolved(value, known)
        return None
    ast.literal_eval(node)
    return None


def member(holder: Any, name: str) -> Any:
    """An attribute; of a class also a field of its objects."""
    if inspect.isclass(holder) and issubclass(holder, Message) and holder is not Value:
        holder = holder()
    fields = getattr(holder, "__dataclass_fields__", {})
    if name in fields or name in getattr(holder, "__annotations__", {}):
        return fields.get(name)
    if inspect.isclass(holder) and not hasattr(holder, name):
        # Attributes that __init__ or a property of an instance sets.
        source = inspect.getsource(holder)
        assert re.search(rf"^        self\.{name}\b.* = ", source, re.MULTILINE), (holder, name)
        return None
    return getattr(holder, name)


def check_arguments(function: Any, positional: int, keywords: list[str]) -> None:
    if inspect.isclass(function) and issubclass(function, Message):
        assert set(keywords) <= set(function.DESCRIPTOR.fields_by_name)
    else:
        inspect.signature(function).bind(*[None] * positional, **dict.fromkeys(keywords))


@pytest.mark.parametrize("library", LIBRARIES)
async def test_every_name_of_ours_exists(library: str) -> None:
    known = of_the_page()
    for row in rows(library):
        for code in row.ours:
            try:
                resolved(ast.parse(code, mode="eval").body, known)
            except (AssertionError, AttributeError, SyntaxError, TypeError, ValueError) as error:
                pytest.fail(f"{PAGE.name}:{row.line}: `{code}`: {error!r}")


def test_every_row_says_what_ours_is_or_that_there_is_none() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("| `"):
            ours = line.split("|")[2].strip()
            assert codes(ours) or ours in ("—", "ours"), line


def test_every_member_of_our_task_context_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in vars(TaskContext):
        assert name.startswith("_") or f"`ctx.{name}" in page, name


# The programs.


def programs() -> dict[str, str]:
    """By library and when: `a2a-sdk before`, ..."""
    found = [block.text for block in blocks(PAGE)]
    return dict(
        zip(
            (f"{name} {when}" for name in SECTIONS for when in ("before", "after")),
            found,
            strict=True,
        )
    )


def test_the_programs_before_are_python() -> None:
    for name, program in programs().items():
        compile(program, name, "exec")


async def spell(client: Client) -> None:
    task = await client.send("abc")
    (artifact,) = task.artifacts
    assert (task.status.state, artifact.artifact_id) == (COMPLETED, "letters")
    assert [part.text for part in artifact.parts] == ["a", "b", "c"]


async def count(client: Client) -> None:
    for number in (1, 2):
        task = await client.send("hello", context_id="c1")
        assert text(task.artifacts[0]) == f"message {number} of this conversation"
    other = await client.send("hello", context_id="c2")
    assert text(other.artifacts[0]) == "message 1 of this conversation"


async def translate(client: Client) -> None:
    task = await client.send("translate")
    assert task.status.state == INPUT_REQUIRED
    assert text(task.status.message) == "Which word?"
    task = await client.send("hello", task_id=task.id)
    assert task.status.state == COMPLETED
    assert text(task.artifacts[0]) == "bonjour"


@pytest.mark.parametrize(
    ("library", "check"), [("a2a-sdk", spell), ("fasta2a", count), ("a2akit", translate)]
)
async def test_the_program_after_is_served(library: str, check: Any, tmp_path: Path) -> None:
    file = tmp_path / "after.py"
    file.write_text(programs()[f"{library} after"], encoding="utf-8")
    with Process("serve", file, "--port", "0", cwd=tmp_path) as process:
        async with connected(process.address) as client:
            await check(client)
        assert process.stop() == 0


async def test_the_executor_of_a2a_sdk_is_served_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "before.py"
    file.write_text(programs()["a2a-sdk before"], encoding="utf-8")
    python = environment("a2a-sdk-executor", REQUIREMENTS)
    command = (python, "-m", "a2a_grpc")
    with Process("serve", file, "--port", "0", cwd=tmp_path, command=command) as process:
        async with connected(process.address) as client:
            await spell(client)
        assert process.stop() == 0
