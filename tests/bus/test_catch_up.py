"""What the bus lost comes late, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import a2a_grpc.server
from a2a_grpc import pb
from a2a_grpc.bus.base import Committed, EventBus, TaskChannel
from a2a_grpc.bus.catch_up import CatchUp
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.errors import InternalError, UnavailableError
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Commit,
    Head,
    LogTruncatedError,
    Operation,
    Outcome,
    OutcomeKind,
    Progress,
    Snapshot,
    Turn,
    error_outcome,
)
from a2a_grpc.subscription import Subscription
from a2a_grpc.task import LogEntry, event_entry
from tests.support import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    Serving,
    a_status,
    a_task,
    asking,
    chunk,
    collect,
    echo,
    message,
    outline,
    publishing,
    serving,
    status_update,
    take,
    text,
    within,
)

SOON = 0.02


class DeafBus(InMemoryBus):
    """Loses everything that is published."""

    loses = True

    async def publish(self, committed: Committed) -> None: ...


class Watched(InMemoryStorage[Any]):
    """Counts what is asked for, and may be away, or without its older log."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.snapshots = 0
        self.is_away = False
        self.is_truncated = False

    async def load_heads(self, task_ids: Sequence[str]) -> list[Head]:
        self.asked.append(len(task_ids))
        if self.is_away:
            raise UnavailableError("the storage is away")
        return await super().load_heads(task_ids)

    async def load_progress(self, operation_ids: Sequence[str]) -> list[Progress]:
        self.asked.append(len(operation_ids))
        return await super().load_progress(operation_ids)

    async def load_snapshot(self, *args: Any, **kw: Any) -> Snapshot | None:
        self.snapshots += 1
        if self.is_truncated and kw.get("version") is not None:
            raise LogTruncatedError("the log starts later")
        return await super().load_snapshot(*args, **kw)


class World:
    """A storage, a bus that is deaf, and turns on the task `t` by another process."""

    def __init__(self) -> None:
        self.storage = Watched()
        self.bus = DeafBus()
        self.turn: Turn | None = None
        self.version = self.sequence = self.state = 0

    async def admit(self, operation_id: str, *, new: bool = False, at: float | None = None) -> None:
        request = pb.SendMessageRequest(message=message(operation_id, task_id="t", context_id="c"))
        operation = Operation(operation_id, "t", "c", request, creates_task=new)
        if at is not None:
            operation.created_at = at
        await self.storage.admit(operation)

    async def start(self) -> None:
        turn = await self.storage.start_turn("t")
        assert isinstance(turn, Turn)
        self.turn = turn
        if turn.snapshot is not None:
            self.version = turn.snapshot.version

    async def publish(
        self,
        *states: pb.TaskState,
        words: str = "",
        ends: Outcome | None = None,
        with_version: bool = True,
    ) -> None:
        """Commit statuses; with `ends`, the turn ends with that outcome."""
        assert self.turn is not None
        entries: list[LogEntry] = []
        before = self.version
        now = time.time_ns()
        for state in states:
            self.version, self.sequence, self.state = self.version + 1, self.sequence + 1, state
            status = a_status(state, words)
            status.timestamp.FromNanoseconds(now)
            if self.version == 1:
                event = pb.StreamResponse(task=pb.Task(id="t", context_id="c", status=status))
            else:
                update = pb.TaskStatusUpdateEvent(task_id="t", context_id="c", status=status)
                event = pb.StreamResponse(status_update=update)
            entries.append(event_entry(event, version=self.version, sequence=self.sequence))
        finished = []
        if ends is not None:
            outcome = ends
            if with_version and ends.kind is OutcomeKind.TASK:
                outcome = Outcome(ends.kind, self.version, ends.payload)
            finished.append((self.turn.operation.id, outcome))
        await self.storage.commit(
            Commit(
                "t",
                before,
                fence=self.turn.fence,
                entries=entries,
                state=self.state,
                status_at=now,
                context_id="c",
                finished=finished,
                ends_turn=ends is not None,
            )
        )

    async def operation(self, operation_id: str, *states: pb.TaskState, words: str = "") -> None:
        """A whole turn."""
        await self.admit(operation_id, new=not self.version)
        await self.start()
        await self.publish(*states, words=words, ends=DONE)

    @asynccontextmanager
    async def subscription(self, watches: str = "") -> AsyncIterator[Subscription]:
        async with Subscription(self.storage, self.bus, "t") as subscription:
            if watches:
                subscription.watch(watches)
            yield subscription


