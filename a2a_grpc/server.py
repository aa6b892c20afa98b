"""A2AServer: puts the parts together, starts them, and stops them in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from a2a_grpc.active.agent_turn import ActiveParts, ActiveSettings
from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.active.worker_loop import WorkerLoop
from a2a_grpc.admission import ServiceSettings
from a2a_grpc.agent.dependencies import check_dependencies, open_dependencies
from a2a_grpc.agent.executor import AgentExecutor
from a2a_grpc.agent.function import as_executor
from a2a_grpc.agent.request_context import RequestContextBuilder, SimpleRequestContextBuilder
from a2a_grpc.auth.base import Authenticator
from a2a_grpc.broker.base import Broker, TaskSendParams
from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.bus.base import Committed, EventBus
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.cards.publishing import CardPublisher, CardSource, ExtendedCard, PublishedCards
from a2a_grpc.cards.signing import CardSigner
from a2a_grpc.config import MAX_INT, ServerSettings
from a2a_grpc.errors import InvalidParamsError, ResourceExhaustedError
from a2a_grpc.hooks import HookRunner, LifecycleHooks
from a2a_grpc.middleware import Middleware, checked
from a2a_grpc.push.delivery import PushDelivery, PushSettings
from a2a_grpc.service import A2AService
from a2a_grpc.storage.base import AnyStorage, Operation
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.transient import TransientContexts
from a2a_grpc.wire.call import Gate
from a2a_grpc.wire.discovery import DISCOVERY_NAME, DiscoveryServicer
from a2a_grpc.wire.reflection import reflection_handlers
from a2a_grpc.wire.servicer import SERVICE_NAME, A2AServicer
from a2a_grpc.wire.validation import ValidationLimits

logger = logging.getLogger(__name__)

T = TypeVar("T")


class A2AServer:
    """One agent, or several by tenant, behind one gRPC port; an async context manager.

    Args:
        agent: a Worker, an AgentExecutor, an async function of a RequestContext, an async
            generator, or an object with such a method `run`.
        agents: in place of `agent`, one for each tenant.
        card: the public card, or the path of a JSON or YAML file that holds it; what it leaves
            open is filled in. With `agents`, a mapping by tenant or one for all.
        extended_card: the card for authenticated callers, its path, or a function of the call, sync
            or async, that makes it.
        card_signer: signs every card that is given out.
        storage: a Storage, or its URL: `memory:`, `sqlite:///file.db`. The server opens and closes
            it. In memory unless given.
        broker: a Broker, or its URL: `memory:`.
        bus: an EventBus; the one that goes with the broker unless given.
        authenticator: an object with `async authenticate(call) -> Principal`; without one the
            server is open to everybody.
        deps: what agents find in `ctx.deps`, by type or name; a `Dependency` is opened when the
            server starts, in order, and closed when it has stopped.
        middleware: what is called before and after every operation, the first outermost.
        hooks: what is called when a task has changed its state.
        request_context_builder: makes ids and request contexts.
        limits: how much a request may hold.
        settings: everything with a number.

    Entering raises OSError if the port is taken, and CardError if a card can't be read or is wrong.
    """

    LINGER = 0.2
    """Seconds for which `serve` goes on refusing calls before it closes the port."""
    GC_THRESHOLD = (10_000, 10, 10)
    """For `gc.set_threshold`, in a process that `run` owns."""
    SWEEP_INTERVAL = 60.0
    """Seconds between looks for tasks to forget."""

    def __init__(
        self,
        agent: Any = None,
        *,
        agents: Mapping[str, Any] | None = None,
        card: CardSource | Mapping[str, CardSource] | None = None,
        extended_card: ExtendedCard | None = None,
        card_signer: CardSigner | None = None,
        storage: AnyStorage | str | None = None,
        broker: Broker | str | None = None,
        bus: EventBus | None = None,
        authenticator: Authenticator | None = None,
        deps: Mapping[Any, Any] | None = None,
        middleware: Sequence[Middleware] = (),
        hooks: LifecycleHooks | None = None,
        request_context_builder: RequestContextBuilder | None = None,
        limits: ValidationLimits | None = None,
        settings: ServerSettings | None = None,
    ) -> None:
        if (agent is None) == (agents is None):
            raise TypeError("A2AServer takes either an agent or agents={tenant: agent}")
        if agents is not None and not (isinstance(agents, Mapping) and agents):
            raise TypeError(f"agents={agents!r} names no agent; give a dict of them, by tenant")
        for name, value, wanted in (
            ("settings", settings, ServerSettings),
            ("hooks", hooks, LifecycleHooks),
            ("card_signer", card_signer, CardSigner),
        ):
            if value is not None and not isinstance(value, wanted):
                raise TypeError(f"{name} is a {type(value).__name__}; give {wanted.__name__}(...)")
        if authenticator is not None and not callable(getattr(authenticator, "authenticate", None)):
            raise TypeError(
                f"{authenticator!r} is no authenticator: give an object with `async "
                "authenticate(call)`, which returns a Principal"
            )
        self._executors: dict[str | None, AgentExecutor] = (
            {None: as_executor(agent)}
            if agents is None
            else {tenant: as_executor(one) for tenant, one in agents.items()}
        )
        self._extended_card = extended_card
        self._authenticator = authenticator
        self._deps = check_dependencies(deps or {})
        self._middleware = checked(middleware)
        self._hooks = hooks
        self._builder = request_context_builder or SimpleRequestContextBuilder()
        self._limits = limits or ValidationLimits()
        self._bus = bus
        self._stack = AsyncExitStack()
        self._cards: dict[str | None, PublishedCards] = {}
        self._gate: Gate | None = None
        self._health: health.aio.HealthServicer | None = None
        self._registry: ActiveTaskRegistry | None = None
        self.card = card
        """The public card, its path, or a mapping by tenant; may be set until the server starts."""
        self.card_signer = card_signer
        """What signs the cards; may be set until the server starts."""
        self.storage = storage
        """The Storage, or its URL; may be set until the server starts."""
        self.broker = broker
        """The Broker, or its URL; may be set until the server starts."""
        self.settings = settings or ServerSettings()
        """May be replaced until the server starts."""
        self.port = 0
        """The port that is bound; 0 before the server has started."""

    @property
    def address(self) -> str:
        """host:port that clients on this machine connect to."""
        host = self.settings.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    # Agents and cards, by tenant.

    def _executor_for(self, tenant: str) -> AgentExecutor:
        return self._of_tenant(self._executors, tenant)

    def _cards_for(self, tenant: str) -> PublishedCards:
        return self._of_tenant(self._cards, tenant)

    @staticmethod
    def _of_tenant(known: Mapping[str | None, T], tenant: str) -> T:
        found = known.get(None if None in known else tenant)
        if found is None:
            problem = (
                f"is {tenant!r}, and no agent of this server is called that"
                if tenant
                else "is missing: this server has several agents, each with a tenant"
            )
            raise InvalidParamsError.field("tenant", problem)
        return found

    def _card_publisher(self) -> CardPublisher:
        settings = self.settings
        remembers = settings.deduplicate != "never"
        return CardPublisher(
            {
                tenant: getattr(executor, "name", type(executor).__name__)
                for tenant, executor in self._executors.items()
            },
            card=self.card,
            extended_card=self._extended_card,
            signer=self.card_signer,
            retry_window=settings.deduplication_window if remembers else None,
            external_url=settings.external_url,
        )

    # Starting and stopping.

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        publisher = self._card_publisher()  # a wrong card opens nothing
        # First in, last out: agents use them until the end.
        deps = await open_dependencies(self._deps, stack)
        storage = await stack.enter_async_context(_open_storage(self.storage))
        broker = await stack.enter_async_context(_open_broker(self.broker))
        bus = await stack.enter_async_context(self._bus or InMemoryBus())
        push = await stack.enter_async_context(
            PushDelivery(storage, PushSettings(allow_private=settings.allow_private_webhooks))
        )
        hooks = None
        if self._hooks is not None:
            hooks = await stack.enter_async_context(HookRunner(self._hooks))
        if isinstance(self._builder, SimpleRequestContextBuilder):
            self._builder.task_store = storage

        def on_commit(committed: Committed, state_before: int) -> None:
            push.wake(committed.task_id)
            if hooks is not None:
                hooks.committed(committed, state_before)

        def expect_push(task_id: str) -> None:
            push.expect(task_id)
            push.wake(task_id)  # a configuration that is replaced may have a backlog

        transient = TransientContexts()
        registry = ActiveTaskRegistry(
            ActiveParts(
                storage=storage,
                bus=bus,
                builder=self._builder,
                executor_for=self._executor_for,
                settings=ActiveSettings(
                    cancel_timeout=settings.cancel_timeout, max_attempts=settings.max_attempts
                ),
                on_commit=on_commit,
                deps=deps,
                transient=transient,
            )
        )
        service = A2AService(
            storage=storage,
            broker=broker,
            bus=bus,
            builder=self._builder,
            cards_for=self._cards_for,
            on_commit=on_commit,
            transient=transient,
            on_push_config=expect_push,
            settings=ServiceSettings(
                deduplicate=settings.deduplicate,
                deduplication_window=settings.deduplication_window,
                operation_metadata=settings.operation_metadata,
                allow_private_webhooks=settings.allow_private_webhooks,
            ),
        )
        gate = Gate(
            card_for=lambda tenant: self._cards_for(tenant).public,
            authenticator=self._authenticator,
            assume_version=settings.assume_version,
        )
        health_servicer = health.aio.HealthServicer()
        self._gate, self._health, self._registry = gate, health_servicer, registry
        server = self._grpc_server(
            A2AServicer(service, gate, self._limits, self._middleware),
            DiscoveryServicer(lambda tenant: self._cards_for(tenant).data, gate, self._limits),
            health_servicer,
        )
        self._cards = publisher.publish(self.address)
        for cards in self._cards.values():
            if cards.public.security_schemes and self._authenticator is None:
                logger.warning(
                    "the card of %s declares security schemes, and the server has no authenticator:"
                    " it takes every call, unless something in front of it checks credentials",
                    cards.public.name,
                )

        # Left in this order: refuse, let turns end, end what is open, close the port.
        stack.push_async_callback(server.stop, 1.0)
        stack.callback(gate.close)
        # Turns that have just ended: their callers get the last events.
        stack.push_async_callback(gate.settled, min(1.0, settings.grace))
        await stack.enter_async_context(WorkerLoop(broker, registry, grace=settings.grace))
        unfinished = await storage.unfinished_operations()
        if begun := sum(operation.attempts > 0 for operation in unfinished):
            logger.warning(
                "an earlier process stopped while agents worked; their messages: %d, which fail or "
                "start again, as each agent's on_interruption says",
                begun,
            )
        for operation in unfinished:
            push.expect(operation.task_id)
            await _submit_again(broker, operation)
        sweeper = asyncio.create_task(self._sweep(storage), name="sweeper")
        stack.push_async_callback(_cancelled, sweeper)
        await server.start()
        stack.callback(gate.drain)
        stack.push_async_callback(health_servicer.enter_graceful_shutdown)
        for name in ("", SERVICE_NAME, DISCOVERY_NAME):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)

    def _grpc_server(
        self,
        servicer: A2AServicer,
        discovery: DiscoveryServicer,
        health_servicer: health.aio.HealthServicer,
    ) -> grpc.aio.Server:
        settings = self.settings
        server = grpc.aio.server(
            options=(
                # Without this a second server on a taken port starts, and calls hang.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
                ("grpc.keepalive_time_ms", _milliseconds(settings.keepalive_time)),
                ("grpc.keepalive_timeout_ms", _milliseconds(settings.keepalive_timeout)),
                ("grpc.keepalive_permit_without_calls", 1),
                (
                    "grpc.http2.min_ping_interval_without_data_ms",
                    _milliseconds(settings.min_ping_interval),
                ),
                (
                    "grpc.http2.min_recv_ping_interval_without_data_ms",
                    _milliseconds(settings.min_ping_interval),
                ),
                ("grpc.max_connection_age_ms", _milliseconds(settings.max_connection_age)),
            )
        )
        server.add_generic_rpc_handlers(
            (
                servicer.handler(),
                discovery.handler(),
                *reflection_handlers(SERVICE_NAME, DISCOVERY_NAME),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self.port = server.add_insecure_port(f"{host}:{settings.port}")
        except RuntimeError as error:
            raise OSError(
                f"can't listen on {host}:{settings.port}: the port is taken or the address is not "
                "this machine's; choose others (--host, --port)"
            ) from error
        return server

    async def _sweep(self, storage: AnyStorage) -> None:
        while True:
            await asyncio.sleep(self.SWEEP_INTERVAL)
            now = time.time()
            try:
                forgotten = await storage.sweep(
                    tasks_before=max(0.0, now - self.settings.retain_tasks),  # infinity: for ever
                    operations_before=now - self.settings.deduplication_window,
                )
            except Exception:
                logger.exception("sweeping failed; it will be tried again")
            else:
                if forgotten:
                    logger.info("forgot %d tasks that ended long ago", forgotten)

    async def serve(self, *, on_started: Callable[[Self], None] | None = None) -> None:
        """Start, serve until SIGTERM or SIGINT, and stop in order; a second signal ends the grace.

        `on_started` is called once the port is bound, in place of a line in the log.
        """
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def on_signal() -> None:
            if stop.is_set() and self._registry is not None:
                self._registry.hurry()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            async with self:
                if on_started is None:
                    logger.info("serving %s", self.address)
                else:
                    on_started(self)
                await stop.wait()
                await self._refuse()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _refuse(self) -> None:
        """Take no new calls, and answer for a moment those that are on their way."""
        active = 0 if self._registry is None else len(self._registry)
        logger.info(
            "stopping; tasks that run: %d, which have %gs to end (a second signal ends them now)",
            active,
            self.settings.grace,
        )
        if self._gate is not None and self._health is not None:
            await self._health.enter_graceful_shutdown()
            self._gate.drain()
            # What gRPC has received and not yet handed over would be CANCELLED when the port
            # closes, which clients do not retry; so it gets its refusal first.
            await asyncio.sleep(min(self.LINGER, self.settings.grace))

    def run(self, *, on_started: Callable[[Self], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, on uvloop where there is one; see `serve`.

        The process is the server's own: cyclic garbage, of which there is little, is looked for
        less often, since every look walks through what the memory store holds.
        """
        gc.set_threshold(*self.GC_THRESHOLD)
        try:
            import uvloop
        except ImportError:
            asyncio.run(self.serve(on_started=on_started))
        else:
            uvloop.run(self.serve(on_started=on_started))


def _milliseconds(seconds: float) -> int:
    return int(min(seconds * 1000, MAX_INT))


async def _submit_again(broker: Broker, operation: Operation) -> None:
    """Submit what an earlier process left; where there is more than fits, wait for the worker."""
    while True:
        try:
            await broker.run_task(TaskSendParams(operation.task_id, operation.id))
        except ResourceExhaustedError as error:
            await asyncio.sleep(error.retry_after or 1.0)
        else:
            return


def _open_storage(storage: AnyStorage | str | None) -> AnyStorage:
    if storage is None or storage == "memory:":
        return InMemoryStorage()
    if isinstance(storage, str):
        if storage.startswith("sqlite"):
            from a2a_grpc.storage.sql import SqlStorage

            return SqlStorage(storage)
        raise ValueError(f"unknown store {storage!r}; use memory: or sqlite:///file.db")
    return storage


def _open_broker(broker: Broker | str | None) -> Broker:
    if broker is None or broker == "memory:":
        return InMemoryBroker()
    if isinstance(broker, str):
        raise ValueError(f"unknown broker {broker!r}; use memory:")
    return broker


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
