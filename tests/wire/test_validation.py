"""The promise of the validator: every wrong field is named by its path, and nothing else fails."""

from __future__ import annotations

import contextlib
import timeit
import tracemalloc
from collections.abc import Callable

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_grpc import pb
from a2a_grpc.errors import FieldViolation, InvalidParamsError
from a2a_grpc.structs import DEEPEST_STRUCT, StructError, check_struct
from a2a_grpc.wire.validation import ValidationLimits, parse, validate

REQUESTS: list[type[Message]] = [
    pb.SendMessageRequest,
    pb.GetTaskRequest,
    pb.ListTasksRequest,
    pb.CancelTaskRequest,
    pb.SubscribeToTaskRequest,
    pb.TaskPushNotificationConfig,
    pb.GetTaskPushNotificationConfigRequest,
    pb.ListTaskPushNotificationConfigsRequest,
    pb.DeleteTaskPushNotificationConfigRequest,
    pb.GetExtendedAgentCardRequest,
]


def a_request(*parts: pb.Part) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(
        message=pb.Message(
            message_id="m-1",
            role=pb.Role.ROLE_USER,
            parts=parts or (pb.Part(text="hello"),),
        )
    )


def nest(value: Value, levels: int, leaf: Value | None = None) -> None:
    """Make `value` a leaf in `levels` Structs; in place, since copies of deep ones fail."""
    for _ in range(levels):
        value = value.struct_value.fields["a"]
    value.CopyFrom(leaf or Value(number_value=1))


def nested(levels: int, leaf: Value | None = None) -> Value:
    value = Value()
    nest(value, levels, leaf)
    return value


def a_deep_request(levels: int) -> pb.SendMessageRequest:
    request = a_request()
    nest(request.message.parts[0].data, levels)
    return request


def violations(message: Message, **how: object) -> dict[str, str]:
    """Path to description of everything that `validate` finds."""
    try:
        validate(message, **how)  # type: ignore[arg-type]
    except InvalidParamsError as error:
        return {v.field: v.description for v in error.violations}
    return {}


def fields(message: Message, **how: object) -> list[str]:
    return list(violations(message, **how))


# --------------------------------------------------------------------------------------------------
# Required fields, from the proto's own annotations


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (pb.SendMessageRequest(), ["message"]),
        (
            pb.SendMessageRequest(message=pb.Message()),
            ["message.message_id", "message.role", "message.parts"],
        ),
        (pb.GetTaskRequest(), ["id"]),
        (pb.ListTasksRequest(), []),
        (pb.CancelTaskRequest(), ["id"]),
        (pb.SubscribeToTaskRequest(), ["id"]),
        (pb.TaskPushNotificationConfig(), ["url"]),
        (pb.GetTaskPushNotificationConfigRequest(), ["task_id", "id"]),
        (pb.ListTaskPushNotificationConfigsRequest(), ["task_id"]),
        (pb.DeleteTaskPushNotificationConfigRequest(), ["task_id", "id"]),
        (pb.GetExtendedAgentCardRequest(), []),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else "",
)
def test_each_request_names_its_missing_fields(message: Message, missing: list[str]) -> None:
    assert sorted(fields(message)) == sorted(missing)


def test_required_fields_are_checked_in_messages_inside_the_request() -> None:
    request = a_request()
    request.configuration.task_push_notification_config.authentication.credentials = "secret"
    assert fields(request) == [
        "configuration.task_push_notification_config.url",
        "configuration.task_push_notification_config.authentication.scheme",
    ]


def test_required_maps_and_lists_need_an_entry_and_entries_are_checked() -> None:
    card = pb.AgentCard(name="n", description="d", version="1", capabilities=pb.AgentCapabilities())
    card.default_input_modes.append("text/plain")
    card.default_output_modes.append("text/plain")
    card.skills.add(id="s", name="n", description="d", tags=["t"])
    card.security_schemes["key"].api_key_security_scheme.name = "X-Key"
    assert fields(card) == [
        "supported_interfaces",
        "security_schemes.key.api_key_security_scheme.location",
    ]


