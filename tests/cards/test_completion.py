"""What a server fills into a card, and what it leaves."""

from __future__ import annotations

import pytest

from a2a_grpc import pb
from a2a_grpc.cards.completion import complete_card
from a2a_grpc.extensions import RETRY_EXTENSION, SEQUENCE_EXTENSION
from tests.cards.values import a_card


def extensions(card: pb.AgentCard) -> dict[str, pb.AgentExtension]:
    return {one.uri: one for one in card.capabilities.extensions}


def test_what_is_missing_is_filled_in_and_the_authors_card_is_left_alone() -> None:
    author = pb.AgentCard(description="Mine.")
    card = complete_card(author, name="agent", url="h:1", tenant="t", has_extended_card=True)
    assert author == pb.AgentCard(description="Mine.")
    assert (card.name, card.description) == ("agent", "Mine.")
    assert [one.name for one in card.skills] == ["agent"]
    (interface,) = card.supported_interfaces
    assert (interface.url, interface.tenant, interface.protocol_version) == ("h:1", "t", "1.0")
    capabilities = card.capabilities
    assert capabilities.streaming
    assert capabilities.push_notifications
    assert capabilities.extended_agent_card
    assert list(extensions(card)) == [SEQUENCE_EXTENSION]


def test_what_the_author_says_stays() -> None:
    author = a_card(capabilities=pb.AgentCapabilities(streaming=False, push_notifications=False))
    author.capabilities.extensions.add(uri=RETRY_EXTENSION, description="mine")
    card = complete_card(author, name="agent", url="h:1", retry_window=300.0)
    assert not card.capabilities.streaming
    assert not card.capabilities.push_notifications
    assert extensions(card)[RETRY_EXTENSION].description == "mine"
    for field in ("name", "supported_interfaces", "skills", "default_input_modes", "version"):
        assert getattr(card, field) == getattr(author, field)


def test_retries_are_declared_with_their_window() -> None:
    card = complete_card(None, name="agent", url="h:1", retry_window=120.0)
    assert dict(extensions(card)[RETRY_EXTENSION].params) == {"windowSeconds": 120.0}
    assert not extensions(card)[RETRY_EXTENSION].required
    assert RETRY_EXTENSION == "urn:a2a-grpc:extensions:retry:v1"


@pytest.mark.parametrize("retry_window", [None, 300.0])
def test_a_signed_card_is_left_as_it_is(retry_window: float | None) -> None:
    author = pb.AgentCard(signatures=[pb.AgentCardSignature(protected="p", signature="s")])
    assert complete_card(author, name="agent", url="h:1", retry_window=retry_window) == author
