"""Runs a pydantic-ai agent as a worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic_ai import (
    AgentStreamEvent,
    AudioUrl,
    BinaryContent,
    DeferredToolRequests,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    PartDeltaEvent,
    PartStartEvent,
    RunContext,
    TextPart,
    TextPartDelta,
    UsageLimits,
    UserContent,
    VideoUrl,
)
from pydantic_ai.agent import AbstractAgent, AgentRunResult

from a2a_grpc.adapters.answer import Answer
from a2a_grpc.adapters.deferred_tools import ask, questions, results
from a2a_grpc.adapters.files import checked
from a2a_grpc.adapters.given import of_turn
from a2a_grpc.adapters.kept import (
    ContextKeeper,
    HistoryLimit,
    Kept,
    of_task,
    with_task,
    without_task,
)
from a2a_grpc.agent.content import FileInfo, files_of
from a2a_grpc.agent.task_context import TaskContext
from a2a_grpc.agent.values import from_value
from a2a_grpc.agent.worker import Worker

PAUSED_TASKS = 8
"""Tasks of one conversation that may wait for approvals at a time; of more, the oldest forget."""

_URLS: dict[str, type[ImageUrl | AudioUrl | VideoUrl | DocumentUrl]] = {
    "image": ImageUrl,
    "audio": AudioUrl,
    "video": VideoUrl,
}


class PydanticAIWorker(Worker):
    """Runs one agent for every message; see `a2a_grpc.adapters.from_pydantic_ai`.

    Of each conversation it keeps `messages`, and of each task that waits for approvals what it
    takes to go on, in `paused`.
    """

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        *,
        deps: Any,
        stream: bool,
        usage_limits: UsageLimits | None,
        limit: HistoryLimit,
    ) -> None:
        if not isinstance(agent, AbstractAgent):
            raise TypeError(f"from_pydantic_ai() takes a pydantic_ai.Agent, not {agent!r}")
        self._agent = agent
        self._deps = deps
        self._stream = stream
        self._usage_limits = usage_limits
        self._limit = limit
        self._keeper = ContextKeeper("pydantic-ai")

    async def handle(self, ctx: TaskContext) -> None:
        """Run the agent for one message."""
        kept = await self._keeper.load(ctx)
        paused = of_task(kept, "paused", ctx.task_id)
        answers = None
        if paused is None:
            base, before, prompt = kept.get("messages", []), [], _prompt(ctx)
        else:
            answers = results(paused["questions"], ctx)
            if answers is None:
                await ask(ctx, paused["questions"])
                return
            base, before, prompt = paused["base"], paused["fresh"], None
        answer = Answer(ctx)
        result = await self._agent.run(
            prompt,
            message_history=ModelMessagesTypeAdapter.validate_python([*base, *before]),
            deferred_tool_results=answers,
            deps=await of_turn(self._deps, ctx),
            usage_limits=self._usage_limits,
            event_stream_handler=self._writer(answer) if self._stream else None,
            infer_name=False,
        )
        fresh = [*before, *_dumped(result.new_messages())]
        if isinstance(result.output, DeferredToolRequests):
            asked = questions(result.output)
            paused = {"base": base, "fresh": fresh, "questions": asked}
            await self._keeper.change(
                ctx,
                lambda kept: with_task(kept, "paused", ctx.task_id, paused, limit=PAUSED_TASKS),
            )
            await ask(ctx, asked)
            return
        await self._remember(ctx, base, fresh, result)
        if isinstance(result.output, BinaryContent):
            await answer.complete_file(result.output.data, result.output.media_type)
        else:
            await answer.complete(result.output)

    def _writer(
        self, answer: Answer
    ) -> Callable[[RunContext[Any], AsyncIterable[AgentStreamEvent]], Awaitable[None]]:
        """What gets the events of each step of a run; a step has one response of the model."""
        writes = _has_text(self._agent.output_type)

        async def write(_: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
            answer.supersede()
            async for event in events:
                if not writes:
                    continue
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    await answer.write(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    await answer.write(event.delta.content_delta)

        return write

    async def _remember(
        self, ctx: TaskContext, base: list[Any], fresh: list[Any], result: AgentRunResult[Any]
    ) -> None:
        def change(kept: Kept) -> Kept:
            # Another task of the conversation may have ended meanwhile: both are kept. If none has,
            # what the run made of the history counts, since the agent may have rewritten it.
            current = kept.get("messages", [])
            messages = _dumped(result.all_messages()) if current == base else [*current, *fresh]
            rest = without_task(kept, "paused", ctx.task_id)
            return {**rest, "messages": _cut(messages, self._limit)}

        await self._keeper.change(ctx, change)


def _prompt(ctx: TaskContext) -> str | Sequence[UserContent]:
    """The message's parts, in their order; text alone as one string."""
    content: list[UserContent] = []
    for part in ctx.parts:
        if part.HasField("text"):
            content.append(part.text)
        elif part.HasField("data"):
            content.append(json.dumps(from_value(part.data), ensure_ascii=False))
        else:
            content.extend(_file(file) for file in files_of([part]))
    texts = [one for one in content if isinstance(one, str)]
    return "\n".join(texts) if len(texts) == len(content) else content


def _file(info: FileInfo) -> UserContent:
    file = checked(info)
    if file.content is not None:
        return BinaryContent(file.content, media_type=file.media_type)
    return _URLS.get(file.family, DocumentUrl)(url=file.url, media_type=file.media_type)


def _has_text(output_type: Any) -> bool:
    """Whether text that the model writes may be the output, as it is."""
    if isinstance(output_type, Sequence) and not isinstance(output_type, str):
        return any(_has_text(one) for one in output_type)
    if get_origin(output_type) in (Union, UnionType):
        return any(_has_text(one) for one in get_args(output_type))
    return output_type is str


def _dumped(messages: list[ModelMessage]) -> list[Any]:
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return dumped


def _cut(messages: list[Any], limit: HistoryLimit) -> list[Any]:
    """The newest turns, with the system prompt, which only the very first request carries."""
    first = limit.first(messages, _starts_turn)
    if first == 0 or first == len(messages):
        return messages[first:]
    system = [part for part in messages[0]["parts"] if part["part_kind"] == "system-prompt"]
    head = messages[first]
    return [{**head, "parts": [*system, *head["parts"]]}, *messages[first + 1 :]]


def _starts_turn(message: Any) -> bool:
    kinds = {part["part_kind"] for part in message["parts"]}
    return message["kind"] == "request" and "user-prompt" in kinds and "tool-return" not in kinds
