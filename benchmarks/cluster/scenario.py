"""The frame of a cluster scenario: its deployments side by side, their rounds interleaved."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import ClassVar

from a2a_grpc import pb
from benchmarks.agent import Plan
from benchmarks.cluster.deployment import Deployment, Ground, Kind, Replica
from benchmarks.cluster.figures import Table
from benchmarks.load import METADATA
from benchmarks.services import PostgreSQL

ROUND_TIMEOUT = 600.0
"""Seconds that one round, or its preparation, may take."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done.

    Attributes:
        quick: less work.
        rounds: how often everything is measured.
        with_sdk: whether a2a-sdk is measured too.
        leases: seconds, those that are tried.
        tasks: how many finished tasks the small database holds, and the large one.
        calls: how many calls a round of the `send` scenario makes; None for the default.
        statistics_delay: seconds after which the counters of PostgreSQL are complete.
    """

    quick: bool = False
    rounds: int = 5
    with_sdk: bool = True
    leases: tuple[float, ...] = (2.0, 5.0, 15.0)
    tasks: tuple[int, int] = (10_000, 1_000_000)
    calls: int | None = None
    statistics_delay: float = PostgreSQL.STATISTICS_DELAY


@dataclass(slots=True)
class Run:
    """A scenario in progress: its deployments, and how to say what goes on."""

    ground: Ground
    settings: Settings
    say: Callable[[str], None]
    table: Table
    failed: set[str] = field(default_factory=set)

    async def interleaved(
        self,
        deployments: Sequence[Deployment],
        measure: Callable[[Deployment], Awaitable[None]],
        *,
        rounds: int | None = None,
    ) -> None:
        """Measure all deployments in turn, round for round; each round begins with another one.

        One that fails is left out from then on.
        """
        count = self.settings.rounds if rounds is None else rounds
        for number in range(count):
            running = [one for one in deployments if one.name not in self.failed]
            first = number % len(running) if running else 0
            for deployment in running[first:] + running[:first]:
                self.say(f"{self.table.name}: round {number + 1} of {count}, {deployment.name}")
                await self.guarded(deployment, measure(deployment))

    async def guarded(self, deployment: Deployment, work: Awaitable[None]) -> None:
        """Do it; a failure belongs to the deployment and not to the run."""
        try:
            async with asyncio.timeout(ROUND_TIMEOUT):
                await work
        except Exception as error:
            self.fail(deployment.kind, error)

    def fail(self, kind: Kind, error: Exception) -> None:
        """A deployment can't go on."""
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        self.failed.add(kind.name)
        self.table.line(kind.name, ours=kind.is_ours).failure = reason
        self.say(f"{self.table.name}: {kind.name} failed: {reason}\n")

    async def deployed(
        self,
        stack: AsyncExitStack,
        kinds: Sequence[Kind],
        plan: Plan,
        *,
        lease: float | None = None,
        restarts: bool = False,
    ) -> list[Deployment]:
        """Those of the kinds that start."""
        deployments = []
        for kind in kinds:
            if kind.own_environment and not self.settings.with_sdk:
                continue
            self.say(f"{self.table.name}: starting {kind.name}")
            deployment = Deployment(kind, plan, self.ground, lease=lease, restarts=restarts)
            try:
                await stack.enter_async_context(deployment)
            except (OSError, RuntimeError, TimeoutError) as error:
                self.fail(kind, error)
            else:
                deployments.append(deployment)
        return deployments


class ClusterScenario(ABC):
    """One question about a cluster."""

    name: ClassVar[str]

    @abstractmethod
    def table(self, settings: Settings) -> Table:
        """The empty table."""

    @abstractmethod
    async def run(self, run: Run) -> None:
        """Fill it."""


async def start_task(deployment: Deployment, replica: Replica) -> str:
    """Send a message to a replica and come back at once; returns the task's id.

    The task runs there, or on another replica: `Deployment.runs` tells.
    """
    (request,) = deployment.requests.make(1, return_immediately=True)
    answer = await replica.client.send_message(request, metadata=METADATA)
    return pb.SendMessageResponse.FromString(answer).task.id
