"""What a server holds for its agents: opened in order, closed in reverse, found by type or name."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from a2a_grpc import A2AServer, Dependencies, Dependency, RequestContext, TaskContext
from tests.cli.process import environment_of
from tests.environments import ROOT
from tests.support import FAILED, a_server, serving, text, within
from tests.worker.workers import raised, worker


class Database:
    """An async context manager, which notes when it is opened and closed."""

    log: list[str]

    def __init__(self, log: list[str] | None = None, name: str = "database") -> None:
        self.log = [] if log is None else log
        self.name = name

    async def __aenter__(self) -> Self:
        self.log.append(f"open {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append(f"close {self.name}")


async def quiet(ctx: TaskContext) -> None:
    await ctx.complete()


async def test_dependencies_are_opened_in_order_and_closed_in_reverse() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def cache() -> AsyncIterator[dict[str, int]]:
        log.append("open cache")
        yield {"n": 7}
        log.append("close cache")

    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        found.append((ctx.deps[Database].name, ctx.deps["cache"], ctx.deps["limit"]))
        await ctx.complete()

    deps = {
        Database: Dependency(lambda: Database(log)),
        "cache": Dependency(cache),
        "limit": 3,
        "last": Dependency(lambda: Database(log, "last")),
    }
    a_server(worker(handle), deps=deps)
    assert log == []
    async with serving(worker(handle), deps=deps) as s:
        assert log == ["open database", "open cache", "open last"]
        await s.send()
    assert found == [("database", {"n": 7}, 3)]
    assert log[3:] == ["close last", "close cache", "close database"]


async def test_agent_has_its_dependencies_until_its_very_end() -> None:
    """One that is cut off by the end of the server cleans up with them."""
    import asyncio

    log: list[str] = []
    started = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        database = ctx.deps[Database]
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("clean up")
            assert database.log == ["open database", "clean up"]

    async with serving(worker(handle), deps={Database: Dependency(lambda: Database(log))}) as s:
        await s.send(immediately=True)
        await within(started.wait())
    assert log == ["open database", "clean up", "close database"]


async def test_failure_to_open_closes_what_was_open_and_stops_the_start() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no such database")
        yield

    server = a_server(
        worker(quiet),
        deps={"a": Dependency(lambda: Database(log)), "b": Dependency(broken)},
    )
    with pytest.raises(OSError, match="no such database"):
        await within(server.__aenter__())
    assert log == ["open database", "close database"]
    assert server.port == 0


async def test_missing_dependency_is_named_with_its_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(ctx: TaskContext) -> None:
        assert ctx.deps.get(Database) is None
        assert ctx.deps.get("name", 5) == 5
        assert "name" not in ctx.deps
        with pytest.raises(KeyError):
            ctx.deps["name"]
        ctx.deps[Database]

    async with serving(worker(handle)) as s:
        assert (await s.send()).status.state == FAILED
    assert "there is no dependency Database; give it to A2AServer(deps={Database: ...})" in raised(
        caplog
    )


@pytest.mark.parametrize(
    ("deps", "problem"),
    [
        ({5: "five"}, "deps has the key 5; use a type or a name"),
        ({None: "none"}, "deps has the key None; use a type or a name"),
        (
            {Database: Database},
            r"deps\[Database\] is the class Database; give an object of it, or Dependency\(Data",
        ),
    ],
)
def test_what_can_not_be_a_dependency_is_refused(deps: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        A2AServer(worker(quiet), deps=deps)


def test_dependency_takes_a_factory() -> None:
    with pytest.raises(TypeError, match="takes what makes an async context manager"):
        Dependency(Database())  # type: ignore[arg-type]


async def test_other_forms_of_agent_have_them_too_and_so_has_cancel() -> None:
    import asyncio

    async def function(context: RequestContext) -> str:
        return f"limit {context.deps['limit']}"

    async with serving(function, deps={"limit": 3}) as s:
        assert [text(one) for one in (await s.send()).artifacts] == ["limit 3"]

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        await asyncio.Event().wait()

    async def cancel(ctx: TaskContext) -> str:
        return f"limit {ctx.deps['limit']}"

    async with serving(worker(handle, cancel=cancel), deps={"limit": 3}) as s:
        task = await s.send(immediately=True)
        assert text((await s.cancel(task.id)).status.message) == "limit 3"


def test_dependencies_are_a_mapping() -> None:
    deps = Dependencies({"a": 1, Database: 2})
    assert dict(deps) == {"a": 1, Database: 2}
    assert len(deps) == 2
    with pytest.raises(TypeError):
        deps["b"] = 2  # type: ignore[index]


async def test_a_server_that_starts_again_opens_them_again() -> None:
    log: list[str] = []
    server = a_server(worker(quiet), deps={Database: Dependency(lambda: Database(log))})
    for _ in range(2):
        async with server:
            pass
    assert log == ["open database", "close database"] * 2


TYPED = """
    from typing import assert_type

    from a2a_grpc import A2AServer, Dependency, TaskContext, Worker


    class Database:
        async def __aenter__(self) -> "Database":
            return self

        async def __aexit__(self, *_: object) -> None: ...


    class Typed(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            assert_type(ctx.deps[Database], Database)
            ctx.deps[Database].nothing
            ctx.deps["name"].anything
            ctx.deps.get("name", 5).anything
            await ctx.complete(str(ctx.history[0].text))
            ctx.task_id = "x"


    A2AServer(Typed(), deps={Database: Dependency(Database), "name": 5})
"""


def test_type_checkers_know_the_type_of_a_dependency(tmp_path: Path) -> None:
    """mypy finds the two mistakes in the program, and nothing else."""
    program = tmp_path / "typed.py"
    program.write_text(textwrap.dedent(TYPED), encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"),
            *("--cache-dir", str(tmp_path / "cache"), "--config-file", "/dev/null"),
            str(program),
        ],
        env=environment_of() | {"MYPYPATH": f"{ROOT}:{ROOT / 'generated'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "error" in line]
    assert errors[:2] == [
        '"Database" has no attribute "nothing"  [attr-defined]',
        'Property "task_id" defined in "TaskInput" is read-only  [misc]',
    ], done.stdout + done.stderr
    assert len(errors) == 3  # and mypy's own sum
    assert errors[2] == "" or "Found 2 errors" in done.stdout
