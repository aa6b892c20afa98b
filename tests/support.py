"""What tests of the server share: a server on a free port, agents, messages, and errors read back.

Every wait here has a bound; a test that waits for something else uses `within`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped, unused-ignore]

from a2a_grpc import pb
from a2a_grpc.agent.executor import AgentExecutor, Event, EventQueue
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.config import ServerSettings
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from a2a_grpc.server import A2AServer

T = TypeVar("T")

SUBMITTED = pb.TaskState.TASK_STATE_SUBMITTED
WORKING = pb.TaskState.TASK_STATE_WORKING
COMPLETED = pb.TaskState.TASK_STATE_COMPLETED
FAILED = pb.TaskState.TASK_STATE_FAILED
CANCELED = pb.TaskState.TASK_STATE_CANCELED
REJECTED = pb.TaskState.TASK_STATE_REJECTED
INPUT_REQUIRED = pb.TaskState.TASK_STATE_INPUT_REQUIRED
AUTH_REQUIRED = pb.TaskState.TASK_STATE_AUTH_REQUIRED
TERMINAL = (COMPLETED, FAILED, CANCELED, REJECTED)

PATIENCE = 10.0
"""Seconds after which a test that waits for something fails."""

SEQUENCED = (("a2a-extensions", SEQUENCE_EXTENSION),)
"""Call metadata that asks for sequence numbers."""


async def within(awaitable: Awaitable[T], seconds: float = PATIENCE) -> T:
    """The result, or TimeoutError."""
    async with asyncio.timeout(seconds):
        return await awaitable


# Agents.

Execute = Callable[[RequestContext, EventQueue], Awaitable[None]]


class Agent(AgentExecutor):
    """An agent made of functions that the test writes."""

    def __init__(
        self, execute: Execute, cancel: Execute | None = None, *, on_interruption: str = "fail"
    ) -> None:
        self._execute = execute
        self._cancel = cancel
        self.on_interruption = on_interruption  # type: ignore[misc, assignment]

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        if self._cancel is not None:
            await self._cancel(context, event_queue)


def a_task(state: pb.TaskState = WORKING, text: str = "", **fields: Any) -> pb.Task:
    """A Task event; the engine fills in the ids."""
    return pb.Task(status=a_status(state, text), **fields)


def a_status(state: pb.TaskState, text: str = "") -> pb.TaskStatus:
    found = pb.TaskStatus(state=state)
    if text:
        found.message.message_id = str(uuid.uuid4())
        found.message.role = pb.Role.ROLE_AGENT
        found.message.parts.add(text=text)
    return found


def status_update(state: pb.TaskState, text: str = "") -> pb.TaskStatusUpdateEvent:
    return pb.TaskStatusUpdateEvent(status=a_status(state, text))


def chunk(text: str, artifact_id: str = "a", *, append: bool = False) -> pb.TaskArtifactUpdateEvent:
    return pb.TaskArtifactUpdateEvent(
        artifact=pb.Artifact(artifact_id=artifact_id, parts=[pb.Part(text=text)]), append=append
    )


def publishing(*events: Event) -> Agent:
    """An agent that publishes these events and returns."""

    async def execute(_: RequestContext, queue: EventQueue) -> None:
        for event in events:
            await queue.enqueue_event(event)

    return Agent(execute)


async def echo(context: RequestContext, queue: EventQueue) -> None:
    """A whole task: Task, one artifact with the user's text, COMPLETED."""
    await queue.enqueue_event(a_task())
    await queue.enqueue_event(chunk(context.get_user_input()))
    await queue.enqueue_event(status_update(COMPLETED))


async def asking(context: RequestContext, queue: EventQueue) -> None:
    """Asks back until the user says "done"."""
    if context.current_task is None:
        await queue.enqueue_event(a_task())
    if context.get_user_input() == "done":
        await queue.enqueue_event(status_update(COMPLETED, "bye"))
    else:
        await queue.enqueue_event(status_update(INPUT_REQUIRED, "what else?"))


