"""What the schedulers of a simulated cluster know when a run begins.

Estimates start from a few finished runs of each row and from profiled loads, both with the error
that table 3 gives for profiles of 4 s. From then on every ended run updates them.
"""

from __future__ import annotations

import itertools

import numpy as np

from hrm.pipelines.core.model import SIZE_BUCKETS_MB, Device, LearningEstimates, row_of
from hrm.pipelines.sim.profiles import FIELDS, MeasuredPipelines
from hrm.pipelines.sim.scenario import SIZES_MB

__all__ = ["PROFILE_ERROR", "noise", "warm"]

PROFILE_ERROR = 0.077
"""Mean relative error of a metric profiled for 4 s: table 3, 92.3 % accuracy."""
_NORMAL_MEAN = 0.798
"""Mean absolute value of a standard normal variable."""


def noise(rng: np.random.Generator) -> float:
    """A factor with the mean error of a profile."""
    return float(max(0.05, 1.0 + PROFILE_ERROR / _NORMAL_MEAN * rng.standard_normal()))


def warm(estimates: LearningEstimates, profiles: MeasuredPipelines, gpu_model: str) -> None:
    """Three finished runs and a profile of every row of this model, with their errors.

    The same for all nodes of a model, all policies and all seeds: it is their common history.
    """
    rng = np.random.default_rng([0x3157, sum(gpu_model.encode())])
    edges = (SIZES_MB[0] / 2, *SIZE_BUCKETS_MB, 1.5 * SIZE_BUCKETS_MB[-1])
    specs = {one.kind: one for line in profiles.pipelines for one in line.subtasks}
    for name, spec in sorted(specs.items()):
        kind = profiles.kinds[name]
        for low, high in itertools.pairwise(edges):
            middle_mb = float(np.sqrt(low * high))
            row = row_of(spec, middle_mb, gpu_model)
            estimates.declare(row, spec)
            for device in sorted(spec.devices, key=lambda one: one.value):
                for _ in range(3):
                    size_mb = float(np.exp(rng.uniform(np.log(low), np.log(high))))
                    on_gpu = device is Device.GPU
                    estimates.observe_run(
                        row,
                        device,
                        kind.run_s(device, size_mb, gpu_model) * noise(rng),
                        kind.memory_mib(size_mb),
                        kind.gpu_memory_mib(size_mb) if on_gpu else 0.0,
                        (),
                    )
            cells = {"cpu": float(np.clip(kind.cpu_share * noise(rng), 0.0, 1.0))}
            if Device.GPU in spec.devices:
                for field, value in zip(FIELDS, kind.features, strict=True):
                    cells[field] = float(np.clip(value * noise(rng), 0.0, 1.0))
            estimates.observe_cells(row, cells)
