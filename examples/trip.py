"""Plans a trip, and asks questions until it knows enough: several turns on one task.

Nothing is kept in the process between two turns. The agent reads from the task's history what was
said, so it does not matter when the next message comes, or which process gets it.
"""

from a2a_grpc import (
    AgentExecutor,
    Artifact,
    EventQueue,
    Message,
    Part,
    RequestContext,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

QUESTIONS = ("Where do you want to go?", "On which day?", "How many of you travel?")


class TripAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        answers: list[str] = []
        if context.current_task is None:
            working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
            await event_queue.enqueue_event(
                Task(id=context.task_id, context_id=context.context_id, status=working)
            )
        else:
            # The first message opened the conversation; the others answer the questions in order.
            answers = [
                message.parts[0].text
                for message in context.current_task.history
                if message.role == Role.ROLE_USER
            ][1:]

        if len(answers) < len(QUESTIONS):
            question = Message(role=Role.ROLE_AGENT, parts=[Part(text=QUESTIONS[len(answers)])])
            status = TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED, message=question)
        else:
            where, when, how_many = answers
            plan = Part(text=f"A trip to {where} on {when} for {how_many}.")
            await event_queue.enqueue_event(
                TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="plan", parts=[plan]))
            )
            status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        await event_queue.enqueue_event(TaskStatusUpdateEvent(status=status))


agent = TripAgent()
