"""Which cards are refused, and that what the specification allows is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.cards.completion import complete_card
from a2a_grpc.cards.errors import CardError
from a2a_grpc.cards.validation import problems_of, validate_card
from tests.cards.values import a_card, a_skill, with_bearer

Change = Callable[[pb.AgentCard], Any]


def fields_of(card: pb.AgentCard) -> list[str]:
    return [problem.field for problem in problems_of(card)]


def an_interface(**fields: str) -> pb.AgentInterface:
    found = {"url": "h:1", "protocol_binding": "GRPC", "protocol_version": "1.0"}
    return pb.AgentInterface(**(found | fields))


def test_a_finished_card_is_right() -> None:
    validate_card(a_card())
    validate_card(with_bearer(a_card()))


def test_a_card_that_says_nothing_is_right_once_it_is_complete() -> None:
    validate_card(complete_card(None, name="agent", url="h:1", retry_window=300.0))


def test_every_required_field_is_named() -> None:
    assert fields_of(pb.AgentCard()) == [
        "name",
        "description",
        "supported_interfaces",
        "version",
        "capabilities",
        "default_input_modes",
        "default_output_modes",
        "skills",
    ]


def test_required_fields_are_named_at_every_depth() -> None:
    card = a_card(
        provider=pb.AgentProvider(),
        skills=[a_skill(), pb.AgentSkill(tags=[""])],
        supported_interfaces=[pb.AgentInterface()],
        signatures=[pb.AgentCardSignature(protected="x")],
    )
    card.security_schemes["key"].api_key_security_scheme.SetInParent()
    card.security_schemes["o"].oauth2_security_scheme.flows.device_code.scopes["a"] = ""
    assert set(fields_of(card)) == {
        "provider.url",
        "provider.organization",
        "skills[1].id",
        "skills[1].name",
        "skills[1].description",
        "skills[1].tags[0]",
        "supported_interfaces[0].url",
        "supported_interfaces[0].protocol_binding",
        "supported_interfaces[0].protocol_version",
        "signatures[0].signature",
        'security_schemes["key"].api_key_security_scheme.location',
        'security_schemes["key"].api_key_security_scheme.name',
        'security_schemes["o"].oauth2_security_scheme.flows.device_code.device_authorization_url',
        'security_schemes["o"].oauth2_security_scheme.flows.device_code.token_url',
    }


def test_the_error_is_one_line_with_every_field_and_the_source() -> None:
    with pytest.raises(CardError) as caught:
        validate_card(a_card(name="", skills=[a_skill(tags=[])]), source="card.yaml")
    assert str(caught.value) == (
        "card.yaml: name: is required and must not be empty; "
        "skills[0].tags: is required and needs at least one entry"
    )
    assert isinstance(caught.value, ValueError)


# Each wrong in one way.


def scheme(kind: str, **fields: Any) -> Change:
    def change(card: pb.AgentCard) -> None:
        found = getattr(card.security_schemes["s"], kind)
        found.SetInParent()
        for name, value in fields.items():
            setattr(found, name, value)

    return change


def flow(which: str, **fields: Any) -> Change:
    def change(card: pb.AgentCard) -> None:
        found = getattr(card.security_schemes["s"].oauth2_security_scheme.flows, which)
        found.SetInParent()
        for name, value in fields.items():
            setattr(found, name, value)

    return change


def interface(**fields: str) -> Change:
    def change(card: pb.AgentCard) -> None:
        card.supported_interfaces[0].MergeFrom(pb.AgentInterface(**fields))

    return change


def extension(**fields: Any) -> Change:
    return lambda card: card.capabilities.extensions.add(**fields)


URL = "https://example.com/x"
INTERFACE = "supported_interfaces[0]"
SCHEME = 'security_schemes["s"]'
WRONG: list[tuple[Change, str]] = [
    (lambda card: card.skills.append(a_skill(name="Again")), "skills[1].id"),
    (lambda card: card.default_input_modes.append("plain text"), "default_input_modes[1]"),
    (lambda card: card.default_output_modes.append("text/"), "default_output_modes[1]"),
    (lambda card: card.default_output_modes.append("a/b/c"), "default_output_modes[1]"),
    (lambda card: card.skills[0].input_modes.append("a b"), "skills[0].input_modes[0]"),
    (lambda card: card.skills[0].output_modes.append(""), "skills[0].output_modes[0]"),
    (interface(url="two words"), f"{INTERFACE}.url"),
    (interface(url="host:port"), f"{INTERFACE}.url"),
    (interface(url="host:70000"), f"{INTERFACE}.url"),
    (interface(url="host:0"), f"{INTERFACE}.url"),
    (interface(url="https://"), f"{INTERFACE}.url"),
    (interface(url=":443"), f"{INTERFACE}.url"),
    (interface(url="h:1", protocol_binding="JSONRPC"), f"{INTERFACE}.url"),
    (interface(url="/a2a", protocol_binding="HTTP+JSON"), f"{INTERFACE}.url"),
    (interface(url="ftp://h/x", protocol_binding="HTTP+JSON"), f"{INTERFACE}.url"),
    (interface(url="https://h:99999/", protocol_binding="JSONRPC"), f"{INTERFACE}.url"),
    (interface(protocol_version="v1"), f"{INTERFACE}.protocol_version"),
    (interface(protocol_version="1"), f"{INTERFACE}.protocol_version"),
    (interface(protocol_version="0.3"), f"{INTERFACE}.protocol_version"),
    (extension(description="none"), "capabilities.extensions[0].uri"),
    (extension(uri="urn:a, urn:b"), "capabilities.extensions[0].uri"),
    (
        lambda card: card.capabilities.extensions.extend([pb.AgentExtension(uri="urn:a")] * 2),
        "capabilities.extensions[1].uri",
    ),
    (extension(uri="urn:a", params={"x": float("nan")}), "capabilities.extensions[0].params"),
    (lambda card: card.security_schemes["s"].SetInParent(), SCHEME),
    (
        scheme("api_key_security_scheme", name="k", location="body"),
        f"{SCHEME}.api_key_security_scheme.location",
    ),
    (scheme("http_auth_security_scheme"), f"{SCHEME}.http_auth_security_scheme.scheme"),
    (
        scheme("open_id_connect_security_scheme", open_id_connect_url="x"),
        f"{SCHEME}.open_id_connect_security_scheme.open_id_connect_url",
    ),
    (scheme("oauth2_security_scheme"), f"{SCHEME}.oauth2_security_scheme.flows"),
    (
        lambda card: card.security_schemes["s"].oauth2_security_scheme.flows.SetInParent(),
        f"{SCHEME}.oauth2_security_scheme.flows",
    ),
    (
        flow("client_credentials"),
        f"{SCHEME}.oauth2_security_scheme.flows.client_credentials.token_url",
    ),
    (
        flow("client_credentials", token_url="x"),
        f"{SCHEME}.oauth2_security_scheme.flows.client_credentials.token_url",
    ),
    (
        flow("implicit", refresh_url="x"),
        f"{SCHEME}.oauth2_security_scheme.flows.implicit.refresh_url",
    ),
    (
        lambda card: card.security_requirements.add().schemes["other"].SetInParent(),
        'security_requirements[0].schemes["other"]',
    ),
    (
        lambda card: card.skills[0].security_requirements.add().schemes["other"].list.append("x"),
        'skills[0].security_requirements[0].schemes["other"]',
    ),
    (
        lambda card: setattr(card, "documentation_url", "docs/index.html"),
        "documentation_url",
    ),
    (
        lambda card: card.provider.MergeFrom(pb.AgentProvider(url="x", organization="o")),
        "provider.url",
    ),
]


@pytest.mark.parametrize(("change", "field"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named_and_nothing_else_is(change: Change, field: str) -> None:
    card = a_card()
    change(card)
    assert fields_of(card) == [field]


RIGHT: list[Change] = [
    *(
        interface(url=url)
        for url in (
            "localhost",
            "[::1]:50051",
            "10.0.0.1:1",
            "https://agents.example.com",
            "https://georoute-agent.example.com/a2a/grpc",
            "grpcs://h:443",
            "dns:///h:1",
            "dns:h:1",
            "unix:/run/agent.sock",
            "unix-abstract:agent",
            "agents.example.com/a2a",
        )
    ),
    interface(url="https://h/a2a", protocol_binding="JSONRPC"),
    interface(url="http://localhost:8080", protocol_binding="HTTP+JSON", protocol_version="0.3"),
    interface(url="wss://h/ws", protocol_binding="https://example.com/bindings/websocket/v1"),
    interface(url="anything goes", protocol_binding="carrier pigeon"),
    interface(protocol_version="1.0.1"),
    interface(protocol_version="1.3"),
    interface(tenant="t"),
    lambda card: card.supported_interfaces.append(an_interface(protocol_version="0.3")),
    lambda card: card.default_input_modes.extend(
        ["*/*", "*", "text", "text/*", "Text/Plain; charset=utf-8", "application/vnd.geo+json"]
    ),
    lambda card: card.skills.append(a_skill(id="other")),
    extension(uri="urn:a", required=True, params={"a": {}}),
    extension(uri="https://example.com/ext/v1"),
    scheme("mtls_security_scheme"),
    scheme("api_key_security_scheme", name="k", location="cookie"),
    scheme("http_auth_security_scheme", scheme="Bearer"),
    scheme("open_id_connect_security_scheme", open_id_connect_url=URL),
    flow("client_credentials", token_url=URL),
    flow("authorization_code", authorization_url=URL, token_url=URL, refresh_url=URL),
    flow("device_code", device_authorization_url=URL, token_url=URL),
    flow("implicit"),
    flow("password", token_url=URL),
    lambda card: card.security_requirements.add(),
    lambda card: setattr(card, "icon_url", "data:image/png;base64,"),
    lambda card: setattr(card, "documentation_url", ""),
    lambda card: setattr(card, "version", "whatever"),
]


@pytest.mark.parametrize("change", RIGHT, ids=range(len(RIGHT)))
def test_what_the_specification_allows_is_not_refused(change: Change) -> None:
    card = a_card()
    change(card)
    assert fields_of(card) == []


def test_a_card_without_a_grpc_interface_is_right() -> None:
    card = a_card(supported_interfaces=[an_interface(url="https://h/", protocol_binding="JSONRPC")])
    assert fields_of(card) == []


def test_the_remedies_are_named() -> None:
    card = with_bearer(a_card(default_input_modes=["plain text"]))
    card.security_requirements.add().schemes["basic"].SetInParent()
    said = "; ".join(problem.description for problem in problems_of(card))
    assert "such as text/plain" in said
    assert "(bearer)" in said
