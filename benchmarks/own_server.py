"""a2a-grpc, as `A2AServer` comes, with the store and the broker that the runner asks for."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from a2a_grpc import pb
from a2a_grpc.config import ServerSettings
from a2a_grpc.server import A2AServer
from benchmarks.agent import BenchmarkAgent, Gates, RestartedAgent
from benchmarks.serving import ServerOptions, note, serve


@asynccontextmanager
async def open_server(options: ServerOptions, gates: Gates) -> AsyncIterator[int]:
    """Start the server."""
    agent = RestartedAgent if options.restarts else BenchmarkAgent
    settings = ServerSettings(port=0, grace=0.0)
    if options.lease is not None:
        settings = replace(settings, lease=options.lease)
    server = A2AServer(
        agent(pb, options.plan, gates, note),
        storage=options.store,
        broker=options.broker,
        settings=settings,
    )
    gc.set_threshold(*A2AServer.GC_THRESHOLD)  # as A2AServer.run() does
    async with server:
        yield server.port


if __name__ == "__main__":
    serve(open_server, "grpcio", "protobuf")
