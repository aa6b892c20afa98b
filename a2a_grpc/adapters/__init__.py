"""Agents of other frameworks as workers: pydantic-ai agents and LangGraph graphs.

Neither framework is imported before one of these functions is called; each is an extra of the
package.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from a2a_grpc.adapters.kept import HistoryLimit
from a2a_grpc.agent.task_context import TaskContext
from a2a_grpc.agent.worker import Worker

if TYPE_CHECKING:
    from langgraph.pregel import Pregel
    from pydantic_ai import UsageLimits
    from pydantic_ai.agent import AbstractAgent

__all__ = ["from_langgraph", "from_pydantic_ai"]

HISTORY_MESSAGES = 100
HISTORY_BYTES = 4 * 1024 * 1024


def from_pydantic_ai(
    agent: AbstractAgent[Any, Any],
    *,
    deps: Any = None,
    stream: bool = True,
    usage_limits: UsageLimits | None = None,
    history_messages: int = HISTORY_MESSAGES,
    history_bytes: int = HISTORY_BYTES,
) -> Worker:
    """A worker that runs a pydantic-ai agent; one agent serves many tasks at once.

    The answer is the artifact `answer`: text of an agent with str among its output types, streamed
    as the model writes it; any other output as JSON; an image as a file. A message of the same
    context id continues the conversation. `DeferredToolRequests` becomes INPUT_REQUIRED. What the
    agent raises ends the task FAILED.

    Args:
        agent: a `pydantic_ai.Agent`, or anything else that pydantic-ai takes for one.
        deps: the run's dependencies; a callable gets the TaskContext and returns them, or an
            awaitable of them.
        stream: whether the model is asked to stream; without, as for a model that can't, the text
            comes in one piece.
        usage_limits: for each message.
        history_messages: messages of the framework that are kept of a conversation; the newest turn
            is kept in any case, 0 keeps nothing. Earlier turns go as wholes.
        history_bytes: bytes of JSON that are kept of a conversation; after a turn beyond that it
            starts anew.

    Raises:
        ImportError: pydantic-ai is not installed.
        TypeError: `agent` is none.
        ValueError: a negative limit.
    """
    try:
        from a2a_grpc.adapters.pydantic_ai import PydanticAIWorker
    except ImportError as error:
        raise _missing(error, "from_pydantic_ai", "pydantic-ai", "pydantic_ai") from error
    return PydanticAIWorker(
        agent,
        deps=deps,
        stream=stream,
        usage_limits=usage_limits,
        limit=HistoryLimit(history_messages, history_bytes),
    )


def from_langgraph(
    graph: Pregel[Any, Any, Any, Any],
    *,
    input: Callable[[TaskContext], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None = None,
    output: Callable[[Any], Any] | None = None,
    context: Any = None,
    stream: bool = True,
    nodes: Collection[str] | None = None,
    namespace: str = "",
    history_messages: int = HISTORY_MESSAGES,
    history_bytes: int = HISTORY_BYTES,
) -> Worker:
    """A worker that runs a compiled LangGraph graph; one graph serves many tasks at once.

    The answer is the artifact `answer`. With a checkpointer, each conversation (context id, caller
    and tenant) is a thread of its own, whose tasks run one after another in this process; and
    `interrupt()` becomes INPUT_REQUIRED, which the next message to the task resumes. Without one,
    the messages of the state are kept with the context. What the graph raises ends the task FAILED.

    Args:
        graph: the compiled graph.
        input: makes the graph's input of a TaskContext; by default `{"messages": [...]}` with the
            user's message. Without a checkpointer, nothing is kept of a graph that has its own
            `input`; it may use `ctx.load_context` and `ctx.update_context` itself.
        output: makes the answer of the graph's final values: text, any JSON value, a pydantic
            model, or None for no answer. By default it is `structured_response` if the values have
            one, else the text of the last message, if that is not the user's.
        context: the graph's run-time context; a callable gets the TaskContext and returns it, or an
            awaitable of it.
        stream: whether text is sent as the models write it.
        nodes: the nodes whose text is sent while it is written; None for all.
        namespace: sets the threads of graphs apart that share a checkpointer.
        history_messages: messages that are kept of a conversation, without a checkpointer; the
            newest turn is kept in any case, 0 keeps nothing. Earlier turns go as wholes.
        history_bytes: bytes of JSON that are kept of a conversation; after a turn beyond that it
            starts anew.

    Raises:
        ImportError: LangGraph is not installed.
        TypeError: `graph` is not a compiled graph.
        ValueError: the graph has static breakpoints, or a limit is negative.
    """
    try:
        from a2a_grpc.adapters.langgraph import LangGraphWorker
    except ImportError as error:
        raise _missing(
            error, "from_langgraph", "langgraph", "langgraph", "langchain_core"
        ) from error
    return LangGraphWorker(
        graph,
        input=input,
        output=output,
        context=context,
        stream=stream,
        nodes=nodes,
        namespace=namespace,
        limit=HistoryLimit(history_messages, history_bytes),
    )


def _missing(error: ImportError, function: str, extra: str, *libraries: str) -> ImportError:
    if (error.name or "").split(".")[0] not in libraries:
        return error  # the framework is there, but something that it needs is not
    return ImportError(f"{function}() needs the extra {extra}: install 'a2a-grpc[{extra}]'")
