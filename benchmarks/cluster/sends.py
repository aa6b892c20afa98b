"""What a blocking SendMessage costs: CPU of servers, database and NATS, and transactions."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from a2a_grpc import pb
from benchmarks.agent import Plan
from benchmarks.cluster.deployment import Deployment, Kind, own, sdk
from benchmarks.cluster.figures import Column, Line, Table, Target, percentile
from benchmarks.cluster.scenario import ClusterScenario, Run, Settings
from benchmarks.delivery import Faults, check_task
from benchmarks.load import Answers, call_all

RATE, MEDIAN, P99 = "calls/s", "p50 ms", "p99 ms"
SERVERS, DATABASE, NATS = "servers µs", "PG µs", "NATS µs"
ALL, WRITING, IDLE = "tx/task", "writing tx/task", "idle tx/s"
MEMORY = Kind("a2a-grpc memory", store="memory")
SQLITE = Kind("a2a-grpc sqlite", store="sqlite")
SDK_MEMORY = Kind("a2a-sdk memory", "benchmarks.sdk_server", 1, "memory", own_environment=True)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a deployment has done and used so far.

    Attributes:
        at: seconds.
        servers, database, nats: seconds of CPU time.
        ended, writing: transactions; see `services.Transactions`.
    """

    at: float
    servers: float
    database: float
    nats: float
    ended: int
    writing: int

    def rate(self, before: Counters, value: Callable[[Counters], float]) -> float:
        """Growth per second since `before`."""
        return (value(self) - value(before)) / (self.at - before.at)


async def counters(deployment: Deployment) -> Counters:
    """All of them, now."""
    usage = await deployment.usage()
    database, ended, writing, nats = 0.0, 0, 0, 0.0
    if deployment.database:
        postgres = deployment.postgres
        done = await postgres.transactions(deployment.database)
        database, ended, writing = postgres.cpu(), done.ended, done.writing
    if deployment.nats is not None:
        nats = deployment.nats.cpu()
    return Counters(time.perf_counter(), usage.cpu, database, nats, ended, writing)


