"""One of two replicas gets into trouble, and the other goes on for it (promises 3, 6 and 10).

Both are in this process; what happens to whole processes is in `tests/chaos`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.client.proxy import Proxy
from tests.support import (
    COMPLETED,
    Agent,
    Client,
    a_server,
    a_task,
    connected,
    status_update,
    within,
)


class Waiting:
    """Its first attempts wait; later ones complete."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.attempts: list[int] = []

    async def execute(self, context: Any, queue: Any) -> None:
        self.attempts.append(context.attempt)
        if context.current_task is None:
            await queue.enqueue_event(a_task())
        self.started.set()
        if context.attempt == 1 and context.get_user_input() == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        await queue.enqueue_event(status_update(COMPLETED))


async def completed(client: Client, task_id: str, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while (await client.get(task_id)).status.state != COMPLETED:
            pass


async def test_replica_that_is_cut_off_from_the_database_lets_go_of_what_it_has(
    postgres: str, nats_url: str
) -> None:
    """Though it still reaches NATS, and could say for ever that it works on it."""
    lease = 1.5
    one, other = Waiting(), Waiting()
    how: dict[str, Any] = {"broker": nats_url, "lease": lease}
    head, _, tail = postgres.partition("127.0.0.1:")
    port, _, name = tail.partition("/")
    async with Proxy(f"127.0.0.1:{port}") as proxy:
        cut_off = f"{head}{proxy.address}/{name}"
        first = a_server(Agent(one.execute, on_interruption="restart"), storage=cut_off, **how)
        second = a_server(Agent(other.execute, on_interruption="restart"), storage=postgres, **how)
        async with first:
            async with connected(first.address) as client:
                task = await client.send("wait", immediately=True)
                await within(one.started.wait())
            async with second, connected(second.address) as client:
                there, proxy.upstream = proxy.upstream, "127.0.0.1:1"
                proxy.cut()
                await within(one.cancelled.wait())
                await completed(client, task.id, lease + 3.5)
                assert other.attempts == [2]
                # What comes now is not taken by the one that can't work on it.
                news = [client.send(str(number)) for number in range(20)]
                await within(asyncio.gather(*news), 5)
                assert one.attempts == [1]
            proxy.upstream = there


async def test_replica_that_stops_begins_nothing_and_fails_nothing(
    postgres: str, nats_url: str
) -> None:
    """Agents fail by default when they are interrupted: under load, stopping interrupts none."""
    how: dict[str, Any] = {"storage": postgres, "broker": nats_url, "grace": 5.0}

    async def work(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await asyncio.sleep(0.3)
        await queue.enqueue_event(status_update(COMPLETED))

    working = asyncio.Event()

    async def work_and_say_so(context: Any, queue: Any) -> None:
        working.set()
        await work(context, queue)

    first, second = a_server(Agent(work_and_say_so), **how), a_server(Agent(work), **how)
    async with second, connected(second.address) as client:
        await first.__aenter__()
        sent = [asyncio.create_task(client.send(str(number))) for number in range(50)]
        await within(working.wait())
        stopping = asyncio.create_task(first.__aexit__(None, None, None))
        began = time.monotonic()
        while not stopping.done():
            sent.append(asyncio.create_task(client.send("another")))
            await asyncio.sleep(0.01)
        # It waits for the turns that run, and not for all of its grace.
        assert time.monotonic() - began < 3
        tasks = await within(asyncio.gather(*sent), 20)
        assert {task.status.state for task in tasks} == {COMPLETED}
