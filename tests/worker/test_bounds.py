"""What is kept for agents has a bound, and says so when it is reached."""

from __future__ import annotations

import pytest

from a2a_grpc import TaskContext, Worker
from a2a_grpc.agent.conversation import Conversation
from a2a_grpc.transient import TransientContexts
from tests.support import COMPLETED, serving, text


async def test_a_context_that_is_too_large_is_refused_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Conversation, "MAX_BYTES", 100)

    class Keeping(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.update_context("x" * 98)  # and two quotes
            with pytest.raises(ValueError, match="takes 100 bytes of JSON at the most, not 101"):
                await ctx.update_context("x" * 99)
            await ctx.complete(await ctx.load_context())

    async with serving(Keeping()) as s:
        task = await s.send()
        assert task.status.state == COMPLETED
        assert text(task.artifacts[0]) == "x" * 98


def test_request_contexts_that_nobody_takes_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TransientContexts, "MAX_KEPT", 2)
    kept = TransientContexts()
    for number in range(3):
        kept.keep(str(number), {"secret": number})
    assert [kept.take(str(number)) for number in range(3)] == [{}, {"secret": 1}, {"secret": 2}]
    assert kept.take("2") == {}
    assert "dropped the request context of operation 0" in caplog.text
