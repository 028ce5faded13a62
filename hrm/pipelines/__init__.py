"""Heterogeneous pipelines: steps in Python, each with a version for a core, for a GPU or for both.

    from hrm.pipelines import Client, Pipeline

    counting = Pipeline("counting")

    @counting.subtask()
    def decode(path): ...

    @counting.subtask(after=decode, gpu_memory_mib=500)
    def detect(frames): ...          # runs on a core

    @detect.gpu
    def _(frames): ...               # and this one on a GPU

    counting.run_here("clip.bin")    # in this process, on the CPU: for tests and comparisons

    with Client() as client:         # on the cluster, many at a time
        for result in client.map(counting, clips):
            print(result.value)

The first step gets the task's input; every other step gets what the steps in ``after`` returned, in
that order; what the last one returns is the task's result.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm.pipelines.client.client import Client, Task
    from hrm.pipelines.client.definition import Pipeline, Step
    from hrm.pipelines.client.outcome import SubtaskRun, TaskFailed, TaskResult
    from hrm.pipelines.client.result_file import ResultFile
    from hrm.pipelines.client.spark import map_in_pandas

__all__ = [
    "Client",
    "Pipeline",
    "ResultFile",
    "Step",
    "SubtaskRun",
    "Task",
    "TaskFailed",
    "TaskResult",
    "map_in_pandas",
]

_HOME = {
    "Pipeline": "definition",
    "ResultFile": "result_file",
    "Step": "definition",
    "SubtaskRun": "outcome",
    "TaskFailed": "outcome",
    "TaskResult": "outcome",
    "map_in_pandas": "spark",
}


def __getattr__(name: str) -> Any:
    # gRPC is not imported where pipelines only run: in workers on nodes.
    if name in __all__:
        module = importlib.import_module(f"hrm.pipelines.client.{_HOME.get(name, 'client')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
