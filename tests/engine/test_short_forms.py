"""Agents in a few lines: functions, generators, objects with `run`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from a2a_grpc import A2AServer, AgentExecutor, EventQueue, RequestContext, pb
from a2a_grpc.agent.function import as_executor
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    collect,
    outline,
    refused,
    request,
    serving,
    take,
    text,
    within,
)


def returning(value: Any) -> Any:
    async def agent(context: RequestContext) -> Any:
        return value

    return agent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", [{"text": "text"}]),
        ("", [{"text": ""}]),
        ({"a": [1, None, "x"]}, [{"data": {"a": [1, None, "x"]}}]),
        (pb.Part(url="https://example.com"), [{"url": "https://example.com"}]),
        ([pb.Part(text="a"), pb.Part(text="b")], [{"text": "a"}, {"text": "b"}]),
        (["a", {"b": 1}], [{"text": "a"}, {"data": {"b": 1}}]),
    ],
    ids=["str", "empty str", "dict", "Part", "Parts", "mixed"],
)
async def test_what_a_function_returns_completes_the_task(value: Any, expected: Any) -> None:
    async with serving(returning(value)) as s:
        task = await s.send()
        assert task.status.state == COMPLETED
        (artifact,) = task.artifacts
        found = [json_format.MessageToDict(part) for part in artifact.parts]
        for part in found:
            part.pop("mediaType", None)
        assert found == expected


async def test_none_completes_the_task_without_an_artifact() -> None:
    async with serving(returning(None)) as s:
        task = await s.send()
        assert (task.status.state, list(task.artifacts)) == (COMPLETED, [])


async def test_message_is_the_direct_reply() -> None:
    async with serving(returning(pb.Message(parts=[pb.Part(text="hi")]))) as s:
        answer = await s.call("SendMessage", request())
        assert text(answer.message) == "hi"


async def test_what_a_generator_yields_is_streamed_as_one_artifact() -> None:
    go = asyncio.Event()

    async def agent(context: RequestContext) -> AsyncIterator[str]:
        for word in context.get_user_input().split():
            yield word
            await go.wait()

    async with serving(agent) as s:
        stream = s.stream("a b c")
        events = await take(stream, 2)
        go.set()
        events += await collect(stream)
        assert outline(events) == [
            "task WORKING",
            "artifact a",
            "artifact b",
            "artifact c",
            "status COMPLETED",
        ]
        (artifact,) = (await s.list(include_artifacts=True)).tasks[0].artifacts
        assert text(artifact) == "abc"


async def test_generator_that_yields_nothing_completes() -> None:
    async def agent(context: RequestContext) -> AsyncIterator[str]:
        for nothing in ():
            yield nothing

    async with serving(agent) as s:
        assert (await s.send()).status.state == COMPLETED


class Run:
    async def run(self, context: RequestContext) -> str:
        return context.get_user_input().upper()


class RunExecutor(AgentExecutor):
    async def run(self, context: RequestContext) -> str:
        return context.get_user_input().upper()


class RunGenerator:
    async def run(self, context: RequestContext) -> AsyncIterator[str]:
        yield context.get_user_input().upper()


@pytest.mark.parametrize("agent", [Run(), Run, RunExecutor(), RunExecutor, RunGenerator()])
async def test_object_or_class_with_run_is_an_agent(agent: Any) -> None:
    async with serving(agent) as s:
        task = await s.send("hi")
        assert text(task.artifacts[0]) == "HI"


def test_object_with_run_is_called_by_its_class() -> None:
    assert [as_executor(agent).name for agent in (Run(), RunExecutor())] == ["Run", "RunExecutor"]  # type: ignore[attr-defined]


async def test_executor_with_run_is_told_of_its_cancellation() -> None:
    told = asyncio.Event()

    class Waiting(AgentExecutor):
        async def run(self, context: RequestContext) -> None:
            await asyncio.Event().wait()

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            assert context.is_cancelled
            told.set()

    async with serving(Waiting()) as s:
        task = await s.send(immediately=True)
        assert (await s.cancel(task.id)).status.state == CANCELED
    assert told.is_set()


class Retrying(AgentExecutor):
    on_interruption = "retry"  # type: ignore[assignment]

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None: ...


def test_executor_with_an_unknown_on_interruption_is_refused() -> None:
    with pytest.raises(TypeError, match="is 'retry'; use 'fail' or 'restart'"):
        A2AServer(Retrying())


@pytest.mark.parametrize("agent", [object(), 1, "x", {"a": 1}])
async def test_what_is_no_agent_is_a_type_error(agent: Any) -> None:
    with pytest.raises(TypeError, match="agent"):
        A2AServer(agent)


async def test_exactly_one_of_agent_and_agents_is_needed() -> None:
    with pytest.raises(TypeError, match="agents"):
        A2AServer()
    with pytest.raises(TypeError, match="agents"):
        A2AServer(Run(), agents={"": Run()})


async def test_function_that_is_not_async_fails_the_task() -> None:
    def agent(context: RequestContext) -> str:
        return "x"

    async with serving(agent) as s:
        assert (await s.send()).status.state == FAILED


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}], ids=["object", "NaN", "set"])
async def test_what_json_can_not_hold_fails_the_task(value: Any) -> None:
    async with serving(returning(value)) as s:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await s.send()
        (task,) = (await s.list()).tasks
        assert task.status.state == FAILED


async def test_exception_of_a_function_fails_the_task() -> None:
    async def agent(context: RequestContext) -> str:
        raise RuntimeError("secret")

    async with serving(agent) as s:
        task = await s.send()
        assert task.status.state == FAILED
        assert "secret" not in str(task)


async def test_exception_of_a_generator_keeps_what_it_yielded() -> None:
    async def agent(context: RequestContext) -> AsyncIterator[str]:
        yield "a"
        raise RuntimeError("secret")

    async with serving(agent) as s:
        task = await s.send()
        assert (task.status.state, text(task.artifacts[0])) == (FAILED, "a")


@pytest.mark.parametrize("form", ["function", "generator"])
async def test_canceled_function_has_cleaned_up_before_canceled_is_told(form: str) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            cleaned.set()

    async def function(context: RequestContext) -> None:
        await work()

    async def generator(context: RequestContext) -> AsyncIterator[str]:
        yield "a"
        await work()

    async with serving(function if form == "function" else generator) as s:
        stream = s.stream()
        (first,) = await take(stream, 1)
        await within(started.wait())
        assert (await s.cancel(first.task.id)).status.state == CANCELED
        assert cleaned.is_set()
        assert outline(await collect(stream))[-1] == "status CANCELED"


async def test_slow_function_shows_its_task_at_once() -> None:
    go = asyncio.Event()

    async def agent(context: RequestContext) -> str:
        await go.wait()
        return "done"

    async with serving(agent) as s:
        stream = s.stream()
        assert outline(await take(stream, 1)) == ["task WORKING"]
        go.set()
        assert outline(await collect(stream)) == ["artifact done", "status COMPLETED"]


async def test_synchronous_sender_of_a_bad_message_hears_of_it() -> None:
    from a2a_grpc import InvalidParamsError

    async def agent(context: RequestContext) -> str:
        raise InvalidParamsError.field("message.parts[0]", "must be a number")

    async with serving(agent) as s:
        status = await refused(s.call("SendMessage", request()))
        assert status.fields == ("message.parts[0]",)
