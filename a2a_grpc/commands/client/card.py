"""`a2a-grpc card`: what an agent says about itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.options import ClientCommand, Connection
from a2a_grpc.commands.client.outcome import CommandError
from a2a_grpc.commands.client.session import Session, run, shown
from a2a_grpc.errors import UnsupportedOperationError


@click.command(cls=ClientCommand)
@click.option("--extended", is_flag=True, help="The card that only authenticated callers see.")
@click.option(
    "--verify",
    "key_file",
    metavar="KEYFILE",
    type=click.Path(path_type=Path),
    help="Fail unless this public key (PEM, JWK or JWK set) verifies the card's signature.",
)
@click.pass_obj
def card(connection: Connection, extended: bool, key_file: Path | None) -> int:
    """Show the agent's card: what it can do, and how to call it."""

    async def work(session: Session) -> int:
        client = session.client
        try:
            call = client.get_extended_card() if extended else client.get_card()
            found = await shown(session, call)
        except UnsupportedOperationError as error:
            if extended:
                raise
            raise CommandError(
                f"{client.address} does not offer a card over gRPC; --target takes the http(s) URL "
                "of the card as well",
                reason=error.reason,
            ) from error
        session.output.card(found, is_verified=key_file is not None)
        return outcome.DONE

    return run(connection, work, card_keys=None if key_file is None else _keys(key_file))


def _keys(path: Path) -> Any:
    """What A2AClient takes as `card_keys`: a JWK set, or the one key for all signatures."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise click.UsageError(
            f"can't read the key {str(path)!r}: {error.strerror or error}"
        ) from error
    key: Any = data
    if not data.lstrip().startswith(b"-----BEGIN"):
        try:
            key = json.loads(data)
        except (ValueError, RecursionError):
            key = None
        if not isinstance(key, dict):
            raise click.UsageError(
                f"{str(path)!r} holds no key: --verify needs a public key in PEM form, a JWK, or a "
                "JWK set"
            )
        if "keys" in key:
            return key
    return lambda key_id, key_url: key
