"""Ends of tasks on their way to the disk: nobody gets to know one before it is there.

A worker keeps what it knows of a task, and a client waits for its end, until then: a master that
dies before has neither reported nor lost it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from hrm.pipelines.core.model import TaskId

__all__ = ["EndWrites"]

_Acknowledgement = TypeVar("_Acknowledgement")


class EndWrites(Generic[_Acknowledgement]):
    """Those that are being written, and the acknowledgements to workers that wait for that."""

    def __init__(self) -> None:
        self._waiting: dict[TaskId, list[_Acknowledgement]] = {}

    def __contains__(self, task_id: TaskId) -> bool:
        return task_id in self._waiting

    def begin(self, task_id: TaskId) -> None:
        """It has ended; ``written`` is called when that is on the disk."""
        self._waiting[task_id] = []

    def hold(self, task_id: TaskId, acknowledgement: _Acknowledgement) -> bool:
        """Does this wait for the disk? If not, it is to be sent now."""
        waiting = self._waiting.get(task_id)
        if waiting is None:
            return False
        waiting.append(acknowledgement)
        return True

    def written(self, task_id: TaskId) -> list[_Acknowledgement]:
        """The end is on the disk: what is to be sent now."""
        return self._waiting.pop(task_id)
