"""Which parts of a task were not shown yet.

A stream begins with the whole task: at the second turn of a conversation, or where a stream was
taken up again, most of it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from a2a_grpc import pb
from a2a_grpc.task import TERMINAL_STATES

Novel = list[tuple[pb.Artifact, Sequence[pb.Part]]]
"""Artifacts, each with the parts that are new, which may be none."""


class Novelty:
    """Remembers how many parts of each artifact were shown."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], int] = {}
        self._is_continued = False

    def new_turn(self, *, continued: bool) -> None:
        """A message goes out; `continued`: what its task has before the agent sees it is known."""
        self._is_continued = continued

    def is_old(self, task: pb.Task) -> bool:
        """Whether the task is as it was before the turn; to be asked before `of_task`."""
        return self._is_continued and task.status.state not in TERMINAL_STATES

    def of_task(self, task: pb.Task, *, is_reset: bool = False) -> Novel:
        """The artifacts of a whole task; after a reset all of it is new."""
        if is_reset:
            self._shown.clear()
        is_old = self.is_old(task) and not is_reset
        self._is_continued = False
        novel: Novel = []
        for artifact in task.artifacts:
            key = (task.id, artifact.artifact_id)
            known = self._shown.get(key, 0)
            self._shown[key] = max(known, len(artifact.parts))
            if not is_old and len(artifact.parts) > known:
                novel.append((artifact, artifact.parts[known:]))
        return novel

    def of_update(self, update: pb.TaskArtifactUpdateEvent) -> tuple[bool, Sequence[pb.Part]]:
        """Whether it replaces what was shown of the artifact, and its parts, all of them new."""
        key = (update.task_id, update.artifact.artifact_id)
        known = self._shown.get(key, 0)
        parts = update.artifact.parts
        self._shown[key] = len(parts) + (known if update.append else 0)
        return known > 0 and not update.append, parts
