"""An AgentExecutor written for a2a-sdk is served by our A2AServer, without a change.

Both packages are importable in the server's environment. That the executor is a good one is seen
from a2a-sdk's own server, which passes the same tests, but for those that name ours alone: both run
in a process of their own, called over gRPC from here.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from tests.environments import dependencies, environment, run
from tests.interop.test_a2a_sdk_client import Running, running
from tests.support import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
    Client,
    assert_error,
    collect,
    connected,
    fold,
    kinds,
    message,
    outline,
    refused,
    request,
    take,
    text,
    texts,
)

# The servers' environment is made on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

REQUIREMENTS = [*dependencies(), "a2a-sdk==1.3.0"]
EXTENSION = "https://example.org/extensions/tested"
URL = "https://example.org/file.txt"

# Written for a2a-sdk: nothing in it knows of another package.
EXECUTOR = Path(__file__).with_name("a2a_sdk_executor.py").read_text(encoding="utf-8")

SERVED_BY = {
    "a2a_grpc": """
from a2a_grpc import A2AServer, Principal, ServerSettings


class Door:
    async def authenticate(self, call):
        return Principal(call.metadata.get("authorization", "").removeprefix("Bearer "))


settings = ServerSettings(port=0, grace=1.0)
server = A2AServer(WordExecutor(), settings=settings, authenticator=Door())
asyncio.run(server.serve(on_started=lambda started: print(started.address, flush=True)))
""",
    "a2a_sdk": """
import grpc
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.agent_execution import SimpleRequestContextBuilder
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, a2a_pb2_grpc


async def main() -> None:
    card = AgentCard(name="tested", capabilities=AgentCapabilities(streaming=True))
    store = InMemoryTaskStore()
    builder = SimpleRequestContextBuilder(should_populate_referred_tasks=True, task_store=store)
    handler = DefaultRequestHandler(
        WordExecutor(), store, agent_card=card, request_context_builder=builder
    )
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


