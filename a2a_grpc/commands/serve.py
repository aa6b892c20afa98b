"""`a2a-grpc serve`: an agent as a service, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.commands import logs, values
from a2a_grpc.commands.address import check_address
from a2a_grpc.commands.parent import VARIABLE, Parent, Started
from a2a_grpc.commands.redaction import Redaction, shown
from a2a_grpc.config import ServerSettings

if TYPE_CHECKING:
    from a2a_grpc.server import A2AServer

logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///a2a-grpc.db"
DEFAULTS = ServerSettings()

LIBRARIES = {
    "asyncpg": "PostgreSQL needs asyncpg: pip install 'a2a-grpc[postgres]'",
    "nats": "NATS needs nats-py: pip install 'a2a-grpc[nats]'",
}
"""What to say when a module is missing."""


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
    help="Where tasks are kept: sqlite:///file.db, postgresql://user@host/database, or memory: to "
    "lose them when the server stops.",
)
@option(
    "--broker",
    metavar="URL",
    callback=values.broker,
    default="memory:",
    help="What brings messages to the process that works on them: nats://host:4222 to any one, "
    "memory: to the one that took the call.",
)
@option(
    "--role",
    type=click.Choice(["all", "frontend", "worker"]),
    default=DEFAULTS.role,
    help="What this server does: everything, only the calls of clients, or only the agent's work.",
)
@option(
    "--processes",
    metavar="N",
    callback=values.processes,
    default="1",
    help="Processes that serve on one port; more than 1 need PostgreSQL and NATS.",
)
@option(
    "--concurrency",
    metavar="N",
    callback=values.count,
    default=str(DEFAULTS.concurrency),
    help="Messages that agents work on at a time, in each process.",
)
@option(
    "--lease",
    metavar="SECONDS",
    callback=values.lease,
    default=f"{DEFAULTS.lease:g}",
    help="Seconds after which others take over the tasks of a process that fell silent.",
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
    "--compact-after",
    metavar="AGE",
    callback=values.age,
    default="1h",
    help="How long after its end a task keeps its single events, besides the outcome.",
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
    redaction = Redaction()
    for name in ("store", "broker"):
        redaction.add(options[name])
    logs.configure(
        json_lines=as_json,
        level=log_level,
        redact=redaction,
        name_process=VARIABLE in os.environ or options["processes"] > 1,
    )
    processes = options.pop("processes")
    explicit = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name)
        in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    }
    try:
        with _stopped_by_signals():
            parent = _find_parent()
            if parent is None and processes > 1:
                _run_processes(processes, as_json=as_json)
                return
            server = _load(target, context)
            _configure_cards(server, explicit, context)
            _configure(server, explicit)
            redaction.add(server.storage)
            redaction.add(server.broker)
            _check_shared(server, processes, context)
            _run(server, parent, as_json=as_json)
    except _StartError as error:
        text = redaction(str(error))
        if as_json or debug:
            logger.error("%s", text, exc_info=error.__cause__ if debug else None)
            raise click.exceptions.Exit(1) from error
        raise click.ClickException(text) from error


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


def _check_shared(server: A2AServer, processes: int, context: click.Context) -> None:
    """Raises click.UsageError if several processes are to share what one has to itself."""
    store, broker, role = server.storage, server.broker, server.settings.role
    if isinstance(store, str):
        shared_store, named_store = values.is_shared_store(store), shown(store)
    else:
        shared_store = store is not None and store.lease is not None
        named_store = type(store).__name__
    if isinstance(broker, str):
        shared_broker, named_broker = values.is_shared_broker(broker), shown(broker)
    else:
        shared_broker = broker is not None and not isinstance(broker, InMemoryBroker)
        named_broker = "memory:" if broker is None else type(broker).__name__
    give_store = "give --store postgresql://user@host/database"
    several = f"--processes {processes}" if processes > 1 else f"--role {role}"
    if processes > 1 or role != "all":
        if not shared_store:
            raise click.UsageError(
                f"{several} needs a store that processes share, which {named_store} is not; "
                f"{give_store}",
                context,
            )
        if not shared_broker:
            raise click.UsageError(
                f"{several} needs a broker that reaches other processes, which {named_broker} "
                "does not; give --broker nats://host:4222",
                context,
            )
    if shared_broker and not shared_store:
        raise click.UsageError(
            f"--broker {named_broker} needs a store that processes share, which {named_store} is "
            f"not; {give_store}, or leave --broker out",
            context,
        )


def _find_parent() -> Parent | None:
    try:
        return Parent.of_this_process()
    except OSError as error:
        raise _StartError(str(error)) from error


def _run_processes(count: int, *, as_json: bool) -> None:
    """Serve with several processes, each of which runs this command again."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise _StartError(
            f"--processes {count} is not possible on this system, where processes can't share a "
            "port (SO_REUSEPORT); start single servers, each with its own --port"
        )
    from a2a_grpc.commands.processes import ProcessesError, Supervisor, this_command

    async def run() -> int:
        return await Supervisor(
            this_command(), count, on_started=lambda started: _announce(started, as_json=as_json)
        ).run()

    try:
        code = asyncio.run(run())
    except ProcessesError as error:
        raise _StartError(str(error)) from error
    if code:
        raise click.exceptions.Exit(code)


def _announce(started: Started, *, as_json: bool) -> None:
    # Programs wait for this line, whatever the log level is.
    if as_json:
        text = f"serving {started.address}"
        logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None))
    else:
        click.echo(f"serving {started.address}", err=True)
    if started.store is not None:
        logger.info("tasks are kept in %s (--store for another place)", started.store)
    if started.unnamed:
        logger.warning(
            "the agent's card names no address that clients elsewhere can call; give --external-url"
        )


def _run(server: A2AServer, parent: Parent | None, *, as_json: bool) -> None:
    started = False

    def on_started(server: A2AServer) -> None:
        nonlocal started
        started = True
        settings = server.settings
        what = Started(
            address=server.address,
            store=shown(server.storage) if isinstance(server.storage, str) else None,
            unnamed=settings.host in ("0.0.0.0", "::") and not settings.external_url,
        )
        if parent is None:
            _announce(what, as_json=as_json)
        else:
            parent.tell_started(what)

    try:
        settings = server.settings
        if parent is not None:
            parent.grace = settings.grace
            port = parent.reserve(settings.host, settings.port)
            server.settings = replace(settings, port=port, reuse_port=True)
        elif not settings.reuse_port:
            check_address(settings.host, settings.port)
        server.run(on_started=on_started)
    except Exception as error:
        if started:
            logger.exception("the server failed")
            raise click.exceptions.Exit(1) from error
        raise _StartError(_reason(error)) from error


def _reason(error: Exception) -> str:
    from a2a_grpc.broker.base import BrokerOpenError
    from a2a_grpc.bus.base import BusOpenError
    from a2a_grpc.storage.values import StorageOpenError

    text = " ".join(str(error).split())
    if notes := getattr(error, "__notes__", None):
        text = f"{text}, {', '.join(notes)}"
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        library = error.name.partition(".")[0]
        if library in LIBRARIES:
            return LIBRARIES[library]
    # These say themselves what to do; others are nobody's mistake on the command line.
    opening = StorageOpenError | BrokerOpenError | BusOpenError
    if isinstance(error, OSError | opening | ValueError | ImportError):
        return text
    return f"can't start: {type(error).__name__}: {text} (--log-level debug shows where)"
