"""Spreads of runs as arrays of ``store``: two, because in a message of few rows each array counts.

``spreads`` is a line of numbers, for each spread of times: row, device, runs, mean, variance, bins,
and for each bin its number and its weight. ``peaks`` has a line for each spread of device memory:
row, mean, variance, greatest, runs, and those that ran out of memory. A file of an HRM that did not
keep them has none, and such an HRM passes over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
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
_HEAD = 6
_PEAK_COLUMNS = 6
_RUNS_MAX = 2**24
"""So many runs single precision still counts one by one; with more, a spread is not sent again."""
_LOG_MAX = 50.0
"""No ln(MiB), and no variance of it, is beyond that."""
_WEIGHT_STEPS = 64.0
"""Weights travel in steps of a sixty-fourth, which compress."""


def spread_arrays(entries: Sequence[EstimateEntry]) -> dict[str, np.ndarray[Any, Any]]:
    """Rows are indexes of ``entries``; without any spread, no array."""
    line: list[float] = []
    peaks: list[tuple[float, ...]] = []
    for row, entry in enumerate(entries):
        for number, device in enumerate(_DEVICES):
            spread = entry.spreads.get(device)
            if spread is not None:
                runs = min(spread.runs, _RUNS_MAX)
                line += (row, number, runs, spread.log_mean, spread.log_variance)
                line.append(len(spread.bins))
                for place, weight in spread.bins:
                    line += (place, max(1.0, round(weight * _WEIGHT_STEPS)) / _WEIGHT_STEPS)
        if (peak := entry.peak) is not None:
            peaks.append((row, *astuple(peak)))
    found: dict[str, np.ndarray[Any, Any]] = {}
    if line:
        found["spreads"] = np.array(line, np.float32)
    if peaks:
        found["peaks"] = np.array(peaks, np.float64)
    return found


def add_spreads(
    entries: Sequence[EstimateEntry], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Add to ``entries`` what ``spread_arrays`` wrote.

    Raises:
        ValueError: it did not write that.
    """
    if "spreads" in arrays:
        _add_times(entries, arrays["spreads"])
    if "peaks" in arrays:
        _add_peaks(entries, arrays["peaks"])


def _add_times(entries: Sequence[EstimateEntry], stored: np.ndarray[Any, Any]) -> None:
    if stored.ndim != 1 or not np.isfinite(stored).all():
        raise ValueError(f"spreads of times of shape {stored.shape} are no line of numbers")
    line, at = stored.tolist(), 0
    while at < len(line):
        if len(line) - at < _HEAD:
            raise ValueError("a spread of times is incomplete")
        row, number, runs, count = (int(line[at + place]) for place in (0, 1, 2, 5))
        log_mean, log_variance = line[at + 3 : at + 5]
        at += _HEAD
        if not 0 <= row < len(entries) or number not in (0, 1) or runs < 1 or log_variance < 0:
            raise ValueError("a spread of times is of no row, no device or no run")
        if not 0 <= count <= BINS_MAX or len(line) - at < 2 * count:
            raise ValueError(f"a spread of times has {count} bins, of which not all are there")
        if max(abs(log_mean), log_variance) > _LOG_MAX:
            raise ValueError("a spread of times is of no time that there can be")
        bins = line[at : at + 2 * count]
        places, weights = bins[::2], bins[1::2]
        if any(weight <= 0 for weight in weights) or any(abs(n) > BIN_LIMIT for n in places):
            raise ValueError("a spread of times has a bin without a weight, or one too far out")
        at += 2 * count
        held = tuple(zip(map(int, places), weights, strict=True))
        entries[row].spreads[_DEVICES[number]] = TimeSpread(log_mean, log_variance, held, runs)


def _add_peaks(entries: Sequence[EstimateEntry], stored: np.ndarray[Any, Any]) -> None:
    if stored.shape != (len(stored), _PEAK_COLUMNS) or not np.isfinite(stored).all():
        raise ValueError(f"spreads of memory {stored.shape} are not {_PEAK_COLUMNS} numbers a row")
    for row, mean, variance, greatest_mib, runs, failed in stored.tolist():
        if not 0 <= row < len(entries) or not 0 <= failed <= runs or runs < 1:
            raise ValueError("a spread of memory is of no row, or of no run")
        if abs(mean) > _LOG_MAX or not 0 <= variance <= _LOG_MAX or greatest_mib < 0:
            raise ValueError("a spread of memory is of no memory that there can be")
        entries[int(row)].peak = PeakSpread(mean, variance, greatest_mib, int(runs), int(failed))
