"""a2a-sdk's own gRPC client, put through every operation of A2A against the server of this test.

    python a2a_sdk_client.py HOST:PORT

Runs where a2a-sdk is installed and this repository's package is not. Prints one JSON line for each
operation: {"operation": its name, "ok": whether it passed, "detail": what went wrong}. The agent on
the other side, and what it does on which word, is in test_a2a_sdk_client.py.
"""

# mypy: disable-error-code="import-not-found"
# The environment that checks types has no a2a-sdk.

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, Self

import grpc
from a2a.client import Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.auth import AuthInterceptor, CredentialService
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.client.interceptors import ClientCallInterceptor
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.helpers import (
    get_artifact_text,
    get_message_text,
    get_stream_response_text,
    new_data_part,
    new_message,
    new_raw_part,
    new_text_message,
    new_text_part,
    new_url_part,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    HTTPAuthSecurityScheme,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Role,
    SecurityRequirement,
    SecurityScheme,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    StringList,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils import TransportProtocol
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

DEADLINE = 30.0
"""Seconds that one operation may take."""

EXTENSION = "https://example.org/extensions/tested"


class Bearer(CredentialService):  # type: ignore[misc, unused-ignore]  # Any without a2a-sdk
    """The same credentials for every scheme."""

    def __init__(self, credentials: str) -> None:
        self._credentials = credentials

    async def get_credentials(
        self, security_scheme_name: str, context: ClientCallContext | None
    ) -> str | None:
        return self._credentials


class Sdk:
    """Makes clients of the server under test, as a2a-sdk's documentation says."""

    def __init__(self, address: str) -> None:
        self._address = address

    def card(self, tenant: str = "") -> AgentCard:
        """What a client has to know of the server."""
        bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
        return AgentCard(
            name="tested",
            supported_interfaces=[
                AgentInterface(
                    url=self._address,
                    protocol_binding=TransportProtocol.GRPC,
                    protocol_version="1.0",
                    tenant=tenant,
                )
            ],
            capabilities=AgentCapabilities(
                streaming=True, push_notifications=True, extended_agent_card=True
            ),
            security_schemes={"bearer": bearer},
            security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
        )

    def client(self, *, tenant: str = "", credentials: str = "", **config: Any) -> Client:
        """A client with a connection of its own, to be closed."""
        factory = ClientFactory(
            ClientConfig(
                grpc_channel_factory=grpc.aio.insecure_channel,
                supported_protocol_bindings=[TransportProtocol.GRPC],
                **config,
            )
        )
        interceptors: list[ClientCallInterceptor] = []
        if credentials:
            interceptors.append(AuthInterceptor(Bearer(credentials)))
        return factory.create(self.card(tenant), interceptors)

    def polling(self) -> Client:
        """A client that asks for the task at once."""
        return self.client(streaming=False, polling=True)

    def blocking(self, **options: Any) -> Client:
        """A client that waits for what its message comes to."""
        return self.client(streaming=False, **options)

    async def open(self, gate: str) -> None:
        """Let the task go on that is held at this gate."""
        async with self.blocking() as client:
            expect(get_message_text(await ask(client, f"open {gate}")), "opened")

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Held]:
        """A task in the middle of its artifact, with the stream of its sender."""
        gate = new_id()
        async with (
            self.client() as client,
            aclosing(client.send_message(request(f"hold {gate}"))) as stream,  # type: ignore[type-var, unused-ignore]
        ):
            first = await anext(stream)
            expect(kinds([first]), ["task"])
            second = await anext(stream)
            expect(get_stream_response_text(second), "before")
            yield Held(gate, first.task, client, stream)


class Held(NamedTuple):
    """A task that waits at a gate after it has published the text "before"."""

    gate: str
    task: Task
    client: Client
    stream: AsyncIterator[StreamResponse]


class Received(NamedTuple):
    """One request to a webhook."""

    path: str
    headers: dict[str, str]
    event: StreamResponse


