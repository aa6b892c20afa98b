"""Errors on the wire: each row of the table, the unknown case, and the way back to the error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import (  # type: ignore[import-untyped, unused-ignore]
    code_pb2,
    error_details_pb2,
    status_pb2,
)

from a2a_grpc import errors
from a2a_grpc.errors import A2AError, FieldViolation, InvalidParamsError
from a2a_grpc.wire.status import DETAILS_KEY, DOMAIN, abort, from_rpc_error, to_status

ROWS: dict[type[A2AError], tuple[str, str]] = {
    errors.TaskNotFoundError: ("NOT_FOUND", "TASK_NOT_FOUND"),
    errors.TaskNotCancelableError: ("FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
    errors.PushNotificationNotSupportedError: (
        "FAILED_PRECONDITION",
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    ),
    errors.UnsupportedOperationError: ("FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"),
    errors.ContentTypeNotSupportedError: ("INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
    errors.InvalidAgentResponseError: ("INTERNAL", "INVALID_AGENT_RESPONSE"),
    errors.ExtendedAgentCardNotConfiguredError: (
        "FAILED_PRECONDITION",
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    ),
    errors.ExtensionSupportRequiredError: ("FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED"),
    errors.VersionNotSupportedError: ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
    errors.InvalidParamsError: ("INVALID_ARGUMENT", "INVALID_PARAMS"),
    errors.UnauthenticatedError: ("UNAUTHENTICATED", "UNAUTHENTICATED"),
    errors.PermissionDeniedError: ("PERMISSION_DENIED", "PERMISSION_DENIED"),
    errors.ResourceExhaustedError: ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"),
    errors.UnavailableError: ("UNAVAILABLE", "UNAVAILABLE"),
    errors.InternalError: ("INTERNAL", "INTERNAL"),
}

each_row = pytest.mark.parametrize(
    ("error_type", "code", "reason"),
    [(error_type, *row) for error_type, row in ROWS.items()],
    ids=[error_type.__name__ for error_type in ROWS],
)


def code_of(status: status_pb2.Status) -> str:
    return str(code_pb2.Code.Name(status.code))


def info_of(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


def received(
    error: BaseException | None = None,
    *,
    code: grpc.StatusCode | None = None,
    details: str | None = None,
    trailing: tuple[tuple[str, str | bytes], ...] = (),
) -> grpc.aio.AioRpcError:
    """What a client's call raises, for the status of `error` or for a foreign one."""
    if error is not None:
        status = to_status(error)
        code = next(c for c in grpc.StatusCode if c.value[0] == status.code)
        details = status.message
        trailing = ((DETAILS_KEY, status.SerializeToString()),)
    assert code is not None
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, None)


def every_error_class() -> set[type[A2AError]]:
    found, todo = set[type[A2AError]](), [A2AError]
    while todo:
        new = [cls for cls in todo.pop().__subclasses__() if cls.__module__ == errors.__name__]
        found.update(new)
        todo += new
    return found


# --------------------------------------------------------------------------------------------------
# The table


@each_row
def test_each_error_has_its_code_reason_and_domain(
    error_type: type[A2AError], code: str, reason: str
) -> None:
    status = to_status(error_type("what is wrong", metadata={"task_id": "t-1"}))
    assert code_of(status) == code
    assert status.message == "what is wrong"
    assert len(status.details) == 1
    assert info_of(status) == error_details_pb2.ErrorInfo(
        reason=reason, domain="a2a-protocol.org", metadata={"task_id": "t-1"}
    )


def test_every_error_of_the_tree_has_a_row() -> None:
    assert set(ROWS) == every_error_class() - {errors.ServerError, errors.RetryableError}


@each_row
def test_a_subclass_takes_the_row_of_its_nearest_ancestor(
    error_type: type[A2AError], code: str, reason: str
) -> None:
    derived = type("Derived", (type("Middle", (error_type,), {}),), {"reason": "MINE"})
    status = to_status(derived("text"))
    assert (code_of(status), info_of(status).reason) == (code, reason)


@each_row
def test_a_server_error_looks_like_the_error_it_wraps(
    error_type: type[A2AError], code: str, reason: str
) -> None:
    wrapped = error_type("text", metadata={"k": "v"})
    outer = errors.ServerError(errors.ServerError(wrapped))
    assert to_status(outer) == to_status(wrapped)
    assert code_of(to_status(outer)) == code


def test_an_a2a_error_without_a_row_is_internal_with_its_own_text() -> None:
    for error in (A2AError("text"), errors.RetryableError("text")):
        status = to_status(error)
        assert (code_of(status), status.message) == ("INTERNAL", "text")
        assert info_of(status).reason == "INTERNAL"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        KeyError("secret"),
        TimeoutError("secret"),
        NotImplementedError("secret"),
        ExceptionGroup("secret", [errors.TaskNotFoundError("secret")]),
        KeyboardInterrupt("secret"),
        errors.ServerError(ValueError("secret")),
        errors.ServerError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_exception_is_internal_and_keeps_its_text_to_itself(error: BaseException) -> None:
    status = to_status(error)
    assert code_of(status) == "INTERNAL"
    assert status.message == errors.InternalError.default_message
    assert info_of(status) == error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN)
    assert b"secret" not in status.SerializeToString()


