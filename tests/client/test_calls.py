"""What goes with a call: tokens, metadata, extensions; and what interceptors see of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_grpc import (
    A2AClient,
    ClientCall,
    Principal,
    RetryPolicy,
    ServerCallContext,
    UnauthenticatedError,
    UnavailableError,
    pb,
)
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from tests.client.support import (
    FAST,
    a_card,
    behind_proxy,
    client_of,
    failing,
    read,
    read_some,
    scripted,
    sent,
)
from tests.client.test_retries import failing_first
from tests.client.test_streams import Steps, numbers
from tests.support import COMPLETED, Gated, a_task, echo, fold, outline, serving


class Listing:
    """Lets everybody in and notes the metadata of their calls."""

    def __init__(self) -> None:
        self.calls: list[ServerCallContext] = []

    async def authenticate(self, call: ServerCallContext) -> Principal:
        self.calls.append(call)
        if call.metadata.get("authorization") == "Bearer bad":
            raise UnauthenticatedError("this token is bad")
        return Principal("somebody")


async def test_a_token_goes_with_every_call() -> None:
    listing = Listing()
    async with serving(echo, authenticator=listing) as s:
        async with client_of(s, token="secret") as client:
            await sent(client, "hello")
            await read(client.stream("hello"))
        assert [c.metadata["authorization"] for c in listing.calls] == ["Bearer secret"] * 2
        async with client_of(s, token="bad") as client:
            error = await failing(sent(client, "hello"))
            assert isinstance(error, UnauthenticatedError)
            error = await failing(read(client.stream("hello")))
            assert isinstance(error, UnauthenticatedError)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_token_that_is_a_function_is_asked_for_each_try(kind: str) -> None:
    asked = 0

    def sync() -> str:
        nonlocal asked
        asked += 1
        return f"token-{asked}"

    async def awaited() -> str:
        return sync()

    async with (
        scripted(failing_first(2, UnavailableError())) as (server, address),
        A2AClient(address, token=awaited if kind == "async" else sync, retry=FAST) as client,
    ):
        await client.get_task("t")
        tokens = [metadata["authorization"] for _, metadata in server.calls]
        assert tokens == ["Bearer token-1", "Bearer token-2", "Bearer token-3"]


async def test_what_a_token_function_raises_is_raised() -> None:
    def broken() -> str:
        raise LookupError("no token today")

    async with A2AClient("127.0.0.1:1", token=broken, retry=FAST) as client:
        with pytest.raises(LookupError, match="no token today"):
            await client.get_task("t")
        with pytest.raises(LookupError, match="no token today"):
            await read(client.stream("hello"))
    async with A2AClient("127.0.0.1:1", token=lambda: "a\nb", retry=FAST) as client:
        with pytest.raises(ValueError, match="token"):
            await client.get_task("t")


async def test_a_token_over_plaintext_to_elsewhere_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with A2AClient("nobody.invalid:1", token="secret", retry=RetryPolicy.none()) as client:
        await failing(client.get_task("t"))
        await failing(client.get_task("t"))
    assert [r.getMessage() for r in caplog.records if "plaintext" in r.getMessage()] == [
        "the token is sent to nobody.invalid:1 in plaintext, where anybody on the way can read "
        "it; use grpcs:// or tls=True"
    ]
    assert "secret" not in caplog.text
    caplog.clear()
    async with A2AClient("localhost:1", token="secret"):
        pass
    assert not caplog.records


async def test_metadata_goes_with_every_call() -> None:
    listing = Listing()
    asked = 0

    async def provide() -> list[tuple[str, str]]:
        nonlocal asked
        asked += 1
        return [("x-request-id", str(asked))]

    async with serving(echo, authenticator=listing) as s:
        async with client_of(s, metadata=[("x-request-id", "fixed")]) as client:
            await client.list_tasks()
        async with client_of(s, metadata=provide) as client:
            await client.list_tasks()
            await read(client.stream("hello"))
    assert [c.metadata["x-request-id"] for c in listing.calls] == ["fixed", "1", "2"]


async def test_metadata_that_is_wrong_is_told() -> None:
    async def provide() -> list[tuple[str, str]]:
        return [("Wrong", "x")]

    async with A2AClient("127.0.0.1:1", metadata=provide) as client:
        with pytest.raises(ValueError, match="Wrong"):
            await client.get_task("t")


async def test_the_version_and_the_extensions_are_named() -> None:
    listing = Listing()
    async with serving(echo, authenticator=listing) as s:
        async with client_of(s, extensions=["urn:a", "urn:b"]) as client:
            await client.list_tasks()
            await sent(client, "hello", extensions=["urn:b", "urn:c"])
            await read(client.stream("hello", extensions=["urn:c"]))
        async with client_of(s) as client:
            await client.list_tasks()
    assert {c.metadata["a2a-version"] for c in listing.calls} == {"1.0"}
    asked = [c.metadata.get("a2a-extensions") for c in listing.calls]
    everything = f"urn:a,urn:b,urn:c,{SEQUENCE_EXTENSION}"
    assert asked == ["urn:a,urn:b", "urn:a,urn:b,urn:c", everything, None]


# Interceptors.


class Noting:
    """Notes the calls and their ends; adds metadata."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    async def intercept_unary(self, call: ClientCall, proceed: Any) -> Any:
        self._notes.append(f"{self._name} {call.method}")
        call.metadata.append(("x-request-id", self._name))
        answer = await proceed(call)
        self._notes.append(f"{self._name} {type(answer).__name__}")
        return answer

    async def intercept_stream(
        self, call: ClientCall, proceed: Any
    ) -> AsyncIterator[pb.StreamResponse]:
        self._notes.append(f"{self._name} {call.method}")
        call.metadata.append(("x-request-id", self._name))
        async for event in proceed(call):
            yield event
        self._notes.append(f"{self._name} end")


