"""Says what it was told: the shortest agent."""

from a2a_grpc import RequestContext


async def agent(context: RequestContext) -> str:
    return f"Echo: {context.get_user_input()}"
