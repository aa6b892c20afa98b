"""Signatures of cards: made, verified, and refused (specification 8.4)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from a2a_grpc import pb
from a2a_grpc.cards.canonical import canonical_card, pruned_card
from a2a_grpc.cards.errors import CardSignatureError
from a2a_grpc.cards.signing import CardSigner, sign_card
from a2a_grpc.cards.verification import MAX_SIGNATURES, verify_card
from tests.cards.values import a_card, pair, with_bearer
from tests.cli.process import environment_of

KINDS = ["ES256", "ES384", "ES512", "RS256", "EdDSA"]


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(card: pb.AgentCard | None = None, kind: str = "ES256", **how: Any) -> pb.AgentCard:
    return sign_card(card or a_card(), CardSigner(pair(kind).private, key_id="k1", **how))


def header(signature: pb.AgentCardSignature) -> dict[str, Any]:
    text = signature.protected
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def jwk(kind: str = "ES256", number: int = 0, **members: Any) -> dict[str, Any]:
    key = serialization.load_pem_public_key(pair(kind, number).public)
    algorithm = jwt.algorithms.get_default_algorithms()[kind]
    found: dict[str, Any] = algorithm.to_jwk(key, as_dict=True)  # type: ignore[call-overload]
    return {**found, **members}


def refused(card: pb.AgentCard, keys: Any, **how: Any) -> str:
    with pytest.raises(CardSignatureError) as caught:
        verify_card(card, keys, **how)
    return str(caught.value)


# Signing.


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_signed_can_be_verified_with_the_public_key(kind: str) -> None:
    card = signed(kind=kind)
    assert header(card.signatures[0]) == {"alg": kind, "typ": "JOSE", "kid": "k1"}
    for key in (pair(kind).public, pair(kind).public.decode(), jwk(kind), jwt.PyJWK(jwk(kind))):
        assert verify_card(card, {"k1": key}, strict=True) == "k1"


def test_another_implementation_finds_the_signature_right() -> None:
    card = signed()
    (signature,) = card.signatures
    token = f"{signature.protected}.{b64(canonical_card(card))}.{signature.signature}"
    found = jwt.PyJWS().decode(token, pair("ES256").public, algorithms=["ES256"])
    assert found == canonical_card(a_card())


def test_the_card_is_copied_and_only_signatures_are_added() -> None:
    card = a_card()
    found = sign_card(card, CardSigner(pair("ES256").private, key_id="k1"))
    assert not card.signatures
    found.ClearField("signatures")
    assert found == card


def test_a_key_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(pair("ES256").private)
    for path in (file, str(file)):
        assert CardSigner(path, key_id="k1").algorithm == "ES256"


def test_algorithm_and_jku_are_in_the_protected_header() -> None:
    jku = "https://example.com/jwks.json"
    card = signed(kind="RS256", algorithm="PS256", jku=jku)
    assert header(card.signatures[0]) == {"alg": "PS256", "typ": "JOSE", "kid": "k1", "jku": jku}
    verify_card(card, {"k1": pair("RS256").public})


@pytest.mark.parametrize(
    ("key", "how", "said"),
    [
        (b"no key", {}, "not a private key in PEM form; make one with openssl"),
        (pair("ES256").public, {}, "not a private key in PEM form"),
        (pair("weak RSA").private, {}, "RSA of 2048 bits or more"),
        (pair("secp256k1").private, {}, "use EC (P-256"),
        (pair("ES256").private, {"algorithm": "RS256"}, "can't sign with RS256; use ES256"),
        (pair("RS256").private, {"algorithm": "HS256"}, "can't sign with HS256; use RS256"),
        (pair("RS256").private, {"algorithm": "none"}, "can't sign with none"),
        (pair("ES256").private, {"key_id": ""}, "needs a key_id"),
        ("/no/such/key.pem", {}, "/no/such/key.pem: can't be read: no such file"),
    ],
)
def test_a_key_that_can_not_sign_is_refused(key: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(CardSignatureError) as caught:
        CardSigner(key, **({"key_id": "k1"} | how))
    assert said in str(caught.value)


def test_an_encrypted_key_is_refused_with_the_remedy() -> None:
    key = serialization.load_pem_private_key(pair("ES256").private, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(CardSignatureError, match="openssl pkey"):
        CardSigner(encrypted, key_id="k1")


def test_a_signer_does_not_show_its_key() -> None:
    signer = CardSigner(pair("ES256").private, key_id="k1")
    assert repr(signer) == "CardSigner(key_id='k1', algorithm='ES256')"


# Tampering.

TAMPERED: list[Callable[[pb.AgentCard], Any]] = [
    lambda card: setattr(card, "name", "Other"),
    lambda card: setattr(card, "description", card.description + " "),
    lambda card: setattr(card.supported_interfaces[0], "url", "evil.example.com:443"),
    lambda card: setattr(card.supported_interfaces[0], "tenant", "t"),
    lambda card: card.supported_interfaces.add(url="evil.example.com:443"),
    lambda card: card.skills[0].tags.append("more"),
    lambda card: card.skills.pop(),
    lambda card: setattr(card.capabilities, "streaming", False),
    lambda card: card.capabilities.ClearField("streaming"),
    lambda card: setattr(card.capabilities, "push_notifications", False),
    lambda card: card.capabilities.extensions.add(uri="urn:a", required=True),
    lambda card: setattr(card, "icon_url", ""),
    lambda card: card.security_requirements.pop(),
    lambda card: card.security_requirements[0].schemes["bearer"].list.append("scope"),
    lambda card: setattr(card.security_schemes["bearer"].http_auth_security_scheme, "scheme", "x"),
    lambda card: card.security_schemes["new"].mtls_security_scheme.SetInParent(),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("tamper", TAMPERED, ids=range(len(TAMPERED)))
def test_a_card_that_was_changed_does_not_verify(
    tamper: Callable[[pb.AgentCard], Any], strict: bool
) -> None:
    card = signed(with_bearer(a_card()))
    keys = {"k1": pair("ES256").public}
    verify_card(card, keys, strict=strict)
    tamper(card)
    assert "it was changed" in refused(card, keys, strict=strict)


def test_no_byte_of_a_signature_may_change() -> None:
    card = signed()
    keys = {"k1": pair("ES256").public}
    good = card.signatures[0].signature
    for place in range(0, len(good) - 1, 7):
        other = "A" if good[place] != "A" else "B"
        card.signatures[0].signature = good[:place] + other + good[place + 1 :]
        refused(card, keys)
    for value in ("", good[:-4], good + "AAAA", good + "=", f" {good}", "é"):
        card.signatures[0].signature = value
        refused(card, keys)


def test_the_unprotected_header_counts_for_nothing() -> None:
    card = signed()
    card.signatures[0].header.update({"alg": "none", "kid": "other"})
    assert verify_card(card, {"k1": pair("ES256").public}) == "k1"


def test_a_signature_of_another_card_does_not_verify() -> None:
    card = a_card(name="Other")
    card.signatures.extend(signed().signatures)
    refused(card, {"k1": pair("ES256").public})


# Confusion of algorithms.


def forged(protected: dict[str, Any] | bytes, sign: Callable[[bytes], bytes]) -> pb.AgentCard:
    """A card with a signature that `sign` makes of the signing input."""
    card = a_card()
    text = protected if isinstance(protected, bytes) else json.dumps(protected).encode()
    value = sign(f"{b64(text)}.{b64(canonical_card(card))}".encode())
    card.signatures.add(protected=b64(text), signature=b64(value))
    return card


@pytest.mark.parametrize("algorithm", ["none", "None", "", None, 0, ["ES256"]])
def test_an_unsigned_card_is_refused(algorithm: Any) -> None:
    card = forged({"alg": algorithm, "kid": "k1"}, lambda _: b"")
    refused(card, {"k1": pair("ES256").public})
    card = forged({"alg": algorithm, "kid": "k1"}, lambda _: b"x")
    assert "is not one of key 'k1'" in refused(card, {"k1": pair("ES256").public})


@pytest.mark.parametrize("kind", ["ES256", "RS256", "EdDSA"])
def test_a_public_key_is_never_taken_for_a_secret(kind: str) -> None:
    public = pair(kind).public
    card = forged(
        {"alg": "HS256", "kid": "k1"}, lambda data: hmac.digest(public, data, hashlib.sha256)
    )
    assert "'HS256' is not one of key 'k1'" in refused(card, {"k1": public})


def test_a_secret_is_no_key() -> None:
    secret = b"x" * 32
    card = forged({"alg": "HS256", "kid": "k1"}, lambda d: hmac.digest(secret, d, hashlib.sha256))
    for key in (
        {"kty": "oct", "k": b64(secret)},
        secret,
        jwt.PyJWK({"kty": "oct", "k": b64(secret)}),
    ):
        refused(card, {"k1": key})


def test_a_private_key_is_not_taken() -> None:
    assert "give the public one" in refused(signed(), {"k1": pair("ES256").private})


def test_a_weak_key_is_not_trusted() -> None:
    weak = pair("weak RSA")
    key = serialization.load_pem_private_key(weak.private, None)
    rs256 = jwt.algorithms.get_default_algorithms()["RS256"]
    card = forged({"alg": "RS256", "kid": "k1"}, lambda data: rs256.sign(data, key))
    assert "2048 bits" in refused(card, {"k1": weak.public})


def test_a_key_that_is_meant_for_something_else_is_not_trusted() -> None:
    card = signed()
    verify_card(card, {"k1": jwk(use="sig", key_ops=["verify"], alg="ES256")})
    assert "not meant for signatures" in refused(card, {"k1": jwk(use="enc")})
    assert "not meant for signatures" in refused(card, {"k1": jwk(key_ops=["sign"])})
    assert "is not one of key" in refused(card, {"k1": jwk(alg="ES384")})
    assert "can't be read" in refused(card, {"k1": {"kty": "EC", "crv": "P-256"}})


@pytest.mark.parametrize("member", [{"crit": ["b64"]}, {"b64": False}, {"crit": []}])
def test_extensions_of_jws_are_refused(member: dict[str, Any]) -> None:
    card = signed()
    protected = b64(json.dumps({**header(card.signatures[0]), **member}).encode())
    card.signatures[0].protected = protected
    assert "asks for JWS extensions" in refused(card, {"k1": pair("ES256").public})


@pytest.mark.parametrize(
    "protected", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 10_000, b'{"alg": "ES256"}']
)
def test_a_header_that_can_not_be_read_is_refused(protected: bytes) -> None:
    refused(forged(protected, lambda _: b"x"), {"k1": pair("ES256").public})


# Keys.


def test_a_card_without_a_signature_is_refused() -> None:
    assert refused(a_card(), {}) == "the card has no signature"


def test_an_unknown_key_is_named() -> None:
    for keys in ({}, {"k2": pair("ES256").public}, {"keys": []}, lambda key_id, jku: None):
        assert "key 'k1' is not known" in refused(signed(), keys)


def test_a_jwk_set_is_searched_by_key_id() -> None:
    keys = {"keys": ["odd", {"kty": "EC"}, jwk(number=1, kid="k0"), jwk(kid="k1")]}
    assert verify_card(signed(), keys) == "k1"


def test_nothing_is_fetched_and_a_function_gets_the_url() -> None:
    asked = []

    def find(key_id: str, jku: str | None) -> bytes:
        asked.append((key_id, jku))
        return pair("ES256").public

    card = signed(jku="https://example.com/jwks.json")
    assert verify_card(card, find) == "k1"
    assert verify_card(signed(), find) == "k1"
    assert asked == [("k1", "https://example.com/jwks.json"), ("k1", None)]
    assert "is not known" in refused(card, {})


def test_a_function_may_raise_for_a_key_that_it_does_not_trust() -> None:
    def find(key_id: str, jku: str | None) -> bytes:
        raise KeyError(key_id)

    assert "key 'k1' is not known" in refused(signed(), find)


def test_one_of_several_signatures_is_enough_for_the_change_from_key_to_key() -> None:
    old, new = pair("ES256", 1), pair("EdDSA", 1)
    card = sign_card(a_card(), CardSigner(old.private, key_id="old"))
    card = sign_card(card, CardSigner(new.private, key_id="new"))
    assert [header(one)["kid"] for one in card.signatures] == ["old", "new"]
    assert verify_card(card, {"old": old.public}) == "old"
    assert verify_card(card, {"new": new.public}) == "new"
    assert verify_card(card, {"new": new.public, "old": old.public}) == "old"
    said = refused(card, {"old": pair("ES256", 2).public})
    assert "signatures[0]: not made with key 'old'" in said
    assert "signatures[1]: key 'new' is not known" in said


def test_only_so_many_signatures_are_tried() -> None:
    card = a_card()
    card.signatures.extend([pb.AgentCardSignature(protected="x", signature="x")] * MAX_SIGNATURES)
    card.signatures.extend(signed().signatures)
    assert f"from signatures[{MAX_SIGNATURES}] on" in refused(card, {"k1": pair("ES256").public})


# The form without whatever is empty, which other SDKs sign.


def signed_pruned(card: pb.AgentCard) -> pb.AgentCard:
    signature = CardSigner(pair("ES256").private, key_id="k1").sign(pruned_card(card))
    found = pb.AgentCard()
    found.CopyFrom(card)
    found.signatures.append(signature)
    return found


def test_a_signature_over_the_pruned_form_verifies_unless_strictness_is_asked_for() -> None:
    card = signed_pruned(with_bearer(a_card()))
    keys = {"k1": pair("ES256").public}
    assert verify_card(card, keys) == "k1"
    refused(card, keys, strict=True)
    card.name = "Other"
    refused(card, keys)


def test_a_card_with_something_empty_is_signed_for_both_and_neither_lets_it_be_changed() -> None:
    card = signed(with_bearer(a_card()))
    canonical, pruned = card.signatures
    keys = {"k1": pair("ES256").public}
    for signature in (canonical, pruned):
        one = with_bearer(a_card())
        one.signatures.append(signature)
        assert verify_card(one, keys, strict=True) == "k1"
        one.security_requirements.pop()
        refused(one, keys)
    assert len(signed().signatures) == 1


# Without the extra.


@pytest.mark.parametrize("missing", ["jwt", "cryptography", "rfc8785"])
def test_without_the_extra_the_error_names_it(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from a2a_grpc import CardSigner, pb, sign_card, verify_card
try:
    sign_card(pb.AgentCard(), CardSigner(sys.stdin.buffer.read(), key_id="k"))
except ImportError as error:
    assert "pip install 'a2a-grpc[signing]'" in str(error), error
else:
    raise AssertionError("signed")
card = pb.AgentCard(signatures=[pb.AgentCardSignature(protected="e30", signature="x")])
try:
    verify_card(card, lambda key_id, jku: None)
except ImportError as error:
    assert "pip install 'a2a-grpc[signing]'" in str(error), error
except ValueError:
    assert {missing!r} != "rfc8785"
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=pair("ES256").private,
        env=environment_of(),
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr.decode()
