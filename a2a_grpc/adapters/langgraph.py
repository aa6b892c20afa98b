"""Runs a compiled LangGraph graph as a worker."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt
from pydantic_core import to_jsonable_python

from a2a_grpc.adapters.answer import Answer
from a2a_grpc.adapters.files import CheckedFile, checked
from a2a_grpc.adapters.given import of_turn
from a2a_grpc.adapters.kept import (
    ContextKeeper,
    HistoryLimit,
    Kept,
    KeyedLocks,
    conversation_key,
)
from a2a_grpc.agent.content import files_of
from a2a_grpc.agent.task_context import TaskContext
from a2a_grpc.agent.values import from_value
from a2a_grpc.agent.worker import Worker

_INTERRUPT = "__interrupt__"  # where a graph's values name its interrupts


class LangGraphWorker(Worker):
    """Runs one graph for every message; see `a2a_grpc.adapters.from_langgraph`.

    With a checkpointer it keeps of each conversation which task asked last, and in which interrupt,
    in `asked`; without one, the `messages` of the state.
    """

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        *,
        input: Callable[[TaskContext], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None,
        output: Callable[[Any], Any] | None,
        context: Any,
        stream: bool,
        nodes: Collection[str] | None,
        namespace: str,
        limit: HistoryLimit,
    ) -> None:
        if not isinstance(graph, Pregel):
            raise TypeError(
                f"from_langgraph() takes a compiled graph, not {graph!r}; compile() it first"
            )
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            raise ValueError(
                "from_langgraph() takes no graph with static breakpoints, since they ask nothing; "
                "call interrupt() in a node instead"
            )
        self._graph = graph
        self._has_threads = isinstance(graph.checkpointer, BaseCheckpointSaver)
        self._has_history = not self._has_threads and input is None
        self._input = input
        self._output = output or _answer
        self._context = context
        self._stream = stream
        self._nodes = nodes
        self._namespace = namespace
        self._limit = limit
        self._keeper = ContextKeeper("langgraph")
        self._threads = KeyedLocks()

    async def handle(self, ctx: TaskContext) -> None:
        """Run the graph for one message."""
        # Two runs on one thread at once would each overwrite what the other did.
        lock: AbstractAsyncContextManager[Any] = (
            self._threads.of(conversation_key(ctx)) if self._has_threads else nullcontext()
        )
        async with lock:
            kept = await self._keeper.load(ctx)
            base = kept.get("messages", []) if self._has_history else []
            config: RunnableConfig = {}
            if self._has_threads:
                config = {"configurable": {"thread_id": self.thread_id(ctx)}}
            resumption = await self._resumption(ctx, config, kept.get("asked"))
            given = resumption or await self._given(ctx, base)
            answer = Answer(ctx)
            values = await self._run(given, config, await of_turn(self._context, ctx), answer)
            resumed = resumption is not None
            if interrupts := await self._interrupts(values, config, resumed=resumed):
                await self._ask(ctx, interrupts[0])
                return
            output = self._output(values)
            if self._has_history and isinstance(values, Mapping) and "messages" in values:
                await self._remember(ctx, base, values["messages"])
            await answer.complete(output)

    def thread_id(self, ctx: TaskContext) -> str:
        """The thread of a conversation: nobody but its caller can name it."""
        name = json.dumps([self._namespace, *conversation_key(ctx)])
        return hashlib.sha256(name.encode()).hexdigest()

    async def _run(self, given: Any, config: RunnableConfig, context: Any, answer: Answer) -> Any:
        """The graph's last values."""
        values: Any = None
        events = cast(
            AsyncIterator[tuple[str, Any]],
            self._graph.astream(
                given,
                config,
                context=context,
                stream_mode=["messages", "values"] if self._stream else ["values"],
            ),
        )
        writing: str | None = None
        superseded: set[str | None] = set()
        async with aclosing(events):  # type: ignore[type-var]  # an async generator, in fact
            async for mode, event in events:
                if mode == "values":
                    values = event
                    continue
                message, metadata = event
                if not isinstance(message, AIMessage) or not message.text:
                    continue
                if self._nodes is not None and metadata.get("langgraph_node") not in self._nodes:
                    continue
                if message.id in superseded:
                    continue  # of two that are written at once, the later one is shown
                if message.id != writing:
                    superseded.add(writing)
                    writing = message.id
                    answer.supersede()
                await answer.write(str(message.text))
        return values

    async def _given(self, ctx: TaskContext, base: list[Any]) -> Any:
        if self._input is None:
            return {"messages": [*messages_from_dict(base), HumanMessage(_content(ctx))]}
        return await of_turn(self._input, ctx)

    # Interrupts.

    async def _interrupts(
        self, values: Any, config: RunnableConfig, *, resumed: bool
    ) -> tuple[Interrupt, ...]:
        """What the graph still asks."""
        interrupted = isinstance(values, Mapping) and _INTERRUPT in values
        if interrupted and not self._has_threads:
            raise RuntimeError(
                "the graph called interrupt(), but it has no checkpointer that could keep where it "
                "stopped; give compile() one"
            )
        # The values show what was asked in this run only, and not what is still open.
        return (await self._graph.aget_state(config)).interrupts if interrupted or resumed else ()

    async def _resumption(
        self, ctx: TaskContext, config: RunnableConfig, asked: Kept | None
    ) -> Command[Any] | None:
        """The message as the answer to what this task asked; None if it is none.

        A later task of the conversation starts the thread anew, and may ask something else by now,
        which this message is no answer to.
        """
        if asked is None or asked["task"] != ctx.task_id:
            return None
        state = await self._graph.aget_state(config)
        if asked["interrupt"] not in {interrupt.id for interrupt in state.interrupts}:
            return None
        reply = ctx.data_parts[0] if ctx.data_parts else ctx.user_text
        return Command(resume={asked["interrupt"]: reply})

    async def _ask(self, ctx: TaskContext, interrupt: Interrupt) -> None:
        asked = {"task": ctx.task_id, "interrupt": interrupt.id}
        await self._keeper.change(ctx, lambda kept: {**kept, "asked": asked})
        value = interrupt.value
        if not isinstance(value, str):
            value = json.dumps(to_jsonable_python(value), ensure_ascii=False)
        await ctx.request_input(value)

    # The history of a graph without a checkpointer.

    async def _remember(
        self, ctx: TaskContext, base: list[Any], messages: list[BaseMessage]
    ) -> None:
        whole: list[Any] = to_jsonable_python(messages_to_dict(messages), bytes_mode="base64")
        known = {message["data"].get("id") for message in base}

        def change(kept: Kept) -> Kept:
            # Another task of the conversation may have ended meanwhile: both are kept. If none has,
            # what the graph made of the history counts, since it may have rewritten it.
            current = kept.get("messages", [])
            if current == base:
                history = whole
            else:
                history = [*current, *(m for m in whole if m["data"].get("id") not in known)]
            return {"messages": _cut(history, self._limit)}

        await self._keeper.change(ctx, change)


