"""What replicas share: a database of their own in PostgreSQL, and a NATS server of their own."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
from nats.js.errors import NotFoundError

from tests.chaos.cluster import unused_port
from tests.servers.nats import NatsServer
from tests.servers.postgres import PostgresServer

NAMESPACE = "chaos"


class Services:
    """A new database and NATS with an empty store; a context manager.

    Args:
        postgres: runs; others may use it before and after.
        directory: of NATS.
    """

    def __init__(self, postgres: PostgresServer, directory: Path) -> None:
        self._postgres = postgres
        self._postgres_runs = True
        self._stack = ExitStack()
        port = unused_port()
        self.nats = NatsServer(directory, {"port": port})
        self.nats.port = port
        self._nats_store = Path(self.nats.config["jetstream"]["store_dir"])
        self._nats_runs = False

    def __enter__(self) -> Self:
        self._store_url = self._stack.enter_context(self._postgres.database())
        self.start_nats()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill_nats()
        self.start_postgres()
        self._stack.close()

    @property
    def arguments(self) -> list[str]:
        """With which a replica uses them."""
        return ["--store", self._store_url, "--broker", self.nats.url(NAMESPACE)]

    async def dead_letters(self) -> list[dict[str, Any]]:
        """What was put aside for operators, newest last."""
        found = []
        async with await nats.connect(self.nats.url(NAMESPACE)) as connection:
            stream = connection.jetstream()
            last = (await stream.stream_info(f"{NAMESPACE}-dead")).state.last_seq
            for number in range(1, last + 1):
                with suppress(NotFoundError):  # a newer word on the same operation took its place
                    message = await stream.get_msg(f"{NAMESPACE}-dead", number)
                    found.append(json.loads(message.data or b"{}"))
        return found

    def kill_nats(self) -> None:
        """kill -9."""
        if self._nats_runs:
            self.nats.kill()
        self._nats_runs = False

    def start_nats(self, *, wipe: bool = False) -> None:
        """Start it again, unless it runs; with what it had stored, or without."""
        if self._nats_runs:
            return
        if wipe:
            shutil.rmtree(self._nats_store)
        self.nats.start()
        self._nats_runs = True

    def stop_postgres(self, how: str = "fast") -> None:
        """End it: `fast`, in order, or `immediate`, as a crash would."""
        self._postgres.stop(how)
        self._postgres_runs = False

    def start_postgres(self) -> None:
        """Start it again, unless it runs."""
        if not self._postgres_runs:
            self._postgres.start()
        self._postgres_runs = True
