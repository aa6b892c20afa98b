"""Server reflection under both of its names.

grpcio-reflection serves v1alpha; tools ask for v1 first. The messages of both are the same on the
wire, so one servicer answers both, and v1 is described by v1alpha's file with other names. Python's
descriptors do not hold the fields' JSON names, and tools like grpcurl would then print `task_id`
where the protocol's JSON has `taskId`; so the names are put in.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

_NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def reflection_handlers(*services: str) -> list[grpc.GenericRpcHandler]:
    """Handlers that describe the services, health and reflection itself."""
    health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    servicer: Any = reflection.aio.ReflectionServicer([*services, health, *_NAMES], _Pool())
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=_serialize,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in _NAMES
    ]


class _Pool:
    """The default pool, and beside it reflection v1, which another library may add to that."""

    _METHODS = frozenset({"FindFileByName", "FindFileContainingSymbol", "FindMessageTypeByName"})

    def __init__(self) -> None:
        self._default = descriptor_pool.Default()
        self._own = descriptor_pool.DescriptorPool()
        self._own.AddSerializedFile(_reflection_v1().SerializeToString())

    def __getattr__(self, name: str) -> Any:
        find = getattr(self._default, name)
        if name not in self._METHODS:
            return find

        def find_in_both(wanted: str) -> Any:
            try:
                return find(wanted)
            except KeyError:
                return getattr(self._own, name)(wanted)

        return find_in_both


def _reflection_v1() -> FileDescriptorProto:
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    old, new = f"{file.package}.", "grpc.reflection.v1."
    file.name, file.package = "grpc/reflection/v1/reflection.proto", new.rstrip(".")
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(old, new)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new)
            method.output_type = method.output_type.replace(old, new)
    return file


def _serialize(response: reflection_pb2.ServerReflectionResponse) -> bytes:
    if response.HasField("file_descriptor_response"):
        files = response.file_descriptor_response.file_descriptor_proto
        files[:] = [_with_json_names(file) for file in files]
    return response.SerializeToString()


@lru_cache(maxsize=256)
def _with_json_names(serialized: bytes) -> bytes:
    file = FileDescriptorProto.FromString(serialized)
    _name_fields(file.message_type)
    return file.SerializeToString()


def _name_fields(messages: Iterable[DescriptorProto]) -> None:
    for message in messages:
        for field in message.field:
            first, *others = field.name.split("_")
            field.json_name = field.json_name or first + "".join(
                word[:1].upper() + word[1:] for word in others
            )
        _name_fields(message.nested_type)
