"""A load of short tasks that goes on while something is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from tests.chaos.cluster import Replica
from tests.chaos.scene import Scene
from tests.support import Status, status_of


class Senders:
    """Send messages without a pause, each to one replica, and try nothing again.

    Attributes:
        taken: the tasks that were acknowledged.
        refused: the errors of the other calls.
    """

    def __init__(self, scene: Scene) -> None:
        self.taken: list[str] = []
        self.refused: list[Status] = []
        self._scene = scene

    async def send(self, replica: Replica) -> None:
        """Until cancelled."""
        while True:
            try:
                task = await self._scene.clients.send(replica, self._scene.message(steps=3))
            except grpc.aio.AioRpcError as error:
                self.refused.append(status_of(error))
                await asyncio.sleep(0.05)
            else:
                self.taken.append(task.id)
                await asyncio.sleep(0.02)

    def assert_refused_politely(self) -> None:
        """A call that could not be served was told when to come again."""
        for refused in self.refused:
            assert refused.code is grpc.StatusCode.UNAVAILABLE, refused
            assert refused.retry_after is not None, refused


@asynccontextmanager
async def sending(scene: Scene) -> AsyncIterator[Senders]:
    """Send to every replica until the block is left."""
    senders = Senders(scene)
    tasks = [
        asyncio.create_task(senders.send(replica), name=f"sender to {replica.name}")
        for replica in scene.cluster.replicas
    ]
    try:
        yield senders
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result
