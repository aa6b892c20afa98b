"""An agent for several processes that need no database: each keeps its own tasks, in memory.

What they share is claimed only, so a test asks each of them for what it did itself.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

SHARED = """
import os
from a2a_grpc import A2AServer, InMemoryBroker, InMemoryBus, InMemoryStorage, ServerSettings

class Storage(InMemoryStorage):
    lease = 5.0

class Broker:
    def __init__(self):
        self.inner = InMemoryBroker()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def __aenter__(self):
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.inner.__aexit__(*error)

async def which(context):
    return str(os.getpid())

agent = which
settings = ServerSettings()
"""
SERVER = """
server = A2AServer(
    agent, storage=Storage(), broker=Broker(), bus=InMemoryBus(), settings=settings
)
"""


def write_shared(directory: Path, source: str = "") -> Path:
    """A file with such an agent; `source` may define another `agent`, or other `settings`."""
    file = directory / "shared.py"
    file.write_text(f"{SHARED}{textwrap.dedent(source)}\n{SERVER}", encoding="utf-8")
    return file