async def test_interceptors_wrap_each_other_in_order() -> None:
    notes: list[str] = []
    listing = Listing()
    interceptors = [Noting("a", notes), Noting("b", notes)]
    async with (
        serving(echo, authenticator=listing) as s,
        client_of(s, interceptors=interceptors) as client,
    ):
        assert (await sent(client, "hello")).status.state == COMPLETED
        stream = client.stream("hello")
        assert len(await read(stream)) == 3
        assert stream.sequence == 3
        assert stream.task_id
    assert notes == [
        *("a SendMessage", "b SendMessage", "b SendMessageResponse", "a SendMessageResponse"),
        *("a SendStreamingMessage", "b SendStreamingMessage", "b end", "a end"),
    ]
    assert [c.metadata["x-request-id"] for c in listing.calls] == ["a,b", "a,b"]


async def test_interceptors_see_a_call_once_and_its_tries_never() -> None:
    notes: list[str] = []
    answer = a_task(id="t").SerializeToString()
    async with (
        scripted(failing_first(3, UnavailableError(), answer)) as (server, address),
        A2AClient(address, retry=FAST, interceptors=[Noting("a", notes)]) as client,
    ):
        await client.get_task("t")
        assert notes == ["a GetTask", "a Task"]
        assert [metadata["x-request-id"] for _, metadata in server.calls] == ["a"] * 4


async def test_interceptors_see_a_stream_once_however_often_it_breaks() -> None:
    notes: list[str] = []
    agent = Steps()
    async with (
        serving(agent) as s,
        behind_proxy(s, interceptors=[Noting("a", notes)]) as (client, proxy),
    ):
        notes.clear()
        stream = client.stream("hello")
        seen = await read_some(stream, 1)
        for n in range(3):
            proxy.cut()
            agent.step(*numbers(1, n))
            seen += await read_some(stream, 1)
        agent.finish()
        seen += await read(stream)
        assert fold(seen) == ("COMPLETED", {"a": "0,1,2,"})
        assert notes == ["a SendStreamingMessage", "a end"]


async def test_interceptors_may_change_a_call_or_answer_it() -> None:
    class Answering:
        async def intercept_unary(self, call: ClientCall, proceed: Any) -> Any:
            if call.method == "GetTask" and call.request.id == "cached":
                return a_task(COMPLETED, id="cached")
            call.timeout = 0.1
            return await proceed(call)

    agent = Gated()
    async with serving(agent) as s, client_of(s, interceptors=[Answering()]) as client:
        assert (await client.get_task("cached")).status.state == COMPLETED
        assert isinstance(await failing(sent(client, "hello")), TimeoutError)
        events = await read_some(client.stream("no interceptor for streams"), 1)
        assert outline(events) == ["task WORKING"]
        agent.go.set()


async def test_leaving_a_stream_leaves_its_interceptors() -> None:
    left = []

    class Leaving:
        async def intercept_stream(
            self, call: ClientCall, proceed: Any
        ) -> AsyncIterator[pb.StreamResponse]:
            try:
                async for event in proceed(call):
                    yield event
            finally:
                left.append(True)

    agent = Gated()
    async with serving(agent) as s, client_of(s, interceptors=[Leaving()]) as client:
        async with client.stream("hello") as stream:
            await read_some(stream, 1)
        assert left == [True]
        agent.go.set()


async def test_a_card_that_was_given_says_whom_to_call_with_which_token() -> None:
    listing = Listing()
    async with (
        serving(echo, authenticator=listing) as s,
        A2AClient(a_card(s.server.address), token="secret") as client,
    ):
        await sent(client, "hello")
    assert listing.calls[0].metadata["authorization"] == "Bearer secret"
