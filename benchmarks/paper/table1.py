"""Table 1 of the HRM paper: object detection by 1 to 4 executors that share one GPU.

    python -m benchmarks.paper.table1                     # 720 images (240 on a CPU);
                                                          # results/paper-table1.*
    python -m benchmarks.paper.table1 --on hrm            # the same by Spark's executors:
                                                          # results/paper-table1-hrm.*
    python -m benchmarks.paper.table1 --quick --json FILE

Each executor has a network of its own, and reads, letterboxes, infers, decodes and filters its
share of the images, one at a time like a stream of pictures. While one is on the CPU, the others
use the GPU; that is all the sharing there is. Time is from when all are ready until the last has
ended; utilisation and memory are NVML's, sampled meanwhile.

Executors are plain processes, or, ``--on hrm``, those of a Spark application on a cluster of
``hrm up`` with one node, which gives each an equal share of the GPU: time is then that of a Spark
job, and the node's defaults hold (CUDA MPS where the driver offers it).

The network has the shape of a YOLO detector and random weights; the paper's is YOLOv3 in darknet on
a card with 11 GB. So compare how time falls and utilisation rises, not the seconds. Without CUDA
the executors share the CPU instead, one thread each, with a small network and fewer images: that
only shows that the script works, and the result says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from benchmarks import clusters, common
from benchmarks.common import CONSOLE, REPOSITORY
from benchmarks.pipelines import detection, devices
from benchmarks.pipelines.frames import Video
from benchmarks.pipelines.network import network
from benchmarks.processes import BenchmarkError
from hrm.errors import Unavailable

__all__ = ["PAPER", "Shape", "detected", "main", "measure", "ready", "watched"]

PAPER: dict[int, tuple[float | None, float | None, float | None]] = {
    1: (151.3, 24.0, None),
    2: (None, None, None),
    3: (69.0, 73.0, 8_575.0),
    4: (None, None, None),
}
"""Executors: time in s, utilisation in %, device memory in MB; None: lost in print."""
_READY_S, _RUN_S = 300.0, 3_600.0
_FRAMES = 64
_APP = REPOSITORY / "benchmarks" / "apps" / "detection.py"
_RESULTS = {
    "processes": ("paper-table1", "executors"),
    "hrm": ("paper-table1-hrm", "Spark's executors on HRM"),
}
_EXECUTOR_MIB, _OVERHEAD_MIB = 512, 3_584
_DECLARED = json.dumps([{"memory_mib": 16_384, "numa": 0, "name": "none"}])
"""In place of a GPU on a machine without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How much work: images, the network's input (height, width), its width and depth."""

    images: int
    side: tuple[int, int]
    width: int
    depth: int


