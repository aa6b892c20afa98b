"""A program for a2a-sdk's Python: signs and verifies cards with a2a-sdk alone.

Reads one JSON object: {"key": PEM, "public": PEM, "algorithm": name, "cards": [ProtoJSON, ...]}.
Writes another: {"verified": [whether a2a-sdk takes each card's signatures for good],
"signed": [each card in ProtoJSON with a signature of a2a-sdk in place of those it had]}.
"""

# mypy: disable-error-code="import-not-found"

import json
import sys
import warnings
from typing import Any

from a2a.types import AgentCard
from a2a.utils.signing import (
    SignatureVerificationError,
    create_agent_card_signer,
    create_signature_verifier,
)
from google.protobuf import json_format


def main() -> None:
    warnings.simplefilter("ignore")
    given = json.load(sys.stdin)
    verify = create_signature_verifier(lambda kid, jku: given["public"], [given["algorithm"]])
    sign = create_agent_card_signer(
        given["key"],
        {"kid": "theirs", "alg": given["algorithm"], "typ": "JOSE", "jku": None},
    )
    found: dict[str, list[Any]] = {"verified": [], "signed": []}
    for text in given["cards"]:
        card = json_format.Parse(text, AgentCard())
        try:
            verify(card)
        except SignatureVerificationError:
            found["verified"].append(False)
        else:
            found["verified"].append(True)
        card.ClearField("signatures")
        found["signed"].append(json_format.MessageToJson(sign(card)))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
