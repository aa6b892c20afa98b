"""The command `a2a-grpc`: finds the subcommand, and says in one line what went wrong.

Exit codes: 0 when done (for `serve`: stopped by SIGTERM or SIGINT), 1 when it could not be done, 2
when the command line or the environment is not written as it must be, 130 when another command than
`serve` was interrupted. What a subcommand does is in `commands/`; none is imported before it is
asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

COMMANDS: Mapping[str, str] = {
    "serve": "a2a_grpc.commands.serve:serve",
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
    """Serve AI agents over gRPC, by the protocol A2A 1.0."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, that of the process unless one is given; ends the process."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> Any:
    try:
        return commands.main(arguments, prog_name="a2a-grpc", standalone_mode=False)
    except click.UsageError as error:
        # Click would print the usage as well; one line is easier to find in a log.
        program = error.ctx.command_path if error.ctx else "a2a-grpc"
        return _fail(f"{error.format_message()} (see {program} --help)", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except click.Abort:
        return 130


def _fail(message: str, exit_code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return exit_code
