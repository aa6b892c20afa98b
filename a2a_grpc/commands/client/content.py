"""What a message consists of: the text, stdin, files and data that the command line names."""

from __future__ import annotations

import json
import mimetypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from a2a_grpc import pb
from a2a_grpc.agent.values import to_value

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

STDIN = "-"
_UNKNOWN_TYPE = "application/octet-stream"
_EXACT = 2**53  # beyond it, the doubles of google.protobuf.Struct lose integers


def message_options(function: FunctionT) -> FunctionT:
    """The options that `send`, `stream` and `chat` have in common."""
    options = [
        click.option(
            "--file",
            "files",
            metavar="PATH",
            multiple=True,
            type=click.Path(path_type=Path),
            help="File to attach; - is stdin; repeatable.",
        ),
        click.option(
            "--data",
            metavar="JSON",
            multiple=True,
            help="JSON value to attach; repeatable.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return continuing_options(function)


def continuing_options(function: FunctionT) -> FunctionT:
    """The options that say what a message continues."""
    function = click.option("--context", "context_id", metavar="ID", default="",
                            help="Conversation to continue.")(function)  # fmt: skip
    return click.option("--task", "task_id", metavar="ID", default="",
                        help="Task to continue, or to answer.")(function)  # fmt: skip


def parts_of(text: Sequence[str], files: Sequence[Path], data: Sequence[str]) -> list[pb.Part]:
    """The parts of a message, in this order.

    Raises:
        click.UsageError: something can't be read or is not what it has to be, or there is nothing.
    """
    readers = (tuple(text) == (STDIN,)) + [*map(str, files)].count(STDIN)
    if readers > 1:
        raise click.UsageError("stdin can be read only once: give - once, as TEXT or to --file")
    parts = []
    said = _from_stdin() if tuple(text) == (STDIN,) else " ".join(text)
    if said:
        parts.append(pb.Part(text=_checked(said, "TEXT")))
    parts += [attached(path) for path in files]
    parts += [data_part(value) for value in data]
    if not parts:
        raise click.UsageError("nothing to send: give TEXT, - to read it from stdin, or --file")
    return parts


def attached(path: Path) -> pb.Part:
    """The file as a part: its bytes, its name, and the media type that the name suggests.

    `-` is stdin, which has no name.
    """
    if str(path) == STDIN:
        return pb.Part(raw=sys.stdin.buffer.read(), media_type=_UNKNOWN_TYPE)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise click.UsageError(
            f"can't attach {str(path)!r}: {error.strerror or error}; --file needs a file that "
            "can be read"
        ) from error
    media_type, encoding = mimetypes.guess_type(path.name)
    if encoding is not None or media_type is None:
        media_type = {"gzip": "application/gzip", "bzip2": "application/x-bzip2"}.get(
            encoding or "", _UNKNOWN_TYPE
        )
    return pb.Part(
        raw=content, filename=_checked(path.name, "the name of a --file"), media_type=media_type
    )


def data_part(text: str) -> pb.Part:
    """The JSON value as a part."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_int=_exact)
        return pb.Part(data=to_value(value), media_type="application/json")
    except _InexactError as error:
        raise click.UsageError(
            f"--data has the integer {error}, which would be rounded: write it as a string"
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise click.UsageError(
            f'--data is not JSON: {reason}; put it in quotes, such as \'{{"city": "Lisbon"}}\''
        ) from error


class _InexactError(ValueError):
    pass


def _exact(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > _EXACT:
        raise _InexactError(digits if len(digits) <= 40 else f"{digits[:40]}...")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _from_stdin() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            "stdin is not text in UTF-8; attach it as a file with --file"
        ) from error
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise click.UsageError("nothing to send: stdin is empty")
    return text


def _checked(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{what} is not text in UTF-8") from error
    return text
