"""How long it takes until an agent hears of a cancel that another replica received."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack

import grpc

from a2a_grpc import pb
from benchmarks.agent import Plan
from benchmarks.cluster.deployment import Deployment, own, sdk
from benchmarks.cluster.figures import Column, Table, Target
from benchmarks.cluster.scenario import ClusterScenario, Run, Settings, start_task
from benchmarks.load import METADATA, error_text

TOLD, MEDIAN = "max ms", "median ms"
CANCELED = pb.TaskState.TASK_STATE_CANCELED


class Cancels(ClusterScenario):
    """The agent publishes a chunk now and then; one that is silent may never be told by a2a-sdk."""

    name = "cancel"
    PACE = 0.1
    TOLD_TIMEOUT = 5.0
    """Seconds after which an agent counts as never told."""

    def table(self, settings: Settings) -> Table:
        return Table(
            self.name,
            f"CancelTask on B of a task on A, whose agent publishes every {self.PACE * 1e3:g} ms, "
            "until the agent is told",
            [
                Column(MEDIAN),
                Column(TOLD, fold=max),
                Column("call ms"),
                Column("cancels", 0, sum),
                Column("never told", 0, sum),
            ],
            [Target(own(2).name, TOLD, 50.0, "cancel on B until the agent on A is told, max ms")],
        )

    async def run(self, run: Run) -> None:
        plan = Plan((1,), pace=self.PACE, endless=True, noted=True)
        cancels = 5 if run.settings.quick else 20

        async def measure(deployment: Deployment) -> None:
            line = run.table.line(deployment.name, ours=deployment.kind.is_ours)
            told: list[float] = []
            calls: list[float] = []
            never = 0
            for number in range(cancels):
                receiver = deployment.replicas[number % len(deployment.replicas)]
                task_id = await start_task(deployment, receiver)
                runner = await deployment.runs(task_id)
                request = pb.CancelTaskRequest(id=task_id).SerializeToString()
                canceling = deployment.other(runner).client.cancel_task
                begun = time.monotonic_ns()
                try:
                    answer = pb.Task.FromString(await canceling(request, metadata=METADATA))
                except grpc.aio.AioRpcError as error:
                    line.faults.errors[error_text(error)] += 1
                    continue
                calls.append((time.monotonic_ns() - begun) / 1e6)
                if answer.status.state != CANCELED:
                    line.faults.errors[f"state {answer.status.state} after CancelTask"] += 1
                note = await deployment.notes.first(
                    task_id, lambda one: one.what != "began", patience=self.TOLD_TIMEOUT
                )
                if note is None:
                    never += 1
                    line.remarks["some agents were never told"] = None
                    continue
                if note.what != "canceled":
                    line.remarks["cancel() is not called; execute() is cut off"] = None
                told.append((note.at - begun) / 1e6)
            found: dict[str, float] = {"cancels": cancels, "never told": never}
            if told:
                found |= {MEDIAN: statistics.median(told), TOLD: max(told)}
            if calls:
                found["call ms"] = statistics.median(calls)
            line.rounds.append(found)

        async with AsyncExitStack() as stack:
            deployments = await run.deployed(stack, [own(2), sdk(2)], plan)
            await run.interleaved(deployments, measure)
