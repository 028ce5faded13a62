"""``Stdm`` fed by the two cores with runs and profiles: a ``LearningEstimates``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.policies.corun.estimates import Stdm
from hrm.pipelines.policies.corun.metrics import COLUMN, applies

__all__ = ["ToldStdm"]


class ToldStdm:
    """Passes everything on to ``stdm``; what has no column there is left out."""

    def __init__(self, stdm: Stdm) -> None:
        self.stdm = stdm
        self.slowdowns = stdm.slowdowns
        self.run_s = stdm.run_s
        self.speedup = stdm.speedup
        self.gpu_features = stdm.gpu_features
        self.memory_mib = stdm.memory_mib
        self.gpu_memory_mib = stdm.gpu_memory_mib
        self.outside = stdm.outside

    def declare(self, row: Row, subtask: SubtaskSpec) -> None:
        """See ``LearningEstimates``. Subtasks of one kind may declare different versions: all of
        them count, or a run of one would contradict what another has declared."""
        known = self.stdm.devices.get(row.kind, frozenset())
        devices = known | subtask.devices
        if devices != known or subtask.gpu_memory_mib:
            self.stdm.declare((replace(subtask, devices=devices),))

    def measured_cells(self, row: Row) -> int:
        """See ``LearningEstimates``."""
        entry = self.stdm.entries.get(row)
        if entry is None:
            return 0
        return sum(map(math.isfinite, entry.values)) + len(entry.runs)

    def observe_run(
        self,
        row: Row,
        device: Device,
        seconds: float,
        memory_mib: float,
        gpu_memory_mib: float,
        co_runners: tuple[Row, ...],
    ) -> None:
        """See ``LearningEstimates``. A co-runner for half of the time counts in full."""
        self.stdm.observe_run(
            row,
            device,
            seconds,
            beside=[(other, 1.0) for other in co_runners],
            memory_mib=memory_mib or None,
            gpu_memory_mib=(gpu_memory_mib or None) if device is Device.GPU else None,
        )

    def observe_cells(self, row: Row, cells: Mapping[str, float]) -> None:
        """See ``LearningEstimates``."""
        devices = self.stdm.devices.get(row.kind, frozenset(Device))
        for name, value in cells.items():
            if name in COLUMN and name != "size" and applies(name, devices):
                self.stdm.observe(row, name, value)
