"""Files that came with a message, checked before a framework sees them."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from urllib.parse import urlsplit

from a2a_grpc.agent.content import FileInfo
from a2a_grpc.errors import InvalidParamsError
from a2a_grpc.media_types import essence

UNKNOWN = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file whose media type is known: its bytes, or an http or https URL."""

    content: bytes | None
    url: str
    media_type: str
    filename: str

    @property
    def family(self) -> str:
        """The media type's first half: `image`, `audio`, ..."""
        return self.media_type.split("/")[0]


def checked(file: FileInfo) -> CheckedFile:
    """The file, with its media type guessed from its name if the sender gave none.

    Raises:
        InvalidParamsError: a URL that is not http or https. Model providers also take URLs of
            cloud storage, which they read with the rights of this server, not of the caller.
    """
    url = file.url or ""
    if file.content is None and urlsplit(url).scheme.lower() not in ("http", "https"):
        raise InvalidParamsError.field("message.parts", "a file's URL must be http or https")
    media_type = essence(file.media_type or "")
    if not media_type:
        named = file.filename or urlsplit(url).path
        media_type = mimetypes.guess_type(named)[0] or UNKNOWN
    return CheckedFile(file.content, url, media_type, file.filename or "")
