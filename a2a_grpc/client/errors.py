"""What a client raises beyond the errors that a server sends, and how a gRPC failure becomes one.

A2AError
├── UnavailableError
│   ├── StreamInterruptedError     a stream broke and could not be taken up again
│   └── ClientClosedError          the client was closed under an open call
├── DeadlineExceededError          also a TimeoutError
├── NotAnA2AServerError            whatever answers there, it is no A2A agent over gRPC
└── AgentCardError                 a card that can't be had or used
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from a2a_grpc.errors import (
    A2AError,
    InternalError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedOperationError,
)
from a2a_grpc.wire.status import from_rpc_error


class StreamInterruptedError(UnavailableError):
    """A stream broke and was not taken up again; the task itself goes on.

    `task_id` and `sequence` say where: `client.subscribe(task_id, last_sequence=sequence)` goes on
    from there at a server that numbers its events; a `sequence` of 0 means that this one does not.
    `why` is the reason alone.
    """

    default_message = "the stream broke and could not be taken up again"

    def __init__(
        self,
        message: str | None = None,
        *,
        task_id: str = "",
        sequence: int = 0,
        why: str = "",
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after, metadata=metadata)
        self.task_id = task_id
        self.sequence = sequence
        self.why = why


class ClientClosedError(UnavailableError):
    """The client was closed while the call was open; the task, if any, goes on."""

    default_message = "the client was closed while the call was open"


class DeadlineExceededError(A2AError, TimeoutError):
    """The call's timeout passed before there was an answer; the task, if any, goes on."""

    reason = "DEADLINE_EXCEEDED"
    default_message = "the timeout of the call passed before there was an answer"


class NotAnA2AServerError(A2AError):
    """Whatever answers at this address does not speak A2A 1.0 over gRPC."""

    reason = "NOT_AN_A2A_SERVER"
    default_message = "this is not the address of an A2A agent over gRPC"


class AgentCardError(A2AError):
    """The agent's card can't be read, or offers no way to call the agent over gRPC."""

    reason = "AGENT_CARD"
    default_message = "the agent's card can't be used"


# What gRPC writes when a call did not find a connection, so that nothing of it was sent.
_NOT_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

# Connection failures that no repetition mends, and what does.
_UNTRUSTED = "its certificate is not trusted; give ClientTLS(root_certificates=...)"
_REMEDIES = {
    "WRONG_VERSION_NUMBER": "the server speaks plaintext there; use grpc:// or tls=False",
    "CERTIFICATE_VERIFY_FAILED": _UNTRUSTED,
    "certificate signature failure": _UNTRUSTED,
    "CERTIFICATE_REQUIRED": (
        "it wants a certificate of the client; give ClientTLS(certificate=..., private_key=...)"
    ),
    "Hostname Verification Check failed": (
        "its certificate is for another name; use that name, or ClientTLS(server_name=...)"
    ),
}

# Those that a repetition may mend, in words.
_EXPLAINED = {
    "Connection refused": "nothing listens there; is the server running?",
    "DNS resolution failed": "nobody knows that name",
}

# What HTTP servers that are no gRPC servers make of a call.
_HTTP_1 = ("Trying to connect an http1.x server", "Expected SETTINGS frame as the first frame")
_HTTP_2 = "Received http2 header with status"  # a proxy's 502 and 503 are UNAVAILABLE


def was_never_sent(failure: grpc.aio.AioRpcError, channel: grpc.aio.Channel, address: str) -> bool:
    """Whether the call provably did not leave this machine.

    gRPC tells by its text alone, which a proxy might have sent about a server behind it. But then
    we are connected, and the text names another address. On a busy machine we may be connected by
    now, though we were not when the call failed; then our own address in the text decides.
    """
    details = failure.details() or ""
    is_connected = channel.get_state() is grpc.ChannelConnectivity.READY
    return details.startswith(_NOT_CONNECTED) and (
        not is_connected or f" ipv4:{address}: " in details
    )


def is_connection_loss(failure: grpc.aio.AioRpcError) -> bool:
    """Whether a stream ended because the way there broke, and not because the server said so."""
    code, details = failure.code(), failure.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return True
    if code is grpc.StatusCode.CANCELLED:
        return True  # by the server's process or a proxy: our own never gets here
    # A proxy that resets the stream (RST_STREAM), or ends it without a status.
    return (code is grpc.StatusCode.INTERNAL and "RST_STREAM" in details) or (
        code is grpc.StatusCode.UNKNOWN and "Stream removed" in details
    )


def is_worth_repeating(error: A2AError) -> bool:
    """Whether a server may answer the next time: UNAVAILABLE, or RESOURCE_EXHAUSTED with a time."""
    if isinstance(error, ResourceExhaustedError):
        return error.retry_after is not None
    return isinstance(error, UnavailableError) and not any(
        text in error.message for text in _REMEDIES
    )


def error_of(failure: grpc.aio.AioRpcError, method: str, address: str) -> A2AError:
    """The error of `a2a_grpc.errors` that a failed call stands for."""
    code, details = failure.code(), failure.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{method}: no answer from {address} within the timeout")
    if code is grpc.StatusCode.CANCELLED and not _has_status(failure):
        # Our own cancellation never gets here: it is the end of the server's process, or a proxy's.
        return UnavailableError(f"{method}: {address} ended the call; it may be stopping")
    if any(text in details for text in _HTTP_1) or (
        _HTTP_2 in details and code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN)
    ):
        return NotAnA2AServerError(
            f"{address} is no gRPC server ({details}); use the address of the agent's gRPC port"
        )
    error = from_rpc_error(failure)
    if code is grpc.StatusCode.UNIMPLEMENTED and not _has_status(failure):
        if details.startswith("Method not implemented"):
            return UnsupportedOperationError(f"{address} does not implement {method}")
        return NotAnA2AServerError(
            f"{address} does not know lf.a2a.v1.A2AService/{method} ({details}); it is no A2A 1.0 "
            "agent over gRPC: use the address of the agent's gRPC port"
        )
    if isinstance(error, UnavailableError) and not _has_status(failure):
        remedy = next(
            (text for key, text in (_REMEDIES | _EXPLAINED).items() if key in details), ""
        )
        return UnavailableError(
            f"{address} can't be reached: {remedy or details}" + (f" ({details})" if remedy else "")
        )
    if type(error) is InternalError and not _has_status(failure):
        return InternalError(f"{method} at {address} failed: {code.name}: {details}")
    return error


def _has_status(failure: grpc.aio.AioRpcError) -> bool:
    """Whether the server, and not gRPC or a proxy, made the status."""
    trailing = failure.trailing_metadata() or ()
    return any(key == "grpc-status-details-bin" for key, _ in trailing)
