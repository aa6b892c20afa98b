"""The extended card, media types, health and reflection, and the whole table of errors."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from a2a_grpc import errors, pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.errors import A2AError, UnauthenticatedError
from tests.support import (
    COMPLETED,
    Agent,
    Serving,
    asking,
    assert_error,
    assert_invalid,
    echo,
    message,
    refused,
    request,
    serving,
    within,
)

# The extended card (specification 3.1.11, 13.3).


async def extended_card(s: Serving, *metadata: tuple[str, str]) -> pb.AgentCard:
    card: pb.AgentCard = await within(
        s.call("GetExtendedAgentCard", pb.GetExtendedAgentCardRequest(), metadata=metadata)
    )
    return card


async def test_extended_card_is_given_out() -> None:
    async with serving(echo, extended_card=pb.AgentCard(name="more")) as s:
        assert (await extended_card(s)).name == "more"


async def test_extended_card_may_depend_on_the_caller() -> None:
    class ByName:
        async def authenticate(self, call: ServerCallContext) -> Principal:
            return Principal(call.metadata["x-name"])

    def extended(call: ServerCallContext) -> pb.AgentCard:
        return pb.AgentCard(name=f"for {call.principal.id}")

    async with serving(echo, extended_card=extended, authenticator=ByName()) as s:
        assert (await extended_card(s, ("x-name", "ann"))).name == "for ann"


@pytest.mark.parametrize("declared", [False, None])
async def test_extended_card_that_is_not_declared_is_an_unsupported_operation(
    declared: bool | None,
) -> None:
    card = pb.AgentCard(capabilities=pb.AgentCapabilities(extended_agent_card=declared))
    async with serving(echo, card=card) as s:
        assert_error(await refused(extended_card(s)), "UNSUPPORTED_OPERATION")


async def test_extended_card_that_there_is_for_others_only_is_not_configured() -> None:
    def extended(call: ServerCallContext) -> pb.AgentCard:
        raise errors.ExtendedAgentCardNotConfiguredError

    async with serving(echo, extended_card=extended) as s:
        assert_error(await refused(extended_card(s)), "EXTENDED_AGENT_CARD_NOT_CONFIGURED")


async def test_extended_card_needs_credentials_if_the_card_declares_schemes() -> None:
    class Sometimes:
        async def authenticate(self, call: ServerCallContext) -> Principal:
            return Principal(call.metadata.get("x-name", ""))

    card = pb.AgentCard()
    card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
    extended = pb.AgentCard(name="more")
    async with serving(echo, card=card, extended_card=extended, authenticator=Sometimes()) as s:
        assert_error(await refused(extended_card(s)), "UNAUTHENTICATED")
        assert (await extended_card(s, ("x-name", "ann"))).name == "more"


# Media types.


@pytest.mark.parametrize("mode", ["text/plain", "TEXT/plain", "text/plain;charset=utf-8", "text/*"])
@pytest.mark.parametrize("sent", ["text/plain", "Text/Plain; charset=utf-8", "text/plain ;x=y", ""])
async def test_media_types_compare_without_case_and_parameters(mode: str, sent: str) -> None:
    card = pb.AgentCard(default_input_modes=[mode])
    async with serving(echo, card=card) as s:
        task = await s.send(message(parts=[pb.Part(text="x", media_type=sent)]))
        assert task.status.state == COMPLETED


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_media_type_that_the_agent_does_not_take_is_refused(method: str) -> None:
    card = pb.AgentCard(default_input_modes=["text/plain"])
    async with serving(echo, card=card) as s:
        for media_type in ("image/png", "text/plain2", "text"):
            sent = message("x", pb.Part(raw=b"x", media_type=media_type))
            assert_error(await refused(s.call(method, request(sent))), "CONTENT_TYPE_NOT_SUPPORTED")
        assert (await s.list()).total_size == 0


async def test_media_types_of_skills_are_taken_too() -> None:
    card = pb.AgentCard(
        default_input_modes=["text/plain"],
        skills=[
            pb.AgentSkill(
                id="look",
                name="Look",
                description="Looks at pictures.",
                tags=["pictures"],
                input_modes=["image/png"],
            )
        ],
    )
    async with serving(echo, card=card) as s:
        await s.send(message(parts=[pb.Part(raw=b"x", media_type="image/png")]))


# Health and reflection: without a version.


@pytest.mark.parametrize("service", ["", "lf.a2a.v1.A2AService", "a2a_grpc.v1.Discovery"])
async def test_health_is_serving(service: str) -> None:
    async with serving(echo) as s:
        stub = health_pb2_grpc.HealthStub(s.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_of_an_unknown_service_is_not_found() -> None:
    async with serving(echo) as s:
        stub = health_pb2_grpc.HealthStub(s.channel)
        status = await refused(stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=5))
        assert status.code is grpc.StatusCode.NOT_FOUND


class Nobody:
    async def authenticate(self, call: ServerCallContext) -> Principal:
        raise UnauthenticatedError


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_and_describes(version: str) -> None:
    async with serving(echo, authenticator=Nobody()) as s:

        async def ask(**kw: Any) -> Any:
            call = s.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )(timeout=5)
            await call.write(reflection_pb2.ServerReflectionRequest(**kw))
            answer = await within(call.read())
            await call.done_writing()
            assert await within(call.read()) is grpc.aio.EOF
            return answer

        names = {one.name for one in (await ask(list_services="")).list_services_response.service}
        assert {
            "lf.a2a.v1.A2AService",
            "a2a_grpc.v1.Discovery",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        } <= names
        for symbol in names:
            answer = await ask(file_containing_symbol=symbol)
            assert answer.HasField("file_descriptor_response"), (symbol, answer)
            files = [
                descriptor_pb2.FileDescriptorProto.FromString(data)
                for data in answer.file_descriptor_response.file_descriptor_proto
            ]
            assert any(
                f"{file.package}.{service.name}" == symbol
                for file in files
                for service in file.service
            ), symbol


# Every row of the table of errors, raised by an agent.

ERRORS = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type)
    and issubclass(cls, A2AError)
    and cls not in (A2AError, errors.RetryableError, errors.ServerError, errors.InternalError)
]


@pytest.mark.parametrize("error", ERRORS)
async def test_error_has_its_code_reason_and_domain(error: type[A2AError]) -> None:
    async def execute(_: Any, queue: Any) -> None:
        raise error("what is wrong", metadata={"key": "value"})

    async with serving(Agent(execute)) as s:
        for call in (s.call("SendMessage", request()), s.stream()):
            status = await refused(call)
            assert_error(status, error.reason)
            assert status.message == "what is wrong"
            assert status.metadata["key"] == "value"


async def test_wrapped_error_is_the_error_that_it_wraps() -> None:
    async def execute(_: Any, queue: Any) -> None:
        raise errors.ServerError(errors.UnsupportedOperationError("not this"))

    async with serving(Agent(execute)) as s:
        status = await refused(s.call("SendMessage", request()))
        assert_error(status, "UNSUPPORTED_OPERATION")


async def test_internal_errors_say_nothing() -> None:
    class Broken:
        async def authenticate(self, call: ServerCallContext) -> Principal:
            raise RuntimeError("the secret is 42")

    async with serving(asking, authenticator=Broken()) as s:
        status = await refused(s.call("ListTasks", pb.ListTasksRequest()))
        assert_error(status, "INTERNAL")
        assert "secret" not in status.message


async def test_fields_are_named_by_their_paths() -> None:
    async with serving(asking) as s:
        sent = pb.SendMessageRequest(message=pb.Message(parts=[pb.Part(text="x"), pb.Part()]))
        status = await refused(s.call("SendMessage", sent))
        assert_invalid(status, "message.message_id", "message.role", "message.parts[1]")