class Webhook:
    """A receiver of push notifications on this machine."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[Received] = asyncio.Queue()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def url(self, path: str) -> str:
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}{path}"

    async def until_completed(self) -> list[Received]:
        """What arrives, up to the end of the task."""
        found = [await self._received.get()]
        while found[-1].event.status_update.status.state != TaskState.TASK_STATE_COMPLETED:
            found.append(await self._received.get())
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        body = await reader.readexactly(int(headers["content-length"]))
        event = json_format.Parse(body, StreamResponse())
        self._received.put_nowait(Received(head[0].split()[1], headers, event))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


# Words that the operations below are written in.


def new_id() -> str:
    return str(uuid.uuid4())


def request(
    content: str | Message, *, task_id: str = "", context_id: str = "", **configuration: Any
) -> SendMessageRequest:
    if isinstance(content, str):
        content = new_text_message(
            content, task_id=task_id, context_id=context_id, role=Role.ROLE_USER
        )
    return SendMessageRequest(
        message=content, configuration=SendMessageConfiguration(**configuration)
    )


async def collect(stream: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [response async for response in stream]


async def ask(client: Client, content: str | Message, **options: Any) -> Any:
    """The Task or Message that a message comes to."""
    (response,) = await collect(client.send_message(request(content, **options)))
    return getattr(response, response.WhichOneof("payload"))


def kinds(stream: list[StreamResponse]) -> list[str]:
    return [response.WhichOneof("payload") for response in stream]


def texts(task: Task) -> list[str]:
    return [get_artifact_text(artifact) for artifact in task.artifacts]


def inputs(task: Task) -> list[str]:
    """What the user said, as the task's history tells."""
    return [get_message_text(m) for m in task.history if m.role == Role.ROLE_USER]


def expect(got: object, wanted: object) -> None:
    if got != wanted:
        raise AssertionError(f"expected {wanted!r}, got {got!r}")


async def raised(error: type[Exception], call: Awaitable[object]) -> Any:
    """The error of exactly this class that the call raises."""
    try:
        result = await call
    except Exception as caught:
        if type(caught) is not error:
            raise AssertionError(f"expected {error.__name__}") from caught
        return caught
    raise AssertionError(f"expected {error.__name__}, got {result!r}")


Operation = Callable[[Sdk], Awaitable[None]]
OPERATIONS: list[Operation] = []


def operation(function: Operation) -> Operation:
    OPERATIONS.append(function)
    return function


# SendMessage.


@operation
async def send_message_blocking(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "echo hello")
        expect(task.status.state, TaskState.TASK_STATE_COMPLETED)
        expect(texts(task), ["hello"])
        expect(inputs(task), ["echo hello"])
        expect(bool(task.id and task.context_id and task.status.HasField("timestamp")), True)


@operation
async def send_message_with_parts_of_every_kind(sdk: Sdk) -> None:
    parts = [
        new_text_part("echo", media_type="text/plain"),
        new_raw_part(b"\x00\xff", media_type="application/octet-stream", filename="two.bin"),
        new_url_part("https://example.org/x.png", media_type="image/png"),
        new_data_part({"n": 3, "list": [1.5, None, True, {"deep": "x"}]}),
    ]
    async with sdk.blocking() as client:
        task = await ask(client, new_message(parts, role=Role.ROLE_USER))
        expect(list(task.artifacts[0].parts), parts)
        expect(list(task.history[0].parts), parts)


