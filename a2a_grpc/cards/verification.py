"""Whether a card is what the holder of a key has signed (specification 8.4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from a2a_grpc import pb
from a2a_grpc.cards.canonical import canonical_card, pruned_card
from a2a_grpc.cards.errors import CardSignatureError
from a2a_grpc.cards.keys import KeyMaterial, algorithm_named, public_key
from a2a_grpc.cards.signing import FULL_FORM, decoded, digest, header_of, signing_input

KeyFinder: TypeAlias = "Callable[[str, str | None], KeyMaterial | None]"
CardKeys: TypeAlias = "Mapping[str, Any] | KeyFinder"
"""Public keys by key id (PEM or JWK), a JWK set, or a function of key id and jku."""

MAX_SIGNATURES = 32
"""How many signatures of a card are tried, since anybody can add more."""


def verify_card(card: pb.AgentCard, keys: CardKeys, *, strict: bool = False) -> str:
    """The key id of the first signature that holds for the card as it is.

    Nothing is fetched: `jku`, the URL that a signature names for its key, is handed to a function
    given as `keys`, which has to decide whether it trusts that place. Which algorithms a signature
    may use is up to its key: `none` and symmetric ones never.

    Args:
        keys: public keys by key id, each PEM or a JWK; or a JWK set (`{"keys": [...]}`); or a
            function `(key_id, jku)` that returns a key, or None for one that is not trusted.
        strict: accept only signatures that cover all of section 8.4.1's canonical form. Otherwise
            also those over the form without whatever is empty, which a2a-sdk for Python and others
            make; they do not notice when, say, a security requirement without scopes is removed.

    Raises:
        CardSignatureError: there is no signature, or none that holds; says why for each.
        ImportError: the extra `signing` is not installed.
    """
    if not card.signatures:
        raise CardSignatureError("the card has no signature")
    find = keys if callable(keys) else _finder(keys)
    canonical, pruned = canonical_card(card), pruned_card(card)
    reasons = []
    for index, signature in enumerate(card.signatures[:MAX_SIGNATURES]):
        try:
            return _verify(signature, find, canonical, pruned, strict)
        except CardSignatureError as error:
            reasons.append(f"signatures[{index}]: {error}")
    if len(card.signatures) > MAX_SIGNATURES:
        reasons.append(f"those from signatures[{MAX_SIGNATURES}] on were not tried")
    raise CardSignatureError("no signature of the card holds", reasons)


def _verify(
    signature: pb.AgentCardSignature,
    find: KeyFinder,
    canonical: bytes,
    pruned: bytes,
    strict: bool,
) -> str:
    try:
        header, value = header_of(signature), decoded(signature.signature)
    except ValueError as error:
        raise CardSignatureError("its protected header or its value can't be read") from error
    algorithm, key_id, jku = (header.get(name) for name in ("alg", "kid", "jku"))
    if not isinstance(key_id, str) or not key_id:
        raise CardSignatureError("its protected header names no key (kid)")
    if "crit" in header or header.get("b64", True) is not True:
        raise CardSignatureError("its protected header asks for JWS extensions (crit, b64)")
    try:
        material = find(key_id, jku if isinstance(jku, str) else None)
    except LookupError:
        material = None
    if material is None:
        raise CardSignatureError(f"key {key_id!r} is not known")
    key, allowed = public_key(material)
    if algorithm not in allowed:
        raise CardSignatureError(
            f"algorithm {algorithm!r} is not one of key {key_id!r} ({', '.join(allowed) or 'none'})"
        )
    forms: Sequence[bytes]
    if FULL_FORM in header:
        # Signed for others; for us it covers the canonical form, by its digest.
        forms = [pruned] if header[FULL_FORM] == digest(canonical) else []
    else:
        forms = [canonical] if strict else [canonical, pruned]
    verify = algorithm_named(algorithm).verify
    if any(verify(signing_input(signature.protected, form), key, value) for form in forms):
        return key_id
    raise CardSignatureError(
        f"not made with key {key_id!r} for this card; it was changed, or signed with another key"
    )


def _finder(keys: Mapping[str, Any]) -> KeyFinder:
    listed = keys.get("keys")
    if not isinstance(listed, list):
        return lambda key_id, _: keys.get(key_id)
    by_id = {jwk["kid"]: jwk for jwk in listed if isinstance(jwk, Mapping) and "kid" in jwk}
    return lambda key_id, _: by_id.get(key_id)
