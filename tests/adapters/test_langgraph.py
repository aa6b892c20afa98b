"""`from_langgraph`: compiled LangGraph graphs as A2A services."""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.fake_chat_models import (
    FakeListChatModel,
    GenericFakeChatModel,
)
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel

from a2a_grpc import TaskContext, pb
from a2a_grpc.adapters import from_langgraph
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
    Serving,
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


def graph_of(node: Any, *, checkpointer: Any = None, state: Any = MessagesState, **how: Any) -> Any:
    """A graph of one node, `node`."""
    builder = StateGraph(state, **how)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=checkpointer)


def calling(model: Any, **how: Any) -> Any:
    """A graph that calls a model with the messages."""

    async def node(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return graph_of(node, **how)


def said(messages: list[AnyMessage]) -> list[Any]:
    """What users said."""
    return [one.content for one in messages if isinstance(one, HumanMessage)]


async def remember(state: MessagesState) -> Any:
    """A node that tells all that users said so far."""
    return {"messages": [AIMessage(" | ".join(map(str, said(state["messages"]))))]}


class Stepwise(GenericFakeChatModel):
    """A model that streams "first", and " second" once it may go on."""

    go: asyncio.Event
    stopped: asyncio.Event

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk("first"))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        yield ChatGenerationChunk(message=AIMessageChunk(" second"))


def stepwise() -> Stepwise:
    return Stepwise(messages=iter([]), go=asyncio.Event(), stopped=asyncio.Event())


# Text.


async def test_text_is_streamed_in_order_and_kept_as_a_whole(serve: Serve) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    async with serve(from_langgraph(calling(model))) as s:
        events = await collect(s.stream())
        assert outline(events)[-1] == "status COMPLETED"
        assert [chunk for chunk, _ in chunks(events)] == ["one", " ", "two", " ", "three"]
        assert [append for _, append in chunks(events)] == [False, True, True, True, True]
        assert answer(await s.get(events[0].task.id)) == "one two three"


async def test_a_chunk_is_sent_before_the_next_is_written() -> None:
    model = stepwise()
    async with serving(from_langgraph(calling(model))) as s:
        call = s.stream()
        assert outline(await take(call, 2)) == ["task WORKING", "artifact first"]
        model.go.set()
        assert outline(await collect(call)) == ["artifact  second", "status COMPLETED"]


async def test_without_stream_the_text_comes_in_one_piece() -> None:
    model = FakeListChatModel(responses=["one two three"])
    async with serving(from_langgraph(calling(model), stream=False)) as s:
        assert chunks(await collect(s.stream())) == [("one two three", False)]


async def test_message_that_no_model_wrote_is_the_answer() -> None:
    async with serving(from_langgraph(graph_of(remember))) as s:
        events = await collect(s.stream("hello"))
        assert chunks(events) == [("hello", False)]
        assert answer(await s.get(events[0].task.id)) == "hello"