DONE = Outcome(OutcomeKind.TASK)


@pytest.fixture
async def world() -> World:
    return World()


async def states(subscription: Subscription) -> list[str]:
    events = [pb.StreamResponse.FromString(one.payload) async for one in subscription.events()]
    return outline(events)


async def arrived(channel: TaskChannel, version: int) -> None:
    async with asyncio.timeout(5):
        while channel.version < version:
            await channel.changed()


async def test_events_that_were_lost_are_read(world: World) -> None:
    async with (
        CatchUp(world.storage, world.bus, interval=SOON),
        world.subscription() as subscription,
    ):
        reading = asyncio.create_task(states(subscription))
        await world.operation("one", WORKING, WORKING, COMPLETED)
        assert await within(reading) == ["task WORKING", "status WORKING", "status COMPLETED"]


async def test_whoever_waits_for_an_operation_hears_its_end(world: World) -> None:
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel, channel.watch("one") as watch:
            await world.operation("one", WORKING, COMPLETED)
            settled = await within(watch.settled)
            assert settled.outcome == Outcome(OutcomeKind.TASK, 2)
            assert (settled.version, settled.sequence, settled.state) == (2, 2, COMPLETED)
            assert channel.version == 2


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.MESSAGE, payload=pb.Message(message_id="m").SerializeToString()),
        error_outcome(InternalError("it failed")),
        error_outcome(InternalError("it is full"), refused=True),
    ],
    ids=lambda outcome: outcome.kind.name,
)
async def test_end_without_a_task_is_heard(world: World, outcome: Outcome) -> None:
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel, channel.watch("one") as watch:
            await world.admit("one", new=True)
            if outcome.kind is OutcomeKind.REFUSED:
                await world.storage.refuse_operation("one", outcome)
            else:
                await world.start()
                await world.publish(ends=outcome)
            assert (await within(watch.settled)).outcome == outcome
            assert channel.version == 0


async def test_stream_of_an_operation_ends_where_it_ended_though_the_task_went_on(
    world: World,
) -> None:
    await world.operation("zero", WORKING, INPUT_REQUIRED, words="what?")
    async with world.subscription("one") as subscription:
        subscription.start_from(await _snapshot(world))
        await world.operation("one", WORKING, INPUT_REQUIRED, words="what else?")
        await world.operation("two", WORKING, COMPLETED)
        async with CatchUp(world.storage, world.bus, interval=SOON):
            found = await within(states(subscription))
    assert found == ["status WORKING", "status INPUT_REQUIRED"]


async def test_stream_ends_with_the_task_if_the_log_does_not_tell(world: World) -> None:
    await world.operation("zero", WORKING, INPUT_REQUIRED, words="what?")
    async with world.subscription("one") as subscription:
        subscription.start_from(await _snapshot(world))
        await world.operation("one", WORKING, INPUT_REQUIRED, words="what else?")
        await world.operation("two", WORKING, COMPLETED)
        world.storage.is_truncated = True
        async with CatchUp(world.storage, world.bus, interval=SOON):
            found = await within(states(subscription))
    assert found[-1] == "status COMPLETED"


async def test_stream_of_an_operation_that_failed_gets_its_events_and_the_error(
    world: World,
) -> None:
    async with world.subscription("one") as subscription:
        await world.admit("one", new=True)
        await world.start()
        await world.publish(WORKING)
        await world.publish(ends=error_outcome(InternalError("it failed")))
        events = subscription.events()
        async with CatchUp(world.storage, world.bus, interval=SOON):
            assert (await within(anext(events))).sequence == 1
            with pytest.raises(InternalError, match="it failed"):
                await within(anext(events))


