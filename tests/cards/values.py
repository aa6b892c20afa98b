"""What tests of cards share: a card with everything in it, and keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from a2a_grpc import pb


def a_card(**fields: object) -> pb.AgentCard:
    """A finished card; `fields` replace or add some."""
    found: dict[str, object] = {
        "name": "Translator",
        "description": "Translates.",
        "version": "1.2.0",
        "supported_interfaces": [
            pb.AgentInterface(
                url="agents.example.com:443", protocol_binding="GRPC", protocol_version="1.0"
            )
        ],
        "capabilities": pb.AgentCapabilities(streaming=True),
        "default_input_modes": ["text/plain"],
        "default_output_modes": ["text/plain"],
        "skills": [a_skill()],
    }
    return pb.AgentCard(**(found | fields))


def a_skill(**fields: object) -> pb.AgentSkill:
    found: dict[str, object] = {
        "id": "translate",
        "name": "Translate",
        "description": "Translates text.",
        "tags": ["translation"],
    }
    return pb.AgentSkill(**(found | fields))


def with_bearer(card: pb.AgentCard) -> pb.AgentCard:
    """A copy that wants a bearer token; the requirement has no scopes, so it is empty inside."""
    made = pb.AgentCard()
    made.CopyFrom(card)
    made.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
    made.security_requirements.add().schemes["bearer"].SetInParent()
    return made


@dataclass(frozen=True)
class Pair:
    """A key pair, both in PEM form."""

    private: bytes
    public: bytes


def pair(kind: str, number: int = 0) -> Pair:
    """The same pair for the same arguments: making one takes a while."""
    return _pair(kind, number)


@cache
def _pair(kind: str, number: int) -> Pair:
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
    match kind:
        case "ES256":
            key = ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            key = ec.generate_private_key(ec.SECP384R1())
        case "ES512":
            key = ec.generate_private_key(ec.SECP521R1())
        case "RS256":
            key = rsa.generate_private_key(65537, 2048)
        case "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
        case "weak RSA":
            key = rsa.generate_private_key(65537, 1024)
        case "secp256k1":
            key = ec.generate_private_key(ec.SECP256K1())
        case _:
            raise ValueError(kind)
    return Pair(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
