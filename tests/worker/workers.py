"""Workers that tests write as functions, and what many of these tests ask of a task."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf import json_format

from a2a_grpc import TaskContext, Worker, pb
from a2a_grpc.storage.memory import InMemoryStorage
from tests.support import Client, outline, request, within

Handle = Callable[[TaskContext], Awaitable[None]]


def worker(
    handle: Handle,
    *,
    cancel: Callable[[TaskContext], Awaitable[str | None]] | None = None,
    **attributes: Any,
) -> Worker:
    """A Worker with this `handle`; `attributes` are those of its class."""

    async def run(self: Worker, ctx: TaskContext) -> None:
        await handle(ctx)

    async def run_cancel(self: Worker, ctx: TaskContext) -> str | None:
        return None if cancel is None else await cancel(ctx)

    made: Worker = type(
        "Tested", (Worker,), {"handle": run, "cancel": run_cancel, "__module__": "x", **attributes}
    )()
    return made


async def eventually(client: Client, task_id: str, *states: pb.TaskState) -> pb.Task:
    """The task, once it is in one of these states."""

    async def look() -> pb.Task:
        while (task := await client.get(task_id)).status.state not in states:
            pass
        return task

    return await within(look())


async def direct(client: Client, *arguments: Any, **named: Any) -> pb.Message:
    """The Message that answers a SendMessage."""
    answer = await client.call("SendMessage", request(*arguments, **named))
    assert answer.WhichOneof("payload") == "message", answer
    found: pb.Message = answer.message
    return found


def raised(caplog: pytest.LogCaptureFixture) -> str:
    """What the log says of the exceptions of agents, one line each."""
    return "\n".join(
        f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        for record in caplog.records
        if record.levelno >= logging.INFO and record.exc_info and record.exc_info[1]
    )


class Recording(InMemoryStorage[Any]):
    """Notes what every commit with events holds: each event in a word."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[list[str]] = []

    async def commit(self, commit: Any) -> bool:
        more = await super().commit(commit)
        if commit.entries:
            self.commits.append(
                outline(pb.StreamResponse.FromString(entry.payload) for entry in commit.entries)
            )
        return more


def json_of(part: pb.Part) -> Any:
    """The value of a data part."""
    assert part.HasField("data"), part
    return json_format.MessageToDict(part.data)
