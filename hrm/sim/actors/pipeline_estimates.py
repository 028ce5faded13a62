"""The simplest policy and estimates of a node: runs are what counts here, not how well they are
chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.pipelines.core import feasibility
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.model import (
    CO_RUN_FEATURES,
    Device,
    NodeView,
    Row,
    StartDecision,
    SubtaskSpec,
    Vector,
)

__all__ = ["FirstFit", "PlainEstimates"]

_RUN_S = 2.0
_MEMORY_MIB = 64.0


class PlainEstimates:
    """A ``LearningEstimates`` that knows what is declared, and the time of each row's latest run,
    for the order of tasks alone. Defaults: 2 s, 64 MiB, and of device memory what is declared."""

    def __init__(self) -> None:
        self.changes = 0
        self._times_s: dict[tuple[Row, Device], float] = {}
        self._specs: dict[Row, SubtaskSpec] = {}

    def declare(self, row: Row, subtask: SubtaskSpec) -> None:
        self._specs[row] = subtask

    def run_s(self, row: Row, device: Device) -> float:
        return _RUN_S if device in self._specs[row].devices else float("inf")

    def speedup(self, row: Row) -> float:
        devices = self._specs[row].devices
        if Device.GPU not in devices:
            return 0.0
        return 1.0 if Device.CPU in devices else float("inf")

    def gpu_features(self, row: Row) -> Vector:
        return np.zeros(len(CO_RUN_FEATURES), dtype=np.float32)

    def memory_mib(self, row: Row) -> float:
        return _MEMORY_MIB

    def gpu_memory_mib(self, row: Row) -> float:
        return float(self._specs[row].gpu_memory_mib)

    def run_deviation_s(self, row: Row, device: Device) -> float:
        return 0.0

    def gpu_memory_peak(self, row: Row) -> PeakMemory | None:
        return None

    def runs_alone(self, row: Row) -> int:
        return 0

    def gpu_use(self, row: Row) -> tuple[GpuUsePart, ...]:
        return ()

    def measured_cells(self, row: Row) -> int:
        return len(CO_RUN_FEATURES)

    def measured_s(self, row: Row, device: Device) -> float | None:
        return self._times_s.get((row, device))

    def measured_models(self, kind: str) -> list[str]:
        return list(dict.fromkeys(row.gpu_model for row, _ in self._times_s if row.kind == kind))

    def observe_run(
        self,
        row: Row,
        device: Device,
        seconds: float,
        memory_mib: float,
        gpu_memory_mib: float,
        co_runners: tuple[Row, ...],
    ) -> None:
        """The time of the latest run is what it has learned."""
        self._times_s[row, device] = seconds
        self.changes += 1

    def observe_cells(self, row: Row, cells: Mapping[str, float]) -> None:
        """It learns nothing."""

    def observe_out_of_gpu_memory(self, row: Row, had_mib: float) -> None:
        """It learns nothing."""

    def observe_gpu_use(self, row: Row, use: Sequence[GpuUsePart]) -> None:
        """It learns nothing."""


class FirstFit:
    """A ``NodePolicy``: each starts at the first place that it fits and that no other gets now."""

    name = "first-fit"

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        places = [(Device.GPU, gpu.index) for gpu in view.gpus]
        places += [(Device.CPU, number) for number in view.idle_cores]
        starts: list[StartDecision] = []
        for one in view.ready:
            for place in places:
                if not feasibility.refusal(view, one, *place):
                    starts.append(StartDecision(one.key, *place))
                    places.remove(place)
                    break
        return starts
