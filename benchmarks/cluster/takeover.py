"""How long the tasks of a replica that was killed stay where they are."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

import grpc

from a2a_grpc import pb
from benchmarks.agent import Plan
from benchmarks.cluster.deployment import Deployment, Replica, own, sdk
from benchmarks.cluster.figures import Column, Table, Target
from benchmarks.cluster.scenario import ClusterScenario, Run, Settings, start_task
from benchmarks.load import METADATA, error_text

MEDIAN, MOST, BEYOND = "median s", "max s", "beyond lease s"
FAILED = pb.TaskState.TASK_STATE_FAILED


class Takeover(ClusterScenario):
    """All deployments at the same time: nearly all of it is waiting."""

    name = "takeover"
    TASKS = 8
    POLL = 0.02
    SDK_PATIENCE = 10.0
    """Seconds after which a2a-sdk, which has no lease, counts as never taking over."""
    PATIENCE = 20.0
    """Seconds beyond the lease after which a task counts as lost."""

    def table(self, settings: Settings) -> Table:
        return Table(
            self.name,
            f"kill -9 of one of two replicas, with {self.TASKS} tasks, until those it ran go on "
            "elsewhere or are FAILED",
            [
                Column(MEDIAN),
                Column(MOST, fold=max),
                Column(BEYOND, fold=max),
                Column("tasks", 0, sum),
            ],
            [
                Target(
                    _label(lease, restarts),
                    BEYOND,
                    2.0,
                    f"lease {lease:g} s, {_how(restarts)}, seconds beyond the lease",
                )
                for lease in settings.leases
                for restarts in (True, False)
            ],
        )

    async def run(self, run: Run) -> None:
        plan = Plan((1,), pace=0.2, endless=True, noted=True)
        rounds = min(run.settings.rounds, 3)
        async with AsyncExitStack() as stack:
            measuring = []
            for lease in run.settings.leases:
                for restarts in (True, False):
                    for deployment in await run.deployed(
                        stack, [own(2)], plan, lease=lease, restarts=restarts
                    ):
                        measuring.append(
                            self._measure(run, deployment, lease, _label(lease, restarts), rounds)
                        )
            for deployment in await run.deployed(stack, [sdk(2)], plan):
                measuring.append(self._measure(run, deployment, None, deployment.name, 1))
            run.say(f"{self.name}: killing")
            await asyncio.gather(*measuring)

    async def _measure(
        self, run: Run, deployment: Deployment, lease: float | None, label: str, rounds: int
    ) -> None:
        line = run.table.line(label, ours=deployment.kind.is_ours)
        try:
            for _ in range(rounds):
                took = await self._round(deployment, lease)
                known = [one for one in took if one is not None]
                if lease is not None and len(known) < len(took):
                    line.faults.errors["not taken over in time"] += len(took) - len(known)
                found: dict[str, float] = {"tasks": len(took)}
                if known:
                    found |= {MEDIAN: statistics.median(known), MOST: max(known)}
                    if lease is not None:
                        found[BEYOND] = max(known) - lease
                if lease is None and not known:
                    line.remarks[f"nothing in {self.SDK_PATIENCE:g} s: nobody looks"] = None
                line.rounds.append(found)
        except grpc.aio.AioRpcError as error:
            line.failure = error_text(error)
        except (OSError, RuntimeError, TimeoutError) as error:
            line.failure = f"{type(error).__name__}: {error}"

    async def _round(self, deployment: Deployment, lease: float | None) -> list[float | None]:
        """Seconds from the kill until each task that ran there went on or had failed."""
        tasks = [
            await start_task(deployment, deployment.replicas[number % 2])
            for number in range(self.TASKS)
        ]
        runners = [await deployment.runs(task_id) for task_id in tasks]
        victim = runners[0]
        hit = [task_id for task_id, runner in zip(tasks, runners, strict=True) if runner is victim]
        survivor = deployment.other(victim)
        patience = self.SDK_PATIENCE if lease is None else lease + self.PATIENCE
        killed = time.monotonic_ns()
        closing = asyncio.create_task(deployment.kill(victim))
        ends = await asyncio.gather(
            *(self._end(deployment, survivor, task_id, patience) for task_id in hit)
        )
        await closing
        for task_id in tasks:
            await _cancel(survivor, task_id)
        await deployment.add_replica()
        return [None if end is None else (end - killed) / 1e9 for end in ends]

    async def _end(
        self, deployment: Deployment, survivor: Replica, task_id: str, patience: float
    ) -> int | None:
        """When the task began on the survivor, or was seen there to have failed."""
        again = asyncio.create_task(
            deployment.notes.first(
                task_id,
                lambda note: note.what == "began" and note.pid == survivor.pid,
                patience=patience,
            )
        )
        request = pb.GetTaskRequest(id=task_id).SerializeToString()
        failed: int | None = None
        while not again.done():
            task = pb.Task.FromString(await survivor.client.get_task(request, metadata=METADATA))
            if task.status.state == FAILED:
                failed = time.monotonic_ns()
                again.cancel()
                break
            await asyncio.wait([again], timeout=self.POLL)
        if failed is not None:
            return failed
        note = await again
        return None if note is None else note.at


def _how(restarts: bool) -> str:
    return "restart" if restarts else "fail"


def _label(lease: float, restarts: bool) -> str:
    return f"{own(2).name}, lease {lease:g} s, {_how(restarts)}"


async def _cancel(replica: Replica, task_id: str) -> None:
    """Make room; one that has ended says so."""
    request = pb.CancelTaskRequest(id=task_id).SerializeToString()
    try:
        await replica.client.cancel_task(request, metadata=METADATA)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
