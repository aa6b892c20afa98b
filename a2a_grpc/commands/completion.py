"""`a2a-grpc completion`: the script with which a shell completes our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash: eval "$(a2a-grpc completion bash)"           in ~/.bashrc
    zsh:  eval "$(a2a-grpc completion zsh)"            in ~/.zshrc, after compinit
    fish: a2a-grpc completion fish | source            in ~/.config/fish/config.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(context.find_root().command, {}, "a2a-grpc", "_A2A_GRPC_COMPLETE")
    click.echo(script.source())
