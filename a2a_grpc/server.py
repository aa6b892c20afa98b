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

from grpc_health.v1 import health, health_pb2_grpc

from a2a_grpc.active.agent_turn import ActiveParts, ActiveSettings
from a2a_grpc.active.lease_keeper import Lease, LeaseKeeper
from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.active.worker_loop import WorkerLoop
from a2a_grpc.admission import ServiceSettings
from a2a_grpc.agent.code import mentions
from a2a_grpc.agent.dependencies import check_dependencies, open_dependencies
from a2a_grpc.agent.executor import AgentExecutor
from a2a_grpc.agent.function import as_executor
from a2a_grpc.agent.request_context import RequestContextBuilder, SimpleRequestContextBuilder
from a2a_grpc.auth.base import Authenticator
from a2a_grpc.backends import bus_for, check_broker, is_in_memory, open_broker, open_storage
from a2a_grpc.broker.base import Broker
from a2a_grpc.bus.base import Committed, EventBus
from a2a_grpc.bus.catch_up import CatchUp
from a2a_grpc.cards.publishing import CardPublisher, CardSource, ExtendedCard, PublishedCards
from a2a_grpc.cards.signing import CardSigner
from a2a_grpc.config import ServerSettings
from a2a_grpc.errors import InvalidParamsError
from a2a_grpc.health import BROKER, BUS, STORAGE, Readiness
from a2a_grpc.hooks import HookRunner, LifecycleHooks
from a2a_grpc.listener import bind, grpc_server
from a2a_grpc.middleware import Middleware, checked
from a2a_grpc.push.delivery import PushDelivery, PushSettings
from a2a_grpc.recovery import Resubmitter
from a2a_grpc.service import A2AService
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.transient import TransientContexts
from a2a_grpc.wire.call import Gate
from a2a_grpc.wire.discovery import DISCOVERY_NAME, DiscoveryServicer
from a2a_grpc.wire.reflection import reflection_handlers
from a2a_grpc.wire.servicer import SERVICE_NAME, A2AServicer
from a2a_grpc.wire.validation import ValidationLimits

logger = logging.getLogger(__name__)

T = TypeVar("T")

