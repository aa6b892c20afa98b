"""The files that an agent answers with, saved into a directory.

Names come from the agent and are not trusted: a file never leaves the directory, is never hidden,
never looks like an option, and never replaces another.
"""

from __future__ import annotations

import errno
import json
import mimetypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

from a2a_grpc import pb
from a2a_grpc.agent.values import from_value
from a2a_grpc.commands.client.outcome import WRONG_USAGE, CommandError

_LONGEST = 200  # bytes of a name, of 255 that file systems take; a number may be added
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]')
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)
_MOST_NUMBERS = 10_000


@dataclass(frozen=True)
class Saved:
    """A file that was written; `instead_of` is the name that was taken, "" if none was."""

    path: Path
    size: int  # bytes
    instead_of: str


class FileSaver:
    """Saves parts into one directory.

    It is made here, and not when the first file comes: a direct answer could not be had again.

    Raises CommandError if files can't be written there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise CommandError(
                f"can't save files in {str(directory)!r}: {error.strerror or error}; --output "
                "names another directory",
                exit_code=WRONG_USAGE,
                reason="FILE",
            ) from error

    def save(self, part: pb.Part, fallback: str) -> Saved | None:
        """Save the part if it is a file: bytes, or anything else inline that has a file name.

        Args:
            fallback: what the file is called if the part has no name, without a suffix.

        Raises:
            CommandError: the file can't be written.
        """
        content = _content(part)
        if content is None:
            return None
        name = safe_name(part.filename) or (safe_name(fallback) or "file") + _suffix(part)
        try:
            path = self._write(name, content)
        except OSError as error:
            raise CommandError(
                f"can't save {name!r} in {str(self._directory)!r}: {error.strerror or error}; "
                "--output names another directory",
                reason="FILE",
            ) from error
        return Saved(path, len(content), name if path.name != name else "")

    def _write(self, name: str, content: bytes) -> Path:
        stem, dot, suffix = name.rpartition(".")
        if not stem:
            stem, dot, suffix = name, "", ""
        for number in range(1, _MOST_NUMBERS):
            path = self._directory / (name if number == 1 else f"{stem}-{number}{dot}{suffix}")
            try:
                # Fails for everything that is there already, symbolic links included.
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            return path
        raise OSError(f"{_MOST_NUMBERS} files have this name already")


def safe_name(name: str) -> str:
    """A file name made of what an agent calls a file; "" if nothing is left of it."""
    last = re.split(r"[/\\]", name)[-1]
    last = _FORBIDDEN.sub("_", last).strip().lstrip(".-").rstrip(". ").strip()
    if _DEVICES.match(last):
        last = f"_{last}"
    data = last.encode("utf-8", "replace")
    if len(data) > _LONGEST:
        suffix = Path(last).suffix.encode("utf-8", "replace")
        suffix = suffix if len(suffix) <= 20 else b""
        last = (data[: _LONGEST - len(suffix)] + suffix).decode("utf-8", "ignore")
    return last


def _content(part: pb.Part) -> bytes | None:
    kind = part.WhichOneof("content")
    if kind == "raw":
        return part.raw
    if kind == "text" and part.filename:
        return part.text.encode()
    if kind == "data" and part.filename:
        return (json.dumps(from_value(part.data), ensure_ascii=False, indent=2) + "\n").encode()
    return None


def _suffix(part: pb.Part) -> str:
    media_type = part.media_type.partition(";")[0].strip().lower()
    return mimetypes.guess_extension(media_type) or ".bin"