def test_a_use_of_a_message_may_require_more_than_the_proto_says() -> None:
    config = pb.TaskPushNotificationConfig(url="https://example.com/hook")
    assert fields(config) == []
    assert violations(config, also_required=("task_id",)) == {"task_id": "is required"}
    assert fields(config, also_required=("authentication",)) == ["authentication"]
    config.task_id = "t-1"
    assert fields(config, also_required=("task_id",)) == []


def test_a_response_is_valid_though_its_required_numbers_are_zero() -> None:
    response = pb.ListTasksResponse(next_page_token="x")
    response.tasks.add(id="t", status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_WORKING))
    assert fields(response) == []


def test_all_violations_are_reported_at_once() -> None:
    request = a_request(pb.Part(), pb.Part(text="fine"), pb.Part(url=""))
    request.message.message_id = ""
    request.message.role = 7  # type: ignore[assignment]
    request.message.reference_task_ids.extend(["t-1", ""])
    request.message.metadata["x"] = float("nan")
    request.configuration.history_length = -1
    assert sorted(fields(request)) == [
        "configuration.history_length",
        "message.message_id",
        "message.metadata",
        "message.parts[0]",
        "message.parts[2].url",
        "message.reference_task_ids[1]",
        "message.role",
    ]


def test_the_message_of_the_error_stays_short_however_much_is_wrong() -> None:
    with pytest.raises(InvalidParamsError) as caught:
        validate(a_request(*(pb.Part() for _ in range(1000))))
    assert len(caught.value.violations) == 1000
    assert "message.parts[0]" in str(caught.value)
    assert "and 992 more" in str(caught.value)
    assert len(str(caught.value)) < 1000


# --------------------------------------------------------------------------------------------------
# Parts


@pytest.mark.parametrize(
    "part",
    [
        pb.Part(text=""),
        pb.Part(raw=b""),
        pb.Part(url="https://example.com/a.png"),
        pb.Part(data=Value(null_value=0)),  # type: ignore[arg-type]
        pb.Part(data=Value(list_value=ListValue())),
    ],
    ids=["empty text", "empty raw", "url", "null", "empty list"],
)
def test_a_part_with_content_is_valid_even_when_the_content_is_empty(part: pb.Part) -> None:
    assert fields(a_request(part)) == []


def test_a_part_without_content_is_named_and_told_its_choices() -> None:
    found = violations(a_request(pb.Part(text="a"), pb.Part(filename="b.txt")))
    assert found == {"message.parts[1]": "needs content: one of text, raw, url, data"}


def test_an_empty_url_is_no_content() -> None:
    assert fields(a_request(pb.Part(url=""))) == ["message.parts[0].url"]


def test_a_message_has_a_limited_number_of_parts() -> None:
    few = ValidationLimits(parts=2)
    assert fields(a_request(*[pb.Part(text="a")] * 2), limits=few) == []
    # Too many are refused as a whole: no walk through what nobody wants.
    assert fields(a_request(*[pb.Part()] * 3), limits=few) == ["message.parts"]
    assert fields(a_request(*[pb.Part(text="a")] * 1000)) == []
    assert fields(a_request(*[pb.Part(text="a")] * 1001)) == ["message.parts"]


def test_the_other_lists_of_a_request_are_limited_too() -> None:
    request = a_request()
    request.message.extensions.extend(["https://example.com/e"] * 1001)
    request.message.reference_task_ids.extend(["t"] * 1001)
    request.configuration.accepted_output_modes.extend(["text/plain"] * 1001)
    assert sorted(fields(request)) == [
        "configuration.accepted_output_modes",
        "message.extensions",
        "message.reference_task_ids",
    ]


# --------------------------------------------------------------------------------------------------
# Enums and numbers


