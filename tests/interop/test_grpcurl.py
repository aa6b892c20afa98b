"""grpcurl, which knows nothing but what reflection tells it: list, describe, call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Process
from tests.environments import ROOT
from tests.interop.grpcurl import Grpcurl, documents, grpcurl_program

# grpcurl is built on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(900)

SERVICE = "lf.a2a.v1.A2AService"
DISCOVERY = "a2a_grpc.v1.Discovery"
METHODS = [
    "CancelTask",
    "CreateTaskPushNotificationConfig",
    "DeleteTaskPushNotificationConfig",
    "GetExtendedAgentCard",
    "GetTask",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "ListTasks",
    "SendMessage",
    "SendStreamingMessage",
    "SubscribeToTask",
]


@pytest.fixture(scope="module")
def grpcurl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grpcurl]:
    """grpcurl, for the echo example."""
    program = grpcurl_program()
    cwd = tmp_path_factory.mktemp("echo")
    with Process("serve", f"{ROOT}/examples/echo.py:Echo", "--port", "0", cwd=cwd) as process:
        yield Grpcurl(program, process.address)
        assert process.stop() == 0


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


def test_list_names_the_services(grpcurl: Grpcurl) -> None:
    assert set(grpcurl.output("list").split()) >= {
        SERVICE,
        DISCOVERY,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    }
    assert grpcurl.output("list", SERVICE).split() == [f"{SERVICE}.{name}" for name in METHODS]


def test_describe_shows_the_service_with_its_http_rules(grpcurl: Grpcurl) -> None:
    described = grpcurl.output("describe", SERVICE)
    for method in METHODS:
        assert f"rpc {method} (" in described
    assert "returns ( stream .lf.a2a.v1.StreamResponse )" in described
    assert 'post: "/message:send"' in described


def test_describe_shows_discovery_with_its_http_rules(grpcurl: Grpcurl) -> None:
    described = grpcurl.output("describe", DISCOVERY)
    assert (
        "rpc GetAgentCard ( .a2a_grpc.v1.GetAgentCardRequest ) returns ( .lf.a2a.v1.AgentCard )"
    ) in described
    assert 'get: "/.well-known/agent-card.json"' in described
    assert 'get: "/{tenant}/.well-known/agent-card.json"' in described
    assert "string tenant = 1;" in grpcurl.output("describe", "a2a_grpc.v1.GetAgentCardRequest")


def test_the_card_is_read_without_a_version(grpcurl: Grpcurl) -> None:
    (card,) = documents(grpcurl.output("-d", "{}", f"{DISCOVERY}/GetAgentCard"))
    assert card["name"] == "Echo"
    assert card["supportedInterfaces"][0]["protocolBinding"] == "GRPC"
    assert card["capabilities"]["streaming"] is True


def test_describe_shows_a_message(grpcurl: Grpcurl) -> None:
    described = grpcurl.output("describe", "lf.a2a.v1.Part")
    assert "string text = 1;" in described
    assert ".google.protobuf.Value data = 4;" in described


@pytest.mark.parametrize(
    "symbol",
    [
        "lf.a2a.v1.Task",
        "lf.a2a.v1.AgentCard",
        "lf.a2a.v1.TaskState",
        "google.protobuf.Struct",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ],
)
def test_every_service_and_message_can_be_described(grpcurl: Grpcurl, symbol: str) -> None:
    assert symbol in grpcurl.output("describe", symbol)


def test_describe_shows_everything(grpcurl: Grpcurl) -> None:
    described = grpcurl.output("describe")
    for service in grpcurl.output("list").split():
        assert f"{service} is a service:" in described


def test_send_message(grpcurl: Grpcurl) -> None:
    task = grpcurl.call("SendMessage", message("hello"))[0]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"] == [{"artifactId": "final-answer", "parts": [{"text": "Echo: hello"}]}]
    sent = task["history"][0]
    assert sent["messageId"] == "1"
    assert sent["taskId"] == task["id"]
    assert sent["contextId"] == task["contextId"]
    assert grpcurl.call("GetTask", {"id": task["id"]}) == [task]


def test_the_fields_have_the_names_of_the_protocols_json(grpcurl: Grpcurl) -> None:
    page = grpcurl.call("ListTasks", {"pageSize": 1, "includeArtifacts": True})[0]
    assert page.keys() <= {"tasks", "nextPageToken", "pageSize", "totalSize"}
    assert "pageSize" in page


def test_send_streaming_message(grpcurl: Grpcurl) -> None:
    first, second, third = grpcurl.call("SendStreamingMessage", message("hello"))
    assert first["task"]["status"]["state"] == "TASK_STATE_WORKING"
    update = second["artifactUpdate"]
    assert update["taskId"] == first["task"]["id"]
    assert update["artifact"]["parts"] == [{"text": "Echo: hello"}]
    assert third["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_data_parts_go_through(grpcurl: Grpcurl) -> None:
    data = {"numbers": [1, 2.5], "nested": {"yes": True, "nothing": None}}
    sent = message("hello")
    sent["message"]["parts"].append({"data": data, "mediaType": "application/json"})
    task = grpcurl.call("SendMessage", sent)[0]["task"]
    assert task["history"][0]["parts"][1]["data"] == data


def test_an_error_comes_with_its_details(grpcurl: Grpcurl) -> None:
    error = grpcurl.error("SendMessage", {"message": {"role": "ROLE_USER"}})
    assert error["code"] == 3  # INVALID_ARGUMENT
    details = {detail["@type"].rpartition(".")[2]: detail for detail in error["details"]}
    assert details["ErrorInfo"]["reason"] == "INVALID_PARAMS"
    assert details["ErrorInfo"]["domain"] == "a2a-protocol.org"
    fields = {violation["field"] for violation in details["BadRequest"]["fieldViolations"]}
    assert fields == {"message.message_id", "message.parts"}


def test_an_error_of_the_protocol_has_its_reason(grpcurl: Grpcurl) -> None:
    error = grpcurl.error("GetTask", {"id": "missing"})
    assert error["code"] == 5  # NOT_FOUND
    assert error["details"][0]["reason"] == "TASK_NOT_FOUND"


def test_a_call_without_a_version_is_told_how_to_name_it(grpcurl: Grpcurl) -> None:
    error = grpcurl.error("GetTask", {"id": "missing"}, headers=())
    assert "grpcurl -H 'a2a-version: 1.0'" in error["message"]
    assert error["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


def test_health_is_served(grpcurl: Grpcurl) -> None:
    for service in ("", SERVICE, DISCOVERY):
        found = grpcurl.output(
            "-d", json.dumps({"service": service}), "grpc.health.v1.Health/Check"
        )
        assert json.loads(found) == {"status": "SERVING"}


def test_one_grpcurl_is_built_for_all_tests() -> None:
    assert grpcurl_program() == grpcurl_program()
    assert isinstance(grpcurl_program(), Path)
