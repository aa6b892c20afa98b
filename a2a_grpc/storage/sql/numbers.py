"""The numbers given to new tasks and operations.

Those of operations say which of a task's operations comes first, those of tasks only where rows
lie. Both rise with the time of their recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable

from sqlalchemy import Connection

from a2a_grpc.storage.sql import statements
from a2a_grpc.storage.sql.schema import TASK_NUMBERS


class Numbers(ABC):
    """Where numbers come from, for one writer."""

    @abstractmethod
    def operations(self, connection: Connection, count: int) -> Iterable[int]:
        """Numbers for `count` operations that the transaction of the connection records."""

    @abstractmethod
    def next_task(self, connection: Connection) -> int:
        """The next task's."""


class CountedNumbers(Numbers):
    """Counted in memory: this process is the only one to write to its database."""

    def __init__(self, connection: Connection) -> None:
        self._task: int = max(
            connection.execute(statements.last_task_number).scalar_one(),
            connection.execute(statements.last_forgotten_number).scalar_one(),
        )
        self._operation: int = connection.execute(statements.last_operation_number).scalar_one()

    def operations(self, connection: Connection, count: int) -> Iterable[int]:
        first = self._operation + 1
        self._operation += count
        return range(first, first + count)

    def next_task(self, connection: Connection) -> int:
        self._task += 1
        return self._task


class SequenceNumbers(Numbers):
    """From sequences of the database, which all processes share.

    An operation's number is taken within its own transaction, so that it is above those of all
    operations that were acknowledged before it was recorded, wherever.
    """

    def __init__(self) -> None:
        self._tasks: deque[int] = deque()

    def operations(self, connection: Connection, count: int) -> Iterable[int]:
        found = connection.execute(statements.next_operation_numbers, {"count": count})
        return sorted(found.scalars())

    def next_task(self, connection: Connection) -> int:
        if not self._tasks:
            first = connection.execute(statements.next_task_numbers).scalar_one()
            self._tasks.extend(range(first, first + TASK_NUMBERS))
        return self._tasks.popleft()
