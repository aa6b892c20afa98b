"""Lifecycle hooks: a server's own code hears of a task's changes of state, once they are stored."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self

from a2a_grpc import pb
from a2a_grpc.bus.base import Committed
from a2a_grpc.task import INTERRUPTED_STATES, TERMINAL_STATES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateChange:
    """A task's change of state.

    Attributes:
        task_id, context_id: which task.
        state: the state that it has now.
        message: what its status says; None if it says nothing.
    """

    task_id: str
    context_id: str
    state: pb.TaskState.ValueType
    message: pb.Message | None


Hook = Callable[[StateChange], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleHooks:
    """Async functions that are called with a `StateChange`.

    They are called in the process that stored the change, after it was stored, one after another
    for one task. One that fails is logged and changes nothing. If the process dies between the two,
    the call is lost: what must not be lost belongs into the agent, or into a push configuration.

    Attributes:
        on_state_change: every change that an agent or a caller made to its own task; not a task
            that an agent attached as related.
        on_working: the agent has begun, or goes on.
        on_turn_end: the agent waits: INPUT_REQUIRED or AUTH_REQUIRED.
        on_terminal: the task has ended.
    """

    on_state_change: Hook | None = None
    on_working: Hook | None = None
    on_turn_end: Hook | None = None
    on_terminal: Hook | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            hook = getattr(self, one.name)
            if hook is not None and not _is_async(hook):
                raise TypeError(f"{one.name} must be an async function, not {hook!r}")

    def of(self, state: int) -> tuple[Hook, ...]:
        """What to call for a state, in this order."""
        specific = None
        if state in TERMINAL_STATES:
            specific = self.on_terminal
        elif state in INTERRUPTED_STATES:
            specific = self.on_turn_end
        elif state == pb.TaskState.TASK_STATE_WORKING:
            specific = self.on_working
        return tuple(hook for hook in (self.on_state_change, specific) if hook is not None)


def _is_async(hook: Any) -> bool:
    called = getattr(hook, "__call__", None)  # noqa: B004  of an object, its method
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(called)


class HookRunner:
    """Calls the hooks, apart from the tasks' own work; an async context manager.

    Leaving it waits for the calls that are due, for `PATIENCE` seconds at the most.

    Args:
        hooks: what to call.
    """

    MAX_DUE = 10_000
    """Changes whose hooks wait or run; beyond it they are dropped, with an error in the log."""
    PATIENCE = 5.0

    def __init__(self, hooks: LifecycleHooks) -> None:
        self._hooks = hooks
        self._due: dict[str, deque[StateChange]] = {}
        self._count = 0
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self.PATIENCE)
            for task in late:
                task.cancel()
            if late:
                logger.error("hooks that did not end in time, and were cancelled: %d", len(late))
                await asyncio.wait(late, timeout=self.PATIENCE)

    def committed(self, committed: Committed, state_before: int) -> None:
        """Take in a commit, and call the hooks for its changes of state soon."""
        for payload in committed.payloads:
            change = _change(payload)
            if change is None or change.state == state_before:
                continue
            state_before = change.state
            if self._hooks.of(change.state):
                self._add(change)

    def _add(self, change: StateChange) -> None:
        if self._count >= self.MAX_DUE:
            logger.error(
                "no hook is called for task %s: %d changes wait already; hooks are too slow",
                change.task_id,
                self._count,
            )
            return
        self._count += 1
        due = self._due.get(change.task_id)
        if due is not None:
            due.append(change)
            return
        self._due[change.task_id] = deque((change,))
        running = asyncio.create_task(self._call(change.task_id), name=f"hooks:{change.task_id}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _call(self, task_id: str) -> None:
        due = self._due[task_id]
        try:
            while due:
                change = due[0]
                for hook in self._hooks.of(change.state):
                    try:
                        await hook(change)
                    except asyncio.CancelledError:
                        if _is_cancelled():
                            raise
                        logger.exception("a hook was cancelled for task %s", task_id)
                    except Exception:
                        logger.exception("a hook failed for task %s", task_id)
                due.popleft()
                self._count -= 1
        finally:
            self._count -= len(due)
            del self._due[task_id]


def _is_cancelled() -> bool:
    """Whether this very task is, rather than something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# How a StreamResponse with `task` or `status_update` begins; chunks of artifacts may be large.
_WITH_STATE = (b"\x0a", b"\x1a")


def _change(payload: bytes) -> StateChange | None:
    if payload[:1] not in _WITH_STATE:
        return None
    event = pb.StreamResponse.FromString(payload)
    task: pb.Task | pb.TaskStatusUpdateEvent
    if event.HasField("task"):
        task, task_id = event.task, event.task.id
    elif event.HasField("status_update"):
        task, task_id = event.status_update, event.status_update.task_id
    else:
        return None
    message = task.status.message if task.status.HasField("message") else None
    return StateChange(task_id, task.context_id, task.status.state, message)