@operation
async def send_message_history_length(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        expect(inputs(await ask(client, "echo a", history_length=0)), [])
        expect(inputs(await ask(client, "echo b", history_length=1)), ["echo b"])


@operation
async def send_message_return_immediately(sdk: Sdk) -> None:
    gate = new_id()
    async with sdk.polling() as client, sdk.client() as follower:
        task = await ask(client, f"hold {gate}")
        expect(task.status.state, TaskState.TASK_STATE_WORKING)
        stream = follower.subscribe(SubscribeToTaskRequest(id=task.id))
        expect(kinds([await anext(stream)]), ["task"])
        await sdk.open(gate)
        last = (await collect(stream))[-1]
        expect(last.status_update.status.state, TaskState.TASK_STATE_COMPLETED)
        task = await client.get_task(GetTaskRequest(id=task.id))
        expect(task.status.state, TaskState.TASK_STATE_COMPLETED)


@operation
async def send_message_direct_message(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        reply = await ask(client, "direct hello", context_id="direct-replies")
        expect(isinstance(reply, Message), True)
        expect(get_message_text(reply), "hello")
        expect((reply.role, reply.context_id), (Role.ROLE_AGENT, "direct-replies"))
        listed = await client.list_tasks(ListTasksRequest(context_id="direct-replies"))
        expect(listed.total_size, 0)


@operation
async def send_message_multi_turn(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "interview")
        context_id = task.context_id
        for answer in ("blue", "seven"):
            expect(task.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
            expect(get_message_text(task.status.message), "go on")
            task = await ask(client, answer, task_id=task.id)
            expect(task.context_id, context_id)
        task = await ask(client, "done", task_id=task.id, context_id=context_id)
        expect(task.status.state, TaskState.TASK_STATE_COMPLETED)
        expect(inputs(task), ["interview", "blue", "seven", "done"])
        expect(texts(task), ["interview blue seven done"])


@operation
async def send_message_with_push_config(sdk: Sdk) -> None:
    async with Webhook() as webhook:
        config = TaskPushNotificationConfig(url=webhook.url("/inline"), token="t0")
        async with sdk.blocking(push_notification_config=config) as client:
            task = await ask(client, "echo hello")
            received = await webhook.until_completed()
            expect(kinds([r.event for r in received]), ["task", "artifact_update", "status_update"])
            expect(received[0].event.task.id, task.id)
            expect({r.path for r in received}, {"/inline"})
            listed = await client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=task.id)
            )
            expect([c.url for c in listed.configs], [config.url])


@operation
async def send_message_with_metadata_and_extensions(sdk: Sdk) -> None:
    asked = request("about")
    asked.metadata.update({"n": 3, "nested": {"list": ["x"]}})
    parameters = ServiceParametersFactory.create([with_a2a_extensions([EXTENSION])])
    context = ClientCallContext(service_parameters=parameters)
    async with sdk.blocking() as client:
        (response,) = await collect(client.send_message(asked, context=context))
        about = json_format.MessageToDict(response.message.parts[0].data)
        expect(about["extensions"], [EXTENSION])
        expect(about["metadata"], {"n": 3, "nested": {"list": ["x"]}})
        expect(about["principal"], "")


@operation
async def send_message_with_credentials(sdk: Sdk) -> None:
    async with sdk.blocking(credentials="alice's") as alice, sdk.blocking() as anybody:
        about = await ask(alice, "about")
        expect(json_format.MessageToDict(about.parts[0].data)["principal"], "alice")
        task = await ask(alice, "echo hello")
        expect((await alice.get_task(GetTaskRequest(id=task.id))).id, task.id)
        await raised(TaskNotFoundError, anybody.get_task(GetTaskRequest(id=task.id)))


@operation
async def send_message_to_tenant(sdk: Sdk) -> None:
    async with sdk.blocking(tenant="plain") as client, sdk.blocking() as other:
        about = await ask(client, "about")
        expect(json_format.MessageToDict(about.parts[0].data)["tenant"], "plain")
        task = await ask(client, "echo hello")
        expect((await client.get_task(GetTaskRequest(id=task.id))).id, task.id)
        await raised(TaskNotFoundError, other.get_task(GetTaskRequest(id=task.id)))


@operation
async def send_message_to_agent_that_raises(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "raise")
        expect(task.status.state, TaskState.TASK_STATE_FAILED)
        expect("secret" in str(task), False)


# SendStreamingMessage.


@operation
async def send_streaming_message(sdk: Sdk) -> None:
    async with sdk.client() as client:
        stream = await collect(client.send_message(request("stream one two three")))
        expect(kinds(stream), ["task", *["artifact_update"] * 3, "status_update"])
        task = stream[0].task
        expect(inputs(task), ["stream one two three"])
        chunks = [response.artifact_update for response in stream[1:4]]
        expect([get_artifact_text(c.artifact) for c in chunks], ["one", "two", "three"])
        expect([c.append for c in chunks], [False, True, True])
        expect([c.last_chunk for c in chunks], [False, False, True])
        expect({(c.task_id, c.context_id) for c in chunks}, {(task.id, task.context_id)})
        expect(stream[4].status_update.status.state, TaskState.TASK_STATE_COMPLETED)
        stored = await client.get_task(GetTaskRequest(id=task.id))
        expect([part.text for part in stored.artifacts[0].parts], ["one", "two", "three"])


@operation
async def send_streaming_message_direct_message(sdk: Sdk) -> None:
    async with sdk.client() as client:
        stream = await collect(client.send_message(request("direct hello")))
        expect(kinds(stream), ["message"])
        expect(get_stream_response_text(stream[0]), "hello")


@operation
async def send_streaming_message_multi_turn(sdk: Sdk) -> None:
    async with sdk.client() as client:
        first = await collect(client.send_message(request("interview")))
        expect(kinds(first), ["task", "status_update"])
        asked = first[-1].status_update.status
        expect(asked.state, TaskState.TASK_STATE_INPUT_REQUIRED)
        expect(get_message_text(asked.message), "go on")
        task, gate = first[0].task, new_id()
        stream = client.send_message(request(f"done {gate}", task_id=task.id))
        second = (await anext(stream)).task
        expect((second.id, second.context_id), (task.id, task.context_id))
        expect(inputs(second), ["interview", f"done {gate}"])
        await sdk.open(gate)
        rest = await collect(stream)
        expect(kinds(rest), ["artifact_update", "status_update"])
        expect(get_stream_response_text(rest[0]), f"interview done {gate}")
        expect(rest[-1].status_update.status.state, TaskState.TASK_STATE_COMPLETED)


@operation
async def send_streaming_message_events_arrive_while_the_agent_works(sdk: Sdk) -> None:
    async with sdk.held() as held:
        # The agent has not gone on: it waits at the gate, and only this opens it.
        await sdk.open(held.gate)
        rest = await collect(held.stream)
        expect(kinds(rest), ["artifact_update", "status_update"])
        expect(get_stream_response_text(rest[0]), "after")


# GetTask and ListTasks.


@operation
async def get_task(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        sent = await ask(client, "echo hello")
        expect(await client.get_task(GetTaskRequest(id=sent.id)), sent)


@operation
async def get_task_history_length(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task_id = (await ask(client, "interview")).id
        await ask(client, "done", task_id=task_id)

        async def history(**options: Any) -> list[str]:
            task = await client.get_task(GetTaskRequest(id=task_id, **options))
            return [get_message_text(message) for message in task.history]

        whole = await history()
        expect(whole, ["interview", "go on", "done"])
        expect(await history(history_length=0), [])
        expect(await history(history_length=1), whole[-1:])
        expect(await history(history_length=2), whole[-2:])
        expect(await history(history_length=100), whole)


@operation
async def list_tasks_paging(sdk: Sdk) -> None:
    context_id = new_id()
    async with sdk.blocking() as client:
        sent = [(await ask(client, "echo x", context_id=context_id)).id for _ in range(4)]
        newest_first = sent[::-1]
        query = ListTasksRequest(context_id=context_id, page_size=3)
        page = await client.list_tasks(query)
        expect([task.id for task in page.tasks], newest_first[:3])
        expect((page.page_size, page.total_size, bool(page.next_page_token)), (3, 4, True))
        # What is added in between moves nothing.
        await ask(client, "echo y", context_id=context_id)
        query.page_token = page.next_page_token
        page = await client.list_tasks(query)
        expect([task.id for task in page.tasks], newest_first[3:])
        expect(page.next_page_token, "")
        # A last page that is exactly full is the last one.
        page = await client.list_tasks(ListTasksRequest(context_id=context_id, page_size=5))
        expect((len(page.tasks), page.next_page_token), (5, ""))


@operation
async def list_tasks_filters(sdk: Sdk) -> None:
    context_id = new_id()
    async with sdk.blocking() as client:
        done, waiting, later = [
            await ask(client, text, context_id=context_id)
            for text in ("echo hello", "interview", "echo later")
        ]
        await ask(client, "echo elsewhere")

        async def found(**query: Any) -> list[Task]:
            listed = await client.list_tasks(ListTasksRequest(context_id=context_id, **query))
            expect(listed.total_size, len(listed.tasks))
            return list(listed.tasks)

        async def ids(**query: Any) -> list[str]:
            return [task.id for task in await found(**query)]

        expect(await ids(), [later.id, waiting.id, done.id])
        expect(await ids(status=TaskState.TASK_STATE_INPUT_REQUIRED), [waiting.id])
        expect(await ids(status=TaskState.TASK_STATE_COMPLETED), [later.id, done.id])
        expect(await ids(status=TaskState.TASK_STATE_CANCELED), [])
        since = Timestamp()
        since.CopyFrom(waiting.status.timestamp)
        expect(await ids(status_timestamp_after=since), [later.id, waiting.id])
        since.FromNanoseconds(later.status.timestamp.ToNanoseconds() + 1)
        expect(await ids(status_timestamp_after=since), [])
        expect([texts(task) for task in await found()], [[], [], []])
        with_artifacts = await found(include_artifacts=True)
        expect([texts(task) for task in with_artifacts], [["later"], [], ["hello"]])
        expect([len(task.history) for task in await found(history_length=0)], [0, 0, 0])


# CancelTask.


@operation
async def cancel_task_running(sdk: Sdk) -> None:
    async with sdk.held() as held:
        task = await held.client.cancel_task(CancelTaskRequest(id=held.task.id))
        expect(task.status.state, TaskState.TASK_STATE_CANCELED)
        expect(get_message_text(task.status.message), "stopped")
        expect(texts(task), ["before"])
        last = (await collect(held.stream))[-1].status_update
        expect(last.status.state, TaskState.TASK_STATE_CANCELED)


@operation
async def cancel_task_waiting_for_input(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        waiting = await ask(client, "interview")
        task = await client.cancel_task(CancelTaskRequest(id=waiting.id))
        expect(task.status.state, TaskState.TASK_STATE_CANCELED)
        before, now = (t.status.timestamp.ToNanoseconds() for t in (waiting, task))
        expect(now > before, True)


# SubscribeToTask.


@operation
async def subscribe_to_task_joining_in_the_middle(sdk: Sdk) -> None:
    async with sdk.held() as held, sdk.client() as joiner:
        joined = joiner.subscribe(SubscribeToTaskRequest(id=held.task.id))
        first = await anext(joined)
        expect(kinds([first]), ["task"])
        expect(first.task.status.state, TaskState.TASK_STATE_WORKING)
        expect(texts(first.task), ["before"])
        await sdk.open(held.gate)
        rest = await collect(joined)
        expect(kinds(rest), ["artifact_update", "status_update"])
        expect(get_stream_response_text(rest[0]), "after")
        expect(rest[-1].status_update.status.state, TaskState.TASK_STATE_COMPLETED)
        expect(rest, await collect(held.stream))


@operation
async def subscribe_to_task_follows_the_next_turn(sdk: Sdk) -> None:
    async with sdk.blocking() as sender, sdk.client() as follower:
        task = await ask(sender, "interview")
        stream = follower.subscribe(SubscribeToTaskRequest(id=task.id))
        first = await anext(stream)
        expect(first.task.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
        await ask(sender, "done", task_id=task.id)
        expect(kinds(await collect(stream)), ["artifact_update", "status_update"])


# Push configurations.


def webhook_config(task: Task, url: str, config_id: str = "") -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(
        task_id=task.id,
        id=config_id,
        url=url,
        token="t0",
        authentication=AuthenticationInfo(scheme="Bearer", credentials="c0"),
    )


@operation
async def create_push_config(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "interview")
        url = "http://127.0.0.1:9/hook"
        create = client.create_task_push_notification_config
        first = await create(webhook_config(task, url))
        second = await create(webhook_config(task, url))
        expect(bool(first.id and second.id) and first.id != second.id, True)
        expect(first, webhook_config(task, url, first.id))
        named = await create(webhook_config(task, url, "named"))
        expect(named, webhook_config(task, url, "named"))


@operation
async def create_push_config_and_receive_the_webhook(sdk: Sdk) -> None:
    async with Webhook() as webhook, sdk.held() as held:
        await held.client.create_task_push_notification_config(
            webhook_config(held.task, webhook.url("/hook?x=1"))
        )
        await sdk.open(held.gate)
        sent = await collect(held.stream)
        received = await webhook.until_completed()
        expect([r.event for r in received], sent)
        for path, headers, _ in received:
            expect(path, "/hook?x=1")
            expect(headers["content-type"], "application/a2a+json")
            expect(headers["authorization"], "Bearer c0")
            expect(headers["x-a2a-notification-token"], "t0")


@operation
async def get_push_config(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "interview")
        created = await client.create_task_push_notification_config(
            webhook_config(task, "http://127.0.0.1:9/hook")
        )
        got = await client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task.id, id=created.id)
        )
        expect(got, created)


@operation
async def list_push_configs(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "interview")
        for name in ("a", "b", "c"):
            await client.create_task_push_notification_config(
                webhook_config(task, f"http://127.0.0.1:9/{name}", name)
            )
        query = ListTaskPushNotificationConfigsRequest(task_id=task.id)
        listed = await client.list_task_push_notification_configs(query)
        expect([c.id for c in listed.configs], ["a", "b", "c"])
        expect(listed.next_page_token, "")
        query.page_size = 2
        listed = await client.list_task_push_notification_configs(query)
        expect([c.id for c in listed.configs], ["a", "b"])
        query.page_token = listed.next_page_token
        listed = await client.list_task_push_notification_configs(query)
        expect([c.id for c in listed.configs], ["c"])
        expect(listed.next_page_token, "")


@operation
async def delete_push_config(sdk: Sdk) -> None:
    async with Webhook() as webhook, sdk.held() as held:
        client, task = held.client, held.task
        for name in ("kept", "deleted"):
            await client.create_task_push_notification_config(
                webhook_config(task, webhook.url(f"/{name}"), name)
            )
        for _ in range(2):  # the second time there is nothing left to delete
            await client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="deleted")
            )
        listed = await client.list_task_push_notification_configs(
            ListTaskPushNotificationConfigsRequest(task_id=task.id)
        )
        expect([c.id for c in listed.configs], ["kept"])
        await sdk.open(held.gate)
        expect({r.path for r in await webhook.until_completed()}, {"/kept"})


# GetExtendedAgentCard.


@operation
async def get_extended_agent_card(sdk: Sdk) -> None:
    async with sdk.client(credentials="alice's") as client:
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        expect([skill.id for skill in card.skills], ["public", "for-alice"])


@operation
async def get_extended_agent_card_and_go_on_with_it(sdk: Sdk) -> None:
    # From here on the client goes by the extended card: what it offers, and how to authenticate.
    async with sdk.client(credentials="alice's") as client:
        await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        stream = await collect(client.send_message(request("stream one two")))
        expect(kinds(stream), ["task", "artifact_update", "artifact_update", "status_update"])
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        interfaces = [(i.protocol_binding, i.protocol_version) for i in card.supported_interfaces]
        expect(interfaces, [("GRPC", "1.0")])


# Errors, as the client decodes them from the status and its details.


@operation
async def error_task_not_found(sdk: Sdk) -> None:
    missing = new_id()
    async with sdk.client() as client, sdk.blocking() as sender:
        for call in (
            client.get_task(GetTaskRequest(id=missing)),
            client.cancel_task(CancelTaskRequest(id=missing)),
            collect(client.subscribe(SubscribeToTaskRequest(id=missing))),
            collect(client.send_message(request("hello", task_id=missing))),
            collect(sender.send_message(request("hello", task_id=missing))),
            client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=missing, url="http://127.0.0.1:9/hook")
            ),
            client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=missing, id="c")
            ),
            client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=missing)
            ),
            client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=missing, id="c")
            ),
        ):
            error = await raised(TaskNotFoundError, call)
            expect(missing in error.message, True)


