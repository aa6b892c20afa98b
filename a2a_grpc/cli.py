"""The command `a2a-grpc`: finds the subcommand, and says in one line what went wrong.

Exit codes: 0 when done (for `serve`: stopped by SIGTERM or SIGINT), 1 when it could not be done, 2
when the command line or the environment is not written as it must be, 130 when another command than
`serve` was interrupted; `commands.client.outcome` has 3 to 6, of the client commands. What a
subcommand does is in `commands/`; none is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from a2a_grpc.commands.client.outcome import HELP, JSON, CommandError, error_line

COMMANDS: Mapping[str, str] = {
    "serve": "a2a_grpc.commands.serve:serve",
    "card": "a2a_grpc.commands.client.card:card",
    "send": "a2a_grpc.commands.client.send:send",
    "stream": "a2a_grpc.commands.client.send:stream",
    "chat": "a2a_grpc.commands.client.chat:chat",
    "get": "a2a_grpc.commands.client.tasks:get",
    "list": "a2a_grpc.commands.client.tasks:list_tasks",
    "cancel": "a2a_grpc.commands.client.tasks:cancel",
    "subscribe": "a2a_grpc.commands.client.tasks:subscribe",
    "push": "a2a_grpc.commands.client.push:push",
    "completion": "a2a_grpc.commands.completion:completion",
}
"""Where each command is, as module:name."""


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


def _print_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        try:
            version = importlib.metadata.version("a2a-grpc")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed, run from its sources)"
        click.echo(f"a2a-grpc {version}")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    epilog=HELP,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def commands(context: click.Context) -> None:
    """Serve AI agents over gRPC, and call them, by the protocol A2A 1.0."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, that of the process unless one is given; ends the process."""
    _open_closed_streams()
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError:
        # That was said; Python would try once more at the end, and say it in its own way.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def _open_closed_streams() -> None:
    """Make what the shell has closed (`>&-`) read as empty, and written to as nothing.

    Its number would go to the next file or socket that is opened, and whatever is written to the
    stream by its number, as gRPC does, would end up there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: its own
            opened = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)


def _run(arguments: Sequence[str] | None) -> Any:
    try:
        return commands.main(arguments, prog_name="a2a-grpc", standalone_mode=False)
    except click.ClickException as error:
        # Click would print the usage as well; one line is easier to find in a log.
        click.echo(error_line(error, as_json=_as_json(error)), err=True)
        return error.exit_code
    except click.Abort:
        return 130
    except OSError as error:  # a command says itself what went wrong: this is the help, or the like
        click.echo(f"error: can't write: {error.strerror or error}", err=True)
        return 1


def _as_json(error: click.ClickException) -> bool:
    """Whether the command that failed was asked for JSON."""
    if isinstance(error, CommandError):
        return error.as_json
    context = error.ctx if isinstance(error, click.UsageError) else None
    return context is not None and bool(context.meta.get(JSON))