class Sends(ClusterScenario):
    """32 calls at a time, over all replicas in turn.

    What idle servers do meanwhile is measured before, and taken off: leases, polling. CPU and
    writing transactions are known at once; all transactions only some ten seconds later, when the
    connections of the pools have told them, so they are read once for all rounds together, and what
    idle servers do is taken off for the time between the loads only.
    """

    name = "send"
    CONCURRENCY = 32
    SETTLE = 0.5
    """Seconds after the load: what servers do after answering counts."""

    def table(self, settings: Settings) -> Table:
        return Table(
            self.name,
            f"{self._calls(settings):,} blocking SendMessage, 3 events, {self.CONCURRENCY} at a "
            "time; CPU per call",
            [
                Column(RATE, 0),
                Column(MEDIAN),
                Column(P99),
                Column(SERVERS, 0),
                Column(DATABASE, 0),
                Column(NATS, 0),
                Column(ALL),
                Column(WRITING),
                Column(IDLE, 1),
            ],
            [
                Target(own(count).name, ALL, 2.0, f"database transactions per echo task, x{count}")
                for count in (1, 3)
            ],
        )

    @staticmethod
    def _calls(settings: Settings) -> int:
        return settings.calls or (400 if settings.quick else 2_000)

    async def run(self, run: Run) -> None:
        kinds = [MEMORY, SQLITE, own(1), own(3), SDK_MEMORY, sdk(1), sdk(3)]
        calls, delay = self._calls(run.settings), run.settings.statistics_delay
        idle: dict[str, tuple[Counters, Counters]] = {}
        loaded: Counter[str] = Counter()  # seconds

        async def warm_up(deployment: Deployment) -> None:
            line = run.table.line(deployment.name, ours=deployment.kind.is_ours)
            answers, _ = await self._load(deployment, max(calls // 4, 2 * self.CONCURRENCY))
            line.faults.add(_check(answers, deployment.plan))

        async def measure(deployment: Deployment) -> None:
            before, after = idle[deployment.name]
            line = run.table.line(deployment.name, ours=deployment.kind.is_ours)
            loaded[deployment.name] += await self._round(deployment, line, calls, before, after)

        async with AsyncExitStack() as stack:
            deployments = await run.deployed(stack, kinds, Plan())
            await run.interleaved(deployments, warm_up, rounds=1)
            deployments = [one for one in deployments if one.name not in run.failed]
            run.say(f"{self.name}: waiting for the database's statistics")
            await asyncio.sleep(delay)
            resting = {one.name: await counters(one) for one in deployments}
            run.say(f"{self.name}: measuring what idle servers do")
            await asyncio.sleep(delay)
            for one in deployments:
                idle[one.name] = (resting[one.name], await counters(one))
            await run.interleaved(deployments, measure)
            run.say(f"{self.name}: waiting for the database's statistics")
            await asyncio.sleep(delay)
            for one in deployments:
                if one.database and one.name not in run.failed:
                    line, end = run.table.lines[one.name], await counters(one)
                    _count_transactions(line, idle[one.name], end, calls, loaded[one.name])

    async def _round(
        self, deployment: Deployment, line: Line, calls: int, resting: Counters, rested: Counters
    ) -> float:
        """Add to the line; returns the seconds of the load."""
        before = await counters(deployment)
        answers, wall = await self._load(deployment, calls)
        await asyncio.sleep(self.SETTLE)
        after = await counters(deployment)
        line.faults.add(_check(answers, deployment.plan))
        done = len(answers.data)
        if not done:
            return wall

        def per_call(value: Callable[[Counters], float]) -> float:
            idle = rested.rate(resting, value) * (after.at - before.at)
            return (value(after) - value(before) - idle) / done

        found = {
            RATE: done / wall,
            MEDIAN: statistics.median(answers.latencies) * 1e3,
            P99: percentile(answers.latencies, 0.99) * 1e3,
            SERVERS: per_call(lambda one: one.servers) * 1e6,
        }
        if deployment.database:
            found[DATABASE] = per_call(lambda one: one.database) * 1e6
            found[WRITING] = per_call(lambda one: one.writing)
        if deployment.nats is not None:
            found[NATS] = per_call(lambda one: one.nats) * 1e6
        line.rounds.append(found)
        return wall

    async def _load(self, deployment: Deployment, calls: int) -> tuple[Answers, float]:
        clients = deployment.clients()
        requests = deployment.requests.make(calls)
        shares = len(deployment.replicas)
        begun = time.perf_counter()
        # Each replica gets its share of the calls, and of the concurrency.
        parts = await asyncio.gather(
            *(
                call_all(
                    next(clients).send_message,
                    requests[number::shares],
                    self.CONCURRENCY // shares + (number < self.CONCURRENCY % shares),
                )
                for number in range(shares)
            )
        )
        wall = time.perf_counter() - begun
        answers = Answers()
        for part in parts:
            answers.data += part.data
            answers.latencies += part.latencies
            answers.errors.update(part.errors)
        return answers, wall


def _count_transactions(
    line: Line, idle: tuple[Counters, Counters], end: Counters, calls: int, loaded: float
) -> None:
    """Those of all rounds, less what idle servers do in the time between."""
    resting, rested = idle
    rate = rested.rate(resting, lambda one: one.ended)
    ended = end.ended - rested.ended - rate * (end.at - rested.at - loaded)
    tasks = calls * len(line.rounds)
    line.rounds = [{**one, ALL: ended / tasks, IDLE: rate} for one in line.rounds]


def _check(answers: Answers, plan: Plan) -> Faults:
    """The faults: each call has a Task of its own, complete and in order."""
    faults = Faults(errors=answers.errors.copy())
    ids = set()
    for data in answers.data:
        response = pb.SendMessageResponse.FromString(data)
        if not response.HasField("task"):
            faults.errors["an answer without a Task"] += 1
            continue
        ids.add(response.task.id)
        faults.add(check_task(response.task, plan))
    if len(ids) != len(answers.data):
        faults.errors["two calls got the same Task"] += 1
    return faults
