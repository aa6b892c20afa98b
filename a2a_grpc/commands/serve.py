"""`a2a-grpc serve`: an agent as a service, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from a2a_grpc.commands import logs, values
from a2a_grpc.commands.address import check_address
from a2a_grpc.config import ServerSettings

if TYPE_CHECKING:
    from a2a_grpc.server import A2AServer

logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///a2a-grpc.db"
DEFAULTS = ServerSettings()


class EnvironmentOption(click.Option):
    """An option that may also be given as A2A_GRPC_<OPTION>."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"show_default": True, "show_envvar": True, **attributes})
        self.envvar = f"A2A_GRPC_{str(self.name).upper()}"

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = super().resolve_envvar_value(ctx)
        # Kubernetes sets A2A_GRPC_PORT=tcp://... in each pod beside a Service called a2a-grpc.
        if self.name == "port" and value is not None and value.startswith("tcp://"):
            return None
        return value

    def get_error_hint(self, ctx: click.Context | None) -> str:
        where = ctx.get_parameter_source(str(self.name)) if ctx is not None else None
        return f"'{self.envvar if where is ParameterSource.ENVIRONMENT else self.opts[-1]}'"


def option(*names: str, **attributes: Any) -> Callable[[FunctionT], FunctionT]:
    """Declare an `EnvironmentOption`."""
    return click.option(*names, cls=EnvironmentOption, **attributes)


@click.command()
@click.argument("target")
@option(
    "--host",
    metavar="ADDRESS",
    callback=values.host,
    default=DEFAULTS.host,
    help="Address to bind.",
)
@option(
    "--port",
    metavar="PORT",
    callback=values.port,
    default=str(DEFAULTS.port),
    help="TCP port; 0 picks a free one.",
)
@option(
    "--store",
    metavar="URL",
    callback=values.store,
    default=DEFAULT_STORE,
    help="Where tasks are kept: sqlite:///file.db, or memory: to lose them when the server stops.",
)
@option(
    "--broker",
    metavar="URL",
    callback=values.broker,
    default="memory:",
    help="What brings messages to the process that works on them.",
)
@option(
    "--grace",
    metavar="SECONDS",
    callback=values.seconds,
    default=f"{DEFAULTS.grace:g}",
    help="Seconds that running tasks get to end when the server stops.",
)
@option(
    "--deduplicate",
    type=click.Choice(["marked", "always", "never"]),
    default=DEFAULTS.deduplicate,
    help="Which messages are looked up among earlier ones, to run once: those marked as retries, "
    "all, or none.",
)
@option(
    "--retain-tasks",
    metavar="AGE",
    callback=values.age,
    default="30d",
    help="How long a finished task is kept: 30d, 12h, 45m, 90s, or forever.",
)
@option(
    "--allow-private-webhooks",
    is_flag=True,
    help="Let push notifications go to private and local addresses.",
)
@option(
    "--assume-version",
    type=click.Choice(["1.0"]),
    help="The A2A version of calls that name none; without it they are refused.",
)
@option(
    "--external-url",
    metavar="ADDRESS",
    callback=values.external_url,
    help="The address that clients call, for the agent's card; host:port unless given.",
)
@option(
    "--card",
    metavar="FILE",
    help="The agent's card, a JSON or YAML file; what it leaves open is filled in.",
)
@option(
    "--card-key",
    metavar="FILE",
    help="The private key, in PEM form, that signs the card; needs --card-key-id.",
)
@option(
    "--card-key-id",
    metavar="ID",
    help="The name (kid) by which clients find the public key of --card-key.",
)
@option(
    "--log-format",
    type=click.Choice(["human", "json"]),
    default="human",
    help="Logs on stderr: lines for people, or one JSON object a line.",
)
@option(
    "--log-level",
    type=click.Choice(logs.LEVELS),
    default="info",
    help="The least that is logged; debug also shows tracebacks of errors at start.",
)
@click.pass_context
def serve(
    context: click.Context, /, target: str, log_format: str, log_level: str, **options: Any
) -> None:
    """Serve the agent TARGET over gRPC until SIGTERM or SIGINT.

    TARGET is package.module:name or path/to/file.py:name and names an A2AServer, an agent (an
    object or a class), or an async function. The name may be left out if it is `server` or `agent`.

    An option that is given, here or in the environment, wins over what an A2AServer says itself; a
    default does not.
    """
    as_json, debug = log_format == "json", log_level == "debug"
    logs.configure(json_lines=as_json, level=log_level)
    explicit = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name)
        in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    }
    try:
        with _stopped_by_signals():
            server = _load(target, context)
            _configure_cards(server, explicit, context)
            _configure(server, explicit)
            _run(server, as_json=as_json)
    except _StartError as error:
        if as_json or debug:
            logger.error("%s", error, exc_info=error.__cause__ if debug else None)
            raise click.exceptions.Exit(1) from error
        raise click.ClickException(str(error)) from error


