"""What is measured. Each scenario says what one unit of work is and checks all that it got."""

from __future__ import annotations

import asyncio
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from a2a_grpc import pb
from benchmarks.agent import Plan
from benchmarks.delivery import Faults, check_stream, check_task
from benchmarks.load import Answers, Reader, call_all
from benchmarks.target import BARE, Target

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        units: how many calls or events.
        cpu: seconds of CPU time of the server process.
        wall: seconds from the first request to the last answer.
        client: seconds of these in which the load generator's event loop was busy.
        latency: seconds, the median of what the scenario calls its latency.
        payload: bytes that the client got.
    """

    units: int
    cpu: float
    wall: float
    client: float
    latency: float
    payload: int


class Meter:
    """What a block of load cost; see `metered`."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self._client = time.thread_time()
        self._wall = 0.0
        self.cpu = 0.0

    def stop(self) -> None:
        """The last answer is there."""
        self._wall = time.perf_counter() - self.begun
        self._client = time.thread_time() - self._client

    def sample(self, data: Iterable[bytes], latencies: Iterable[float] | None = None) -> Sample:
        """The measurement; the latency is that of the whole block unless there are others."""
        sizes = [len(one) for one in data]
        latency = self._wall if latencies is None else median_or_zero(latencies)
        return Sample(len(sizes), self.cpu, self._wall, self._client, latency, sum(sizes))


@asynccontextmanager
async def metered(target: Target) -> AsyncIterator[Meter]:
    """Measure the block; the server comes to rest before and after it, outside of the wall time."""
    before = await target.usage()
    meter = Meter()
    yield meter
    meter.stop()
    meter.cpu = (await target.usage()).cpu - before.cpu


def median_or_zero(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    known = list(values)
    return statistics.median(known) if known else 0.0


@dataclass(slots=True)
class Measured:
    """The samples of one round, by row, and the faults."""

    samples: dict[str, Sample] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)


class Scenario(ABC):
    """One kind of load on one server at a time.

    A server process lives through all rounds of a scenario, and nobody else's. A scenario has one
    stage or several; before the rounds of each stage, `prepare` is called once for each server.
    """

    name: ClassVar[str]
    title: str
    unit: ClassVar[str]
    latency: ClassVar[str]
    plan: Plan
    stages: int = 1
    most_rounds: int = 99

    @abstractmethod
    async def prepare(self, stage: int, target: Target) -> Faults:
        """Warm the server up, and put there what the stage needs."""

    @abstractmethod
    async def measure(self, stage: int, target: Target) -> Measured:
        """One round."""


