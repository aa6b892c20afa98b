"""Signed cards and a2a-sdk 1.3: what we sign it verifies, and what it signs we verify."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.cards.canonical import canonical_card, pruned_card
from a2a_grpc.cards.completion import complete_card
from a2a_grpc.cards.errors import CardSignatureError
from a2a_grpc.cards.signing import CardSigner, sign_card
from a2a_grpc.cards.verification import verify_card
from tests.cards.values import a_card, pair, with_bearer
from tests.environments import environment

# The environment is made on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

PROGRAM = Path(__file__).with_name("a2a_sdk_signing.py")
REQUIREMENTS = ["a2a-sdk[signing]==1.3.0"]
ALGORITHMS = ["ES256", "RS256", "EdDSA"]


def with_params(card: pb.AgentCard) -> pb.AgentCard:
    params = card.capabilities.extensions.add(uri="urn:a").params
    params.update({"z": 1.5, "\U0001f600": [1, "\u20ac\n", True], "\ufb33": 300, "tiny": 1e-7})
    return card


def with_empty_params(card: pb.AgentCard) -> pb.AgentCard:
    card.capabilities.extensions.add(uri="urn:a").params.update({"a": "", "b": {}, "c": [None]})
    return card


def with_mtls(card: pb.AgentCard) -> pb.AgentCard:
    card.security_schemes["tls"].mtls_security_scheme.SetInParent()
    return card


# Where nothing empty is set, both know one form.
PLAIN: dict[str, pb.AgentCard] = {
    "finished": a_card(),
    "completed": complete_card(None, name="agent", url="h:1", retry_window=300.0),
    "explicit defaults": a_card(capabilities=pb.AgentCapabilities(streaming=False)),
    "params": with_params(a_card(name="\u00c4gent \U0001f600")),
}
# Here a2a-sdk leaves out what section 8.4.1 keeps.
EMPTY: dict[str, pb.AgentCard] = {
    "requirement without scopes": with_bearer(a_card()),
    "empty optional field": a_card(documentation_url=""),
    "empty required field": a_card(description="", skills=[]),
    "scheme without fields": with_mtls(a_card()),
    "empty params": with_empty_params(a_card()),
}
CARDS = {**PLAIN, **EMPTY}


def ours(card: pb.AgentCard, algorithm: str) -> pb.AgentCard:
    return sign_card(card, CardSigner(pair(algorithm).private, key_id="ours"))


def sdk(algorithm: str, *cards: pb.AgentCard) -> dict[str, list[Any]]:
    """What a2a-sdk says of the cards' signatures, and the cards with signatures of its own."""
    given = {
        "key": pair(algorithm).private.decode(),
        "public": pair(algorithm).public.decode(),
        "algorithm": algorithm,
        "cards": [json_format.MessageToJson(card) for card in cards],
    }
    # Isolated, so that neither this repository nor anything else on a path is importable.
    result = subprocess.run(
        [str(environment("a2a-sdk-signing", REQUIREMENTS)), "-I", str(PROGRAM)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, list[Any]] = json.loads(result.stdout)
    return found


@cache
def exchange(algorithm: str) -> dict[str, tuple[bool, pb.AgentCard]]:
    """For each card: whether a2a-sdk verifies ours, and the card as a2a-sdk signs it."""
    found = sdk(algorithm, *(ours(card, algorithm) for card in CARDS.values()))
    theirs = [json_format.Parse(text, pb.AgentCard()) for text in found["signed"]]
    return dict(zip(CARDS, zip(found["verified"], theirs, strict=True), strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CARDS)
def test_what_we_sign_a2a_sdk_verifies(name: str, algorithm: str) -> None:
    assert exchange(algorithm)[name][0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CARDS)
def test_what_a2a_sdk_signs_we_verify(name: str, algorithm: str) -> None:
    card = exchange(algorithm)[name][1]
    keys = {"theirs": pair(algorithm).public}
    assert verify_card(card, keys) == "theirs"
    card.name += "!"
    with pytest.raises(CardSignatureError):
        verify_card(card, keys)
    card.name = card.name.removesuffix("!")


@pytest.mark.parametrize("name", CARDS)
def test_what_a2a_sdk_signs_is_the_form_of_the_specification_unless_something_is_empty(
    name: str,
) -> None:
    card = exchange("ES256")[name][1]
    keys = {"theirs": pair("ES256").public}
    assert (canonical_card(card) == pruned_card(card)) == (name in PLAIN)
    if name in PLAIN:
        assert verify_card(card, keys, strict=True) == "theirs"
    else:
        with pytest.raises(CardSignatureError):
            verify_card(card, keys, strict=True)


CHANGES: list[Callable[[pb.AgentCard], Any]] = [
    lambda card: setattr(card, "name", "Other"),
    lambda card: setattr(card.supported_interfaces[0], "url", "evil.example.com:443"),
    lambda card: card.skills.pop(),
]


def test_a2a_sdk_does_not_verify_what_was_changed() -> None:
    cards = []
    for change in CHANGES:
        card = ours(with_bearer(a_card()), "ES256")
        change(card)
        cards.append(card)
    assert sdk("ES256", *cards)["verified"] == [False] * len(CHANGES)
