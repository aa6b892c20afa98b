"""The one writer of a SQL database: collects the writes of many callers into groups.

While a group is on its way to the disk, the next one gathers. One transaction, and one sync of the
disk, then serves all of its callers.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Connection

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql.database import ContentionError, Database
from a2a_grpc.storage.sql.group import Group, GroupResult, LaterError, Standing
from a2a_grpc.storage.sql.numbers import Numbers
from a2a_grpc.storage.sql.replicas import Replica
from a2a_grpc.storage.sql.schema import COUNT_SHARDS
from a2a_grpc.storage.sql.writes import Write

ResultT = TypeVar("ResultT")

MAX_WAITING = 1024
"""Writes that wait or run; further callers wait until there is room."""

MAX_GROUP = 256
"""Writes in one transaction."""

MAX_GROUP_BYTES = 4 * 2**20
"""Payload of one transaction, not counting its last write."""

CONTENTION_DELAY = 0.05
"""Seconds, at the most, between the attempts at a write that met another process."""

_Waiting = tuple[Write[Any], asyncio.Future[Any]]


class GroupWriter:
    """Writes groups, one at a time, from a task of its own.

    Guarantees:

    - Writes are applied in the order of `submit`; a write that returned is on disk.
    - A refused write gets its refusal and leaves the others of its group alone.
    - Where other processes are at the same rows, the writes of a group are done one by one, each
      tried again for a while.
    - When the database fails, or does not answer for long, each caller of the group gets the
      UnavailableError, and the writer goes on with the next group.
    - A caller that is cancelled stops neither the writer nor its group; its write may still happen.

    Args:
        database: an open database.
        replica: the id under which this process holds tasks.
        on_written: called in the event loop with each group's result before its callers go on.
    """

    def __init__(
        self, database: Database, replica: Replica, on_written: Callable[[GroupResult], None]
    ) -> None:
        self._database = database
        self._replica = replica
        self._on_written = on_written
        self._numbers: Numbers | None = None
        self._shared = database.lease is not None
        self._shard = self._any_shard()
        self._waiting: deque[_Waiting] = deque()
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._wake = asyncio.Event()
        self._began: float | None = None  # the transaction that is under way
        self._closing = False
        self._task = asyncio.create_task(self._run(), name="sql-storage-writer")

    async def submit(self, write: Write[ResultT]) -> ResultT:
        """Have a write done and return what it came to.

        Raises what the write raises, and UnavailableError if the database fails or is closed.
        """
        await self._room.acquire()
        if self._closing:
            self._room.release()
            raise UnavailableError("the storage is closed")
        done: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.append((write, done))
        self._wake.set()
        return await done

    def check(self) -> None:
        """Raises UnavailableError while a group waits for the database longer than that may take.

        Nothing else is written meanwhile.
        """
        timeout = self._database.timeout
        if timeout is None or self._began is None:
            return
        took = time.monotonic() - self._began
        if took > timeout:
            raise UnavailableError(
                f"the storage has not answered a write for {took:.1f}s; try again", retry_after=1.0
            )

    async def close(self) -> None:
        """Finish what was submitted, and take no more."""
        self._closing = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._write(self._take())
                if self._closing:
                    return
        finally:
            # Also when cancelled: whoever still waits learns that nobody will come.
            self._closing = True
            self._fail(self._waiting, UnavailableError("the storage is closed"))

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < MAX_GROUP and size < MAX_GROUP_BYTES:
            write, done = self._waiting.popleft()
            if done.done():
                self._room.release()
                continue
            group.append((write, done))
            size += write.size
        return group

    async def _write(self, group: list[_Waiting]) -> None:
        if not group:
            return
        try:
            result = await self._try(group)
        except ContentionError as error:
            if len(group) == 1:
                self._fail(group, error)
                return
            await self._one_by_one(group)
        except UnavailableError as error:
            self._fail(group, error)
        except Exception as error:
            if len(group) == 1:
                self._answer(group[0][1], error)
                return
            # A write that the database can't take, whatever it is, harms nobody else.
            await self._one_by_one(group)
        except BaseException:
            self._fail(group, UnavailableError("the storage is closed"))
            raise
        else:
            later: list[_Waiting] = []
            for waiting, outcome in zip(group, result.outcomes, strict=True):
                if isinstance(outcome, LaterError):
                    later.append(waiting)
                else:
                    self._answer(waiting[1], outcome)
            self._waiting.extendleft(reversed(later))
            self._on_written(result)

    async def _one_by_one(self, group: list[_Waiting]) -> None:
        left = deque(group)
        try:
            while left:
                await self._write([left.popleft()])
        finally:
            self._fail(left, UnavailableError("the storage is closed"))

    async def _try(self, group: list[_Waiting]) -> GroupResult:
        writes = [write for write, _ in group]
        until = time.monotonic() + self._database.patience
        while True:
            self._began = time.monotonic()
            try:
                return await self._database.write(lambda connection: self._do(connection, writes))
            except ContentionError:
                self._shard = self._any_shard()
                if len(group) > 1 or time.monotonic() >= until:
                    raise
            finally:
                self._began = None
            await asyncio.sleep(random.uniform(0.0, CONTENTION_DELAY))

    def _any_shard(self) -> int:
        # Alone nobody queues for a row, and one row is the least to read.
        return random.randint(1, COUNT_SHARDS) if self._shared else 1

    def _do(self, connection: Connection, writes: list[Write[Any]]) -> GroupResult:
        if self._numbers is None:
            self._numbers = self._database.numbers(connection)
        standing = Standing(self._numbers, self._replica.id, self._shard)
        return Group(connection, standing).run(writes)

    def _fail(self, group: Iterable[_Waiting], error: UnavailableError) -> None:
        for _, done in group:
            self._answer(done, copy.copy(error))

    def _answer(self, done: asyncio.Future[Any], outcome: Any) -> None:
        self._room.release()
        if done.done():
            return
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
            done.exception()  # nobody asks for it if the caller is cancelled now
        else:
            done.set_result(outcome)