class Gated:
    """An agent that publishes a Task, waits until it may go on, and completes.

    `started` is set once the Task is published; `go` lets it go on; `cancelled` is set when
    `execute()` is cancelled.
    """

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.contexts: list[RequestContext] = []

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        self.contexts.append(context)
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await queue.enqueue_event(status_update(COMPLETED))

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None: ...


# Requests.


def message(text: str = "hello", *more: pb.Part, **fields: Any) -> pb.Message:
    """A message of the user, with an id of its own."""
    return pb.Message(
        **{
            "message_id": str(uuid.uuid4()),
            "role": pb.Role.ROLE_USER,
            "parts": [pb.Part(text=text), *more],
            **fields,
        }
    )


def request(
    text: str | pb.Message = "hello",
    *,
    immediately: bool = False,
    history_length: int | None = None,
    tenant: str = "",
    push: pb.TaskPushNotificationConfig | None = None,
    metadata: dict[str, Any] | None = None,
    **fields: Any,
) -> pb.SendMessageRequest:
    """A SendMessageRequest; `fields` are the message's."""
    sent = text if isinstance(text, pb.Message) else message(text, **fields)
    made = pb.SendMessageRequest(
        message=sent,
        tenant=tenant,
        configuration=pb.SendMessageConfiguration(
            return_immediately=immediately, history_length=history_length
        ),
    )
    if push is not None:
        made.configuration.task_push_notification_config.CopyFrom(push)
    if metadata is not None:
        made.metadata.update(metadata)
    return made


# Clients.

Metadata = Sequence[tuple[str, str | bytes]]


