"""What is asked of the tables in order to forget, statement by statement.

Which of them run and when is decided in `sweeping`. Rows that somebody has locked are left for the
next time, so that forgetting never waits.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    not_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from a2a_grpc.storage.sql.clock import clock
from a2a_grpc.storage.sql.schema import (
    CREATED,
    DONE,
    ENDED,
    LOGGED,
    NOT_CREATED,
    PENDING,
    UNFINISHED,
    contexts,
    forgotten,
    log,
    operations,
    push_configs,
    replicas,
    requests,
    tasks,
)
from a2a_grpc.storage.sql.statements import HELD, lives


def _none(found: Select[Any]) -> ColumnElement[bool]:
    """Whether a query finds nothing; looked up row by row, where NOT EXISTS may read all rows."""
    return found.limit(1).scalar_subquery().is_(None)


def _has_no_unfinished(task_id: ColumnElement[str]) -> ColumnElement[bool]:
    return _none(select(operations.c.number).where(operations.c.task_id == task_id, UNFINISHED))


# Tasks that ended before `before`, that no turn holds, with nothing left to deliver and no message
# on its way.
tasks_to_forget = (
    select(tasks.c.number, tasks.c.id, tasks.c.version)
    .add_columns(tasks.c.tenant, tasks.c.principal, tasks.c.state, tasks.c.status_at)
    .where(
        ENDED,
        tasks.c.running == 0,
        tasks.c.status_at < bindparam("before"),
        _has_no_unfinished(tasks.c.id),
        tasks.c.id.not_in(select(push_configs.c.task_id).where(PENDING)),
    )
    .order_by(tasks.c.status_at)
    .limit(bindparam("limit"))
    .with_for_update(of=tasks, skip_locked=True)
)
# Of turns that a process left behind which is gone, on tasks that ended.
release_ended = (
    update(tasks)
    .where(
        tasks.c.number.in_(
            select(tasks.c.number)
            .where(ENDED, tasks.c.running == 1, not_(lives(tasks.c.owner)))
            .with_for_update(of=tasks, skip_locked=True)
        )
    )
    .values(running=0, owner=None, cancel_requested=0)
)
delete_task = delete(tasks).where(tasks.c.number == bindparam("of"))

# Fences of tasks that were never created and that no operation works on any more.
delete_not_created = delete(tasks).where(
    tasks.c.number.in_(
        select(tasks.c.number)
        .where(NOT_CREATED, _has_no_unfinished(tasks.c.id), not_(HELD))
        .limit(bindparam("limit"))
        .with_for_update(of=tasks, skip_locked=True)
    )
)

# Configurations in the order of their keys, and whether nothing is left that they could be for.
_config_key = push_configs.c.task_id, push_configs.c.config_id
push_configs_after = (
    select(
        *_config_key,
        and_(
            _none(select(tasks.c.number).where(tasks.c.id == push_configs.c.task_id)),
            _has_no_unfinished(push_configs.c.task_id),
        ).label("unused"),
    )
    .where(tuple_(*_config_key) > tuple_(bindparam("after_task"), bindparam("after_config")))
    .order_by(*_config_key)
    .limit(bindparam("limit"))
)

# Contexts in the order of their keys, and whether they are older than `before` and nothing is left
# that could use them.
_context_key = contexts.c.tenant, contexts.c.principal, contexts.c.context_id
contexts_after = (
    select(
        *_context_key,
        and_(
            contexts.c.updated_at < bindparam("before"),
            _none(
                select(tasks.c.number).where(
                    tasks.c.tenant == contexts.c.tenant,
                    tasks.c.principal == contexts.c.principal,
                    tasks.c.context_id == contexts.c.context_id,
                    CREATED,
                )
            ),
            tuple_(*_context_key).not_in(
                select(requests.c.tenant, requests.c.principal, requests.c.context_id)
                .join(operations, operations.c.number == requests.c.operation_number)
                .where(UNFINISHED)
            ),
        ).label("unused"),
    )
    .where(
        tuple_(*_context_key)
        > tuple_(
            bindparam("after_tenant"), bindparam("after_principal"), bindparam("after_context")
        )
    )
    .order_by(*_context_key)
    .limit(bindparam("limit"))
)
# But not if it was updated since.
delete_context = delete(contexts).where(
    contexts.c.updated_at < bindparam("before"),
    contexts.c.tenant == bindparam("of_tenant"),
    contexts.c.principal == bindparam("of_principal"),
    contexts.c.context_id == bindparam("of_context"),
)

# The log goes from `next` to `last`; where it is going already, `last` moves on.
put_forgotten = upsert(forgotten)
put_forgotten = put_forgotten.on_conflict_do_update(
    index_elements=["task_number"], set_={"last": put_forgotten.excluded.last}
)
forgotten_logs = select(forgotten).order_by(forgotten.c.task_number).limit(bindparam("limit"))
delete_slice = delete(log).where(
    log.c.task_number == bindparam("of"),
    log.c.version >= bindparam("first"),
    log.c.version <= bindparam("last"),
)
update_forgotten = (
    update(forgotten)
    .where(forgotten.c.task_number == bindparam("of"))
    .values(next=bindparam("next"))
)
delete_forgotten = delete(forgotten).where(forgotten.c.task_number == bindparam("of"))

# Operations that were done before `before`.
operations_to_forget = (
    select(operations.c.number)
    .where(DONE, operations.c.done_at < bindparam("before"))
    .order_by(operations.c.done_at)
    .limit(bindparam("limit"))
)
delete_operation = delete(operations).where(operations.c.number == bindparam("of"))
delete_request = delete(requests).where(requests.c.operation_number == bindparam("of"))

# --- Compacting: the snapshot alone is kept.

# Tasks that ended before `before`, behind a place in their order, that no turn holds and with
# nothing left to deliver.
tasks_to_compact = (
    select(tasks.c.id, tasks.c.status_at)
    .where(
        LOGGED,
        tasks.c.status_at < bindparam("before"),
        tuple_(tasks.c.status_at, tasks.c.id)
        > tuple_(bindparam("after_time"), bindparam("after_id")),
        not_(HELD),
        tasks.c.id.not_in(select(push_configs.c.task_id).where(PENDING)),
    )
    .order_by(tasks.c.status_at, tasks.c.id)
    .limit(bindparam("limit"))
)

# --- Replicas whose lease was over a minute ago.
delete_replicas = delete(replicas).where(replicas.c.lease_until < clock() - 60.0)
