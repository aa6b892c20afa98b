"""ListTasks (specification 3.1.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_grpc import pb
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    Agent,
    Gated,
    Serving,
    a_task,
    asking,
    assert_invalid,
    echo,
    message,
    publishing,
    refused,
    request,
    serving,
    status_update,
    take,
    text,
    texts,
    within,
)


async def pages(s: Serving, **kw: Any) -> list[pb.ListTasksResponse]:
    """All pages, by their tokens."""
    found = [await s.list(**kw)]
    while found[-1].next_page_token:
        found.append(await s.list(page_token=found[-1].next_page_token, **kw))
    return found


def ids(found: list[pb.ListTasksResponse]) -> list[str]:
    return [task.id for page in found for task in page.tasks]


async def test_newest_status_comes_first(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        tasks = [await s.send(f"{number}") for number in range(5)]
        expected = [task.id for task in reversed(tasks)]
        assert [task.id for task in (await s.list()).tasks] == expected
        await s.send("more", task_id=tasks[2].id)
        expected.remove(tasks[2].id)
        assert [task.id for task in (await s.list()).tasks] == [tasks[2].id, *expected]


async def test_canceling_moves_a_task_to_the_front() -> None:
    async with serving(asking) as s:
        first, _ = await s.send(), await s.send()
        await s.cancel(first.id)
        assert (await s.list()).tasks[0].id == first.id


async def test_failing_moves_a_task_to_the_front() -> None:
    go = asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task(INPUT_REQUIRED))
        if context.get_user_input() == "fail":
            await go.wait()
            raise RuntimeError

    async with serving(Agent(execute)) as s:
        first = await s.send("fail", immediately=True)
        reader = s.subscribe(first.id)
        await take(reader, 1)
        second = await s.send()
        assert (await s.list()).tasks[0].id == second.id
        go.set()
        await take(reader, 1)
        newest = (await s.list()).tasks[0]
        assert (newest.id, newest.status.state) == (first.id, FAILED)


async def test_pages_hold_every_task_once_and_count_them_all(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        tasks = [await s.send() for _ in range(7)]
        found = await pages(s, page_size=3)
        assert [len(page.tasks) for page in found] == [3, 3, 1]
        assert ids(found) == [task.id for task in reversed(tasks)]
        assert {page.total_size for page in found} == {7}
        assert {page.page_size for page in found} == {3}


async def test_last_page_has_an_empty_token_also_when_it_is_exactly_full(
    serve: Callable[..., Any],
) -> None:
    async with serve(echo) as s:
        for _ in range(6):
            await s.send()
        assert [len(page.tasks) for page in await pages(s, page_size=3)] == [3, 3]
        assert (await s.list(page_size=6)).next_page_token == ""
        assert (await s.list(page_size=100)).next_page_token == ""


async def test_no_tasks_are_an_empty_page(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        page = await s.list()
        assert (list(page.tasks), page.next_page_token, page.total_size) == ([], "", 0)
        assert page.page_size == 50


async def test_default_page_size_is_fifty() -> None:
    async with serving(echo) as s:
        await within(asyncio.gather(*(s.send() for _ in range(51))))
        page = await s.list()
        assert (len(page.tasks), page.page_size, page.total_size) == (50, 50, 51)
        assert page.next_page_token


async def test_filters(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        a1 = await s.send("x", context_id="a")
        a2 = await s.send("done", context_id="a")
        b1 = await s.send("x", context_id="b")
        b2 = await s.send("done", context_id="b")

        async def found(**kw: Any) -> list[str]:
            page = await s.list(**kw)
            assert page.total_size == len(page.tasks)
            return [task.id for task in page.tasks]

        assert await found(context_id="a") == [a2.id, a1.id]
        assert await found(status=COMPLETED) == [b2.id, a2.id]
        assert await found(status=INPUT_REQUIRED, context_id="b") == [b1.id]
        assert await found(context_id="unknown") == []
        assert await found(status=CANCELED) == []
        assert await found(status_timestamp_after=b1.status.timestamp) == [b2.id, b1.id]
        later = Timestamp()
        later.FromNanoseconds(b2.status.timestamp.ToNanoseconds() + 1)
        assert await found(status_timestamp_after=later) == []
        assert len(await pages(s, status=COMPLETED, page_size=1)) == 2


@pytest.mark.parametrize("seconds", [-62_135_596_800, -1, 0, 253_402_300_799])
async def test_timestamps_at_the_ends_of_time_are_fine(
    seconds: int, serve: Callable[..., Any]
) -> None:
    async with serve(echo) as s:
        await s.send()
        page = await s.list(status_timestamp_after=Timestamp(seconds=seconds))
        assert page.total_size == (0 if seconds > 10**10 else 1)


@pytest.mark.parametrize("seconds", [-62_135_596_800, 253_402_300_799])
async def test_task_whose_agent_lives_at_the_end_of_time_is_listed(
    seconds: int, serve: Callable[..., Any]
) -> None:
    task = a_task(COMPLETED)
    task.status.timestamp.seconds = seconds
    async with serve(publishing(task)) as s:
        sent = await s.send()
        assert [found.id for found in (await s.list()).tasks] == [sent.id]
        assert len(await pages(s, page_size=1)) == 1


@pytest.mark.parametrize(
    "timestamp",
    [Timestamp(seconds=253_402_300_800), Timestamp(nanos=-1), Timestamp(nanos=10**9)],
)
async def test_malformed_timestamp_is_refused(timestamp: Timestamp) -> None:
    async with serving(echo) as s:
        call = s.call("ListTasks", pb.ListTasksRequest(status_timestamp_after=timestamp))
        assert_invalid(await refused(call), "status_timestamp_after")


@pytest.mark.parametrize("size", [0, -1, 101, 2**31 - 1])
async def test_page_size_outside_1_to_100_is_refused(size: int) -> None:
    async with serving(echo) as s:
        call = s.call("ListTasks", pb.ListTasksRequest(page_size=size))
        assert_invalid(await refused(call), "page_size")


@pytest.mark.parametrize("size", [1, 100])
async def test_page_sizes_from_1_to_100_are_taken(size: int) -> None:
    async with serving(echo) as s:
        assert (await s.list(page_size=size)).page_size == size


BAD_TOKENS = ["x", "!", "MQ", "bnVsbA", "W10", "e30", "WzEsMiwzXQ", "AAAA", "ä", "a" * 5000, "=="]


@pytest.mark.parametrize("token", BAD_TOKENS, ids=range(len(BAD_TOKENS)))
async def test_bad_token_is_refused(token: str) -> None:
    async with serving(echo) as s:
        call = s.call("ListTasks", pb.ListTasksRequest(page_token=token))
        assert_invalid(await refused(call), "page_token")


async def test_damaged_token_is_refused_or_harmless(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        for _ in range(3):
            await s.send()
        token = (await s.list(page_size=1)).next_page_token
        for place in range(len(token)):
            damaged = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
            for changed in (damaged, token[:place], token + token[:place]):
                if not changed:
                    continue
                call = s.call("ListTasks", pb.ListTasksRequest(page_size=1, page_token=changed))
                try:
                    await within(call)
                except Exception:
                    assert_invalid(await refused(call), "page_token")


async def test_token_of_other_filters_is_refused() -> None:
    async with serving(echo) as s:
        for _ in range(3):
            await s.send(context_id="a")
        token = (await s.list(context_id="a", page_size=1)).next_page_token
        call = s.call("ListTasks", pb.ListTasksRequest(context_id="b", page_token=token))
        assert_invalid(await refused(call), "page_token")


async def test_unknown_status_is_refused() -> None:
    async with serving(echo) as s:
        unknown = pb.ListTasksRequest.FromString(b"\x18\x63")  # status = 99
        assert_invalid(await refused(s.call("ListTasks", unknown)), "status")


async def test_artifacts_only_on_request(serve: Callable[..., Any]) -> None:
    async with serve(echo) as s:
        await s.send("hi")
        for kw in ({}, {"include_artifacts": False}):
            assert not (await s.list(**kw)).tasks[0].artifacts
        (task,) = (await s.list(include_artifacts=True)).tasks
        assert [text(artifact) for artifact in task.artifacts] == ["hi"]


@pytest.mark.parametrize(("length", "expected"), [(None, 3), (0, 0), (2, 2), (9, 3)])
async def test_history_length(length: int | None, expected: int, serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        task = await s.send("one")
        await s.send("done", task_id=task.id)
        (found,) = (await s.list(history_length=length)).tasks
        assert texts(found.history) == ["one", "what else?", "done"][3 - expected :]


async def test_negative_history_length_is_refused() -> None:
    async with serving(echo) as s:
        call = s.call("ListTasks", pb.ListTasksRequest(history_length=-1))
        assert_invalid(await refused(call), "history_length")


async def test_pages_are_stable_while_tasks_are_added_and_updated(
    serve: Callable[..., Any],
) -> None:
    async with serve(asking) as s:
        tasks = [await s.send(f"{number}") for number in range(9)]
        page = await s.list(page_size=3)
        seen = [task.id for task in page.tasks]
        # New tasks, and one that was seen moves: neither disturbs what is still to come.
        while page.next_page_token:
            await s.send("new")
            await s.send("more", task_id=seen[0])
            page = await s.list(page_size=3, page_token=page.next_page_token)
            seen += [task.id for task in page.tasks]
        assert seen == [task.id for task in reversed(tasks)]


async def test_page_goes_on_though_the_task_at_its_end_has_moved() -> None:
    async with serving(asking) as s:
        tasks = [await s.send() for _ in range(4)]
        page = await s.list(page_size=2)
        await s.cancel(page.tasks[-1].id)
        rest = await s.list(page_size=2, page_token=page.next_page_token)
        assert [task.id for task in rest.tasks] == [tasks[1].id, tasks[0].id]


async def test_running_tasks_are_listed_and_direct_messages_are_not() -> None:
    agent = Gated()
    async with serving(agent) as s:
        task = await s.send(immediately=True)
        assert [found.id for found in (await s.list()).tasks] == [task.id]
        agent.go.set()
    async with serving(publishing(pb.Message(parts=[pb.Part(text="hi")]))) as s:
        await s.call("SendMessage", request())
        assert (await s.list()).total_size == 0


async def test_deepest_metadata_that_is_accepted_is_readable_in_the_list(
    serve: Callable[..., Any],
) -> None:
    """What is accepted must come back; what could not, is refused at admission."""
    async with serve(echo) as s:
        accepted = 0
        for levels in range(1, 34):
            sent = message(str(levels))
            struct = sent.metadata
            for _ in range(levels - 1):
                struct = struct.fields["a"].struct_value
            struct["a"] = 1
            call = s.call("SendMessage", request())
            made = pb.SendMessageRequest()
            made.message.MergeFrom(sent)
            call = s.call("SendMessage", made)
            try:
                await within(call)
                accepted += 1
            except Exception:
                assert_invalid(await refused(call))
        assert 10 < accepted < 32
        assert (await s.list(include_artifacts=True, page_size=100)).total_size >= accepted


async def test_updates_between_status_changes_do_not_move_a_task() -> None:
    """The order is that of the status timestamps."""
    go, told = asyncio.Event(), asyncio.Event()

    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        if context.get_user_input() == "slow":
            await go.wait()
            await queue.enqueue_event(
                pb.TaskArtifactUpdateEvent(
                    artifact=pb.Artifact(artifact_id="a", parts=[pb.Part(text="x")])
                )
            )
            told.set()
            await asyncio.Event().wait()
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        slow = await s.send("slow", immediately=True)
        reader = s.subscribe(slow.id)
        await take(reader, 1)
        quick = await s.send("quick")
        go.set()
        await take(reader, 1)
        assert [task.id for task in (await s.list()).tasks] == [quick.id, slow.id]
