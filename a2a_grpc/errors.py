"""The errors of a2a-grpc, one tree for every room.

    A2AError
    ├── TaskNotFoundError                     also: somebody else's, an unknown push configuration
    ├── TaskNotCancelableError
    ├── PushNotificationNotSupportedError
    ├── UnsupportedOperationError
    ├── ContentTypeNotSupportedError
    ├── InvalidAgentResponseError
    ├── ExtendedAgentCardNotConfiguredError
    ├── ExtensionSupportRequiredError
    ├── VersionNotSupportedError
    ├── InvalidParamsError                    names the fields
    ├── UnauthenticatedError
    ├── PermissionDeniedError
    ├── ResourceExhaustedError                may say when to come back
    ├── UnavailableError                      may say when to come back
    ├── InternalError
    └── ServerError                           stands for the error it wraps

The first nine are the specification's (section 3.3.2). How each of them looks on the wire is the
business of `a2a_grpc.wire.status`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


class A2AError(Exception):
    """An error that a caller may see.

    `message` is written for the caller: it names the thing and the remedy and holds no secret.
    `metadata` is additional context, copied into `google.rpc.ErrorInfo.metadata`.
    """

    reason: ClassVar[str] = "INTERNAL"
    default_message: ClassVar[str] = "the operation failed"

    def __init__(
        self, message: str | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.message = message or self.default_message
        self.metadata: dict[str, str] = dict(metadata or {})
        super().__init__(self.message)


class TaskNotFoundError(A2AError):
    """The task does not exist, or not for this caller."""

    reason = "TASK_NOT_FOUND"
    default_message = "the task does not exist"

    @classmethod
    def of(cls, task_id: str) -> TaskNotFoundError:
        """The error for `task_id`."""
        return cls(f"task {task_id!r} does not exist", metadata={"task_id": task_id})


class TaskNotCancelableError(A2AError):
    """The task has already ended."""

    reason = "TASK_NOT_CANCELABLE"
    default_message = "the task has already ended"


class PushNotificationNotSupportedError(A2AError):
    """The agent's card does not declare push notifications."""

    reason = "PUSH_NOTIFICATION_NOT_SUPPORTED"
    default_message = "this agent does not declare the capability push_notifications in its card"


class UnsupportedOperationError(A2AError):
    """The operation, or this use of it, is not supported."""

    reason = "UNSUPPORTED_OPERATION"
    default_message = "this agent does not support the operation"


class ContentTypeNotSupportedError(A2AError):
    """A part has a media type that the agent does not take."""

    reason = "CONTENT_TYPE_NOT_SUPPORTED"
    default_message = "the agent does not take this media type"


class InvalidAgentResponseError(A2AError):
    """The agent published something that the protocol does not allow."""

    reason = "INVALID_AGENT_RESPONSE"
    default_message = "the agent's response does not conform to the protocol"


class ExtendedAgentCardNotConfiguredError(A2AError):
    """The card promises an extended card, and none is configured."""

    reason = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
    default_message = "this agent has no extended card configured"


class ExtensionSupportRequiredError(A2AError):
    """The card requires an extension that the client did not name."""

    reason = "EXTENSION_SUPPORT_REQUIRED"
    default_message = "this agent requires an extension that the request does not name"


