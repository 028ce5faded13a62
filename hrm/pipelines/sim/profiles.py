"""What subtasks cost: the measured table, read once, interpolated by size.

The table has rows of (kind, input size): seconds of one CPU core and of one GPU, memory, and the
load on the GPU. Between the measured sizes times and memory are interpolated on logarithmic axes;
beyond them the slope of the nearest segment continues.

The table's GPU is a Tesla P4. Times on other models are those of the table, where it has them; else
``GPU_SPEEDS`` derives them: a kind that computes is slower on a K80 by its lack of arithmetic, one
that moves memory is faster by its bandwidth.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import Device, PipelineSpec, SubtaskSpec

__all__ = [
    "FIELDS",
    "GPU_SPEEDS",
    "K80",
    "P4",
    "SHIPPED",
    "TIME_SCALE",
    "Kind",
    "MeasuredPipelines",
    "load",
    "parse",
]

P4, K80 = "Tesla P4", "Tesla K80"

GPU_SPEEDS = {P4: (1.0, 1.0), K80: (0.55, 1.25)}
"""Speed of arithmetic and of memory relative to the P4, by model. One device of a K80 board has
2.8 to 4.4 TFLOPS in single precision and 240 GB/s; a P4 5.5 TFLOPS and 192 GB/s (data sheets)."""

VARIATION_MIN = 0.03
"""Least relative spread of a run time between inputs of one size."""

VARIATION_MAX = 0.3
"""Greatest; a higher value in a table of milliseconds comes from the clock."""

_TIMEOUT_S = 86_400.0
"""Of simulated subtasks: none hangs, and a slow device is not a failure."""

FIELDS = ("sm", "l1", "l2", "tex", "dram", "load", "store")
_HERE = Path(__file__).resolve()
SHIPPED = (
    _HERE.with_name("profiles.json"),
    _HERE.parents[3] / "benchmarks" / "pipelines" / "profiles.json",
)
"""Where the measured table is: in an installed package, in a checkout."""

TIME_SCALE = 192.0
"""All measured times are multiplied by this, for all policies alike, so that eleven workers can do
at most ``scenario.SATURATION_PER_MIN`` tasks a minute and the paper's rates (10 to 60) mean the
same as there. It follows from the fluid bound alone, not from any policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """All that was measured of one kind of subtask, by size.

    ``log_sizes`` ascend; ``log_cpu_s``, ``log_gpu_s``: for each, or None without such a version;
    ``features``: sm, l1, l2, tex, dram, load, store, each 0..1, the mean over sizes: a kind's
    effect on its co-runners at any moment does not depend on how long it runs.
    """

    name: str
    log_sizes: tuple[float, ...]
    log_cpu_s: tuple[float, ...] | None
    log_gpu_s: tuple[float, ...] | None
    memory: tuple[float, ...]
    gpu_memory: tuple[float, ...]
    cpu_share: float
    features: tuple[float, ...]
    variation: float
    speeds: Mapping[str, float]
    """Of other models of GPU relative to the table's, where the table has them."""

    def scaled(self, factor: float) -> Kind:
        """The same with all times multiplied by ``factor``."""
        add = math.log(factor)
        cpu, gpu = self.log_cpu_s, self.log_gpu_s
        return replace(
            self,
            log_cpu_s=None if cpu is None else tuple(one + add for one in cpu),
            log_gpu_s=None if gpu is None else tuple(one + add for one in gpu),
        )

    def run_s(self, device: Device, size_mb: float, gpu_model: str = P4) -> float:
        """Seconds alone on one core, or on one GPU of this model; inf: no such version."""
        table = self.log_cpu_s if device is Device.CPU else self.log_gpu_s
        if table is None:
            return math.inf
        alone = math.exp(_line(math.log(size_mb), self.log_sizes, table))
        return alone if device is Device.CPU else alone / self.gpu_speed(gpu_model)

    def gpu_speed(self, gpu_model: str) -> float:
        """Relative to the P4: as the table says, else by its shares of arithmetic and memory."""
        if gpu_model in self.speeds:
            return self.speeds[gpu_model]
        arithmetic, memory = GPU_SPEEDS[gpu_model]
        sm, dram = self.features[0], self.features[4]
        share = sm / (sm + dram) if sm + dram > 0 else 0.5
        return 1.0 / (share / arithmetic + (1.0 - share) / memory)

    def memory_mib(self, size_mb: float) -> float:
        return max(1.0, _line(math.log(size_mb), self.log_sizes, self.memory))

    def gpu_memory_mib(self, size_mb: float) -> float:
        return max(1.0, _line(math.log(size_mb), self.log_sizes, self.gpu_memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPipelines:
    """Pipelines and what their kinds cost. ``about``: the source of the numbers, for reports."""

    about: str
    gpu_measured: bool
    pipelines: tuple[PipelineSpec, ...]
    kinds: Mapping[str, Kind]

    def scaled(self, factor: float) -> MeasuredPipelines:
        """The same with all times multiplied by ``factor``."""
        return replace(self, kinds={name: kind.scaled(factor) for name, kind in self.kinds.items()})


def _line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear between the points, and beyond the outer ones with their slope."""
    if len(xs) == 1:
        return ys[0]
    upper = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[upper - 1], xs[upper], ys[upper - 1], ys[upper]
    return y0 + (x - x0) * (y1 - y0) / (x1 - x0)


def load(path: Path | None = None) -> MeasuredPipelines:
    """The table of ``path``; without one the measured one that ships, times ``TIME_SCALE``.

    Raises:
        InvalidRequest: there is no such file, or it is no such table; the message names the field.
    """
    scale = 1.0
    if path is None:
        path, scale = next((file for file in SHIPPED if file.is_file()), SHIPPED[0]), TIME_SCALE
    try:
        return parse(json.loads(path.read_text()), scale=scale)
    except OSError as error:
        raise InvalidRequest(f"cannot read the profiles {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"{path} is no table of subtask profiles: {type(error).__name__}: {error}; name a file "
            "in the form that docs/pipelines-simulation.md of HRM's repository describes"
        ) from error


def parse(document: Mapping[str, Any], *, scale: float = 1.0) -> MeasuredPipelines:
    """The table from its JSON. ``scale`` multiplies every time.

    Raises:
        KeyError, TypeError, ValueError: it has another form.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        rows.setdefault(row["kind"], []).append(row)
    kinds = {kind: _kind(kind, own, scale) for kind, own in sorted(rows.items())}
    pipelines = tuple(
        PipelineSpec(
            name=name,
            reference=f"profiles:{name}",
            subtasks=tuple(
                SubtaskSpec(
                    name=one["subtask"],
                    kind=one["kind"],
                    after=tuple(one["after"]),
                    devices=frozenset(Device(device) for device in one["devices"]),
                    timeout_s=_TIMEOUT_S,
                )
                for one in subtasks
            ),
        )
        for name, subtasks in document["applications"].items()
    )
    for pipeline in pipelines:
        for subtask in pipeline.subtasks:
            _check(pipeline.name, subtask, kinds)
    gpu = document.get("gpu", {})
    measured = bool(gpu.get("measured", False))
    return MeasuredPipelines(
        about=str(gpu.get("source", "unknown")),
        gpu_measured=measured,
        pipelines=pipelines,
        kinds=kinds,
    )


def _check(pipeline: str, subtask: SubtaskSpec, kinds: Mapping[str, Kind]) -> None:
    kind = kinds.get(subtask.kind)
    if kind is None:
        raise ValueError(f"{pipeline}, {subtask.name}: no row of kind {subtask.kind!r}")
    for device, table in ((Device.CPU, kind.log_cpu_s), (Device.GPU, kind.log_gpu_s)):
        if device in subtask.devices and table is None:
            raise ValueError(f"{pipeline}, {subtask.name}: no {device.value} time in its rows")


def _kind(name: str, rows: Sequence[Mapping[str, Any]], scale: float) -> Kind:
    rows = sorted(rows, key=lambda row: float(row["size_mb"]))

    def logs(field: str) -> tuple[float, ...] | None:
        if any(not row.get(field) for row in rows):
            return None
        return tuple(math.log(scale * float(np.median(row[field]))) for row in rows)

    with_gpu = [row["gpu_features"] for row in rows if row.get("gpu_features")]
    features = tuple(
        float(np.mean([min(1.0, max(0.0, one[field])) for one in with_gpu])) if with_gpu else 0.0
        for field in FIELDS
    )
    spreads = [
        float(np.std(row["cpu_s"]) / np.mean(row["cpu_s"]))
        for row in rows
        if row.get("cpu_s") and len(row["cpu_s"]) > 1
    ]
    return Kind(
        name=name,
        log_sizes=tuple(math.log(float(row["size_mb"])) for row in rows),
        log_cpu_s=logs("cpu_s"),
        log_gpu_s=logs("gpu_s"),
        memory=tuple(float(row["cpu_memory_mib"]) for row in rows),
        gpu_memory=tuple(float(row.get("gpu_memory_mib") or 0.0) for row in rows),
        cpu_share=float(np.mean([row.get("cpu_share", 1.0) for row in rows])),
        features=features,
        variation=min(VARIATION_MAX, max(VARIATION_MIN, float(np.median(spreads or [0.0])))),
        speeds=_speeds(rows),
    )


def _speeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The geometric mean over sizes of how much faster each other model of GPU is."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        for model, other in (row.get("other_gpus") or {}).items():
            ratio = float(np.median(row["gpu_s"])) / float(np.median(other["gpu_s"]))
            ratios.setdefault(model, []).append(math.log(ratio))
    return {model: math.exp(sum(logs) / len(logs)) for model, logs in ratios.items()}
