"""Every subtask alone: its use of a core, and the measured or estimated use of its GPU version.

CPU: the process is bound to one core and each step runs by itself on the result of the one before;
``cpu_s`` is processor time, so that a busy machine does not count. ``cpu_memory_mib`` is what a
worker holds more than an idle one: the step's inputs, and the growth of its resident set at the
peak (including pages of the raw frames that it mapped).

GPU: with CUDA, measured (``cuda``). Without, estimated (``counting``): operations of the GPU
version are counted at sizes up to ``COUNTED_MB``; beyond, linear, since steps take frames chunk by
chunk.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE, median
from benchmarks.pipelines import PIPELINES, devices
from benchmarks.pipelines.frames import Video
from benchmarks.pipelines.portraits import Album
from hrm.errors import NotFound
from hrm.pipelines.client.definition import Pipeline, Step
from hrm.pipelines.core.model import Device

__all__ = ["PROFILES", "SIZES_MB", "input_of", "load", "merged", "pinned", "profile", "run"]

PROFILES = Path(__file__).resolve().parent / "profiles.json"
SIZES_MB = (10.0, 20.0, 60.0, 120.0, 200.0, 400.0)
COUNTED_MB = 20.0
REPEATED_MB = 60.0
CHUNKS_FULL_MB = {"batch-face-locations": 40.0, "face-landmarks": 236.0, "face-encodings": 236.0}
"""The size from which device memory is constant, since two chunks are full; others:
``COUNTED_MB``."""
SOURCE = (
    "derived, not measured: operations, bytes and copies of each GPU version were counted while "
    "it ran on a CPU, and set against data-sheet peaks operation by operation (roofline: 50 % of "
    "the arithmetic peak for convolutions and products, 70 % of the bandwidth, at least 5 us a "
    "launch, 15 us a wait, 6 GB/s over the bus); gpu_* is for gpu_model, other_gpus has the rest; "
    f"counted up to {COUNTED_MB:.0f} MB, linear beyond; see benchmarks/pipelines/README.md"
)


def load(name: str) -> Pipeline:
    """The pipeline of that name.

    Raises:
        NotFound: there is none.
    """
    if name not in PIPELINES:
        raise NotFound(f"no pipeline {name!r}; there are {', '.join(PIPELINES)}")
    module, _, attribute = PIPELINES[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, Pipeline)
    return found


def input_of(name: str, size_mb: float, seed: int = 0) -> Video | Album:
    """A generated input of ``size_mb`` for a pipeline, already drawn and in the page cache."""
    if name == "face-recognition":
        photos = Album(size_mb=size_mb, seed=seed)
        for path in photos.files():
            path.read_bytes()
        return photos
    clip = Video(size_mb=size_mb, seed=seed)
    clip.frames().max()
    return clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One run of one step on the CPU. ``wall_s``: without the time that it waited for a core."""

    cpu_s: float
    wall_s: float
    memory_mib: float


