"""What the user of an application can change, in the words in which it was submitted.

A message that refuses or ends a container names the setting that is responsible. That is Spark's
for executors and drivers; for a worker of pipelines it is a property of the steps, an argument of
their client, or a setting of the master. All such words are here, by the kind of application.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.vocabulary.model import DRIVER_PREFIX, WORKLOAD_PREFIX, ApplicationId

__all__ = ["DRIVER", "EXECUTOR", "WORKER", "Advice", "advice_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """``container``: what requests, with its article; ``size``: what determines how large it is;
    ``smaller``: how to request less than now; ``memory``, ``overhead``: what its memory is made of,
    the second "" where it is of one part; ``more_memory``: after it took more than that;
    ``gpu_size``: what determines its part of a GPU; ``without_gpu``, ``with_gpu``: how to request
    none, or one; ``label``: what names the labels of its nodes; ``queue``: what names its queue."""

    container: str
    size: str
    smaller: str
    memory: str
    overhead: str
    more_memory: str
    gpu_size: str
    without_gpu: str
    with_gpu: str
    label: str
    queue: str = "spark.hrm.queue"

    def memory_parts(self, limit_mib: int, heap_mib: int) -> str:
        """What the limit of a container is made of; "": of one part."""
        if not self.overhead:
            return ""
        if not heap_mib:
            return f" ({self.memory} + {self.overhead})"
        overhead_mib = limit_mib - heap_mib
        return f" ({self.memory} of {heap_mib} MiB + {self.overhead} of {overhead_mib} MiB)"

    def gpus(self, wanted: int, there: str) -> str:
        """What to change where no node offers so many GPUs in one resource unit, but ``there``."""
        if self is WORKER:
            return f"set gpus_per_unit = {wanted} for agents, or {self.without_gpu}"
        return (
            f"set gpus_per_unit = {wanted} for agents with enough GPUs, or "
            f"spark.executor.resource.gpu.amount to {there} (with spark.task.resource.gpu.amount "
            f"no larger)"
        )


EXECUTOR = Advice(
    container="an executor",
    size="spark.executor.cores or spark.executor.memory",
    smaller="lower spark.executor.cores or spark.executor.memory (with its overhead)",
    memory="spark.executor.memory",
    overhead="overhead",
    more_memory="raise spark.executor.memoryOverhead (Python workers, off-heap) or "
    "spark.executor.memory, or give tasks less data with more partitions",
    gpu_size="spark.hrm.executor.gpu.memory",
    without_gpu="unset spark.executor.resource.gpu.amount",
    with_gpu="request a GPU with spark.executor.resource.gpu.amount=1",
    label="spark.hrm.node.label",
)
DRIVER = Advice(
    container="the driver",
    size="spark.driver.cores or spark.driver.memory",
    smaller="lower spark.driver.cores or spark.driver.memory (with its overhead)",
    memory="spark.driver.memory",
    overhead="overhead",
    more_memory="raise spark.driver.memoryOverhead (Python, off-heap) or spark.driver.memory, or "
    "collect less",
    gpu_size=EXECUTOR.gpu_size,
    without_gpu=EXECUTOR.without_gpu,
    with_gpu=EXECUTOR.with_gpu,
    label="spark.hrm.driver.node.label",
)
WORKER = Advice(
    container="a worker of pipelines",
    size="memory_mib of its steps",
    smaller="lower memory_mib of its steps, or pipeline_worker_memory_mib and "
    "pipeline_worker_cores of the master",
    memory="memory_mib of its steps",
    overhead="",
    more_memory="raise memory_mib of its steps, or pipeline_worker_memory_mib of the master, or "
    "give tasks less data",
    gpu_size="gpu_memory_mib of its steps",
    without_gpu="give its steps a version for cores",
    with_gpu="declare a GPU version of the step, with its gpu_memory_mib",
    label="Client(node_labels=...) or --node-label",
    queue="Client(queue=...) or --queue",
)


_BY_PREFIX = {WORKLOAD_PREFIX.rstrip("-"): WORKER, DRIVER_PREFIX.rstrip("-"): DRIVER}


def advice_for(application_id: ApplicationId) -> Advice:
    """By what its containers are."""
    prefix, _, _ = application_id.partition("-")
    return _BY_PREFIX.get(prefix, EXECUTOR)
