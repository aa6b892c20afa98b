"""The cards that a running server gives out: from files, checked, per caller, signed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.cards.errors import CardError
from a2a_grpc.cards.signing import CardSigner, sign_card
from a2a_grpc.cards.verification import verify_card
from a2a_grpc.errors import PermissionDeniedError
from a2a_grpc.extensions import RETRY_EXTENSION
from tests.cards.values import a_card, a_skill, pair
from tests.support import Client, Gated, a_server, assert_error, echo, refused, serving, within


async def public_card(client: Client, tenant: str = "") -> pb.AgentCard:
    card: pb.AgentCard = await within(
        pb.DiscoveryStub(client.channel).GetAgentCard(pb.GetAgentCardRequest(tenant=tenant))
    )
    return card


async def extended_card(client: Client, *metadata: tuple[str, str], tenant: str = "") -> Any:
    return await within(
        client.call(
            "GetExtendedAgentCard",
            pb.GetExtendedAgentCardRequest(tenant=tenant),
            metadata=metadata,
        )
    )


class ByName:
    """Whoever has a name is somebody."""

    async def authenticate(self, call: ServerCallContext) -> Principal:
        return Principal(call.metadata.get("x-name", ""))


def a_file(directory: Path, card: pb.AgentCard, name: str = "card.json") -> Path:
    file = directory / name
    file.write_text(json_format.MessageToJson(card), encoding="utf-8")
    return file


def extensions(card: pb.AgentCard) -> dict[str, pb.AgentExtension]:
    return {one.uri: one for one in card.capabilities.extensions}


SIGNER = CardSigner(pair("ES256").private, key_id="k1")
KEYS = {"k1": pair("ES256").public}


# Files.


async def test_a_card_may_be_the_path_of_a_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, pb.AgentCard(name="from a file"))
    for path in (file, str(file)):
        async with serving(echo, card=path, extended_card=path) as s:
            card = await public_card(s)
            assert card.name == "from a file"
            assert [one.url for one in card.supported_interfaces] == [s.server.address]
            assert (await extended_card(s)).name == "from a file"


async def test_tenants_may_have_files_and_cards(tmp_path: Path) -> None:
    cards = {"a": a_file(tmp_path, pb.AgentCard(name="A")), "b": pb.AgentCard(name="B")}
    async with serving(agents={"a": Gated(), "b": Gated()}, card=cards) as s:
        for tenant, name in (("a", "A"), ("b", "B")):
            assert (await public_card(s, tenant)).name == name


# What refuses to start.

NOT_OFFERED = pb.AgentCapabilities(extended_agent_card=False)
OFFERED = pb.AgentCapabilities(extended_agent_card=True)
RETRIES = pb.AgentCapabilities(extensions=[pb.AgentExtension(uri=RETRY_EXTENSION)])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "field": (
        {"card": pb.AgentCard(skills=[a_skill(tags=[])])},
        "the agent's card: skills[0].tags",
    ),
    "extended field": (
        {"extended_card": pb.AgentCard(skills=[a_skill(tags=[])])},
        "the extended card: skills[0].tags",
    ),
    "missing file": ({"card": "missing.json"}, "missing.json: can't be read"),
    "missing extended file": ({"extended_card": "missing.json"}, "missing.json: can't be read"),
    "signed and unfinished": (
        {"card": sign_card(pb.AgentCard(name="x"), SIGNER)},
        "supported_interfaces: is required",
    ),
    "retries that are not looked up": (
        {"card": pb.AgentCard(capabilities=RETRIES), "deduplicate": "never"},
        "capabilities.extensions[0]: declares urn:a2a-grpc:extensions:retry:v1, and the setting",
    ),
    "external address": ({"external_url": "two words"}, "supported_interfaces[0].url: 'two words'"),
    "no card": ({"card": 1}, "must be an AgentCard or the path of a file, and is int"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_server_with_a_wrong_card_does_not_start(name: str, tmp_path: Path) -> None:
    how, said = WRONG[name]
    database = tmp_path / "a2a.db"
    server = a_server(echo, storage=f"sqlite:///{database}", **how)
    with pytest.raises(CardError) as caught:
        await server.__aenter__()
    assert said in str(caught.value)
    assert not database.exists()


@pytest.mark.parametrize(
    ("how", "said", "reason"),
    [
        (
            {"card": pb.AgentCard(capabilities=OFFERED)},
            "is true in a card, and there is no extended card",
            "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        ),
        (
            {"card": pb.AgentCard(capabilities=NOT_OFFERED), "extended_card": pb.AgentCard()},
            "is false, and the server has an extended card that nobody can ask for",
            "UNSUPPORTED_OPERATION",
        ),
    ],
    ids=["promised", "denied"],
)
async def test_a_card_that_disagrees_about_the_extended_card_is_warned_of(
    how: dict[str, Any], said: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, **how) as s:
        assert said in caplog.text
        assert_error(await refused(extended_card(s)), reason)


async def test_a_card_for_a_tenant_without_an_agent_is_refused() -> None:
    server = a_server(agents={"a": Gated()}, card={"b": pb.AgentCard()})
    with pytest.raises(CardError, match="is for a tenant that has no agent"):
        await server.__aenter__()


async def test_of_several_agents_some_may_have_no_extended_card() -> None:
    cards = {"a": pb.AgentCard(capabilities=NOT_OFFERED)}
    agents = {"a": Gated(), "b": Gated()}
    async with serving(agents=agents, card=cards, extended_card=pb.AgentCard(name="more")) as s:
        assert (await extended_card(s, tenant="b")).name == "more"
        assert_error(await refused(extended_card(s, tenant="a")), "UNSUPPORTED_OPERATION")


async def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = a_file(tmp_path, pb.AgentCard(default_input_modes=["plain text"]))
    with pytest.raises(CardError) as caught:
        await a_server(echo, card=file).__aenter__()
    assert str(caught.value).startswith(f"{file}: default_input_modes[0]: ")


# What is declared.


@pytest.mark.parametrize("deduplicate", ["marked", "always"])
async def test_retries_are_declared_where_they_run_once(deduplicate: str) -> None:
    async with serving(echo, deduplicate=deduplicate, deduplication_window=60.0) as s:
        declared = extensions(await public_card(s))[RETRY_EXTENSION]
        assert declared.params["windowSeconds"] == 60


async def test_retries_are_not_declared_where_they_run_twice() -> None:
    async with serving(echo, deduplicate="never") as s:
        assert RETRY_EXTENSION not in extensions(await public_card(s))


# The extended card, for each caller.


@pytest.mark.parametrize("is_async", [False, True])
async def test_extended_card_is_made_for_the_caller(is_async: bool) -> None:
    def make(call: ServerCallContext) -> pb.AgentCard:
        if call.principal.id == "mallory":
            raise PermissionDeniedError("not for mallory")
        return pb.AgentCard(name=f"for {call.principal.id}", skills=[a_skill(id="secret")])

    async def make_async(call: ServerCallContext) -> pb.AgentCard:
        return make(call)

    extended = make_async if is_async else make
    async with serving(echo, extended_card=extended, authenticator=ByName()) as s:
        card = await extended_card(s, ("x-name", "ann"))
        assert card.name == "for ann"
        assert [skill.id for skill in card.skills] == ["secret"]
        assert [one.url for one in card.supported_interfaces] == [s.server.address]
        assert card.capabilities.extended_agent_card
        status = await refused(extended_card(s, ("x-name", "mallory")))
        assert_error(status, "PERMISSION_DENIED")
        assert status.message == "not for mallory"
        assert "secret" not in {skill.id for skill in (await public_card(s)).skills}


@pytest.mark.parametrize("made", [pb.AgentCard(skills=[a_skill(tags=[])]), None, "card.json"])
async def test_wrong_extended_card_is_logged_with_its_fields_and_the_caller_learns_nothing(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, extended_card=lambda call: made) as s:
        with caplog.at_level(logging.ERROR):
            status = await refused(extended_card(s))
        assert_error(status, "INTERNAL")
        assert "skills" not in status.message
        (record,) = caplog.records
        assert "the extended card: " in record.getMessage()
        if isinstance(made, pb.AgentCard):
            assert "skills[0].tags" in record.getMessage()
        assert made is None or isinstance(made, str) or not made.name


async def test_text_of_an_exception_stays_on_the_server() -> None:
    def extended(call: ServerCallContext) -> pb.AgentCard:
        raise RuntimeError("the secret is 42")

    async with serving(echo, extended_card=extended) as s:
        status = await refused(extended_card(s))
        assert_error(status, "INTERNAL")
        assert "42" not in status.message


# Signatures.


async def test_every_card_is_signed_as_it_is_given_out() -> None:
    def make(call: ServerCallContext) -> pb.AgentCard:
        return pb.AgentCard(name=f"for {call.principal.id}")

    for extended in (pb.AgentCard(name="for ann"), make):
        async with serving(
            echo, extended_card=extended, card_signer=SIGNER, authenticator=ByName()
        ) as s:
            public = await public_card(s)
            assert verify_card(public, KEYS, strict=True) == "k1"
            card = await extended_card(s, ("x-name", "ann"))
            assert card.name == "for ann"
            assert verify_card(card, KEYS, strict=True) == "k1"
            card.name = public.name
            with pytest.raises(ValueError, match="it was changed"):
                verify_card(card, KEYS)


async def test_a_card_that_comes_signed_is_given_out_unchanged(tmp_path: Path) -> None:
    card = sign_card(a_card(), SIGNER)
    async with serving(echo, card=a_file(tmp_path, card)) as s:
        found = await public_card(s)
        assert found == card
        assert verify_card(found, KEYS) == "k1"


async def test_a_signer_adds_its_signature_to_those_of_a_signed_card() -> None:
    other = CardSigner(pair("EdDSA").private, key_id="k2")
    async with serving(echo, card=sign_card(a_card(), other), card_signer=SIGNER) as s:
        card = await public_card(s)
        assert verify_card(card, KEYS) == "k1"
        assert verify_card(card, {"k2": pair("EdDSA").public}) == "k2"