asyncio.run(main())
""",
}


ours_alone = pytest.mark.parametrize("server", ["a2a_grpc"], indirect=True)


@pytest.fixture(scope="module", params=list(SERVED_BY))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    python = environment("a2a-sdk-executor", REQUIREMENTS)
    log = tmp_path_factory.mktemp(request.param) / "stderr"
    with running([python, "-c", EXECUTOR + SERVED_BY[request.param]], log) as found:
        yield found


@pytest.fixture
async def client(server: Running) -> AsyncIterator[Client]:
    async with connected(server.address) as found:
        yield found


async def open_gate(client: Client, gate: str) -> None:
    """Lets the task go on that is held at this gate; the answer is a direct Message."""
    (answer,) = await collect(client.stream(f"open {gate}"))
    assert text(answer.message) == f"open {gate}"


def said(history: Iterable[pb.Message]) -> list[str]:
    """What the user said."""
    return texts(m for m in history if m.role == pb.Role.ROLE_USER)


async def test_it_streams_and_completes(client: Client) -> None:
    events = await collect(client.stream("stream one two three"))
    assert outline(events) == [
        "task SUBMITTED",
        "status WORKING",
        "artifact one",
        "artifact two",
        "artifact three",
        "status COMPLETED",
    ]
    chunks = [event.artifact_update for event in events[2:5]]
    assert [chunk.append for chunk in chunks] == [False, True, True]
    assert [chunk.last_chunk for chunk in chunks] == [False, False, True]
    assert {(c.artifact.artifact_id, c.artifact.name) for c in chunks} == {("stream", "The stream")}
    task = await client.get(events[0].task.id)
    assert [part.text for part in task.artifacts[0].parts] == ["one", "two", "three"]
    assert text(task.status.message) == "finished"


async def test_it_answers_a_blocking_call(client: Client) -> None:
    task = await client.send("stream one two")
    assert task.status.state == COMPLETED
    assert [text(artifact) for artifact in task.artifacts] == ["onetwo"]


async def test_it_answers_with_a_direct_message(client: Client) -> None:
    (answer,) = await collect(client.stream("direct hello", context_id="c1"))
    assert text(answer.message) == "direct hello"
    assert answer.message.context_id == "c1"
    assert answer.message.role == pb.Role.ROLE_AGENT


async def test_its_events_arrive_while_it_works_also_at_one_who_joins(client: Client) -> None:
    gate = str(uuid.uuid4())
    stream = client.stream(f"hold {gate}")
    begun = await take(stream, 3)
    assert outline(begun) == ["task SUBMITTED", "status WORKING", "artifact before"]
    joined = client.subscribe(begun[0].task.id)
    (first,) = await take(joined, 1)
    assert first.task.status.state == WORKING
    assert [text(artifact) for artifact in first.task.artifacts] == ["before"]
    await open_gate(client, gate)
    rest = await collect(stream)
    assert outline(rest) == ["artifact after", "status COMPLETED"]
    assert await collect(joined) == rest


async def test_it_asks_for_input_and_goes_on(client: Client) -> None:
    task = await client.send("interview")
    assert task.status.state == INPUT_REQUIRED
    assert text(task.status.message) == "go on"
    task = await client.send("seven", task_id=task.id)
    assert task.status.state == INPUT_REQUIRED
    task = await client.send("done", task_id=task.id)
    assert task.status.state == COMPLETED
    assert [text(artifact) for artifact in task.artifacts] == ["first interview, then seven"]
    assert said(task.history) == ["interview", "seven", "done"]


async def test_it_asks_for_input_and_goes_on_in_streams(client: Client) -> None:
    events = await collect(client.stream("interview"))
    assert outline(events) == ["task SUBMITTED", "status WORKING", "status INPUT_REQUIRED"]
    gate = str(uuid.uuid4())
    stream = client.stream(f"hold {gate}", task_id=events[0].task.id)
    begun = await take(stream, 1)
    # The stream may begin with a Task that has some of the events in it already.
    while "before" not in fold(begun)[1].values():
        begun += await take(stream, 1)
    assert fold(begun)[0] == "WORKING"
    await open_gate(client, gate)
    assert outline(await collect(stream)) == ["artifact after", "status COMPLETED"]


@ours_alone
async def test_a_later_stream_begins_with_the_task_too(client: Client) -> None:
    task = await client.send("interview")
    events = await collect(client.stream("seven", task_id=task.id))
    assert kinds(events)[0] == "task"
    assert said(events[0].task.history) == ["interview", "seven"]
    assert fold(events)[0] == "INPUT_REQUIRED"


async def test_it_is_canceled(client: Client) -> None:
    stream = client.stream(f"hold {uuid.uuid4()}")
    task_id = (await take(stream, 3))[0].task.id
    task = await client.cancel(task_id)
    assert task.status.state == CANCELED
    assert text(task.status.message) == "stopped after 1 artifacts"
    assert outline(await collect(stream)) == ["status CANCELED"]


async def test_it_is_canceled_while_it_waits_for_input(client: Client) -> None:
    waiting = await client.send("interview")
    task = await client.cancel(waiting.id)
    assert task.status.state == CANCELED


async def test_it_rejects(client: Client) -> None:
    task = await client.send("reject")
    assert task.status.state == REJECTED
    assert text(task.status.message) == "not this"


@ours_alone
async def test_what_it_raises_fails_the_task_and_stays_in_the_log(
    client: Client, server: Running
) -> None:
    task = await client.send("raise")
    assert task.status.state == FAILED
    assert "secret" not in str(task)
    assert "ValueError: secret" in server.log.read_text()


@pytest.mark.parametrize("continues", [False, True])
async def test_an_error_of_a2a_sdk_that_it_raises_reaches_the_caller(
    client: Client, continues: bool
) -> None:
    task_id = (await client.send("interview")).id if continues else ""
    error = await refused(
        client.call("SendMessage", request("error InvalidParamsError", task_id=task_id))
    )
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.reason, error.domain) == ("INVALID_PARAMS", "a2a-protocol.org")
    assert error.message == "say it in other words"
    if continues:
        assert (await client.get(task_id)).status.state == FAILED


async def test_its_request_context_tells_what_a2a_sdks_would(client: Client) -> None:
    other = await client.send("reject", tenant="acme")
    sent = request(
        message("context", pb.Part(text="two"), reference_task_ids=[other.id]),
        tenant="acme",
        metadata={"n": 3, "list": ["x", {"deep": None}]},
    )
    sent.configuration.accepted_output_modes.append("text/plain")
    answer = await client.call("SendMessage", sent, metadata=[("a2a-extensions", EXTENSION)])
    assert data_of(answer.task.artifacts[0]) == {
        "same_ids": [True, True],
        "input": ["context\ntwo", "context + two"],
        "metadata": {"n": 3, "list": ["x", {"deep": None}]},
        "tenant": "acme",
        "extensions": [EXTENSION],
        "modes": ["text/plain"],
        "related": [other.id],
        "attached": True,
        "created": True,
        "authenticated": False,
        "user": "",
        "call_tenant": "acme",
        "call_extensions": [EXTENSION],
        "state": [False, True],
    }


@ours_alone
async def test_a_task_that_it_attaches_is_stored(client: Client) -> None:
    task = await client.send("context")
    assert (await client.get(f"{task.id}-2")).status.state == COMPLETED


@ours_alone
async def test_its_user_is_the_principal(client: Client) -> None:
    ada = client.identified(("authorization", "Bearer ada"))
    told = data_of((await ada.send("context")).artifacts[0])
    assert (told["authenticated"], told["user"]) == (True, "ada")


async def test_the_context_of_cancel_has_no_message(client: Client) -> None:
    stream = client.stream(f"hold {uuid.uuid4()}")
    task = await client.cancel((await take(stream, 3))[0].task.id)
    assert data_of(task.status.message) == {
        "message": False,
        "configuration": False,
        "input": "",
        "metadata": {},
        "related": 0,
        "extensions": [],
    }


@ours_alone
async def test_a_task_is_canceled_although_its_cancel_raises(
    client: Client, server: Running
) -> None:
    stream = client.stream(f"stubborn {uuid.uuid4()}")
    task = await client.cancel((await take(stream, 3))[0].task.id)
    assert task.status.state == CANCELED
    assert outline(await collect(stream)) == ["status CANCELED"]
    assert "UnsupportedOperationError" in server.log.read_text()


# Every name that an executor can use. A new version of a2a-sdk that has more fails here first.

ENDS = {
    "complete": COMPLETED,
    "failed": FAILED,
    "reject": REJECTED,
    "cancel": CANCELED,
    "requires_input": INPUT_REQUIRED,
    "requires_auth": AUTH_REQUIRED,
}
GOES_ON = {"submit": "SUBMITTED", "start_work": "WORKING"}
TESTED_ALONE = ["add_artifact", "new_agent_message", "update_status"]
REFUSED = {
    "ContentTypeNotSupportedError": "CONTENT_TYPE_NOT_SUPPORTED",
    "ExtendedAgentCardNotConfiguredError": "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    "ExtensionSupportRequiredError": "EXTENSION_SUPPORT_REQUIRED",
    "InvalidAgentResponseError": "INVALID_AGENT_RESPONSE",
    "InvalidParamsError": "INVALID_PARAMS",
    "PushNotificationNotSupportedError": "PUSH_NOTIFICATION_NOT_SUPPORTED",
    "TaskNotCancelableError": "TASK_NOT_CANCELABLE",
    "TaskNotFoundError": "TASK_NOT_FOUND",
    "UnsupportedOperationError": "UNSUPPORTED_OPERATION",
    "VersionNotSupportedError": "VERSION_NOT_SUPPORTED",
}
"""The errors that reach the caller, and the reason that the caller reads."""
OUR_REASON = {"InvalidRequestError": "INVALID_PARAMS"}
"""Those whose reason over gRPC is another with a2a-sdk's server."""
FAILS = [
    "A2AError",
    "InternalError",
    "JSONParseError",
    "MethodNotFoundError",
]
"""The errors that are not about the request: the task fails, and the log says why."""

