"""Heterogeneous pipelines: steps in Python, each with a version for a core, for a GPU or for both.

    from hrm.pipeline import Pipeline

    counting = Pipeline("counting")

    @counting.subtask()
    def decode(path): ...

    @counting.subtask(after=decode, gpu_memory_mib=500)
    def detect(frames): ...          # runs on a core

    @detect.gpu
    def _(frames): ...               # and this one on a GPU

    counting.run_here("clip.bin")    # in this process, on the CPU: for tests and for comparing

The first step gets the task's input; each other one what the steps in ``after`` returned, in that
order; what the last one returns is the task's result.
"""

from hrm.pipeline.definition import Pipeline, Step

__all__ = ["Pipeline", "Step"]
