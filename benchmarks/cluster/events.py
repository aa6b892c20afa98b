"""How long an event takes from the agent on one replica to a subscriber on another."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from a2a_grpc import pb
from benchmarks.agent import Plan, stamp_of
from benchmarks.cluster.deployment import Deployment, Replica, own, sdk
from benchmarks.cluster.figures import Column, Table, Target, percentile
from benchmarks.cluster.scenario import ClusterScenario, Run, Settings, start_task
from benchmarks.delivery import check_stream
from benchmarks.load import Reader

MEDIAN, P99 = "median ms", "p99 ms"
COMMIT = "a commit in PostgreSQL, nothing else"
FROM_A_TO_B, ON_A = "from A to B", "on A itself"


class Events(ClusterScenario):
    """The agent writes the time into each chunk just before it publishes it."""

    name = "events"
    STREAMS = (1, 8)

    def table(self, settings: Settings) -> Table:
        chunks, pace = self._extent(settings)
        line = _label(own(2).name, FROM_A_TO_B, 1)
        return Table(
            self.name,
            f"{chunks} chunks of 64 B, one every {pace * 1e3:g} ms, from the agent to a subscriber",
            [Column(MEDIAN), Column(P99), Column("max ms", fold=max), Column("events", 0, sum)],
            [
                Target(line, MEDIAN, 5.0, "median from A to a subscriber on B, ms"),
                Target(line, P99, 25.0, "p99 from A to a subscriber on B, ms"),
            ],
        )

    @staticmethod
    def _extent(settings: Settings) -> tuple[int, float]:
        return (100 if settings.quick else 400), 0.01

    async def run(self, run: Run) -> None:
        chunks, pace = self._extent(run.settings)
        plan = Plan((0, chunks), pace=pace, stamped=True, noted=True)

        async def measure(deployment: Deployment) -> None:
            await self._commits(run, deployment, chunks, pace)
            for streams in self.STREAMS:
                await self._round(run, deployment, streams)

        async with AsyncExitStack() as stack:
            deployments = await run.deployed(stack, [own(2), sdk(2)], plan)
            await run.interleaved(deployments, measure)

    @staticmethod
    async def _commits(run: Run, deployment: Deployment, count: int, pace: float) -> None:
        """What PostgreSQL alone takes at this pace to store as much: the limit for everybody."""
        took = []
        async with deployment.postgres.connected() as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS commits (payload bytea)")
            for _ in range(count):
                begun = time.perf_counter()
                await connection.execute("INSERT INTO commits VALUES ($1)", bytes(64))
                took.append((time.perf_counter() - begun) * 1e3)
                await asyncio.sleep(pace)
        run.table.line(COMMIT, ours=False).rounds.append(_figures(took))

    async def _round(self, run: Run, deployment: Deployment, streams: int) -> None:
        near: list[Reader] = []
        far: list[Reader] = []
        for number in range(streams):
            receiver = deployment.replicas[number % len(deployment.replicas)]
            task_id = await start_task(deployment, receiver)
            runner = await deployment.runs(task_id)
            far.append(_subscriber(deployment.other(runner), task_id))
            near.append(_subscriber(runner, task_id))
        there = [reader.reached(1) for reader in near + far]
        reading = [asyncio.create_task(reader.read()) for reader in near + far]
        for event in there:
            await event.wait()
        deployment.open_gate()
        await asyncio.gather(*reading)
        for place, readers in ((FROM_A_TO_B, far), (ON_A, near)):
            line = run.table.line(
                _label(deployment.name, place, streams), ours=deployment.kind.is_ours
            )
            delays = [delay for reader in readers for delay in _delays(reader)]
            for reader in readers:
                line.faults.add(check_stream(reader.events, deployment.plan, reader.error))
            if delays:
                line.rounds.append(_figures(delays))


def _figures(delays: list[float]) -> dict[str, float]:
    return {
        MEDIAN: statistics.median(delays),
        P99: percentile(delays, 0.99),
        "max ms": max(delays),
        "events": len(delays),
    }


def _label(name: str, place: str, streams: int) -> str:
    return f"{name}, {place}, {streams} task{'s' if streams > 1 else ''}"


def _subscriber(replica: Replica, task_id: str) -> Reader:
    request = pb.SubscribeToTaskRequest(id=task_id).SerializeToString()
    return Reader(replica.client.subscribe_to_task, request, timed=True)


def _delays(reader: Reader) -> list[float]:
    """Milliseconds, of every chunk."""
    delays = []
    for data, arrival in zip(reader.events, reader.arrivals, strict=True):
        event = pb.StreamResponse.FromString(data)
        for part in event.artifact_update.artifact.parts:
            _, published = stamp_of(part.text)
            delays.append((arrival - published) / 1e6)
    return delays
