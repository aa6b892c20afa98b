"""Signed cards: JSON Web Signatures (RFC 7515) over the canonical form (specification 8.4)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from a2a_grpc import pb
from a2a_grpc.cards.canonical import canonical_card, pruned_card
from a2a_grpc.cards.errors import CardSignatureError
from a2a_grpc.cards.keys import algorithm_named, private_key

FULL_FORM = "urn:a2a-grpc:card-sha256"
"""In the protected header of a signature over the pruned form: the digest of the canonical one."""


class CardSigner:
    """A private key that signs cards.

    Args:
        key: the path of a PEM file, or its content as bytes: an EC key (P-256, P-384, P-521), an
            RSA key of 2048 bits or more, or an Ed25519 key; not encrypted.
        key_id: the `kid` by which those who verify find the public key.
        algorithm: the JWS algorithm; that of the key unless given (RS256 for RSA).
        jku: the URL of the JWK set that holds the public key, if there is one.

    Raises:
        CardSignatureError: the key can't be read, or can't be used with this algorithm.
        ImportError: the extra `signing` is not installed.
    """

    def __init__(
        self,
        key: str | os.PathLike[str] | bytes,
        *,
        key_id: str,
        algorithm: str | None = None,
        jku: str | None = None,
    ) -> None:
        source = "the key of the card" if isinstance(key, bytes) else os.fspath(key)
        if not key_id:
            raise CardSignatureError(f"{source}: a key needs a key_id, by which clients find it")
        if not isinstance(key, bytes):
            try:
                key = Path(key).read_bytes()
            except OSError as error:
                raise CardSignatureError(
                    f"{source}: can't be read: {(error.strerror or str(error)).lower()}; name a "
                    "PEM file with a private key"
                ) from error
        self._key, allowed = private_key(key, source)
        if algorithm is not None and algorithm not in allowed:
            raise CardSignatureError(
                f"{source}: the key can't sign with {algorithm}; use {', '.join(allowed)}"
            )
        self.key_id = key_id
        self.algorithm = algorithm or allowed[0]
        self.jku = jku

    def __repr__(self) -> str:
        return f"CardSigner(key_id={self.key_id!r}, algorithm={self.algorithm!r})"

    def sign(self, payload: bytes, **parameters: str) -> pb.AgentCardSignature:
        """A signature of the payload; `parameters` go into the protected header too."""
        header = {"alg": self.algorithm, "typ": "JOSE", "kid": self.key_id, **parameters}
        if self.jku is not None:
            header["jku"] = self.jku
        protected = encoded(json.dumps(header, separators=(",", ":")).encode())
        signed = algorithm_named(self.algorithm).sign(signing_input(protected, payload), self._key)
        return pb.AgentCardSignature(protected=protected, signature=encoded(signed))


def sign_card(card: pb.AgentCard, signer: CardSigner) -> pb.AgentCard:
    """A copy of the card with a signature more; those it has are kept, for key rotation.

    The signature covers the canonical form of section 8.4.1. Where something empty is set in the
    card, such as a security requirement without scopes, SDKs that leave out whatever is empty can't
    verify that; a second signature covers the form without it, and holds the digest of the first.

    Raises:
        CardSignatureError: the card has no canonical form.
        ImportError: the extra `signing` is not installed.
    """
    signed = pb.AgentCard()
    signed.CopyFrom(card)
    payload, pruned = canonical_card(card), pruned_card(card)
    signed.signatures.append(signer.sign(payload))
    if pruned != payload:
        signed.signatures.append(signer.sign(pruned, **{FULL_FORM: digest(payload)}))
    return signed


def digest(payload: bytes) -> str:
    """The value of `FULL_FORM`."""
    return encoded(hashlib.sha256(payload).digest())


def encoded(data: bytes) -> str:
    """base64url without padding (RFC 7515, 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signing_input(protected: str, payload: bytes) -> bytes:
    """What a JWS signs (RFC 7515, 5.1)."""
    return f"{protected}.{encoded(payload)}".encode()


def decoded(text: str) -> bytes:
    """The bytes of base64url without padding; raises ValueError for anything else."""
    if not text.isascii() or not text.replace("-", "a").replace("_", "a").isalnum():
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def header_of(signature: pb.AgentCardSignature) -> dict[str, Any]:
    """The protected header; raises ValueError if it is none."""
    try:
        header = json.loads(decoded(signature.protected))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("not an object")
    return header
