"""Whether a card says what the specification wants it to say (sections 4.4, 4.5, 5.7, 8.3).

What `google.api.field_behavior` marks REQUIRED is checked from the schema itself; what only the
text of the specification says is in the functions below. What it leaves open is left open here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import Message

from a2a_grpc import pb
from a2a_grpc.cards.errors import CardError
from a2a_grpc.cards.fields import fields_of, is_map, is_required
from a2a_grpc.errors import FieldViolation
from a2a_grpc.structs import DEEPEST_STRUCT, StructError, check_struct

Problems = Iterator[FieldViolation]

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Many cards say `text` for all of text/*.
_MEDIA_TYPE = re.compile(rf"{_TOKEN}(/{_TOKEN})?\s*(;.*)?")
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(\.[0-9A-Za-z.+-]+)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+)(:([0-9]{1,5}))?(/\S*)?")
# Names that gRPC resolves need no `//` behind the colon.
_WITH_SCHEME = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://|(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):)/*[^\s/]\S*"
)
_LOCATIONS = ("query", "header", "cookie")
_STRUCT_NODES = 10_000


def validate_card(card: pb.AgentCard, *, source: str = "the agent's card") -> None:
    """Check a finished card, as clients will see it.

    Signatures are looked at for their form only; `verify_card` verifies them.

    Args:
        source: what the error's text calls the card, such as the name of its file.

    Raises:
        CardError: with every problem, each by the path of its field.
    """
    if problems := tuple(problems_of(card)):
        raise CardError(*problems, source=source)


def problems_of(card: pb.AgentCard) -> Problems:
    """Everything that is wrong with a finished card."""
    yield from _missing(card, "")
    yield from _interfaces(card)
    for field in ("default_input_modes", "default_output_modes"):
        yield from _media_types(getattr(card, field), field)
    yield from _unique((skill.id for skill in card.skills), "skills[{}].id")
    for index, skill in enumerate(card.skills):
        for field in ("input_modes", "output_modes"):
            yield from _media_types(getattr(skill, field), f"skills[{index}].{field}")
    yield from _extensions(card.capabilities.extensions)
    yield from _security(card)
    if card.HasField("provider"):
        yield from _absolute(card.provider.url, "provider.url")
    yield from _absolute(card.documentation_url, "documentation_url")


def _missing(message: Message, path: str) -> Problems:
    """The fields that are REQUIRED and are not there, in the message and all that it holds."""
    for field in fields_of(message):
        value: Any = getattr(message, field.name)
        where = f"{path}{field.name}"
        if is_map(field):
            # Which scopes there are may well be: none.
            assert field.message_type is not None
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):
                    yield from _missing(value[key], f'{where}["{key}"].')
        elif field.is_repeated:
            if is_required(field) and not value:
                yield FieldViolation(where, "is required and needs at least one entry")
            for index, one in enumerate(value):
                if isinstance(one, Message):
                    yield from _missing(one, f"{where}[{index}].")
                elif is_required(field) and not one:
                    yield FieldViolation(f"{where}[{index}]", "must not be empty")
        elif field.message_type is not None:
            if message.HasField(field.name):
                if field.message_type.full_name.startswith(card_package()):
                    yield from _missing(value, f"{where}.")
            elif is_required(field):
                yield FieldViolation(where, "is required")
        elif is_required(field) and not value:
            yield FieldViolation(where, "is required and must not be empty")


def card_package() -> str:
    """The package of the protocol's own messages, with a dot; Structs are not among them."""
    return f"{pb.DESCRIPTOR.package}."


# Interfaces (4.4.6, 8.3.1).


def _interfaces(card: pb.AgentCard) -> Problems:
    over_grpc = []
    for index, interface in enumerate(card.supported_interfaces):
        path = f"supported_interfaces[{index}]"
        if interface.url:
            check = _URL_CHECKS.get(interface.protocol_binding)
            if check is not None:
                yield from check(interface.url, f"{path}.url")
        version = interface.protocol_version
        if version and not _VERSION.fullmatch(version):
            yield FieldViolation(
                f"{path}.protocol_version", f"{version!r} is not a version of A2A; use 1.0"
            )
        elif interface.protocol_binding == "GRPC" and version:
            over_grpc.append((path, version))
    if over_grpc and not any(version.startswith("1.") for _, version in over_grpc):
        path, version = over_grpc[0]
        yield FieldViolation(
            f"{path}.protocol_version",
            f"is {version}, and no gRPC interface of the card offers 1.0, which this server speaks",
        )


def _grpc_address(url: str, path: str) -> Problems:
    authority = _AUTHORITY.fullmatch(url)
    if authority and (authority[3] is None or 0 < int(authority[3]) <= 65535):
        return
    if not _WITH_SCHEME.fullmatch(url):
        yield FieldViolation(
            path, f"{url!r} is not a gRPC address; use host:port, such as agents.example.com:443"
        )


