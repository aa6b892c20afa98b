"""Several agents behind one port, each with its tenant's tasks and card (promise 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ServerCallContext
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    Agent,
    Gated,
    Serving,
    a_task,
    asking,
    assert_error,
    assert_invalid,
    collect,
    echo,
    message,
    outline,
    publishing,
    refused,
    request,
    serving,
    status_update,
    take,
    text,
    within,
)

URL = "https://example.com/hook"


def named(name: str) -> Agent:
    """An agent whose answer is its name."""
    return publishing(a_task(), status_update(COMPLETED, name))


def three() -> dict[str, Agent]:
    return {name: named(name) for name in ("a", "b", "")}


async def answer(s: Serving, tenant: str) -> str:
    return text((await s.send(tenant=tenant)).status.message)


async def extended_card(s: Serving, tenant: str) -> pb.AgentCard:
    card: pb.AgentCard = await s.call(
        "GetExtendedAgentCard", pb.GetExtendedAgentCardRequest(tenant=tenant)
    )
    return card


async def test_message_goes_to_the_agent_of_its_tenant(serve: Callable[..., Any]) -> None:
    async with serve(agents=three()) as s:
        for tenant in ("a", "b", ""):
            assert await answer(s, tenant) == tenant
            *_, last = await collect(s.stream(tenant=tenant))
            assert text(last.status_update.status.message) == tenant


async def test_unknown_tenant_is_named_as_the_bad_field() -> None:
    async with serving(agents={"a": named("a"), "b": named("b")}) as s:
        for tenant in ("c", "A", " a", ""):
            for call in (
                s.call("SendMessage", request(tenant=tenant)),
                s.stream(tenant=tenant),
                s.call("ListTasks", pb.ListTasksRequest(tenant=tenant)),
            ):
                assert_invalid(await refused(call), "tenant")
        assert await answer(s, "a") == "a"


async def test_one_agent_serves_every_tenant_and_keeps_them_apart(
    serve: Callable[..., Any],
) -> None:
    async with serve(echo) as s:
        mine = await s.send("mine", tenant="a", context_id="c")
        other = await s.send("other", tenant="b", context_id="c")
        assert [task.id for task in (await s.list(tenant="a")).tasks] == [mine.id]
        assert [task.id for task in (await s.list(tenant="b")).tasks] == [other.id]
        assert (await s.list()).total_size == 0
        assert_error(await refused(s.get(mine.id, tenant="b")), "TASK_NOT_FOUND")


async def test_stream_of_another_tenant_can_not_be_resumed(serve: Callable[..., Any]) -> None:
    async with serve(agents=three()) as s:
        task = await s.send(tenant="a")
        resumed = s.subscribe(task.id, tenant="b", call_metadata=(("last-event-id", "0"),))
        assert_error(await refused(resumed), "TASK_NOT_FOUND")
        mine = s.subscribe(task.id, tenant="a", call_metadata=(("last-event-id", "1"),))
        assert outline(await collect(mine)) == ["task COMPLETED", "status COMPLETED"]


async def test_page_token_of_another_tenant_shows_nothing(serve: Callable[..., Any]) -> None:
    async with serve(agents=three()) as s:
        for _ in range(3):
            await s.send(tenant="a")
        token = (await s.list(tenant="a", page_size=1)).next_page_token
        page = await s.list(tenant="b", page_token=token)
        assert (page.total_size, len(page.tasks)) == (0, 0)


async def test_referenced_task_of_another_tenant_is_not_loaded(serve: Callable[..., Any]) -> None:
    seen: list[list[str]] = []

    async def execute(context: Any, queue: Any) -> None:
        seen.append([task.id for task in context.related_tasks])
        await echo(context, queue)

    async with serve(agents={"a": Agent(execute), "b": Agent(execute)}) as s:
        task = await s.send(tenant="a")
        for tenant in ("b", "a"):
            await s.send(message(reference_task_ids=[task.id]), tenant=tenant)
        assert seen == [[], [], [task.id]]


async def test_tenants_agent_is_the_one_that_cancels(serve: Callable[..., Any]) -> None:
    canceled: list[str] = []

    def agent(name: str) -> Agent:
        async def cancel(_: Any, __: Any) -> None:
            canceled.append(name)

        return Agent(Gated().execute, cancel)

    async with serve(agents={"a": agent("a"), "b": agent("b")}) as s:
        tasks = {name: await s.send(tenant=name, immediately=True) for name in ("a", "b")}
        assert_error(await refused(s.cancel(tasks["b"].id, tenant="a")), "TASK_NOT_FOUND")
        assert (await s.cancel(tasks["b"].id, tenant="b")).status.state == CANCELED
        assert canceled == ["b"]


async def test_tenant_whose_agent_is_busy_delays_no_other(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with serve(agents={"busy": agent, "quick": named("quick")}) as s:
        stream = s.stream(tenant="busy")
        await take(stream, 1)
        assert await answer(s, "quick") == "quick"
        agent.go.set()
        assert outline(await collect(stream)) == ["status COMPLETED"]


async def test_message_of_a_process_that_died_runs_with_its_tenants_agent(sqlite: str) -> None:
    agents = {name: Agent(Gated().execute, on_interruption="restart") for name in ("a", "b")}
    async with serving(agents=agents, storage=sqlite) as s:
        tasks = {name: await s.send(tenant=name, immediately=True) for name in ("a", "b")}
    ran: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("a", "b")}

    def again(name: str) -> Agent:
        async def execute(context: Any, queue: Any) -> None:
            await queue.enqueue_event(status_update(INPUT_REQUIRED, name))
            ran[name].set()

        return Agent(execute, on_interruption="restart")

    async with serving(agents={"a": again("a"), "b": again("b")}, storage=sqlite) as s:
        for name, task in tasks.items():
            await within(ran[name].wait())
            stream = s.subscribe(task.id, tenant=name, call_metadata=(("last-event-id", "1"),))
            _, event = await take(stream, 2)
            assert text(event.status_update.status.message) == name


# Cards.


PNG = pb.Part(raw=b"x", media_type="image/png")
REFUSED = {
    "streaming": (
        pb.AgentCard(capabilities=pb.AgentCapabilities(streaming=False)),
        "SendStreamingMessage",
        request(),
        "UNSUPPORTED_OPERATION",
    ),
    "push": (
        pb.AgentCard(capabilities=pb.AgentCapabilities(push_notifications=False)),
        "SendMessage",
        request(push=pb.TaskPushNotificationConfig(url=URL)),
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    ),
    "media": (
        pb.AgentCard(default_input_modes=["text/plain"]),
        "SendMessage",
        request(message("x", PNG)),
        "CONTENT_TYPE_NOT_SUPPORTED",
    ),
    "extension": (
        pb.AgentCard(
            capabilities=pb.AgentCapabilities(
                extensions=[pb.AgentExtension(uri="urn:required", required=True)]
            )
        ),
        "SendMessage",
        request(),
        "EXTENSION_SUPPORT_REQUIRED",
    ),
}


@pytest.mark.parametrize("tenant", REFUSED)
async def test_each_tenants_card_decides_what_it_takes(tenant: str) -> None:
    card, method, made, reason = REFUSED[tenant]
    agents = {tenant: Agent(asking), "free": Agent(asking)}
    async with serving(agents=agents, card={tenant: card}) as s:
        made.tenant = tenant
        assert_error(await refused(s.call(method, made)), reason)
        made.tenant = "free"
        call = s.call(method, made)
        await within(collect(call) if method == "SendStreamingMessage" else call)


async def test_one_card_may_stand_for_all_tenants() -> None:
    card = pb.AgentCard(capabilities=pb.AgentCapabilities(streaming=False))
    async with serving(agents=three(), card=card) as s:
        for tenant in three():
            assert_error(await refused(s.stream(tenant=tenant)), "UNSUPPORTED_OPERATION")


@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_extended_card_may_depend_on_the_tenant(tenant: str) -> None:
    def extended(call: ServerCallContext) -> pb.AgentCard:
        return pb.AgentCard(name=f"for {call.tenant}")

    async with serving(agents=three(), extended_card=extended) as s:
        card = await extended_card(s, tenant)
        assert card.name == f"for {tenant}"
        assert [i.url for i in card.supported_interfaces] == [s.server.address]
        status = await refused(
            s.call("GetExtendedAgentCard", pb.GetExtendedAgentCardRequest(tenant="c"))
        )
        assert_invalid(status, "tenant")
