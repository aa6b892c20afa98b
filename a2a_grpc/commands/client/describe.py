"""Tasks, messages and parts in words; every text that comes from an agent is made plain here."""

from __future__ import annotations

import json
from collections.abc import Iterator

from a2a_grpc import pb
from a2a_grpc.agent.values import from_value
from a2a_grpc.commands.client.plain import one_line, plain

STATE_STYLES = {
    pb.TaskState.TASK_STATE_SUBMITTED: "blue",
    pb.TaskState.TASK_STATE_WORKING: "cyan",
    pb.TaskState.TASK_STATE_COMPLETED: "bold green",
    pb.TaskState.TASK_STATE_FAILED: "bold red",
    pb.TaskState.TASK_STATE_REJECTED: "bold red",
    pb.TaskState.TASK_STATE_CANCELED: "bold yellow",
    pb.TaskState.TASK_STATE_INPUT_REQUIRED: "bold magenta",
    pb.TaskState.TASK_STATE_AUTH_REQUIRED: "bold magenta",
}
_PREFIX = "TASK_STATE_"
_UNITS = ("bytes", "kB", "MB", "GB")


def state_name(state: int) -> str:
    """COMPLETED, for example; `state 99` for one that is not known here."""
    if state in pb.TaskState.values():
        return pb.TaskState.Name(state).removeprefix(_PREFIX)  # type: ignore[arg-type]
    return f"state {state}"


def size(count: int) -> str:
    """Bytes for people: `12.3 kB`."""
    number, unit = float(count), 0
    while number >= 1000 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{count} {_UNITS[0]}" if unit == 0 else f"{number:.1f} {_UNITS[unit]}"


def part(part: pb.Part) -> str:
    """Text as it is, data as JSON; files and links are described."""
    kind = part.WhichOneof("content")
    if kind == "text":
        return plain(part.text)
    if kind == "data":
        return plain(
            json.dumps(from_value(part.data), ensure_ascii=False, indent=2, sort_keys=True)
        )
    named = [one_line(text) for text in (part.filename, part.media_type) if text]
    if kind == "raw":
        named.append(size(len(part.raw)))
        return f"[file: {', '.join(named)}; --output DIR saves it]"
    if kind == "url":
        return f"[link: {', '.join([one_line(part.url), *named])}]"
    return "[an empty part]"


def words(message: pb.Message) -> str:
    """A message on one line."""
    return " ".join(one_line(part(one)) for one in message.parts)


def time(status: pb.TaskStatus) -> str:
    """When the status was set, in UTC; "" if nobody said."""
    if not status.HasField("timestamp"):
        return ""
    try:
        return f"{status.timestamp.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError):
        return ""  # beyond the years that there are


def task_fields(task: pb.Task) -> Iterator[tuple[str, str]]:
    """What is known of a task beside its state, its words and its artifacts."""
    if task.context_id:
        yield "context", one_line(task.context_id)
    if updated := time(task.status):
        yield "updated", updated
    if task.status.HasField("message"):
        yield "message", words(task.status.message)


def conversation(task: pb.Task) -> Iterator[tuple[str, str]]:
    """Who said what."""
    for message in task.history:
        who = "user" if message.role == pb.Role.ROLE_USER else "agent"
        yield who, "\n".join(part(one) for one in message.parts)
