"""Tasks that compute with PyTorch on the GPU of their executor, where Spark's Python workers are.

``torch_tasks.py hold TASKS MIB FILE``: all at once, each holds MIB of device memory until FILE is
there. ``greedy TASKS MIB FILE``: the first attempt of the first task tries to hold MIB, the others
hold 100 until FILE is there. ``stages``: a stage on cores, then one on the GPU, by its resource
profile. ``pandas``: inference by ``mapInPandas``.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

SIDE = 512
STILL_S = 120.0
MODEST_MIB = 100

way, arguments = sys.argv[1], sys.argv[2:]
session = SparkSession.builder.appName(f"torch-{way}").getOrCreate()
context = session.sparkContext
context.setLogLevel("INFO")


def computed(seed: int) -> dict[str, Any]:
    """What a GPU computes, with what it should have, and where that was."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(SIDE, SIDE, generator=generator, dtype=torch.float64)
    product = (matrix.to("cuda") @ matrix.to("cuda")).cpu()
    task = TaskContext.get()
    assert task is not None
    return {
        "error": float((product - matrix @ matrix).abs().max()),
        "devices": torch.cuda.device_count(),
        "uuid": f"GPU-{torch.cuda.get_device_properties(0).uuid}",
        "addresses": [*task.resources()["gpu"].addresses],
        "share_mib": os.environ["HRM_GPU_MEMORY_MIB"],
        "executor": os.environ["HRM_CONTAINER_ID"],
        "attempt": task.attemptNumber(),
        "index": task.partitionId(),
    }


def wait_for(path: str) -> None:
    deadline = time.monotonic() + STILL_S
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def hold(index: int) -> str:
    import torch

    mib, path = int(arguments[1]), arguments[2]
    seen = computed(index)
    if way == "greedy" and (seen["index"] > 0 or seen["attempt"] > 0):
        mib = MODEST_MIB
    held = torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
    Path(f"{path}.{index}.{seen['attempt']}").write_text(seen["executor"])
    wait_for(path)
    return json.dumps({**seen, "held_mib": held.numel() >> 20})


def infer(frames: Iterator[Any]) -> Iterator[Any]:
    import torch

    layer = torch.nn.Linear(2, 1, bias=False).to("cuda")
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[2.0, 3.0]])
        for frame in frames:
            values = torch.tensor(frame[["a", "b"]].to_numpy(), dtype=torch.float32).to("cuda")
            yield frame.assign(y=layer(values).cpu().numpy()[:, 0].astype("float64"))


def say(**values: object) -> None:
    # One write per line: Spark's driver is unbuffered, and its log goes into the same file.
    sys.stdout.write(f"SAW {json.dumps(values)}\n")


if way in ("hold", "greedy"):
    tasks = int(arguments[0])
    for line in context.parallelize(range(tasks), tasks).map(hold).collect():
        say(**json.loads(line))
elif way == "stages":
    squares = context.parallelize(range(100), 2).map(lambda x: x * x).sum()
    say(squares=squares)
    executor = ExecutorResourceRequests().cores(1).memory("512m").resource("gpu", 1)
    task = TaskResourceRequests().cpus(1).resource("gpu", 1)
    profile = ResourceProfileBuilder().require(executor).require(task).build
    for found in context.parallelize(range(2), 2).withResources(profile).map(computed).collect():
        say(**found)
else:
    pairs = session.range(0, 1000, numPartitions=2).selectExpr("double(id) a", "double(1) b")
    total = pairs.mapInPandas(infer, "a double, b double, y double").selectExpr("sum(y)")
    say(total=total.collect()[0][0])
session.stop()