async def _snapshot(world: World) -> Snapshot:
    snapshot = await world.storage.load_snapshot("t")
    assert snapshot is not None
    return snapshot


async def test_beginning_of_a_turn_is_heard(world: World) -> None:
    await world.operation("zero", WORKING, INPUT_REQUIRED, words="what?")
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel, channel.watch("one") as watch:
            await world.admit("one")
            await arrived(channel, 2)
            assert watch.started is None
            await world.start()
            async with asyncio.timeout(5):
                while watch.started is None:
                    await channel.changed()
            assert watch.started.version == 3  # with the message
            assert not watch.settled.done()


@pytest.mark.parametrize("state", [INPUT_REQUIRED, AUTH_REQUIRED])
@pytest.mark.parametrize("words", ["", "what?"])
async def test_interruption_of_a_new_task_is_heard(
    world: World, state: pb.TaskState, words: str
) -> None:
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel, channel.watch("one") as watch:
            await world.admit("one", new=True)
            await world.start()
            await world.publish(state, words=words)
            settled = await within(watch.settled)
            assert (settled.state, settled.version, settled.outcome) == (state, 1, None)
            assert (watch.asked is not None) == (state == INPUT_REQUIRED)


@pytest.mark.parametrize("hears_the_beginning", [True, False])
@pytest.mark.parametrize("words", ["", "what else?"])
async def test_interruption_of_an_earlier_turn_is_not_taken_for_this_ones(
    world: World, words: str, hears_the_beginning: bool
) -> None:
    """Also when the message was sent before the earlier turn asked."""
    await world.admit("zero", new=True)
    await world.admit("one")
    await world.start()
    await world.publish(INPUT_REQUIRED, words="what?" if words else "", ends=DONE)
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel, channel.watch("one") as watch:
            await world.start()
            if hears_the_beginning:
                world.bus.tell(
                    Committed("t", 2, 1, INPUT_REQUIRED, operation_id="one", starts=True)
                )
            await looked(world, 5)
            assert not watch.settled.done()
            assert channel.version == 2
            snapshots = world.storage.snapshots
            await looked(world, 5)
            assert world.storage.snapshots == snapshots, "the task is not folded again and again"
            if words or hears_the_beginning:
                await world.publish(INPUT_REQUIRED, words=words)
            else:
                await world.publish(INPUT_REQUIRED, ends=DONE)
            settled = await within(watch.settled)
            assert (settled.state, settled.version) == (INPUT_REQUIRED, 3)


async def test_wordless_request_for_credentials_is_heard_by_its_time(world: World) -> None:
    await world.operation("zero", INPUT_REQUIRED, words="what?")
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel, channel.watch("one") as watch:
            await world.admit("one", at=time.time() - 5)
            await world.start()
            await world.publish(AUTH_REQUIRED)
            assert (await within(watch.settled)).state == AUTH_REQUIRED


async def looked(world: World, times: int) -> None:
    """Until storage has been asked so many times more."""
    enough = len(world.storage.asked) + 2 * times
    async with asyncio.timeout(5):
        while len(world.storage.asked) < enough:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_channel_that_hears_enough_is_left_alone(world: World) -> None:
    async with CatchUp(world.storage, world.bus, interval=0.2):
        with world.bus.channel("t"):
            for number in range(30):
                world.bus.tell(Committed("t", number + 1, number + 1, WORKING))
                await asyncio.sleep(0.02)
            assert not world.storage.asked


