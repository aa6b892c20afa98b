"""The agent's card as the running server completes it (specification 4.4.1)."""

from __future__ import annotations

from a2a_grpc import pb
from a2a_grpc.subscription import SEQUENCE_EXTENSION

PROTOCOL_VERSION = "1.0"


def complete_card(
    card: pb.AgentCard | None, *, name: str, url: str, has_extended_card: bool
) -> pb.AgentCard:
    """The card with what it leaves open filled in from the running server.

    What the author wrote stays, also a capability that is declared false.

    Args:
        card: the author's card, or None.
        name: the agent's name where the card has none.
        url: the address of the gRPC interface, such as `grpc.example.com:443`.
        has_extended_card: whether an extended card is configured.
    """
    completed = pb.AgentCard()
    if card is not None:
        completed.CopyFrom(card)
    completed.name = completed.name or name
    completed.description = completed.description or f"The agent {completed.name}."
    completed.version = completed.version or "0.0.0"
    if not completed.supported_interfaces:
        completed.supported_interfaces.add(
            url=url, protocol_binding="GRPC", protocol_version=PROTOCOL_VERSION
        )
    if not completed.default_input_modes:
        completed.default_input_modes.append("*/*")
    if not completed.default_output_modes:
        completed.default_output_modes.append("*/*")
    capabilities = completed.capabilities
    for capability, value in (
        ("streaming", True),
        ("push_notifications", True),
        ("extended_agent_card", has_extended_card),
    ):
        if not capabilities.HasField(capability):  # type: ignore[arg-type]
            setattr(capabilities, capability, value)
    if all(extension.uri != SEQUENCE_EXTENSION for extension in capabilities.extensions):
        capabilities.extensions.add(
            uri=SEQUENCE_EXTENSION,
            description=(
                "Events carry sequence numbers in their metadata, and a stream is resumed with the "
                "call metadata last-event-id."
            ),
        )
    return completed
