"""How long a job of Pollux's workloads runs, from the measurements of its application.

A workload names an application, GPUs and a batch size; the training job of that batch takes some
number of steps, and each step some time on so many GPUs. Both were measured: the steps are those of
the whole published training with that batch size (the last line of ``validation-BATCH.csv``), the
time of a step is that of GPUs that fill nodes of ``GPUS_PER_NODE`` (``placements.csv``, above 16
GPUs ``scalability.csv``). Between measured batches of one GPU the time is taken as a straight line;
a batch above the largest that fits a GPU is several in turn, of which the last alone synchronises.

What is left out is Pollux's main feature: it changes GPUs and batch size while a job runs. Here a
job keeps those of its submission, so these are the run times of its users' choice, not Pollux's.

Source: the measurements are those that Pollux (OSDI 2021) published with its simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.traces.measured import pollux_placements, pollux_scalability, pollux_validation
from benchmarks.traces.reading import LoadReport
from hrm.errors import InvalidRequest

__all__ = ["GPUS_PER_NODE", "Profile", "profiles"]

GPUS_PER_NODE = 4

_Curve: TypeAlias = list[tuple[int, float, float]]
"""Samples of one GPU, seconds per step, and seconds of synchronising in it; by samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One application. ``curves``: by GPUs; ``steps``: of a whole training, by batch size."""

    curves: Mapping[int, _Curve]
    steps: Mapping[int, int]

    def run_s(self, batch: int, gpus: int) -> float:
        """Seconds that a training with ``batch`` samples per step takes on ``gpus``; 0 if it was
        not measured."""
        curve = self.curves.get(gpus)
        if not curve or batch not in self.steps:
            return 0.0
        of_one = math.ceil(batch / gpus)
        in_turn = math.ceil(of_one / curve[-1][0])
        step_s, sync_s = _between(curve, of_one / in_turn)
        return self.steps[batch] * (in_turn * step_s - (in_turn - 1) * sync_s)


def profiles(path: Path) -> dict[str, Profile]:
    """For each application that has a directory with measurements in ``path``, a workload's
    directory, or above it if that is a directory ``workloads*``, as published. May be empty.

    Raises:
        InvalidRequest: a measurement is ill-formed; the message has file and line.
    """
    folder = path if path.is_dir() else path.parent
    place = folder.parent if folder.name.startswith("workloads") else folder
    found = sorted(each.parent for each in place.glob("*/placements.csv*"))
    return {each.name: _profile(each) for each in found}


def _profile(folder: Path) -> Profile:
    report = LoadReport()
    curves: dict[int, _Curve] = defaultdict(list)
    for line in pollux_placements(folder, report):
        gpus = sum(line.placement)
        if sorted(line.placement, reverse=True) == _filled(gpus):
            curves[gpus].append((line.local_batch, line.step_s, line.sync_s))
    measured = frozenset(curves)
    if any(folder.glob("scalability.csv*")):
        for row in pollux_scalability(folder, report):
            if row.replicas not in measured and row.nodes == len(_filled(row.replicas)):
                curves[row.replicas].append((row.local_batch, row.step_s, row.sync_s))
    steps = {}
    for file in sorted(folder.glob("validation-*.csv*")):
        batch = file.name.removeprefix("validation-").split(".")[0]
        if batch.isdecimal():
            steps[int(batch)] = max(x.iteration for x in pollux_validation(file, report))
    if report.messages:
        raise InvalidRequest(
            f"{report.messages[0]}: run times cannot be told from damaged measurements; mend the "
            f"file, or move {folder} away to read the workload without run times"
        )
    return Profile(curves={gpus: sorted(set(x)) for gpus, x in curves.items()}, steps=steps)


def _filled(gpus: int) -> list[int]:
    """GPUs on each node where all but the last are full."""
    whole, rest = divmod(gpus, GPUS_PER_NODE)
    return [GPUS_PER_NODE] * whole + [rest] * (rest > 0)


def _between(curve: _Curve, samples: float) -> tuple[float, float]:
    """Step and synchronising seconds for ``samples`` on one GPU, limited to the range of the
    measurements."""
    at = bisect_left(curve, samples, key=lambda point: point[0])
    if at == 0 or curve[at][0] == samples:
        return curve[at][1:]
    (low, low_step_s, low_sync_s), (high, step_s, sync_s) = curve[at - 1 : at + 1]
    part = (samples - low) / (high - low)
    return low_step_s + part * (step_s - low_step_s), low_sync_s + part * (sync_s - low_sync_s)
