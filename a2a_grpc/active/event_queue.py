"""Where an agent publishes raw events; what comes out of it are commits, made by the consumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from a2a_grpc import pb
from a2a_grpc.agent.executor import Event, EventQueue

if TYPE_CHECKING:
    from a2a_grpc.active.event_consumer import EventConsumer

logger = logging.getLogger(__name__)


class TurnEventQueue(EventQueue):
    """The agent's end of one turn.

    `enqueue_event` checks the event and hands it to the consumer, which commits in batches while
    the agent goes on. An agent that is a full batch ahead waits for the commit, so what is not yet
    stored has a bound (`EventConsumer.MAX_PENDING_EVENTS` and `MAX_PENDING_BYTES`).

    Args:
        consumer: the turn's.
        attached: the tasks that the agent has attached to its turn so far.
    """

    def __init__(
        self, consumer: EventConsumer, attached: Callable[[], Sequence[pb.Task]] = tuple
    ) -> None:
        self._consumer = consumer
        self._attached = attached
        self._closed = False

    def is_closed(self) -> bool:
        """Whether the turn is over; what is published then is dropped."""
        return self._closed

    async def enqueue_event(self, event: Event) -> None:
        """Publish an event; see `EventQueue`."""
        await self.enqueue_events(event)

    async def enqueue_events(self, *events: Event) -> None:
        """Publish several events, which go into one commit; see `EventQueue`."""
        consumer = self._consumer
        if self._closed:
            logger.warning(
                "dropped an event of task %s: its turn is over", consumer.operation.task_id
            )
            return
        if attached := self._attached():
            # Now that it can still fail: a task that has ended is what it is.
            await consumer.check_attached(attached)
        for event in events:
            if isinstance(event, pb.Task) and consumer.visible:
                await consumer.accept_whole_task(event)
            else:
                consumer.accept(event)
        if consumer.is_full:
            await consumer.flushed()

    async def flush(self) -> None:
        """Wait until what was published so far is stored."""
        await self._consumer.flushed()

    def close(self) -> None:
        """End the turn for the agent."""
        self._closed = True