def test_unknown_and_unspecified_roles_are_refused() -> None:
    for number in (0, 3, -1):
        request = a_request()
        request.message.role = number  # type: ignore[assignment]
        found = violations(request)
        assert list(found) == ["message.role"]
        assert "ROLE_USER, ROLE_AGENT" in found["message.role"]


def test_an_unknown_state_is_refused_and_no_state_lists_all() -> None:
    assert fields(pb.ListTasksRequest()) == []
    assert fields(pb.ListTasksRequest(status=pb.TaskState.TASK_STATE_WORKING)) == []
    assert fields(pb.ListTasksRequest(status=99)) == ["status"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (pb.GetTaskRequest(id="t"), []),
        (pb.GetTaskRequest(id="t", history_length=0), []),
        (pb.GetTaskRequest(id="t", history_length=-1), ["history_length"]),
        (pb.ListTasksRequest(history_length=0), []),
        (pb.ListTasksRequest(history_length=-5), ["history_length"]),
        (pb.ListTasksRequest(page_size=0), ["page_size"]),
        (pb.ListTasksRequest(page_size=1), []),
        (pb.ListTasksRequest(page_size=100), []),
        (pb.ListTasksRequest(page_size=101), ["page_size"]),
        (pb.ListTasksRequest(page_size=-1), ["page_size"]),
        (pb.ListTaskPushNotificationConfigsRequest(task_id="t", page_size=0), []),
        (pb.ListTaskPushNotificationConfigsRequest(task_id="t", page_size=100), []),
        (pb.ListTaskPushNotificationConfigsRequest(task_id="t", page_size=101), ["page_size"]),
        (pb.ListTaskPushNotificationConfigsRequest(task_id="t", page_size=-1), ["page_size"]),
    ],
    ids=lambda value: str(value).replace("\n", " ") if isinstance(value, Message) else "",
)
def test_numbers_are_in_range(message: Message, wrong: list[str]) -> None:
    assert fields(message) == wrong


def test_negative_history_length_in_the_configuration_is_refused() -> None:
    request = a_request()
    request.configuration.history_length = -1
    assert fields(request) == ["configuration.history_length"]


@pytest.mark.parametrize(
    ("timestamp", "valid"),
    [
        (Timestamp(), True),
        (Timestamp(seconds=-62_135_596_800), True),
        (Timestamp(seconds=253_402_300_799, nanos=999_999_999), True),
        (Timestamp(seconds=-62_135_596_801), False),
        (Timestamp(seconds=253_402_300_800), False),
        (Timestamp(nanos=-1), False),
        (Timestamp(nanos=1_000_000_000), False),
    ],
    ids=lambda value: str(value).replace("\n", " "),
)
def test_malformed_timestamps_are_refused(timestamp: Timestamp, valid: bool) -> None:
    request = pb.ListTasksRequest(status_timestamp_after=timestamp)
    assert fields(request) == ([] if valid else ["status_timestamp_after"])


# --------------------------------------------------------------------------------------------------
# Ids and texts


def test_ids_are_limited_in_length_and_hold_no_control_characters() -> None:
    for bad in ("x" * 257, "a\x00b", "a\nb", "\x7f", "a\x85"):
        request = pb.SendMessageRequest(tenant=bad, message=a_request().message)
        request.message.message_id = bad
        request.message.task_id = bad
        request.message.context_id = bad
        request.message.reference_task_ids.append(bad)
        assert sorted(fields(request)) == [
            "message.context_id",
            "message.message_id",
            "message.reference_task_ids[0]",
            "message.task_id",
            "tenant",
        ]
    assert fields(pb.GetTaskRequest(id="x" * 257)) == ["id"]


def test_ids_are_checked_by_name_in_events_of_agents_too() -> None:
    artifact = pb.Artifact(artifact_id="a\nb", parts=[pb.Part(text="x")])
    event = pb.TaskArtifactUpdateEvent(task_id="\x00", context_id="c", artifact=artifact)
    assert fields(event) == ["task_id", "artifact.artifact_id"]