NAMES = """
import inspect
import json

import a2a.helpers
from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.utils import errors


def public(names):
    return sorted(name for name in names if not name.startswith("_"))


print(
    json.dumps(
        {
            "TaskUpdater": public(vars(TaskUpdater)),
            "RequestContext": public(vars(RequestContext)),
            "ServerCallContext": public(ServerCallContext.model_fields),
            "User": public(vars(User)),
            "EventQueue": public(vars(EventQueue)),
            "AgentExecutor": public(vars(AgentExecutor)),
            "helpers": public(a2a.helpers.__all__),
            "errors": sorted(
                name
                for name, value in vars(errors).items()
                if inspect.isclass(value) and issubclass(value, errors.A2AError)
            ),
        }
    )
)
"""


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    """What a2a-sdk has, by where it is."""
    found: dict[str, list[str]] = json.loads(
        run(environment("a2a-sdk-executor", REQUIREMENTS), NAMES)
    )
    return found


@pytest.mark.parametrize(
    ("of", "use"),
    [
        ("TaskUpdater", r"updater\.{}\("),
        ("RequestContext", r"\bcontext\.{}\b"),
        ("ServerCallContext", r"\bcall\.{}\b"),
        ("User", r"\bcall\.user\.{}\b"),
        ("EventQueue", r"\bevent_queue\.{}\("),
        ("AgentExecutor", r"    async def {}\(self, context"),
        ("helpers", r"\b{}\("),
    ],
)
def test_the_executor_uses_every_name(names: dict[str, list[str]], of: str, use: str) -> None:
    assert names[of]
    for_people = {"display_agent_card"}  # prints a card
    unused = [name for name in names[of] if not re.search(use.format(name), EXECUTOR)]
    assert set(unused) <= for_people