def with_a_tool() -> Any:
    """A graph whose model says something, calls a tool, and answers with what it returned."""
    call = ToolCall(name="double", args={"x": 21}, id="call-1")

    class Model(GenericFakeChatModel):
        def _stream(
            self,
            messages: list[BaseMessage],
            stop: list[str] | None = None,
            run_manager: CallbackManagerForLLMRun | None = None,
            **_: Any,
        ) -> Iterator[ChatGenerationChunk]:
            last = messages[-1]
            if isinstance(last, ToolMessage):
                pieces = [AIMessageChunk("It is "), AIMessageChunk(str(last.content))]
            else:
                pieces = [AIMessageChunk("Let me see."), AIMessageChunk("", tool_calls=[call])]
            for piece in pieces:
                yield ChatGenerationChunk(message=piece)

    model = Model(messages=iter([]))

    async def think(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def double(state: MessagesState) -> Any:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        (wanted,) = last.tool_calls
        return {"messages": [ToolMessage(str(2 * wanted["args"]["x"]), tool_call_id="call-1")]}

    def onward(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "double" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("double", double)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", onward, ["double", END])
    builder.add_edge("double", "think")
    return builder.compile()


async def test_text_after_a_tool_call_takes_the_place_of_text_before_it() -> None:
    async with serving(from_langgraph(with_a_tool())) as s:
        events = await collect(s.stream())
        assert chunks(events) == [("Let me see.", False), ("It is ", False), ("42", True)]
        assert answer(await s.get(events[0].task.id)) == "It is 42"


def two_nodes() -> Any:
    drafting, polishing = (FakeListChatModel(responses=[word]) for word in ("ab", "cd"))

    async def draft(state: MessagesState) -> Any:
        return {"messages": [await drafting.ainvoke(state["messages"])]}

    async def polish(state: MessagesState) -> Any:
        return {"messages": [await polishing.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("draft", draft)
    builder.add_node("polish", polish)
    builder.add_edge(START, "draft")
    builder.add_edge("draft", "polish")
    return builder.compile()


async def test_the_text_of_the_last_node_stays() -> None:
    async with serving(from_langgraph(two_nodes())) as s:
        events = await collect(s.stream())
        assert chunks(events) == [("a", False), ("b", True), ("c", False), ("d", True)]
        assert answer(await s.get(events[0].task.id)) == "cd"


async def test_only_the_nodes_that_are_named_are_streamed() -> None:
    async with serving(from_langgraph(two_nodes(), nodes=["polish"])) as s:
        assert chunks(await collect(s.stream())) == [("c", False), ("d", True)]


async def test_of_two_texts_that_are_written_at_once_the_answer_is_the_states() -> None:
    models = {name: stepwise() for name in ("left", "right")}
    shown = asyncio.Event()

    def node(name: str) -> Any:
        async def run(state: MessagesState) -> Any:
            if name == "right":
                await shown.wait()
            return {"messages": [await models[name].ainvoke(state["messages"])]}

        return run

    builder = StateGraph(MessagesState)
    for name in models:
        builder.add_node(name, node(name))
        builder.add_edge(START, name)

    async with serving(from_langgraph(builder.compile())) as s:
        call = s.stream()
        assert outline(await take(call, 2)) == ["task WORKING", "artifact first"]
        shown.set()
        assert outline(await take(call, 1)) == ["artifact first"]
        models["left"].go.set()
        models["right"].go.set()
        events = await collect(call)
        assert chunks(events) == [(" second", True)]


# Other outputs, states and inputs.


class City(BaseModel):
    name: str
    people: int


async def test_structured_response_is_a_data_artifact(serve: Serve) -> None:
    class State(MessagesState):
        structured_response: City

    async def node(_: State) -> Any:
        city = City(name="Ulm", people=129942)
        return {"messages": [AIMessage("text")], "structured_response": city}

    async with serve(from_langgraph(graph_of(node, state=State))) as s:
        assert data_answer(await s.send()) == {"name": "Ulm", "people": 129942}


async def test_graph_with_a_state_of_its_own() -> None:
    class State(TypedDict):
        numbers: list[int]
        total: int

    async def add(state: State) -> Any:
        return {"total": sum(state["numbers"])}

    async def numbers(ctx: TaskContext) -> dict[str, Any]:
        return {"numbers": [int(word) for word in ctx.user_text.split()]}

    def total(values: Any) -> dict[str, Any]:
        return {"total": values["total"]}

    worker = from_langgraph(graph_of(add, state=State), input=numbers, output=total)
    async with serving(worker) as s:
        assert data_answer(await s.send("1 2 3")) == {"total": 6}


async def test_graph_without_messages_needs_an_output(caplog: pytest.LogCaptureFixture) -> None:
    class State(TypedDict):
        total: int

    async def node(_: State) -> Any:
        return {"total": 1}

    worker = from_langgraph(graph_of(node, state=State), input=lambda _: {"total": 0})
    async with serving(worker) as s:
        assert (await s.send()).status.state == FAILED
    assert "give from_langgraph() an output" in caplog.text


async def test_functional_graph_answers_with_what_it_returns() -> None:
    @entrypoint()
    async def louder(given: str) -> str:
        return given.upper()

    worker = from_langgraph(louder, input=lambda ctx: ctx.user_text)  # type: ignore[arg-type, return-value]
    async with serving(worker) as s:
        assert answer(await s.send("hello")) == "HELLO"


async def test_graph_that_says_nothing_completes_without_an_artifact() -> None:
    async def node(_: MessagesState) -> Any:
        return {"messages": []}

    async with serving(from_langgraph(graph_of(node))) as s:
        task = await s.send()
        assert (task.status.state, list(task.artifacts)) == (COMPLETED, [])


async def test_files_and_data_reach_the_graph_in_their_order() -> None:
    seen: list[Any] = []

    async def node(state: MessagesState) -> Any:
        seen.extend(said(state["messages"]))
        return {"messages": [AIMessage("seen")]}

    async with serving(from_langgraph(graph_of(node))) as s:
        sent = message(
            "look:",
            pb.Part(raw=b"bytes", media_type="image/png"),
            pb.Part(url="https://example.com/report.pdf"),
            data_part({"n": 1}),
            context_id="c",
        )
        assert (await s.send(sent)).status.state == COMPLETED
        assert (await s.send("and?", context_id="c")).status.state == COMPLETED
    url = "https://example.com/report.pdf"
    blocks = [
        {"type": "text", "text": "look:"},
        {"type": "image", "mime_type": "image/png", "base64": "Ynl0ZXM="},
        {"type": "file", "mime_type": "application/pdf", "url": url},
        {"type": "text", "text": '{"n": 1}'},
    ]
    assert seen == [blocks, blocks, "and?"]


async def test_a_url_that_is_read_with_the_servers_rights_is_refused() -> None:
    async with serving(from_langgraph(graph_of(remember))) as s:
        status = await refused(s.send(message("read", pb.Part(url="gs://bucket/secret"))))
        assert status.fields == ("message.parts",)


async def test_context_is_made_of_the_turn() -> None:
    class Who(TypedDict):
        name: str

    async def node(state: MessagesState, runtime: Runtime[Who]) -> Any:
        return {"messages": [AIMessage(runtime.context["name"])]}

    graph = graph_of(node, context_schema=Who)
    worker = from_langgraph(graph, context=lambda ctx: {"name": ctx.call.principal.id})
    async with serving(worker, authenticator=ByName()) as s:
        assert answer(await named(s, "alice").send()) == "alice"


# The conversation, with a checkpointer and without.


@pytest.fixture(params=["checkpointer", "no checkpointer"])
def checkpointer(request: pytest.FixtureRequest) -> InMemorySaver | None:
    return InMemorySaver() if request.param == "checkpointer" else None


async def test_a_second_message_of_the_context_continues_the_conversation(
    serve: Serve, checkpointer: InMemorySaver | None
) -> None:
    async with serve(from_langgraph(graph_of(remember, checkpointer=checkpointer))) as s:
        first = await s.send("hello")
        assert answer(await s.send("again", context_id=first.context_id)) == "hello | again"
        assert answer(await s.send("alone")) == "alone"


async def test_the_conversation_continues_after_a_restart(sqlite: str) -> None:
    for words in ("hello", "again"):
        async with serving(from_langgraph(graph_of(remember)), storage=sqlite) as s:
            task = await s.send(words, context_id="c")
    assert answer(task) == "hello | again"


async def test_a_thread_in_a_database_outlives_a_restart(sqlite: str, tmp_path: Path) -> None:
    for words in ("hello", "again"):
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            worker = from_langgraph(graph_of(remember, checkpointer=saver))
            async with serving(worker, storage=sqlite) as s:
                task = await s.send(words, context_id="c")
    assert answer(task) == "hello | again"


async def test_callers_with_the_same_context_id_do_not_share_it(
    serve: Serve, checkpointer: InMemorySaver | None
) -> None:
    worker = from_langgraph(graph_of(remember, checkpointer=checkpointer))
    async with serve(worker, authenticator=ByName()) as s:
        await named(s, "alice").send("my secret", context_id="c")
        assert answer(await named(s, "bob").send("hi", context_id="c")) == "hi"
        assert answer(await named(s, "alice").send("hi", context_id="c")) == "my secret | hi"


async def test_tenants_with_the_same_context_id_do_not_share_it(
    checkpointer: InMemorySaver | None,
) -> None:
    worker = from_langgraph(graph_of(remember, checkpointer=checkpointer))
    async with serving(agents={"one": worker, "two": worker}) as s:
        await s.send("secret", context_id="c", tenant="one")
        assert answer(await s.send("hi", context_id="c", tenant="two")) == "hi"
        assert answer(await s.send("hi", context_id="c", tenant="one")) == "secret | hi"


async def test_namespaces_set_graphs_apart_that_share_a_checkpointer() -> None:
    shared = InMemorySaver()
    for namespace in ("one", "two"):
        graph = graph_of(remember, checkpointer=shared)
        async with serving(from_langgraph(graph, namespace=namespace)) as s:
            assert answer(await s.send("hi", context_id="c")) == "hi"


async def test_tasks_of_one_context_that_run_at_once_are_all_kept(
    serve: Serve, checkpointer: InMemorySaver | None
) -> None:
    async with serve(from_langgraph(graph_of(remember, checkpointer=checkpointer))) as s:
        words = [f"w{number}" for number in range(10)]
        await concurrently(*(s.send(word, context_id="c") for word in words))
        heard = answer(await s.send("end", context_id="c")).split(" | ")
        assert sorted(heard) == sorted([*words, "end"])


def system_first(left: list[AnyMessage], right: list[AnyMessage]) -> list[AnyMessage]:
    merged: Any = add_messages(left, right)  # type: ignore[arg-type]
    return sorted(merged, key=lambda one: not isinstance(one, SystemMessage))


class Ordered(TypedDict):
    messages: Annotated[list[AnyMessage], system_first]


async def test_the_oldest_turns_go_as_wholes_and_the_system_message_stays() -> None:
    seen: list[list[AnyMessage]] = []

    async def node(state: Ordered) -> Any:
        seen.append(state["messages"])
        rules = [SystemMessage("Be kind.")] if len(seen) == 1 else []
        return {"messages": [*rules, AIMessage("noted")]}

    async with serving(from_langgraph(graph_of(node, state=Ordered), history_messages=5)) as s:
        for word in ("one", "two", "three", "four"):
            assert (await s.send(word, context_id="c")).status.state == COMPLETED
    assert [said(messages) for messages in seen] == [
        ["one"],
        ["one", "two"],
        ["one", "two", "three"],
        ["two", "three", "four"],
    ]
    assert [messages[0].content for messages in seen[1:]] == ["Be kind."] * 3


async def test_a_failed_turn_leaves_the_conversation_as_it_was() -> None:
    async def node(state: MessagesState) -> Any:
        if said(state["messages"])[-1] == "boom":
            raise RuntimeError("secret")
        return await remember(state)

    async with serving(from_langgraph(graph_of(node))) as s:
        await s.send("hello", context_id="c")
        assert (await s.send("boom", context_id="c")).status.state == FAILED
        assert answer(await s.send("again", context_id="c")) == "hello | again"


# Interrupts.


async def ask(state: MessagesState) -> Any:
    """A node that asks back about the newest message."""
    word = said(state["messages"])[-1]
    reply = interrupt(f"{word}: sure?")
    return {"messages": [AIMessage(f"{word}: {reply}")]}


async def test_an_interrupt_is_a_question_and_the_next_message_its_answer(serve: Serve) -> None:
    async with serve(from_langgraph(graph_of(ask, checkpointer=InMemorySaver()))) as s:
        events = await collect(s.stream("delete"))
        assert outline(events)[-1] == "status INPUT_REQUIRED"
        task = await s.get(events[0].task.id)
        assert text(task.status.message) == "delete: sure?"
        task = await s.send("yes", task_id=task.id)
        assert (task.status.state, answer(task)) == (COMPLETED, "delete: yes")


async def test_an_interrupt_outlives_a_restart(sqlite: str, tmp_path: Path) -> None:
    @asynccontextmanager
    async def started() -> AsyncIterator[Serving]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            worker = from_langgraph(graph_of(ask, checkpointer=saver))
            async with serving(worker, storage=sqlite) as s:
                yield s

    async with started() as s:
        task = await s.send("delete")
        assert task.status.state == INPUT_REQUIRED
    async with started() as s:
        assert answer(await s.send("yes", task_id=task.id)) == "delete: yes"


async def test_values_of_interrupts_and_replies_may_be_json() -> None:
    async def node(_: MessagesState) -> Any:
        reply = interrupt({"approve": ["a", "b"]})
        return {"messages": [AIMessage(repr(sorted(reply.items())))]}

    async with serving(from_langgraph(graph_of(node, checkpointer=InMemorySaver()))) as s:
        task = await s.send()
        assert text(task.status.message) == '{"approve": ["a", "b"]}'
        reply = only_data({"a": True, "b": 2})
        reply.task_id = task.id
        assert answer(await s.send(reply)) == "[('a', True), ('b', 2)]"


async def test_several_interrupts_are_asked_one_after_another() -> None:
    class State(MessagesState):
        heard: Annotated[list[str], operator.add]

    def asking(name: str) -> Any:
        async def node(_: State) -> Any:
            return {"heard": [f"{name}={interrupt(name)}"]}

        return node

    async def tell(state: State) -> Any:
        return {"messages": [AIMessage(" ".join(sorted(state["heard"])))]}

    builder = StateGraph(State)
    for name in ("a", "b"):
        builder.add_node(name, asking(name))
        builder.add_edge(START, name)
    builder.add_node("tell", tell)
    builder.add_edge(["a", "b"], "tell")

    graph = builder.compile(checkpointer=InMemorySaver())
    async with serving(from_langgraph(graph)) as s:
        task = await s.send()
        asked = []
        while task.status.state == INPUT_REQUIRED:
            asked.append(text(task.status.message))
            task = await s.send(asked[-1].upper(), task_id=task.id)
        assert sorted(asked) == ["a", "b"]
        assert answer(task) == "a=A b=B"


async def test_a_message_never_answers_the_question_of_another_task() -> None:
    async with serving(from_langgraph(graph_of(ask, checkpointer=InMemorySaver()))) as s:
        first = await s.send("delete", context_id="c")
        second = await s.send("pay", context_id="c")
        assert text(second.status.message) == "pay: sure?"
        # What the first asked is no longer open: its reply is a message like any other.
        first = await s.send("yes", task_id=first.id)
        assert first.status.state == INPUT_REQUIRED
        assert text(first.status.message) == "yes: sure?"


async def test_an_interrupt_without_a_checkpointer_fails_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(from_langgraph(graph_of(ask))) as s:
        assert (await s.send()).status.state == FAILED
    assert "no checkpointer" in caplog.text


# What goes wrong, and much at once.


async def test_an_exception_fails_the_task_and_its_text_stays_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def node(_: MessagesState) -> Any:
        raise RuntimeError("the password is xyzzy")

    with caplog.at_level(logging.ERROR):
        async with serve(from_langgraph(graph_of(node))) as s:
            task = await s.send()
            assert task.status.state == FAILED
            assert "xyzzy" not in str(await s.get(task.id))
    assert "xyzzy" in caplog.text


async def test_canceled_in_the_middle_of_the_text(
    serve: Serve, checkpointer: InMemorySaver | None
) -> None:
    model = stepwise()
    async with serve(from_langgraph(calling(model, checkpointer=checkpointer))) as s:
        call = s.stream(context_id="c")
        events = await take(call, 2)
        assert (await s.cancel(events[0].task.id)).status.state == CANCELED
        assert outline(await collect(call)) == ["status CANCELED"]
        await within(model.stopped.wait())
        assert answer(await s.get(events[0].task.id)) == "first"
        # The thread is free again.
        model.go.set()
        assert answer(await s.send(context_id="c")) == "first second"


async def test_one_graph_works_on_many_tasks_at_once(
    serve: Serve, checkpointer: InMemorySaver | None
) -> None:
    running = 0
    everybody = asyncio.Event()

    async def node(state: MessagesState) -> Any:
        nonlocal running
        running += 1
        if running == 20:
            everybody.set()
        await everybody.wait()
        return await remember(state)

    async with serve(from_langgraph(graph_of(node, checkpointer=checkpointer))) as s:
        words = [f"word-{number}" for number in range(20)]
        tasks = await concurrently(*(s.send(word) for word in words))
        assert [answer(task) for task in tasks] == words
        assert {state_name(task.status.state) for task in tasks} == {"COMPLETED"}


async def test_what_is_no_compiled_graph_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="compile"):
        from_langgraph(StateGraph(MessagesState))  # type: ignore[arg-type]


async def test_graph_with_static_breakpoints_is_a_value_error() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("node", remember)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["node"])
    with pytest.raises(ValueError, match="interrupt"):
        from_langgraph(graph)


async def test_a_turn_without_an_answer_that_can_be_sent_is_not_kept() -> None:
    def output(values: Any) -> Any:
        if values["messages"][-1].text == "boom":
            raise ValueError("secret")
        return str(values["messages"][-1].text)

    async with serving(from_langgraph(graph_of(remember), output=output)) as s:
        assert (await s.send("boom", context_id="c")).status.state == FAILED
        assert answer(await s.send("hello", context_id="c")) == "hello"
