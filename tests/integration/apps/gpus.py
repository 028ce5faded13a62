"""Each task reports its assigned GPU and what its process sees of it; then it stays a while.

``gpus.py TASKS SECONDS [PROFILE]``: with PROFILE, only the stage requests the GPU.
"""

import os
import sys
import time

from pyspark import TaskContext
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

tasks, seconds, by_profile = int(sys.argv[1]), float(sys.argv[2]), len(sys.argv) > 3
session = SparkSession.builder.appName("gpus").getOrCreate()


def visible_gpus(_: int) -> tuple[str, ...]:
    time.sleep(seconds)
    context = TaskContext.get()
    assert context is not None
    seen = [os.environ.get(n, "-") for n in ("CUDA_VISIBLE_DEVICES", "HRM_GPU_MEMORY_MIB")]
    return (*context.resources()["gpu"].addresses, *seen, os.environ["HRM_CONTAINER_ID"][-2:])


rdd = session.sparkContext.parallelize(range(tasks), tasks)
if by_profile:
    executor = ExecutorResourceRequests().cores(1).memory("512m").resource("gpu", 1)
    task = TaskResourceRequests().cpus(1).resource("gpu", 1)
    rdd = rdd.withResources(ResourceProfileBuilder().require(executor).require(task).build)
for line in sorted(rdd.map(visible_gpus).collect()):
    # One write per line: Spark's driver is unbuffered, and its log goes into the same file.
    sys.stdout.write(" ".join(["SAW", *map(str, line)]) + "\n")
session.stop()
