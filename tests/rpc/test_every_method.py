"""What holds for every RPC: versions, extensions, malformed requests, scopes, capabilities."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from a2a_grpc import pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.errors import PermissionDeniedError, UnauthenticatedError
from tests.support import (
    COMPLETED,
    INPUT_REQUIRED,
    Client,
    asking,
    assert_error,
    assert_invalid,
    collect,
    echo,
    message,
    refused,
    request,
    serving,
    within,
)

URL = "https://example.com/hook"


def requests(task_id: str = "t", config_id: str = "c", tenant: str = "") -> dict[str, Any]:
    """A request for each method."""
    return {
        "SendMessage": request(task_id=task_id, tenant=tenant),
        "SendStreamingMessage": request(task_id=task_id, tenant=tenant),
        "GetTask": pb.GetTaskRequest(id=task_id, tenant=tenant),
        "ListTasks": pb.ListTasksRequest(tenant=tenant),
        "CancelTask": pb.CancelTaskRequest(id=task_id, tenant=tenant),
        "SubscribeToTask": pb.SubscribeToTaskRequest(id=task_id, tenant=tenant),
        "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig(
            task_id=task_id, url=URL, tenant=tenant
        ),
        "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest(
            task_id=task_id, id=config_id, tenant=tenant
        ),
        "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest(
            task_id=task_id, tenant=tenant
        ),
        "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest(
            task_id=task_id, id=config_id, tenant=tenant
        ),
        "GetExtendedAgentCard": pb.GetExtendedAgentCardRequest(tenant=tenant),
    }


METHODS = list(requests())
STREAMS = ("SendStreamingMessage", "SubscribeToTask")
OF_A_TASK = [name for name in METHODS if name not in ("ListTasks", "GetExtendedAgentCard")]


def card(*extensions: pb.AgentExtension, **capabilities: bool) -> pb.AgentCard:
    return pb.AgentCard(
        name="agent",
        capabilities=pb.AgentCapabilities(extensions=extensions, **capabilities),
    )


EXTENDED = card()


async def succeeds(call: Any) -> None:
    if hasattr(call, "__aiter__"):
        await within(collect(call))
    else:
        await within(call)


# Versions (specification 3.6.2).


@pytest.mark.parametrize("method", METHODS)
async def test_version_is_checked(method: str) -> None:
    async with serving(asking, extended_card=EXTENDED) as s:
        for version in (None, "", "0.3", "1", "1.1", "2.0", "v1.0", "garbage", "1.0.", "1.0,0.3"):
            metadata = () if version is None else (("a2a-version", version),)
            status = await refused(
                getattr(s.raw, method)(requests()[method], metadata=metadata, timeout=5)
            )
            assert_error(status, "VERSION_NOT_SUPPORTED")
            if not version:
                assert "a2a-version: 1.0" in status.message


@pytest.mark.parametrize("version", ["1.0", "1.0.0", "1.0.7"])
async def test_patch_part_of_the_version_is_ignored(version: str) -> None:
    async with serving(asking, extended_card=EXTENDED) as s:
        for method in METHODS:
            task = await s.send()
            created = await s.call(
                "CreateTaskPushNotificationConfig",
                pb.TaskPushNotificationConfig(task_id=task.id, url=URL),
            )
            made = requests(task.id, created.id)[method]
            call = getattr(s.raw, method)(made, metadata=(("a2a-version", version),), timeout=5)
            if method == "SubscribeToTask":
                assert (await within(call.read())).HasField("task")
                call.cancel()
            else:
                await succeeds(call)


async def test_version_of_calls_that_name_none_can_be_assumed() -> None:
    async with serving(echo, assume_version="1.0") as s:
        await s.raw.SendMessage(request(), timeout=5)
        await s.raw.SendMessage(request(), metadata=(("a2a-version", ""),), timeout=5)
        named = s.raw.SendMessage(request(), metadata=(("a2a-version", "0.3"),), timeout=5)
        assert_error(await refused(named), "VERSION_NOT_SUPPORTED")


# Malformed requests (promise 7).


@pytest.mark.parametrize("method", METHODS)
async def test_request_that_is_no_protobuf_is_an_invalid_argument(method: str) -> None:
    path = f"/lf.a2a.v1.A2AService/{method}"
    async with serving(asking, extended_card=EXTENDED) as s:
        for data in (b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x08", b"\x0a\x80\x80"):
            make = s.channel.unary_stream if method in STREAMS else s.channel.unary_unary
            call = make(path)(data, metadata=(("a2a-version", "1.0"),), timeout=5)
            assert_invalid(await refused(call), "request")


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("SendMessage", "message"),
        ("SendStreamingMessage", "message"),
        ("GetTask", "id"),
        ("CancelTask", "id"),
        ("SubscribeToTask", "id"),
        ("CreateTaskPushNotificationConfig", "url"),
        ("CreateTaskPushNotificationConfig", "task_id"),
        ("GetTaskPushNotificationConfig", "task_id"),
        ("GetTaskPushNotificationConfig", "id"),
        ("ListTaskPushNotificationConfigs", "task_id"),
        ("DeleteTaskPushNotificationConfig", "task_id"),
        ("DeleteTaskPushNotificationConfig", "id"),
    ],
)
async def test_missing_field_is_named(method: str, field: str) -> None:
    async with serving(asking) as s:
        empty = type(requests()[method])()
        assert_invalid(await refused(s.call(method, empty)), field)


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("message.message_id", message(message_id="")),
        ("message.role", message(role=pb.Role.ROLE_UNSPECIFIED)),
        ("message.parts", message(parts=[])),
        ("message.parts[0]", message(parts=[pb.Part()])),
        ("message.parts[1]", message("x", pb.Part(filename="x"))),
    ],
)
async def test_incomplete_message_is_refused(field: str, broken: pb.Message) -> None:
    async with serving(asking) as s:
        assert_invalid(await refused(s.call("SendMessage", request(broken))), field)
        assert_invalid(await refused(s.stream(broken)), field)


async def test_unknown_method_is_unimplemented() -> None:
    async with serving(asking) as s:
        call = s.channel.unary_unary("/lf.a2a.v1.A2AService/Nothing")(b"", timeout=5)
        assert (await refused(call)).code is grpc.StatusCode.UNIMPLEMENTED


# Unknown things.


@pytest.mark.parametrize("method", OF_A_TASK)
async def test_unknown_task_is_not_found(method: str) -> None:
    async with serving(asking) as s:
        assert_error(await refused(s.call(method, requests("unknown")[method])), "TASK_NOT_FOUND")


@pytest.mark.parametrize("method", METHODS)
async def test_unknown_tenant_is_refused(method: str) -> None:
    async with serving(agents={"a": asking_agent(), "b": asking_agent()}) as s:
        status = await refused(s.call(method, requests(tenant="c")[method]))
        assert_invalid(status, "tenant")


def asking_agent() -> Any:
    from tests.support import Agent

    return Agent(asking)


# Scopes (promise 8).


class ByToken:
    """Principals by bearer token; "-" in its name makes one that may do nothing."""

    async def authenticate(self, call: ServerCallContext) -> Principal:
        scheme, _, name = call.metadata.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not name:
            raise UnauthenticatedError("send a bearer token")
        if "-" in name:
            raise PermissionDeniedError("not you")
        return Principal(name)


def token(s: Client, name: str) -> Client:
    return s.identified(("authorization", f"Bearer {name}"))


@pytest.mark.parametrize("method", METHODS)
async def test_credentials_are_needed(method: str) -> None:
    async with serving(asking, authenticator=ByToken(), extended_card=EXTENDED) as s:
        assert_error(await refused(s.call(method, requests()[method])), "UNAUTHENTICATED")
        assert_error(
            await refused(token(s, "not-me").call(method, requests()[method])), "PERMISSION_DENIED"
        )


@pytest.mark.parametrize("method", OF_A_TASK)
async def test_task_of_another_principal_is_not_found(method: str) -> None:
    async with serving(asking, authenticator=ByToken()) as s:
        ann, bob = token(s, "ann"), token(s, "bob")
        task = await ann.send()
        created = await ann.call(
            "CreateTaskPushNotificationConfig",
            pb.TaskPushNotificationConfig(task_id=task.id, url=URL),
        )
        theirs = await refused(bob.call(method, requests(task.id, created.id)[method]))
        assert_error(theirs, "TASK_NOT_FOUND")
        # As if it did not exist: the answer is the same.
        unknown = await refused(bob.call(method, requests("x" * 36, created.id)[method]))
        assert theirs.message.replace(task.id, "") == unknown.message.replace("x" * 36, "")
        assert await ann.get(task.id) == task


@pytest.mark.parametrize("method", OF_A_TASK)
async def test_task_of_another_tenant_is_not_found(method: str) -> None:
    async with serving(agents={"a": asking_agent(), "b": asking_agent()}) as s:
        task = await s.send(tenant="a")
        call = s.call(method, requests(task.id, tenant="b")[method])
        assert_error(await refused(call), "TASK_NOT_FOUND")
        assert (await s.get(task.id, tenant="a")).status.state == INPUT_REQUIRED


async def test_list_shows_only_the_callers_own_tasks() -> None:
    async with serving(
        agents={"": asking_agent(), "t": asking_agent()}, authenticator=ByToken()
    ) as s:
        ann, bob = token(s, "ann"), token(s, "bob")
        mine, tenants = await ann.send(context_id="c"), await ann.send(tenant="t", context_id="c")
        theirs = await bob.send(context_id="c")
        for client, tenant, expected in (
            (ann, "", mine),
            (ann, "t", tenants),
            (bob, "", theirs),
        ):
            page = await client.list(tenant=tenant, context_id="c")
            assert [task.id for task in page.tasks] == [expected.id]
            assert page.total_size == 1
        assert (await bob.list(tenant="t")).total_size == 0


async def test_each_tenant_has_its_agent_and_card() -> None:
    from tests.support import Agent

    async with serving(
        agents={"a": Agent(echo), "b": Agent(asking)},
        card={"a": card(), "b": card(streaming=False)},
    ) as s:
        assert (await s.send(tenant="a")).status.state == COMPLETED
        assert (await s.send(tenant="b")).status.state == INPUT_REQUIRED
        await collect(s.stream(tenant="a"))
        assert_error(await refused(s.stream(tenant="b")), "UNSUPPORTED_OPERATION")


# Capabilities (specification 3.3.4).


@pytest.mark.parametrize("method", [name for name in METHODS if "Push" in name])
async def test_push_that_the_card_denies_is_refused(method: str) -> None:
    async with serving(asking, card=card(push_notifications=False)) as s:
        task = await s.send()
        status = await refused(s.call(method, requests(task.id)[method]))
        assert_error(status, "PUSH_NOTIFICATION_NOT_SUPPORTED")


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_inline_push_configuration_that_the_card_denies_is_refused(method: str) -> None:
    async with serving(echo, card=card(push_notifications=False)) as s:
        made = request(push=pb.TaskPushNotificationConfig(url=URL))
        status = await refused(s.call(method, made))
        assert_error(status, "PUSH_NOTIFICATION_NOT_SUPPORTED")
        assert (await s.list()).total_size == 0


@pytest.mark.parametrize("method", STREAMS)
async def test_streaming_that_the_card_denies_is_refused(method: str) -> None:
    async with serving(asking, card=card(streaming=False)) as s:
        task = await s.send()
        status = await refused(s.call(method, requests(task.id)[method]))
        assert_error(status, "UNSUPPORTED_OPERATION")


# Extensions (specification 4.6, 3.3.4).

USED = pb.AgentExtension(uri="https://example.com/used/v1")
OTHER = pb.AgentExtension(uri="https://example.com/other/v1")
REQUIRED = pb.AgentExtension(uri="https://example.com/required/v1", required=True)


@pytest.mark.parametrize("method", METHODS)
async def test_required_extension_that_is_not_named_is_an_error(method: str) -> None:
    async with serving(asking, card=card(REQUIRED), extended_card=EXTENDED) as s:
        status = await refused(s.call(method, requests()[method]))
        assert_error(status, "EXTENSION_SUPPORT_REQUIRED")
        assert REQUIRED.uri in status.message


@pytest.mark.parametrize(
    "entries",
    [
        (f"{USED.uri},{OTHER.uri}",),
        (USED.uri, OTHER.uri),
        (f" {USED.uri} , {OTHER.uri} ",),
        (f"urn:unknown,{OTHER.uri}", f",{USED.uri},,urn:too"),
    ],
)
async def test_extensions_that_are_used_are_echoed_and_unknown_ones_ignored(
    entries: tuple[str, ...],
) -> None:
    seen: list[set[str]] = []

    async def execute(context: Any, queue: Any) -> None:
        seen.append(context.requested_extensions)
        await echo(context, queue)

    from tests.support import Agent

    async with serving(Agent(execute), card=card(USED, OTHER)) as s:
        metadata = [("a2a-extensions", entry) for entry in entries]
        for method in ("SendMessage", "SendStreamingMessage"):
            call = s.call(method, request(), metadata=metadata)
            await succeeds(call)
            echoed = dict(await call.initial_metadata())["a2a-extensions"]
            assert {uri.strip() for uri in echoed.split(",")} == {USED.uri, OTHER.uri}
        assert all({USED.uri, OTHER.uri} <= one for one in seen)


async def test_nothing_is_echoed_to_a_call_that_names_nothing() -> None:
    async with serving(echo, card=card(USED)) as s:
        call = s.call("SendMessage", request())
        await call
        assert "a2a-extensions" not in dict(await call.initial_metadata())


async def test_required_extension_that_is_named_is_enough() -> None:
    async with serving(echo, card=card(REQUIRED)) as s:
        task = await s.send(call_metadata=(("a2a-extensions", REQUIRED.uri),))
        assert task.status.state == COMPLETED
