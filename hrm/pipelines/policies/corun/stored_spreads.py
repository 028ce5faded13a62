"""Spreads of runs as arrays of ``store``: two, because in a message of few rows each array counts.

``spreads`` has a line for each, in single precision: row; 0 or 1 for times on a core or a GPU, 2
for device memory; runs; mean and variance of the logarithms; for times the number of bins, for
memory the runs that ran out of it; and the greatest memory. ``spread_bins`` has the numbers and the
weights of all bins, one spread after the other. Of a single run there is none: it is no more than
the row's time and its memory. An HRM that does not know these arrays passes over them, and what it
wrote has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hrm.pipelines.core.model import Device
from hrm.pipelines.policies.corun.estimate_entry import EstimateEntry
from hrm.pipelines.policies.corun.run_spreads import (
    BIN_LIMIT,
    BINS_MAX,
    PeakSpread,
    TimeSpread,
)

__all__ = ["add_spreads", "spread_arrays"]

_DEVICES = (Device.CPU, Device.GPU)
_MEMORY = 2
_COLUMNS = 7
_RUNS_MIN = 2
_RUNS_MAX = 2**24
"""So many single precision still counts one by one."""
_LOG_MAX = 50.0
"""No logarithm of a time or an amount of memory, and no variance of it, is beyond that."""
_STEPS = 64
"""Weights travel in steps of a sixty-fourth."""


def spread_arrays(entries: Sequence[EstimateEntry]) -> dict[str, np.ndarray[Any, Any]]:
    """Rows are indexes of ``entries``; without any spread, no array."""
    lines: list[tuple[float, ...]] = []
    bins: list[tuple[int, int]] = []
    for row, entry in enumerate(entries):
        for number, device in enumerate(_DEVICES):
            times = entry.spreads.get(device)
            if times is not None and times.runs >= _RUNS_MIN:
                runs = min(times.runs, _RUNS_MAX)
                moments = times.log_mean, times.log_variance
                lines.append((row, number, runs, *moments, len(times.bins), 0.0))
                bins += [(place, max(1, round(_STEPS * weight))) for place, weight in times.bins]
        peak = entry.peak
        if peak is not None and (peak.runs >= _RUNS_MIN or peak.out_of_memory):
            runs, failed = min(peak.runs, _RUNS_MAX), min(peak.out_of_memory, _RUNS_MAX)
            moments = peak.log_mean, peak.log_variance
            lines.append((row, _MEMORY, runs, *moments, failed, peak.greatest_mib))
    if not lines:
        return {}
    return {
        "spreads": np.array(lines, np.float32),
        "spread_bins": np.array(bins, np.int16).reshape(len(bins), 2),
    }


def add_spreads(
    entries: Sequence[EstimateEntry], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Add to ``entries`` what ``spread_arrays`` wrote.

    Raises:
        ValueError: it did not write that.
    """
    if "spreads" not in arrays:
        return
    lines, bins = arrays["spreads"], arrays["spread_bins"]
    if lines.shape != (len(lines), _COLUMNS) or bins.shape != (len(bins), 2):
        raise ValueError(f"spreads are of shapes {lines.shape} and {bins.shape}")
    numbers, means, variances = lines[:, [0, 1, 2, 5]], np.abs(lines[:, 3]), lines[:, 4]
    if not np.isfinite(lines).all() or (numbers != np.round(numbers)).any():
        raise ValueError("a spread has what is no number, or a part of a run")
    if (means > _LOG_MAX).any() or ((variances < 0) | (variances > _LOG_MAX)).any():
        raise ValueError("a spread is of no time, or no memory, that there can be")
    if (np.abs(bins[:, 0]) > BIN_LIMIT).any() or (bins[:, 1] < 1).any():
        raise ValueError("a spread has a bin without a weight, or one too far out")
    left = [(int(place), float(weight) / _STEPS) for place, weight in bins.tolist()]
    for line in lines.tolist():
        row, what, runs, count = (int(line[column]) for column in (0, 1, 2, 5))
        if not 0 <= row < len(entries) or not 0 <= what <= _MEMORY or runs < 1:
            raise ValueError("a spread is of no row, of no device, or of no run")
        if what == _MEMORY:
            _add_peak(entries[row], runs, count, line)
            continue
        if not 0 <= count <= min(BINS_MAX, len(left)):
            raise ValueError(f"a spread has {count} bins, of which not all are there")
        held, left = tuple(left[:count]), left[count:]
        entries[row].spreads[_DEVICES[what]] = TimeSpread(line[3], line[4], held, runs)


def _add_peak(entry: EstimateEntry, runs: int, failed: int, line: Sequence[float]) -> None:
    greatest_mib = line[6]
    if not 0 <= failed <= runs or greatest_mib < 0:
        raise ValueError("a spread of memory has more failures than runs, or no memory")
    entry.peak = PeakSpread(line[3], line[4], greatest_mib, runs, failed)