class Client:
    """The stub, with the version and a deadline on every call.

    `raw` calls without any of that.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
        self.channel = channel
        self.raw: Any = pb.A2AServiceStub(channel)
        self._metadata = (("a2a-version", "1.0"), *metadata)

    def identified(self, *metadata: tuple[str, str | bytes]) -> Client:
        """The same channel with more metadata on every call."""
        return Client(self.channel, (*self._metadata[1:], *metadata))

    def call(
        self,
        method: str,
        request: Any,
        *,
        metadata: Metadata = (),
        timeout: float | None = PATIENCE,
    ) -> Any:
        """The call object of grpc: awaitable, or an async iterator for a stream."""
        return getattr(self.raw, method)(
            request, metadata=(*self._metadata, *metadata), timeout=timeout
        )

    async def send(
        self, text: str | pb.Message = "hello", *, call_metadata: Metadata = (), **kw: Any
    ) -> pb.Task:
        """SendMessage, answered with a Task."""
        answer = await self.call("SendMessage", request(text, **kw), metadata=call_metadata)
        assert answer.WhichOneof("payload") == "task", answer
        task: pb.Task = answer.task
        return task

    def stream(
        self, text: str | pb.Message = "hello", *, call_metadata: Metadata = (), **kw: Any
    ) -> Any:
        """SendStreamingMessage."""
        return self.call("SendStreamingMessage", request(text, **kw), metadata=call_metadata)

    def subscribe(self, task_id: str, *, call_metadata: Metadata = (), **kw: Any) -> Any:
        return self.call(
            "SubscribeToTask", pb.SubscribeToTaskRequest(id=task_id, **kw), metadata=call_metadata
        )

    async def get(self, task_id: str, **kw: Any) -> pb.Task:
        task: pb.Task = await self.call("GetTask", pb.GetTaskRequest(id=task_id, **kw))
        return task

    async def list(self, **kw: Any) -> pb.ListTasksResponse:
        page: pb.ListTasksResponse = await self.call("ListTasks", pb.ListTasksRequest(**kw))
        return page

    async def appeared(self, **kw: Any) -> pb.Task:
        """The only task that ListTasks finds, as soon as there is one."""
        async with asyncio.timeout(PATIENCE):
            while not (page := await self.list(**kw)).tasks:
                pass
        (task,) = page.tasks
        return task

    async def cancel(self, task_id: str, **kw: Any) -> pb.Task:
        task: pb.Task = await self.call("CancelTask", pb.CancelTaskRequest(id=task_id, **kw))
        return task


@dataclass
class Serving(Client):
    """A client together with the server that it is connected to."""

    server: A2AServer
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        Client.__init__(self, self.channel)


CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    """A client with a connection of its own."""
    async with grpc.aio.insecure_channel(
        address, options=(*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    ) as channel:
        yield Client(channel)


def a_server(agent: Any = None, **how: Any) -> A2AServer:
    """A server on a free port; arguments that ServerSettings has go there, others to A2AServer."""
    names = ServerSettings.__dataclass_fields__
    settings = {"port": 0, "grace": 0.0, "cancel_timeout": 2.0}
    settings |= {name: how.pop(name) for name in list(how) if name in names}
    if callable(agent) and not isinstance(agent, AgentExecutor) and agent in (echo, asking):
        agent = Agent(agent)
    return A2AServer(agent, settings=ServerSettings(**settings), **how)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(agent: Any = None, **how: Any) -> AsyncIterator[Serving]:
    """A running server and a client of it; see `a_server` for the arguments."""
    async with (
        a_server(agent, **how) as server,
        grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel,
    ):
        yield Serving(server, channel)


@asynccontextmanager
async def replicated(agent: Any = None, **how: Any) -> AsyncIterator[Serving]:
    """The same as `serving`, with two replicas that take the client's calls in turn.

    They are in one process, so that a test's agent knows of all its turns; what they share is in
    the storage and on the bus all the same.
    """
    async with a_server(agent, **how) as server, a_server(agent, **how) as other:
        target = f"ipv4:{server.address},{other.address}"
        options = (*CHANNEL_OPTIONS, ("grpc.lb_policy_name", "round_robin"))
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            yield Serving(server, channel)


async def collect(stream: Any) -> list[pb.StreamResponse]:
    """Everything until the stream ends."""
    found = []
    while (event := await within(stream.read())) is not grpc.aio.EOF:
        found.append(event)
    return found


async def take(stream: Any, count: int) -> list[pb.StreamResponse]:
    """The next `count` events."""
    found = []
    for _ in range(count):
        event = await within(stream.read())
        assert event is not grpc.aio.EOF, f"the stream ended after {len(found)} more events"
        found.append(event)
    return found


def kinds(events: Iterable[pb.StreamResponse]) -> list[str | None]:
    return [event.WhichOneof("payload") for event in events]


def outline(events: Iterable[pb.StreamResponse]) -> list[str]:
    """Each event in a word: `task WORKING`, `status COMPLETED`, `artifact text`, `message text`."""
    words = []
    for event in events:
        kind = event.WhichOneof("payload")
        if kind == "task":
            words.append("task " + state_name(event.task.status.state))
        elif kind == "status_update":
            words.append("status " + state_name(event.status_update.status.state))
        elif kind == "artifact_update":
            words.append("artifact " + text(event.artifact_update.artifact))
        else:
            words.append("message " + text(event.message))
    return words


def state_name(state: int) -> str:
    return pb.TaskState.Name(state).removeprefix("TASK_STATE_")  # type: ignore[arg-type]


def text(holder: pb.Message | pb.Artifact) -> str:
    """The text parts, joined."""
    return "".join(part.text for part in holder.parts)


def texts(messages: Iterable[pb.Message]) -> list[str]:
    return [text(one) for one in messages]


def sequence_of(event: pb.StreamResponse) -> int:
    """The sequence number in the event's metadata."""
    kind = event.WhichOneof("payload")
    assert kind is not None
    metadata = getattr(event, kind).metadata
    assert SEQUENCE_EXTENSION in metadata.fields, event
    return int(metadata.fields[SEQUENCE_EXTENSION].struct_value["sequence"])


