"""Whether a message conforms to the protocol, as far as the message alone can tell.

One generic check, compiled once per message type from the proto's own descriptors: what
`google.api.field_behavior` marks REQUIRED, enums, timestamps, Structs. What the proto can't say is
in the small tables below. It knows no grpc and no state: whether a task exists is not its business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

from google.api import field_behavior_pb2  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.message import DecodeError, Message

from a2a_grpc.errors import FieldViolation, InvalidParamsError
from a2a_grpc.structs import DEEPEST_STRUCT, StructError, check_struct

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationLimits:
    """How much a request may hold. A violation of any of them is an InvalidParamsError."""

    # Levels of Struct and list. 20 of the 31 possible: the rest is for the envelopes that gateways,
    # other languages' parsers (some count differently) and our own records put around a task.
    struct_depth: int = 20
    struct_nodes: int = 10_000  # values in all Structs of one message together
    id_length: int = 256  # characters of an id or a tenant
    parts: int = 1_000  # parts of one Message
    entries: int = 1_000  # entries of each other list of a request: extensions, references, modes
    metadata_bytes: int = 64 * 1024  # one metadata field, serialized

    def __post_init__(self) -> None:
        if not 0 < self.struct_depth <= DEEPEST_STRUCT:
            raise ValueError(
                f"struct_depth must be between 1 and {DEEPEST_STRUCT}: nobody could read a deeper "
                "Struct once it is part of a listed task"
            )


_DEFAULT_LIMITS = ValidationLimits()


def parse(message_type: type[MessageT], data: bytes) -> MessageT:
    """The message that `data` encodes, without the fields that this version does not know.

    Unknown fields are ignored (specification 5.7), so they are not kept either: they could nest
    nearly as deep as the parser goes and would make every task that quotes the message unreadable.

    Raises InvalidParamsError, naming the field `request`, for bytes that are no such message.
    """
    try:
        message = message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The last two are what the pure Python implementation of protobuf raises.
        name = message_type.DESCRIPTOR.full_name
        raise InvalidParamsError.field(
            "request",
            f"is not a {name}: malformed bytes, text that is not UTF-8, or nested deeper than 100",
        ) from error
    message.DiscardUnknownFields()
    return message


def validate(
    message: Message,
    limits: ValidationLimits = _DEFAULT_LIMITS,
    *,
    also_required: tuple[str, ...] = (),
) -> None:
    """Raises InvalidParamsError with every violation in `message`, each by its path in proto names.

    `also_required` names top-level fields that this use of the message type needs, beyond what the
    proto says: the same TaskPushNotificationConfig is a request, part of a request, and a response.
    """
    walk = _Walk(limits)
    check = _message_check(message.DESCRIPTOR)
    if check is not None:
        check(message, None, walk)
    for name in also_required:
        field = message.DESCRIPTOR.fields_by_name[name]
        if not (message.HasField(name) if field.has_presence else getattr(message, name)):
            walk.add((None, name), _MISSING)
    if walk.violations:
        raise InvalidParamsError(_summary(walk.violations), violations=walk.violations)


def _summary(violations: list[FieldViolation]) -> str:
    text = "; ".join(f"{v.field}: {v.description}" for v in violations[:_SUMMARIZED])
    more = len(violations) - _SUMMARIZED
    return f"{text}; and {more} more" if more > 0 else text


_SUMMARIZED = 8
_MISSING = "is required"

# --------------------------------------------------------------------------------------------------
# What the proto does not say. A rule takes the value of a field that is set, returns what is wrong.

_Rule: TypeAlias = Callable[[Any, ValidationLimits], str | None]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_IN_HEADER = re.compile(r"[^\x20-\x7e]")


def _id(value: str, limits: ValidationLimits) -> str | None:
    if not value:
        return "must not be empty"
    if len(value) > limits.id_length:
        return f"must not be longer than {limits.id_length} characters"
    if not value.isprintable() and _CONTROL.search(value):
        return "must not contain control characters"
    return None


def _not_empty(value: str, _: ValidationLimits) -> str | None:
    return None if value else "must not be empty"


def _header_text(value: str, _: ValidationLimits) -> str | None:
    if _NOT_IN_HEADER.search(value):
        return "must be printable ASCII: it is sent to the webhook in an HTTP header"
    return None


def _not_negative(value: int, _: ValidationLimits) -> str | None:
    return None if value >= 0 else "must not be negative"


def _between(low: int, high: int) -> _Rule:
    def rule(value: int, _: ValidationLimits) -> str | None:
        return None if low <= value <= high else f"must be between {low} and {high}"

    return rule


def _at_most(limit: str) -> _Rule:
    def rule(values: Any, limits: ValidationLimits) -> str | None:
        most: int = getattr(limits, limit)
        return None if len(values) <= most else f"must not have more than {most} entries"

    return rule


def _small(value: Message, limits: ValidationLimits) -> str | None:
    if value.ByteSize() > limits.metadata_bytes:
        return f"must not be larger than {limits.metadata_bytes} bytes"
    return None


_FIELD_RULES: dict[str, _Rule] = {
    "lf.a2a.v1.SendMessageConfiguration.history_length": _not_negative,
    "lf.a2a.v1.SendMessageConfiguration.accepted_output_modes": _at_most("entries"),
    "lf.a2a.v1.GetTaskRequest.history_length": _not_negative,
    "lf.a2a.v1.ListTasksRequest.history_length": _not_negative,
    "lf.a2a.v1.ListTasksRequest.page_size": _between(1, 100),
    # No presence here: 0 is "not set".
    "lf.a2a.v1.ListTaskPushNotificationConfigsRequest.page_size": _between(0, 100),
    "lf.a2a.v1.Message.parts": _at_most("parts"),
    "lf.a2a.v1.Message.extensions": _at_most("entries"),
    "lf.a2a.v1.Message.reference_task_ids": _at_most("entries"),
    "lf.a2a.v1.Part.url": _not_empty,
    "lf.a2a.v1.TaskPushNotificationConfig.token": _header_text,
    "lf.a2a.v1.AuthenticationInfo.scheme": _header_text,
    "lf.a2a.v1.AuthenticationInfo.credentials": _header_text,
}

# By name, in whatever message; for a list, each entry.
_NAME_RULES: dict[str, _Rule] = {
    "id": _id,
    "task_id": _id,
    "context_id": _id,
    "message_id": _id,
    "artifact_id": _id,
    "reference_task_ids": _id,
    "tenant": _id,
    "metadata": _small,
}

_REQUIRED_ONEOFS = frozenset({"lf.a2a.v1.Part.content"})

# --------------------------------------------------------------------------------------------------
# The walk. A check takes a value, where it is, and the walk to report to. Checks are built once per
# message type; a field with nothing to check gets none: its subtree and bytes are never touched.

# Linked backwards, and made into text only for a violation.
_Path: TypeAlias = "tuple[_Path, str | int] | None"


class _Walk:
    """One run over one message."""

    __slots__ = ("limits", "nodes_left", "violations")

    def __init__(self, limits: ValidationLimits) -> None:
        self.limits = limits
        self.nodes_left = limits.struct_nodes
        self.violations: list[FieldViolation] = []

    def add(self, at: _Path, description: str) -> None:
        text = ""
        while at is not None:
            at, step = at
            text = f"[{step}]{text}" if isinstance(step, int) else f".{step}{text}"
        self.violations.append(FieldViolation(text[1:] or "request", description))


_Check: TypeAlias = Callable[[Any, _Path, _Walk], None]


@cache
def _message_check(message_type: Descriptor) -> _Check | None:
    """The check of a message type, None if nothing in it can be wrong.

    A2A has no message type that contains itself, but for Struct, which has a check of its own.
    """
    if message_type.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[message_type.full_name]
    steps = [_oneof_step(o) for o in message_type.oneofs if o.full_name in _REQUIRED_ONEOFS]
    steps += [step for field in message_type.fields if (step := _field_step(field)) is not None]
    if not steps:
        return None

    def check(message: Any, at: _Path, walk: _Walk) -> None:
        for step in steps:
            step(message, at, walk)

    return check


def _oneof_step(oneof: OneofDescriptor) -> _Check:
    name = oneof.name
    missing = f"needs {name}: one of {', '.join(field.name for field in oneof.fields)}"

    def step(message: Any, at: _Path, walk: _Walk) -> None:
        if message.WhichOneof(name) is None:
            walk.add(at, missing)

    return step


def _field_step(field: FieldDescriptor) -> _Check | None:
    """The check of one field of a message; it is called with the message."""
    name = field.name
    missing = _missing(field)
    if _is_map(field):
        assert field.message_type is not None
        entry = _value_check(field.message_type.fields_by_name["value"])
        check = _guarded(_FIELD_RULES.get(field.full_name), entry and _each_value(entry))
    elif field.is_repeated:
        entry = _guarded(_NAME_RULES.get(name), _value_check(field))
        check = _guarded(_FIELD_RULES.get(field.full_name), entry and _each(entry))
    else:
        rule = _FIELD_RULES.get(field.full_name) or _NAME_RULES.get(name)
        check = _guarded(rule, _value_check(field))
    if check is None and missing is None:
        return None

    def step_by_presence(message: Any, at: _Path, walk: _Walk) -> None:
        if message.HasField(name):
            if check is not None:
                check(getattr(message, name), (at, name), walk)
        elif missing is not None:
            walk.add((at, name), missing)

    def step_by_value(message: Any, at: _Path, walk: _Walk) -> None:
        if value := getattr(message, name):
            if check is not None:
                check(value, (at, name), walk)
        elif missing is not None:
            walk.add((at, name), missing)

    return step_by_presence if field.has_presence else step_by_value


def _missing(field: FieldDescriptor) -> str | None:
    """What to say when the field is not set; None if it may be, or if nobody could tell."""
    behaviors = field.GetOptions().Extensions[field_behavior_pb2.field_behavior]
    if field_behavior_pb2.REQUIRED not in behaviors:
        return None
    if field.is_repeated:
        return "needs at least one entry"
    if field.enum_type is not None:
        return f"is required: {_names(field.enum_type)}"
    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return _MISSING if is_text or field.has_presence else None


def _value_check(field: FieldDescriptor) -> _Check | None:
    """The check that the type of the field asks for, of its value or of one entry."""
    if field.message_type is not None:
        return _message_check(field.message_type)
    if field.enum_type is not None:
        return _enum_check(field.enum_type)
    return None


def _enum_check(enum: EnumDescriptor) -> _Check:
    known = frozenset(enum.values_by_number)
    names = _names(enum)

    def check(number: Any, at: _Path, walk: _Walk) -> None:
        if number not in known:
            walk.add(at, f"{number} is no {enum.name}: {names}")

    return check


def _names(enum: EnumDescriptor) -> str:
    return f"one of {', '.join(value.name for value in enum.values if value.number != 0)}"


def _guarded(rule: _Rule | None, check: _Check | None) -> _Check | None:
    """First the rule; the check only for what the rule lets pass."""
    if rule is None:
        return check

    def guarded(value: Any, at: _Path, walk: _Walk) -> None:
        problem = rule(value, walk.limits)
        if problem is not None:
            walk.add(at, problem)
        elif check is not None:
            check(value, at, walk)

    return guarded


def _each(check: _Check) -> _Check:
    def each(values: Any, at: _Path, walk: _Walk) -> None:
        for index, value in enumerate(values):
            check(value, (at, index), walk)

    return each


def _each_value(check: _Check) -> _Check:
    def each(entries: Any, at: _Path, walk: _Walk) -> None:
        for key in entries:
            check(entries[key], (at, str(key)), walk)

    return each


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _check_struct(value: Any, at: _Path, walk: _Walk) -> None:
    limits = walk.limits
    try:
        walk.nodes_left -= check_struct(
            value, max_depth=limits.struct_depth, max_nodes=walk.nodes_left
        )
    except StructError as error:
        walk.add(at, str(error))


def _check_timestamp(value: Any, at: _Path, walk: _Walk) -> None:
    # From 0001-01-01 to 9999-12-31, what RFC 3339 can write (google/protobuf/timestamp.proto).
    if not -62_135_596_800 <= value.seconds <= 253_402_300_799:
        walk.add(at, "seconds must be between the years 1 and 9999")
    elif not 0 <= value.nanos <= 999_999_999:
        walk.add(at, "nanos must be between 0 and 999999999")


_WELL_KNOWN: dict[str, _Check] = {
    "google.protobuf.Struct": _check_struct,
    "google.protobuf.ListValue": _check_struct,
    "google.protobuf.Value": _check_struct,
    "google.protobuf.Timestamp": _check_timestamp,
}
