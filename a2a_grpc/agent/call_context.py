"""Who calls, and with what: plain values that travel from the wire to the agent.

An agent sees the call as its operation carries it: principal, tenant, deadline, extensions, and the
metadata that the allow-list lets through; never credentials.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_ID = 256


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller; `id` scopes everything that is stored for it.

    `scopes` are permissions, `claims` whatever else the authenticator learned. Raises ValueError
    for an id that is longer than 256 characters, or has control characters in it.
    """

    id: str = ""
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # It is a key in storage, where databases have bounds.
        if len(self.id) > MAX_ID or (self.id and not self.id.isprintable()):
            raise ValueError(
                f"the id of a principal has up to {MAX_ID} characters, none of them a control "
                "character; use a hash of what is longer"
            )

    @property
    def is_authenticated(self) -> bool:
        """False for the one principal that stands for everybody on an open server."""
        return bool(self.id)

    @property
    def user_name(self) -> str:
        """The id, under the name that a2a-sdk's `User` gives it."""
        return self.id


ANONYMOUS = Principal()


@dataclass(slots=True)
class ServerCallContext:
    """One call of one RPC.

    Attributes:
        principal: who calls; `ANONYMOUS` on a server without an authenticator. An agent gets the
            id alone, since its operation may run later and elsewhere, when scopes and claims may
            no longer hold.
        tenant: from the request, "" if it names none.
        deadline: seconds since the epoch, None if the caller set none.
        metadata: the call's metadata, keys in lower case; for an agent, the allow-listed part.
        requested_extensions: the URIs in `a2a-extensions`.
        method: the RPC's name, such as "SendMessage".
        peer: the transport's address of the caller; "" for an agent.
        state: for authenticators and middleware among themselves; the agent does not get it.
        request_context: what middleware has for the agent (`TaskContext.request_context`). It is
            neither stored nor sent anywhere, so it may hold secrets.
    """

    principal: Principal = ANONYMOUS
    tenant: str = ""
    deadline: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    requested_extensions: frozenset[str] = frozenset()
    method: str = ""
    peer: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    request_context: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def user(self) -> Principal:
        """The principal, under a2a-sdk's name."""
        return self.principal

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())
