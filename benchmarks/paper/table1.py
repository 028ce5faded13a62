"""Table 1 of the HRM paper: object detection by 1 to 4 executors that share one GPU.

    python -m benchmarks.paper.table1                     # 720 images (240 on a CPU);
                                                          # results/paper-table1.*
    python -m benchmarks.paper.table1 --quick --json FILE

Each executor is a process with a network of its own that reads, letterboxes, infers, decodes and
filters its share of the images, one at a time like a stream of pictures. While one is on the CPU,
the others use the GPU; that is all the sharing there is. Time is from when all are ready until the
last has ended; utilisation and memory are NVML's, sampled meanwhile.

The network has the shape of a YOLO detector and random weights; the paper's is YOLOv3 in darknet on
a card with 11 GB. So compare how time falls and utilisation rises, not the seconds. Without CUDA
the executors share the CPU instead, one thread each, with a small network and fewer images: that
only shows that the script works, and the result says so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.pipelines import detection, devices
from benchmarks.pipelines.frames import Video
from benchmarks.pipelines.network import network
from hrm.errors import Unavailable

__all__ = ["PAPER", "Shape", "main", "measure"]

PAPER: dict[int, tuple[float | None, float | None, float | None]] = {
    1: (151.3, 24.0, None),
    2: (None, None, None),
    3: (69.0, 73.0, 8_575.0),
    4: (None, None, None),
}
"""Executors: time in s, utilisation in %, device memory in MB; None: lost in print."""
_READY_S, _RUN_S = 300.0, 3_600.0
_FRAMES = 64


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


def _execute(shape: Shape, index: int, executors: int, ready: Barrier, results: Any) -> None:
    """One executor: its network, then its images one by one."""
    try:
        devices.one_thread()
        torch.set_num_threads(1)
        net = network(shape.width, shape.depth)
        frames = Video(size_mb=_FRAMES * 0.2304, seed=0).frames()
        _detect(net, frames[0], shape)
        ready.wait(timeout=_READY_S)
        mine = range(index, shape.images, executors)
        boxes = sum(_detect(net, frames[one % len(frames)], shape) for one in mine)
        results.put((index, len(mine), boxes, None))
    except Exception as error:
        ready.abort()
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
    ready = context.Barrier(executors + 1)
    results = context.Queue()
    processes = [
        context.Process(target=_execute, args=(shape, index, executors, ready, results))
        for index in range(executors)
    ]
    try:
        for one in processes:
            one.start()
        try:
            ready.wait(timeout=_READY_S)
        except Exception:
            _collect(results, executors)
            raise Unavailable(
                f"{executors} executors were not ready within {_READY_S:.0f} s; try fewer"
            ) from None
        start = time.perf_counter()
        found, busy, memory_mib = _watched(results, executors)
        seconds = time.perf_counter() - start
        for one in processes:
            one.join(timeout=30)
    finally:
        for one in processes:
            if one.is_alive():
                one.kill()
    return Row(
        executors=executors,
        seconds=seconds,
        busy=busy,
        memory_mib=memory_mib,
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


def _watched(
    results: Any, executors: int
) -> tuple[list[tuple[int, int, int, str | None]], float | None, float | None]:
    if not torch.cuda.is_available():
        return _collect(results, executors), None, None
    from benchmarks.pipelines.cuda import Meter

    with Meter() as meter:
        found = _collect(results, executors)
    busy = sum(meter.busy) / max(1, len(meter.busy))
    return found, busy, max(meter.used_mib, default=0.0)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the table; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common.add_common_arguments(parser)
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 3, 4],
                        choices=list(PAPER), metavar="N")  # fmt: skip
    options = parser.parse_args(arguments)
    os.environ["HRM_BENCH_CACHE"] = str(options.cache_dir)
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    full, quick = (FULL, QUICK_GPU) if gpu else (FULL_CPU, QUICK_CPU)
    shape = quick if options.quick else full
    Video(size_mb=_FRAMES * 0.2304, seed=0).frames()
    rows = []
    for executors in sorted(set(options.executors)):
        CONSOLE.print(f"{executors} executors, {shape.images} images, on {gpu or 'the CPU'}")
        try:
            rows.append(measure(shape, executors))
        except Unavailable as error:
            CONSOLE.print(f"error: {error}", markup=False)
            return 1
    document = {
        "provenance": common.provenance("benchmarks.paper.table1", ["torch", "numpy"]),
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
        common.write_results(
            "paper-table1", "Table 1: executors that share one GPU", document, body
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