@operation
async def error_push_config_not_found(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "echo hello")
        await raised(
            TaskNotFoundError,
            client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task.id, id="none")
            ),
        )


@operation
async def error_task_not_cancelable(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        task = await ask(client, "echo hello")
        await raised(TaskNotCancelableError, client.cancel_task(CancelTaskRequest(id=task.id)))


@operation
async def error_unsupported_operation(sdk: Sdk) -> None:
    async with sdk.client() as client, sdk.blocking() as sender:
        task = await ask(sender, "echo hello")
        for call in (
            collect(client.subscribe(SubscribeToTaskRequest(id=task.id))),
            collect(client.send_message(request("more", task_id=task.id))),
            collect(sender.send_message(request("more", task_id=task.id))),
        ):
            await raised(UnsupportedOperationError, call)


@operation
async def error_capability_not_declared(sdk: Sdk) -> None:
    async with sdk.client(tenant="plain") as client, sdk.blocking(tenant="plain") as sender:
        task = await ask(sender, "interview")
        for call in (
            collect(client.send_message(request("echo hello"))),
            collect(client.subscribe(SubscribeToTaskRequest(id=task.id))),
            client.get_extended_agent_card(GetExtendedAgentCardRequest()),
        ):
            await raised(UnsupportedOperationError, call)


@operation
async def error_push_notification_not_supported(sdk: Sdk) -> None:
    config = TaskPushNotificationConfig(url="http://127.0.0.1:9/hook")
    async with (
        sdk.blocking(tenant="plain") as client,
        sdk.blocking(tenant="plain", push_notification_config=config) as pushing,
    ):
        task = await ask(client, "interview")
        for call in (
            client.create_task_push_notification_config(webhook_config(task, config.url)),
            client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task.id, id="c")
            ),
            client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=task.id)
            ),
            client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="c")
            ),
            collect(pushing.send_message(request("echo hello"))),
        ):
            await raised(PushNotificationNotSupportedError, call)


