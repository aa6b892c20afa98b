"""Keys for signatures of cards: read, and matched with the algorithms they are good for.

Which algorithms a key allows is decided by the key alone, never by the header of a signature:
`none` and the symmetric ones are not among them, so a public key is never taken for a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from a2a_grpc.cards.canonical import EXTRA
from a2a_grpc.cards.errors import CardSignatureError

if TYPE_CHECKING:
    from jwt import PyJWK
    from jwt.algorithms import Algorithm

KeyMaterial: TypeAlias = "str | bytes | Mapping[str, Any] | PyJWK"
"""A public key: PEM, a JSON Web Key, or PyJWT's object of one."""

_EC = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS = 2048  # RFC 7518, 3.3
_USABLE = "use EC (P-256, P-384, P-521), RSA of 2048 bits or more, or Ed25519"


def algorithm_named(name: str) -> Algorithm:
    """PyJWT's implementation of an algorithm of this module; raises ImportError without it."""
    try:
        from jwt.algorithms import get_default_algorithms
    except ImportError as error:
        raise ImportError(f"signing and verifying a card {EXTRA}") from error
    found = get_default_algorithms().get(name)
    if found is None:
        raise ImportError(f"signing and verifying a card {EXTRA}")
    return found


def private_key(pem: bytes, source: str) -> tuple[Any, tuple[str, ...]]:
    """The key in a PEM file, and the algorithms it is good for, the usual one first.

    Raises CardSignatureError, which names `source` and never shows the key.
    """
    algorithm_named("ES256")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise CardSignatureError(
            f"{source}: the key is encrypted; decrypt it first (openssl pkey -in FILE -out FILE)"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CardSignatureError(
            f"{source}: not a private key in PEM form; make one with openssl genpkey -algorithm EC "
            "-pkeyopt ec_paramgen_curve:P-256"
        ) from error
    try:
        return key, _algorithms(key.public_key())
    except CardSignatureError as error:
        raise CardSignatureError(f"{source}: {error}") from error


def public_key(material: KeyMaterial) -> tuple[Any, tuple[str, ...]]:
    """The key, and the algorithms that its signatures may name.

    Raises CardSignatureError for what is no public key of an asymmetric algorithm.
    """
    algorithm_named("ES256")
    import jwt

    only: str | None = None
    if isinstance(material, jwt.PyJWK):
        key = material.key
    elif isinstance(material, Mapping):
        key, only = _of_jwk(material)
    else:
        key = _of_pem(material)
    if isinstance(key, bytes | str) or hasattr(key, "private_bytes"):
        raise CardSignatureError("the key is secret or private; give the public one")
    allowed = _algorithms(key)
    if only is not None:
        allowed = tuple(name for name in allowed if name == only)
    return key, allowed


def _of_pem(material: str | bytes) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = material.encode() if isinstance(material, str) else material
    if b"PRIVATE KEY" in data:
        raise CardSignatureError("the key is secret or private; give the public one")
    try:
        return load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CardSignatureError("the key is not a public key in PEM form") from error


def _of_jwk(jwk: Mapping[str, Any]) -> tuple[Any, str | None]:
    import jwt

    if jwk.get("kty") not in ("EC", "RSA", "OKP"):
        raise CardSignatureError(f"a JWK of type {jwk.get('kty')!r} can't be used; {_USABLE}")
    operations = jwk.get("key_ops")
    if jwk.get("use", "sig") != "sig" or (operations is not None and "verify" not in operations):
        raise CardSignatureError("the JWK is not meant for signatures (use, key_ops)")
    algorithm = jwk.get("alg")
    try:
        key = jwt.PyJWK.from_dict({k: v for k, v in jwk.items() if k != "alg"}).key
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise CardSignatureError(f"the JWK can't be read; {_USABLE}") from error
    return key, algorithm if isinstance(algorithm, str) else None


def _algorithms(key: Any) -> tuple[str, ...]:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _EC:
        return (_EC[key.curve.name],)
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS:
        return _RSA
    if isinstance(key, ed25519.Ed25519PublicKey):
        return ("EdDSA",)
    raise CardSignatureError(f"the key can't be used; {_USABLE}")
