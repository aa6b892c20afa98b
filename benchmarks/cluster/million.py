"""Whether reading gets slower with a hundred times as many finished tasks in the database."""

from __future__ import annotations

import base64
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from a2a_grpc import pb
from benchmarks.agent import Plan
from benchmarks.cluster.deployment import Deployment, own
from benchmarks.cluster.figures import Column, Line, Table, Target, percentile
from benchmarks.cluster.loading import Loaded, load
from benchmarks.cluster.scenario import ClusterScenario, Run, Settings
from benchmarks.load import METADATA, Answers, Client, call_all

PAGE_SIZE = 50
SMALL, LARGE, RATIO, P99 = "small p50 ms", "large p50 ms", "ratio", "large p99 ms"
FAILED, COMPLETED = pb.TaskState.TASK_STATE_FAILED, pb.TaskState.TASK_STATE_COMPLETED
MOST = 2.0


@dataclass(frozen=True, slots=True)
class Read:
    """A kind of call.

    Attributes:
        label: of its line.
        requests: requests for a database with these tasks, without end.
        total: the total_size that a page must have; None for GetTask.
    """

    label: str
    requests: Callable[[Loaded], Iterator[pb.ListTasksRequest | pb.GetTaskRequest]]
    total: Callable[[Loaded], int] | None = None


def _page(**filters: object) -> pb.ListTasksRequest:
    return pb.ListTasksRequest(page_size=PAGE_SIZE, **filters)


def _since(loaded: Loaded, share: float) -> pb.ListTasksRequest:
    request = _page()
    at = loaded.times[int(loaded.count * (1 - share))]
    # Only microseconds fit into everybody's clock; the first one that is not before it.
    request.status_timestamp_after.FromNanoseconds(at)
    return request


def _part(share: float) -> Read:
    return Read(
        f"ListTasks, of the newest {share * 100:g} %",
        lambda loaded: itertools.repeat(_since(loaded, share)),
        lambda loaded: loaded.count - int(loaded.count * (1 - share)),
    )


MIDDLE = "ListTasks, a page in the middle"
READS = (
    Read(
        "GetTask", lambda loaded: (pb.GetTaskRequest(id=one) for one in itertools.cycle(loaded.ids))
    ),
    Read(
        "ListTasks, first page",
        lambda loaded: itertools.repeat(_page()),
        lambda loaded: loaded.count,
    ),
    Read(MIDDLE, lambda loaded: itertools.repeat(_page()), lambda loaded: loaded.count),
    Read(
        "ListTasks, FAILED (6 %)",
        lambda loaded: itertools.repeat(_page(status=FAILED)),
        lambda loaded: loaded.states[FAILED],
    ),
    Read(
        "ListTasks, COMPLETED (90 %)",
        lambda loaded: itertools.repeat(_page(status=COMPLETED)),
        lambda loaded: loaded.states[COMPLETED],
    ),
    Read(
        "ListTasks, a context of 4",
        lambda loaded: (_page(context_id=one) for one in itertools.cycle(loaded.contexts)),
        lambda loaded: 4,
    ),
    Read(
        "ListTasks, a context of 10 %",
        lambda loaded: itertools.repeat(_page(context_id=loaded.large_context)),
        lambda loaded: loaded.in_large.total(),
    ),
    Read(
        "ListTasks, FAILED in a context of 10 %",
        lambda loaded: itertools.repeat(_page(context_id=loaded.large_context, status=FAILED)),
        lambda loaded: loaded.in_large[FAILED],
    ),
    _part(0.001),
    _part(0.01),
    _part(0.5),
)


class Million(ClusterScenario):
    """A database for each number of tasks, each with a server of its own; one call at a time."""

    name = "million"

    def table(self, settings: Settings) -> Table:
        few, many = settings.tasks
        return Table(
            self.name,
            f"reading among {few:,} finished tasks (small) and among {many:,} (large), "
            f"pages of {PAGE_SIZE}",
            [Column(SMALL), Column(LARGE), Column(RATIO), Column(P99), Column("calls", 0, sum)],
            [Target(read.label, RATIO, MOST, f"{read.label}, large : small") for read in READS],
        )

    async def run(self, run: Run) -> None:
        calls = 20 if run.settings.quick else 100
        async with AsyncExitStack() as stack:
            served: list[tuple[Deployment, Loaded]] = []
            for count in run.settings.tasks:
                database = await run.ground.postgres.create_database("bench")
                try:
                    loaded = await load(run.ground.postgres, database, count, run.say)
                    deployment = Deployment(own(1), Plan(), run.ground, database=database)
                    await stack.enter_async_context(deployment)
                except Exception as error:
                    run.fail(own(1), error)
                    return
                served.append((deployment, loaded))
            requests = [
                {read.label: await _requests(read, loaded, deployment) for read in READS}
                for deployment, loaded in served
            ]
            for number in range(run.settings.rounds + 1):  # the first round warms up
                run.say(f"{self.name}: round {number} of {run.settings.rounds}")
                for read in READS:
                    line = run.table.line(read.label, ours=True)
                    found: list[list[float]] = [[], []]
                    for which in (number % 2, 1 - number % 2):
                        deployment, loaded = served[which]
                        batch = list(itertools.islice(requests[which][read.label], calls))
                        answers = await _call(deployment.replicas[0].client, read, batch)
                        _check(read, loaded, answers, line)
                        found[which] = answers.latencies
                    if number and all(found):
                        small, large = map(statistics.median, found)
                        line.rounds.append(
                            {
                                SMALL: small * 1e3,
                                LARGE: large * 1e3,
                                RATIO: large / small,
                                P99: percentile(found[1], 0.99) * 1e3,
                                "calls": calls,
                            }
                        )


async def _requests(read: Read, loaded: Loaded, deployment: Deployment) -> Iterator[bytes]:
    requests = read.requests(loaded)
    if read.label == MIDDLE:
        token = await _middle_token(loaded, deployment.replicas[0].client)
        requests = itertools.repeat(_page(page_token=token))
    return (request.SerializeToString() for request in requests)


async def _middle_token(loaded: Loaded, client: Client) -> str:
    """That of the first page, with the place in the middle written into it."""
    answer = await client.list_tasks(_page().SerializeToString(), metadata=METADATA)
    token = pb.ListTasksResponse.FromString(answer).next_page_token
    padded = token + "=" * (-len(token) % 4)
    _, task_id, *rest = json.loads(base64.urlsafe_b64decode(padded))
    place = [loaded.times[loaded.count // 2], task_id, *rest]
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


async def _call(client: Client, read: Read, requests: list[bytes]) -> Answers:
    call = client.get_task if read.total is None else client.list_tasks
    return await call_all(call, requests, 1)


def _check(read: Read, loaded: Loaded, answers: Answers, line: Line) -> None:
    errors = line.faults.errors
    errors.update(answers.errors)
    for data in answers.data:
        if read.total is None:
            task = pb.Task.FromString(data)
            if not (task.artifacts and task.history and task.status.timestamp.seconds):
                errors["a Task that is not whole"] += 1
            continue
        page = pb.ListTasksResponse.FromString(data)
        expected = read.total(loaded)
        if page.total_size != expected:
            errors[f"total_size {page.total_size}, not {expected}"] += 1
        if len(page.tasks) != min(PAGE_SIZE, expected):
            errors[f"a page of {len(page.tasks)} tasks"] += 1
        times = [task.status.timestamp.ToNanoseconds() for task in page.tasks]
        if times != sorted(times, reverse=True):
            errors["a page that is not sorted by time"] += 1
