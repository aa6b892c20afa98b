"""Our schema says what the public A2A 1.0 contract says: no fact missing, none extra."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

import pytest
from google.api import (  # type: ignore[import-untyped, unused-ignore]
    annotations_pb2,
    client_pb2,
    field_behavior_pb2,
    http_pb2,
)
from google.protobuf import json_format, message
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FieldOptions,
    FileDescriptorProto,
    MethodDescriptorProto,
)
from google.protobuf.unknown_fields import UnknownFieldSet

from a2a_grpc import pb
from tests.environments import ROOT, run

Facts = dict[str, Any]

CONTRACT: Facts = json.loads((ROOT / "tests/data/a2a_v1_wire.json").read_text(encoding="utf-8"))
MESSAGES: dict[str, Facts] = {facts["name"]: facts for facts in CONTRACT["messages"]}
ENUMS: dict[str, Facts] = {facts["name"]: facts for facts in CONTRACT["enums"]}
METHODS: dict[str, Facts] = {facts["name"]: facts for facts in CONTRACT["service"]["methods"]}


@cache
def schema() -> FileDescriptorProto:
    """The generated code's descriptor, from a process of its own, since this one may have chosen
    the classes of a2a-sdk."""
    code = "from a2a_grpc_pb import a2a_pb2; print(a2a_pb2.DESCRIPTOR.serialized_pb.hex())"
    return FileDescriptorProto.FromString(bytes.fromhex(run(sys.executable, code)))


def set_fields(options: message.Message) -> set[str]:
    """The names of all fields and extensions that are set."""
    assert not len(UnknownFieldSet(options)), "an option of an extension that is not imported here"
    return {f.full_name if f.is_extension else f.name for f, _ in options.ListFields()}


def name_of(value: str) -> str:
    return value.removeprefix(".")


def map_entries(owner: DescriptorProto) -> dict[str, DescriptorProto]:
    prefix = f".{schema().package}.{owner.name}."
    for nested in owner.nested_type:
        assert set_fields(nested.options) == {"map_entry"}, "only maps make nested messages here"
    return {prefix + nested.name: nested for nested in owner.nested_type}


def type_of(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    if field.type_name in entries:
        key, value = entries[field.type_name].field
        return f"map<{type_of(key, {})}, {type_of(value, {})}>"
    if field.type_name:
        return name_of(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def field_facts(field: FieldDescriptorProto, owner: DescriptorProto) -> Facts:
    entries = map_entries(owner)
    facts: Facts = {"number": field.number, "name": field.name, "type": type_of(field, entries)}
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        if field.type_name not in entries:
            facts["label"] = "repeated"
    elif field.proto3_optional:
        facts["label"] = "optional"
    elif field.HasField("oneof_index"):
        facts["oneof"] = owner.oneof_decl[field.oneof_index].name
    if field.options.deprecated:
        facts["deprecated"] = True
    behaviors = field.options.Extensions[field_behavior_pb2.field_behavior]
    if behaviors:
        (behavior,) = behaviors
        facts["field_behavior"] = field_behavior_pb2.FieldBehavior.Name(behavior)
    assert set_fields(field.options) <= {"deprecated", "google.api.field_behavior"}
    assert not field.HasField("default_value")
    assert not field.HasField("extendee")
    return facts


def message_facts(descriptor: DescriptorProto) -> Facts:
    others = {"name", "field", "nested_type", "oneof_decl"}
    assert set_fields(descriptor) <= others, "nothing reserved, no options, no enums inside"
    return {
        "name": f"{schema().package}.{descriptor.name}",
        "fields": [field_facts(field, descriptor) for field in descriptor.field],
    }


def rule_facts(rule: http_pb2.HttpRule) -> Facts:
    facts: Facts = json_format.MessageToDict(rule, preserving_proto_field_name=True)
    return facts


def method_facts(method: MethodDescriptorProto) -> Facts:
    assert set_fields(method.options) <= {"google.api.http", "google.api.method_signature"}
    assert not method.client_streaming
    return {
        "name": method.name,
        "input": name_of(method.input_type),
        "output": name_of(method.output_type),
        "server_streaming": method.server_streaming,
        "http": rule_facts(method.options.Extensions[annotations_pb2.http]),
        "method_signature": list(method.options.Extensions[client_pb2.method_signature]),
    }


def test_the_file_says_what_the_contract_says() -> None:
    file = schema()
    assert file.syntax == CONTRACT["syntax"]
    assert file.package == CONTRACT["package"]
    assert list(file.dependency) == CONTRACT["imports"]
    assert not file.public_dependency
    assert not file.extension
    options = {field.name: value for field, value in file.options.ListFields()}
    assert options == CONTRACT["file_options"]


def test_there_are_these_messages_enums_and_methods_and_no_others() -> None:
    file = schema()
    (service,) = file.service
    assert f"{file.package}.{service.name}" == CONTRACT["service"]["name"]
    assert not set_fields(service.options)
    assert {f"{file.package}.{found.name}" for found in file.message_type} == MESSAGES.keys()
    assert {f"{file.package}.{found.name}" for found in file.enum_type} == ENUMS.keys()
    assert {found.name for found in service.method} == METHODS.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_these_fields_in_this_order(name: str) -> None:
    found = {f"{schema().package}.{facts.name}": facts for facts in schema().message_type}
    assert message_facts(found[name]) == MESSAGES[name]


@pytest.mark.parametrize("name", ENUMS)
def test_an_enum_has_these_values_in_this_order(name: str) -> None:
    (enum,) = (enum for enum in schema().enum_type if name.endswith(f".{enum.name}"))
    assert set_fields(enum) == {"name", "value"}
    assert not any(set_fields(value.options) for value in enum.value)
    values = [(value.name, value.number) for value in enum.value]
    assert values == list(ENUMS[name]["values"].items())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_these_types_and_http_rules(name: str) -> None:
    (method,) = (method for method in schema().service[0].method if method.name == name)
    assert method_facts(method) == METHODS[name]


def test_json_names_are_the_usual_ones() -> None:
    for descriptor in schema().message_type:
        for field in descriptor.field:
            first, *rest = field.name.split("_")
            assert field.json_name in ("", first + "".join(word.capitalize() for word in rest))


def test_options_are_known_to_this_test() -> None:
    """Those of an extension that is not imported above would otherwise go unseen."""
    unknown = FieldOptions.FromString(b"\x80\x7d\x01")  # field 2000, which nobody has defined
    with pytest.raises(AssertionError, match="not imported"):
        set_fields(unknown)


def test_the_door_offers_every_message_and_enum_of_the_contract_and_the_service() -> None:
    stubs = {"A2AServiceServicer", "A2AServiceStub", "add_A2AServiceServicer_to_server"}
    stubs |= {"DiscoveryServicer", "DiscoveryStub", "add_DiscoveryServicer_to_server"}
    names = {name.rpartition(".")[2]: name for name in (*MESSAGES, *ENUMS)}
    assert set(pb.__all__) == names.keys() | stubs | {"DESCRIPTOR", "GetAgentCardRequest"}
    assert set(pb.MESSAGE_NAMES) == names.keys()
    assert all(hasattr(pb, name) for name in pb.__all__)
    assert all(getattr(pb, name).DESCRIPTOR.full_name == full for name, full in names.items())
    assert pb.DESCRIPTOR.package == CONTRACT["package"]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_classes_of_this_process_have_the_same_fields(name: str) -> None:
    """Whichever set pb has chosen."""
    descriptor = DescriptorProto()
    getattr(pb, name.rpartition(".")[2]).DESCRIPTOR.CopyToProto(descriptor)
    assert message_facts(descriptor) == MESSAGES[name]
