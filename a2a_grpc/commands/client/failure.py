"""What went wrong with a call, as the error that the command line shows.

The client's errors speak to programmers; here they name the option that helps.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import click

from a2a_grpc import errors
from a2a_grpc.cards.errors import CardSignatureError
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.outcome import CommandError
from a2a_grpc.commands.client.plain import one_line
from a2a_grpc.errors import A2AError

logger = logging.getLogger(__name__)

# What gRPC says of a connection that can't be made, and what helps.
_REMEDIES = {
    "Connection refused": "nothing listens there; is the server running? --target names another",
    "DNS resolution failed": "nobody knows that name; --target names another",
    "Domain name not found": "nobody knows that name; --target names another",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS there; use --no-tls",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted; give --tls-ca",
    "CERTIFICATE_REQUIRED": "it wants a certificate of yours; give --tls-cert and --tls-key",
    "Hostname Verification Check failed": (
        "its certificate is for another name; use that name in --target"
    ),
}


@contextmanager
def told_as_command_errors(*, as_json: bool, target: str) -> Iterator[None]:
    """Whatever the block raises becomes a CommandError; with DEBUG on, the log has the traceback.

    Left alone are click's own errors, and that who reads our output has gone, which click handles.

    Args:
        as_json: whether the command line says it as JSON.
        target: what the commands that it names have to be given: "", or " --target ...".
    """
    try:
        yield
    except (click.exceptions.Exit, click.Abort, click.UsageError, BrokenPipeError):
        raise
    except Exception as error:
        logger.debug("the command failed", exc_info=True)
        told = _told(error, target)
        told.as_json = as_json
        raise told from error


def _told(error: Exception, target: str) -> CommandError:
    match error:
        case CommandError():
            return error
        case A2AError():
            return as_command_error(errors.unwrap(error), target)
        case CardSignatureError():
            return CommandError(str(error), reason="CARD_SIGNATURE")
        case OSError(strerror=str(reason), filename=None):
            return CommandError(f"can't read or write: {reason}")
        case OSError() | ValueError() | ImportError():
            return CommandError(str(error) or type(error).__name__)
    return CommandError(f"{type(error).__name__}: {error} (--log-level debug shows where)")


def as_command_error(error: A2AError, target: str) -> CommandError:
    """The exit code, the line and what programs get; `target`: see `told_as_command_errors`."""
    from a2a_grpc.client.errors import (
        AgentCardError,
        DeadlineExceededError,
        NotAnA2AServerError,
        StreamInterruptedError,
    )

    message, code = error.message, outcome.CALL_FAILED
    fields: list[tuple[str, str]] = []
    details: dict[str, object] = {}
    match error:
        case StreamInterruptedError(task_id=task_id, sequence=sequence, why=why):
            code = outcome.UNREACHABLE
            details = {"taskId": task_id, "sequence": sequence}
            follow = how_to_follow(target, task_id, sequence)
            message = f"the stream of task {quoted(task_id)} broke and {why}; {follow} goes on"
        case errors.UnavailableError():
            code = outcome.UNREACHABLE
            message = _unreachable(message)
        case DeadlineExceededError():
            code = outcome.UNREACHABLE
            message = f"{message} (--timeout gives it more; a task goes on all the same)"
        case AgentCardError():
            message = f"{message} (--target names another)"
        case NotAnA2AServerError():
            message = f"{message} (--target names another)"
        case errors.InvalidParamsError(violations=violations):
            fields = [(one.field, one.description) for one in violations]
            missing = [f"{name}: {wrong}" for name, wrong in fields if name not in message]
            message = "; ".join([message, *missing])
        case errors.UnauthenticatedError():
            code = outcome.NOT_LET_IN
            message = f"{message} (--token gives a bearer token)"
        case errors.PermissionDeniedError():
            code = outcome.NOT_LET_IN
        case errors.TaskNotFoundError():
            message = f"{message} (a2a-grpc list{target} shows those there are)"
    return CommandError(
        message, exit_code=code, reason=error.reason, fields=fields, details=details
    )


def how_to_follow(target: str, task_id: str, sequence: int = 0) -> str:
    """The command that takes a stream up again."""
    after = f" --after {sequence}" if sequence else ""
    return f"a2a-grpc subscribe{target} {quoted(task_id)}{after}"


def quoted(task_id: str) -> str:
    """A task id, which the server chose, as one word of a shell."""
    return shlex.quote(one_line(task_id))


def _unreachable(message: str) -> str:
    for key, remedy in _REMEDIES.items():
        if key in message:
            address = message.partition(" can't be reached")[0]
            return f"{address} can't be reached: {remedy}"
    if "can't be reached" in message:
        return f"{message} (--target names another server)"
    return message
