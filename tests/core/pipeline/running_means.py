"""The simplest estimates that learn: running means of measurements, row by row.

A row that was never measured has the mean of its kind's other rows, or else one second and its
author's declarations. Once there are runs with exclusive use of a GPU, only these count: shared
ones measure interference, not the row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.model import CO_RUN_FEATURES, Device, Row, SubtaskSpec, Vector

__all__ = ["RunningMeans"]

_MEMORY_MIB = 256.0
_GPU_MEMORY_MIB = 512.0
_RUN_S = 1.0


class _Mean:
    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / self.count


class RunningMeans:
    """A ``LearningEstimates`` without a model. Defaults: 1 s, 256 MiB, 512 MiB, an idle GPU's
    features (zeros)."""

    def __init__(self) -> None:
        self._devices: dict[str, frozenset[Device]] = {}
        self._declared: dict[Row, SubtaskSpec] = {}
        self._alone: dict[tuple[Row, Device], _Mean] = {}
        self._shared: dict[tuple[Row, Device], _Mean] = {}
        self._kind: dict[tuple[str, Device], _Mean] = {}
        self._memory: dict[Row, float] = {}
        self._gpu_memory: dict[Row, float] = {}
        self._cells: dict[Row, dict[str, float]] = {}
        self._gpu_use: dict[Row, tuple[GpuUsePart, ...]] = {}
        self.gpu_peaks: dict[str, PeakMemory] = {}
        """By kind; these three are for tests to set."""
        self.gpu_memory_of_kind: dict[str, float] = {}
        self.deviation_s = 0.0
        self.out_of_memory: list[tuple[Row, float]] = []
        self.changes = 0

    def declare(self, row: Row, subtask: SubtaskSpec) -> None:
        self._declared[row] = subtask
        self._devices[row.kind] = self._devices.get(row.kind, frozenset()) | subtask.devices

    def run_s(self, row: Row, device: Device) -> float:
        if device not in self._devices.get(row.kind, frozenset()):
            return math.inf
        key = (row, device)
        mean = self._alone.get(key) or self._shared.get(key) or self._kind.get((row.kind, device))
        return mean.value if mean else _RUN_S

    def speedup(self, row: Row) -> float:
        devices = self._devices.get(row.kind, frozenset())
        if Device.GPU not in devices:
            return 0.0
        if Device.CPU not in devices:
            return math.inf
        return self.run_s(row, Device.CPU) / max(1e-9, self.run_s(row, Device.GPU))

    def gpu_features(self, row: Row) -> Vector:
        cells = self._cells.get(row, {})
        return np.array([cells.get(name, 0.0) for name in CO_RUN_FEATURES], dtype=np.float32)

    def memory_mib(self, row: Row) -> float:
        return self._memory.get(row, _MEMORY_MIB)

    def gpu_memory_mib(self, row: Row) -> float:
        if row.kind in self.gpu_memory_of_kind:
            return self.gpu_memory_of_kind[row.kind]
        declared = self._declared.get(row)
        known = declared.gpu_memory_mib if declared else 0
        return max(self._gpu_memory.get(row, 0.0), known) or _GPU_MEMORY_MIB

    def run_deviation_s(self, row: Row, device: Device) -> float:
        return self.deviation_s

    def gpu_memory_peak(self, row: Row) -> PeakMemory | None:
        return self.gpu_peaks.get(row.kind)

    def runs_alone(self, row: Row) -> int:
        mean = self._alone.get((row, Device.GPU))
        return mean.count if mean else 0

    def gpu_use(self, row: Row) -> tuple[GpuUsePart, ...]:
        return self._gpu_use.get(row, ())

    def measured_cells(self, row: Row) -> int:
        timed = sum((row, d) in self._alone or (row, d) in self._shared for d in Device)
        measured = (row in self._memory) + (row in self._gpu_memory)
        return timed + measured + len(self._cells.get(row, ()))

    def measured_s(self, row: Row, device: Device) -> float | None:
        mean = self._alone.get((row, device)) or self._shared.get((row, device))
        return mean.value if mean else None

    def measured_models(self, kind: str) -> list[str]:
        rows = [row for row, _ in [*self._alone, *self._shared] if row.kind == kind]
        return list(dict.fromkeys(row.gpu_model for row in rows))

    def observe_run(
        self,
        row: Row,
        device: Device,
        seconds: float,
        memory_mib: float,
        gpu_memory_mib: float,
        co_runners: tuple[Row, ...],
    ) -> None:
        self.changes += 1
        means = self._shared if co_runners else self._alone
        means.setdefault((row, device), _Mean()).add(seconds)
        self._kind.setdefault((row.kind, device), _Mean()).add(seconds)
        if memory_mib > 0:
            self._memory[row] = max(memory_mib, self._memory.get(row, 0.0))
        if gpu_memory_mib > 0:
            self._gpu_memory[row] = max(gpu_memory_mib, self._gpu_memory.get(row, 0.0))

    def observe_cells(self, row: Row, cells: Mapping[str, float]) -> None:
        self._cells.setdefault(row, {}).update(cells)

    def observe_out_of_gpu_memory(self, row: Row, had_mib: float) -> None:
        self.out_of_memory.append((row, had_mib))

    def observe_gpu_use(self, row: Row, use: Sequence[GpuUsePart]) -> None:
        self._gpu_use[row] = tuple(use)
