"""One process, one set of A2A classes: with a2a-sdk and without, on protobuf 6 and 7.

Each test runs real code in a process of its own, in an environment with the packages it names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.environments import ROOT, dependencies, environment, run

# Environments are made on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

NEWEST = {
    "grpcio": "1.85.1",
    "protobuf": "7.36.2",
    "grpcio-health-checking": "1.85.1",
    "grpcio-reflection": "1.85.1",
    "grpcio-status": "1.85.1",
    "googleapis-common-protos": "1.76.0",
}


def lowest() -> dict[str, str]:
    """The floors that pyproject.toml promises, of the packages that have to fit together."""
    found = (re.match(r"([\w-]+)\s*>=\s*([\w.]+)", requirement) for requirement in dependencies())
    floors = {match[1].lower(): match[2] for match in found if match}
    assert {"grpcio", "protobuf"} <= floors.keys(), "pyproject.toml names no floors"
    return {name: floors[name] for name in NEWEST if name in floors}


def newest() -> dict[str, str]:
    return {name: NEWEST[name] for name in lowest()}


def python(name: str) -> Path:
    """The Python of one of the environments; each also has what the package itself needs."""
    match name:
        case "lowest":
            pins = lowest()
        case "newest":
            pins = newest()
        case "lowest-sdk":
            pins = {**lowest(), "a2a-sdk": "1.0.0"}
        case "newest-sdk":
            pins = {**newest(), "a2a-sdk": "1.3.0"}
        case "old-sdk":
            pins = {**newest(), "a2a-sdk": "0.3.26"}
        case _:
            raise ValueError(name)
    exact = [f"{package}=={version}" for package, version in pins.items()]
    return environment(name, [*dependencies(), *exact])


OURS = """
from a2a_grpc import pb
assert pb.DESCRIPTOR.name == "a2a_grpc_pb/a2a.proto", pb.DESCRIPTOR.name
"""

EXCHANGE = """
import a2a.types
from a2a.types import a2a_pb2
from a2a_grpc_pb import a2a_pb2 as ours

assert all(getattr(pb, name) is getattr(a2a_pb2, name) for name in pb.MESSAGE_NAMES)
assert pb.Task is a2a.types.Task is ours.Task

task = a2a.types.Task(id="t1", status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_WORKING))
task.history.append(pb.Message(message_id="m1", role=a2a.types.Role.ROLE_USER))
task.artifacts.add().CopyFrom(pb.Artifact(parts=[a2a.types.Part(text="x")]))
assert pb.Task.FromString(task.SerializeToString()) == task
assert pb.StreamResponse(task=task).task == task
"""

# A server and a client in one process, over a real channel; the client's stub may be anybody's.
CALL = """
import asyncio
import grpc

class Service(pb.A2AServiceServicer):
    async def GetTask(self, request, context):
        return pb.Task(id=request.id)

    async def SubscribeToTask(self, request, context):
        yield pb.StreamResponse(task=pb.Task(id=request.id))
        yield pb.StreamResponse(status_update=pb.TaskStatusUpdateEvent(task_id=request.id))

async def call(stub_class):
    server = grpc.aio.server()
    pb.add_A2AServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = stub_class(channel)
        task = await stub.GetTask(pb.GetTaskRequest(id="t1"), timeout=20)
        assert type(task) is pb.Task and task.id == "t1"
        stream = stub.SubscribeToTask(pb.SubscribeToTaskRequest(id="t1"), timeout=20)
        assert [item.WhichOneof("payload") async for item in stream] == ["task", "status_update"]
    await server.stop(None)

asyncio.run(call(pb.A2AServiceStub))
"""

# Our own service, whose answers are of whichever classes the process has.
DISCOVER = """
import asyncio
import grpc

class Discovery(pb.DiscoveryServicer):
    async def GetAgentCard(self, request, context):
        return pb.AgentCard(name=request.tenant)

