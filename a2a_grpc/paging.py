"""Page tokens: opaque to clients, and good only for the filters that they were made for."""

from __future__ import annotations

import base64
import hashlib
import json

from a2a_grpc.errors import InvalidParamsError

MAX_TOKEN_LENGTH = 4096
"""Characters; far more than an id of the greatest length takes."""


def page_token(after: tuple[int, str], filters: str) -> str:
    """The token for the page that follows `after`."""
    data = json.dumps([*after, _fingerprint(filters)]).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def read_page_token(token: str, filters: str) -> tuple[int, str]:
    """What the token says.

    Raises InvalidParamsError for a token that was not given out for the same filters.
    """
    try:
        if len(token) > MAX_TOKEN_LENGTH:
            raise ValueError("too long")
        padded = token + "=" * (-len(token) % 4)
        at, last, fingerprint = json.loads(base64.b64decode(padded, b"-_", validate=True))
        ours = isinstance(at, int) and abs(at) < 2**63 and isinstance(last, str)
        if ours and last.isprintable() and fingerprint == _fingerprint(filters):
            return at, last
    except (ValueError, TypeError, RecursionError):
        pass
    raise InvalidParamsError.field(
        "page_token", "is not a token that this server gave out for the same filters"
    )


def _fingerprint(filters: str) -> str:
    return hashlib.blake2b(filters.encode(), digest_size=6).hexdigest()
