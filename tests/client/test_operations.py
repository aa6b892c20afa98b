"""Every operation of A2A through A2AClient, over real gRPC."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from a2a_grpc import (
    A2AClient,
    Principal,
    ServerCallContext,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    pb,
)
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from tests.client.support import client_of, eventually, failing, read, read_some, sent
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    echo,
    message,
    outline,
    publishing,
    serving,
    status_update,
    text,
    texts,
    within,
)


class Noting(Agent):
    """Echoes, and keeps the contexts it was called with."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []
        super().__init__(self._note)

    async def _note(self, context: Any, queue: Any) -> None:
        self.contexts.append(context)
        await echo(context, queue)


async def test_send_returns_the_task(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s, client_of(s) as client:
        task = await sent(client, "hello")
        assert isinstance(task, pb.Task)
        assert task.status.state == COMPLETED
        assert text(task.artifacts[0]) == "hello"
        assert client.address == s.server.address


async def test_send_returns_a_direct_message() -> None:
    answer = pb.Message(message_id="m", role=pb.Role.ROLE_AGENT, parts=[pb.Part(text="hi")])
    async with serving(publishing(answer)) as s, client_of(s) as client:
        found = await client.send("hello")
        assert isinstance(found, pb.Message)
        assert text(found) == "hi"


async def test_send_returns_at_once_if_told_so() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        task = await within(sent(client, "hello", return_immediately=True))
        assert task.status.state == WORKING
        agent.go.set()


async def test_send_takes_every_kind_of_content() -> None:
    agent = Noting()
    parts = ["text", b"\0raw", {"a": [1, None]}, pb.Part(url="https://example.com/x")]
    async with serving(agent) as s, client_of(s) as client:
        for content in (*parts, parts, tuple(parts), message("text", message_id="mine")):
            await sent(client, content)
    received = [list(context.message.parts) for context in agent.contexts]
    assert [part.WhichOneof("content") for part in received[4]] == ["text", "raw", "data", "url"]
    assert received[4] == [one for (one,) in received[:4]]
    assert received[5] == received[4]
    assert agent.contexts[6].message.message_id == "mine"
    ids = {context.message.message_id for context in agent.contexts}
    assert len(ids) == 7
    assert {context.message.role for context in agent.contexts} == {pb.Role.ROLE_USER}


async def test_send_passes_on_everything_it_is_given() -> None:
    agent = Noting()
    async with serving(agent) as s, client_of(s) as client:
        earlier = await sent(client, "earlier", context_id="c")
        given = message("again", message_id="m")
        task = await sent(
            client,
            given,
            context_id="c",
            message_id="m",
            accepted_output_modes=["text/plain"],
            history_length=0,
            metadata={"request": [1, "two"]},
            message_metadata={"message": True},
            reference_task_ids=[earlier.id],
            extensions=["urn:example:one"],
        )
        assert not task.history
        context = agent.contexts[1]
        assert task.context_id == context.context_id == "c"
        assert context.message.metadata["message"] is True
        assert list(context.message.reference_task_ids) == [earlier.id]
        assert context.message.message_id == "m"
        assert given == message("again", message_id="m"), "the caller's message is left alone"
        assert "urn:example:one" in context.requested_extensions


async def test_a_task_goes_on_with_its_id() -> None:
    async with serving(asking) as s, client_of(s) as client:
        task = await sent(client, "hello")
        assert task.status.state == INPUT_REQUIRED
        ended = await sent(client, "done", task_id=task.id)
        assert ended.id == task.id
        assert ended.status.state == COMPLETED


async def test_stream_yields_the_task_and_its_events(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s, client_of(s) as client:
        stream = client.stream("hello")
        assert (stream.sequence, stream.task_id, stream.is_reset) == (0, "", False)
        seen = []
        async for event in stream:
            seen.append((outline([event]), stream.sequence, stream.is_reset))
            assert SEQUENCE_EXTENSION not in str(event)
        assert seen == [
            (["task WORKING"], 1, False),
            (["artifact hello"], 2, False),
            (["status COMPLETED"], 3, False),
        ]
        task = await client.get_task(stream.task_id)
        assert task.status.state == COMPLETED
        assert stream.reconnects == 0
        assert [event async for event in stream] == [], "an ended stream stays ended"


async def test_stream_yields_a_direct_message_and_ends() -> None:
    answer = pb.Message(message_id="m", role=pb.Role.ROLE_AGENT, parts=[pb.Part(text="hi")])
    async with serving(publishing(answer)) as s, client_of(s) as client:
        stream = client.stream("hello")
        assert outline(await read(stream)) == ["message hi"]
        assert stream.sequence == 0


async def test_stream_ends_where_input_is_asked_for_and_the_next_turn_streams_too() -> None:
    async with serving(asking) as s, client_of(s) as client:
        first = client.stream("hello")
        assert outline(await read(first)) == ["task WORKING", "status INPUT_REQUIRED"]
        second = client.stream("done", task_id=first.task_id)
        assert outline(await read(second)) == ["task INPUT_REQUIRED", "status COMPLETED"]
        assert second.task_id == first.task_id


async def test_leaving_a_stream_ends_the_call_and_not_the_task() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        async with client.stream("hello") as stream:
            await within(anext(stream))
        assert [event async for event in stream] == []
        agent.go.set()

        async def completed() -> bool:
            return (await client.get_task(stream.task_id)).status.state == COMPLETED

        await eventually(completed)
        assert not agent.cancelled.is_set()


async def test_a_stream_that_is_closed_before_it_began_sends_nothing() -> None:
    async with serving(echo) as s, client_of(s) as client:
        stream = client.stream("hello")
        await stream.aclose()
        await stream.aclose()
        assert [event async for event in stream] == []
        assert not (await client.list_tasks()).tasks


async def test_giving_up_on_one_event_does_not_end_the_stream() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        stream = client.stream("hello")
        seen = [await within(anext(stream))]
        with pytest.raises(TimeoutError):
            await within(anext(stream), 0.05)
        agent.go.set()
        seen += await read(stream)
        assert outline(seen) == ["task WORKING", "status COMPLETED"]


async def test_subscribe_follows_a_task_to_its_end(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agent) as s, client_of(s) as client:
        task = await sent(client, "hello", return_immediately=True)
        stream = client.subscribe(task.id)
        assert stream.task_id == task.id
        seen = await read_some(stream, 1)
        agent.go.set()
        seen += await read(stream)
        assert outline(seen) == ["task WORKING", "status COMPLETED"]
        assert stream.sequence == 2


async def test_subscribe_goes_on_after_a_sequence_number_also_when_the_task_has_ended() -> None:
    async with serving(echo) as s, client_of(s) as client:
        first = client.stream("hello")
        assert len(await read_some(first, 2)) == 2
        await first.aclose()
        rest = client.subscribe(first.task_id, last_sequence=first.sequence)
        assert outline(await read(rest)) == ["status COMPLETED"]
        assert rest.sequence == 3
        everything = client.subscribe(first.task_id, last_sequence=0)
        assert outline(await read(everything)) == [
            "task WORKING",
            "artifact hello",
            "status COMPLETED",
        ]
        assert await read(client.subscribe(first.task_id, last_sequence=3)) == []


async def test_subscribing_to_a_task_that_has_ended_is_refused() -> None:
    async with serving(echo) as s, client_of(s) as client:
        task = await sent(client, "hello")
        error = await failing(anext(client.subscribe(task.id)))
        assert isinstance(error, UnsupportedOperationError)


async def test_get_task_and_its_history() -> None:
    async with serving(asking) as s, client_of(s) as client:
        task = await sent(client, "one")
        await sent(client, "two", task_id=task.id)
        assert texts((await client.get_task(task.id)).history)[0] == "one"
        assert len((await client.get_task(task.id, history_length=1)).history) == 1
        assert not (await client.get_task(task.id, history_length=0)).history
        assert isinstance(await failing(client.get_task("other")), TaskNotFoundError)


async def test_list_tasks_pages_and_filters() -> None:
    async with serving(echo) as s, client_of(s) as client:
        ids = [(await sent(client, str(n), context_id="c")).id for n in range(7)]
        waiting = await sent(client, "elsewhere", context_id="d")
        page = await client.list_tasks(context_id="c", page_size=3)
        assert [task.id for task in page.tasks] == ids[:-4:-1]
        assert page.total_size == 7
        following = await client.list_tasks(
            context_id="c", page_size=3, page_token=page.next_page_token
        )
        assert [task.id for task in following.tasks] == ids[3:0:-1]
        everything = [task.id async for task in client.iter_tasks(context_id="c", page_size=2)]
        assert everything == ids[::-1]
        assert [task.id async for task in client.iter_tasks()] == [waiting.id, *ids[::-1]]
        assert (await client.list_tasks(state=WORKING)).total_size == 0
        assert (await client.list_tasks(state=COMPLETED)).total_size == 8
        (newest, *_) = (await client.list_tasks(include_artifacts=True, history_length=0)).tasks
        assert text(newest.artifacts[0]) == "elsewhere"
        assert not newest.history
        future = datetime.now(UTC) + timedelta(hours=1)
        assert not [t async for t in client.iter_tasks(status_timestamp_after=future)]
        past = datetime.now(UTC) - timedelta(hours=1)
        assert len((await client.list_tasks(status_timestamp_after=past)).tasks) == 8


async def test_cancel_task() -> None:
    agent = Gated()
    async with serving(agent) as s, client_of(s) as client:
        task = await sent(client, "hello", return_immediately=True)
        canceled = await client.cancel_task(task.id, metadata={"why": "because"})
        assert canceled.status.state == CANCELED
        assert isinstance(await failing(client.cancel_task(task.id)), TaskNotCancelableError)


async def test_push_configurations() -> None:
    async with serving(asking, allow_private_webhooks=True) as s, client_of(s) as client:
        task = await sent(client, "hello")
        hook = "http://127.0.0.1:9/hook"
        made = await client.create_push_config(task.id, hook, token="t")
        assert uuid.UUID(made.id)
        assert made.token == "t"
        named = await client.create_push_config(
            task.id,
            hook,
            id="mine",
            authentication=pb.AuthenticationInfo(scheme="Bearer", credentials="c"),
        )
        assert named.id == "mine"
        assert (await client.get_push_config(task.id, "mine")).authentication.scheme == "Bearer"
        listed = await client.list_push_configs(task.id)
        assert {config.id for config in listed} == {made.id, "mine"}
        await client.delete_push_config(task.id, "mine")
        await client.delete_push_config(task.id, "mine")
        assert [config.id for config in await client.list_push_configs(task.id)] == [made.id]
        assert isinstance(await failing(client.get_push_config(task.id, "mine")), TaskNotFoundError)


async def test_a_message_may_bring_its_push_configuration() -> None:
    push = pb.TaskPushNotificationConfig(url="http://127.0.0.1:9/hook", id="mine")
    async with serving(asking, allow_private_webhooks=True) as s, client_of(s) as client:
        task = await sent(client, "hello", push=push)
        (config,) = await client.list_push_configs(task.id)
        assert (config.id, config.url) == ("mine", push.url)


class Knowing:
    """Knows one token."""

    async def authenticate(self, call: ServerCallContext) -> Principal:
        if call.metadata.get("authorization") == "Bearer secret":
            return Principal("somebody")
        raise UnauthenticatedError()


async def test_the_extended_card_needs_the_token() -> None:
    extended = pb.AgentCard(name="Extended")
    async with serving(echo, extended_card=extended, authenticator=Knowing()) as s:
        async with client_of(s, token="secret") as client:
            assert (await client.get_extended_card()).name == "Extended"
        async with client_of(s, token="wrong") as client:
            assert isinstance(await failing(client.get_extended_card()), UnauthenticatedError)


async def test_an_extended_card_that_there_is_not() -> None:
    async with serving(echo) as s, client_of(s) as client:
        assert isinstance(await failing(client.get_extended_card()), UnsupportedOperationError)


async def test_the_public_card_over_grpc() -> None:
    async with serving(echo, card=pb.AgentCard(name="Echo")) as s, client_of(s) as client:
        card = await client.get_card()
        assert card.name == "Echo"
        assert card.supported_interfaces[0].url == s.server.address


async def test_the_public_card_is_the_one_that_the_client_was_made_from() -> None:
    async with serving(echo) as s:
        card = pb.AgentCard(name="given")
        card.supported_interfaces.add(
            url=s.server.address, protocol_binding="GRPC", protocol_version="1.0"
        )
        async with A2AClient(card) as client:
            found = await client.get_card()
            assert found == card
            found.name = "changed"
            assert (await client.get_card()).name == "given"
            assert (await sent(client, "hello")).status.state == COMPLETED


async def test_tenants_are_those_of_the_client_or_of_the_card() -> None:
    async with serving(agents={"a": Agent(echo), "b": publishing(a_task(COMPLETED))}) as s:
        async with client_of(s, tenant="a") as client:
            assert text((await sent(client, "hello")).artifacts[0]) == "hello"
            assert len((await client.list_tasks()).tasks) == 1
        card = pb.AgentCard(name="b")
        card.supported_interfaces.add(
            url=s.server.address, protocol_binding="GRPC", protocol_version="1.0", tenant="b"
        )
        async with A2AClient(card) as client:
            assert not (await sent(client, "hello")).artifacts
        async with A2AClient(card, tenant="a") as client:
            task = await sent(client, "hello")
            assert task.artifacts
            assert [t async for t in client.iter_tasks()]
            seen = [e async for e in client.subscribe(task.id, last_sequence=2)]
            assert outline(seen) == ["status COMPLETED"]


async def test_tasks_with_large_parts_are_read() -> None:
    large = "x" * (16 * 2**20)
    async with serving(echo) as s, client_of(s) as client:
        task = await sent(client, large)
        assert text(task.artifacts[0]) == large
        assert text((await client.get_task(task.id)).artifacts[0]) == large


async def test_operations_share_one_client_at_the_same_time() -> None:
    async with serving(echo) as s, client_of(s) as client:

        async def one(n: int) -> str:
            if n % 2:
                return text((await sent(client, str(n))).artifacts[0])
            return text((await read(client.stream(str(n))))[1].artifact_update.artifact)

        assert await within(asyncio.gather(*(one(n) for n in range(50)))) == [
            str(n) for n in range(50)
        ]


async def test_a_channel_that_is_given_is_left_open() -> None:
    async with serving(publishing(a_task(), status_update(COMPLETED))) as s:
        async with A2AClient(s.server.address, channel=s.channel) as client:
            task = await sent(client, "hello")
        assert (await s.get(task.id)).status.state == COMPLETED
