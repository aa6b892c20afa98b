"""The errors of a2a-grpc as `google.rpc.Status`, and back: the one table between both.

Servers use `to_status` and `abort`, clients `from_rpc_error`. Whatever is no A2AError becomes
INTERNAL with a fixed text: what an exception says is for the server's log, never for the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped, unused-ignore]

from a2a_grpc import errors
from a2a_grpc.errors import A2AError, FieldViolation, InvalidParamsError, RetryableError

MessageT = TypeVar("MessageT", bound=Message)

DOMAIN = "a2a-protocol.org"
DETAILS_KEY = "grpc-status-details-bin"

# The row of an error is that of its nearest ancestor here, which also gives the ErrorInfo.reason.
_CODES: dict[type[A2AError], grpc.StatusCode] = {
    errors.TaskNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.TaskNotCancelableError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PushNotificationNotSupportedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnsupportedOperationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ContentTypeNotSupportedError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidAgentResponseError: grpc.StatusCode.INTERNAL,
    errors.ExtendedAgentCardNotConfiguredError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ExtensionSupportRequiredError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.VersionNotSupportedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidParamsError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.InternalError: grpc.StatusCode.INTERNAL,
    errors.A2AError: grpc.StatusCode.INTERNAL,
}

_BY_REASON = {row.reason: row for row in _CODES if row is not A2AError}

_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# For a status without our ErrorInfo, made by another server, by a proxy or by gRPC itself.
_BY_CODE: dict[grpc.StatusCode, type[A2AError]] = {
    grpc.StatusCode.NOT_FOUND: errors.TaskNotFoundError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidParamsError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidParamsError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.UnsupportedOperationError,
    grpc.StatusCode.UNIMPLEMENTED: errors.UnsupportedOperationError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.DATA_LOSS: errors.InternalError,
}

# A peer refuses trailers above 8 KiB by default, and then nobody sees the error at all. The message
# travels twice (once percent-encoded, up to three times its size) and the details in base64: these
# three keep the sum below 8 KiB at worst. All in bytes.
_MESSAGE_BYTES = 1024
_METADATA_BYTES = 512
_VIOLATIONS_BYTES = 1536
_ENTRY_BYTES = 8  # what protobuf adds to each entry of the last two

_LONGEST_DURATION = 315_576_000_000.0  # seconds, google/protobuf/duration.proto


def to_status(error: BaseException) -> status_pb2.Status:
    """What a caller may know of `error`; never fails, whatever the error holds.

    A CancelledError is not for here: it says nothing to the caller and has to be raised again.
    """
    if isinstance(error, A2AError):
        try:
            return _status(errors.unwrap(error))
        except Exception:
            pass  # a derived class that somebody broke: the call must not end with UNKNOWN for it
    return _status(errors.InternalError())


def _status(error: A2AError) -> status_pb2.Status:
    row = next(cls for cls in type(error).__mro__ if cls in _CODES)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=row.reason, domain=DOMAIN, metadata=_fitting(error.metadata)
        )
    ]
    if isinstance(error, InvalidParamsError) and error.violations:
        details.append(_bad_request(error.violations))
    if isinstance(error, RetryableError) and error.retry_after is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=_duration(error.retry_after)))
    status = status_pb2.Status(
        code=_CODES[row].value[0], message=_text(error.message, _MESSAGE_BYTES)
    )
    for detail in details:
        status.details.add().Pack(detail)
    return status


def _text(value: object, most: int) -> str:
    """At most `most` bytes of UTF-8; lone surrogates, which protobuf refuses, become `?`."""
    data = str(value).encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return data[: most - 3].decode("utf-8", "ignore") + "..."


def _fitting(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries that fit, each whole: half a value would mislead a program."""
    fitting: dict[str, str] = {}
    left = _METADATA_BYTES
    for key, value in metadata.items():
        name, text = (str(x).encode("utf-8", "replace").decode() for x in (key, value))
        size = _ENTRY_BYTES + len(name.encode()) + len(text.encode())
        if size <= left:
            fitting[name] = text
            left -= size
    return fitting


def _bad_request(violations: Sequence[FieldViolation]) -> error_details_pb2.BadRequest:
    bad = error_details_pb2.BadRequest()
    left = _VIOLATIONS_BYTES
    for index, violation in enumerate(violations):
        field, description = _text(violation.field, 256), _text(violation.description, 256)
        left -= _ENTRY_BYTES + len(field.encode()) + len(description.encode())
        if left < 0:
            more = f"and {len(violations) - index} more violations"
            bad.field_violations.add(field="request", description=more)
            break
        bad.field_violations.add(field=field, description=description)
    return bad


def _duration(seconds: float) -> Duration:
    duration = Duration()
    # max() comes first with 0.0, so that a NaN becomes 0.
    duration.FromNanoseconds(int(min(max(0.0, seconds), _LONGEST_DURATION) * 1e9))
    return duration


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """Ends the call with the status of `error`, by the exception that grpc raises for it.

    Trailing metadata that was set before is kept. The caller logs `error` where it has to.
    """
    status = to_status(error)
    trailing: Any = context.trailing_metadata()  # pairs, in more than one type
    await context.abort(
        _BY_NUMBER[status.code],
        status.message,
        (*(trailing or ()), (DETAILS_KEY, status.SerializeToString())),
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> A2AError:
    """The error that the server raised, rebuilt from the details of its status, else from the code.

    A code that says nothing about A2A (CANCELLED, DEADLINE_EXCEEDED, ...) gives a plain A2AError
    with the code's name in its message.
    """
    status = _status_of(error)
    info = _detail(status, error_details_pb2.ErrorInfo)
    cls = _BY_CODE.get(error.code(), A2AError)
    metadata: dict[str, str] = {}
    if info is not None and info.domain == DOMAIN:
        cls = _BY_REASON.get(info.reason, cls)
        metadata.update(info.metadata)
    message = status.message or error.details() or ""
    if issubclass(cls, InvalidParamsError):
        bad = _detail(status, error_details_pb2.BadRequest)
        found = bad.field_violations if bad is not None else ()
        violations = [FieldViolation(v.field, v.description) for v in found]
        return cls(message, violations=violations, metadata=metadata)
    if issubclass(cls, RetryableError):
        retry = _detail(status, error_details_pb2.RetryInfo)
        delay = retry.retry_delay if retry is not None else None
        after = delay.seconds + delay.nanos / 1e9 if delay is not None else None
        return cls(message, retry_after=after, metadata=metadata)
    if cls is A2AError:
        message = f"{error.code().name}: {message}" if message else error.code().name
    return cls(message, metadata=metadata)


def _status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The status in the trailing metadata; an empty one if there is none that can be read."""
    trailing: Any = error.trailing_metadata()  # pairs, in more than one type
    for key, value in trailing or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return _read(status_pb2.Status, value) or status_pb2.Status()
    return status_pb2.Status()


def _detail(status: status_pb2.Status, message_type: type[MessageT]) -> MessageT | None:
    for detail in status.details:
        if detail.Is(message_type.DESCRIPTOR):
            return _read(message_type, detail.value)
    return None


def _read(message_type: type[MessageT], data: bytes) -> MessageT | None:
    try:
        return message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return None