@pytest.mark.parametrize("good", ["x" * 256, "größe 名", "a/b:c d", "\u00ad\u200b"])
def test_ids_may_hold_any_other_text(good: str) -> None:
    assert fields(pb.GetTaskRequest(id=good, tenant=good)) == []


def test_the_length_of_ids_counts_characters_and_can_be_set() -> None:
    limits = ValidationLimits(id_length=3)
    assert fields(pb.GetTaskRequest(id="名名名"), limits=limits) == []
    assert fields(pb.GetTaskRequest(id="名名名名"), limits=limits) == ["id"]


@pytest.mark.parametrize("bad", ["a\r\nX-Evil: 1", "über", "a\x00"])
def test_what_goes_into_headers_of_a_webhook_is_printable_ascii(bad: str) -> None:
    config = pb.TaskPushNotificationConfig(
        url="https://example.com",
        token=bad,
        authentication=pb.AuthenticationInfo(scheme=bad, credentials=bad),
    )
    assert fields(config) == ["token", "authentication.scheme", "authentication.credentials"]


# --------------------------------------------------------------------------------------------------
# Structs

HOSTILE_VALUES = {
    "without a kind": Value(),
    "NaN": Value(number_value=float("nan")),
    "Infinity": Value(number_value=float("inf")),
    "-Infinity": Value(number_value=float("-inf")),
    "unknown null": Value(null_value=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
@pytest.mark.parametrize("levels", [0, 1, 5])
def test_malformed_values_are_found_at_any_depth(value: Value, levels: int) -> None:
    assert fields(a_request(pb.Part(data=nested(levels, value)))) == ["message.parts[0].data"]
    in_list = Value(list_value=ListValue(values=[Value(bool_value=True), nested(levels, value)]))
    assert fields(a_request(pb.Part(data=in_list))) == ["message.parts[0].data"]


def test_malformed_structs_are_found_wherever_a_request_may_hold_one() -> None:
    bad = Struct(fields={"a": Value()})
    request = a_request(pb.Part(text="x", metadata=bad))
    request.metadata.CopyFrom(bad)
    request.message.metadata.CopyFrom(bad)
    assert sorted(fields(request)) == ["message.metadata", "message.parts[0].metadata", "metadata"]
    assert fields(pb.CancelTaskRequest(id="t", metadata=bad)) == ["metadata"]


def test_a_malformed_value_is_located_inside_its_struct() -> None:
    data = nested(1, Value(list_value=ListValue(values=[Value(bool_value=True), Value()])))
    found = violations(a_request(pb.Part(data=data)))
    assert found == {"message.parts[0].data": 'holds a Value without a kind (at ["a"][1])'}


def test_the_location_in_a_struct_is_no_way_to_have_a_long_key_repeated() -> None:
    bad = Struct(fields={"k" * 10_000: Value()})
    (description,) = violations(pb.CancelTaskRequest(id="t", metadata=bad)).values()
    assert len(description) < 200


def test_structs_are_limited_in_depth_by_structs_and_lists_alike() -> None:
    assert fields(a_request(pb.Part(data=nested(20)))) == []
    assert fields(a_request(pb.Part(data=nested(21)))) == ["message.parts[0].data"]
    value = Value(number_value=1)
    for _ in range(20):
        value = Value(list_value=ListValue(values=[value]))
    assert fields(a_request(pb.Part(data=value))) == []
    value = Value(list_value=ListValue(values=[value]))
    assert fields(a_request(pb.Part(data=value))) == ["message.parts[0].data"]
    limits = ValidationLimits(struct_depth=1)
    request = pb.CancelTaskRequest(id="t", metadata=nested(2).struct_value)
    assert fields(request, limits=limits) == ["metadata"]
    assert (
        fields(pb.CancelTaskRequest(id="t", metadata=nested(1).struct_value), limits=limits) == []
    )


def test_all_structs_of_a_message_share_one_limit_of_values() -> None:
    def numbers(count: int) -> pb.Part:
        return pb.Part(data=Value(list_value=ListValue(values=[Value(number_value=1)] * count)))

    limits = ValidationLimits(struct_nodes=10)  # the list itself is a value too
    assert fields(a_request(numbers(9)), limits=limits) == []
    assert fields(a_request(numbers(10)), limits=limits) == ["message.parts[0].data"]
    assert fields(a_request(numbers(4), numbers(4)), limits=limits) == []
    assert fields(a_request(numbers(4), numbers(5)), limits=limits) == ["message.parts[1].data"]


def test_metadata_is_limited_in_size() -> None:
    limits = ValidationLimits(metadata_bytes=100)
    small, large = Struct(), Struct()
    small["a"], large["a"] = "x" * 50, "x" * 100
    request = a_request(pb.Part(text="x", metadata=large))
    request.metadata.CopyFrom(large)
    request.message.metadata.CopyFrom(large)
    assert len(fields(request, limits=limits)) == 3
    assert fields(pb.CancelTaskRequest(id="t", metadata=small), limits=limits) == []
    # What a part carries as its content is not metadata.
    assert fields(a_request(pb.Part(data=Value(struct_value=large))), limits=limits) == []


def test_check_struct_counts_values_and_stops_at_whatever_an_agent_built() -> None:
    assert check_struct(Struct(), max_depth=1, max_nodes=0) == 0
    assert check_struct(Value(bool_value=True), max_depth=1, max_nodes=1) == 1
    assert check_struct(nested(3), max_depth=3, max_nodes=4) == 4
    with pytest.raises(StructError, match="too deep"):
        check_struct(nested(3000), max_depth=20, max_nodes=10_000)
    with pytest.raises(StructError, match="too many"):
        check_struct(nested(3), max_depth=3, max_nodes=3)
    with pytest.raises(StructError, match="too many"):
        check_struct(Value(bool_value=True), max_depth=1, max_nodes=0)


# --------------------------------------------------------------------------------------------------
# What is accepted must come back


def places(value: Value) -> list[pb.ListTasksResponse]:
    """`value` in every place where a listed task may hold it, its metadata included."""
    part = pb.Part(data=value)
    with_metadata = pb.Part(text="x")
    if value.WhichOneof("kind") == "struct_value":
        with_metadata.metadata.CopyFrom(value.struct_value)
    message = pb.Message(parts=[part, with_metadata], metadata=with_metadata.metadata)
    tasks = [
        pb.Task(history=[message]),
        pb.Task(status=pb.TaskStatus(message=message)),
        pb.Task(artifacts=[pb.Artifact(parts=[part, with_metadata])]),
        pb.Task(metadata=with_metadata.metadata),
    ]
    return [pb.ListTasksResponse(tasks=[task]) for task in tasks]


@pytest.mark.parametrize("levels", [ValidationLimits().struct_depth, DEEPEST_STRUCT])
def test_a_struct_as_deep_as_accepted_can_be_read_in_every_listed_task(levels: int) -> None:
    request = a_request(pb.Part(data=nested(levels)))
    request.message.metadata.CopyFrom(nested(levels).struct_value)
    received = parse(pb.SendMessageRequest, request.SerializeToString())
    validate(received, ValidationLimits(struct_depth=levels))
    page = pb.ListTasksResponse(tasks=[pb.Task(history=[received.message])])
    for response in (page, *places(nested(levels))):
        assert parse(pb.ListTasksResponse, response.SerializeToString()) == response


def test_a_struct_as_deep_as_accepted_by_default_can_be_read_as_json_too() -> None:
    for response in places(nested(ValidationLimits().struct_depth)):
        text = json_format.MessageToJson(response)
        assert json_format.Parse(text, pb.ListTasksResponse()) == response


def test_one_level_more_than_the_deepest_can_not_be_read_back() -> None:
    # Else DEEPEST_STRUCT would refuse what it need not.
    too_deep = nested(DEEPEST_STRUCT + 1)
    parse(pb.SendMessageRequest, a_request(pb.Part(data=too_deep)).SerializeToString())
    _, in_status, *_ = places(too_deep)
    with pytest.raises(InvalidParamsError):
        parse(pb.ListTasksResponse, in_status.SerializeToString())


def test_limits_that_would_accept_what_nobody_can_read_are_refused() -> None:
    ValidationLimits(struct_depth=DEEPEST_STRUCT)
    for depth in (0, DEEPEST_STRUCT + 1):
        with pytest.raises(ValueError, match="struct_depth"):
            ValidationLimits(struct_depth=depth)


def length_delimited(number: int, data: bytes) -> bytes:
    assert number < 16
    assert 128 <= len(data) < 16384
    return bytes([number << 3 | 2, len(data) & 0x7F | 0x80, len(data) >> 7]) + data


def test_unknown_fields_are_dropped_so_that_they_cannot_make_a_page_unreadable() -> None:
    # Groups in a field that we do not know, as deep as the parser goes.
    group = b"\xbb\x3e" * 98 + b"\xbc\x3e" * 98
    part = pb.Part(text="x").SerializeToString() + group
    message = pb.Message(message_id="m", role=pb.Role.ROLE_USER).SerializeToString()
    data = length_delimited(2, message + length_delimited(5, part))
    kept = pb.SendMessageRequest.FromString(data)
    unreadable = pb.ListTasksResponse(tasks=[pb.Task(history=[kept.message])])
    with pytest.raises(InvalidParamsError):
        parse(pb.ListTasksResponse, unreadable.SerializeToString())

    request = parse(pb.SendMessageRequest, data)
    validate(request)
    page = pb.ListTasksResponse(tasks=[pb.Task(history=[request.message])])
    assert parse(pb.ListTasksResponse, page.SerializeToString()) == page


# --------------------------------------------------------------------------------------------------
# Bytes


@pytest.mark.parametrize(
    ("message_type", "data"),
    [
        (pb.SendMessageRequest, b"\xff\xff\xff"),
        (pb.SendMessageRequest, a_request().SerializeToString()[:-1]),
        (pb.GetTaskRequest, b"\x12\x02\xff\xfe"),
        (pb.SendMessageRequest, a_deep_request(60).SerializeToString()),
    ],
    ids=["no protobuf", "cut short", "no UTF-8", "nested too deep"],
)
def test_bytes_that_are_no_message_are_named_as_the_request(
    message_type: type[Message], data: bytes
) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        parse(message_type, data)
    assert [v.field for v in caught.value.violations] == ["request"]


def test_no_bytes_are_an_empty_message() -> None:
    assert parse(pb.ListTasksRequest, b"") == pb.ListTasksRequest()


def test_a_message_that_is_wrong_as_a_whole_is_named_as_the_request() -> None:
    assert fields(pb.Part()) == ["request"]
    for bad in (Value(), Struct(fields={"a": Value()}), ListValue(values=[Value()])):
        assert fields(bad) == ["request"]


# --------------------------------------------------------------------------------------------------
# Any input

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=256)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
structs = st.dictionaries(texts, json_values, max_size=4).map(
    lambda value: json_format.ParseDict(value, Struct())
)
parts = st.builds(
    pb.Part,
    metadata=st.none() | structs,
    media_type=texts,
    filename=texts,
).flatmap(
    lambda part: st.one_of(
        st.builds(lambda text: with_content(part, text=text), texts),
        st.builds(lambda raw: with_content(part, raw=raw), st.binary(max_size=20)),
        st.builds(lambda url: with_content(part, url=url), texts.filter(bool)),
        st.builds(lambda data: with_content(part, data=data), structs.map(as_value)),
    )
)


def with_content(part: pb.Part, **content: object) -> pb.Part:
    whole = pb.Part(**content)  # type: ignore[arg-type]
    whole.MergeFrom(part)
    return whole


def as_value(struct: Struct) -> Value:
    return Value(struct_value=struct)


valid_requests = st.builds(
    pb.SendMessageRequest,
    tenant=st.just("") | ids,
    message=st.builds(
        pb.Message,
        message_id=ids,
        context_id=st.just("") | ids,
        task_id=st.just("") | ids,
        role=st.sampled_from([pb.Role.ROLE_USER, pb.Role.ROLE_AGENT]),
        parts=st.lists(parts, min_size=1, max_size=4),
        metadata=st.none() | structs,
        extensions=st.lists(texts, max_size=3),
        reference_task_ids=st.lists(ids, max_size=3),
    ),
    configuration=st.none()
    | st.builds(
        pb.SendMessageConfiguration,
        history_length=st.none() | st.integers(0, 2**31 - 1),
        accepted_output_modes=st.lists(texts, max_size=3),
    ),
    metadata=st.none() | structs,
)


@settings(max_examples=200, deadline=None)
@given(valid_requests)
def test_every_valid_message_passes_and_survives_the_wire(request: pb.SendMessageRequest) -> None:
    validate(request)
    received = parse(pb.SendMessageRequest, request.SerializeToString())
    validate(received)
    assert received == request


def accepted_or_explained(message_type: type[Message], data: bytes) -> None:
    found: tuple[FieldViolation, ...] | None = None
    try:
        validate(parse(message_type, data))
    except InvalidParamsError as error:
        found = error.violations
    assert found is None or len(found) > 0


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(REQUESTS), st.binary(max_size=200))
def test_any_bytes_are_either_accepted_or_an_invalid_params_error(
    message_type: type[Message], data: bytes
) -> None:
    accepted_or_explained(message_type, data)


