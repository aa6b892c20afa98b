"""`a2a-grpc push`: the webhooks that get the updates of a task."""

from __future__ import annotations

import click

from a2a_grpc import pb
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.options import ClientCommand, Connection, id_argument
from a2a_grpc.commands.client.session import Session, run, shown


@click.group(invoke_without_command=True)
@click.pass_context
def push(context: click.Context) -> None:
    """Have the updates of a task sent to a webhook."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@push.command(cls=ClientCommand)
@id_argument("task")
@click.argument("url")
@click.option("--id", "config_id", default="", metavar="ID", help="Its id; chosen unless given.")
@click.option(
    "--webhook-token",
    default="",
    metavar="SECRET",
    help="Sent along, so that the receiver knows its own webhooks.",
)
@click.option(
    "--webhook-auth",
    metavar="'SCHEME CREDENTIALS'",
    help="The header Authorization of the webhook's calls, such as 'Bearer secret'.",
)
@click.pass_obj
def create(
    connection: Connection,
    task: str,
    url: str,
    config_id: str,
    webhook_token: str,
    webhook_auth: str | None,
) -> int:
    """Send the updates of TASK to URL."""
    authentication = None
    if webhook_auth is not None:
        scheme, _, credentials = webhook_auth.strip().partition(" ")
        if not scheme or not credentials:
            raise click.UsageError("--webhook-auth needs a scheme and credentials: 'Bearer secret'")
        authentication = pb.AuthenticationInfo(scheme=scheme, credentials=credentials.strip())

    async def work(session: Session) -> int:
        call = session.client.create_push_config(
            task, url, id=config_id, token=webhook_token, authentication=authentication
        )
        session.output.webhook(await shown(session, call))
        return outcome.DONE

    return run(connection, work)


@push.command(cls=ClientCommand)
@id_argument("task")
@id_argument("config_id", metavar="ID")
@click.pass_obj
def get(connection: Connection, task: str, config_id: str) -> int:
    """Show the webhook ID of TASK."""

    async def work(session: Session) -> int:
        call = session.client.get_push_config(task, config_id)
        session.output.webhook(await shown(session, call))
        return outcome.DONE

    return run(connection, work)


@push.command("list", cls=ClientCommand)
@id_argument("task")
@click.pass_obj
def list_webhooks(connection: Connection, task: str) -> int:
    """List the webhooks of TASK."""

    async def work(session: Session) -> int:
        configs = await shown(session, session.client.list_push_configs(task))
        for config in configs:
            session.output.webhook(config)
        if not configs:
            session.output.note("no webhooks")
        return outcome.DONE

    return run(connection, work)


@push.command(cls=ClientCommand)
@id_argument("task")
@id_argument("config_id", metavar="ID")
@click.pass_obj
def delete(connection: Connection, task: str, config_id: str) -> int:
    """Remove the webhook ID of TASK; harmless if there is none."""

    async def work(session: Session) -> int:
        await shown(session, session.client.delete_push_config(task, config_id))
        return outcome.DONE

    return run(connection, work)
