"""Commits as bytes, on their way to other processes.

A fixed head, then the ids, the outcome and the payloads, each with its length. The first byte is
the version of the format; what another version of this package sends is not understood, and
`CatchUp` makes up for it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from a2a_grpc.bus.base import Committed
from a2a_grpc.storage.values import Outcome, OutcomeKind

_VERSION = 1
_HEAD = struct.Struct("!BBiQQHHI")
"""Format, flags, state, version, sequence, lengths of both ids, number of payloads."""
_OUTCOME = struct.Struct("!BQI")
"""Kind, version, length of the payload."""
_LENGTH = struct.Struct("!I")

_STARTS, _SETTLES, _HAS_OUTCOME, _LOOK_UP = 1, 2, 4, 8


class Told(NamedTuple):
    """A commit that was told; `look_up` says that its outcome is not in it and is in storage."""

    committed: Committed
    look_up: bool = False


def encode(committed: Committed, limit: int) -> bytes:
    """The commit in at most `limit` bytes, where its ids fit in.

    Payloads that are too large together are left out: the sequence number says that there are some,
    and readers read storage. An outcome that is too large is left out and marked.
    """
    task_id, operation_id = committed.task_id.encode(), committed.operation_id.encode()
    payloads, outcome = committed.payloads, committed.outcome
    size = _HEAD.size + len(task_id) + len(operation_id)
    flags = _STARTS * committed.starts | _SETTLES * committed.settles
    parts = [b"", task_id, operation_id]
    if outcome is not None:
        if size + _OUTCOME.size + len(outcome.payload) <= limit:
            flags |= _HAS_OUTCOME
            parts.append(_OUTCOME.pack(outcome.kind, outcome.version, len(outcome.payload)))
            parts.append(outcome.payload)
            size += _OUTCOME.size + len(outcome.payload)
        else:
            flags |= _LOOK_UP
    if payloads and size + sum(map(len, payloads)) + _LENGTH.size * len(payloads) > limit:
        payloads = ()
    for payload in payloads:
        parts.append(_LENGTH.pack(len(payload)))
        parts.append(payload)
    parts[0] = _HEAD.pack(
        _VERSION,
        flags,
        committed.state,
        committed.version,
        committed.sequence,
        len(task_id),
        len(operation_id),
        len(payloads),
    )
    return b"".join(parts)


def decode(data: bytes) -> Told:
    """The commit. Raises ValueError."""
    try:
        return _decode(data)
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a commit: {error}") from error


def _decode(data: bytes) -> Told:
    if data[:1] != bytes((_VERSION,)):
        raise ValueError("a commit in another format")
    head = _HEAD.unpack_from(data)
    _, flags, state, version, sequence, task_length, operation_length, count = head
    at = _HEAD.size

    def take(length: int) -> bytes:
        nonlocal at
        taken = data[at : at + length]
        if len(taken) < length:
            raise ValueError("a commit that was cut off")
        at += length
        return taken

    task_id, operation_id = take(task_length).decode(), take(operation_length).decode()
    outcome = None
    if flags & _HAS_OUTCOME:
        kind, outcome_version, length = _OUTCOME.unpack(take(_OUTCOME.size))
        outcome = Outcome(OutcomeKind(kind), outcome_version, take(length))
    payloads = []
    for _ in range(count):
        (length,) = _LENGTH.unpack(take(_LENGTH.size))
        payloads.append(take(length))
    if at != len(data):
        raise ValueError("a commit with something behind it")
    committed = Committed(
        task_id,
        version,
        sequence,
        state,
        payloads,
        operation_id,
        bool(flags & _STARTS),
        bool(flags & _SETTLES),
        outcome,
    )
    return Told(committed, bool(flags & _LOOK_UP))
