"""The cards that a server gives out: loaded, completed, checked, signed (specification 8, 13.3)."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from a2a_grpc import pb
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.cards.completion import complete_card
from a2a_grpc.cards.errors import CardError, CardSignatureError
from a2a_grpc.cards.loading import load_card
from a2a_grpc.cards.signing import CardSigner, sign_card
from a2a_grpc.cards.validation import problems_of
from a2a_grpc.errors import FieldViolation, InternalError
from a2a_grpc.extensions import RETRY_EXTENSION

logger = logging.getLogger(__name__)

CardSource: TypeAlias = pb.AgentCard | str | os.PathLike[str]
"""A card, or the path of a file that holds one."""

CardMaker: TypeAlias = Callable[[ServerCallContext], pb.AgentCard | Awaitable[pb.AgentCard]]
"""Makes the extended card for a caller; may raise an A2AError, such as PermissionDeniedError."""

ExtendedCard: TypeAlias = CardSource | CardMaker


@dataclass(frozen=True, slots=True)
class PublishedCards:
    """The cards of one agent, as clients get them.

    Attributes:
        public: the card for everybody.
        data: the same, serialized; one server always answers with the same bytes.
        extended: makes the card for one caller; None if there is none.
    """

    public: pb.AgentCard
    data: bytes
    extended: Callable[[ServerCallContext], Awaitable[pb.AgentCard]] | None


@dataclass(frozen=True, slots=True)
class _Authored:
    """A card as its author gave it, and what to call it when it is wrong."""

    card: pb.AgentCard | None
    source: str


class CardPublisher:
    """The cards of all agents of a server. Making it reads and checks them; nothing is kept open.

    Args:
        names: each agent's name by tenant, for cards that have none; the key None stands for the
            one agent of a server that does not tell tenants apart.
        card: the public card, or a mapping of them by tenant.
        extended_card: the card for authenticated callers, or what makes it.
        signer: signs every card that is given out.
        retry_window: seconds for which a message is remembered; None if retries are not looked up.
        external_url: the address of the gRPC interface, where it is not that of the server itself.

    Raises:
        CardError: a card can't be loaded or is wrong; names every field.
    """

    def __init__(
        self,
        names: Mapping[str | None, str],
        *,
        card: CardSource | Mapping[str, CardSource] | None = None,
        extended_card: ExtendedCard | None = None,
        signer: CardSigner | None = None,
        retry_window: float | None = None,
        external_url: str = "",
    ) -> None:
        self._names = names
        self._external_url = external_url
        self._signer = signer
        self._retry_window = retry_window
        self._public = _by_tenant(names, card)
        self._extended: _Authored | CardMaker | None
        if extended_card is None or callable(extended_card):
            self._extended = extended_card
        else:
            self._extended = _loaded(extended_card, "the extended card")
        # The server's own address is not known yet, and no card is wrong because of it.
        url = external_url or "localhost:50051"
        for tenant, authored in self._public.items():
            self._finish(authored, tenant, url)
            if isinstance(self._extended, _Authored):
                self._finish(self._extended, tenant, url)
        self._warn_of_extended_card()

    def publish(self, address: str) -> dict[str | None, PublishedCards]:
        """Each agent's cards, by tenant; `address` is the server's own.

        Raises:
            CardError, CardSignatureError: a card is wrong, or has no canonical form to sign.
        """
        url = self._external_url or address
        return {
            tenant: self._published(authored, tenant, url)
            for tenant, authored in self._public.items()
        }

    def _published(self, authored: _Authored, tenant: str | None, url: str) -> PublishedCards:
        public = self._signed(self._finish(authored, tenant, url))
        data = public.SerializeToString(deterministic=True)
        extended = self._extended
        if extended is None:
            return PublishedCards(public, data, None)
        if isinstance(extended, _Authored):
            fixed = self._signed(self._finish(extended, tenant, url))

            async def give(call: ServerCallContext) -> pb.AgentCard:
                return fixed

            return PublishedCards(public, data, give)

        async def make(call: ServerCallContext) -> pb.AgentCard:
            return await self._made(extended, call, tenant, url)

        return PublishedCards(public, data, make)

    async def _made(
        self, maker: CardMaker, call: ServerCallContext, tenant: str | None, url: str
    ) -> pb.AgentCard:
        made = maker(call)
        if inspect.isawaitable(made):
            made = await made
        try:
            if not isinstance(made, pb.AgentCard):
                raise CardError.whole(
                    f"must be an AgentCard, and is {type(made).__name__}",
                    source="the extended card",
                )
            return self._signed(self._finish(_Authored(made, "the extended card"), tenant, url))
        except (CardError, CardSignatureError) as error:
            # Nothing that the caller could do anything about.
            logger.error("what extended_card returned for %r: %s", call.principal.id, error)
            raise InternalError() from error

    def _finish(self, authored: _Authored, tenant: str | None, url: str) -> pb.AgentCard:
        card = complete_card(
            authored.card,
            name=self._names[tenant],
            url=url,
            tenant=tenant or "",
            has_extended_card=self._extended is not None,
            retry_window=self._retry_window,
        )
        problems = (*problems_of(card), *self._untrue(card))
        if problems:
            raise CardError(*problems, source=authored.source)
        return card

    def _untrue(self, card: pb.AgentCard) -> list[FieldViolation]:
        """What the card promises and this server does not keep."""
        return [
            FieldViolation(
                f"capabilities.extensions[{index}]",
                f"declares {RETRY_EXTENSION}, and the setting deduplicate is never",
            )
            for index, extension in enumerate(card.capabilities.extensions)
            if extension.uri == RETRY_EXTENSION and self._retry_window is None
        ]

    def _warn_of_extended_card(self) -> None:
        """Log where a card and the server disagree; callers get the specification's own errors."""
        cards = [authored.card for authored in self._public.values()]
        if self._extended is None:
            if any(card is not None and card.capabilities.extended_agent_card for card in cards):
                logger.warning(
                    "capabilities.extended_agent_card is true in a card, and there is no extended "
                    "card; give the server extended_card="
                )
        # Of several agents some may have none.
        elif not any(card is None or _offers_extended(card) for card in cards):
            logger.warning(
                "capabilities.extended_agent_card is false, and the server has an extended card "
                "that nobody can ask for; make it true, or leave out extended_card="
            )

    def _signed(self, card: pb.AgentCard) -> pb.AgentCard:
        return card if self._signer is None else sign_card(card, self._signer)


