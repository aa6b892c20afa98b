"""The values of options that click has no type for: callbacks that convert and check them.

Each raises click.BadParameter, which names the remedy.
"""

from __future__ import annotations

import math
import re

import click

from a2a_grpc.commands.redaction import shown
from a2a_grpc.config import MAX_INT

MAX_PROCESSES = 999

_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*://)?[^\s/]+(/\S*)?", re.IGNORECASE)


def is_shared_store(url: str) -> bool:
    """Whether several processes may use the store at a time."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.partition("+")[0] in ("postgresql", "postgres")


def is_shared_broker(url: str) -> bool:
    """Whether the broker reaches other processes."""
    return url.startswith(("nats://", "tls://"))


def age(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """Seconds from 30d, 12h, 45m or 90s; infinity from `forever`."""
    if value == "forever":
        return math.inf
    match = _AGE.fullmatch(value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not an age: use a whole number with a unit, such as 30d, 12h, 45m or "
            "90s, or forever",
            context,
            parameter,
        )
    return float(int(match[1]) * _UNIT_SECONDS[match[2]])


def seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """A number of seconds, 0 or more."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise click.BadParameter(
            f"{value!r} is not a number of seconds: use 0 or more, such as 10", context, parameter
        )
    return number


def lease(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """A number of seconds, 1 or more."""
    number = seconds(context, parameter, value)
    if number < 1:
        raise click.BadParameter(
            f"{value!r} is too short: use 1 second or more, such as 15", context, parameter
        )
    return number


def count(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A whole number, 1 or more."""
    return _whole_number(context, parameter, value, MAX_INT)


def processes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A number of processes, 1 or more."""
    return _whole_number(context, parameter, value, MAX_PROCESSES)


def _whole_number(
    context: click.Context, parameter: click.Parameter, value: str, largest: int
) -> int:
    if not re.fullmatch("[0-9]{1,10}", value) or not 1 <= int(value) <= largest:
        raise click.BadParameter(
            f"{value!r} is not a number of {parameter.name}: use 1 to {largest}", context, parameter
        )
    return int(value)


def host(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """An address to bind; brackets around an IPv6 address are taken off."""
    name = value.removeprefix("[").removesuffix("]")
    if not name or re.search(r"[\s/]", name):
        raise click.BadParameter(
            f"{value!r} is not an address: use one of this machine, such as 127.0.0.1, or 0.0.0.0 "
            "for all of them",
            context,
            parameter,
        )
    return name


def port(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A TCP port; 0 stands for any free one."""
    if not re.fullmatch("[0-9]{1,5}", value) or int(value) > 65535:
        raise click.BadParameter(f"{value!r} is not a port: use 0 to 65535", context, parameter)
    return int(value)


def store(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """A store's URL; what follows the scheme of PostgreSQL is its storage's business."""
    if value == "memory:" or is_shared_store(value):
        return value
    if not value.startswith("sqlite"):
        raise click.BadParameter(
            f"{shown(value)!r} is not a store: use postgresql://user@host/database, "
            "sqlite:///file.db, or memory: to keep nothing",
            context,
            parameter,
        )
    # SQLAlchemy takes a while to import; a store in memory does without it.
    from a2a_grpc.storage.sql.sqlite import database_path

    try:
        database_path(value)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} names no database file: use sqlite:///file.db, sqlite:////absolute/file.db"
            ", or memory: to keep nothing",
            context,
            parameter,
        ) from error
    return value


def broker(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """A broker's URL; what follows the scheme of NATS is its broker's business."""
    if value != "memory:" and not is_shared_broker(value):
        raise click.BadParameter(
            f"{shown(value)!r} is not a broker: use nats://host:4222, tls://host:4222, or memory: "
            "within one process",
            context,
            parameter,
        )
    return value


def external_url(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """The gRPC address that clients call: host:port, with or without a scheme."""
    if value is not None and not _ADDRESS.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} is not an address: use host:port, such as agents.example.com:443",
            context,
            parameter,
        )
    return value