@operation
async def error_content_type_not_supported(sdk: Sdk) -> None:
    parts = [new_raw_part(b"x", media_type="video/mp4")]
    async with sdk.blocking() as client:
        await raised(
            ContentTypeNotSupportedError, ask(client, new_message(parts, role=Role.ROLE_USER))
        )


@operation
async def error_invalid_params(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        for call, field in (
            (ask(client, new_message([], role=Role.ROLE_USER)), "message.parts"),
            (client.list_tasks(ListTasksRequest(page_size=101)), "page_size"),
            (client.list_tasks(ListTasksRequest(page_token="x")), "page_token"),
            (client.get_task(GetTaskRequest(id="x", history_length=-1)), "history_length"),
            (ask(client, "refuse"), "message.parts"),
        ):
            error = await raised(InvalidParamsError, call)
            expect([violation["field"] for violation in error.data["errors"]], [field])


@operation
async def error_invalid_agent_response(sdk: Sdk) -> None:
    async with sdk.blocking() as client:
        await raised(InvalidAgentResponseError, ask(client, "misbehave"))


@operation
async def error_extended_agent_card_not_configured(sdk: Sdk) -> None:
    async with sdk.blocking(tenant="strict") as client:
        context = ClientCallContext(service_parameters={"A2A-Extensions": EXTENSION})
        await raised(
            ExtendedAgentCardNotConfiguredError,
            client.get_extended_agent_card(GetExtendedAgentCardRequest(), context=context),
        )


@operation
async def error_extension_support_required(sdk: Sdk) -> None:
    async with sdk.client(tenant="strict") as client, sdk.blocking(tenant="strict") as sender:
        for call in (
            collect(client.send_message(request("direct hello"))),
            collect(sender.send_message(request("direct hello"))),
            client.get_task(GetTaskRequest(id="x")),
        ):
            await raised(ExtensionSupportRequiredError, call)
        parameters = ServiceParametersFactory.create([with_a2a_extensions([EXTENSION])])
        context = ClientCallContext(service_parameters=parameters)
        stream = await collect(client.send_message(request("direct hello"), context=context))
        expect(kinds(stream), ["message"])


@operation
async def error_version_not_supported(sdk: Sdk) -> None:
    context = ClientCallContext(service_parameters={"A2A-Version": "9.9"})
    async with sdk.client() as client, sdk.blocking() as sender:
        for call in (
            client.get_task(GetTaskRequest(id="x"), context=context),
            collect(client.send_message(request("echo hello"), context=context)),
            collect(sender.send_message(request("echo hello"), context=context)),
        ):
            await raised(VersionNotSupportedError, call)


@operation
async def error_unauthenticated(sdk: Sdk) -> None:
    async with sdk.client() as anybody, sdk.client(credentials="mallory's") as mallory:
        for call in (
            anybody.get_extended_agent_card(GetExtendedAgentCardRequest()),
            mallory.get_task(GetTaskRequest(id="x")),
            collect(mallory.send_message(request("echo hello"))),
        ):
            error = await raised(A2AClientError, call)
            expect("UNAUTHENTICATED" in error.message, True)


@operation
async def error_timeout_bounds_the_call_and_not_the_task(sdk: Sdk) -> None:
    gate = new_id()
    async with sdk.client() as client:
        context = ClientCallContext(timeout=1.0)
        stream = client.send_message(request(f"hold {gate}"), context=context)
        task = (await anext(stream)).task
        await raised(A2AClientTimeoutError, collect(stream))
        joined = client.subscribe(SubscribeToTaskRequest(id=task.id))
        state = (await anext(joined)).task.status.state
        expect(state, TaskState.TASK_STATE_WORKING)
        await sdk.open(gate)
        last = (await collect(joined))[-1].status_update
        expect(last.status.state, TaskState.TASK_STATE_COMPLETED)


async def main(address: str) -> None:
    if importlib.util.find_spec("a2a_grpc") is not None:
        raise SystemExit("a2a_grpc is importable here, so this would not test a2a-sdk alone")
    sdk = Sdk(address)
    for function in OPERATIONS:
        ok, detail = True, ""
        try:
            async with asyncio.timeout(DEADLINE):
                await function(sdk)
        except Exception:
            ok, detail = False, traceback.format_exc()
        print(json.dumps({"operation": function.__name__, "ok": ok, "detail": detail}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
