"""An agent's card in words (specification 4.4)."""

from __future__ import annotations

from collections.abc import Iterator

from a2a_grpc import pb
from a2a_grpc.cards.signing import header_of
from a2a_grpc.commands.client.plain import one_line, plain


def fields(card: pb.AgentCard, *, is_verified: bool) -> Iterator[tuple[str, str]]:
    """Everything but name, version, description and skills."""
    for interface in card.supported_interfaces:
        tenant = f" tenant {one_line(interface.tenant)}" if interface.tenant else ""
        yield (
            "interface",
            f"{one_line(interface.protocol_binding)} {one_line(interface.protocol_version)} "
            f"at {one_line(interface.url)}{tenant}",
        )
    yield "capabilities", ", ".join(_capabilities(card.capabilities)) or "none"
    for extension in card.capabilities.extensions:
        yield "extension", one_line(extension.uri) + (", required" if extension.required else "")
    yield "takes", ", ".join(one_line(mode) for mode in card.default_input_modes)
    yield "gives", ", ".join(one_line(mode) for mode in card.default_output_modes)
    if card.security_schemes:
        yield "security", ", ".join(_schemes(card))
    if card.HasField("provider"):
        provider = card.provider
        yield "provider", f"{one_line(provider.organization)} {one_line(provider.url)}".strip()
    if card.documentation_url:
        yield "documentation", one_line(card.documentation_url)
    yield "signed", _signed(card, is_verified=is_verified)


def skill_lines(skill: pb.AgentSkill) -> Iterator[str]:
    """What one skill is about."""
    yield from plain(skill.description).splitlines()
    if skill.tags:
        yield f"tags: {', '.join(one_line(tag) for tag in skill.tags)}"
    for example in skill.examples:
        yield f"example: {one_line(example)}"


def _capabilities(capabilities: pb.AgentCapabilities) -> Iterator[str]:
    if capabilities.streaming:
        yield "streaming"
    if capabilities.push_notifications:
        yield "push notifications"
    if capabilities.extended_agent_card:
        yield "extended card"


def _schemes(card: pb.AgentCard) -> Iterator[str]:
    for name in sorted(card.security_schemes):
        scheme = card.security_schemes[name]
        kind = (scheme.WhichOneof("scheme") or "").removesuffix("_security_scheme")
        if kind == "http_auth":
            kind = f"HTTP {one_line(scheme.http_auth_security_scheme.scheme)}"
        yield f"{one_line(name)} ({kind.replace('_', ' ') or 'unknown'})"


def _signed(card: pb.AgentCard, *, is_verified: bool) -> str:
    if not card.signatures:
        return "no"
    by = "; ".join(_signer(signature) for signature in card.signatures)
    return f"yes, {by}" + (", verified" if is_verified else " (--verify KEYFILE checks it)")


def _signer(signature: pb.AgentCardSignature) -> str:
    """Algorithm and key of a JSON Web Signature (RFC 7515), as it says itself."""
    try:
        header = header_of(signature)
        return f"{one_line(str(header['alg']))} with key {one_line(str(header.get('kid', '?')))}"
    except (ValueError, KeyError):
        return "by a header that can't be read"
