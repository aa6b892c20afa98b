"""`a2a-grpc get`, `list`, `cancel` and `subscribe`: tasks that there are already."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from a2a_grpc import pb
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.describe import state_name
from a2a_grpc.commands.client.failure import quoted
from a2a_grpc.commands.client.options import (
    ClientCommand,
    Connection,
    id_argument,
    output_option,
)
from a2a_grpc.commands.client.outcome import CommandError
from a2a_grpc.commands.client.session import Session, run, shown
from a2a_grpc.errors import UnsupportedOperationError

_STATES = {
    state_name(number).lower(): number
    for number in pb.TaskState.values()
    if number != pb.TaskState.TASK_STATE_UNSPECIFIED
}
_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LARGEST_PAGE = 100  # tasks, specification 3.1.4


@click.command(cls=ClientCommand)
@id_argument("task")
@click.option(
    "--history",
    "history_length",
    metavar="N",
    type=click.IntRange(0),
    help="The newest N messages only; all unless given.",
)
@output_option
@click.pass_obj
def get(
    connection: Connection, task: str, history_length: int | None, directory: Path | None
) -> int:
    """Show the task TASK: its state, what was said, and what came of it."""

    async def work(session: Session) -> int:
        call = session.client.get_task(task, history_length=history_length)
        session.output.task(await shown(session, call))
        return outcome.DONE

    return run(connection, work, directory=directory)


def _since(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> datetime | None:
    if value is None:
        return None
    if ago := _AGO.fullmatch(value):
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        time = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is no time: use 30m, 12h or 7d ago, or 2026-05-01T12:00:00Z",
            context,
            parameter,
        ) from error
    return time.astimezone(UTC)  # a time without a zone is this machine's


@click.command("list", cls=ClientCommand)
@click.option(
    "--state", type=click.Choice(list(_STATES), case_sensitive=False), help="In this state only."
)
@click.option("--context", "context_id", metavar="ID", default="", help="Of this conversation.")
@click.option(
    "--since",
    metavar="TIME",
    callback=_since,
    help="Changed since then: 30m, 12h or 7d ago, or a time such as 2026-05-01T12:00:00Z.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1), help="At most N; all unless given.")
@click.pass_obj
def list_tasks(
    connection: Connection,
    state: str | None,
    context_id: str,
    since: datetime | None,
    limit: int | None,
) -> int:
    """List the tasks, those that changed last first."""

    async def work(session: Session) -> int:
        count = 0
        with session.output.waiting("waiting for the server"):
            async for task in session.client.iter_tasks(
                context_id=context_id,
                state=None if state is None else _STATES[state.lower()],
                page_size=min(limit or _LARGEST_PAGE, _LARGEST_PAGE),
                history_length=0,
                status_timestamp_after=since,
            ):
                session.output.listed(task)
                count += 1
                if count == limit:
                    break
        if count == 0:
            session.output.note("no tasks")
        return outcome.DONE

    return run(connection, work)


@click.command(cls=ClientCommand)
@id_argument("task")
@click.pass_obj
def cancel(connection: Connection, task: str) -> int:
    """Cancel the task TASK."""

    async def work(session: Session) -> int:
        call = session.client.cancel_task(task)
        session.output.state(await shown(session, call, "waiting for the agent"))
        return outcome.DONE

    return run(connection, work)


@click.command(cls=ClientCommand, epilog=outcome.HELP)
@id_argument("task")
@click.option(
    "--after",
    metavar="SEQUENCE",
    type=click.IntRange(1),
    help="Go on after this event, as an interrupted stream says.",
)
@output_option
@click.pass_obj
def subscribe(connection: Connection, task: str, after: int | None, directory: Path | None) -> int:
    """Follow the task TASK until it ends or needs you."""

    async def work(session: Session) -> int:
        try:
            stream = session.client.subscribe(task, last_sequence=after, timeout=connection.timeout)
            return await session.follow(stream)
        except UnsupportedOperationError as error:
            raise CommandError(
                f"{error.message} (a2a-grpc get{connection.hint} {quoted(task)} shows it)",
                reason=error.reason,
            ) from error

    return run(connection, work, directory=directory)
