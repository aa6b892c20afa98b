"""What grpc.health.v1 says of a replica and of what it depends on."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.chaos.clients import Clients
from tests.chaos.cluster import Replica, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

WHOLE = ""
"""The replica as a whole: whether to send it calls."""
A2A = "lf.a2a.v1.A2AService"
STORAGE = "a2a_grpc.storage"
BROKER = "a2a_grpc.broker"
BUS = "a2a_grpc.bus"


async def health_of(clients: Clients, replica: Replica, service: str) -> Any:
    """The status, or the code of the error."""
    stub = health_pb2_grpc.HealthStub(clients.channel(replica))
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        answer = await stub.Check(request, timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return answer.status


async def health_is(clients: Clients, replica: Replica, status: int, *services: str) -> None:
    """Wait until it says so of all these, or of the whole."""
    for service in services or (WHOLE,):

        async def says_so(service: str = service) -> bool:
            return bool(await health_of(clients, replica, service) == status)

        await until(says_so, f"{replica!r} says {status} of {service!r}")
