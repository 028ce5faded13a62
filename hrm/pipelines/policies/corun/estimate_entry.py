"""What was measured of one row of the table of estimates, here and by others.

Many nodes write to one table and read it (``store``). What they all measured counts by how many
observations have gone into it; times alone are those of a node, and its own take over as soon as
there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hrm.pipelines.core.model import Device
from hrm.pipelines.policies.corun.metrics import METRICS
from hrm.pipelines.policies.corun.predictors import Floats
from hrm.pipelines.policies.corun.run_spreads import PeakSpread, TimeSpread
from hrm.policies.shared_gpu.recorded_use import RecordedUse

__all__ = ["OWN_RUNS", "RUNS_REMEMBERED", "EstimateEntry"]

OWN_RUNS = 5
"""So many runs of a node's own describe its times better than any number of others' do: nodes
differ, and their speeds may not be set."""
RUNS_REMEMBERED = 20
"""The latest runs, about so many, make up a mean."""


@dataclass(slots=True)
class EstimateEntry:
    """One row. ``values`` (metrics,), NaN where not measured; ``runs``: mean time alone, count.

    A time that was only seen with co-runners is kept as a guess, with a count of 0. ``own``: as
    ``runs``, of the runs that this table has seen itself; ``gpu_use``: what its runs alone on a GPU
    used of it, None where not measured; ``spreads``: how times alone differ;
    ``peak``: of device memory, None where not measured; ``changed``: ``Stdm.changes`` then.
    """

    values: Floats = field(default_factory=lambda: np.full(len(METRICS), np.nan))
    counts: Floats = field(default_factory=lambda: np.zeros(len(METRICS)))
    runs: dict[Device, tuple[float, int]] = field(default_factory=dict)
    own: dict[Device, tuple[float, int]] = field(default_factory=dict)
    gpu_use: RecordedUse | None = None
    spreads: dict[Device, TimeSpread] = field(default_factory=dict)
    peak: PeakSpread | None = None
    changed: int = 0

    def ran_alone(self, device: Device, seconds: float) -> None:
        """Once there are ``OWN_RUNS`` of this table's own, what others took counts no more."""
        self.spreads[device] = self.spreads.get(device, TimeSpread()).observed(seconds)
        own = self.own[device] = _extended(self.own.get(device), seconds)
        known = _extended(self.runs.get(device), seconds)
        self.runs[device] = own if own[1] >= OWN_RUNS else known

    def take_run(self, device: Device, seconds: float, count: int) -> bool:
        """Take a mean of ``count`` runs of many nodes, unless more is known here; was it taken?"""
        known, (_, own) = self.runs.get(device), self.own.get(device, (0.0, 0))
        if own >= OWN_RUNS or (known is not None and count <= known[1]):
            return False
        self.runs[device] = seconds, count
        return True

    def take_use(self, other: RecordedUse | None) -> bool:
        """Take a profile of a GPU if more runs have gone into it; was it taken?"""
        known = 0 if self.gpu_use is None else self.gpu_use.runs
        if other is None or other.runs <= known:
            return False
        self.gpu_use = other
        return True

    def reached(self, peak_mib: float) -> None:
        """A run has reached this peak of device memory."""
        self.peak = (self.peak or PeakSpread()).observed(peak_mib)

    def ran_out(self, had_mib: float) -> None:
        """A run that had this much device memory needed more."""
        self.peak = (self.peak or PeakSpread()).ran_out(had_mib)

    def take_spreads(self, other: EstimateEntry) -> bool:
        """Take each spread into which more runs have gone; was any taken?"""
        known = {device: spread.runs for device, spread in self.spreads.items()}
        more = {d: one for d, one in other.spreads.items() if one.runs > known.get(d, 0)}
        self.spreads |= more
        runs = 0 if self.peak is None else self.peak.runs
        if other.peak is None or other.peak.runs <= runs:
            return bool(more)
        self.peak = other.peak
        return True


def _extended(mean: tuple[float, int] | None, seconds: float) -> tuple[float, int]:
    """A mean of which the latest ``RUNS_REMEMBERED`` weigh most; the count has no bound."""
    mean_s, count = (0.0, 0) if mean is None else mean
    return mean_s + (seconds - mean_s) / min(count + 1, RUNS_REMEMBERED), count + 1
