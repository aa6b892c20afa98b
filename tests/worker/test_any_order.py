"""Whatever an agent calls, in whatever order: one end, and a stream that agrees with GetTask."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from a2a_grpc import TaskContext
from tests.conftest import Serve
from tests.support import collect, fold, outline, state_name, text, within
from tests.worker.workers import worker

SAYING: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("send_status", (), {}),
    ("send_status", ("at it",), {}),
    ("emit_text_artifact", ("t",), {}),
    ("emit_text_artifact", ("t",), {"append": True}),
    ("emit_text_artifact", ("l",), {"append": True, "last_chunk": True}),
    ("emit_text_artifact", ("u" * 400_000,), {"artifact_id": "large", "append": True}),
    ("emit_data_artifact", ({"a": 1},), {"artifact_id": "data"}),
    ("emit_artifact", (), {"artifact_id": "file", "file_bytes": b"x"}),
]
ENDING: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("complete", (), {}),
    ("complete", ("end",), {}),
    ("complete", ("end",), {"artifact_id": "answer"}),
    ("complete_json", ({"a": [1]},), {}),
    ("respond", ("end",), {}),
    ("fail", ("end",), {}),
    ("reject", (), {}),
    ("request_input", ("end?",), {}),
    ("request_auth", (), {}),
]
ENDS = ("COMPLETED", "FAILED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED")


async def at_random(ctx: TaskContext) -> None:
    """Calls at random, from several tasks at once; whatever follows the end is refused."""
    chosen = random.Random(ctx.user_text)

    async def one() -> None:
        for _ in range(chosen.randrange(8)):
            method, arguments, named = chosen.choice(SAYING + ENDING[: chosen.randrange(2)])
            try:
                await getattr(ctx, method)(*arguments, **named)
            except RuntimeError as error:
                assert ctx.turn_ended
                assert str(error).startswith(f"{method}() after ")  # noqa: PT017
            if chosen.random() < 0.5:
                await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(chosen.randrange(1, 4))))
    if not ctx.turn_ended and chosen.random() < 0.9:
        method, arguments, named = chosen.choice(ENDING)
        await getattr(ctx, method)(*arguments, **named)
        if chosen.random() < 0.2:
            await asyncio.sleep(0)
        if chosen.random() < 0.2:
            raise RuntimeError("after the end")


async def test_any_order_of_calls_has_one_end_and_one_story(serve: Serve) -> None:
    async def one(seed: int) -> None:
        events = await collect(s.stream(f"seed {seed}"))
        words = outline(events)
        # One that said nothing at all and has no end either begins with it.
        assert words[0] == "task WORKING" or words == ["task FAILED"], words
        told = [word.split()[1] for word in words if word.startswith(("task ", "status "))]
        assert told[-1] in ENDS, (seed, words)
        ends = [state for state in told if state in ENDS]
        # An agent that raises after a question has failed.
        assert len(ends) == 1 or ends in (["INPUT_REQUIRED", "FAILED"], ["AUTH_REQUIRED", "FAILED"])
        task = await s.get(events[0].task.id)
        if len(ends) == 1 and ends[0].endswith("REQUIRED"):
            # It may fail after the stream has ended.
            assert state_name(task.status.state) in (ends[0], "FAILED")
        else:
            state, artifacts = fold(events)
            assert state == state_name(task.status.state), seed
            assert artifacts == {a.artifact_id: text(a) for a in task.artifacts}, seed

    async with serve(worker(at_random)) as s:
        await within(asyncio.gather(*(one(seed) for seed in range(150))), 60)
