"""a2a-sdk in the set-up that its documentation shows: default handler, in-memory store, gRPC.

With a PostgreSQL store it is one replica of its cluster mode: the versioned database store, which
writes each event beside the task, and the database stream, which replicas poll for what others run.
Runs in an environment of its own, see `environment.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
from a2a.server.request_handlers import (  # type: ignore[import-not-found, unused-ignore]
    DefaultRequestHandler,
)
from a2a.server.request_handlers.grpc_handler import (  # type: ignore[import-not-found, unused-ignore]
    GrpcHandler,
)
from a2a.server.tasks import (  # type: ignore[import-not-found, unused-ignore]
    InMemoryTaskStore,
)
from a2a.types import a2a_pb2 as pb  # type: ignore[import-not-found, unused-ignore]
from a2a.types import a2a_pb2_grpc  # type: ignore[import-not-found, unused-ignore]

from benchmarks.agent import BenchmarkAgent, Gates
from benchmarks.serving import ServerOptions, note, serve


def agent_card(port: int) -> pb.AgentCard:
    """A complete card of an agent that streams."""
    return pb.AgentCard(
        name="Benchmark",
        description="Publishes chunks.",
        version="1.0.0",
        capabilities=pb.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[
            pb.AgentInterface(
                url=f"127.0.0.1:{port}", protocol_binding="GRPC", protocol_version="1.0"
            )
        ],
        skills=[
            pb.AgentSkill(id="chunks", name="Chunks", description="Publishes them.", tags=["text"])
        ],
    )


@asynccontextmanager
async def open_server(options: ServerOptions, gates: Gates) -> AsyncIterator[int]:
    """Start the server."""
    async with AsyncExitStack() as stack:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        handler = DefaultRequestHandler(
            agent_executor=BenchmarkAgent(pb, options.plan, gates, note),
            agent_card=agent_card(port),
            **await stores(options.store, stack),
        )
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
        stack.push_async_callback(handler.aclose)
        await server.start()
        stack.push_async_callback(server.stop, None)
        yield port


async def stores(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    """The stores, as arguments of the handler."""
    if url == "memory:":
        return {"task_store": InMemoryTaskStore()}
    from a2a.server.cluster import (  # type: ignore[import-not-found, unused-ignore]
        DatabaseTaskEventStream,
        VersionedDatabaseTaskStore,
    )
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:", 1))
    stack.push_async_callback(engine.dispose)
    store = VersionedDatabaseTaskStore(engine)
    stream = DatabaseTaskEventStream(engine)
    await store.initialize()
    await stream.initialize()
    return {"task_store": store, "event_stream": stream}


if __name__ == "__main__":
    serve(open_server, "a2a-sdk", "grpcio", "protobuf")
