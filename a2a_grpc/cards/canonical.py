"""The canonical form of a card, which its signatures cover (specification 8.4.1, RFC 8785)."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from a2a_grpc import pb
from a2a_grpc.cards.errors import CardSignatureError
from a2a_grpc.cards.fields import fields_of, is_map, is_required

EXTRA = "needs the packages of the extra `signing`: pip install 'a2a-grpc[signing]'"


def canonical_card(card: pb.AgentCard) -> bytes:
    """The canonical JSON of the card without its signatures, as section 8.4.1 has it.

    REQUIRED fields are always there; optional fields, messages and entries of maps if they are set,
    also to something empty; all others unless they have their default value.

    Raises:
        CardSignatureError: a number in `params` of an extension is none that JSON has.
        ImportError: the extra `signing` is not installed.
    """
    return _dump(_object(card, leave_out="signatures"))


def pruned_card(card: pb.AgentCard) -> bytes:
    """`canonical_card` without whatever is empty: strings, lists, and objects, at every level.

    Not the form of the specification, but what several SDKs sign and verify in its place (a2a-sdk
    1.3 for Python among them). It is the same for a card in which nothing empty is set. It does not
    tell a security requirement without scopes from none, so it protects less.

    Raises CardSignatureError and ImportError as `canonical_card` does.
    """
    return _dump(_pruned(_object(card, leave_out="signatures")) or {})


def _dump(value: Any) -> bytes:
    try:
        import rfc8785
    except ImportError as error:
        raise ImportError(f"a card's canonical form {EXTRA}") from error
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise CardSignatureError(f"the card has no canonical form: {error}") from error
    except UnicodeEncodeError as error:
        raise CardSignatureError("the card has no canonical form: text is no Unicode") from error


def _object(message: Message, leave_out: str = "") -> dict[str, Any]:
    found = {}
    for field in fields_of(message):
        if field.name == leave_out:
            continue
        value = getattr(message, field.name)
        present = message.HasField(field.name) if field.has_presence else bool(value)
        if present or is_required(field):
            found[field.json_name] = _field(value, field)
    return found


def _field(value: Any, field: FieldDescriptor) -> Any:
    if is_map(field):
        return {key: _value(value[key]) for key in value}
    if field.is_repeated:
        return [_value(one) for one in value]
    return _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, Struct):
        return {key: _plain(one) for key, one in value.fields.items()}
    return _object(value) if isinstance(value, Message) else value


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return _value(value.struct_value)
        case "list_value":
            return _plain_list(value.list_value)
        case "null_value" | None:
            return None
        case kind:
            # Numbers stay doubles, which is what RFC 8785 writes: 1.0 as 1, 1e21 as 1e+21.
            return getattr(value, kind)


def _plain_list(values: ListValue) -> list[Any]:
    return [_plain(one) for one in values.values]


def _pruned(value: Any) -> Any:
    """The value without what is empty; None if that leaves nothing."""
    if isinstance(value, dict):
        kept = {key: found for key, one in value.items() if (found := _pruned(one)) is not None}
        return kept or None
    if isinstance(value, list):
        return [found for one in value if (found := _pruned(one)) is not None] or None
    return None if value == "" else value