class _StartError(Exception):
    """The server can't start; the text says why and what to do."""


class _StoppedError(BaseException):
    """A signal asked the process to stop before there was a server to stop."""


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Until the server minds the signals itself, the first one ends the block, without an error."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _StoppedError

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        yield
    except _StoppedError:
        logger.info("stopped before it served")


def _load(target: str, context: click.Context) -> A2AServer:
    from a2a_grpc.commands.target import TargetError, TargetSyntaxError, load_server

    try:
        return load_server(target)
    except TargetSyntaxError as error:
        raise click.UsageError(str(error), context) from error
    except TargetError as error:
        raise _StartError(str(error)) from error.__cause__


def _configure_cards(server: A2AServer, explicit: dict[str, Any], context: click.Context) -> None:
    card, key, key_id = (explicit.pop(name, None) for name in ("card", "card_key", "card_key_id"))
    if card is not None:
        server.card = card
    if (key is None) != (key_id is None):
        raise click.UsageError("--card-key and --card-key-id go together; give both", context)
    if key is not None:
        from a2a_grpc.cards.signing import CardSigner

        try:
            server.card_signer = CardSigner(key, key_id=key_id)
        except (ValueError, ImportError) as error:
            raise _StartError(_reason(error)) from error


def _configure(server: A2AServer, explicit: dict[str, Any]) -> None:
    store, broker = explicit.pop("store", None), explicit.pop("broker", None)
    if store is not None:
        server.storage = store
    elif server.storage is None:
        server.storage = DEFAULT_STORE
    if broker is not None:
        server.broker = broker
    server.settings = replace(server.settings, **explicit)
    if server.settings.host in ("0.0.0.0", "::") and not server.settings.external_url:
        logger.warning(
            "the agent's card names no address that clients elsewhere can call; give --external-url"
        )


def _run(server: A2AServer, *, as_json: bool) -> None:
    started = False

    def announce(server: A2AServer) -> None:
        nonlocal started
        started = True
        # Programs wait for this line, whatever the log level is.
        if as_json:
            text = f"serving {server.address}"
            logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None))
        else:
            click.echo(f"serving {server.address}", err=True)
        if isinstance(server.storage, str):
            logger.info("tasks are kept in %s (--store for another place)", server.storage)

    try:
        check_address(server.settings.host, server.settings.port)
        server.run(on_started=announce)
    except Exception as error:
        if started:
            logger.exception("the server failed")
            raise click.exceptions.Exit(1) from error
        raise _StartError(_reason(error)) from error


def _reason(error: Exception) -> str:
    from a2a_grpc.storage.base import StorageOpenError

    text = " ".join(str(error).split())
    if notes := getattr(error, "__notes__", None):
        text = f"{text}, {', '.join(notes)}"
    # These say themselves what to do; others are nobody's mistake on the command line.
    if isinstance(error, OSError | StorageOpenError | ValueError | ImportError):
        return text
    return f"can't start: {type(error).__name__}: {text} (--log-level debug shows where)"