def test_every_method_of_the_updater_is_tested(names: dict[str, list[str]]) -> None:
    assert names["TaskUpdater"] == sorted([*ENDS, *GOES_ON, *TESTED_ALONE])


def test_every_error_is_tested(names: dict[str, list[str]]) -> None:
    assert names["errors"] == sorted([*REFUSED, *OUR_REASON, *FAILS])


@pytest.mark.parametrize("name", ENDS)
async def test_the_updater_ends_a_turn(client: Client, name: str) -> None:
    events = await collect(client.stream(f"update {name}"))
    expected = pb.TaskState.Name(ENDS[name]).removeprefix("TASK_STATE_")
    assert outline(events) == ["task SUBMITTED", f"status {expected}"]
    task = await client.get(events[0].task.id)
    assert task.status.state == ENDS[name]
    assert_said(task.status.message, name, task)


@pytest.mark.parametrize("name", GOES_ON)
async def test_the_updater_sets_a_state_that_goes_on(client: Client, name: str) -> None:
    events = await collect(client.stream(f"update {name}"))
    assert outline(events) == ["task SUBMITTED", f"status {GOES_ON[name]}", "status COMPLETED"]
    assert_said(events[1].status_update.status.message, name, events[0].task)


async def test_the_updater_sets_a_state_with_time_and_metadata(client: Client) -> None:
    events = await collect(client.stream("update update_status"))
    assert outline(events) == ["task SUBMITTED", "status WORKING", "status COMPLETED"]
    update = events[1].status_update
    assert update.status.timestamp.ToJsonString() == "2026-01-02T03:04:05Z"
    assert json_format.MessageToDict(update.metadata) == {"percent": 50}
    assert_said(update.status.message, "update_status", events[0].task)


async def test_the_updater_adds_artifacts(client: Client) -> None:
    task = await client.send("update add_artifact")
    first, numbered = task.artifacts
    assert (first.artifact_id, first.name) == ("a", "The first")
    assert [part.text for part in first.parts] == ["one", "two"]
    assert json_format.MessageToDict(first.metadata) == {"by": "add_artifact"}
    assert list(first.extensions) == ["https://example.org/extensions/artifact"]
    assert (numbered.artifact_id, text(numbered)) == ("1", "numbered")


