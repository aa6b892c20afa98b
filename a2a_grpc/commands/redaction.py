"""Keeps the secrets in URLs of stores and brokers out of what the command line writes.

`shown` is a URL as people may see it. A `Redaction` takes known URLs, and the passwords and tokens
in them, out of any text: a library's error or a traceback may quote what we do not.
"""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qsl, unquote

HIDDEN = "***"

_SECRET_KEY = re.compile("pass|pwd|token|secret|seed|jwt", re.IGNORECASE)
_SHORTEST = 4
"""Characters of a password that is looked for on its own; a shorter one is in too many words."""


def shown(url: str) -> str:
    """The URL without user info and query; one of a file, or of nothing, as it is."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    elif scheme.startswith("sqlite"):
        return url
    main, question, query = rest.partition("?")
    if "@" in query:  # or the password has a question mark in it
        return f"{scheme}{separator}{HIDDEN}"
    _, at, place = main.rpartition("@")
    return f"{scheme}{separator}{HIDDEN if at else ''}{at}{place}{question}{HIDDEN * bool(query)}"


class Redaction:
    """Replaces the secrets of URLs that were added in any text."""

    def __init__(self) -> None:
        self._replaced: dict[str, str] = {}

    def add(self, url: object) -> None:
        """Know a URL; anything else than text is no URL."""
        if not isinstance(url, str) or (public := shown(url)) == url:
            return
        self._replaced[url] = public
        for secret in _secrets(url):
            # What the host or the database is called as well is no secret.
            if len(secret) >= _SHORTEST and secret not in public:
                self._replaced[secret] = HIDDEN
                self._replaced[json.dumps(secret, ensure_ascii=False)[1:-1]] = HIDDEN

    def __call__(self, text: str) -> str:
        """The text without what is secret."""
        for secret in sorted(self._replaced, key=len, reverse=True):
            text = text.replace(secret, self._replaced[secret])
        return text


def _secrets(url: str) -> set[str]:
    """Everything in it that may be a password or a token, as it is written and as it is meant."""
    scheme, _, rest = url.partition("://")
    main, _, query = rest.partition("?")
    found = {value for key, value in parse_qsl(query) if _SECRET_KEY.search(key)}
    for text in (main, *main.split(","), rest):  # several servers have a password each
        user_info = text.rpartition("://")[2].rpartition("@")[0]
        user, colon, password = user_info.partition(":")
        found.add(password)
        if not colon and not scheme.startswith("postgres"):
            found.add(user)  # a token
    return {form for secret in found for form in (secret, unquote(secret))} - {""}