@settings(max_examples=300, deadline=None)
@given(valid_requests, st.data())
def test_any_damage_to_a_valid_message_is_accepted_or_an_invalid_params_error(
    request: pb.SendMessageRequest, data: st.DataObject
) -> None:
    damaged = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    accepted_or_explained(pb.SendMessageRequest, bytes(damaged))


# --------------------------------------------------------------------------------------------------
# Cost


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that Python allocated at once during `run`."""
    run()  # builds what is built once
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "part",
    [
        pb.Part(raw=bytes(16 << 20)),
        pb.Part(text="x" * (16 << 20)),
        pb.Part(data=Value(string_value="x" * (16 << 20))),
        pb.Part(text="x", filename="x" * (16 << 20)),
    ],
    ids=["raw", "text", "data", "filename"],
)
def test_a_large_part_is_never_read(part: pb.Part) -> None:
    request = a_request(part)
    assert peak_bytes(request.SerializeToString) > 16 << 20  # such a read would be seen
    assert peak_bytes(lambda: validate(request)) < 64 << 10


def test_a_large_part_costs_as_much_as_a_small_one() -> None:
    small, large = (a_request(pb.Part(raw=bytes(size))) for size in (1, 16 << 20))

    def cost(request: pb.SendMessageRequest) -> float:
        return min(timeit.repeat(lambda: validate(request), number=100, repeat=5))

    assert cost(large) < 10 * cost(small)  # a single copy of 16 MiB is some 500 times as much


def test_a_struct_of_too_many_values_costs_no_more_than_the_limit() -> None:
    flat, deep = Value(), Value()
    flat.list_value.values.extend([Value(bool_value=True)] * 100_000)
    inner = Value(list_value=ListValue(values=[Value(bool_value=True)] * 90))
    middle = Value(list_value=ListValue(values=[inner] * 90))
    deep.list_value.values.extend([middle] * 12)  # no list in it is longer than the limit

    def cost(value: Value, max_nodes: int) -> float:
        def run() -> None:
            with contextlib.suppress(StructError):
                check_struct(value, max_depth=20, max_nodes=max_nodes)

        return min(timeit.repeat(run, number=1, repeat=5))

    for value in (flat, deep):
        assert cost(value, 100) < cost(value, 1_000_000) / 10
