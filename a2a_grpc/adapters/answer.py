"""The answer of a turn as one artifact: shown while it is being written, right once it is known."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from a2a_grpc.agent.task_context import TaskContext

ANSWER = "answer"
"""The id of the artifact."""


class Answer:
    """The artifact `answer` of one turn.

    What a model writes is not always the answer: it may turn out to be the preface of a tool call,
    and be followed by another text. So a later text takes the place of an earlier one, and in the
    end the artifact holds what the framework says the answer is.

    Args:
        ctx: the turn.
    """

    def __init__(self, ctx: TaskContext) -> None:
        self._ctx = ctx
        self._chunks: list[str] = []
        self._superseded = False

    def supersede(self) -> None:
        """Whatever is written next takes the place of what was written so far."""
        self._superseded = bool(self._chunks)

    async def write(self, chunk: str) -> None:
        """Add to the text."""
        if not chunk:
            return
        append = bool(self._chunks) and not self._superseded
        if self._superseded:
            self._chunks, self._superseded = [], False
        self._chunks.append(chunk)
        await self._ctx.emit_text_artifact(chunk, artifact_id=ANSWER, append=append)

    async def complete(self, output: Any) -> None:
        """COMPLETED, with the output: text, anything that pydantic makes JSON of, None for nothing.

        Raises pydantic_core.PydanticSerializationError, or ValueError, for what is no JSON.
        """
        if output is None:
            await self._ctx.complete()
        elif isinstance(output, str):
            await self._complete_text(output)
        else:
            data = to_jsonable_python(output)
            await self._ctx.complete_json(data, artifact_id=ANSWER)

    async def complete_file(self, content: bytes, media_type: str) -> None:
        """COMPLETED, with a file."""
        await self._ctx.emit_artifact(
            artifact_id=ANSWER, file_bytes=content, media_type=media_type, last_chunk=True
        )
        await self._ctx.complete()

    async def _complete_text(self, text: str) -> None:
        written = "".join(self._chunks)
        if written and text.startswith(written):
            if rest := text[len(written) :]:
                await self._ctx.emit_text_artifact(rest, artifact_id=ANSWER, append=True)
            await self._ctx.complete()
        else:
            await self._ctx.complete(text, artifact_id=ANSWER)
