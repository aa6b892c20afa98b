"""`a2a-grpc send` and `a2a-grpc stream`: a message, and what the agent makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from a2a_grpc import pb
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.content import message_options, parts_of
from a2a_grpc.commands.client.options import ClientCommand, Connection, output_option
from a2a_grpc.commands.client.outcome import code_of
from a2a_grpc.commands.client.session import Session, run


@click.command(cls=ClientCommand, epilog=outcome.HELP)
@click.argument("text", nargs=-1)
@message_options
@click.option("--no-wait", is_flag=True, help="Only print the id of the task, and leave.")
@output_option
@click.pass_obj
def send(
    connection: Connection,
    text: Sequence[str],
    files: Sequence[Path],
    data: Sequence[str],
    task_id: str,
    context_id: str,
    no_wait: bool,
    directory: Path | None,
) -> int:
    """Send TEXT to the agent and wait for the outcome.

    TEXT - is read from stdin; put -- before a TEXT that begins with a dash.
    """
    parts = parts_of(text, files, data)

    message: dict[str, Any] = {
        "content": parts,
        "task_id": task_id,
        "context_id": context_id,
        "history_length": None if connection.json else 0,
    }

    async def work(session: Session) -> int:
        if not no_wait:
            return await session.answer(message)
        answer = await session.send(**message, return_immediately=True)
        if isinstance(answer, pb.Message):
            session.output.answer(answer)
            return outcome.DONE
        session.output.task_id(answer)
        return code_of(answer.status.state)

    return run(connection, work, directory=directory)


@click.command(cls=ClientCommand, epilog=outcome.HELP)
@click.argument("text", nargs=-1)
@message_options
@output_option
@click.pass_obj
def stream(
    connection: Connection,
    text: Sequence[str],
    files: Sequence[Path],
    data: Sequence[str],
    task_id: str,
    context_id: str,
    directory: Path | None,
) -> int:
    """Send TEXT to the agent and show what it does while it does it.

    TEXT - is read from stdin; put -- before a TEXT that begins with a dash.
    """
    parts = parts_of(text, files, data)

    async def work(session: Session) -> int:
        session.output.new_turn(continued=bool(task_id))
        return await session.follow(
            session.client.stream(
                parts,
                task_id=task_id,
                context_id=context_id,
                history_length=None if connection.json else 0,
                timeout=connection.timeout,
            )
        )

    return run(connection, work, directory=directory)
