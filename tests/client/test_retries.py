"""What is tried again, how often and how late; and that a message sent again runs once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from a2a_grpc import (
    A2AClient,
    DeadlineExceededError,
    PermissionDeniedError,
    ResourceExhaustedError,
    RetryPolicy,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
    pb,
)
from a2a_grpc.client.errors import was_never_sent
from a2a_grpc.client.retry import Tries
from a2a_grpc.extensions import RETRY_EXTENSION, RETRY_MARK
from a2a_grpc.wire.status import abort
from tests.client.proxy import Proxy
from tests.client.support import (
    FAST,
    LATE,
    a_card,
    behind_proxy,
    client_of,
    eventually,
    failing,
    read,
    scripted,
    sent,
)
from tests.support import (
    CANCELED,
    COMPLETED,
    WORKING,
    a_task,
    asking,
    chunk,
    message,
    outline,
    serving,
    status_update,
    text,
    within,
)


class Counting:
    """Counts how often it runs; tells when it has; waits for `go` if told to."""

    def __init__(self, *, waits: bool = False) -> None:
        self.runs = 0
        self.ran = asyncio.Event()
        self.go = asyncio.Event()
        self._waits = waits

    async def execute(self, context: Any, queue: Any) -> None:
        self.runs += 1
        await queue.enqueue_event(a_task())
        await queue.enqueue_event(chunk(f"run {self.runs}"))
        if self._waits:
            self.ran.set()
            await self.go.wait()
        await queue.enqueue_event(status_update(COMPLETED))
        self.ran.set()

    async def cancel(self, context: Any, queue: Any) -> None: ...


# A server whose answers are scripted.


def failing_first(times: int, error: Exception, answer: bytes = b"") -> Callable[..., Any]:
    """Fails so many times; then answers."""
    left = [times]

    async def respond(method: str, request: bytes, context: Any) -> bytes:
        if left[0]:
            left[0] -= 1
            await abort(context, error)
        return answer

    return respond


READS = {
    "GetTask": lambda c: c.get_task("t"),
    "ListTasks": lambda c: c.list_tasks(),
    "CancelTask": lambda c: c.cancel_task("t"),
    "CreateTaskPushNotificationConfig": lambda c: c.create_push_config("t", "https://x.org"),
    "GetTaskPushNotificationConfig": lambda c: c.get_push_config("t", "c"),
    "ListTaskPushNotificationConfigs": lambda c: c.list_push_configs("t"),
    "DeleteTaskPushNotificationConfig": lambda c: c.delete_push_config("t", "c"),
    "GetExtendedAgentCard": lambda c: c.get_extended_card(),
    "GetAgentCard": lambda c: c.get_card(),
}


async def test_call_that_a_stopping_server_cut_off_is_tried_again() -> None:
    """gRPC ends what it has received and not handed over yet as CANCELLED when a port closes."""
    cut_off: list[str] = []

    async def respond(method: str, request: bytes, context: Any) -> bytes:
        if not cut_off:
            cut_off.append(method)
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return pb.Task(id="t").SerializeToString()

    async with (
        scripted(respond) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        assert (await within(client.get_task("t"))).id == "t"
        assert [name for name, _ in server.calls] == ["GetTask"] * 2


@pytest.mark.parametrize("method", READS)
async def test_what_is_safe_is_tried_again(method: str) -> None:
    async with (
        scripted(failing_first(3, UnavailableError())) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        await within(READS[method](client))
        assert [name for name, _ in server.calls] == [method] * 4


@pytest.mark.parametrize("method", READS)
async def test_nothing_is_tried_again_without_a_policy(method: str) -> None:
    async with (
        scripted(failing_first(1, UnavailableError("gone"))) as (server, address),
        A2AClient(address, retry=RetryPolicy.none()) as client,
    ):
        error = await failing(READS[method](client))
        assert isinstance(error, UnavailableError)
        assert len(server.calls) == 1


@pytest.mark.parametrize(
    "error", [TaskNotFoundError(), ResourceExhaustedError(), RuntimeError("boom")], ids=repr
)
async def test_other_errors_are_not_tried_again(error: Exception) -> None:
    async with (
        scripted(failing_first(1, error)) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        await failing(client.get_task("t"))
        assert len(server.calls) == 1


async def test_a_time_that_the_server_names_is_waited_for() -> None:
    answers = failing_first(1, ResourceExhaustedError(retry_after=0.3))
    async with (
        scripted(answers) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        clock = asyncio.get_running_loop().time
        begun = clock()
        await within(client.get_task("t"))
        assert clock() - begun >= 0.3
        assert len(server.calls) == 2


async def test_a_time_that_is_too_long_is_told_instead() -> None:
    answers = failing_first(1, UnavailableError(retry_after=61))
    async with (
        scripted(answers) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        error = await failing(client.get_task("t"))
        assert isinstance(error, UnavailableError)
        assert error.retry_after == 61
        assert len(server.calls) == 1


async def test_attempts_are_counted() -> None:
    policy = RetryPolicy(attempts=4, initial_backoff=0.001, max_backoff=0.001)
    async with (
        scripted(failing_first(99, UnavailableError())) as (server, address),
        A2AClient(address, retry=policy) as client,
    ):
        await failing(client.get_task("t"))
        assert len(server.calls) == 4


async def test_the_timeout_bounds_all_tries_together() -> None:
    policy = RetryPolicy(attempts=10**6, initial_backoff=0.05, max_backoff=0.05)
    clock = asyncio.get_running_loop().time
    async with (
        scripted(failing_first(10**9, UnavailableError("not now"))) as (server, address),
        A2AClient(address, retry=policy, timeout=0.5) as client,
    ):
        begun = clock()
        error = await failing(client.get_task("t"))
        assert 0.2 < clock() - begun < 2
        assert isinstance(error, UnavailableError | DeadlineExceededError)
        assert len(server.calls) > 3


async def test_each_try_gets_what_is_left_of_the_timeout() -> None:
    remaining = []

    async def respond(method: str, request: bytes, context: Any) -> bytes:
        remaining.append(context.time_remaining())
        if len(remaining) < 3:
            await asyncio.sleep(0.2)
            await abort(context, UnavailableError())
        return b""

    async with (
        scripted(respond) as (_, address),
        A2AClient(address, retry=FAST) as client,
    ):
        await within(client.get_task("t", timeout=2))
    # On the wire a deadline may be rounded up by a few hundredths.
    assert remaining[0] < 2.1
    assert remaining[1] < remaining[0] - 0.1
    assert remaining[2] < remaining[1] - 0.1


def test_backoff_grows_up_to_its_bound_and_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RetryPolicy(initial_backoff=0.5, max_backoff=3, multiplier=2)
    monkeypatch.setattr("random.random", lambda: 1.0)
    assert [policy.backoff(n) for n in range(1, 6)] == [0.5, 1, 2, 3, 3]
    monkeypatch.setattr("random.random", lambda: 0.0)
    assert policy.backoff(5) == 0
    assert RetryPolicy(attempts=2000).backoff(1999) == 0, "no overflow"


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"initial_backoff": -1},
        {"max_backoff": float("nan")},
        {"multiplier": 0.5},
        {"longest_wait": float("inf")},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


async def test_those_who_were_told_the_same_time_do_not_come_back_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.random", lambda: 0.5)
    tries = Tries(RetryPolicy(initial_backoff=1), None, "GetTask", asyncio.sleep)
    assert tries.delay(UnavailableError(retry_after=5)) == 5.5


async def test_what_would_come_after_the_timeout_is_not_waited_for() -> None:
    tries = Tries(RetryPolicy(), 1.0, "GetTask", asyncio.sleep)
    error = UnavailableError(retry_after=5)
    with pytest.raises(UnavailableError) as caught:
        await within(tries.pause(error), 0.5)
    assert caught.value is error


# Canceling again.


async def test_a_cancel_whose_answer_was_lost_returns_the_canceled_task() -> None:
    agent = Counting(waits=True)
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        task = await sent(client, "hello", return_immediately=True)
        await within(agent.ran.wait())

        async def canceled() -> bool:
            return (await s.get(task.id)).status.state == CANCELED

        proxy.hold_answers()
        canceling = asyncio.create_task(client.cancel_task(task.id))
        await eventually(canceled)
        proxy.cut()
        proxy.release_answers()
        answer = await within(canceling)
        assert (answer.id, answer.status.state) == (task.id, CANCELED)


async def test_a_cancel_of_a_task_that_ended_otherwise_is_refused_also_when_repeated() -> None:
    agent = Counting()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        task = await sent(client, "hello")
        proxy.cuts = [60]
        proxy.cut()
        assert isinstance(await failing(client.cancel_task(task.id)), TaskNotCancelableError)


async def test_a_push_configuration_is_created_once() -> None:
    async with (
        serving(asking, allow_private_webhooks=True) as s,
        behind_proxy(s) as (client, proxy),
    ):
        task = await sent(client, "hello")
        request = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)

        async def created() -> bool:
            return bool((await s.call("ListTaskPushNotificationConfigs", request)).configs)

        proxy.hold_answers()
        creating = asyncio.create_task(
            client.create_push_config(task.id, "http://127.0.0.1:9/hook")
        )
        await eventually(created)
        proxy.cut()
        proxy.release_answers()
        made = await within(creating)
        assert [config.id for config in await client.list_push_configs(task.id)] == [made.id]


# Sending again.


@asynccontextmanager
async def lost_answer(proxy: Proxy, agent: Counting) -> Any:
    """The server handles what is sent inside; the answer is lost with the connection."""
    proxy.hold_answers()
    yield
    await within(agent.ran.wait())
    proxy.cut()
    proxy.release_answers()


async def test_a_message_whose_answer_was_lost_runs_once(serve: Callable[..., Any]) -> None:
    agent = Counting()
    async with serve(agent) as s, behind_proxy(s) as (client, proxy):
        async with lost_answer(proxy, agent):
            sending = asyncio.create_task(sent(client, "hello"))
        task = await within(sending)
        assert agent.runs == 1
        assert task.status.state == COMPLETED
        assert text(task.artifacts[0]) == "run 1"
        assert (await client.list_tasks()).total_size == 1


async def test_a_message_that_still_runs_is_waited_for_again() -> None:
    agent = Counting(waits=True)
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        sending = asyncio.create_task(sent(client, "hello"))
        await within(agent.ran.wait())
        for _ in range(3):
            before = proxy.connections
            proxy.cut()
            await eventually(lambda: proxy.connections > before)  # noqa: B023
        agent.go.set()
        task = await within(sending)
        assert agent.runs == 1
        assert task.status.state == COMPLETED


async def test_whether_the_server_deduplicates_is_asked_when_it_matters() -> None:
    """Made from an address alone, the client asks for the card before it sends again."""
    agent = Counting()
    async with (
        serving(agent) as s,
        Proxy(s.server.address) as proxy,
        A2AClient(proxy.address, retry=FAST) as client,
    ):
        await client.list_tasks()
        async with lost_answer(proxy, agent):
            sending = asyncio.create_task(sent(client, "hello"))
        assert (await within(sending)).status.state == COMPLETED
        assert agent.runs == 1


@pytest.mark.parametrize("how", ["send", "stream"])
async def test_a_message_is_not_sent_again_to_a_server_that_may_run_it_twice(how: str) -> None:
    agent = Counting()
    async with serving(agent) as s, behind_proxy(s, window=None) as (client, proxy):
        async with lost_answer(proxy, agent):
            if how == "send":
                call: Any = sent(client, "hello", message_id="m-17")
            else:
                call = read(client.stream("hello", message_id="m-17"))
            sending = asyncio.create_task(call)
        error = await failing(sending)
        assert isinstance(error, UnavailableError)
        assert "m-17" in error.message
        assert RETRY_EXTENSION in error.message
        assert agent.runs == 1


async def test_what_is_known_not_to_be_sent_again_is_told_at_once() -> None:
    async with (
        scripted(failing_first(1, UnavailableError())) as (_, address),
        A2AClient(a_card(address, window=None), retry=LATE) as client,
    ):
        assert RETRY_EXTENSION in (await failing(client.send("hello"))).message


async def test_a_server_that_can_not_be_asked_yet_is_asked_again() -> None:
    card = a_card("").SerializeToString()
    answer = pb.SendMessageResponse(task=a_task(id="t")).SerializeToString()

    async def respond(method: str, request: bytes, context: Any) -> bytes:
        if len(server.calls) < 4:
            await abort(context, UnavailableError())
        return card if method == "GetAgentCard" else answer

    async with (
        scripted(respond) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        await within(sent(client, "hello"))
        methods = [method for method, _ in server.calls]
        assert methods == ["SendMessage", *["GetAgentCard"] * 3, "SendMessage"]


async def test_a_server_without_discovery_is_not_sent_a_message_again() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        if method == "GetAgentCard":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        await abort(context, UnavailableError("gone"))
        return b""

    async with (
        scripted(respond) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        for _ in range(2):
            error = await failing(sent(client, "hello"))
            assert isinstance(error, UnavailableError)
            assert "gone" in error.message
            assert RETRY_EXTENSION in error.message
        methods = [name for name, _ in server.calls]
        assert methods == ["SendMessage", "GetAgentCard", "SendMessage"], "asked once"


async def test_a_server_that_does_not_tell_whether_it_deduplicates_is_not_sent_it_again() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        if method == "GetAgentCard":
            await abort(context, PermissionDeniedError("no cards for you"))
        await abort(context, UnavailableError("gone"))
        return b""

    async with (
        scripted(respond) as (server, address),
        A2AClient(address, retry=FAST) as client,
    ):
        error = await failing(client.send("hello"))
        assert isinstance(error, UnavailableError)
        assert "gone" in error.message
        assert "no cards for you" in error.message
        assert [name for name, _ in server.calls] == ["SendMessage", "GetAgentCard"]


async def test_only_tries_that_may_repeat_work_are_marked() -> None:
    """Marks make the server look for an earlier message; the first try is new work."""
    answer = pb.SendMessageResponse(task=a_task(id="t")).SerializeToString()
    async with (
        scripted(failing_first(2, UnavailableError(), answer)) as (server, address),
        A2AClient(a_card(address), retry=FAST) as client,
    ):
        await within(sent(client, "hello"))
        marks = [metadata.get(RETRY_MARK) for _, metadata in server.calls]
        assert marks == [None, "1", "1"]


@pytest.mark.parametrize("how", ["send", "stream"])
async def test_a_message_that_was_refused_with_a_time_is_new_when_it_is_sent_again(
    how: str,
) -> None:
    """RESOURCE_EXHAUSTED is an answer: marked, the server would look up that very answer."""

    async def respond(method: str, request: bytes, context: Any) -> Any:
        if len(server.calls) < 3:
            await abort(context, ResourceExhaustedError(retry_after=0.01))
        task = a_task(COMPLETED, id="t")
        if how == "send":
            yield pb.SendMessageResponse(task=task).SerializeToString()
        else:
            yield pb.StreamResponse(task=task).SerializeToString()

    async with (
        scripted(respond, streaming=True) as (server, address),
        A2AClient(a_card(address, window=None), retry=FAST) as client,
    ):
        call: Any = sent(client, "hello") if how == "send" else read(client.stream("hello"))
        await within(call)
        assert [metadata.get(RETRY_MARK) for _, metadata in server.calls] == [None] * 3


async def test_a_message_is_not_sent_again_when_the_window_is_about_to_pass() -> None:
    """What is sent then might arrive when the server has forgotten the first one."""

    async def respond(method: str, request: bytes, context: Any) -> bytes:
        await asyncio.sleep(0.17)
        await abort(context, UnavailableError())
        return b""

    async with (
        scripted(respond) as (server, address),
        A2AClient(a_card(address, window=0.2), retry=FAST) as client,
    ):
        error = await failing(sent(client, "hello"))
        assert "0.2 seconds" in error.message
        assert len(server.calls) == 1


async def test_a_message_that_never_left_this_machine_is_sent_again_to_anybody() -> None:
    agent = Counting()
    async with serving(agent) as s:
        async with Proxy(s.server.address) as free:
            pass  # its port is free now
        async with A2AClient(a_card(free.address, window=None), retry=FAST) as client:
            sending = asyncio.create_task(sent(client, "hello"))
            await asyncio.sleep(0.1)
            assert not sending.done()
            revived = Proxy(s.server.address)
            revived._server = await asyncio.start_server(revived._serve, "127.0.0.1", free.port)
            try:
                assert (await within(sending)).status.state == COMPLETED
            finally:
                await revived.__aexit__(None, None, None)
        assert agent.runs == 1


@pytest.mark.parametrize(("named", "proof"), [("127.0.0.1:7", True), ("10.0.0.9:7", False)])
def test_a_call_that_failed_just_before_the_connection_was_made_never_left(
    named: str, proof: bool
) -> None:
    """Under load the failure is looked at when the next attempt to connect has succeeded."""

    class Connected:
        def get_state(self) -> grpc.ChannelConnectivity:
            return grpc.ChannelConnectivity.READY

    none = grpc.aio.Metadata()
    text = (
        f"failed to connect to all addresses; last error: UNKNOWN: ipv4:{named}: Failed to connect "
        "to remote host: Connection refused"
    )
    failure = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, text)
    assert was_never_sent(failure, Connected(), "127.0.0.1:7") is proof


async def test_a_refusal_that_a_server_words_as_if_nobody_was_there_is_no_proof() -> None:
    async def respond(method: str, request: bytes, context: Any) -> bytes:
        text = "failed to connect to all addresses; last error: Connection refused"
        await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        return b""

    async with (
        scripted(respond) as (server, address),
        A2AClient(a_card(address, window=None), retry=FAST) as client,
    ):
        error = await failing(sent(client, "hello"))
        assert RETRY_EXTENSION in error.message
        assert len(server.calls) == 1


async def test_a_streamed_message_whose_first_event_was_lost_runs_once(
    serve: Callable[..., Any],
) -> None:
    agent = Counting(waits=True)
    async with serve(agent) as s, behind_proxy(s) as (client, proxy):
        stream = client.stream("hello")
        async with lost_answer(proxy, agent):
            reading = asyncio.create_task(read(stream))
        await eventually(lambda: stream.reconnects)
        agent.go.set()
        events = await within(reading)
        assert outline(events)[-1] == "status COMPLETED"
        first = events[0].task
        assert first.status.state == WORKING
        shown = [text(one) for one in first.artifacts]
        assert shown + [o for o in outline(events) if o.startswith("artifact")] in (
            ["run 1"],
            ["artifact run 1"],
        )
        assert agent.runs == 1


async def test_a_streamed_message_that_ended_meanwhile_shows_its_end() -> None:
    agent = Counting()
    async with serving(agent) as s, behind_proxy(s) as (client, proxy):
        async with lost_answer(proxy, agent):
            reading = asyncio.create_task(read(client.stream("hello")))
        events = await within(reading)
        assert agent.runs == 1
        assert outline(events)[-1] in ("task COMPLETED", "status COMPLETED")


async def test_the_same_message_sent_twice_on_purpose_is_new_work() -> None:
    agent = Counting()
    same = message("again")
    async with serving(agent) as s, client_of(s) as client:
        one, two = await sent(client, same), await sent(client, same)
        assert one.id != two.id
        assert agent.runs == 2


async def test_a_server_that_asks_for_new_connections_loses_and_doubles_nothing() -> None:
    """GOAWAY between two calls, and under them."""
    agent = Counting()
    async with (
        serving(agent, max_connection_age=0.05) as s,
        Proxy(s.server.address) as proxy,
        A2AClient(proxy.address, retry=FAST) as client,
    ):
        sends = 0
        while proxy.connections < 5:
            assert (await sent(client, "hello")).status.state == COMPLETED
            sends += 1
        assert agent.runs == sends


async def test_a_call_that_is_cancelled_while_it_waits_for_its_next_try_ends() -> None:
    policy = RetryPolicy(attempts=5, initial_backoff=60, max_backoff=60)
    async with (
        scripted(failing_first(9, UnavailableError())) as (server, address),
        A2AClient(address, retry=policy) as client,
    ):
        calling = asyncio.create_task(client.get_task("t"))
        await eventually(lambda: server.calls)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(calling)
