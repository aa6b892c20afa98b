"""What a program names as its agent: an address, a card, or the URL of a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2a_grpc import pb
from a2a_grpc.client.address import Address, address_of_card, is_card_url, parse_address
from a2a_grpc.client.card_source import card_url, fetch_card
from a2a_grpc.client.tls import ClientTLS

if TYPE_CHECKING:
    from a2a_grpc.cards.verification import CardKeys


class AgentSource:
    """Where the agent is, how to reach it, and its card, as far as they are known.

    Attributes:
        card: None without one, and until one that has to be fetched is.
        address: None until the card that has it is fetched.

    Raises ValueError and TypeError for what names no agent; AgentCardError and CardSignatureError
    for a card that can't be used.
    """

    def __init__(
        self, agent: Any, *, tls: ClientTLS | bool | None, card_keys: CardKeys | None
    ) -> None:
        # Files are read now, so that what can't be read is told at once, and no open() blocks.
        self._tls = tls.loaded() if isinstance(tls, ClientTLS) else tls
        self._card_keys = card_keys
        self._card_url = ""
        self.card: pb.AgentCard | None = None
        self.address: Address | None = None
        if isinstance(agent, pb.AgentCard):
            card = pb.AgentCard()
            card.CopyFrom(agent)
            self._take(card)
        elif not isinstance(agent, str):
            raise TypeError(
                f"agent is a {type(agent).__name__}; use host:port, a URL, or an AgentCard"
            )
        elif is_card_url(agent):
            self._card_url = card_url(agent)
        else:
            self.address = parse_address(agent)
            secure = self.address.secure
            if secure is not None and tls is not None and bool(tls) is not secure:
                raise ValueError(f"tls={tls!r} contradicts the scheme of {agent!r}")

    async def resolve(self, timeout: float | None) -> Address:
        """The address; fetches the card if it has to. Raises UnavailableError beside the others."""
        if self._card_url:
            self._take(await fetch_card(self._card_url, timeout=timeout))
        assert self.address is not None
        return self.address

    def security(self) -> ClientTLS | None:
        """How the server is checked, with the text of every file; None for plaintext."""
        if isinstance(self._tls, ClientTLS):
            return self._tls
        secure = self._tls if self._tls is not None else self.address and self.address.secure
        return ClientTLS() if secure else None

    @property
    def has_to_verify(self) -> bool:
        """Whether the card has to be signed, and is still to be read."""
        return self._card_keys is not None and self.card is None

    def verified(self, card: pb.AgentCard) -> pb.AgentCard:
        """The card; raises CardSignatureError if it has to be signed and is not."""
        if self._card_keys is not None:
            from a2a_grpc.cards.verification import verify_card

            verify_card(card, self._card_keys)
        return card

    def _take(self, card: pb.AgentCard) -> None:
        self.card = self.verified(card)
        self.address = address_of_card(card)
