"""The authenticator seam: who calls."""

from __future__ import annotations

from typing import Protocol

from a2a_grpc.agent.call_context import Principal, ServerCallContext


class Authenticator(Protocol):
    """Finds out who calls, before anything is looked up."""

    async def authenticate(self, call: ServerCallContext) -> Principal:
        """The caller, by the call's metadata.

        The principal's id scopes everything that is stored for the caller. Raises
        UnauthenticatedError without valid credentials, PermissionDeniedError for a caller who may
        not use the service.
        """
        ...
