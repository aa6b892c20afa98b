"""Plans a trip, and asks questions until it knows enough: several turns on one task.

Nothing is kept in the process between two turns. The agent reads from the task's history what was
said, so it does not matter when the next message comes, or which process gets it.
"""

from a2a_grpc import TaskContext, Worker

QUESTIONS = ("Where do you want to go?", "On which day?", "How many of you travel?")


class Trip(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        # The first message opens the conversation; those after it answer the questions in order.
        said = [message.text for message in ctx.history if message.role == "user"]
        answers = [*said, ctx.user_text][1:]
        if len(answers) < len(QUESTIONS):
            await ctx.request_input(QUESTIONS[len(answers)])
        else:
            where, when, how_many = answers
            await ctx.complete(f"A trip to {where} on {when} for {how_many}.", artifact_id="plan")


agent = Trip()
