"""Media types, compared as they should be: without case, and without parameters."""

from __future__ import annotations

from collections.abc import Iterable


def essence(media_type: str) -> str:
    """The media type alone: `Text/Plain; charset=utf-8` is `text/plain`."""
    return media_type.split(";")[0].strip().lower()


def is_listed(media_type: str, listed: Iterable[str]) -> bool:
    """Whether a list holds the media type, or for it `text/*`, `*/*`, or plain `text`."""
    wanted = essence(media_type)
    kind = wanted.split("/")[0]
    patterns = (wanted, f"{kind}/*", kind, "*/*", "*")
    return any(essence(one) in patterns for one in listed)