def pinned() -> None:
    """Bind this process to the last core that it may use."""
    devices.one_thread()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def _waited_s() -> float:
    """How long this thread has waited for a core so far, which the step does not cause."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def _timed(call: Callable[[], Any], inputs_bytes: int) -> tuple[Any, Taken]:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_kib("VmRSS")
    waited = _waited_s()
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    wall -= min(wall, _waited_s() - waited)
    grown = max(0, _status_kib("VmHWM") - before) / 1024
    taken = Taken(cpu_s=cpu, wall_s=wall, memory_mib=grown + inputs_bytes / 2**20)
    return result, taken


def _pickled_bytes(value: object) -> int:
    """The size of its buffers and the rest when it is pickled."""
    buffers: list[pickle.PickleBuffer] = []
    rest = len(pickle.dumps(value, protocol=5, buffer_callback=buffers.append))
    return rest + sum(one.raw().nbytes for one in buffers)


def run(name: str, value: object) -> tuple[Any, list[tuple[str, Taken]]]:
    """``Pipeline.run_here``, with the time of every step."""
    pipeline = load(name)
    times: list[tuple[str, Taken]] = []
    pipeline.spec(PIPELINES[name])
    watched = Pipeline(name)
    for step in pipeline.steps.values():
        watched.steps[step.name] = _Watched(step, times)
    return watched.run_here(value), times


class _Watched(Step):
    """A step that records what each run took."""

    def __init__(self, step: Step, times: list[tuple[str, Taken]]) -> None:
        super().__init__(
            step.name,
            kind=step.kind,
            after=step.after,
            memory_mib=step.memory_mib,
            gpu_memory_mib=step.gpu_memory_mib,
            timeout_s=step.timeout_s,
            attempts=step.attempts,
        )
        self.step = step
        self.times = times

    def __call__(self, *inputs: Any) -> Any:
        result, taken = _timed(lambda: self.step(*inputs), _pickled_bytes(inputs))
        self.times.append((self.name, taken))
        return result


def _repetitions(size_mb: float) -> int:
    return 3 if size_mb <= REPEATED_MB else 1


def profile(
    sizes_mb: tuple[float, ...] = SIZES_MB,
    *,
    seed: int = 0,
    only: Sequence[str] = tuple(PIPELINES),
    measured_mb: float = math.inf,
) -> dict[str, Any]:
    """The document of profiles.json: machine, applications and one row per kind and size.

    Sizes above ``measured_mb`` are not run but extrapolated, and marked so.
    """
    pinned()
    import benchmarks.pipelines.torch_detection  # noqa: F401  its import is not a step's time

    real = devices.gpu_name()
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for name in only:
        run(name, input_of(name, min(sizes_mb), seed))
        for size_mb in sizes_mb:
            if size_mb <= measured_mb:
                CONSOLE.print(f"{name}, {size_mb:g} MB")
                _profile_one(name, size_mb, seed, rows)
            else:
                _leave_out(name, size_mb, rows)
    _extrapolate_cpu(rows, [size for size in sizes_mb if size <= measured_mb][-2:])
    if real is None:
        _extrapolate_gpu(rows, [size for size in sizes_mb if size <= COUNTED_MB][-2:])
    about = common.provenance("benchmarks.pipelines", ["opencv-python-headless", "torch", "numpy"])
    return {
        "machine": about["machine"],
        "cpu": {"measured_up_to_mb": min(measured_mb, max(sizes_mb))},
        "date": about["date"],
        "provenance": about,
        "gpu": {
            "measured": real is not None,
            "model": real or _cards()[0].name,
            "source": "measured here, copies included" if real else SOURCE,
        },
        "applications": {name: _steps(load(name)) for name in PIPELINES},
        "rows": [rows[key] for key in sorted(rows)],
    }


def merged(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """``after``, with the rows of ``before`` that it does not have itself."""
    rows = {(row["kind"], row["size_mb"]): row for row in before["rows"] + after["rows"]}
    return {**after, "rows": [rows[key] for key in sorted(rows)]}


def _cards() -> Any:
    from benchmarks.pipelines.counting import CARDS

    return CARDS


def _steps(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [
        {
            "subtask": one.name,
            "kind": one.kind,
            "after": list(one.after),
            "devices": sorted(device.value for device in one.devices),
        }
        for one in pipeline.spec("benchmarks").subtasks
    ]


def _profile_one(
    name: str, size_mb: float, seed: int, rows: dict[tuple[str, float], dict[str, Any]]
) -> None:
    """All steps of one application at one size; kinds that were measured already are skipped."""
    pipeline = load(name)
    results: dict[str, Any] = {}
    first = input_of(name, size_mb, seed)
    for spec in pipeline.spec(PIPELINES[name]).subtasks:
        step = pipeline.steps[spec.name]
        inputs = [results.pop(one) for one in step.after] if step.after else [first]
        key = (step.kind, size_mb)
        known = key in rows or Device.CPU not in step.versions
        repeat = 1 if known else _repetitions(size_mb)
        row = rows.setdefault(key, {"kind": step.kind, "size_mb": size_mb, "cpu_s": None,
                                    "cpu_memory_mib": None, "cpu_share": None})  # fmt: skip
        fresh = "gpu_s" not in row
        if fresh:
            row.update(_gpu(step, inputs, size_mb))
        held = _pickled_bytes(inputs)
        taken: list[Taken] = []
        for _ in range(repeat):
            results[step.name], one = _timed(partial(step, *inputs), held)
            taken.append(one)
        if fresh and Device.CPU in step.versions:
            row["cpu_s"] = [round(one.cpu_s, 6) for one in taken]
            row["cpu_memory_mib"] = round(max(one.memory_mib for one in taken), 1)
            share = max(one.cpu_s / max(one.wall_s, 1e-9) for one in taken)
            row["cpu_share"] = round(min(1.0, share), 3)
        elif fresh:
            row["cpu_memory_mib"] = round(max(one.memory_mib for one in taken), 1)
            row["cpu_share"] = 1.0


def _gpu(step: Step, inputs: list[Any], size_mb: float) -> dict[str, Any]:
    """The GPU half of a row: measured with CUDA, else counted; None where it is to be filled."""
    nothing = {"gpu_s": None, "gpu_memory_mib": None, "gpu_features": None}
    version = step.versions.get(Device.GPU)
    if version is None:
        return nothing
    if devices.gpu_name() is not None:
        from benchmarks.pipelines import cuda

        return cuda.measured(version, inputs, _repetitions(size_mb))
    if size_mb > COUNTED_MB:
        return {**nothing, "extrapolated": True}
    from benchmarks.pipelines import counting

    with counting.counted() as work:
        version(*inputs)
    first, *rest = ((card, card.estimate(work)) for card in counting.CARDS)
    memory = round(counting.CONTEXT_MIB + work.memory_bytes / 2**20, 1)
    return {
        "gpu_model": first[0].name,
        "gpu_s": [round(first[1].seconds, 6)],
        "gpu_memory_mib": memory,
        "gpu_features": first[1].features,
        "gpu_copied_mb": round(work.copied / 1e6, 3),
        "gpu_launches": len(work.operations),
        "other_gpus": {
            card.name: {"gpu_s": [round(found.seconds, 6)], "gpu_features": found.features}
            for card, found in rest
        },
    }


def _leave_out(name: str, size_mb: float, rows: dict[tuple[str, float], dict[str, Any]]) -> None:
    """Rows of a size that is not run: all of it to be extrapolated."""
    for step in load(name).steps.values():
        gpu = {"extrapolated": True} if Device.GPU in step.versions else {}
        nothing = dict.fromkeys(("cpu_s", "gpu_s", "gpu_memory_mib", "gpu_features"))
        rows.setdefault(
            (step.kind, size_mb),
            {"kind": step.kind, "size_mb": size_mb, "cpu_extrapolated": True, **nothing, **gpu},
        )


def _line(share: float, before: float, after: float) -> float:
    """Extrapolate from ``after``, ``share`` steps after ``before``; never down."""
    return max(after, before + (after - before) * share)


def _extrapolate_cpu(rows: dict[tuple[str, float], dict[str, Any]], measured: list[float]) -> None:
    """Fill the CPU half of what was not run from the two largest sizes that were."""
    for (kind, size_mb), row in rows.items():
        if not row.get("cpu_extrapolated"):
            continue
        low, high = (rows[kind, size] for size in measured)
        line = partial(_line, (size_mb - measured[0]) / (measured[1] - measured[0]))
        row["cpu_share"] = high["cpu_share"]
        row["cpu_memory_mib"] = round(line(low["cpu_memory_mib"], high["cpu_memory_mib"]), 1)
        if high["cpu_s"]:
            row["cpu_s"] = [round(line(median(low["cpu_s"]), median(high["cpu_s"])), 6)]


def _extrapolate_gpu(rows: dict[tuple[str, float], dict[str, Any]], counted: list[float]) -> None:
    """Fill what was not counted from the two largest sizes that were, on a straight line."""
    for (kind, size_mb), row in rows.items():
        if not row.get("extrapolated"):
            continue
        low, high = (rows[kind, size] for size in counted)
        line = partial(_line, (size_mb - counted[0]) / (counted[1] - counted[0]))
        row["gpu_model"] = high["gpu_model"]
        row["gpu_s"] = [round(line(low["gpu_s"][0], high["gpu_s"][0]), 6)]
        full = max(counted[1], min(size_mb, CHUNKS_FULL_MB.get(kind, COUNTED_MB)))
        held = _line((full - counted[0]) / (counted[1] - counted[0]), low["gpu_memory_mib"],
                     high["gpu_memory_mib"])  # fmt: skip
        row["gpu_memory_mib"] = round(held, 1)
        row["gpu_features"] = high["gpu_features"]
        for field in ("gpu_copied_mb", "gpu_launches"):
            row[field] = round(line(low[field], high[field]), 3)
        row["other_gpus"] = {
            card: {
                "gpu_s": [round(line(low["other_gpus"][card]["gpu_s"][0], one["gpu_s"][0]), 6)],
                "gpu_features": one["gpu_features"],
            }
            for card, one in high["other_gpus"].items()
        }
