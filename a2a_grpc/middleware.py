"""Middleware: what a server does before and after each operation, whatever transport brought it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from a2a_grpc.agent.call_context import ServerCallContext

logger = logging.getLogger(__name__)

Unary = Callable[[Any, ServerCallContext], Awaitable[Any]]
Streaming = Callable[[Any, ServerCallContext], AsyncIterator[bytes]]


class Middleware:
    """Sees every operation of A2A; a subclass defines `before`, `after`, or both.

    `call.method` names the operation, such as "SendMessage". What `before` puts into
    `call.request_context` reaches the agent as `TaskContext.request_context`: in this process only,
    since it is neither stored nor sent anywhere, and only at the agent's first attempt.
    """

    async def before(self, request: Message, call: ServerCallContext) -> None:
        """Called after the request was checked and its caller authenticated.

        It may change the request, which is not checked again and whose tenant has been read by
        then; and refuse it by raising an A2AError. Anything else that it raises is logged, and the
        caller gets INTERNAL.
        """

    async def after(
        self,
        request: Message,
        call: ServerCallContext,
        result: Any,
        error: BaseException | None,
    ) -> None:
        """Called when the operation is over, in the reverse order, if `before` returned.

        `result` is what the operation returned, None for a stream; `error` what it raised, a
        CancelledError if its caller went away. What `after` raises is logged and changes nothing.
        """


def checked(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The middleware; raises TypeError, naming the remedy, for what is none."""
    if not isinstance(middleware, Sequence):
        raise TypeError(f"middleware is a {type(middleware).__name__}; give a list")
    for one in middleware:
        if isinstance(one, type):
            raise TypeError(
                f"middleware takes objects: give {one.__name__}() in place of the class"
            )
        if not isinstance(one, Middleware):
            raise TypeError(f"{one!r} is no middleware: subclass a2a_grpc.Middleware")
        for method in (one.before, one.after):
            if not inspect.iscoroutinefunction(method):
                name = f"{type(one).__name__}.{method.__name__}"
                raise TypeError(f"{name} is not async; make it `async def`")
    return tuple(middleware)


def around_unary(operation: Unary, middleware: Sequence[Middleware]) -> Unary:
    """The operation with the middleware around it, the first outermost."""
    if not middleware:
        return operation

    async def surrounded(request: Message, call: ServerCallContext) -> Any:
        entered: list[Middleware] = []
        result, error = None, None
        try:
            await _enter(middleware, entered, request, call)
            result = await operation(request, call)
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            await _leave(entered, request, call, result, error)

    return surrounded


def around_streaming(operation: Streaming, middleware: Sequence[Middleware]) -> Streaming:
    """The operation with the middleware around it, from before its first event to its end."""
    if not middleware:
        return operation

    async def surrounded(request: Message, call: ServerCallContext) -> AsyncIterator[bytes]:
        entered: list[Middleware] = []
        error: BaseException | None = None
        try:
            await _enter(middleware, entered, request, call)
            async with aclosing(operation(request, call)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
        except GeneratorExit:
            # The stream is given up between two events: for middleware the same as within one.
            error = asyncio.CancelledError()
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            await _leave(entered, request, call, None, error)

    return surrounded


async def _enter(
    middleware: Sequence[Middleware],
    entered: list[Middleware],
    request: Message,
    call: ServerCallContext,
) -> None:
    for one in middleware:
        await one.before(request, call)
        entered.append(one)


async def _leave(
    entered: list[Middleware],
    request: Message,
    call: ServerCallContext,
    result: Any,
    error: BaseException | None,
) -> None:
    cancelled: asyncio.CancelledError | None = None
    for one in reversed(entered):
        try:
            await one.after(request, call, result, error)
        except asyncio.CancelledError as raised:
            cancelled = raised  # the others still hear that the operation is over
        except Exception:
            logger.exception("%s.after() failed for %s", type(one).__name__, call.method)
    if cancelled is not None:
        raise cancelled
