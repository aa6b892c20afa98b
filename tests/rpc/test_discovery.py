"""Discovery.GetAgentCard: the public card, for everybody, with nothing else to know (8.2)."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from a2a_grpc import pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.errors import UnauthenticatedError
from tests.engine.test_drain import stopping
from tests.support import (
    Client,
    Gated,
    assert_error,
    assert_invalid,
    echo,
    refused,
    serving,
    take,
    within,
)

METHOD = "/a2a_grpc.v1.Discovery/GetAgentCard"


async def card_of(client: Client, tenant: str = "") -> pb.AgentCard:
    """The public card, asked for without any metadata."""
    stub = pb.DiscoveryStub(client.channel)  # type: ignore[no-untyped-call]
    card: pb.AgentCard = await within(
        stub.GetAgentCard(pb.GetAgentCardRequest(tenant=tenant), timeout=5)
    )
    return card


async def bytes_of(client: Client, data: bytes = b"") -> bytes:
    answer: bytes = await within(client.channel.unary_unary(METHOD)(data, timeout=5))
    return answer


async def test_card_of_a_server_without_one_says_what_is_true_of_it() -> None:
    async with serving(echo) as s:
        card = await card_of(s)
        (interface,) = card.supported_interfaces
        assert interface == pb.AgentInterface(
            url=s.server.address, protocol_binding="GRPC", protocol_version="1.0"
        )
        assert card.name == "Agent"
        assert card.capabilities.streaming
        assert not card.capabilities.extended_agent_card


async def test_card_names_the_external_address() -> None:
    async with serving(echo, external_url="agents.example.com:443") as s:
        (interface,) = (await card_of(s)).supported_interfaces
        assert interface.url == "agents.example.com:443"


async def test_card_needs_neither_version_nor_credentials() -> None:
    class Nobody:
        async def authenticate(self, call: ServerCallContext) -> Principal:
            raise UnauthenticatedError

    async with serving(echo, authenticator=Nobody(), card=pb.AgentCard(name="open")) as s:
        assert (await card_of(s)).name == "open"


async def test_card_needs_no_extension_that_it_requires_of_other_calls() -> None:
    required = pb.AgentExtension(uri="urn:required", required=True)
    card = pb.AgentCard(capabilities=pb.AgentCapabilities(extensions=[required]))
    async with serving(echo, card=card) as s:
        declared = (await card_of(s)).capabilities.extensions
        assert required in declared
        assert_error(
            await refused(s.call("ListTasks", pb.ListTasksRequest())),
            "EXTENSION_SUPPORT_REQUIRED",
        )


async def test_card_is_answered_with_the_same_bytes_every_time() -> None:
    card = pb.AgentCard()
    for number in range(20):  # a map, which protobuf serializes in any order it likes
        card.security_schemes[f"scheme-{number}"].mtls_security_scheme.SetInParent()
    async with serving(echo, card=card, external_url="host:1") as s:
        first = await bytes_of(s)
        assert (
            pb.AgentCard.FromString(first).security_schemes.keys() == card.security_schemes.keys()
        )
        assert {await bytes_of(s) for _ in range(5)} == {first}
    async with serving(echo, card=card, external_url="host:1") as s:
        assert await bytes_of(s) == first


async def test_card_is_the_one_of_the_tenants_agent() -> None:
    agents = {name: Gated() for name in ("a", "b", "")}
    cards = {"a": pb.AgentCard(name="A"), "b": pb.AgentCard(name="B")}
    async with serving(agents=agents, card=cards) as s:
        for tenant, name in (("a", "A"), ("b", "B"), ("", "Gated")):
            card = await card_of(s, tenant)
            assert card.name == name
            # What clients put into `tenant` of their requests (8.3.2).
            assert [one.tenant for one in card.supported_interfaces] == [tenant]


@pytest.mark.parametrize("tenant", ["c", "A", ""])
async def test_card_of_an_unknown_tenant_is_an_invalid_argument_that_names_the_field(
    tenant: str,
) -> None:
    async with serving(agents={"a": Gated()}) as s:
        assert_invalid(await refused(card_of(s, tenant)), "tenant")


async def test_one_agent_has_one_card_for_every_tenant() -> None:
    async with serving(echo, card=pb.AgentCard(name="one")) as s:
        assert (await card_of(s, "any")) == await card_of(s)


async def test_request_that_is_no_protobuf_is_an_invalid_argument() -> None:
    async with serving(echo) as s:
        for data in (b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe"):
            assert_invalid(await refused(bytes_of(s, data)), "request")
        too_long = pb.GetAgentCardRequest(tenant="x" * 257).SerializeToString()
        assert_invalid(await refused(bytes_of(s, too_long)), "tenant")


async def test_card_is_refused_while_the_server_drains() -> None:
    agent = Gated()
    async with stopping(agent, grace=5) as s:
        stream = s.client.stream()
        await take(stream, 1)
        watch = health_pb2_grpc.HealthStub(s.client.channel).Watch(
            health_pb2.HealthCheckRequest(service="a2a_grpc.v1.Discovery"), timeout=10
        )
        assert (await within(watch.read())).status == health_pb2.HealthCheckResponse.SERVING
        await s.begin()
        assert (await within(watch.read())).status == health_pb2.HealthCheckResponse.NOT_SERVING
        status = await refused(card_of(s.client))
        assert status.code is grpc.StatusCode.UNAVAILABLE
        assert status.retry_after
        agent.go.set()
