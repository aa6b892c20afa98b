"""From a gRPC call to a `ServerCallContext`: version, extensions, credentials, deadline.

Every RPC of A2AService passes this one gate before anything is looked up. The gate also knows the
calls that are open, to end them when the server drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ANONYMOUS, ServerCallContext
from a2a_grpc.auth.base import Authenticator
from a2a_grpc.errors import (
    ExtensionSupportRequiredError,
    UnavailableError,
    VersionNotSupportedError,
)

VERSION_KEY = "a2a-version"
EXTENSIONS_KEY = "a2a-extensions"
SUPPORTED_VERSION = "1.0"

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(\.[0-9A-Za-z.+-]+)?")

ServicerContext = grpc.aio.ServicerContext[Any, Any]


class Gate:
    """What every call has to pass.

    Args:
        card_for: the public card of a tenant's agent.
        authenticator: None leaves the server open: everybody is `ANONYMOUS`.
        assume_version: the version of calls that name none; None refuses them, since the
            specification takes them for 0.3 (section 3.6.2).
    """

    RETRY_AFTER = 1.0
    """Seconds after which a client may try again while the server drains."""

    def __init__(
        self,
        *,
        card_for: Callable[[str], pb.AgentCard],
        authenticator: Authenticator | None = None,
        assume_version: str | None = None,
    ) -> None:
        self._card_for = card_for
        self._authenticator = authenticator
        self._assumed = assume_version or ""
        self._served = {SUPPORTED_VERSION}
        self._open: set[asyncio.Task[Any]] = set()
        # By the identity of the card, of which there are few; anybody can invent tenants.
        self._extensions: dict[int, dict[str, bool]] = {}
        self._drained_at: float | None = None
        self._hurried = asyncio.Event()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether open calls are being ended."""
        return self._closed

    def drain(self) -> None:
        """Refuse new calls from now on."""
        if self._drained_at is None:
            self._drained_at = asyncio.get_running_loop().time()

    def hurry(self) -> None:
        """End the grace of open calls."""
        self._hurried.set()

    async def graced(self, seconds: float) -> None:
        """Wait until no call is open: until so long after `drain`, or until `hurry`."""
        if self._drained_at is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._drained_at + seconds):
                hurried = asyncio.create_task(self._hurried.wait(), name="hurried")
                try:
                    while self._open and not hurried.done():
                        await asyncio.wait(
                            (*self._open, hurried), return_when=asyncio.FIRST_COMPLETED
                        )
                finally:
                    hurried.cancel()

    async def settled(self, seconds: float) -> None:
        """Wait until no call is open, for `seconds` at the most."""
        if self._open:
            await asyncio.wait(self._open, timeout=seconds)

    def close(self) -> None:
        """End the open calls, each with a status that clients retry."""
        self.drain()
        self._closed = True
        for task in self._open:
            task.cancel()

    def closing_error(self) -> UnavailableError:
        """What a call gets that the server has no time for any more."""
        return UnavailableError("the server is shutting down", retry_after=self.RETRY_AFTER)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Count the call in whose task this runs as open."""
        if self._drained_at is not None:
            raise self.closing_error()
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            yield
        finally:
            self._open.discard(task)

    async def enter(self, method: str, context: ServicerContext) -> ServerCallContext:
        """Check version and credentials.

        Raises VersionNotSupportedError, UnauthenticatedError.
        """
        metadata: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            if isinstance(value, str):
                metadata[key] = f"{metadata[key]},{value}" if key in metadata else value
        self._check_version(metadata.get(VERSION_KEY, ""))
        remaining = context.time_remaining()
        extensions = metadata.get(EXTENSIONS_KEY)
        call = ServerCallContext(
            principal=ANONYMOUS,
            deadline=None if remaining is None else time.time() + remaining,
            metadata=metadata,
            requested_extensions=_listed(extensions) if extensions else frozenset(),
            method=method,
        )
        if self._authenticator is not None:
            call.peer = context.peer()
            call.principal = await self._authenticator.authenticate(call)
        return call

    def _check_version(self, value: str) -> None:
        value = value.strip() or self._assumed
        if value in self._served:
            return
        match = _VERSION.fullmatch(value)
        if match and f"{int(match[1])}.{int(match[2])}" == SUPPORTED_VERSION:
            return
        said = f"version {value!r}" if value else "no version, which means 0.3,"
        raise VersionNotSupportedError(
            f"the call asks for {said} and this server speaks {SUPPORTED_VERSION}; send the "
            f"metadata {VERSION_KEY}, such as grpcurl -H '{VERSION_KEY}: {SUPPORTED_VERSION}'",
            metadata={"supported_versions": SUPPORTED_VERSION},
        )

    async def negotiate(self, call: ServerCallContext, context: ServicerContext) -> None:
        """Check and echo extensions, once the tenant is known (specification 3.3.4, 4.6).

        Raises ExtensionSupportRequiredError, and InvalidParamsError for an unknown tenant.
        """
        card = self._card_for(call.tenant)  # raises for a tenant that does not exist
        declared = self._extensions.get(id(card))
        if declared is None:
            declared = {e.uri: e.required for e in card.capabilities.extensions}
            self._extensions[id(card)] = declared
        used = []
        for uri, required in declared.items():
            if uri in call.requested_extensions:
                used.append(uri)
            elif required:
                raise ExtensionSupportRequiredError(
                    f"this agent requires the extension {uri}; name it in the metadata "
                    f"{EXTENSIONS_KEY}",
                    metadata={"extension": uri},
                )
        if used:
            await context.send_initial_metadata(((EXTENSIONS_KEY, ",".join(used)),))


def _listed(value: str) -> frozenset[str]:
    return frozenset(uri for uri in (item.strip() for item in value.split(",")) if uri)
