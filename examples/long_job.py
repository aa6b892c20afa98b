"""A long job that tells how far it is and can be canceled.

The message says how many steps the job has, "20" for example; a step takes a second.
"""

import asyncio

from a2a_grpc import (
    AgentExecutor,
    EventQueue,
    InvalidParamsError,
    Message,
    Part,
    RequestContext,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

STEP = 1.0  # seconds


class LongJob(AgentExecutor):
    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # steps, by task, of the jobs that run in this process

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        asked = context.get_user_input().strip()
        if not asked.isdecimal():
            raise InvalidParamsError.field(
                "message.parts[0].text", "must be a number of steps, such as 20"
            )
        working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        await event_queue.enqueue_event(
            Task(id=context.task_id, context_id=context.context_id, status=working)
        )
        try:
            for step in range(1, int(asked) + 1):
                await asyncio.sleep(STEP)  # the work
                self._done[context.task_id] = step
                working = TaskStatus(
                    state=TaskState.TASK_STATE_WORKING,
                    message=says(f"{step} of {asked} steps done"),
                )
                await event_queue.enqueue_event(TaskStatusUpdateEvent(status=working))
        finally:  # also when the task is canceled: execute() is cancelled then
            self._done.pop(context.task_id, None)
        completed = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=says("All done"))
        await event_queue.enqueue_event(TaskStatusUpdateEvent(status=completed))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        done = self._done.get(context.task_id, 0)
        canceled = TaskStatus(
            state=TaskState.TASK_STATE_CANCELED, message=says(f"Stopped after {done} steps")
        )
        await event_queue.enqueue_event(TaskStatusUpdateEvent(status=canceled))


def says(text: str) -> Message:
    return Message(role=Role.ROLE_AGENT, parts=[Part(text=text)])


agent = LongJob()