class BlockingSend(Scenario):
    """SendMessage that waits for the end of the task: Task, one artifact, COMPLETED."""

    name = "send"
    unit = "call"
    latency = "of a call"

    def __init__(self, quick: bool) -> None:
        self._calls, self._concurrency = 600 if quick else 3_000, 32
        self.title = f"blocking SendMessage, 3 events, {self._concurrency} at a time"
        self.plan = Plan()

    async def prepare(self, stage: int, target: Target) -> Faults:
        return (await self._round(target, self._calls // 4)).faults

    async def measure(self, stage: int, target: Target) -> Measured:
        return await self._round(target, self._calls)

    async def _round(self, target: Target, count: int) -> Measured:
        requests = target.requests.make(count)
        async with metered(target) as meter:
            answers = await call_all(target.client.send_message, requests, self._concurrency)
        sample = meter.sample(answers.data, answers.latencies)
        return Measured({"": sample}, check_sent(answers, self.plan, target))


def check_sent(answers: Answers, plan: Plan, target: Target) -> Faults:
    """The faults of SendMessage calls: each has a Task of its own, complete and in order."""
    faults = Faults(errors=answers.errors.copy())
    ids = set()
    for data in answers.data:
        response = pb.SendMessageResponse.FromString(data)
        if not response.HasField("task"):
            faults.errors["an answer without a Task"] += 1
            continue
        ids.add(response.task.id)
        faults.add(check_task(response.task, plan))
    if target.name != BARE and len(ids) != len(answers.data):
        faults.errors["two calls got the same Task"] += 1
    return faults


class Streams(Scenario):
    """SendStreamingMessage, read to the end, by one client or several at a time."""

    name = "stream"
    unit = "event"
    latency = "to the first event"

    def __init__(self, title: str, plan: Plan, *, streams: int = 1) -> None:
        self.title = title
        self.plan = plan
        self._streams = streams

    async def prepare(self, stage: int, target: Target) -> Faults:
        return (await self._round(target, min(self._streams, 4))).faults

    async def measure(self, stage: int, target: Target) -> Measured:
        return await self._round(target, self._streams)

    async def _round(self, target: Target, count: int) -> Measured:
        readers = [
            Reader(target.client.send_streaming_message, request)
            for request in target.requests.make(count)
        ]
        async with metered(target) as meter:
            await asyncio.gather(*(reader.read() for reader in readers))
        sample = meter.sample(
            (data for reader in readers for data in reader.events),
            (reader.first - reader.begun for reader in readers if reader.events),
        )
        return Measured({"": sample}, check_readers(readers, self.plan))


def check_readers(readers: list[Reader], plan: Plan) -> Faults:
    """The faults of streams that should each be complete."""
    faults = Faults()
    for reader in readers:
        faults.add(check_stream(reader.events, plan, reader.error))
    return faults


class OneStream(Streams):
    """One stream of many chunks; the agent awaits each chunk."""

    name = "stream"

    def __init__(self, quick: bool) -> None:
        chunks = 1_000 if quick else 5_000
        super().__init__(f"one stream of {chunks:,} chunks of 64 B", Plan((chunks,), pace=0.0))


class BurstStream(Streams):
    """One stream of many chunks that the agent publishes without a pause."""

    name = "burst"

    def __init__(self, quick: bool) -> None:
        chunks = 1_000 if quick else 5_000
        super().__init__(
            f"one stream of {chunks:,} chunks of 64 B, published without a pause", Plan((chunks,))
        )


class ManyStreams(Streams):
    """Many streams at a time; the agents await each chunk."""

    name = "streams"

    def __init__(self, quick: bool) -> None:
        chunks = 50 if quick else 200
        super().__init__(
            f"64 streams of {chunks} chunks of 64 B", Plan((chunks,), pace=0.0), streams=64
        )


class GrowingTask(Scenario):
    """One task whose artifact grows: what an event costs at its beginning and at its end."""

    name = "grow"
    unit = "event"
    latency = "of the whole part"

    def __init__(self, quick: bool) -> None:
        total, part = (2_000, 250) if quick else (8_000, 1_000)
        self.title = f"one task of {total:,} artifact chunks"
        self.plan = Plan((part, total - 2 * part, part), pace=0.0)
        self.rows = (f"first {part:,}", f"last {part:,}")
        self.most_rounds = 3

    async def prepare(self, stage: int, target: Target) -> Faults:
        return Faults()

    async def measure(self, stage: int, target: Target) -> Measured:
        reader = Reader(target.client.send_streaming_message, target.requests.make(1)[0])
        first, middle, _ = self.plan.segments
        head, body = reader.reached(1 + first), reader.reached(1 + first + middle)
        async with metered(target) as at_first:
            reading = asyncio.create_task(reader.read())
            await head.wait()
        target.open_gate()
        await body.wait()
        known = len(reader.events)
        async with metered(target) as at_last:
            target.open_gate()
            await reading
        return Measured(
            {
                self.rows[0]: at_first.sample(reader.events[: 1 + first]),
                self.rows[1]: at_last.sample(reader.events[known:]),
            },
            check_readers([reader], self.plan),
        )


class ListAmongMany(Scenario):
    """ListTasks of a page among many tasks, and among four times as many."""

    name = "list"
    unit = "call"
    latency = "of a call"

    def __init__(self, quick: bool) -> None:
        self._totals = (500, 2_000) if quick else (5_000, 20_000)
        self._calls = 20 if quick else 100
        self.stages = len(self._totals)
        self.title = f"ListTasks, {PAGE_SIZE} of many tasks, one call at a time"
        self.plan = Plan()
        self.most_rounds = 5

    async def prepare(self, stage: int, target: Target) -> Faults:
        faults = Faults()
        if target.name != BARE:
            known = self._totals[stage - 1] if stage else 0
            answers = await call_all(
                target.client.send_message,
                target.requests.make(self._totals[stage] - known),
                32,
            )
            faults.add(check_sent(answers, self.plan, target))
        await call_all(target.client.list_tasks, [self._request()] * 5, 1)
        return faults

    @staticmethod
    def _request() -> bytes:
        return pb.ListTasksRequest(page_size=PAGE_SIZE).SerializeToString()

    async def measure(self, stage: int, target: Target) -> Measured:
        requests = [self._request()] * self._calls
        async with metered(target) as meter:
            answers = await call_all(target.client.list_tasks, requests, 1)
        total = self._totals[stage]
        sample = meter.sample(answers.data, answers.latencies)
        return Measured({f"of {total:,}": sample}, self._check(answers, total, target))

    @staticmethod
    def _check(answers: Answers, total: int, target: Target) -> Faults:
        faults = Faults(errors=answers.errors.copy())
        for data in answers.data:
            page = pb.ListTasksResponse.FromString(data)
            times = [task.status.timestamp.ToNanoseconds() for task in page.tasks]
            if len(page.tasks) != PAGE_SIZE:
                faults.errors[f"a page of {len(page.tasks)} tasks"] += 1
            if times != sorted(times, reverse=True):
                faults.errors["a page that is not sorted by time"] += 1
            if target.name != BARE:
                if page.total_size != total:
                    faults.errors[f"total_size {page.total_size}, not {total}"] += 1
                if len({task.id for task in page.tasks}) != len(page.tasks):
                    faults.errors["a task twice on a page"] += 1
        return faults


class ReadTask(Scenario):
    """GetTask of a task with an artifact of many chunks."""

    name = "get"
    unit = "call"
    latency = "of a call"

    def __init__(self, quick: bool) -> None:
        self._calls, self._concurrency = 600 if quick else 3_000, 64
        self.plan = Plan((50,))
        self.title = f"GetTask with an artifact of 50 chunks, {self._concurrency} at a time"
        self._ids: dict[str, str] = {}

    async def prepare(self, stage: int, target: Target) -> Faults:
        answers = await call_all(target.client.send_message, target.requests.make(1), 1)
        task = pb.SendMessageResponse.FromString(answers.data[0]).task
        self._ids[target.name] = task.id
        faults = (await self._round(target, self._calls // 4)).faults
        faults.add(check_sent(answers, self.plan, target))
        return faults

    async def measure(self, stage: int, target: Target) -> Measured:
        return await self._round(target, self._calls)

    async def _round(self, target: Target, count: int) -> Measured:
        request = pb.GetTaskRequest(id=self._ids[target.name]).SerializeToString()
        async with metered(target) as meter:
            answers = await call_all(target.client.get_task, [request] * count, self._concurrency)
        faults = Faults(errors=answers.errors.copy())
        for data in answers.data:
            faults.add(check_task(pb.Task.FromString(data), self.plan))
        return Measured({"": meter.sample(answers.data, answers.latencies)}, faults)


class ManySubscribers(Scenario):
    """One task that many follow, one of them far too slowly, while its agent does not pause."""

    name = "subscribers"
    pace: ClassVar[float | None] = None
    unit = "event"
    latency = "until a fast subscriber has all"

    CONNECTIONS = 4
    PAUSE = 0.05
    """Seconds for which the slow subscriber stops after each event, until the others are done."""

    def __init__(self, quick: bool) -> None:
        self._subscribers, chunks = (20, 500) if quick else (100, 2_000)
        self.title = f"{self._subscribers} subscribers, one very slow, {chunks:,} chunks " + (
            "published without a pause" if self.pace is None else f"every {self.pace * 1e3:g} ms"
        )
        self.plan = Plan((0, chunks), pace=self.pace)
        self.most_rounds = 3

    async def prepare(self, stage: int, target: Target) -> Faults:
        return Faults()

    async def measure(self, stage: int, target: Target) -> Measured:
        answers = await call_all(
            target.client.send_message, target.requests.make(1, return_immediately=True), 1
        )
        task = pb.SendMessageResponse.FromString(answers.data[0]).task
        request = pb.SubscribeToTaskRequest(id=task.id).SerializeToString()
        clients = [target.connect() for _ in range(self.CONNECTIONS)]
        fast = [
            Reader(clients[number % self.CONNECTIONS].subscribe_to_task, request)
            for number in range(self._subscribers - 1)
        ]
        slow = Reader(target.connect(narrow=True).subscribe_to_task, request, pause=self.PAUSE)
        readers = [*fast, slow]
        there = [reader.reached(1) for reader in readers]
        async with metered(target) as meter:
            reading = [asyncio.create_task(reader.read()) for reader in readers]
            for event in there:
                await event.wait()
            target.open_gate()
            await asyncio.gather(*reading[:-1])
            slow.hurry.set()
            await reading[-1]
        sample = meter.sample(
            (data for reader in readers for data in reader.events),
            (reader.ended - meter.begun for reader in fast),
        )
        return Measured({"": sample}, check_readers(readers, self.plan))


class PacedSubscribers(ManySubscribers):
    """The same with an agent that leaves the server time for each chunk."""

    name = "subscribers-paced"
    pace = 0.005


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        BlockingSend,
        OneStream,
        BurstStream,
        ManyStreams,
        GrowingTask,
        ListAmongMany,
        ManySubscribers,
        PacedSubscribers,
        ReadTask,
    )
}
