"""An AgentExecutor written for a2a-sdk is served by our A2AServer, without a change.

Both packages are importable in the server's environment. That the executor is a good one is seen
from a2a-sdk's own server, which passes the same tests, but for those that name ours alone: both run
in a process of their own, called over gRPC from here.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator

import grpc
import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from tests.environments import dependencies, environment
from tests.interop.test_a2a_sdk_client import Running, running
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
    Client,
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

# What somebody has written for a2a-sdk: nothing in it knows of another package.
EXECUTOR = """
import asyncio
from collections import defaultdict

from a2a.helpers import (
    get_message_text,
    new_data_part,
    new_task,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Role, TaskState
from a2a.utils.errors import InvalidParamsError


class WordExecutor(AgentExecutor):
    '''Does what the first word of a message says.'''

    def __init__(self) -> None:
        self._gates = defaultdict(asyncio.Event)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        word, *more = context.get_user_input().split()
        rest = " ".join(more)
        if word in ("direct", "open"):
            self._gates[rest].set()
            await event_queue.enqueue_event(
                new_text_message(f"{word} {rest}", context_id=context.context_id)
            )
            return
        if word == "invalid":
            raise InvalidParamsError("say it in other words")
        task = context.current_task
        if task is None and word == "stream":
            task = new_task(context.task_id, context.context_id, TaskState.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(task)
        elif task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if word == "reject":
            await updater.reject(updater.new_agent_message([new_text_part("not this")]))
            return
        await updater.start_work()
        if word == "stream":
            chunks = rest.split()
            for number, chunk in enumerate(chunks):
                await updater.add_artifact(
                    [new_text_part(chunk)],
                    artifact_id="stream",
                    name="The stream",
                    append=number > 0,
                    last_chunk=number == len(chunks) - 1,
                )
        elif word == "hold":
            await updater.add_artifact([new_text_part("before")], name="held")
            await self._gates[rest].wait()
            await updater.add_artifact([new_text_part("after")], name="held")
        elif word == "about":
            await updater.add_artifact([new_data_part(self._about(context))])
        elif word == "raise":
            raise ValueError("secret")
        elif word == "done":
            said = [get_message_text(m) for m in task.history if m.role == Role.ROLE_USER]
            await updater.add_artifact([new_text_part(f"first {said[0]}, then {said[1]}")])
        else:
            await updater.requires_input(updater.new_agent_message([new_text_part("go on")]))
            return
        await updater.complete(updater.new_agent_message([new_text_part("finished")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        before = len(context.current_task.artifacts)
        text = new_text_part(f"stopped after {before} artifacts")
        await updater.cancel(updater.new_agent_message([text]))

    def _about(self, context: RequestContext) -> dict:
        return {
            "same_ids": [
                context.message.task_id == context.task_id,
                context.message.context_id == context.context_id,
            ],
            "input": context.get_user_input(" + "),
            "metadata": context.metadata,
            "tenant": context.tenant,
            "extensions": sorted(context.requested_extensions),
            "modes": list(context.configuration.accepted_output_modes),
            "related": [task.id for task in context.related_tasks],
            "current": context.current_task is not None,
            "authenticated": context.call_context.user.is_authenticated,
            "user": context.call_context.user.user_name,
            "context_tenant": context.call_context.tenant,
            "state": "tested" in context.call_context.state,
        }
"""

SERVED_BY = {
    "a2a_grpc": """
from a2a_grpc import A2AServer, ServerSettings

settings = ServerSettings(port=0, grace=1.0)
server = A2AServer(WordExecutor(), settings=settings)
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
    error = await refused(client.call("SendMessage", request("invalid", task_id=task_id)))
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.reason, error.domain) == ("INVALID_PARAMS", "a2a-protocol.org")
    assert error.message == "say it in other words"
    if continues:
        assert (await client.get(task_id)).status.state == FAILED


async def test_its_request_context_tells_what_a2a_sdks_would(client: Client) -> None:
    other = await client.send("reject", tenant="acme")
    sent = request(
        message("about", pb.Part(text="two"), reference_task_ids=[other.id]),
        tenant="acme",
        metadata={"n": 3, "list": ["x", {"deep": None}]},
    )
    sent.configuration.accepted_output_modes.append("text/plain")
    answer = await client.call("SendMessage", sent, metadata=[("a2a-extensions", EXTENSION)])
    (part,) = answer.task.artifacts[0].parts
    assert json_format.MessageToDict(part.data) == {
        "same_ids": [True, True],
        "input": "about + two",
        "metadata": {"n": 3, "list": ["x", {"deep": None}]},
        "tenant": "acme",
        "extensions": [EXTENSION],
        "modes": ["text/plain"],
        "related": [other.id],
        "current": False,
        "authenticated": False,
        "user": "",
        "context_tenant": "acme",
        "state": False,
    }