def fold(events: Iterable[pb.StreamResponse]) -> tuple[str, dict[str, str]]:
    """What a reader of these events knows: the state, and each artifact's text."""
    state, artifacts = "", {}
    for event in events:
        kind = event.WhichOneof("payload")
        if kind == "task":
            state = state_name(event.task.status.state)
            artifacts = {one.artifact_id: text(one) for one in event.task.artifacts}
        elif kind == "status_update":
            state = state_name(event.status_update.status.state)
        elif kind == "artifact_update":
            update = event.artifact_update
            before = artifacts.get(update.artifact.artifact_id, "") if update.append else ""
            artifacts[update.artifact.artifact_id] = before + text(update.artifact)
    return state, artifacts


# Errors.


@dataclass(frozen=True)
class Status:
    """An error as a client reads it."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    retry_after: float | None = None


def status_of(error: grpc.aio.AioRpcError) -> Status:
    """The code, and what google.rpc.Status says beyond it."""
    trailing: Any = error.trailing_metadata() or ()
    # Pairs; in some versions of grpcio dict() would not take them.
    data = next((value for key, value in trailing if key == "grpc-status-details-bin"), None)
    status = status_pb2.Status.FromString(data) if isinstance(data, bytes) else status_pb2.Status()
    if data is not None:
        assert status.code == error.code().value[0]
        assert status.message == error.details()
    found: dict[str, Any] = {}
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            found |= {
                "reason": info.reason,
                "domain": info.domain,
                "metadata": dict(info.metadata),
            }
        elif detail.Unpack(bad):
            found["fields"] = tuple(violation.field for violation in bad.field_violations)
        elif detail.Unpack(retry):
            found["retry_after"] = retry.retry_delay.ToNanoseconds() / 1e9
    return Status(error.code(), error.details() or "", **found)


async def refused(call: Awaitable[Any] | Any) -> Status:
    """The error of a call that must fail; a stream is read to its end."""
    try:
        if hasattr(call, "__aiter__"):
            answer: Any = await within(collect(call))
        else:
            answer = await within(call)
    except grpc.aio.AioRpcError as error:
        return status_of(error)
    raise AssertionError(f"the call succeeded with {answer!r}")


def assert_invalid(status: Status, *fields: str) -> None:
    """INVALID_ARGUMENT that names these fields (promise 7)."""
    assert status.code is grpc.StatusCode.INVALID_ARGUMENT, status
    assert status.reason == "INVALID_PARAMS", status
    assert status.domain == "a2a-protocol.org", status
    for name in fields:
        assert name in status.fields, status


_CODES = {
    "TASK_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TASK_NOT_CANCELABLE": grpc.StatusCode.FAILED_PRECONDITION,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": grpc.StatusCode.FAILED_PRECONDITION,
    "UNSUPPORTED_OPERATION": grpc.StatusCode.FAILED_PRECONDITION,
    "CONTENT_TYPE_NOT_SUPPORTED": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_AGENT_RESPONSE": grpc.StatusCode.INTERNAL,
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": grpc.StatusCode.FAILED_PRECONDITION,
    "EXTENSION_SUPPORT_REQUIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "VERSION_NOT_SUPPORTED": grpc.StatusCode.FAILED_PRECONDITION,
    "INVALID_PARAMS": grpc.StatusCode.INVALID_ARGUMENT,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "RESOURCE_EXHAUSTED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}


def assert_error(status: Status, reason: str) -> None:
    """The A2A error with this reason, its code and its domain (specification 5.4, 10.6)."""
    assert (status.code, status.reason, status.domain) == (
        _CODES[reason],
        reason,
        "a2a-protocol.org",
    ), status


async def concurrently(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """All results, within the test's patience."""
    return list(await within(asyncio.gather(*calls)))