FULL = Shape(images=720, side=(608, 608), width=64, depth=3)
QUICK_GPU = Shape(images=120, side=(608, 608), width=64, depth=3)
FULL_CPU = Shape(images=240, side=(160, 160), width=16, depth=1)
"""Some minutes on two cores; the paper's size would take hours and show no more."""
QUICK_CPU = Shape(images=24, side=(160, 160), width=16, depth=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; ``busy`` 0..1 and ``memory_mib`` only with a GPU."""

    executors: int
    seconds: float
    busy: float | None
    memory_mib: float | None
    images: int
    boxes: int


def ready(shape: Shape) -> None:
    """Load the network of this process, and run it once."""
    devices.one_thread()
    torch.set_num_threads(1)
    _detect(network(shape.width, shape.depth), _frames()[0], shape)


def detected(shape: Shape, index: int, executors: int) -> tuple[int, int]:
    """Run the images of one of ``executors``; returns how many these were, and their boxes."""
    net, frames = network(shape.width, shape.depth), _frames()
    mine = range(index, shape.images, executors)
    return len(mine), sum(_detect(net, frames[one % len(frames)], shape) for one in mine)


@cache
def _frames() -> npt.NDArray[np.uint8]:
    return Video(size_mb=_FRAMES * 0.2304, seed=0).frames()


def _execute(shape: Shape, index: int, executors: int, barrier: Barrier, results: Any) -> None:
    """One executor: its network, then its images one by one."""
    try:
        ready(shape)
        barrier.wait(timeout=_READY_S)
        results.put((index, *detected(shape, index, executors), None))
    except Exception as error:
        barrier.abort()
        results.put((index, 0, 0, f"{type(error).__name__}: {error}"))


def _detect(net: torch.nn.Module, frame: np.ndarray[Any, Any], shape: Shape) -> int:
    """How many boxes are left on one image."""
    height, width = shape.side
    picture = np.asarray(cv2.resize(frame, (width, height)))[..., ::-1]
    with torch.inference_mode():
        source = devices.upload(picture).permute(2, 0, 1)[None].float() / 255
        heads = tuple(devices.download(head.half()) for head in net(source))
    outputs = detection.Outputs(heads, width / frame.shape[1], (0, 0))
    return len(detection.suppress(detection.decode(outputs)).frames[0])


def measure(shape: Shape, executors: int) -> Row:
    """Run ``shape.images`` images through ``executors`` processes at once.

    Raises:
        Unavailable: an executor failed (out of device memory, say), with its error.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(executors + 1)
    results = context.Queue()
    processes = [
        context.Process(target=_execute, args=(shape, index, executors, barrier, results))
        for index in range(executors)
    ]
    try:
        for one in processes:
            one.start()
        try:
            barrier.wait(timeout=_READY_S)
        except Exception:
            _collect(results, executors)
            raise Unavailable(
                f"{executors} executors were not ready within {_READY_S:.0f} s; try fewer"
            ) from None
        with watched() as seen:
            found = _collect(results, executors)
        for one in processes:
            one.join(timeout=30)
    finally:
        for one in processes:
            if one.is_alive():
                one.kill()
    return Row(
        executors=executors,
        **seen,
        images=sum(one[1] for one in found),
        boxes=sum(one[2] for one in found),
    )


def _collect(results: Any, executors: int) -> list[tuple[int, int, int, str | None]]:
    found = [results.get(timeout=_RUN_S) for _ in range(executors)]
    errors = [f"executor {one[0]}: {one[3]}" for one in found if one[3]]
    if errors:
        # A broken barrier is what the others saw of the first failure.
        first = next((one for one in errors if "BrokenBarrier" not in one), errors[0])
        raise Unavailable(f"of {executors} executors, {first}")
    return found


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """At its end, what the block has taken: ``seconds``, ``busy`` 0..1 and ``memory_mib`` of the
    GPU; None without one."""
    seen: dict[str, Any] = {"seconds": 0.0, "busy": None, "memory_mib": None}
    start = time.perf_counter()
    if not torch.cuda.is_available():
        yield seen
        seen["seconds"] = time.perf_counter() - start
        return
    from benchmarks.pipelines.cuda import Meter

    with Meter() as meter:
        start = time.perf_counter()
        yield seen
        seen["seconds"] = time.perf_counter() - start
    seen["busy"] = sum(meter.busy) / max(1, len(meter.busy))
    seen["memory_mib"] = max(meter.used_mib, default=0.0)


def _measure_hrm(cluster: clusters.Cluster, shape: Shape, executors: int, work: Path) -> Row:
    """The same by the executors of a Spark application, each of which has an equal share of the
    memory of the one GPU.

    Raises:
        BenchmarkError: the application failed.
    """
    settings = {
        **cluster.submit_settings(),
        "spark.eventLog.enabled": "false",
        "spark.executor.instances": str(executors),
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.hrm.executor.gpu.memory": f"{_gpu_mib() // executors}m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        "spark.executorEnv.HRM_BENCH_CACHE": os.environ["HRM_BENCH_CACHE"],
    }
    submission = cluster.submit(
        _APP, [json.dumps(asdict(shape)), executors], work / f"app-{executors}", settings
    )
    return Row(executors=executors, **submission.result(_RUN_S))


def _gpu_mib() -> int:
    """What a card offers to programs, in MiB; that of the declared one where there is none."""
    if not torch.cuda.is_available():
        return int(json.loads(_DECLARED)[0]["memory_mib"])
    return int(torch.cuda.get_device_properties(0).total_memory) >> 20


def _report(rows: Sequence[Row], gpu: str | None, shape: Shape) -> str:
    lines = []
    for row in rows:
        seconds, busy, memory = PAPER[row.executors]
        lines.append(
            [
                row.executors,
                round(row.seconds, 2),
                rows[0].seconds / row.seconds,
                None if row.busy is None else round(100 * row.busy, 1),
                None if row.memory_mib is None else round(row.memory_mib),
                seconds,
                busy,
                memory,
            ]
        )
    where = (
        f"On {gpu}."
        if gpu
        else "**On a CPU: no CUDA device was there.** The executors shared its cores; the times "
        "say nothing about a GPU, and there is no utilisation."
    )
    head = [
        "executors", "time, s", "times faster than one", "GPU busy, %", "device memory, MiB",
        "paper: s", "paper: busy, %", "paper: MB",
    ]  # fmt: skip
    about = (
        f"{shape.images} images, network input {shape.side[1]} x {shape.side[0]}, width "
        f"{shape.width}, depth {shape.depth}, random weights, {os.cpu_count()} cores."
    )
    return f"{where} {about}\n\n{common.table(head, lines)}\n"


def _rows(on: str, shape: Shape, numbers: Sequence[int], gpu: str | None) -> list[Row]:
    """One for each number of executors."""

    def announced(executors: int) -> int:
        CONSOLE.print(f"{executors} executors, {shape.images} images, on {gpu or 'the CPU'}")
        return executors

    if on == "processes":
        return [measure(shape, announced(executors)) for executors in numbers]
    if gpu is None:
        os.environ["HRM_AGENT_GPUS"] = _DECLARED
    most = max(numbers)
    size = clusters.Shape(
        nodes=1,
        cores_per_node=most,
        memory_per_node_mib=most * (_EXECUTOR_MIB + _OVERHEAD_MIB),
        executor_memory_mib=_EXECUTOR_MIB,
        executor_overhead_mib=_OVERHEAD_MIB,
    )
    # MPS makes sockets below it, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="t1-", dir="/tmp") as directory:
        work = Path(directory)
        with clusters.Hrm(size, work / "c") as cluster:
            return [
                _measure_hrm(cluster, shape, announced(executors), work) for executors in numbers
            ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the table; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_common_arguments(parser)
    parser.add_argument("--on", choices=["processes", "hrm"], default="processes")
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 3, 4],
                        choices=list(PAPER), metavar="N")  # fmt: skip
    options = parser.parse_args(arguments)
    os.environ["HRM_BENCH_CACHE"] = str(options.cache_dir)
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    full, quick = (FULL, QUICK_GPU) if gpu else (FULL_CPU, QUICK_CPU)
    shape = quick if options.quick else full
    Video(size_mb=_FRAMES * 0.2304, seed=0).frames()
    try:
        rows = _rows(options.on, shape, sorted(set(options.executors)), gpu)
    except (Unavailable, BenchmarkError) as error:
        CONSOLE.print(f"error: {error}", markup=False)
        return 1
    document = {
        "provenance": common.provenance("benchmarks.paper.table1", ["torch", "numpy"]),
        "executors_are": options.on,
        "device": gpu or "cpu",
        "on_gpu": gpu is not None,
        "images": shape.images,
        "rows": [
            {
                "executors": row.executors,
                "seconds": round(row.seconds, 3),
                "busy": row.busy,
                "memory_mib": row.memory_mib,
                "images": row.images,
                "boxes": row.boxes,
            }
            for row in rows
        ],
        "paper": {str(key): list(value) for key, value in PAPER.items()},
    }
    body = _report(rows, gpu, shape)
    sys.stdout.write(body)
    if options.json:
        common.write_json(options.json, document)
    if not options.quick or not options.json:
        name, what = _RESULTS[options.on]
        common.write_results(name, f"Table 1: {what} that share one GPU", document, body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