def _offers_extended(card: pb.AgentCard) -> bool:
    capabilities = card.capabilities
    if card.signatures or capabilities.HasField("extended_agent_card"):
        return capabilities.extended_agent_card
    return True  # it is filled in


def _by_tenant(
    names: Mapping[str | None, str], card: CardSource | Mapping[str, CardSource] | None
) -> dict[str | None, _Authored]:
    if not isinstance(card, Mapping):
        authored = _loaded(card, "the agent's card")
        return dict.fromkeys(names, authored)
    if unknown := sorted(card.keys() - {tenant or "" for tenant in names}):
        problem = "is for a tenant that has no agent"
        raise CardError(
            *(FieldViolation(f"card[{one!r}]", problem) for one in unknown),
            source="the cards by tenant",
        )
    return {
        tenant: _loaded(card.get(tenant or ""), f"the card of tenant {tenant!r}")
        for tenant in names
    }


def _loaded(card: CardSource | None, source: str) -> _Authored:
    if card is None or isinstance(card, pb.AgentCard):
        return _Authored(card, source)
    if not isinstance(card, str | os.PathLike):
        raise CardError.whole(
            f"must be an AgentCard or the path of a file, and is {type(card).__name__}",
            source=source,
        )
    return _Authored(load_card(card), os.fspath(card))