class VersionNotSupportedError(A2AError):
    """The client asked for a protocol version that is not served here."""

    reason = "VERSION_NOT_SUPPORTED"
    default_message = "this protocol version is not supported"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field: its path (`message.parts[0]`) and what would be right."""

    field: str
    description: str


class InvalidParamsError(A2AError):
    """The request has wrong or missing fields."""

    reason = "INVALID_PARAMS"
    default_message = "the request is not valid"

    def __init__(
        self,
        message: str | None = None,
        *,
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.violations = tuple(violations)
        if message is None and self.violations:
            message = "; ".join(f"{v.field}: {v.description}" for v in self.violations)
        super().__init__(message, metadata=metadata)

    @classmethod
    def field(cls, field: str, description: str) -> InvalidParamsError:
        """The error for one field."""
        return cls(violations=(FieldViolation(field, description),))


class UnauthenticatedError(A2AError):
    """No credentials, or bad ones."""

    reason = "UNAUTHENTICATED"
    default_message = "the call carries no valid credentials"


class PermissionDeniedError(A2AError):
    """The caller is known and may not do this."""

    reason = "PERMISSION_DENIED"
    default_message = "the caller is not allowed to do this"


class RetryableError(A2AError):
    """An error that may pass; `retry_after` is in seconds, None where waiting does not help."""

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message, metadata=metadata)


class ResourceExhaustedError(RetryableError):
    """A limit is reached."""

    reason = "RESOURCE_EXHAUSTED"
    default_message = "a limit of this server is reached"


class UnavailableError(RetryableError):
    """The server, or something it depends on, can't serve this now."""

    reason = "UNAVAILABLE"
    default_message = "the server can't serve this call now"


class InternalError(A2AError):
    """Something failed on the server; the log says what."""

    reason = "INTERNAL"
    default_message = "the server failed; its log says why"


class ServerError(A2AError):
    """Stands for the error it wraps, for agents that raise `ServerError(error=...)`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error: A2AError = error if isinstance(error, A2AError) else InternalError()
        super().__init__(self.error.message, metadata=self.error.metadata)


def unwrap(error: A2AError) -> A2AError:
    """The error itself, or the one that a `ServerError` stands for."""
    while isinstance(error, ServerError):
        error = error.error
    return error


def as_a2a_error(error: Exception) -> A2AError | None:
    """The error, unwrapped, if it is one that callers may see; None for any other exception.

    Errors of a2a-sdk, which executors written for it raise, count by their names.
    """
    if isinstance(error, A2AError):
        return unwrap(error)
    for cls in type(error).__mro__:
        if cls.__module__.partition(".")[0] == "a2a" and cls.__name__ in _BY_NAME:
            return _BY_NAME[cls.__name__](str(getattr(error, "message", "")) or None)
    return None


def dump_error(error: A2AError) -> bytes:
    """The error as JSON, to be kept as an operation's outcome."""
    error = unwrap(error)
    kept: dict[str, object] = {
        "reason": error.reason,
        "message": error.message,
        "metadata": error.metadata,
    }
    if isinstance(error, RetryableError):
        kept["retry_after"] = error.retry_after
    if isinstance(error, InvalidParamsError):
        kept["violations"] = [[v.field, v.description] for v in error.violations]
    return json.dumps(kept).encode()


def load_error(data: bytes) -> A2AError:
    """The error that `dump_error` kept."""
    kept = json.loads(data)
    cls = _BY_REASON.get(kept["reason"], InternalError)
    if cls is InvalidParamsError:
        return InvalidParamsError(
            kept["message"],
            violations=[FieldViolation(*violation) for violation in kept["violations"]],
            metadata=kept["metadata"],
        )
    if issubclass(cls, RetryableError):
        return cls(kept["message"], retry_after=kept["retry_after"], metadata=kept["metadata"])
    return cls(kept["message"], metadata=kept["metadata"])


_BY_REASON: dict[str, type[A2AError]] = {
    cls.reason: cls
    for cls in (
        TaskNotFoundError,
        TaskNotCancelableError,
        PushNotificationNotSupportedError,
        UnsupportedOperationError,
        ContentTypeNotSupportedError,
        InvalidAgentResponseError,
        ExtendedAgentCardNotConfiguredError,
        ExtensionSupportRequiredError,
        VersionNotSupportedError,
        InvalidParamsError,
        UnauthenticatedError,
        PermissionDeniedError,
        ResourceExhaustedError,
        UnavailableError,
        InternalError,
    )
}
# JSON-RPC's name for a request that is wrong altogether comes from a2a-sdk's agents, too.
_BY_NAME = {cls.__name__: cls for cls in _BY_REASON.values()} | {
    "InvalidRequestError": InvalidParamsError
}
