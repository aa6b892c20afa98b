"""Ids as words of subjects, which may hold neither dots, nor wildcards, nor blanks."""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def subject_word(identifier: str) -> str:
    """The id itself where it can be one word of a subject, else a hash of it, told apart by "="."""
    if _PLAIN.fullmatch(identifier):
        return identifier
    return "=" + hashlib.blake2b(identifier.encode(), digest_size=16).hexdigest()