# --------------------------------------------------------------------------------------------------
# Details


def test_invalid_params_name_their_fields() -> None:
    error = InvalidParamsError(
        violations=[FieldViolation("message.parts", "needs an entry"), FieldViolation("id", "x")]
    )
    status = to_status(error)
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert [(v.field, v.description) for v in bad.field_violations] == [
        ("message.parts", "needs an entry"),
        ("id", "x"),
    ]
    assert len(status.details) == 2


@pytest.mark.parametrize("error_type", [errors.ResourceExhaustedError, errors.UnavailableError])
def test_retry_info_only_where_waiting_helps(error_type: type[errors.RetryableError]) -> None:
    assert len(to_status(error_type("text")).details) == 1
    retry = error_details_pb2.RetryInfo()
    assert to_status(error_type("text", retry_after=1.5)).details[1].Unpack(retry)
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 500_000_000)
    assert to_status(error_type("text", retry_after=0)).details[1].Unpack(retry)
    assert retry.retry_delay.ToNanoseconds() == 0


class Broken(errors.TaskNotFoundError):
    def __init__(self) -> None:
        pass  # no message, no metadata


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TaskNotFoundError("lone \ud800 surrogate"), "NOT_FOUND"),
        (errors.TaskNotFoundError("x", metadata={"\ud800": "\ud800"}), "NOT_FOUND"),
        (errors.TaskNotFoundError("x", metadata={"n": 7}), "NOT_FOUND"),  # type: ignore[dict-item]
        (InvalidParamsError.field("\ud800", "\ud800"), "INVALID_ARGUMENT"),
        (errors.UnavailableError(retry_after=float("nan")), "UNAVAILABLE"),
        (errors.UnavailableError(retry_after=float("inf")), "UNAVAILABLE"),
        (errors.UnavailableError(retry_after=-1), "UNAVAILABLE"),
        (Broken(), "INTERNAL"),
    ],
    ids=str,
)
def test_no_error_is_too_odd_for_a_status(error: A2AError, code: str) -> None:
    status = to_status(error)
    assert code_of(status) == code
    assert status_pb2.Status.FromString(status.SerializeToString()) == status


def test_metadata_that_does_not_fit_is_left_out_whole() -> None:
    status = to_status(errors.TaskNotFoundError("x", metadata={"long": "y" * 600, "task_id": "t"}))
    assert dict(info_of(status).metadata) == {"task_id": "t"}


# --------------------------------------------------------------------------------------------------
# The way back


@each_row
def test_a_client_gets_the_error_that_the_server_raised(
    error_type: type[A2AError], code: str, reason: str
) -> None:
    error = from_rpc_error(received(error_type("what is wrong", metadata={"k": "v"})))
    assert type(error) is error_type
    assert (error.message, error.metadata) == ("what is wrong", {"k": "v"})


def test_violations_and_retry_after_come_back() -> None:
    violations = (FieldViolation("message.parts[0]", "needs content"), FieldViolation("id", "x"))
    invalid = from_rpc_error(received(InvalidParamsError(violations=violations)))
    assert isinstance(invalid, InvalidParamsError)
    assert invalid.violations == violations
    for retry_after in (None, 0.0, 2.25):
        error = errors.ResourceExhaustedError("later", retry_after=retry_after)
        exhausted = from_rpc_error(received(error))
        assert isinstance(exhausted, errors.ResourceExhaustedError)
        assert exhausted.retry_after == retry_after


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        (grpc.StatusCode.NOT_FOUND, errors.TaskNotFoundError),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidParamsError),
        (grpc.StatusCode.OUT_OF_RANGE, errors.InvalidParamsError),
        (grpc.StatusCode.FAILED_PRECONDITION, errors.UnsupportedOperationError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.UnsupportedOperationError),
        (grpc.StatusCode.UNAUTHENTICATED, errors.UnauthenticatedError),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDeniedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ResourceExhaustedError),
        (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
        (grpc.StatusCode.INTERNAL, errors.InternalError),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
        (grpc.StatusCode.DATA_LOSS, errors.InternalError),
    ],
)
def test_without_details_the_code_decides(
    code: grpc.StatusCode, error_type: type[A2AError]
) -> None:
    error = from_rpc_error(received(code=code, details="text"))
    assert type(error) is error_type
    assert error.message == "text"


