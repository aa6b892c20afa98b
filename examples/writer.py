"""Writes a rhyme and streams it word by word, as a language model would."""

import asyncio
from collections.abc import AsyncIterator

from a2a_grpc import RequestContext

RHYME = "Here is a rhyme, though short of time, on {subject}: it is quite sublime."


async def agent(context: RequestContext) -> AsyncIterator[str]:
    subject = context.get_user_input().strip() or "nothing"
    for word in RHYME.format(subject=subject).split():
        await asyncio.sleep(0.05)
        yield f"{word} "
