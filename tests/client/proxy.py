"""A TCP proxy that breaks connections when a test says so, and the servers behind it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards bytes between clients and a server; an async context manager.

    Attributes:
        upstream: host:port of the server; may be changed, for connections to come.
        cuts: after how many bytes from the server each of the next connections is cut.
        connections: how many there were.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.cuts: list[int] = []
        self.connections = 0
        self.forwarded = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        self._answers.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold_answers(self) -> None:
        """From now on nothing from the server reaches a client."""
        self._answers.clear()

    def release_answers(self) -> None:
        self._answers.set()

    def cut(self) -> None:
        """Reset every connection that is open."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        left = self.cuts.pop(0) if self.cuts else None
        host, _, port = self.upstream.rpartition(":")
        ends = [writer]
        self._open.add(writer)
        upward: asyncio.Task[None] | None = None
        try:
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
            ends.append(server_writer)
            self._open.add(server_writer)
            upward = asyncio.create_task(self._copy(reader, server_writer))
            await self._answer(server_reader, writer, left)
        except OSError:
            pass  # nobody is there
        finally:
            if upward is not None:
                upward.cancel()
                await asyncio.gather(upward, return_exceptions=True)
            for one in ends:
                one.transport.abort()
                self._open.discard(one)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None
    ) -> None:
        try:
            while data := await reader.read(65536):
                await self._answers.wait()
                if left is not None:
                    data, left = data[:left], left - len(data)
                self.forwarded += len(data)
                writer.write(data)
                await writer.drain()
                if left is not None and left <= 0:
                    return
        except OSError:
            pass