async def discover():
    server = grpc.aio.server()
    pb.add_DiscoveryServicer_to_server(Discovery(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = pb.GetAgentCardRequest(tenant="t1")
        card = await pb.DiscoveryStub(channel).GetAgentCard(request, timeout=20)
        assert type(card) is pb.AgentCard and card.name == "t1"
    await server.stop(None)

asyncio.run(discover())
(method,) = pb.GetAgentCardRequest.DESCRIPTOR.file.services_by_name["Discovery"].methods
assert method.output_type is pb.AgentCard.DESCRIPTOR
assert pb.GetAgentCardRequest.DESCRIPTOR.file.package == "a2a_grpc.v1"
"""

ROUND_TRIP = """
from google.protobuf import json_format, struct_pb2

data = struct_pb2.Value(list_value={"values": [{"number_value": 1}]})
task = pb.Task(
    id="t1",
    context_id="c1",
    status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_INPUT_REQUIRED),
    artifacts=[pb.Artifact(artifact_id="a1", parts=[pb.Part(raw=b"x"), pb.Part(data=data)])],
    metadata={"k": "v"},
)
task.status.timestamp.FromMilliseconds(1_700_000_000_123)
assert pb.Task.FromString(task.SerializeToString()) == task
as_json = json_format.MessageToDict(task)
assert as_json == {
    "id": "t1",
    "contextId": "c1",
    "status": {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2023-11-14T22:13:20.123Z"},
    "artifacts": [{"artifactId": "a1", "parts": [{"raw": "eA=="}, {"data": [1.0]}]}],
    "metadata": {"k": "v"},
}, as_json
assert json_format.ParseDict(as_json, pb.Task()) == task
assert not pb.GetTaskRequest().HasField("history_length")
assert pb.GetTaskRequest(history_length=0).HasField("history_length")
"""


@pytest.mark.parametrize("name", ["newest-sdk", "lowest-sdk"])
@pytest.mark.parametrize(
    "imports",
    [
        "import a2a.types; from a2a_grpc import pb",
        "from a2a_grpc import pb; import a2a.types",
        "from a2a.types import a2a_pb2; from a2a_grpc import pb",
        "import a2a; from a2a_grpc import pb; from a2a.types import Task",
        "from a2a_grpc import pb; import a2a_grpc_pb.a2a_pb2; import a2a.server.agent_execution",
        "from a2a_grpc import pb; pb.A2AServiceStub; from a2a.types import a2a_pb2_grpc",
        "from a2a_grpc import pb; pb.DiscoveryStub; import a2a.types",
    ],
)
def test_with_the_sdk_there_is_one_set_of_classes_in_every_import_order(
    name: str, imports: str
) -> None:
    run(python(name), imports + EXCHANGE + DISCOVER)


@pytest.mark.parametrize("name", ["newest-sdk", "lowest-sdk"])
def test_with_the_sdk_both_stubs_call_our_servicer(name: str) -> None:
    code = """
from a2a.types.a2a_pb2_grpc import A2AServiceStub
assert A2AServiceStub is not pb.A2AServiceStub
asyncio.run(call(A2AServiceStub))
"""
    run(python(name), "from a2a_grpc import pb" + CALL + code)


def test_our_classes_can_be_forced_and_then_the_sdk_cannot_be_imported() -> None:
    code = """
try:
    import a2a.types
except TypeError as error:
    assert "lf.a2a.v1" in str(error)
else:
    raise AssertionError("two sets of classes in one process")
"""
    run(python("newest-sdk"), OURS + CALL + DISCOVER + code, A2A_GRPC_OWN_PROTOS="1")


def test_forcing_our_classes_after_the_sdk_was_imported_names_the_remedy() -> None:
    code = """
import a2a.types
try:
    from a2a_grpc import pb
except ImportError as error:
    assert "a2a.types has already registered" in str(error)
    assert "unset A2A_GRPC_OWN_PROTOS" in str(error)
else:
    raise AssertionError("two sets of classes in one process")
"""
    run(python("newest-sdk"), code, A2A_GRPC_OWN_PROTOS="1")


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_variable_or_zero_forces_nothing(value: str) -> None:
    code = "from a2a_grpc import pb" + EXCHANGE
    run(python("newest-sdk"), code, A2A_GRPC_OWN_PROTOS=value)


def test_an_sdk_before_1_0_is_left_alone_and_works_beside_ours() -> None:
    code = """
import sys
assert "a2a.types" not in sys.modules
import a2a.types
from a2a.grpc import a2a_pb2
assert a2a_pb2.Task is not pb.Task
"""
    run(python("old-sdk"), OURS + CALL + code)


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("name", ["lowest", "newest"])
def test_without_the_sdk_our_code_runs_on_both_ends_of_the_versions(
    name: str, implementation: str
) -> None:
    variables = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    options = ("-W", "error::UserWarning")  # protobuf warns so of generated code that is too old
    run(python(name), OURS + ROUND_TRIP + CALL + DISCOVER, *options, **variables)


@pytest.mark.parametrize("name", ["lowest-sdk", "newest-sdk"])
def test_our_own_service_finds_the_classes_of_the_sdk_in_pure_python_too(name: str) -> None:
    variables = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    run(python(name), "from a2a_grpc import pb" + EXCHANGE + DISCOVER, **variables)


@pytest.mark.parametrize("name", ["newest", "lowest-sdk", "newest-sdk"])
def test_a_server_gives_out_its_card_and_reflection_tells_how_to_read_it(name: str) -> None:
    code = """
import asyncio
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2
from a2a_grpc import A2AServer, ServerSettings, pb

async def agent(context):
    return "done"

async def main():
    server = A2AServer(agent, card=pb.AgentCard(name="x"), settings=ServerSettings(port=0))
    async with server, grpc.aio.insecure_channel(server.address) as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(timeout=20)
        name = "a2a_grpc.v1.Discovery"
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        answer = await call.read()
        await call.done_writing()
        found = [
            descriptor_pb2.FileDescriptorProto.FromString(data)
            for data in answer.file_descriptor_response.file_descriptor_proto
        ]
        files = {file.name: file for file in found}
        pool = descriptor_pool.DescriptorPool()

        def add(file):
            for dependency in file.dependency:
                if dependency in files:
                    add(files.pop(dependency))
            pool.AddSerializedFile(file.SerializeToString())

        while files:
            add(files.pop(next(iter(files))))
        method = pool.FindServiceByName(name).methods_by_name["GetAgentCard"]
        call = channel.unary_unary(f"/{name}/GetAgentCard")
        card = message_factory.GetMessageClass(method.output_type).FromString(await call(b""))
        assert card.name == "x" and type(card) is not pb.AgentCard
        assert card.supported_interfaces[0].url == server.address

asyncio.run(main())
"""
    run(python(name), code)


def test_our_own_schema_may_be_imported_before_the_door() -> None:
    """It brings our classes, and then they are those of the process."""
    code = """
from a2a_grpc_pb import discovery_pb2
from a2a_grpc import pb
assert pb.GetAgentCardRequest is discovery_pb2.GetAgentCardRequest
assert pb.DESCRIPTOR.name == "a2a_grpc_pb/a2a.proto"
"""
    run(python("newest-sdk"), code + DISCOVER)


@pytest.mark.parametrize("name", ["lowest", "newest"])
def test_the_companions_of_grpcio_load_on_both_ends_of_the_versions(name: str) -> None:
    code = """
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
"""
    run(python(name), OURS + code, "-W", "error::UserWarning")


def test_a_module_that_is_only_called_a2a_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "a2a.py").write_text("raise SystemExit('was run')")
    run(python("newest"), OURS + ROUND_TRIP, PYTHONPATH=str(tmp_path))


def test_an_sdk_that_cannot_be_imported_leaves_us_with_our_classes(tmp_path: Path) -> None:
    types = tmp_path / "a2a/types"
    types.mkdir(parents=True)
    (tmp_path / "a2a/__init__.py").touch()
    (types / "__init__.py").write_text("import a_package_that_is_not_installed")
    (types / "a2a_pb2.py").touch()
    run(python("newest"), OURS + ROUND_TRIP, PYTHONPATH=str(tmp_path))


def test_the_door_itself_imports_no_grpc() -> None:
    code = f"""
import runpy, sys
door = runpy.run_path({str(ROOT / "a2a_grpc/pb.py")!r})
assert "grpc" not in sys.modules
assert door["Task"](id="t1").id == "t1"
"""
    run(sys.executable, code)


def test_a_name_that_the_door_does_not_offer_is_an_attribute_error() -> None:
    code = """
from a2a_grpc import pb
assert not hasattr(pb, "A2AService")
try:
    pb.Tasks
except AttributeError as error:
    assert "Tasks" in str(error)
"""
    run(sys.executable, code)
