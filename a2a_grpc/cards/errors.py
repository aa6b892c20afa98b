"""What may be wrong with a card: its fields, or its signatures."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_grpc.errors import FieldViolation


class CardError(ValueError):
    """A card that can't be used; the text is one line that names every problem by its path.

    Attributes:
        problems: the fields, each by its path (`skills[0].tags`), empty for the card as a whole,
            with what would be right.
    """

    def __init__(self, *problems: FieldViolation, source: str = "the agent's card") -> None:
        self.problems = problems
        listed = (f"{p.field}: {p.description}" if p.field else p.description for p in problems)
        super().__init__(" ".join(f"{source}: {'; '.join(listed)}".split()))

    @classmethod
    def whole(cls, description: str, *, source: str) -> CardError:
        """The error of a card that can't be looked into."""
        return cls(FieldViolation("", description), source=source)


class CardSignatureError(ValueError):
    """No signature of the card can be trusted, or a card can't be signed; the text says why.

    Attributes:
        reasons: for each signature that was tried, why it does not hold.
    """

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join([message, *reasons]))
