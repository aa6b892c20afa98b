"""A card from a file: ProtoJSON, or the same in YAML (specification 4.4, 5.5).

Every key is compared with the schema before protobuf's parser sees it, since that stops at the
first problem and says less about it.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from a2a_grpc import pb
from a2a_grpc.cards.errors import CardError
from a2a_grpc.cards.fields import is_map
from a2a_grpc.errors import FieldViolation

Problems = Iterator[FieldViolation]

YAML_SUFFIXES = (".yaml", ".yml")


def load_card(path: str | os.PathLike[str]) -> pb.AgentCard:
    """The card in a file, as its author wrote it: nothing is filled in, and no value is judged.

    Args:
        path: a JSON file, or one in YAML if its name ends in .yaml or .yml. The fields have the
            names of the protocol's JSON (`supportedInterfaces`) or those of its schema
            (`supported_interfaces`).

    Raises:
        CardError: the file can't be read, is not JSON or YAML, or has fields that a card does not
            have or values that do not fit them; one line that names the file and each field.
    """
    source = os.fspath(path)
    try:
        text = Path(source).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CardError.whole("is not UTF-8; save it as UTF-8", source=source) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CardError.whole(
            f"can't be read: {reason}; name a JSON or YAML file", source=source
        ) from error
    try:
        if source.lower().endswith(YAML_SUFFIXES):
            found = _parse_yaml(text, source)
        else:
            found = _parse_json(text, source)
        if problems := tuple(_message_problems(found, pb.AgentCard.DESCRIPTOR, "")):
            raise CardError(*problems, source=source)
        return json_format.ParseDict(found, pb.AgentCard())
    except RecursionError as error:
        raise CardError.whole("is nested too deeply for a card", source=source) from error
    except json_format.ParseError as error:
        raise CardError.whole(f"is not an agent card: {error}", source=source) from error


def _parse_json(text: str, source: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CardError(FieldViolation(twice, "is given twice; remove one"), source=source)
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise CardError.whole(
            f"is not JSON: {error.msg} at line {error.lineno} column {error.colno} (YAML needs a "
            "name that ends in .yaml)",
            source=source,
        ) from error


def _parse_yaml(text: str, source: str) -> Any:
    import yaml

    class UniqueKeysLoader(yaml.SafeLoader):
        """Refuses what YAML forbids and PyYAML takes: the same key twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is given twice; remove one", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, UniqueKeysLoader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1} column {where.column + 1}" if where else ""
        problem = getattr(error, "problem", None) or str(error)
        raise CardError.whole(f"is not YAML: {problem}{at}", source=source) from error


# What was parsed, against the schema. Paths are written with the names that the file uses.


def _message_problems(value: Any, schema: Descriptor, path: str) -> Problems:
    if schema.full_name == "google.protobuf.Struct":
        if not isinstance(value, dict):
            yield _expected("an object", value, path)
        else:
            yield from _plain_problems(value, path)
        return
    if not isinstance(value, dict):
        yield _expected("an object" if path else "an object: the card", value, path)
        return
    fields = {field.name: field for field in schema.fields}
    fields |= {field.json_name: field for field in schema.fields}
    given: dict[str, str] = {}
    for key, one in value.items():
        where = f"{path}.{key}" if path else f"{key}"
        field = fields.get(key) if isinstance(key, str) else None
        if field is None:
            yield FieldViolation(where, _unknown(str(key), schema))
        elif field.name in given:
            yield FieldViolation(where, f"is the same as {given[field.name]}; remove one of them")
        else:
            given[field.name] = key
            if one is not None:  # null stands for a field that is not there
                yield from _field_problems(one, field, where)


# What a card of A2A 0.3 had at its top, and where 1.0 has it.
_MOVED = {
    "url": "supportedInterfaces[].url",
    "protocolVersion": "supportedInterfaces[].protocolVersion",
    "preferredTransport": "supportedInterfaces[].protocolBinding",
    "additionalInterfaces": "supportedInterfaces",
    "supportsAuthenticatedExtendedCard": "capabilities.extendedAgentCard",
    "security": "securityRequirements",
}


def _unknown(key: str, schema: Descriptor) -> str:
    if key in _MOVED and schema.name == "AgentCard":
        return f"is a field of A2A 0.3; in 1.0 it is {_MOVED[key]}"
    names = [field.json_name for field in schema.fields]
    lower = {name.lower(): name for name in names}
    lower |= {field.name: field.json_name for field in schema.fields}
    near = difflib.get_close_matches(key.lower(), lower, n=1, cutoff=0.6)
    if near:
        return f"is not a field of {schema.name}; did you mean {lower[near[0]]}?"
    return f"is not a field of {schema.name}; it has {', '.join(names)}"


def _field_problems(value: Any, field: FieldDescriptor, path: str) -> Problems:
    if is_map(field):
        assert field.message_type is not None
        entry = field.message_type.fields_by_name["value"]
        if not isinstance(value, dict):
            yield _expected("an object", value, path)
            return
        for key, one in value.items():
            where = f'{path}["{key}"]'
            if not isinstance(key, str):
                yield FieldViolation(where, f"has a name that is {_kind(key)}; put it in quotes")
            else:
                yield from _value_problems(one, entry, where)
    elif field.is_repeated:
        if not isinstance(value, list):
            kind = "objects" if field.message_type is not None else "strings"
            yield _expected(f"a list of {kind}", value, path)
            return
        for index, one in enumerate(value):
            yield from _value_problems(one, field, f"{path}[{index}]")
    else:
        yield from _value_problems(value, field, path)


def _value_problems(value: Any, field: FieldDescriptor, path: str) -> Problems:
    if field.message_type is not None:
        yield from _message_problems(value, field.message_type, path)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            yield _expected("true or false", value, path)
    elif not isinstance(value, str):
        problem = _expected("a string", value, path)
        if isinstance(value, dict | list) or value is None:
            yield problem
        else:
            yield FieldViolation(path, f"{problem.description}; put it in quotes")


def _plain_problems(value: Any, path: str) -> Problems:
    """What JSON does not have: dates and the like, which YAML reads without being asked."""
    if isinstance(value, dict):
        for key, one in value.items():
            where = f'{path}["{key}"]'
            if not isinstance(key, str):
                yield FieldViolation(where, f"has a name that is {_kind(key)}; put it in quotes")
            yield from _plain_problems(one, where)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _plain_problems(one, f"{path}[{index}]")
    elif isinstance(value, int | float):
        if not -sys.float_info.max <= value <= sys.float_info.max:
            yield FieldViolation(path, "is a number that JSON readers do not have")
    elif value is not None and not isinstance(value, str):
        yield FieldViolation(path, f"is {_kind(value)}, which JSON does not have; put it in quotes")


def _expected(wanted: str, value: Any, path: str) -> FieldViolation:
    return FieldViolation(path, f"must be {wanted}, and is {_kind(value)}")


def _kind(value: Any) -> str:
    """What a value of JSON or YAML is called."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"
