"""What a newcomer gets wrong is told before the server starts, or names the remedy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from a2a_grpc import (
    A2AServer,
    Dependency,
    LifecycleHooks,
    Middleware,
    RequestContext,
    ServerSettings,
    TaskContext,
    Worker,
    pb,
)
from tests.support import FAILED, a_server, refused, request, serving, within


class Fine(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("fine")


class Blind(Worker):
    async def handle(self) -> None:  # type: ignore[override]
        return


class SyncMiddleware(Middleware):
    def before(self, request: Any, call: Any) -> None:  # type: ignore[override]
        return


def sync_hook(change: Any) -> None:
    return


async def mixed(ctx: TaskContext) -> None:
    await ctx.complete("x")


class Mixed(Worker):
    async def handle(self, ctx: RequestContext) -> None:  # type: ignore[override]
        return


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: A2AServer(Blind()), "give handle one parameter, the ctx"),
        (lambda: A2AServer(mixed), "a TaskContext goes with the method handle of a Worker"),
        (lambda: A2AServer(Mixed()), "a RequestContext with a function"),
        (lambda: A2AServer(pb.AgentCard(name="x")), "give it to A2AServer(agent, card=...)"),
        (lambda: A2AServer(Fine(), middleware=[SyncMiddleware()]), "make it `async def`"),
        (lambda: LifecycleHooks(on_terminal=sync_hook), "must be an async function"),  # type: ignore[arg-type]
        (lambda: A2AServer(Fine(), hooks={"on_terminal": 1}), "give LifecycleHooks(...)"),  # type: ignore[arg-type]
        (lambda: A2AServer(Fine(), authenticator=lambda call: None), "async authenticate(call)"),  # type: ignore[arg-type]
        (lambda: A2AServer(Fine(), settings={"port": 1}), "give ServerSettings(...)"),  # type: ignore[arg-type]
        (lambda: A2AServer(Fine(), card_signer="key.pem"), "give CardSigner(...)"),  # type: ignore[arg-type]
        (lambda: A2AServer(Fine(), deps=[1]), "give a dict, by type or name"),  # type: ignore[arg-type]
        (lambda: A2AServer(agents=[Fine()]), "give a dict of them, by tenant"),  # type: ignore[arg-type]
        (lambda: A2AServer(agents={}), "names no agent"),
    ],
)
def test_what_can_be_seen_before_the_start_is_refused_with_its_remedy(
    make: Any, remedy: str
) -> None:
    with pytest.raises(TypeError) as error:
        make()
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("setting", "value", "error", "text"),
    [
        ("grace", -1, ValueError, "grace is -1; use 0 or more"),
        ("grace", float("nan"), ValueError, "grace is nan"),
        ("port", "abc", TypeError, "port is 'abc'; use a whole number"),
        ("port", 65536, ValueError, "port is 65536"),
        ("max_attempts", True, TypeError, "max_attempts is True"),
        ("max_message_bytes", 1.5, TypeError, "use a whole number"),
        ("max_message_bytes", 2**31, ValueError, "use at most 2147483647"),
    ],
)
def test_a_setting_that_can_not_be_is_refused_by_name(
    setting: str, value: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        ServerSettings(**{setting: value})
    assert text in str(raised.value)


async def not_decorated() -> AsyncIterator[int]:
    yield 5


def fails() -> Any:
    raise OSError("the database is down")


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (not_decorated, "decorate it with contextlib.asynccontextmanager"),
        (lambda: 5, "returned int, which is no async context manager"),
        (fails, "the database is down"),
    ],
)
async def test_a_dependency_that_can_not_be_opened_is_named(factory: Any, text: str) -> None:
    server = a_server(Fine(), deps={"before": Dependency(_Open), "database": Dependency(factory)})
    with pytest.raises((OSError, TypeError)) as error:
        await within(server.__aenter__())
    assert error.value.__notes__ == ["while the dependency 'database' was opened"]
    assert text in str(error.value)
    assert _Open.open == 0


class _Open:
    open = 0

    async def __aenter__(self) -> None:
        _Open.open += 1

    async def __aexit__(self, *_: object) -> None:
        _Open.open -= 1


class Returning(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        return "hello"  # type: ignore[return-value]


class Forgetting(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        return


@pytest.mark.parametrize(
    ("worker", "text"),
    [
        (Returning(), "returned str, which nobody gets, without ending the turn"),
        (Forgetting(), "returned without ending the turn: it has to await one of complete(), "),
    ],
)
async def test_the_log_says_what_a_handle_that_ends_nothing_should_do(
    worker: Worker, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(worker) as s:
        task = await s.send()
        assert task.status.state == FAILED
    assert text in caplog.text


async def test_a_missing_and_a_wrong_tenant_are_told_apart() -> None:
    async with serving(agents={"red": Fine(), "blue": Fine()}) as s:
        missing = await refused(s.call("SendMessage", request("x")))
        assert (
            missing.message
            == "tenant: is missing: this server has several agents, each with a tenant"
        )
        wrong = await refused(s.call("SendMessage", request("x", tenant="green")))
        assert wrong.message == "tenant: is 'green', and no agent of this server is called that"
        assert missing.fields == wrong.fields == ("tenant",)


async def test_a_card_that_asks_for_credentials_nobody_checks_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    card = pb.AgentCard(name="Vault")
    card.security_schemes["token"].http_auth_security_scheme.scheme = "bearer"
    async with serving(Fine(), card=card):
        assert "the card of Vault declares security schemes" in caplog.text