def _content(ctx: TaskContext) -> str | list[str | dict[Any, Any]]:
    """The message's parts as content blocks, in their order; text alone as one string."""
    blocks: list[str | dict[Any, Any]] = []
    texts: list[str] = []
    for part in ctx.parts:
        if part.HasField("text"):
            texts.append(part.text)
        elif part.HasField("data"):
            texts.append(json.dumps(from_value(part.data), ensure_ascii=False))
        else:
            blocks.extend(_block(checked(file)) for file in files_of([part]))
            continue
        blocks.append({"type": "text", "text": texts[-1]})
    return "\n".join(texts) if len(texts) == len(blocks) else blocks


def _block(file: CheckedFile) -> dict[Any, Any]:
    block: dict[Any, Any] = {
        "type": file.family if file.family in ("image", "audio", "video") else "file",
        "mime_type": file.media_type,
    }
    if file.content is None:
        block["url"] = file.url
    else:
        block["base64"] = base64.b64encode(file.content).decode()
    if file.filename:
        block["extras"] = {"filename": file.filename}
    return block


def _answer(values: Any) -> Any:
    """What a graph of messages answers."""
    if not isinstance(values, Mapping):
        return values
    if values.get("structured_response") is not None:
        return values["structured_response"]
    messages = values.get("messages")
    if messages is None:
        raise TypeError(
            "the graph's values have no messages; give from_langgraph() an output that makes the "
            f"answer of {sorted(map(str, values))}"
        )
    last = messages[-1] if messages else None
    return None if last is None or isinstance(last, HumanMessage) else str(last.text)


def _cut(messages: list[Any], limit: HistoryLimit) -> list[Any]:
    """The newest turns, with the system message, which is the very first."""
    first = limit.first(messages, _starts_turn)
    kept = messages[first:]
    if kept and first > 0 and messages[0]["type"] == "system":
        return [messages[0], *kept]
    return kept


def _starts_turn(message: Any) -> bool:
    return bool(message["type"] == "human")
