"""A long job that tells how far it is and can be canceled.

The message says how many steps the job has, "20" for example; a step takes a second.
"""

import asyncio

from a2a_grpc import InvalidParamsError, TaskContext, Worker

STEP = 1.0  # seconds


class LongJob(Worker):
    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # steps, by task, of the jobs that run in this process

    async def handle(self, ctx: TaskContext) -> None:
        asked = ctx.user_text.strip()
        if not asked.isdecimal():
            raise InvalidParamsError.field(
                "message.parts[0].text", "must be a number of steps, such as 20"
            )
        try:
            for step in range(1, int(asked) + 1):
                await asyncio.sleep(STEP)  # the work
                self._done[ctx.task_id] = step
                await ctx.send_status(f"{step} of {asked} steps done")
        finally:  # also when the task is canceled: handle() is cancelled then
            self._done.pop(ctx.task_id, None)
        await ctx.respond("All done")

    async def cancel(self, ctx: TaskContext) -> str:
        return f"Stopped after {self._done.get(ctx.task_id, 0)} steps"


agent = LongJob()
