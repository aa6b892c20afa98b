"""GetTask (specification 3.1.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from tests.support import (
    WORKING,
    Gated,
    asking,
    assert_error,
    assert_invalid,
    echo,
    refused,
    serving,
    text,
    texts,
    within,
)


async def test_task_is_complete(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        sent = await s.send("hi")
        task = await s.get(sent.id)
        assert task == sent
        assert text(task.artifacts[0]) == "hi"


async def test_running_task_can_be_read(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agent) as s:
        task = await s.send(immediately=True)
        await within(agent.started.wait())
        assert (await s.get(task.id)).status.state == WORKING
        agent.go.set()


@pytest.mark.parametrize(
    ("length", "expected"),
    [(None, ["one", "what else?", "done"]), (0, []), (2, ["what else?", "done"]), (5, None)],
)
async def test_history_length_keeps_the_newest(
    length: int | None, expected: list[str] | None, serve: Callable[..., Any]
) -> None:
    async with serve(asking) as s:
        task = await s.send("one")
        await s.send("done", task_id=task.id)
        found = await s.get(task.id, history_length=length)
        assert texts(found.history) == (
            expected or ["one", "what else?", "done"][: 3 * bool(length)]
        )
        assert len((await s.get(task.id)).history) == 3


async def test_negative_history_length_is_refused() -> None:
    async with serving(echo) as s:
        task = await s.send()
        call = s.call("GetTask", pb.GetTaskRequest(id=task.id, history_length=-1))
        assert_invalid(await refused(call), "history_length")


async def test_unknown_task_is_not_found_and_named() -> None:
    async with serving(echo) as s:
        status = await refused(s.call("GetTask", pb.GetTaskRequest(id="unknown")))
        assert_error(status, "TASK_NOT_FOUND")
        assert status.metadata["task_id"] == "unknown"
        assert "unknown" in status.message
