"""How a client command ends: the exit code for scripts, and the error in one line or as JSON.

0    done; a task that was waited for is COMPLETED, or the agent answered without one
1    the call failed
2    the command line or the environment is wrong; nothing was sent
3    the task ended FAILED, REJECTED or CANCELED
4    the agent asks: the task is INPUT_REQUIRED or AUTH_REQUIRED
5    the server can't be reached, or not in time
6    not let in: no valid credentials, or no permission
130  interrupted
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from a2a_grpc import pb
from a2a_grpc.commands.client.plain import one_line

DONE = 0
CALL_FAILED = 1
WRONG_USAGE = 2
TASK_FAILED = 3
AGENT_ASKS = 4
UNREACHABLE = 5
NOT_LET_IN = 6
INTERRUPTED = 130

JSON = "a2a_grpc.json"
"""In the meta of click's context: whether errors are written as JSON."""

HELP = (
    "Exit codes: 0 done, 1 the call failed, 2 wrong usage, 3 the task failed or was canceled, "
    "4 the agent asks, 5 unreachable or too late, 6 not let in, 130 interrupted."
)

_OF_STATE: Mapping[pb.TaskState.ValueType, int] = {
    pb.TaskState.TASK_STATE_COMPLETED: DONE,
    pb.TaskState.TASK_STATE_FAILED: TASK_FAILED,
    pb.TaskState.TASK_STATE_REJECTED: TASK_FAILED,
    pb.TaskState.TASK_STATE_CANCELED: TASK_FAILED,
    pb.TaskState.TASK_STATE_INPUT_REQUIRED: AGENT_ASKS,
    pb.TaskState.TASK_STATE_AUTH_REQUIRED: AGENT_ASKS,
}


def is_settled(state: pb.TaskState.ValueType | None) -> bool:
    """Whether the task has ended, or waits for its client."""
    return state in _OF_STATE


def code_of(state: pb.TaskState.ValueType) -> int:
    """The exit code of a task in this state; of one that goes on, 0."""
    return _OF_STATE.get(state, DONE)


class CommandError(click.ClickException):
    """A command could not do what it was asked for.

    Args:
        message: one line that names the thing and the remedy.
        exit_code: one of this module's.
        reason: for programs; that of `google.rpc.ErrorInfo` where the server said one.
        fields: the wrong fields of the request, each with what would be right.
        details: more for programs.
        as_json: whether the command line says it as JSON.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int = CALL_FAILED,
        reason: str = "INTERNAL",
        fields: Sequence[tuple[str, str]] = (),
        details: Mapping[str, Any] | None = None,
        as_json: bool = False,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc, unused-ignore]
        self.reason = reason
        self.fields = tuple(fields)
        self.details = dict(details or {})
        self.as_json = as_json


def error_line(error: click.ClickException, *, as_json: bool) -> str:
    """The error as stderr gets it: a line for people, or one JSON object.

    The object always has code (the exit code), reason, message and fields.
    """
    message = one_line(error.format_message())
    if isinstance(error, click.UsageError):
        program = error.ctx.command_path if error.ctx else "a2a-grpc"
        message = f"{message} (see {program} --help)"
    if not as_json:
        return f"error: {message}"
    said: dict[str, Any] = {
        "code": error.exit_code,
        "reason": "USAGE",
        "message": message,
        "fields": [],
    }
    if isinstance(error, CommandError):
        said["reason"] = error.reason
        said["fields"] = [
            {"field": field, "description": description} for field, description in error.fields
        ]
        said |= error.details
    return json.dumps(said)
