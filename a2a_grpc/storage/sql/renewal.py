"""Renews stored snapshots beside the commits, so that no commit pays for the size of its task.

A task is due when its log has grown by as much as its snapshot is large; so all snapshots ever
written of a task cost about as much as its log. Nothing depends on it but the time to read: a
renewal that is lost is due again with the next commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from a2a_grpc.storage.sql import reader
from a2a_grpc.storage.sql.database import Database
from a2a_grpc.storage.sql.writer import GroupWriter

logger = logging.getLogger(__name__)

MAX_DUE = 1024
"""Tasks that wait for their renewal; further ones come back with their next commit."""


class SnapshotRenewer:
    """Renews one snapshot at a time, in a task of its own.

    Args:
        database, writer: where snapshots are read from and written through; both open.
        keep_entries: as in `SqlStorage`.
    """

    def __init__(self, database: Database, writer: GroupWriter, keep_entries: int | None) -> None:
        self._database = database
        self._writer = writer
        self._keep_entries = keep_entries
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="sql-storage-snapshot-renewer")

    def want(self, task_ids: Iterable[str]) -> None:
        """Have the snapshots of tasks renewed."""
        for task_id in task_ids:
            if len(self._due) < MAX_DUE:
                self._due[task_id] = None
                self._wake.set()

    async def close(self) -> None:
        """Stop; what is due stays due."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                task_id = next(iter(self._due))
                try:
                    await self._renew(task_id)
                except Exception:
                    logger.exception("the snapshot of task %s stays as it is", task_id)
                # After the renewal: what the commits of that time say is about the old snapshot.
                del self._due[task_id]

    async def _renew(self, task_id: str) -> None:
        write = await self._database.read(
            partial(reader.renewed_snapshot, task_id=task_id, keep_entries=self._keep_entries)
        )
        if write is not None:
            await self._writer.submit(write)
