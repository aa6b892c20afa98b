"""The agent's card from an http(s) URL (specification 8.2): bounded in size, time and redirects."""

from __future__ import annotations

import asyncio
import logging

from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.client.address import Address
from a2a_grpc.client.errors import AgentCardError
from a2a_grpc.errors import UnavailableError

logger = logging.getLogger(__name__)

WELL_KNOWN = "/.well-known/agent-card.json"

MAX_BYTES = 1024 * 1024
"""Of a card."""
MAX_REDIRECTS = 5
TIMEOUT = 10.0
"""Seconds for fetching a card, where the client has no timeout of its own."""


def card_url(text: str) -> str:
    """The text itself if its path ends in `.json`, else the well-known place below it.

    Raises ValueError for what is no URL.
    """
    import httpx

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"{text!r} is no URL: {error}") from error
    if not url.host:
        raise ValueError(f"{text!r} has no host; use the URL of the agent's card or site")
    if url.path.endswith(".json"):
        return text
    return str(url.copy_with(path=url.path.rstrip("/") + WELL_KNOWN, query=None, fragment=None))


async def fetch_card(url: str, *, timeout: float | None) -> pb.AgentCard:
    """The card at this URL.

    Args:
        timeout: seconds for all of it; None for `TIMEOUT`.

    Raises UnavailableError if the site can't be reached in time, AgentCardError for anything that
    is no card.
    """
    import httpx

    if url.lower().startswith("http://") and not Address(_authority(url), None).is_loopback:
        logger.warning("the card at %s is fetched in plaintext; https is safer", url)
    limit = TIMEOUT if timeout is None else timeout
    try:
        async with (
            asyncio.timeout(limit),
            httpx.AsyncClient(
                timeout=None, follow_redirects=True, max_redirects=MAX_REDIRECTS
            ) as client,
            client.stream("GET", url, headers={"accept": "application/a2a+json, */*"}) as response,
        ):
            came_from = [*(one.url for one in response.history), response.url]
            if came_from[0].scheme == "https" and any(u.scheme != "https" for u in came_from):
                raise AgentCardError(f"the card at {url} redirects from https to http; refused")
            if response.status_code != httpx.codes.OK:
                raise AgentCardError(
                    f"there is no card at {response.url}: HTTP status {response.status_code}; use "
                    "the URL of the agent's card"
                )
            data = bytearray()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    raise AgentCardError(f"{response.url} has more than 1 MiB; that is no card")
            kind = response.headers.get("content-type", "no content type")
    except httpx.TooManyRedirects as error:
        raise AgentCardError(f"the card at {url} redirects too often: {error}") from error
    except httpx.DecodingError as error:
        raise AgentCardError(f"the card at {url} can't be decoded: {error}") from error
    except TimeoutError as error:
        raise UnavailableError(
            f"the card at {url} can't be reached: it did not come within {limit:g} seconds"
        ) from error
    except httpx.TransportError as error:
        said = str(error) or type(error).__name__
        raise UnavailableError(f"the card at {url} can't be reached: {said}") from error
    return _parse(bytes(data), str(response.url), kind)


def _parse(data: bytes, url: str, kind: str) -> pb.AgentCard:
    try:
        card = json_format.Parse(data.decode(), pb.AgentCard(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise AgentCardError(
            f"what {url} gives ({kind}) is no agent card: {str(error)[:200]}; use the URL of the "
            f"agent's card, usually https://host{WELL_KNOWN}"
        ) from error
    if not card.name:
        raise AgentCardError(f"what {url} gives is JSON, but no agent card: it has no name")
    return card


def _authority(url: str) -> str:
    import httpx

    parsed = httpx.URL(url)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    return f"{host}:{parsed.port or 80}"