PUSH_POLL = 30.0
SHARED_PUSH_POLL = 1.0
"""Seconds between looks for push notifications that no commit of this process announced."""


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
        storage: a Storage, or its URL: `memory:`, `sqlite:///file.db`, `postgresql://...`. The
            server opens and closes it. In memory unless given.
        broker: a Broker, or its URL: `memory:`, `nats://host:4222`.
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

    Entering raises OSError if the port is taken, CardError if a card can't be read or is wrong, and
    ValueError for parts that do not go together.
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
        self._readiness: Readiness | None = None
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
        storage = open_storage(self.storage, settings)
        check_broker(self.broker)
        self._check_role(storage)
        # First in, last out: agents use them until the end.
        deps = await open_dependencies(self._deps, stack)
        await stack.enter_async_context(storage)
        broker = await stack.enter_async_context(
            open_broker(self.broker, settings, storage.deployment)
        )
        bus = await stack.enter_async_context(self._bus or bus_for(broker))
        if bus.loses:
            await stack.enter_async_context(CatchUp(storage, bus))
        push = await stack.enter_async_context(
            PushDelivery(
                storage,
                PushSettings(
                    allow_private=settings.allow_private_webhooks,
                    poll_interval=PUSH_POLL if storage.lease is None else SHARED_PUSH_POLL,
                ),
            )
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

        transient, lease = TransientContexts(), Lease()
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
                on_push_config=push.expect,
                deps=deps,
                transient=transient,
                lease=lease,
                bury=broker.bury,
            )
        )
        worker_loop = WorkerLoop(
            broker, registry, lease, grace=settings.grace, shared=storage.lease is not None
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
                runs_agents=settings.role != "frontend",
            ),
        )
        gate = Gate(
            card_for=lambda tenant: self._cards_for(tenant).public,
            authenticator=self._authenticator,
            assume_version=settings.assume_version,
        )
        self._gate, self._registry = gate, registry
        handlers = []
        services = [""]
        if settings.role != "worker":
            services += SERVICE_NAME, DISCOVERY_NAME
            discovery = DiscoveryServicer(
                lambda tenant: self._cards_for(tenant).data, gate, self._limits
            )
            handlers = [
                A2AServicer(service, gate, self._limits, self._middleware).handler(),
                discovery.handler(),
                *reflection_handlers(SERVICE_NAME, DISCOVERY_NAME),
            ]
        server = grpc_server(settings, handlers)
        health_servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        self.port = bind(server, settings)
        self._cards = publisher.publish(self.address)
        self._warn(storage)

        # Left in this order: refuse, let turns end, end what is open, close the port.
        stack.push_async_callback(server.stop, 1.0)
        stack.callback(gate.close)
        # Turns that have just ended: their callers get the last events.
        stack.push_async_callback(gate.settled, min(1.0, settings.grace))
        if storage.lease is not None:
            # Calls whose tasks run elsewhere.
            stack.push_async_callback(gate.graced, settings.grace)
        # Also a front end has one: what it submits is its own as long as it lives.
        keeper = LeaseKeeper(
            storage, lease, on_lapse=worker_loop.lapse, on_cancel=worker_loop.cancel_task
        )
        await stack.enter_async_context(keeper)
        if settings.role != "frontend":
            await stack.enter_async_context(worker_loop)
        await stack.enter_async_context(Resubmitter(storage, broker, on_found=push.expect))
        sweeper = asyncio.create_task(self._sweep(storage), name="sweeper")
        stack.push_async_callback(_cancelled, sweeper)
        await server.start()
        stack.callback(gate.drain)
        checks = {STORAGE: storage.check, BROKER: broker.check, BUS: bus.check}
        self._readiness = await stack.enter_async_context(
            Readiness(health_servicer, services, checks)
        )

    def _check_role(self, storage: AnyStorage) -> None:
        """Raises ValueError for parts that do not go together."""
        role, own_broker = self.settings.role, is_in_memory(self.broker)
        if storage.lease is None and not own_broker:
            raise ValueError(
                "a broker between processes needs a store that they share; use postgresql://"
            )
        if role == "all":
            return
        if storage.lease is None or own_broker:
            raise ValueError(
                f"the role {role} needs a store and a broker that other processes share; use "
                "postgresql:// and nats://"
            )
        for one in self._middleware if role == "frontend" else ():
            if mentions(type(one), "request_context", below=Middleware):
                raise ValueError(
                    f"{type(one).__name__} uses request_context, which never leaves its process, "
                    "and a frontend runs no agent; use role all"
                )

    def _warn(self, storage: AnyStorage) -> None:
        if storage.lease is not None and is_in_memory(self.broker):
            logger.warning(
                "the store can be shared and the broker can not: run one process only, or give "
                "all of them a nats:// broker"
            )
        for cards in self._cards.values():
            if cards.public.security_schemes and self._authenticator is None:
                logger.warning(
                    "the card of %s declares security schemes, and the server has no authenticator:"
                    " it takes every call, unless something in front of it checks credentials",
                    cards.public.name,
                )

    async def _sweep(self, storage: AnyStorage) -> None:
        while True:
            await asyncio.sleep(self.SWEEP_INTERVAL)
            now = time.time()
            try:
                forgotten = await storage.sweep(
                    tasks_before=max(0.0, now - self.settings.retain_tasks),  # infinity: for ever
                    operations_before=now - self.settings.deduplication_window,
                    logs_before=max(0.0, now - self.settings.compact_after),
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
            if stop.is_set() and self._registry is not None and self._gate is not None:
                self._registry.hurry()
                self._gate.hurry()
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
        if self._gate is not None and self._readiness is not None:
            await self._readiness.drain()
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


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
