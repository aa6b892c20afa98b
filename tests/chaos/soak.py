"""A long run of random mishaps: `python -m tests.chaos.soak --minutes 30 --seed 7`.

Rounds follow one another on one cluster: a load of streams, conversations, cancels and followers
while something is killed, frozen, restarted or wiped; then everything heals, and what the suite
proves of a scene is proved of the round. Ends with 1, and the whole story, at the first fault.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from a2a_grpc import pb
from tests.chaos.clients import answered
from tests.chaos.cluster import Cluster
from tests.chaos.scene import Scene, a_scene
from tests.chaos.services import Services
from tests.servers.postgres import own_postgres
from tests.support import CANCELED, COMPLETED, FAILED, Status

LEASE = 3.0


class Load:
    """Callers that go on until they are stopped."""

    def __init__(self, scene: Scene, dice: random.Random) -> None:
        self._scene = scene
        self._dice = dice
        self.done = 0
        self.stopping = False

    async def run(self) -> None:
        """Until `stopping`, and what was begun is over."""
        async with asyncio.TaskGroup() as group:
            for work in (self._stream, self._follow, self._talk, self._cancel) * 2:
                group.create_task(self._repeat(work), name=work.__name__)

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self.stopping:
            await work()
            self.done += 1

    def _tenant(self) -> str:
        return self._dice.choice(("restart", "restart", "fail"))

    async def _stream(self) -> None:
        scene = self._scene
        order = scene.message(tenant=self._tenant(), steps=self._dice.randrange(100), pause=0.01)
        await scene.stream(order, scene.anywhere, silence=2.0).ended()

    async def _follow(self) -> None:
        scene = self._scene
        order = scene.message(
            steps=self._dice.randrange(200), pause=0.01, begin_again=self._dice.random() < 0.5
        )
        task = await scene.clients.send_somewhere(scene.anywhere, order)
        followers = [
            scene.follow(task, scene.anywhere, silence=2.0, hops=self._dice.randrange(5, 50))
            for _ in range(2)
        ]
        for follower in followers:
            assert (await follower.ended()).state in ("COMPLETED", "FAILED")

    async def _talk(self) -> None:
        scene = self._scene
        task = await scene.clients.send_somewhere(
            scene.anywhere, scene.message(do="ask", immediately=False)
        )
        orders = [scene.message(do="ask", task_id=task.id) for _ in range(5)]
        orders.append(scene.message(do="ask", task_id=task.id, stop=True))
        for order in orders:
            await scene.clients.send_somewhere(scene.anywhere, order)
        await scene.task_when(task.id, COMPLETED, FAILED)

    async def _cancel(self) -> None:
        scene = self._scene
        order = scene.message(tenant=self._tenant(), do="wait")
        task = await scene.clients.send_somewhere(scene.anywhere, order)
        request = pb.CancelTaskRequest(id=task.id, tenant=order.tenant)
        answer = await answered(scene.clients.somewhere(scene.anywhere, "CancelTask", request))
        if isinstance(answer, Status):  # it was FAILED, or an earlier try had canceled it
            assert answer.reason == "TASK_NOT_CANCELABLE", answer
        await scene.task_when(task.id, CANCELED, FAILED)


class Mishaps:
    """What may happen to a cluster; each method leaves what `heal` mends."""

    def __init__(self, cluster: Cluster, services: Services, dice: random.Random) -> None:
        self._cluster = cluster
        self._services = services
        self._dice = dice

    def any(self) -> Callable[[], Awaitable[None]]:
        """One of them."""
        return self._dice.choice(
            (
                self.one_dies,
                self.two_die,
                self.one_freezes,
                self.all_restart,
                self.nats_dies,
                self.nats_forgets,
                self.nats_and_one_die,
                self.postgres_restarts,
                self.postgres_crashes,
                self.postgres_is_away_for_long,
            )
        )

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(self._dice.uniform(0, longest))

    async def one_dies(self) -> None:
        self._dice.choice(self._cluster.replicas).kill()

    async def two_die(self) -> None:
        for replica in self._dice.sample(self._cluster.replicas, 2):
            replica.kill()
            await self._pause(1)

    async def one_freezes(self) -> None:
        replica = self._dice.choice(self._cluster.replicas)
        replica.freeze()
        await self._pause(2.5 * LEASE)
        replica.thaw()

    async def all_restart(self) -> None:
        for replica in self._cluster.replicas:
            replica.ask_to_stop()
            assert await replica.ended() == 0
            replica.start()
            await replica.ready()

    async def nats_dies(self, *, wipe: bool = False) -> None:
        self._services.kill_nats()
        await self._pause(2 * LEASE)
        self._services.start_nats(wipe=wipe)

    async def nats_forgets(self) -> None:
        await self.nats_dies(wipe=True)

    async def nats_and_one_die(self) -> None:
        await self.one_dies()
        await self.nats_dies(wipe=self._dice.random() < 0.5)

    async def postgres_restarts(self) -> None:
        await asyncio.to_thread(self._services.stop_postgres, "fast")
        await asyncio.to_thread(self._services.start_postgres)

    async def postgres_crashes(self) -> None:
        await asyncio.to_thread(self._services.stop_postgres, "immediate")
        await asyncio.to_thread(self._services.start_postgres)

    async def postgres_is_away_for_long(self) -> None:
        await asyncio.to_thread(self._services.stop_postgres, "immediate")
        await asyncio.sleep(LEASE)
        await self._pause(LEASE)
        await asyncio.to_thread(self._services.start_postgres)


async def soak(cluster: Cluster, services: Services, minutes: float, dice: random.Random) -> None:
    """Rounds of load and mishap until the time is over."""
    ends_at = time.monotonic() + minutes * 60
    mishaps = Mishaps(cluster, services, dice)
    number = 0
    while time.monotonic() < ends_at:
        number += 1
        mishap = mishaps.any()
        began_at = time.monotonic()
        async with a_scene(cluster, forgives_one_step=True) as scene:
            load = Load(scene, dice)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run(), name="load")
                await asyncio.sleep(dice.uniform(0.2, 2))
                await mishap()
                await cluster.heal()
                load.stopping = True
        took = time.monotonic() - began_at
        print(f"round {number}: {mishap.__name__}, {load.done} pieces of work, {took:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choice of mishaps")
    parser.add_argument("--keep", type=Path, help="where logs and journals are kept")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        with (
            own_postgres(careless=False) as postgres,
            Services(postgres, directory / "services") as services,
            Cluster(
                directory / "cluster",
                [*services.arguments, "--lease", f"{LEASE:g}", "--grace", "0.3"],
                {"a": [], "b": [], "c": []},
            ) as cluster,
        ):
            asyncio.run(soak(cluster, services, options.minutes, random.Random(seed)))


if __name__ == "__main__":
    main()
