"""Stages with resource profiles of their own: `stages.py good STOP_FILE | memory | gpu | shared`.

`good` runs a stage on larger executors and then waits for STOP_FILE; the others request what no
node has; `shared` goes on after that, as an application does that has several users.
"""

import sys
import time
from pathlib import Path

from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfile,
    ResourceProfileBuilder,
    TaskResourceRequests,
)
from pyspark.sql import SparkSession

kind = sys.argv[1]
spark = SparkSession.builder.appName(f"stages-{kind}").getOrCreate()
context = spark.sparkContext
executor = ExecutorResourceRequests().cores(2).memory("700m")
task = TaskResourceRequests().cpus(1)
if kind in ("memory", "shared"):
    executor = executor.memory("900g")
if kind == "gpu":
    executor, task = executor.resource("gpu", 1), task.resource("gpu", 1)
profile = ResourceProfileBuilder().require(executor).require(task).build


def slow(x: int) -> int:
    time.sleep(1.5)
    return x


def total(tasks: int, profile: ResourceProfile | None = None) -> int:
    rdd = context.parallelize(range(10), tasks)
    return int((rdd.withResources(profile) if profile else rdd).map(slow).sum())


print(f"PLAIN {total(1)}", flush=True)
try:
    print(f"LARGE {total(8, profile)}", flush=True)
except Exception as error:
    if kind != "shared":
        raise
    print(f"REFUSED {error}", flush=True)
deadline = time.monotonic() + 300
while not Path(sys.argv[2]).exists() and time.monotonic() < deadline:
    time.sleep(0.1)
print(f"PLAIN AGAIN {total(1)}", flush=True)
spark.stop()