def test_a_code_that_says_nothing_about_a2a_is_named() -> None:
    error = from_rpc_error(received(code=grpc.StatusCode.DEADLINE_EXCEEDED, details="too late"))
    assert (type(error), error.message) == (A2AError, "DEADLINE_EXCEEDED: too late")
    error = from_rpc_error(received(code=grpc.StatusCode.CANCELLED))
    assert (type(error), error.message) == (A2AError, "CANCELLED")


def test_details_of_others_do_not_mislead() -> None:
    status = status_pb2.Status(code=code_pb2.NOT_FOUND, message="text")
    foreign = error_details_pb2.ErrorInfo(reason="TASK_NOT_CANCELABLE", domain="example.com")
    status.details.add().Pack(foreign)
    trailing = ((DETAILS_KEY, status.SerializeToString()),)
    error = from_rpc_error(received(code=grpc.StatusCode.NOT_FOUND, trailing=trailing))
    assert type(error) is errors.TaskNotFoundError


def test_an_unknown_reason_of_our_domain_falls_back_on_the_code() -> None:
    status = status_pb2.Status(code=code_pb2.NOT_FOUND, message="text")
    new = error_details_pb2.ErrorInfo(reason="NEWER", domain=DOMAIN, metadata={"k": "v"})
    status.details.add().Pack(new)
    trailing = ((DETAILS_KEY, status.SerializeToString()),)
    error = from_rpc_error(received(code=grpc.StatusCode.NOT_FOUND, trailing=trailing))
    assert (type(error), error.metadata) == (errors.TaskNotFoundError, {"k": "v"})


def test_unreadable_details_are_as_good_as_none() -> None:
    status = status_pb2.Status(code=code_pb2.NOT_FOUND)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="TASK_NOT_FOUND", domain=DOMAIN))
    status.details[0].value = b"\xff\xff"
    for broken in (b"\xff\xff", status.SerializeToString()):
        trailing = ((DETAILS_KEY, broken),)
        call = received(code=grpc.StatusCode.NOT_FOUND, details="text", trailing=trailing)
        error = from_rpc_error(call)
        assert (type(error), error.message) == (errors.TaskNotFoundError, "text")


# --------------------------------------------------------------------------------------------------
# Over a real channel

Behavior = Callable[[grpc.aio.ServicerContext[bytes, bytes]], Awaitable[object]]


@asynccontextmanager
async def calling(behavior: Behavior) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """A client's call of a server that does `behavior`."""

    async def handle(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await behavior(context)
        return b""

    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Do": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.S", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/test.S/Do", None, None)
            yield lambda: call(b"")
    finally:
        await server.stop(None)


async def failure(behavior: Behavior) -> grpc.aio.AioRpcError:
    async with calling(behavior) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call()
        return caught.value


@pytest.mark.asyncio
async def test_abort_sends_code_message_and_details() -> None:
    sent = InvalidParamsError.field("message.größe", "needs content,\nor 100% less")
    error = await failure(lambda context: abort(context, sent))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == sent.message
    back = from_rpc_error(error)
    assert isinstance(back, InvalidParamsError)
    assert back.violations == sent.violations


@pytest.mark.asyncio
async def test_abort_keeps_the_trailing_metadata_that_was_set_before() -> None:
    async def behavior(context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        context.set_trailing_metadata((("a2a-extensions", "https://example.com/e"),))
        await abort(context, errors.TaskNotFoundError.of("t-1"))

    error = await failure(behavior)
    trailing: Any = error.trailing_metadata()
    assert dict(trailing)["a2a-extensions"] == "https://example.com/e"
    assert type(from_rpc_error(error)) is errors.TaskNotFoundError


@pytest.mark.asyncio
async def test_abort_hides_an_exception_of_the_agent() -> None:
    error = await failure(lambda context: abort(context, ValueError("secret")))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in repr((error.details(), list(error.trailing_metadata())))


@pytest.mark.asyncio
@pytest.mark.parametrize("letter", ["x", "名"], ids=["ascii", "percent-encoded"])
@pytest.mark.parametrize("size", [0, 30], ids=["empty violations", "long violations"])
async def test_the_largest_error_still_reaches_a_client_with_default_limits(
    letter: str, size: int
) -> None:
    violation = FieldViolation(letter * size, letter * size)
    long = letter * 5000
    sent = InvalidParamsError(
        long,
        violations=[FieldViolation(long, long), *[violation] * 5000],
        metadata={"task_id": letter * 160, **{str(n): "" for n in range(1000)}},
    )
    error = await failure(lambda context: abort(context, sent))
    back = from_rpc_error(error)
    assert isinstance(back, InvalidParamsError)
    assert back.message.startswith(letter)
    assert back.violations[0].field.startswith(letter)
    last = back.violations[-1]
    assert last.field == "request"
    assert last.description == f"and {5001 - (len(back.violations) - 1)} more violations"
    assert len(to_status(sent).SerializeToString()) < 4096
