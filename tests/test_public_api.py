"""The names that other programs rely on. A change here is a change for them."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import a2a_grpc
from a2a_grpc import A2AError, A2AServer, AgentExecutor, TaskContext, Worker, errors, pb
from tests.cli.process import environment_of

NAMES = [
    # What a user's program is made of.
    "A2AServer",
    "AgentExecutor",
    "EventQueue",
    "Principal",
    "RequestContext",
    "RequestContextBuilder",
    "ServerCallContext",
    "ServerSettings",
    "SimpleRequestContextBuilder",
    # The comfortable form, and what is around agents.
    "Dependencies",
    "Dependency",
    "FileInfo",
    "HistoryMessage",
    "LifecycleHooks",
    "Middleware",
    "PreviousArtifact",
    "StateChange",
    "TaskContext",
    "Worker",
    # The parts.
    "ActiveTask",
    "ActiveTaskRegistry",
    "Broker",
    "EventBus",
    "EventConsumer",
    "InMemoryBroker",
    "InMemoryBus",
    "InMemoryStorage",
    "NatsBroker",
    "NatsBus",
    "Scope",
    "SqlStorage",
    "Storage",
    "TaskIdParams",
    "TaskOperation",
    "TaskSendParams",
    # The client.
    "A2AClient",
    "AgentCardError",
    "CardSignatureError",
    "ClientCall",
    "ClientInterceptor",
    "ClientTLS",
    "DeadlineExceededError",
    "EventStream",
    "NotAnA2AServerError",
    "RetryPolicy",
    "StreamInterceptor",
    "StreamInterruptedError",
    "UnaryInterceptor",
    # Cards.
    "CardError",
    "CardSigner",
    "load_card",
    "sign_card",
    "validate_card",
    "verify_card",
    # Errors.
    "A2AError",
    "ContentTypeNotSupportedError",
    "ExtendedAgentCardNotConfiguredError",
    "ExtensionSupportRequiredError",
    "FieldViolation",
    "InternalError",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "PermissionDeniedError",
    "PushNotificationNotSupportedError",
    "ResourceExhaustedError",
    "RetryableError",
    "ServerError",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedOperationError",
    "VersionNotSupportedError",
]
GENERATED = [
    "A2AServiceServicer",
    "A2AServiceStub",
    "DESCRIPTOR",
    "DiscoveryServicer",
    "DiscoveryStub",
    "GetAgentCardRequest",
    "add_A2AServiceServicer_to_server",
    "add_DiscoveryServicer_to_server",
]


def protocol_names() -> list[str]:
    """Every message and enum of the protocol."""
    data = Path(__file__).parent / "data" / "a2a_v1_wire.json"
    contract = json.loads(data.read_text(encoding="utf-8"))
    return [entry["name"].rpartition(".")[2] for entry in contract["messages"] + contract["enums"]]


def test_the_exported_names_are_pinned() -> None:
    assert sorted(a2a_grpc.__all__) == sorted([*NAMES, *protocol_names(), *GENERATED])


@pytest.mark.parametrize("name", [*NAMES, *protocol_names()])
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(a2a_grpc, name) is not None


def test_unknown_names_are_refused_as_usual() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        a2a_grpc.Wroker  # noqa: B018


def test_every_error_of_the_tree_is_exported() -> None:
    tree = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, A2AError)
    ]
    assert set(tree) <= set(a2a_grpc.__all__)


def test_messages_are_those_of_the_process() -> None:
    assert a2a_grpc.Task is pb.Task
    assert a2a_grpc.TaskState is pb.TaskState


def parameters(function: object) -> list[str]:
    return [
        f"{'*' if parameter.kind is parameter.KEYWORD_ONLY else ''}{name}"
        for name, parameter in inspect.signature(function).parameters.items()  # type: ignore[arg-type]
    ]


def test_the_arguments_of_the_server_are_pinned() -> None:
    assert parameters(A2AServer) == [
        "agent",
        "*agents",
        "*card",
        "*extended_card",
        "*card_signer",
        "*storage",
        "*broker",
        "*bus",
        "*authenticator",
        "*deps",
        "*middleware",
        "*hooks",
        "*request_context_builder",
        "*limits",
        "*settings",
    ]


def test_the_arguments_of_the_client_are_pinned() -> None:
    assert parameters(a2a_grpc.A2AClient) == [
        "agent",
        "*tenant",
        "*tls",
        "*token",
        "*metadata",
        "*extensions",
        "*timeout",
        "*retry",
        "*interceptors",
        "*card_keys",
        "*keepalive",
        "*channel",
    ]


def test_the_arguments_of_an_executor_are_pinned() -> None:
    assert parameters(AgentExecutor.execute) == ["self", "context", "event_queue"]
    assert parameters(AgentExecutor.cancel) == ["self", "context", "event_queue"]
    assert AgentExecutor.on_interruption == "fail"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("complete", "text *artifact_id"),
        ("complete_json", "data *artifact_id"),
        ("respond", "text"),
        ("reply_directly", "text"),
        ("fail", "reason"),
        ("reject", "reason"),
        ("request_input", "question"),
        ("request_auth", "details *schemes *credentials_hint *auth_url"),
        ("send_status", "message"),
        ("emit_text_artifact", "text *artifact_id *append *last_chunk"),
        ("emit_data_artifact", "data *artifact_id *media_type *append *last_chunk"),
        (
            "emit_artifact",
            "*artifact_id *text *data *file_bytes *file_url *media_type *filename *name "
            "*description *append *last_chunk *metadata *extensions",
        ),
        ("load_context", ""),
        ("update_context", "context"),
        ("accepts", "mime_type"),
        ("conversation", "*limit"),
    ],
)
def test_the_methods_of_a_task_context_are_pinned(method: str, arguments: str) -> None:
    assert parameters(getattr(TaskContext, method)) == ["self", *arguments.split()]


def test_what_a_worker_may_define_is_pinned() -> None:
    assert parameters(Worker.handle) == ["self", "ctx"]
    assert parameters(Worker.cancel) == ["self", "ctx"]
    assert (Worker.on_interruption, Worker.replies_directly) == ("fail", None)


def test_a_wrapped_error_stands_for_the_error() -> None:
    assert errors.unwrap(a2a_grpc.ServerError(a2a_grpc.TaskNotFoundError())).reason == (
        "TASK_NOT_FOUND"
    )


def test_importing_the_package_does_not_import_what_few_need() -> None:
    code = "import sys, a2a_grpc; print(*sorted(m for m in sys.modules if '.' not in m))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment_of(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "grpc" in found
    assert not {
        *("sqlalchemy", "alembic", "httpx", "httpcore", "click", "uvloop"),
        *("jwt", "cryptography", "rfc8785", "yaml"),
    } & set(found)