async def test_what_was_missed_is_looked_up_at_once(world: World) -> None:
    async with CatchUp(world.storage, world.bus, interval=60):
        with world.bus.channel("t") as channel, world.bus.channel("u") as other:
            await world.operation("one", WORKING)
            world.bus.on_missed("u")
            await looked(world, 0)
            world.bus.on_missed("t")
            await arrived(channel, 1)
            await world.admit("two")
            await world.start()
            await world.publish(COMPLETED, ends=DONE)
            world.bus.on_missed("")
            await arrived(channel, 3)
            assert other.version == 0


async def test_many_channels_are_looked_up_in_chunks(world: World) -> None:
    async with CatchUp(world.storage, world.bus, interval=60):
        for number in range(1200):
            world.bus.open(f"t{number}")
        world.bus.on_missed("")
        async with asyncio.timeout(5):
            while sum(world.storage.asked) < 1200:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert world.storage.asked == [500, 500, 200]
        for number in range(1200):
            world.bus.close(f"t{number}")


async def test_storage_that_comes_back_is_asked_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.storage.is_away = True
    async with CatchUp(world.storage, world.bus, interval=SOON):
        with world.bus.channel("t") as channel:
            await world.operation("one", WORKING)
            await looked(world, 3)
            assert channel.version == 0
            world.storage.is_away = False
            await arrived(channel, 1)
    assert caplog.text.count("can't be told") == 1


async def test_nothing_is_done_for_nobody(world: World) -> None:
    async with CatchUp(world.storage, world.bus, interval=SOON):
        await world.operation("one", WORKING)
        await asyncio.sleep(5 * SOON)
        assert not world.storage.asked


# A whole server whose bus loses everything.

Served = Callable[..., Any]


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(a2a_grpc.server, "CatchUp", partial(CatchUp, interval=0.05))
    return lambda agent: serving(agent, bus=DeafBus())


async def test_message_is_answered(deaf: Served) -> None:
    async with deaf(echo) as s:
        task = await within(s.send("hello"))
        assert task.status.state == COMPLETED
        assert text(task.artifacts[0]) == "hello"


async def test_direct_message_is_answered(deaf: Served) -> None:
    async with deaf(publishing(pb.Message(parts=[pb.Part(text="hi")]))) as s:
        assert outline(await collect(s.stream())) == ["message hi"]


async def test_stream_has_every_event_once(deaf: Served) -> None:
    events = [chunk(str(number), f"a{number}") for number in range(100)]
    agent = publishing(a_task(), *events, status_update(COMPLETED))
    async with deaf(agent) as s:
        found = outline(await collect(s.stream()))
    assert found == [
        "task WORKING",
        *(f"artifact {number}" for number in range(100)),
        "status COMPLETED",
    ]


async def test_conversation_goes_on(deaf: Served) -> None:
    async with deaf(asking) as s:
        task = await within(s.send("one"))
        assert task.status.state == INPUT_REQUIRED
        reader = s.subscribe(task.id)
        await take(reader, 1)
        for word in ("two", "three"):
            task = await within(s.send(word, task_id=task.id))
            assert task.status.state == INPUT_REQUIRED
        task = await within(s.send("done", task_id=task.id))
        assert task.status.state == COMPLETED
        assert outline(await collect(reader))[-1] == "status COMPLETED"


async def test_agent_that_waits_for_credentials_lets_its_caller_go(deaf: Served) -> None:
    release = asyncio.Event()

    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(AUTH_REQUIRED))
        await release.wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with deaf(Agent(execute)) as s:
        task = await within(s.send())
        assert task.status.state == AUTH_REQUIRED
        reader = s.subscribe(task.id)
        await take(reader, 1)
        release.set()
        assert outline(await collect(reader)) == ["status COMPLETED"]


async def test_task_is_canceled(deaf: Served) -> None:
    async def execute(_: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        await asyncio.Event().wait()

    async with deaf(Agent(execute)) as s:
        served: Serving = s
        task = await within(served.send(immediately=True))
        assert (await within(served.cancel(task.id))).status.state == CANCELED


def test_bus_that_loses_says_so() -> None:
    assert DeafBus.loses
    assert not EventBus.loses
