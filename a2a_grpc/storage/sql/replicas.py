"""Which processes use the database, what they hold, and what nobody works on.

A process is a replica with an id of its own, new each time its storage opens, and a lease in the
database that it renews. What a replica holds is in the rows that name it; a replica without a lease
that has time left holds nothing.
"""

from __future__ import annotations

import uuid

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    literal_column,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from a2a_grpc.errors import UnavailableError
from a2a_grpc.storage.sql.clock import clock
from a2a_grpc.storage.sql.schema import (
    TO_CANCEL,
    UNFINISHED,
    deployment,
    operations,
    replicas,
    tasks,
)
from a2a_grpc.storage.sql.statements import HELD, lives
from a2a_grpc.storage.values import RESUBMIT_AFTER, OperationState, Stranded

RESUBMIT_SHARE = 0.25
"""What waits in a broker is submitted again when it has waited for this share of its age since."""

RESUBMIT_AT_LATEST = 600.0
"""Seconds after which that is done at any age, which is by the clock of another process."""

FOREVER = 1e15
"""The lease, in seconds, of a process that has its database to itself."""

# Say that a replica lives for `lease` seconds from now on.
_put_replica = upsert(replicas).values(lease_until=clock() + bindparam("lease"))
_put_replica = _put_replica.on_conflict_do_update(
    index_elements=["id"], set_={"lease_until": _put_replica.excluded.lease_until}
)
# The same for one that is there: nothing that comes late brings back an id that was given up.
_renew_replica = (
    update(replicas)
    .where(replicas.c.id == bindparam("of"))
    .values(lease_until=clock() + bindparam("lease"))
)
_delete_replica = delete(replicas).where(replicas.c.id == bindparam("of"))
_delete_replicas = delete(replicas)

# The tasks that a replica holds and that are to be canceled.
tasks_to_cancel = select(tasks.c.id).where(
    TO_CANCEL, tasks.c.owner == bindparam("of"), tasks.c.running == 1
)

# Operations that nobody works on, the oldest of each task, oldest first; of several replicas that
# ask at once each gets others.
_earlier = operations.alias("earlier")
stranded_operations = (
    select(
        operations.c.number,
        operations.c.id,
        operations.c.task_id,
        operations.c.attempts,
        operations.c.home,
    )
    .where(
        UNFINISHED,
        or_(
            and_(
                operations.c.submitted_at < clock() - RESUBMIT_AFTER,
                or_(
                    operations.c.submitted_at
                    < clock() - (clock() - operations.c.created_at) * RESUBMIT_SHARE,
                    operations.c.submitted_at < clock() - RESUBMIT_AT_LATEST,
                ),
            ),
            not_(lives(operations.c.submitted_by)),
        ),
        or_(
            operations.c.home.is_(None),
            operations.c.home == bindparam("of"),
            not_(lives(operations.c.home)),
        ),
        not_(
            exists().where(
                _earlier.c.task_id == operations.c.task_id,
                _earlier.c.number < operations.c.number,
                _earlier.c.state < literal_column(str(int(OperationState.DONE))),
            )
        ),
        not_(exists().where(and_(tasks.c.id == operations.c.task_id, HELD))),
    )
    .order_by(operations.c.number)
    .limit(bindparam("limit"))
    .with_for_update(of=operations, skip_locked=True)
)
_submitted = (
    update(operations)
    .where(operations.c.number == bindparam("of"))
    .values(submitted_at=clock(), submitted_by=bindparam("by"))
)


class Replica:
    """This process, under the id of its lease.

    Args:
        lease: seconds; None where it has the database to itself.
    """

    def __init__(self, lease: float | None) -> None:
        self.id = str(uuid.uuid4())
        self._lease = lease

    def enter(self, connection: Connection) -> str:
        """Begin the lease. Alone in the database, all others are gone.

        Returns the name of the database.
        """
        if self._lease is None:
            connection.execute(_delete_replicas)
        self._begin(connection, self.id)
        return str(connection.execute(select(deployment.c.id)).scalar_one())

    def leave(self, connection: Connection) -> None:
        """End the lease: what is held is free."""
        connection.execute(_delete_replica, {"of": self.id})

    def renew(self, connection: Connection) -> list[str]:
        """Renew the lease; the tasks held that are to be canceled.

        Raises UnavailableError if it is over: it has been ended, or was forgotten after it ran out.
        """
        renewed = connection.execute(_renew_replica, {"of": self.id, "lease": self._seconds})
        if not renewed.rowcount:
            raise UnavailableError(
                "the lease ran out, and what was held is lost: begin another one with "
                "renew_lease(anew=True)"
            )
        return list(connection.execute(tasks_to_cancel, {"of": self.id}).scalars())

    def succeed(self, connection: Connection, successor: str) -> None:
        """Begin the lease of another id for this process, and end this one's."""
        self.leave(connection)
        self._begin(connection, successor)

    def _begin(self, connection: Connection, replica: str) -> None:
        connection.execute(_put_replica, {"id": replica, "lease": self._seconds})

    @property
    def _seconds(self) -> float:
        return FOREVER if self._lease is None else self._lease

    def stranded(self, connection: Connection, limit: int) -> list[Stranded]:
        """See `Storage.stranded_operations`."""
        rows = connection.execute(stranded_operations, {"of": self.id, "limit": limit}).all()
        if rows:
            connection.execute(_submitted, [{"of": row.number, "by": self.id} for row in rows])
        return [Stranded(row.task_id, row.id, row.attempts, row.home == self.id) for row in rows]
