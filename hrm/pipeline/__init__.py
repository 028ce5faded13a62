"""The former name of ``hrm.pipelines``: programs that import it continue to work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hrm.pipelines

if TYPE_CHECKING:
    from hrm.pipelines import (
        Client,
        Pipeline,
        Step,
        SubtaskRun,
        Task,
        TaskFailed,
        TaskResult,
        map_in_pandas,
    )

__all__ = [
    "Client",
    "Pipeline",
    "Step",
    "SubtaskRun",
    "Task",
    "TaskFailed",
    "TaskResult",
    "map_in_pandas",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(hrm.pipelines, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
