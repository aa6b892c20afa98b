"""Tool calls of a pydantic-ai agent that wait for somebody, as a question and its answer."""

from __future__ import annotations

import json
from typing import Any

from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolCallPart, ToolDenied

from a2a_grpc.agent.task_context import TaskContext

APPROVALS = frozenset({"yes", "y", "ok", "approve", "approved"})
"""Texts that approve, without case and a final full stop; any other denies."""


def questions(requests: DeferredToolRequests) -> dict[str, Any]:
    """What is asked, as JSON: `approvals` and `calls`, each from tool_call_id to name and args."""
    return {
        "approvals": {call.tool_call_id: _call(call) for call in requests.approvals},
        "calls": {call.tool_call_id: _call(call) for call in requests.calls},
    }


async def ask(ctx: TaskContext, asked: dict[str, Any]) -> None:
    """INPUT_REQUIRED, with every call that waits."""
    lines = []
    if asked["approvals"]:
        lines.append(
            "These tool calls need approval. Answer yes or no for all of them, or with a data part "
            '{"approvals": {id: true, or false, or the reason why not}}:'
        )
        lines += _listed(asked["approvals"])
    if asked["calls"]:
        lines.append(
            'These tool calls are yours to make. Answer with a data part {"calls": {id: result}}'
            + (", or with the result as text:" if _only_one_call(asked) else ":")
        )
        lines += _listed(asked["calls"])
    await ctx.request_input("\n".join(lines))


def results(asked: dict[str, Any], ctx: TaskContext) -> DeferredToolResults | None:
    """What the message says to it; None if it leaves a call unanswered."""
    given = next((data for data in ctx.data_parts if isinstance(data, dict)), None)
    if given is None:
        return _of_text(asked, ctx.user_text.strip())
    approvals, calls = given.get("approvals"), given.get("calls")
    approvals = approvals if isinstance(approvals, dict) else {}
    calls = calls if isinstance(calls, dict) else {}
    if not (
        asked["approvals"].keys() <= approvals.keys() and asked["calls"].keys() <= calls.keys()
    ):
        return None
    return DeferredToolResults(
        approvals={name: _approval(approvals[name]) for name in asked["approvals"]},
        calls={name: calls[name] for name in asked["calls"]},
    )


def _of_text(asked: dict[str, Any], text: str) -> DeferredToolResults | None:
    if _only_one_call(asked):
        return DeferredToolResults(calls=dict.fromkeys(asked["calls"], text))
    if asked["calls"] or not text:
        return None
    approved = text.rstrip(".!").casefold() in APPROVALS
    return DeferredToolResults(
        approvals={name: _approval(approved or text) for name in asked["approvals"]}
    )


def _approval(value: Any) -> bool | ToolDenied:
    # Anything but a plain true is a no.
    return ToolDenied(message=value) if isinstance(value, str) and value else value is True


def _only_one_call(asked: dict[str, Any]) -> bool:
    return len(asked["calls"]) == 1 and not asked["approvals"]


def _call(call: ToolCallPart) -> dict[str, Any]:
    return {"tool": call.tool_name, "args": call.args_as_dict()}


def _listed(calls: dict[str, Any]) -> list[str]:
    return [
        f"- {name}: {call['tool']} {json.dumps(call['args'], ensure_ascii=False)}"
        for name, call in calls.items()
    ]
