"""The options that every client command has: whom to call, as whom, and how to answer.

Each is also read from A2A_GRPC_<OPTION>, those that `serve` has by the same name from
A2A_GRPC_CLIENT_<OPTION>: a server's certificate is not its clients'.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from a2a_grpc import pb
from a2a_grpc.commands import logs
from a2a_grpc.commands.client.failure import told_as_command_errors
from a2a_grpc.commands.client.outcome import JSON

if TYPE_CHECKING:
    from a2a_grpc.client.a2a_client import A2AClient

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

DEFAULT_TARGET = "127.0.0.1:50051"
_ALSO_OF_SERVE = ("tls_cert", "tls_key", "log_level")
_KEY = re.compile("[a-z0-9_.-]+")
_VALUE = re.compile("[ -~]*")


STREAM_PATIENCE = 20.0
"""Seconds for which a stream waits for a server that went away, with somebody watching."""


@dataclass(frozen=True)
class Connection:
    """What the shared options say."""

    target: str | pb.AgentCard  # host:port, a URL of a card, or a card
    tenant: str | None  # None: the one that the card names
    token: str | None  # bearer
    tls: bool | None  # None: by the address
    tls_ca: Path | None  # PEM
    tls_cert: Path | None  # PEM
    tls_key: Path | None  # PEM
    metadata: tuple[tuple[str, str], ...]
    timeout: float | None  # seconds for a call; None: no limit
    json: bool
    log_level: str
    hint: str  # how a command that goes on has to name the target: "", or " --target ..."

    def client(self, *, tries: int, card_keys: Any = None) -> A2AClient:
        """A client, to be entered.

        Args:
            tries: how often a call is tried while the server can't be reached.
            card_keys: see A2AClient.
        """
        from a2a_grpc.client.a2a_client import A2AClient
        from a2a_grpc.client.retry import RetryPolicy
        from a2a_grpc.client.tls import ClientTLS

        tls: ClientTLS | bool | None = self.tls
        if self.tls_ca or self.tls_cert:
            tls = ClientTLS(
                root_certificates=self.tls_ca,
                certificate=self.tls_cert,
                private_key=self.tls_key,
            )
        return A2AClient(
            self.target,
            tenant=self.tenant,
            tls=tls,
            token=self.token,
            metadata=self.metadata,
            timeout=self.timeout,
            retry=RetryPolicy(attempts=tries, stream_patience=STREAM_PATIENCE),
            card_keys=card_keys,
        )


class ConnectionOption(click.Option):
    """A shared option, which may also come from the environment."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"show_default": True, "show_envvar": True, **attributes})
        prefix = "A2A_GRPC_CLIENT_" if self.name in _ALSO_OF_SERVE else "A2A_GRPC_"
        self.envvar = f"{prefix}{str(self.name).upper()}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        where = ctx.get_parameter_source(str(self.name)) if ctx is not None else None
        return f"'{self.envvar if where is ParameterSource.ENVIRONMENT else self.opts[-1]}'"


