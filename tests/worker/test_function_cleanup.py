"""Short forms of an agent: cleaning up, and what is no artifact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_grpc import RequestContext
from tests.conftest import Serve
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    collect,
    kinds,
    outline,
    serving,
    text,
    within,
)


async def test_generator_cleans_up_before_its_turn_is_over(serve: Serve) -> None:
    """It is cancelled while its chunk is being published, not while it runs itself."""
    log: list[str] = []

    async def agent(context: RequestContext) -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 300_000
        finally:
            log.append("cleaned up")

    async with serve(agent) as s:
        task = await s.send(immediately=True)
        assert (await s.cancel(task.id)).status.state == CANCELED
        assert log == ["cleaned up"]


async def test_generator_whose_chunk_can_not_be_sent_cleans_up_and_fails(serve: Serve) -> None:
    log: list[str] = []

    async def agent(context: RequestContext) -> AsyncIterator[Any]:
        try:
            yield "first"
            yield object()
        finally:
            log.append("cleaned up")

    async with serve(agent) as s:
        assert outline(await collect(s.stream())) == [
            *("task WORKING", "artifact first", "status FAILED"),
        ]
        assert log == ["cleaned up"]


@pytest.mark.parametrize("nothing", [None, [], ()])
async def test_nothing_is_no_artifact(nothing: Any, store: str) -> None:
    async def agent(context: RequestContext) -> Any:
        return nothing

    async with serving(agent, storage=store) as s:
        events = await collect(s.stream())
        assert kinds(events) == ["task", "status_update"]
        task = await s.get(events[0].task.id)
        assert (task.status.state, list(task.artifacts)) == (COMPLETED, [])


async def test_function_cleans_up_when_it_is_cancelled(serve: Serve) -> None:
    log: list[str] = []
    started = asyncio.Event()

    async def agent(context: RequestContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")
        return "never"

    async with serve(agent) as s:
        task = await s.send(immediately=True)
        await within(started.wait())
        assert (await s.cancel(task.id)).status.state == CANCELED
        assert log == ["cleaned up"]


async def test_numbers_that_json_has_not_fail_the_task(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(context: RequestContext) -> dict[str, float]:
        return {"a": float("nan")}

    async with serving(agent) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert "NaN" not in text(task.status.message)
    assert "holds a number that JSON does not have" in caplog.text
