"""Says what it was told: the shortest agent."""

from a2a_grpc import TaskContext, Worker


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")
