"""What a message can ask of the agents: JSON in its text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

ARTIFACT = "numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a message wants, as the JSON in its text.

    Attributes:
        do: `stream` numbers, as chunks of one artifact; `ask` for another message, until one says
            stop; `wait` until canceled; `reply` with a direct Message; `echo` the message's raw
            parts as artifacts; `die`, and the process with it.
        steps: numbers to stream at least.
        pause: seconds after each of them.
        gate: go on streaming, or wait, until this file is in the journal's directory.
        stop: end the task that `ask` keeps open.
        begin_again: after an interruption, stream from 0 again rather than go on.
        later_pause: `pause` from the second attempt on.
        linger: seconds to go on after `execute()` was cancelled.
    """

    do: Literal["stream", "ask", "wait", "reply", "echo", "die"] = "stream"
    steps: int = 10
    pause: float = 0.005
    gate: str = ""
    stop: bool = False
    begin_again: bool = False
    later_pause: float | None = None
    linger: float = 0.0

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def numbers(count: int) -> str:
    """What is in the artifact after `count` steps, if none is lost, repeated or out of place."""
    return "".join(f"{number}," for number in range(count))
