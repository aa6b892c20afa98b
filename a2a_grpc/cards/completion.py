"""The agent's card as the running server completes it (specification 4.4.1)."""

from __future__ import annotations

from a2a_grpc import pb
from a2a_grpc.extensions import RETRY_EXTENSION, SEQUENCE_EXTENSION

PROTOCOL_VERSION = "1.0"


def complete_card(
    card: pb.AgentCard | None,
    *,
    name: str,
    url: str,
    tenant: str = "",
    has_extended_card: bool = False,
    retry_window: float | None = None,
) -> pb.AgentCard:
    """A copy of the card with what it leaves open filled in from the running server.

    What the author wrote stays, also a capability that is declared false. A card that carries
    signatures is finished: nothing is filled in, since that would invalidate them.

    Args:
        card: the author's card, or None.
        name: the agent's name where the card has none.
        url: the address of the gRPC interface, such as `grpc.example.com:443`.
        tenant: what clients of that interface put into `tenant`.
        has_extended_card: whether an extended card is configured.
        retry_window: seconds for which a message is remembered, so that a retry runs once; None if
            retries are not looked up.
    """
    completed = pb.AgentCard()
    if card is not None:
        completed.CopyFrom(card)
    if completed.signatures:
        return completed
    completed.name = completed.name or name
    completed.description = completed.description or f"The agent {completed.name}."
    completed.version = completed.version or "0.0.0"
    if not completed.supported_interfaces:
        completed.supported_interfaces.add(
            url=url, protocol_binding="GRPC", tenant=tenant, protocol_version=PROTOCOL_VERSION
        )
    if not completed.default_input_modes:
        completed.default_input_modes.append("*/*")
    if not completed.default_output_modes:
        completed.default_output_modes.append("*/*")
    if not completed.skills:
        # A card has at least one (5.7); this one stands for whatever the agent does.
        completed.skills.add(
            id="main", name=completed.name, description=completed.description, tags=["agent"]
        )
    _complete_capabilities(completed.capabilities, has_extended_card, retry_window)
    return completed


def _complete_capabilities(
    capabilities: pb.AgentCapabilities, has_extended_card: bool, retry_window: float | None
) -> None:
    for capability, value in (
        ("streaming", True),
        ("push_notifications", True),
        ("extended_agent_card", has_extended_card),
    ):
        if not capabilities.HasField(capability):  # type: ignore[arg-type]
            setattr(capabilities, capability, value)
    declared = {extension.uri for extension in capabilities.extensions}
    if SEQUENCE_EXTENSION not in declared:
        capabilities.extensions.add(
            uri=SEQUENCE_EXTENSION,
            description=(
                "Events carry sequence numbers in their metadata, and a stream is resumed with the "
                "call metadata last-event-id."
            ),
        )
    if RETRY_EXTENSION not in declared and retry_window is not None:
        retry = capabilities.extensions.add(
            uri=RETRY_EXTENSION,
            description=(
                "A message that is sent again within the window, with the call metadata "
                "a2a-grpc-retry, runs once."
            ),
        )
        retry.params["windowSeconds"] = retry_window