def _absolute(url: str, path: str) -> Problems:
    """A URL that HTTP clients can use as it is."""
    if not url:
        return  # where it is required, that has been said
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"\s", url):
        yield FieldViolation(
            path, f"{url!r} is not an absolute URL; use one such as https://agents.example.com/a2a"
        )


_URL_CHECKS: dict[str, Callable[[str, str], Problems]] = {
    "GRPC": _grpc_address,
    "JSONRPC": _absolute,
    "HTTP+JSON": _absolute,
}

# Modes, extensions.


def _media_types(modes: Iterable[str], path: str) -> Problems:
    for index, mode in enumerate(modes):
        if mode and not _MEDIA_TYPE.fullmatch(mode):
            yield FieldViolation(
                f"{path}[{index}]",
                f"{mode!r} is not a media type; use type/subtype, such as text/plain, or */*",
            )
        elif not mode and not path.startswith("default_"):  # there it has been said
            yield FieldViolation(f"{path}[{index}]", "must not be empty")


def _unique(values: Iterable[str], path: str) -> Problems:
    """`path` has a place for the index."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in seen and value:
            first = path.format(seen[value])
            yield FieldViolation(path.format(index), f"{value!r} is already {first}; must differ")
        seen.setdefault(value, index)


def _extensions(extensions: Iterable[pb.AgentExtension]) -> Problems:
    path = "capabilities.extensions[{}].uri"
    extensions = list(extensions)
    yield from _unique((extension.uri for extension in extensions), path)
    for index, extension in enumerate(extensions):
        if not extension.uri:
            yield FieldViolation(path.format(index), "is required and must not be empty")
        elif re.search(r"[\s,]", extension.uri):
            # The metadata a2a-extensions holds several, with commas between.
            yield FieldViolation(
                path.format(index), f"{extension.uri!r} is not a URI; it has a space or a comma"
            )
        if extension.HasField("params"):
            try:
                check_struct(
                    extension.params, max_depth=DEEPEST_STRUCT - 5, max_nodes=_STRUCT_NODES
                )
            except StructError as error:
                yield FieldViolation(f"capabilities.extensions[{index}].params", str(error))


# Security (4.5).


def _security(card: pb.AgentCard) -> Problems:
    for name in sorted(card.security_schemes):
        path = f'security_schemes["{name}"]'
        if not name:
            yield FieldViolation(path, "needs a name")
        yield from _scheme(card.security_schemes[name], path)
    declared = ", ".join(sorted(card.security_schemes)) or "none"
    requirements = [
        (f"security_requirements[{index}]", one)
        for index, one in enumerate(card.security_requirements)
    ]
    requirements += [
        (f"skills[{number}].security_requirements[{index}]", one)
        for number, skill in enumerate(card.skills)
        for index, one in enumerate(skill.security_requirements)
    ]
    for path, requirement in requirements:
        for name in sorted(requirement.schemes):
            if name not in card.security_schemes:
                yield FieldViolation(
                    f'{path}.schemes["{name}"]',
                    f"is not one of the card's security_schemes ({declared})",
                )


def _scheme(scheme: pb.SecurityScheme, path: str) -> Problems:
    kind = scheme.WhichOneof("scheme")
    if kind is None:
        yield FieldViolation(path, f"needs one of {_names(scheme)}")
    elif kind == "api_key_security_scheme":
        location = scheme.api_key_security_scheme.location
        if location and location not in _LOCATIONS:
            yield FieldViolation(
                f"{path}.{kind}.location", f"is {location!r}; use {', '.join(_LOCATIONS)}"
            )
    elif kind == "open_id_connect_security_scheme":
        url = scheme.open_id_connect_security_scheme.open_id_connect_url
        yield from _absolute(url, f"{path}.{kind}.open_id_connect_url")
    elif kind == "oauth2_security_scheme":
        oauth2 = scheme.oauth2_security_scheme
        yield from _absolute(oauth2.oauth2_metadata_url, f"{path}.{kind}.oauth2_metadata_url")
        if oauth2.HasField("flows"):
            yield from _flow(oauth2.flows, f"{path}.{kind}.flows")


def _flow(flows: pb.OAuthFlows, path: str) -> Problems:
    which = flows.WhichOneof("flow")
    if which is None:
        yield FieldViolation(path, f"needs one of {_names(flows)}")
        return
    flow = getattr(flows, which)
    for field in flow.DESCRIPTOR.fields:
        if field.name.endswith("_url"):
            yield from _absolute(getattr(flow, field.name), f"{path}.{which}.{field.name}")


def _names(message: Message) -> str:
    return ", ".join(field.name for field in message.DESCRIPTOR.oneofs[0].fields)