class ClientCommand(click.Command):
    """A command with the shared options; its function gets them as a `Connection`, by pass_obj."""

    def __init__(self, name: str | None, **attributes: Any) -> None:
        attributes["params"] = [*(attributes.get("params") or ()), *shared()]
        super().__init__(name, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Before anything can go wrong, since it says how errors are written.
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[JSON] = "--json" in options or _is_set("A2A_GRPC_JSON")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        values = {option.name: ctx.params.pop(option.name) for option in shared() if option.name}
        connection = ctx.obj = connection_of(ctx, values)
        with told_as_command_errors(as_json=connection.json, target=connection.hint):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = {option.name for option in shared()}
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                (common if parameter.name in names else own).append(record)
        with formatter.section("Options"):
            formatter.write_dl(own)
        with formatter.section("Options of all client commands"):
            formatter.write_dl(common)


def output_option(function: FunctionT) -> FunctionT:
    """The option of commands whose answer may have files."""
    return click.option(
        "--output",
        "-o",
        "directory",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory to save the files of the answer in; none is overwritten.",
    )(function)


def id_argument(name: str, metavar: str | None = None) -> Callable[[FunctionT], FunctionT]:
    """An argument that is the id of something."""
    return click.argument(name, metavar=metavar, callback=_not_empty)


def _not_empty(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("an id can't be empty", context, parameter)
    return value


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "t", "yes", "y", "on")


def connection_of(context: click.Context, values: dict[str, Any]) -> Connection:
    """The values together, checked against each other."""
    if bool(values["tls_cert"]) != bool(values["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key need each other", context)
    if values["tls"] is False and (values["tls_ca"] or values["tls_cert"]):
        raise click.UsageError(
            "--no-tls contradicts --tls-ca, --tls-cert and --tls-key: leave out one side", context
        )
    typed = context.get_parameter_source("target") is ParameterSource.COMMANDLINE
    text = values["target"]
    return Connection(
        **{**values, "target": _agent(context, text), "metadata": tuple(values["metadata"])},
        hint=f" --target {shlex.quote(text)}" if typed and text != DEFAULT_TARGET else "",
    )


def _agent(context: click.Context, target: str) -> str | pb.AgentCard:
    if "://" not in target and (target.endswith(".json") or os.sep in target):
        return _read_card(context, target)
    return target


def _read_card(context: click.Context, path: str) -> pb.AgentCard:
    from google.protobuf import json_format

    try:
        text = Path(path).read_text(encoding="utf-8")
        return json_format.Parse(text, pb.AgentCard(), ignore_unknown_fields=True)
    except OSError as error:
        problem = f"can't read the card {path}: {error.strerror or error}"
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        problem = f"{path} is not a card in JSON: {error}"
    raise click.BadParameter(problem, context, param_hint="'--target'")


def _token(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if not value.strip() or not _VALUE.fullmatch(value.strip()):
        # Without the token, which is a secret.
        raise click.BadParameter(
            "the token is empty or has characters that can't be sent", context, parameter
        )
    return value.strip()


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise click.BadParameter(
            f"{value!r} is not a number of seconds: use more than 0, such as 10", context, parameter
        )
    return number


def _metadata(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> list[tuple[str, str]]:
    found = []
    for value in values:
        key, equals, text = value.partition("=")
        key = key.lower()
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(text):
            raise click.BadParameter(
                f"{value!r} is not metadata: use key=value, in ASCII", context, parameter
            )
        if key.endswith("-bin") or key.startswith("grpc-"):
            raise click.BadParameter(
                f"{key} can't be given here: keys that begin with grpc- or end with -bin are "
                "gRPC's own or binary",
                context,
                parameter,
            )
        found.append((key, text))
    return found


def _file(help_text: str, name: str) -> ConnectionOption:
    kind = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
    return ConnectionOption([name], metavar="FILE", type=kind, help=help_text)


def shared() -> list[ConnectionOption]:
    """The options, new for every command."""
    return [
        ConnectionOption(
            ["--target"],
            metavar="ADDRESS",
            default=DEFAULT_TARGET,
            help="The agent: host:port, or the file or the http(s) URL of its card.",
        ),
        ConnectionOption(["--tenant"], help="The agent among several behind one address."),
        ConnectionOption(["--token"], callback=_token, help="Bearer token of the caller."),
        ConnectionOption(
            ["--tls/--no-tls"],
            default=None,
            help="Whether to use TLS; by the address unless given.",
        ),
        _file("Certificates to trust (PEM), in place of the system's.", "--tls-ca"),
        _file("Certificate to present (PEM).", "--tls-cert"),
        _file("Its private key (PEM).", "--tls-key"),
        ConnectionOption(
            ["--metadata"],
            metavar="KEY=VALUE",
            multiple=True,
            callback=_metadata,
            help="Call metadata to send along; repeatable.",
        ),
        ConnectionOption(
            ["--timeout"],
            metavar="SECONDS",
            callback=_seconds,
            help="How long a call may take; no limit unless given.",
        ),
        ConnectionOption(
            ["--json"],
            is_flag=True,
            help="For programs: one JSON object a line, errors too.",
        ),
        ConnectionOption(
            ["--log-level"],
            type=click.Choice(logs.LEVELS),
            default="warning",
            help="The least that is logged to stderr; debug shows tracebacks of errors.",
        ),
    ]
