"""A TCP proxy whose connections fall silent, as those of a host do that has died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class StallingProxy:
    """Forwards bytes between clients and a server on this machine; an async context manager.

    Args:
        port: of the server.

    Attributes:
        stall_next_after: how many bytes from the server new connections get before they fall
            silent; None for any number.
        forwarded: bytes from the server to the newest connection.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.stall_next_after: int | None = None
        self.forwarded = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self._over.set()
        await asyncio.gather(*self._tasks)

    def stall(self) -> None:
        """Forward nothing more on the connections that are there; new ones work."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        flows = self._flows
        self.forwarded = 0
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        running: list[asyncio.Task[object]] = [
            asyncio.create_task(self._over.wait()),
            asyncio.create_task(_copy(reader, server_writer, flows)),
            asyncio.create_task(self._answer(server_reader, writer, flows)),
        ]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for end in (writer, server_writer):
                end.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        if self.stall_next_after is None:
            await _copy(reader, writer, flows, self._count)
            return
        writer.write(await reader.readexactly(self.stall_next_after))
        await self._over.wait()

    def _count(self, data: bytes) -> None:
        self.forwarded += len(data)


def _ignore(data: bytes) -> None: ...


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    flows: asyncio.Event,
    count: Callable[[bytes], None] = _ignore,
) -> None:
    try:
        while data := await reader.read(65536):
            await flows.wait()
            count(data)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
