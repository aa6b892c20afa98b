"""The only writer of a task while its turn runs: checks, commits, then tells.

Nothing reaches the bus before storage has it. What an agent publishes is checked against the small
facts about the task that are kept here (does it exist, has it ended, which artifacts has it), so
that the cost of an event does not depend on the size of the task.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from a2a_grpc import pb
from a2a_grpc.agent.executor import Event
from a2a_grpc.bus.base import Committed, EventBus, OnCommit, ignore_commit
from a2a_grpc.errors import InvalidAgentResponseError, UnavailableError
from a2a_grpc.storage.base import AnyStorage
from a2a_grpc.storage.patience import patiently
from a2a_grpc.storage.values import (
    Commit,
    FenceLostError,
    Operation,
    Outcome,
    OutcomeKind,
    StorageError,
    Turn,
    check_related,
)
from a2a_grpc.structs import StructError, check_readable
from a2a_grpc.task import INTERRUPTED_STATES, TERMINAL_STATES, EntryKind, LogEntry

logger = logging.getLogger(__name__)

# Looking an enum's value up by name is not free, and these are needed for every task.
_SUBMITTED = pb.TaskState.TASK_STATE_SUBMITTED
_AGENT = pb.Role.ROLE_AGENT


class EventConsumer:
    """Commits one turn's events, in order and in batches.

    Guarantees:

    - An event is published only after it was committed; commits are published in their order.
    - Nothing follows a terminal state: later events of the turn are dropped.
    - When the storage refuses a commit because the turn lost the task, nothing more is written or
      published, and `on_lost` is called.

    Args:
        turn: the turn, as storage began it.
        storage, bus: where commits go.
        on_lost: called once if the task is lost.
        on_commit: called after every commit with events.
        goes_on: whether the agent still works; if not, what is pending waits for `finish`.
    """

    MAX_PENDING_EVENTS = 64
    MAX_PENDING_BYTES = 2**20
    RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0)
    """Seconds between tries while the storage can't be reached; the last one repeats."""
    MAX_RETRIES = 35
    """Tries beyond the first, in a storage without a lease."""

    def __init__(
        self,
        turn: Turn,
        *,
        storage: AnyStorage,
        bus: EventBus,
        on_lost: Callable[[], None],
        on_commit: OnCommit = ignore_commit,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.operation: Operation = turn.operation
        self._fence = turn.fence
        self._storage = storage
        self._bus = bus
        self._on_lost = on_lost
        self._on_commit = on_commit
        self._goes_on = goes_on
        snapshot = turn.snapshot
        self._version = 0 if snapshot is None else snapshot.version
        self._sequence = 0 if snapshot is None else snapshot.sequence
        self.state: int = 0 if snapshot is None else snapshot.task.status.state
        self._status_at = 0
        self._artifact_ids = (
            set() if snapshot is None else {a.artifact_id for a in snapshot.task.artifacts}
        )
        if snapshot is not None:
            self._status_at = snapshot.task.status.timestamp.ToNanoseconds()
        self.reply: pb.Message | None = None
        self.violation: InvalidAgentResponseError | None = None
        self._state_is_ours = False
        self.lost = False
        self._ended = False
        self._pending: list[LogEntry] = []
        self._pending_bytes = 0
        self._committed_version = self._version
        self._committed_sequence = self._sequence
        self._committed_state = self.state
        self._lock = asyncio.Lock()
        self._drain_scheduled = False
        self._drainer: asyncio.Task[None] | None = None
        self._progress: asyncio.Future[None] | None = None  # until the next commit

    @property
    def visible(self) -> bool:
        """Whether the task exists for its callers, or will with the next commit."""
        return self._version > 0

    @property
    def terminal(self) -> bool:
        """Whether the task has ended."""
        return self.state in TERMINAL_STATES

    @property
    def settled(self) -> bool:
        """Whether this turn has brought the task to an end or to an interruption."""
        return self._state_is_ours and (self.terminal or self.state in INTERRUPTED_STATES)

    @property
    def is_full(self) -> bool:
        """Whether the agent is a whole batch ahead of storage."""
        return (
            len(self._pending) >= self.MAX_PENDING_EVENTS
            or self._pending_bytes >= self.MAX_PENDING_BYTES
        )

    # What the agent publishes.

    def accept(self, event: Event) -> None:
        """Check an event and take it into the next commit.

        Raises InvalidAgentResponseError if it is not allowed here; see `AgentExecutor.execute`.
        """
        if self.terminal or self.lost:
            logger.warning(
                "dropped an event of task %s: the task has ended", self.operation.task_id
            )
            return
        if self.violation is not None:
            raise self.violation
        if isinstance(event, pb.TaskArtifactUpdateEvent):
            self._accept_artifact(event)
        elif isinstance(event, pb.TaskStatusUpdateEvent):
            self._accept_status(event)
        elif isinstance(event, pb.Task):
            self._accept_task(event)
        elif isinstance(event, pb.Message):
            self._accept_reply(event)
        else:
            raise self._violates(
                f"published a {type(event).__name__}, not a Message, Task, TaskStatusUpdateEvent "
                "or TaskArtifactUpdateEvent"
            )

    def _violates(self, what: str) -> InvalidAgentResponseError:
        self.violation = InvalidAgentResponseError(
            f"the agent {what}", metadata={"task_id": self.operation.task_id}
        )
        return self.violation

    def _check_readable(self, kind: str, *holders: pb.Message | pb.Artifact) -> None:
        """Refuse Structs that nobody could read once they are part of a listed task."""
        try:
            for holder in holders:
                if holder.HasField("metadata"):
                    check_readable(holder.metadata)
                for part in holder.parts:
                    if part.HasField("data"):
                        check_readable(part.data)
                    if part.HasField("metadata"):
                        check_readable(part.metadata)
        except StructError as error:
            raise self._violates(f"published a {kind} whose data {error}") from error

    def _accept_reply(self, event: pb.Message) -> None:
        if self.visible:
            raise self._violates(
                "published a Message although the task exists; put it into a status update"
            )
        if self.reply is not None:
            raise self._violates("published a second Message; a direct reply is one Message")
        self._check_readable("Message", event)
        reply = pb.Message()
        reply.CopyFrom(event)
        if not reply.parts:
            raise self._violates("published a Message without parts")
        self._complete_message(reply, self.operation.context_id)
        self.reply = reply

    def _accept_task(self, event: pb.Task) -> None:
        if self.reply is not None:
            raise self._violates("published a Task after a Message; a reply has one or the other")
        self._check_ids("Task", event.id, event.context_id)
        self._check_readable("Task", *event.artifacts, *event.history, event.status.message)
        operation = self.operation
        response = pb.StreamResponse(task=event)
        task = response.task
        task.id, task.context_id = operation.task_id, operation.context_id
        self._complete_status(task.status, _SUBMITTED)
        sent = operation.request.message
        if all(message.message_id != sent.message_id for message in task.history):
            task.history.append(sent)
        for artifact in task.artifacts:
            if not artifact.artifact_id:
                raise self._violates("published a Task with an artifact without artifact_id")
        self._state_is_ours = True
        self._take_whole_task(response)

    async def accept_whole_task(self, event: pb.Task) -> None:
        """Take in a Task event for a task that exists: what differs from it replaces its own.

        Its history is kept and only added to, since the agent's copy may be older. Costs as much as
        the task is large.
        """
        if self.terminal or self.lost:
            self.accept(event)
            return
        self._check_ids("Task", event.id, event.context_id)
        self._check_readable("Task", *event.artifacts, *event.history, event.status.message)
        await self.flushed()
        snapshot = await patiently(
            self._storage, lambda: self._storage.load_snapshot(self.operation.task_id)
        )
        if snapshot is None or self.lost:
            return
        before = snapshot.task
        response = pb.StreamResponse(task=before)
        task = response.task
        known = {message.message_id for message in task.history}
        task.history.extend(m for m in event.history if m.message_id not in known)
        positions = {artifact.artifact_id: at for at, artifact in enumerate(task.artifacts)}
        for artifact in event.artifacts:
            if not artifact.artifact_id:
                raise self._violates("published a Task with an artifact without artifact_id")
            at = positions.get(artifact.artifact_id)
            (task.artifacts.add() if at is None else task.artifacts[at]).CopyFrom(artifact)
        if event.HasField("metadata"):
            task.metadata.MergeFrom(event.metadata)
        if event.status.state and event.status != before.status:
            if before.status.HasField("message"):
                task.history.append(before.status.message)
            task.status.CopyFrom(event.status)
            self._complete_status(task.status)
            self._state_is_ours = True
        if task != before:
            self._take_whole_task(response)

    def _take_whole_task(self, response: pb.StreamResponse) -> None:
        task = response.task
        self._artifact_ids = {artifact.artifact_id for artifact in task.artifacts}
        self.state = task.status.state
        self._status_at = task.status.timestamp.ToNanoseconds()
        self._append(response.SerializeToString())

    def _accept_status(self, event: pb.TaskStatusUpdateEvent) -> None:
        self._check_update("TaskStatusUpdateEvent", event.task_id, event.context_id)
        if not event.status.state:
            raise self._violates("published a TaskStatusUpdateEvent without status.state")
        self._check_readable("TaskStatusUpdateEvent", event.status.message)
        response = pb.StreamResponse(status_update=event)
        update = response.status_update
        update.task_id, update.context_id = self.operation.task_id, self.operation.context_id
        self._complete_status(update.status)
        self.state = update.status.state
        self._state_is_ours = True
        self._status_at = update.status.timestamp.ToNanoseconds()
        self._append(response.SerializeToString())

    def _accept_artifact(self, event: pb.TaskArtifactUpdateEvent) -> None:
        self._check_update("TaskArtifactUpdateEvent", event.task_id, event.context_id)
        artifact_id = event.artifact.artifact_id
        if not artifact_id:
            raise self._violates("published a TaskArtifactUpdateEvent without artifact.artifact_id")
        self._check_readable("TaskArtifactUpdateEvent", event.artifact)
        response = pb.StreamResponse(artifact_update=event)
        update = response.artifact_update
        update.task_id, update.context_id = self.operation.task_id, self.operation.context_id
        if artifact_id not in self._artifact_ids:
            self._artifact_ids.add(artifact_id)
            update.append = False
        self._append(response.SerializeToString())

    async def check_attached(self, attached: Sequence[pb.Task]) -> None:
        """Check tasks that the agent wants stored along with its turn.

        Raises InvalidAgentResponseError; see `RequestContext.attach_related_task`.
        """
        operation = self.operation
        for related in attached:
            head = await patiently(self._storage, partial(self._storage.load_head, related.id))
            owner, running = (head.scope, head.running) if head else (None, False)
            try:
                check_related(related, operation.task_id, operation.scope, owner, running)
            except InvalidAgentResponseError as error:
                self.violation = error
                raise

    def _check_update(self, kind: str, task_id: str, context_id: str) -> None:
        if self.reply is not None:
            raise self._violates(f"published a {kind} after a Message")
        if not self.visible:
            raise self._violates(f"published a {kind} before the Task; publish the Task first")
        self._check_ids(kind, task_id, context_id)

    def _check_ids(self, kind: str, task_id: str, context_id: str) -> None:
        operation = self.operation
        if task_id and task_id != operation.task_id:
            raise self._violates(
                f"published a {kind} for task {task_id!r} while it works on {operation.task_id!r}"
            )
        if context_id and context_id != operation.context_id:
            raise self._violates(
                f"published a {kind} with context {context_id!r}; "
                f"the task's is {operation.context_id!r}"
            )

    def _complete_status(self, status: pb.TaskStatus, state: int = 0) -> None:
        if not status.state and state:
            status.state = state  # type: ignore[assignment]
        if not status.HasField("timestamp"):
            status.timestamp.FromNanoseconds(time.time_ns())
        if status.HasField("message"):
            self._complete_message(status.message, self.operation.context_id)
            status.message.task_id = self.operation.task_id

    @staticmethod
    def _complete_message(message: pb.Message, context_id: str) -> None:
        message.context_id = context_id
        message.message_id = message.message_id or str(uuid.uuid4())
        message.role = message.role or _AGENT

    def _append(self, payload: bytes) -> None:
        self._version += 1
        self._sequence += 1
        self._pending.append(LogEntry(self._version, self._sequence, EntryKind.EVENT, payload))
        self._pending_bytes += len(payload)
        if not self._drain_scheduled:
            # By the time this runs, an agent that did not wait has published all it had to say.
            self._drain_scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    # What becomes of it.

    def _drain(self) -> None:
        self._drain_scheduled = False
        if self._goes_on():  # if not, one commit will do for what is left and the turn's end
            self._start_draining()

    def _start_draining(self) -> None:
        if self._pending and not self._ended and (self._drainer is None or self._drainer.done()):
            self._drainer = asyncio.create_task(
                self._flush(), name=f"event-consumer:{self.operation.task_id}"
            )

    async def _flush(self) -> None:
        try:
            while self._pending and not self._ended:
                async with self._lock:
                    # The turn may have ended while this waited.
                    if self._pending and not self._ended:
                        await self._commit()
        except StorageError:
            pass  # `on_lost` was called
        except UnavailableError:
            logger.exception("task %s: the storage can't be reached", self.operation.task_id)

    async def flushed(self) -> None:
        """Wait until what was accepted so far is stored, or can't be.

        It does not wait for what others accept meanwhile. Commits run in a task of their own, so
        cancelling an agent that waits here never leaves open whether a commit took place.
        """
        version = self._version
        self._start_draining()
        while self._committed_version < version and self._drainer and not self._drainer.done():
            if self._progress is None:
                self._progress = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._drainer, self._progress), return_when=asyncio.FIRST_COMPLETED)

    async def finish(self, outcome: Outcome | None, *, related: tuple[pb.Task, ...] = ()) -> bool:
        """Commit what is pending, end the turn, and tell what the operation came to.

        With None the operation stays unfinished: it is handed back. Only the first call counts.
        Returns whether the task has operations that are not done.
        """
        async with self._lock:
            if self._ended:
                return False
            if outcome is not None and outcome.kind is not OutcomeKind.MESSAGE:
                outcome = Outcome(outcome.kind, self._version, outcome.payload)
            more = await self._commit(outcome, related, ends_turn=True)
            self._ended = True
            return more

    def lose(self) -> None:
        """Write nothing any more: the task is not this process's."""
        if not self._ended:
            self.lost = self._ended = True
            self._on_lost()

    def set_status(self, state: pb.TaskState.ValueType, text: str = "") -> None:
        """Set a status of the engine's own, whatever the agent did; creates the task if need be."""
        if self.terminal:
            return
        operation = self.operation
        status = pb.TaskStatus(state=state)
        if text:
            status.message.parts.add().text = text
        self._complete_status(status)
        self.violation, self.reply = None, None
        if self.visible:
            update = pb.TaskStatusUpdateEvent(
                task_id=operation.task_id, context_id=operation.context_id, status=status
            )
            self._accept_status(update)
        else:
            self._accept_task(pb.Task(id=operation.task_id, status=status))

    async def _commit(
        self,
        outcome: Outcome | None = None,
        related: tuple[pb.Task, ...] = (),
        *,
        ends_turn: bool = False,
    ) -> bool:
        entries, self._pending = self._pending, []
        self._pending_bytes = 0
        settles = self.settled
        operation = self.operation
        commit = Commit(
            task_id=operation.task_id,
            expected_version=self._committed_version,
            fence=self._fence,
            entries=entries,
            state=self.state,
            status_at=self._status_at,
            scope=operation.scope,
            context_id=operation.context_id,
            finished=() if outcome is None else ((operation.id, outcome),),
            ends_turn=ends_turn,
            hands_back=operation.id if ends_turn and outcome is None else "",
            related=related,
        )
        try:
            more = await self._store(commit)
        except StorageError as error:
            logger.warning("task %s is lost to this process: %s", operation.task_id, error)
            self.lose()
            raise
        except BaseException:
            self._pending[:0] = entries
            self._pending_bytes += sum(len(entry.payload) for entry in entries)
            raise
        if entries:
            self._committed_version = entries[-1].version
            self._committed_sequence = entries[-1].sequence
            if self._progress is not None:
                self._progress.set_result(None)
                self._progress = None
        committed = Committed(
            operation.task_id,
            self._committed_version,
            self._committed_sequence,
            commit.state,
            [entry.payload for entry in entries],
            operation.id,
            settles=settles,
            outcome=outcome,
        )
        await self._bus.publish(committed)
        if entries:
            state_before, self._committed_state = self._committed_state, commit.state
            self._on_commit(committed, state_before)
        for task in related:
            await self._tell_of_related(task.id)
        return more

    async def _tell_of_related(self, task_id: str) -> None:
        head = await self._storage.load_head(task_id)
        if head is not None:
            # Without the event itself: whoever follows the task reads it from storage.
            committed = Committed(task_id, head.version, head.sequence, head.state)
            await self._bus.publish(committed)
            self._on_commit(committed, head.state)

    async def _store(self, commit: Commit) -> bool:
        unanswered = False
        for attempt in count():
            try:
                return await self._storage.commit(commit)
            except UnavailableError as error:
                # Where there is a lease, its end is the end of trying.
                if self._storage.lease is None and attempt >= self.MAX_RETRIES:
                    raise
                logger.warning("task %s: commit will be tried again: %s", commit.task_id, error)
                unanswered = True
                await asyncio.sleep(self.RETRY_DELAYS[min(attempt, len(self.RETRY_DELAYS) - 1)])
                if self.lost:
                    raise FenceLostError("the lease ran out") from error
            except StorageError:
                # It may have been refused because it took place, and only its answer was lost.
                if unanswered and await patiently(self._storage, partial(self._took_place, commit)):
                    return commit.ends_turn  # perhaps there are more: looking for them tells
                raise
        raise AssertionError("never reached")

    async def _took_place(self, commit: Commit) -> bool:
        for operation_id, outcome in commit.finished:
            operation = await self._storage.load_operation(operation_id)
            if operation is None or operation.outcome != outcome:
                return False
        head = await self._storage.load_head(commit.task_id)
        if head is None:
            return bool(commit.finished)
        version = commit.expected_version + len(commit.entries)
        return (head.fence, head.version) == (commit.fence, version)