@ours_alone
async def test_the_updater_refuses_a_second_end(client: Client) -> None:
    task = await client.send("update again")
    assert task.status.state == COMPLETED
    assert_said(task.status.message, "again", task)


async def test_the_queue_takes_every_kind_of_event(client: Client) -> None:
    assert outline(await collect(client.stream("events"))) == [
        "task SUBMITTED",
        "status WORKING",
        "artifact one",
        "status COMPLETED",
    ]


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("text", [{"text": "text", "mediaType": "text/plain"}]),
        ("data", [{"data": {"n": 1}}]),
        ("raw", [{"raw": "cmF3", "mediaType": "text/plain", "filename": "raw.txt"}]),
        ("url", [{"url": URL, "mediaType": "text/plain", "filename": "url.txt"}]),
        ("parts", [{"raw": "cmF3"}, {"url": URL}]),
    ],
)
async def test_a_message_of_its_helpers_is_a_reply(
    client: Client, kind: str, parts: list[Any]
) -> None:
    answer = await client.call("SendMessage", request(f"reply {kind}", context_id="c2"))
    assert answer.message.context_id == "c2"
    assert [json_format.MessageToDict(part) for part in answer.message.parts] == parts


async def test_its_helpers_make_artifacts_and_read_parts(client: Client) -> None:
    given = [pb.Part(raw=b"bytes"), pb.Part(url=URL), pb.Part(text="more")]
    given[1:1] = [json_format.ParseDict({"data": {"n": 1}}, pb.Part())]
    events = await collect(client.stream(message("helpers", *given)))
    assert outline(events)[:2] == ["task WORKING", "status WORKING"]
    assert text(events[1].status_update.status.message) == "on it"
    assert [event.artifact_update.last_chunk for event in events[2:6]] == [
        True,
        False,
        False,
        False,
    ]
    task = await client.get(events[0].task.id)
    assert [artifact.artifact_id for artifact in task.artifacts] == [
        *("parts", "text", "data", "raw", "url"),
        *("data 2", "raw 2", "url 2"),
    ]
    assert text(task.artifacts[1]) == "text and more"
    assert [artifact.parts[0].WhichOneof("content") for artifact in task.artifacts[2:]] == [
        *("data", "raw", "url", "data", "raw", "url"),
    ]
    assert data_of(task.status.message) == {
        "message": "helpers|more",
        "artifact": "parts",
        "texts": ["helpers", "more"],
        "data": [{"n": 1}],
        "raw": ["bytes"],
        "urls": [URL],
        "response": "helpers|more",
    }


@pytest.mark.parametrize("name", REFUSED)
async def test_an_error_about_the_request_reaches_the_caller(client: Client, name: str) -> None:
    error = await refused(client.call("SendMessage", request(f"error {name}")))
    assert (error.reason, error.domain) == (REFUSED[name], "a2a-protocol.org")
    assert error.message == "say it in other words"


@ours_alone
@pytest.mark.parametrize("name", OUR_REASON)
async def test_an_error_of_json_rpc_reaches_the_caller_as_ours(client: Client, name: str) -> None:
    error = await refused(client.call("SendMessage", request(f"error {name}")))
    assert_error(error, OUR_REASON[name])
    assert error.message == "say it in other words"


@ours_alone
@pytest.mark.parametrize("name", FAILS)
async def test_an_error_that_is_not_about_the_request_fails_the_task(
    client: Client, name: str
) -> None:
    task = await client.send(f"error {name}")
    assert task.status.state == FAILED


def data_of(holder: pb.Message | pb.Artifact) -> Any:
    """What the only data part holds."""
    (part,) = [part for part in holder.parts if part.HasField("data")]
    return json_format.MessageToDict(part.data)


def assert_said(said: pb.Message, name: str, task: pb.Task) -> None:
    """The message that the executor makes for its update."""
    assert text(said) == name
    assert (said.message_id, said.role) == ("1", pb.Role.ROLE_AGENT)
    assert (said.task_id, said.context_id) == (task.id, task.context_id)
    assert json_format.MessageToDict(said.metadata) == {"by": name}
