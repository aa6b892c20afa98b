"""One test's view of a cluster, and the promises that have to hold when it is over."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from a2a_grpc import pb
from tests.chaos.clients import PASSING, Choose, Clients, Follower, answered, one_of, without_number
from tests.chaos.cluster import Cluster, Replica, until
from tests.chaos.health import SERVING, health_is
from tests.chaos.journal import Line, assert_attempts_grow, assert_one_at_a_time, summary
from tests.chaos.orders import ARTIFACT, Order, numbers
from tests.support import SUBMITTED, TERMINAL, WORKING, Status, fold, request, text

TENANTS = ("restart", "fail")

# Lines that no replica may ever write, whatever happens to it.
BLEMISHES = ("was never retrieved", "was never awaited", "was destroyed but it is pending")


class Scene:
    """A cluster, clients of it, and the journal of its agents.

    Args:
        cluster: whose replicas all serve.
        clients: of the test.
        forgives_one_step: to a replica that was frozen while its agent was on the way to a step.
    """

    def __init__(
        self, cluster: Cluster, clients: Clients, *, forgives_one_step: bool = False
    ) -> None:
        self._forgives_one_step = forgives_one_step
        self.cluster = cluster
        self.clients = clients
        self.journal = cluster.journal
        self.journal.forget()
        self._lives = {replica.name: replica.lives for replica in cluster.replicas}
        self._id = uuid.uuid4().hex[:8]
        self._followers: list[Follower] = []

    @property
    def somewhere(self) -> Choose:
        """Chooses among the living."""
        return one_of(lambda: self.cluster.doors)

    @property
    def anywhere(self) -> Choose:
        """Chooses among all, dead or alive."""
        return one_of(lambda: [one for one in self.cluster.replicas if one.takes_calls])

    # Messages and what becomes of them.

    def message(
        self,
        *,
        tenant: str = "restart",
        task_id: str = "",
        immediately: bool = True,
        **order: Any,
    ) -> pb.SendMessageRequest:
        """A message with an order."""
        wanted = Order(**order)
        if wanted.gate:
            wanted = replace(wanted, gate=self._gate(wanted.gate))
        return request(str(wanted), task_id=task_id, immediately=immediately, tenant=tenant)

    def follow(self, task: pb.Task | str, choose: Choose | None = None, **how: Any) -> Follower:
        """Follow a task from its first event, to be compared with the others in the end."""
        task_id = task if isinstance(task, str) else task.id
        how.setdefault("after", 0)
        return self._follow(self.clients.follower(task_id, choose or self.somewhere, **how))

    def stream(
        self, request: pb.SendMessageRequest, choose: Choose | None = None, **how: Any
    ) -> Follower:
        """SendStreamingMessage, followed to the end of the task."""
        return self._follow(self.clients.streaming(request, choose or self.somewhere, **how))

    def _follow(self, follower: Follower) -> Follower:
        self._followers.append(follower)
        return follower.start()

    def open_gate(self, name: str) -> None:
        """Let the agents end that stream until this gate is open."""
        (self.journal.directory / self._gate(name)).touch()

    def _gate(self, name: str) -> str:
        return f"{self._id}-{name}"

    async def started(self, task_id: str, attempt: int = 1) -> Line:
        """The start of that attempt (or a later one) at the task's newest message."""

        def lines() -> list[Line]:
            return [
                line
                for line in self.journal.lines(task_id)
                if line.what == "start" and line.attempt >= attempt
            ]

        await until(lambda: bool(lines()), f"attempt {attempt} at task {task_id} begins")
        return lines()[-1]

    async def owner(self, task_id: str, attempt: int = 1) -> Replica:
        """The replica that executes the task."""
        return self.cluster.of((await self.started(task_id, attempt)).pid)

    async def task_when(
        self, task_id: str, *states: pb.TaskState, at: Replica | None = None, seconds: float = 40.0
    ) -> pb.Task:
        """The task, as soon as it is in one of these states."""
        found = pb.Task()

        async def is_there() -> bool:
            nonlocal found
            answer = await answered(self.clients.get(at or self.somewhere(), task_id))
            if isinstance(answer, Status):
                assert answer.code in PASSING, answer
                return False
            found = answer
            return found.status.state in states

        names = " or ".join(pb.TaskState.Name(state) for state in states)
        await until(is_there, f"task {task_id} is {names}", seconds)
        return found

    async def heal(self) -> None:
        """Every replica runs, and has all that it depends on."""
        await self.cluster.heal()
        for replica in self.cluster.replicas:
            await health_is(self.clients, replica, SERVING)

    # The end.

    def close(self) -> None:
        """Follow no more."""
        for follower in self._followers:
            follower.stop()

    async def verify(self) -> None:
        """What has to hold after everything that may happen to replicas."""
        for follower in self._followers:
            await follower.ended()
        for task_id in self.clients.told:
            await self._assert_at_rest(task_id)
        await self._assert_nothing_is_stuck()
        for follower in self._followers:
            await self._assert_saw_everything(follower)
        tasks = self.journal.tasks()
        thaws = self.cluster.thaws if self._forgives_one_step else ()
        assert_one_at_a_time(self.journal, tasks, thaws)
        assert_attempts_grow(self.journal, tasks)
        for name, log in self._logs().items():
            for line in log.splitlines():
                assert not any(text in line for text in BLEMISHES), f"{name}: {line}"

    async def _assert_at_rest(self, task_id: str) -> None:
        """No task that a client was told of is lost or stuck, and all replicas agree on it."""
        task = await self.task_when(task_id, *TERMINAL)
        for replica in self.cluster.doors:
            assert await self.clients.get(replica, task_id) == task, f"{replica!r} tells otherwise"
        for artifact in task.artifacts:
            if artifact.artifact_id == ARTIFACT:
                assert text(artifact) == numbers(len(artifact.parts))

    async def _assert_nothing_is_stuck(self) -> None:
        """Nor one that no client was told of."""
        for tenant in TENANTS:
            for state in (SUBMITTED, WORKING):
                query = pb.ListTasksRequest(tenant=tenant, status=state)

                async def is_none(query: pb.ListTasksRequest = query) -> bool:
                    page = await self.clients.at(self.somewhere()).call("ListTasks", query)
                    return not page.tasks

                await until(is_none, f"no task of {tenant} is {pb.TaskState.Name(state)}")

    async def _assert_saw_everything(self, follower: Follower) -> None:
        """What it got, over however many connections, is the log of the task."""
        log = await self.clients.log(self.somewhere(), follower.task_id)
        saw = [without_number(event) for event in follower.events]
        assert saw == [without_number(event) for event in log[follower.began_at :]]
        task = await self.clients.get(self.somewhere(), follower.task_id)
        artifacts = {one.artifact_id: text(one) for one in task.artifacts}
        assert follower.knows == artifacts == fold(log)[1]

    def _logs(self) -> dict[str, str]:
        """Of the processes that there were in this scene."""
        return {
            f"log of {replica.name}, process {life}": log
            for replica in self.cluster.replicas
            for life, log in replica.logs(since=self._lives[replica.name]).items()
        }

    def story(self) -> str:
        """What happened, for somebody who looks for a fault."""
        parts = []
        for task_id in self.clients.told:
            lines = summary(self.journal.lines(task_id))
            parts.append("\n".join([f"journal of task {task_id}:", *lines]))
        for follower in self._followers:
            parts.append(
                f"follower of {follower.task_id}: {follower.state} at event {follower.sequence}, "
                f"connected to {[one.name for one in follower.connections][-20:]}, "
                f"refused with {follower.refusals[-5:]}"
            )
        for name, log in self._logs().items():
            parts.append(f"{name}:\n" + "\n".join(log.splitlines()[-40:]))
        return "\n\n".join(parts)


@asynccontextmanager
async def a_scene(cluster: Cluster, *, forgives_one_step: bool = False) -> AsyncIterator[Scene]:
    """A scene on a cluster in good health; without an error, `verify` has the last word."""
    async with Clients() as clients:
        scene = Scene(cluster, clients, forgives_one_step=forgives_one_step)
        try:
            await scene.heal()
            yield scene
            await scene.heal()
            async with asyncio.timeout(100):
                await scene.verify()
        except BaseException as error:
            error.add_note(scene.story())
            raise
        finally:
            scene.close()
