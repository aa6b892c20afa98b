"""`from_pydantic_ai`: pydantic-ai agents as A2A services."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    BinaryImage,
    CallDeferred,
    DeferredToolRequests,
    ImageUrl,
    ModelMessage,
    RunContext,
    SystemPromptPart,
    TextOutput,
    ToolReturnPart,
    UsageLimits,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from a2a_grpc import TaskContext, pb
from a2a_grpc.adapters import from_pydantic_ai
from tests.adapters.callers import (
    ByName,
    answer,
    chunks,
    data_answer,
    data_part,
    named,
    only_data,
)
from tests.conftest import Serve
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    collect,
    concurrently,
    message,
    outline,
    refused,
    serving,
    state_name,
    take,
    text,
    within,
)


class City(BaseModel):
    name: str
    people: int


def prompts(messages: list[ModelMessage]) -> list[Any]:
    """What users said, as the model sees it."""
    parts = [part for one in messages for part in one.parts]
    return [part.content for part in parts if isinstance(part, UserPromptPart)]


def system_prompts(messages: list[ModelMessage]) -> list[Any]:
    parts = [part for one in messages for part in one.parts]
    return [part.content for part in parts if isinstance(part, SystemPromptPart)]


def returned(messages: list[ModelMessage]) -> str:
    """What the last tool call returned; "" if nothing was returned last."""
    last = messages[-1].parts[-1]
    return str(last.content) if isinstance(last, ToolReturnPart) else ""


def writing(*written: str) -> FunctionModel:
    """A model that always writes this."""

    async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
        for chunk in written:
            yield chunk

    return FunctionModel(stream_function=stream)


def remembering(seen: list[Any] | None = None) -> FunctionModel:
    """A model that tells all that users said so far."""

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        if seen is not None:
            seen.append(messages)
        yield " | ".join(map(str, prompts(messages)))

    return FunctionModel(stream_function=stream)


# Text.


async def test_text_is_streamed_in_order_and_kept_as_a_whole(serve: Serve) -> None:
    agent = Agent(writing("one ", "two ", "three"))
    async with serve(from_pydantic_ai(agent)) as s:
        events = await collect(s.stream())
        assert outline(events)[-1] == "status COMPLETED"
        assert chunks(events) == [("one ", False), ("two ", True), ("three", True)]
        assert answer(await s.get(events[0].task.id)) == "one two three"


async def test_a_chunk_is_sent_before_the_next_is_written() -> None:
    go = asyncio.Event()

    async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
        yield "first"
        await go.wait()
        yield " second"

    async with serving(from_pydantic_ai(Agent(FunctionModel(stream_function=stream)))) as s:
        call = s.stream()
        assert outline(await take(call, 2)) == ["task WORKING", "artifact first"]
        go.set()
        assert outline(await collect(call)) == ["artifact  second", "status COMPLETED"]


async def test_without_stream_the_text_comes_in_one_piece() -> None:
    agent = Agent(TestModel(custom_output_text="one two three"))
    async with serving(from_pydantic_ai(agent, stream=False)) as s:
        assert chunks(await collect(s.stream())) == [("one two three", False)]


async def test_text_after_a_tool_call_takes_the_place_of_text_before_it() -> None:
    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        if len(messages) == 1:
            yield "Let me "
            yield "see."
            yield {1: DeltaToolCall("double", '{"x": 21}')}
        else:
            yield "It is "
            yield returned(messages)

    agent = Agent(FunctionModel(stream_function=stream))

    @agent.tool_plain
    def double(x: int) -> int:
        return 2 * x

    async with serving(from_pydantic_ai(agent)) as s:
        events = await collect(s.stream())
        assert chunks(events) == [
            ("Let me ", False),
            ("see.", True),
            ("It is ", False),
            ("42", True),
        ]
        assert answer(await s.get(events[0].task.id)) == "It is 42"


async def test_what_an_output_validator_makes_of_the_text_is_the_answer() -> None:
    agent = Agent(writing("quiet"))

    @agent.output_validator
    def louder(output: str) -> str:
        return output.upper()

    async with serving(from_pydantic_ai(agent)) as s:
        assert answer(await s.send()) == "QUIET"


# Other outputs.


async def test_structured_output_is_a_data_artifact(serve: Serve) -> None:
    agent = Agent(TestModel(custom_output_args={"name": "Ulm", "people": 129942}), output_type=City)
    async with serve(from_pydantic_ai(agent)) as s:
        events = await collect(s.stream())
        assert outline(events)[-1] == "status COMPLETED"
        task = await s.get(events[0].task.id)
        assert data_answer(task) == {"name": "Ulm", "people": 129942}


async def test_structured_output_takes_the_place_of_text_that_came_first() -> None:
    async def stream(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield "Here it is."
        tool = info.output_tools[0].name
        yield {1: DeltaToolCall(tool, '{"name": "Ulm", "people": 1}')}

    agent = Agent(FunctionModel(stream_function=stream), output_type=City | str)
    async with serving(from_pydantic_ai(agent)) as s:
        events = await collect(s.stream())
        assert chunks(events)[0] == ("Here it is.", False)
        assert data_answer(await s.get(events[0].task.id)) == {"name": "Ulm", "people": 1}


async def test_text_that_is_no_output_is_not_streamed() -> None:
    def number(written: str) -> int:
        return int(written)

    agent = Agent(writing("1", "2"), output_type=TextOutput(number))
    async with serving(from_pydantic_ai(agent)) as s:
        events = await collect(s.stream())
        assert len(chunks(events)) == 1
        assert data_answer(await s.get(events[0].task.id)) == 12


async def test_an_image_is_a_file() -> None:
    def draw() -> BinaryImage:
        return BinaryImage(b"png", media_type="image/png")

    agent = Agent(TestModel(), output_type=draw)
    async with serving(from_pydantic_ai(agent)) as s:
        (artifact,) = (await s.send()).artifacts
        (part,) = artifact.parts
        assert (part.raw, part.media_type) == (b"png", "image/png")


# The message.


async def test_files_and_data_reach_the_model_in_their_order() -> None:
    seen: list[Any] = []
    async with serving(from_pydantic_ai(Agent(remembering(seen)))) as s:
        sent = message(
            "look:",
            pb.Part(raw=b"bytes", media_type="image/png"),
            pb.Part(url="https://example.com/cat.jpg"),
            data_part({"n": 1}),
        )
        assert (await s.send(sent)).status.state == COMPLETED
    ((before, picture, linked, data),) = prompts(seen[0])
    assert (before, data) == ("look:", '{"n": 1}')
    assert isinstance(picture, BinaryContent)
    assert (picture.data, picture.media_type) == (b"bytes", "image/png")
    assert isinstance(linked, ImageUrl)
    assert (linked.url, linked.media_type) == ("https://example.com/cat.jpg", "image/jpeg")


@pytest.mark.parametrize("url", ["gs://bucket/secret.pdf", "file:///etc/passwd", "s3://b/k"])
async def test_a_url_that_is_read_with_the_servers_rights_is_refused(url: str) -> None:
    seen: list[Any] = []
    async with serving(from_pydantic_ai(Agent(remembering(seen)))) as s:
        status = await refused(s.send(message("read", pb.Part(url=url))))
        assert status.fields == ("message.parts",)
    assert not seen


async def test_deps_are_made_of_the_turn() -> None:
    agent = Agent(TestModel(), deps_type=str)

    @agent.tool
    def whose(ctx: RunContext[str]) -> str:
        return ctx.deps

    async def deps(ctx: TaskContext) -> str:
        return f"{ctx.call.principal.id} {ctx.deps['city']}"

    worker = from_pydantic_ai(agent, deps=deps)
    async with serving(worker, deps={"city": "Ulm"}, authenticator=ByName()) as s:
        assert answer(await named(s, "alice").send()) == '{"whose":"alice Ulm"}'


async def test_usage_limits_are_each_messages() -> None:
    worker = from_pydantic_ai(Agent(writing("a")), usage_limits=UsageLimits(request_limit=1))
    async with serving(worker) as s:
        for _ in range(2):
            assert (await s.send(context_id="c")).status.state == COMPLETED
    refusing = from_pydantic_ai(Agent(writing("a")), usage_limits=UsageLimits(request_limit=0))
    async with serving(refusing) as s:
        assert (await s.send()).status.state == FAILED


# The conversation.


async def test_a_second_message_of_the_context_continues_the_conversation(serve: Serve) -> None:
    async with serve(from_pydantic_ai(Agent(remembering()))) as s:
        first = await s.send("hello")
        assert answer(await s.send("again", context_id=first.context_id)) == "hello | again"
        assert answer(await s.send("alone")) == "alone"


async def test_the_conversation_continues_after_a_restart(sqlite: str) -> None:
    async with serving(from_pydantic_ai(Agent(remembering())), storage=sqlite) as s:
        await s.send("hello", context_id="c")
    async with serving(from_pydantic_ai(Agent(remembering())), storage=sqlite) as s:
        assert answer(await s.send("again", context_id="c")) == "hello | again"


async def test_callers_with_the_same_context_id_do_not_share_it(serve: Serve) -> None:
    worker = from_pydantic_ai(Agent(remembering()))
    async with serve(worker, authenticator=ByName()) as s:
        await named(s, "alice").send("my secret", context_id="c")
        assert answer(await named(s, "bob").send("hi", context_id="c")) == "hi"
        assert answer(await named(s, "alice").send("hi", context_id="c")) == "my secret | hi"


async def test_tasks_of_one_context_that_run_at_once_are_all_kept(serve: Serve) -> None:
    async with serve(from_pydantic_ai(Agent(remembering()))) as s:
        words = [f"w{number}" for number in range(10)]
        await concurrently(*(s.send(word, context_id="c") for word in words))
        said = answer(await s.send("end", context_id="c")).split(" | ")
        assert sorted(said) == sorted([*words, "end"])


async def test_the_oldest_turns_go_as_wholes_and_the_system_prompt_stays() -> None:
    seen: list[list[ModelMessage]] = []
    model = FunctionModel(stream_function=_calling_a_tool(seen))
    agent = Agent(model, system_prompt="Be kind.")

    @agent.tool_plain
    def look() -> str:
        return "found"

    # A turn has four messages: request, tool call, tool return, answer.
    async with serving(from_pydantic_ai(agent, history_messages=6)) as s:
        for word in ("one", "two", "three"):
            assert (await s.send(word, context_id="c")).status.state == COMPLETED
    assert [prompts(messages) for messages in seen] == [["one"], ["one", "two"], ["two", "three"]]
    assert [system_prompts(messages) for messages in seen] == [["Be kind."]] * 3


def _calling_a_tool(seen: list[list[ModelMessage]]) -> Any:
    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        if returned(messages):
            yield "done"
        else:
            seen.append(messages)
            yield {0: DeltaToolCall("look", "{}")}

    return stream


async def test_a_conversation_starts_anew_after_a_turn_beyond_the_limit() -> None:
    async with serving(from_pydantic_ai(Agent(remembering()), history_bytes=20_000)) as s:
        await s.send("small", context_id="c")
        await s.send("large" * 10_000, context_id="c")
        assert answer(await s.send("after", context_id="c")) == "after"


async def test_no_history_is_kept_of_none_that_is_wanted() -> None:
    async with serving(from_pydantic_ai(Agent(remembering()), history_messages=0)) as s:
        await s.send("hello", context_id="c")
        assert answer(await s.send("again", context_id="c")) == "again"


async def test_a_failed_turn_leaves_the_conversation_as_it_was() -> None:
    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        if prompts(messages)[-1] == "boom":
            raise RuntimeError("secret")
        yield " | ".join(prompts(messages))

    async with serving(from_pydantic_ai(Agent(FunctionModel(stream_function=stream)))) as s:
        await s.send("hello", context_id="c")
        assert (await s.send("boom", context_id="c")).status.state == FAILED
        assert answer(await s.send("again", context_id="c")) == "hello | again"


# Tool calls that wait for somebody.


def deleting(deleted: list[str]) -> Agent[None, Any]:
    """An agent whose only tool deletes, if that is approved."""

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        if returned(messages):
            yield f"Result: {returned(messages)}"
        else:
            yield {0: DeltaToolCall("delete", '{"path": "a.txt"}', tool_call_id="call-1")}

    model = FunctionModel(stream_function=stream)
    agent = Agent(model, output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def delete(path: str) -> str:
        deleted.append(path)
        return "deleted"

    return agent


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (message("Yes."), "Result: deleted"),
        (only_data({"approvals": {"call-1": True}}), "Result: deleted"),
        (message("never do that"), "Result: never do that"),
        (only_data({"approvals": {"call-1": "not that"}}), "Result: not that"),
        (only_data({"approvals": {"call-1": "true"}}), "Result: true"),
        (only_data({"approvals": {"call-1": 1}}), "Result: The tool call was denied."),
    ],
    ids=["yes", "true", "no", "why not", "not quite true", "nor that"],
)
async def test_a_tool_call_waits_for_approval(
    serve: Serve, reply: pb.Message, expected: str
) -> None:
    deleted: list[str] = []
    async with serve(from_pydantic_ai(deleting(deleted))) as s:
        task = await s.send("clean up")
        assert task.status.state == INPUT_REQUIRED
        assert 'call-1: delete {"path": "a.txt"}' in text(task.status.message)
        assert not deleted
        sent = pb.Message()
        sent.CopyFrom(reply)
        sent.task_id = task.id
        task = await s.send(sent)
        assert (task.status.state, answer(task)) == (COMPLETED, expected)
        assert bool(deleted) == (expected == "Result: deleted")


async def test_an_approval_outlives_a_restart(sqlite: str) -> None:
    deleted: list[str] = []
    async with serving(from_pydantic_ai(deleting(deleted)), storage=sqlite) as s:
        task = await s.send("clean up")
    async with serving(from_pydantic_ai(deleting(deleted)), storage=sqlite) as s:
        assert answer(await s.send("yes", task_id=task.id)) == "Result: deleted"
        task = await s.send("once more", context_id=task.context_id)
        assert task.status.state == INPUT_REQUIRED
    assert deleted == ["a.txt"]


async def test_an_approval_is_its_own_tasks_only() -> None:
    deleted: list[str] = []
    async with serving(from_pydantic_ai(deleting(deleted))) as s:
        first = await s.send("clean up", context_id="c")
        second = await s.send("yes", context_id="c")
        assert (second.status.state, deleted) == (INPUT_REQUIRED, [])
        assert (await s.send("yes", task_id=first.id)).status.state == COMPLETED
        assert deleted == ["a.txt"]
        assert (await s.send("no", task_id=second.id)).status.state == COMPLETED
        assert deleted == ["a.txt"]


async def test_tasks_whose_approval_came_make_room_for_others() -> None:
    deleted: list[str] = []
    async with serving(from_pydantic_ai(deleting(deleted))) as s:
        first = await s.send("clean up", context_id="c")
        for _ in range(8):
            task = await s.send("clean up", context_id="c")
            assert (await s.send("yes", task_id=task.id)).status.state == COMPLETED
        assert answer(await s.send("yes", task_id=first.id)) == "Result: deleted"


async def test_the_oldest_task_that_waits_for_approval_is_forgotten() -> None:
    deleted: list[str] = []
    async with serving(from_pydantic_ai(deleting(deleted))) as s:
        tasks = [await s.send("clean up", context_id="c") for _ in range(9)]
        # Nothing is approved by a reply to a question that nobody remembers.
        asked = await s.send("yes", task_id=tasks[0].id)
        assert (asked.status.state, deleted) == (INPUT_REQUIRED, [])
        assert answer(await s.send("yes", task_id=tasks[8].id)) == "Result: deleted"


async def test_a_reply_that_leaves_a_call_open_is_asked_again() -> None:
    deleted: list[str] = []
    async with serving(from_pydantic_ai(deleting(deleted))) as s:
        task = await s.send("clean up")
        again = only_data({"approvals": {"another": True}})
        again.task_id = task.id
        asked = await s.send(again)
        assert asked.status.state == INPUT_REQUIRED
        assert text(asked.status.message) == text(task.status.message)
        assert answer(await s.send("yes", task_id=task.id)) == "Result: deleted"


@pytest.mark.parametrize("as_data", [False, True])
async def test_the_result_of_a_deferred_call_is_the_reply(as_data: bool) -> None:
    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        if returned(messages):
            yield f"It is {returned(messages)}"
        else:
            yield {0: DeltaToolCall("temperature", "{}", tool_call_id="call-1")}

    model = FunctionModel(stream_function=stream)
    agent = Agent(model, output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def temperature() -> str:
        raise CallDeferred

    async with serving(from_pydantic_ai(agent)) as s:
        task = await s.send("how warm?")
        assert task.status.state == INPUT_REQUIRED
        reply = only_data({"calls": {"call-1": "17 C"}}) if as_data else message("17 C")
        reply.task_id = task.id
        assert answer(await s.send(reply)) == "It is 17 C"


# What goes wrong, and much at once.


async def test_an_exception_fails_the_task_and_its_text_stays_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(TestModel())

    @agent.tool_plain
    def look() -> str:
        raise RuntimeError("the password is xyzzy")

    with caplog.at_level(logging.ERROR):
        async with serve(from_pydantic_ai(agent)) as s:
            task = await s.send()
            assert task.status.state == FAILED
            assert "xyzzy" not in str(await s.get(task.id))
    assert "xyzzy" in caplog.text


async def test_canceled_in_the_middle_of_the_text(serve: Serve) -> None:
    stopped = asyncio.Event()

    async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
        yield "first"
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with serve(from_pydantic_ai(Agent(FunctionModel(stream_function=stream)))) as s:
        call = s.stream(context_id="c")
        events = await take(call, 2)
        assert (await s.cancel(events[0].task.id)).status.state == CANCELED
        assert outline(await collect(call)) == ["status CANCELED"]
        await within(stopped.wait())
        assert answer(await s.get(events[0].task.id)) == "first"


async def test_one_agent_works_on_many_tasks_at_once(serve: Serve) -> None:
    running = 0
    everybody = asyncio.Event()

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        nonlocal running
        running += 1
        if running == 20:
            everybody.set()
        (word,) = prompts(messages)
        for letter in word:
            yield letter
            await everybody.wait()

    async with serve(from_pydantic_ai(Agent(FunctionModel(stream_function=stream)))) as s:
        words = [f"word-{number}" for number in range(20)]
        tasks = await concurrently(*(s.send(word) for word in words))
        assert [answer(task) for task in tasks] == words
        assert {state_name(task.status.state) for task in tasks} == {"COMPLETED"}


@pytest.mark.parametrize("agent", [None, "openai:gpt-5", Agent])
async def test_what_is_no_agent_is_a_type_error(agent: Any) -> None:
    with pytest.raises(TypeError, match="from_pydantic_ai"):
        from_pydantic_ai(agent)


@pytest.mark.parametrize("limit", ["history_messages", "history_bytes"])
async def test_a_negative_limit_is_a_value_error(limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        from_pydantic_ai(Agent(TestModel()), **{limit: -1})
