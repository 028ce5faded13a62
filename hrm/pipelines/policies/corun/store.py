"""Estimates in a file: what was learned outlives the process; the file contains no code.

One ``.npz`` without pickles: arrays, and a line of JSON with a version, the names of the metrics,
the scales of memory and the rows. A file of other metrics is refused; memory that was measured
against other scales is converted; the predictor is refitted from the cells.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hrm.errors import InvalidRequest
from hrm.pipelines.core.gpu_use import USE_PARTS, GpuUsePart, check_gpu_use
from hrm.pipelines.core.model import SIZE_BUCKETS_MB, Device, Row
from hrm.pipelines.policies.corun.metrics import COLUMN, METRICS
from hrm.pipelines.policies.corun.pair_effects import PAIRS_MAX
from hrm.pipelines.policies.corun.recorded_use import RecordedUse
from hrm.pipelines.policies.corun.subtask_estimates import ROWS_MAX, EstimateEntry, Stdm

__all__ = ["dump_estimates", "load_estimates", "merge_estimates"]

_VERSION = 2
_USE_SHAPE = (USE_PARTS, len(GpuUsePart._fields))
_DEVICES = (Device.CPU, Device.GPU)


def dump_estimates(estimates: Stdm) -> bytes:
    """The content of a file, as of now."""
    entries, pairs = estimates.entries, estimates.pair_effects.sums()
    meta = {
        "version": _VERSION,
        "metrics": METRICS,
        "memory_mib": estimates.memory_scale_mib,
        "gpu_memory_mib": {
            model: estimates.gpu_memory_scale_mib(model)
            for model in sorted({row.gpu_model for row in entries})
        },
        "rows": [list(row) for row in entries],
        "devices": {
            kind: sorted(device.value for device in devices)
            for kind, devices in estimates.devices.items()
        },
        "declared_mib": estimates.declared_mib,
        "pairs": [[list(victim), list(partner)] for victim, partner in pairs],
        "gpu_uses": [n for n, entry in enumerate(entries.values()) if entry.gpu_use is not None],
    }
    recorded = [entry.gpu_use for entry in entries.values() if entry.gpu_use is not None]
    shape = (len(entries), len(METRICS))
    runs = np.full((len(entries), len(_DEVICES), 2), np.nan)
    for index, entry in enumerate(entries.values()):
        for number, device in enumerate(_DEVICES):
            if device in entry.runs:
                runs[index, number] = entry.runs[device]
    state = {f"slowdowns_{name}": array for name, array in estimates.slowdowns.state().items()}
    content = io.BytesIO()
    np.savez(
        content,
        meta=np.array(json.dumps(meta)),
        values=np.array([entry.values for entry in entries.values()]).reshape(shape),
        counts=np.array([entry.counts for entry in entries.values()]).reshape(shape),
        runs=runs,
        pair_sums=np.array(list(pairs.values())).reshape(len(pairs), 2),
        gpu_uses=np.array([one.parts for one in recorded]).reshape(len(recorded), *_USE_SHAPE),
        gpu_use_runs=np.array([one.runs for one in recorded], dtype=np.int64),
        **state,  # type: ignore[arg-type]
    )
    return content.getvalue()


@dataclass(frozen=True, slots=True)
class _Stored:
    entries: dict[Row, EstimateEntry]
    devices: dict[str, frozenset[Device]]
    declared_mib: dict[str, int]
    pairs: dict[tuple[Row, Row], tuple[float, float]]


def load_estimates(source: Path | bytes, estimates: Stdm) -> None:
    """Add to the fresh ``estimates`` what ``dump_estimates`` wrote, from a file or as it came.

    Raises:
        InvalidRequest: no such file, a damaged one, or one of other metrics; nothing was added.
    """
    stored = _read(source, estimates, fresh=True)
    estimates.adopt(stored.entries, stored.devices, stored.declared_mib, stored.pairs)


def merge_estimates(content: bytes, estimates: Stdm, speeds: Mapping[Device, float]) -> None:
    """Add to ``estimates`` what others, too, have measured, as ``dump_estimates`` wrote it.

    ``speeds``: of this node's devices; the times in ``content`` are those of a speed of 1.

    Raises:
        InvalidRequest: it is damaged, or of other metrics; nothing was added.
    """
    stored = _read(content, estimates, fresh=False)
    for entry in stored.entries.values():
        entry.runs = {
            device: (seconds / speeds[device], count)
            for device, (seconds, count) in entry.runs.items()
        }
    estimates.merge(stored.entries, stored.devices, stored.declared_mib, stored.pairs)


def _read(source: Path | bytes, estimates: Stdm, *, fresh: bool) -> _Stored:
    """What is in ``source``, in the scales of ``estimates``. Regressions of co-runs are restored if
    ``estimates`` are ``fresh`` or have seen fewer."""
    path = source if isinstance(source, Path) else "the message"
    try:
        opened = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        with opened as stream, np.load(stream, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            if meta["version"] != _VERSION or tuple(meta["metrics"]) != METRICS:
                raise ValueError("it was written for other metrics or by another version")
            entries = _entries(meta["rows"], file["values"], file["counts"], file["runs"])
            devices = {
                str(kind): frozenset(Device(value) for value in values)
                for kind, values in meta["devices"].items()
            }
            _rescale(entries, meta, estimates)
            declared = {str(kind): int(mib) for kind, mib in meta["declared_mib"].items()}
            pairs = _pairs(meta["pairs"], file["pair_sums"]) if "pairs" in meta else {}
            if "gpu_uses" in meta:
                runs = file["gpu_use_runs"]
                _add_gpu_uses(entries, meta["gpu_uses"], file["gpu_uses"], runs)
            names = ("squares", "moments", "observed")
            state = {name: np.asarray(file[f"slowdowns_{name}"], np.float64) for name in names}
            if fresh or state["observed"][0] > estimates.slowdowns.observed:
                estimates.slowdowns.restore(state)
    except Exception as error:
        raise InvalidRequest(
            f"{path} holds no estimates of subtasks: {type(error).__name__}: {error}; remove it, "
            f"and they are learned from scratch"
        ) from error
    return _Stored(entries, devices, declared, pairs)


def _rescale(entries: dict[Row, EstimateEntry], meta: dict[str, Any], estimates: Stdm) -> None:
    """The node may have another share of memory now, and a card of the same name another size."""
    host = _ratio(meta["memory_mib"], estimates.memory_scale_mib)
    for row, entry in entries.items():
        stored_mib = meta["gpu_memory_mib"][row.gpu_model]
        entry.values[COLUMN["memory"]] *= host
        entry.values[COLUMN["gpu_memory"]] *= _ratio(
            stored_mib, estimates.gpu_memory_scale_mib(row.gpu_model)
        )


def _ratio(stored_mib: object, own_mib: float) -> float:
    if not isinstance(stored_mib, int | float) or not 0.0 < stored_mib < math.inf:
        raise ValueError(f"a scale of memory is {stored_mib!r}")
    return stored_mib / own_mib


def _entries(
    rows: list[list[object]],
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    counts: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    runs: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> dict[Row, EstimateEntry]:
    if len(rows) > ROWS_MAX:
        raise ValueError(f"it has {len(rows)} rows, at most {ROWS_MAX} are kept")
    shape = (len(rows), len(METRICS))
    if values.shape != shape or counts.shape != shape or runs.shape != (len(rows), 2, 2):
        raise ValueError(f"arrays of {values.shape}, {counts.shape}, {runs.shape} for {shape}")
    if np.isinf(values).any() or (values < 0).any() or not np.isfinite(counts).all():
        raise ValueError("a cell is no number from 0 on")
    if np.isinf(runs).any() or (runs < 0).any():
        raise ValueError("a time is no number from 0 on")
    found: dict[Row, EstimateEntry] = {}
    for index, row in enumerate(rows):
        found[_row(row)] = EstimateEntry(
            values=np.array(values[index], np.float64),
            counts=np.array(counts[index], np.float64),
            runs={
                device: (float(runs[index, number, 0]), int(runs[index, number, 1]))
                for number, device in enumerate(_DEVICES)
                if not np.isnan(runs[index, number]).any()
            },
        )
    return found


def _add_gpu_uses(
    entries: dict[Row, EstimateEntry],
    places: list[int],
    uses: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    runs: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> None:
    """Profiles by the places of their rows; a file of an HRM that did not record them has none."""
    if uses.shape != (len(places), *_USE_SHAPE) or runs.shape != (len(places),):
        raise ValueError(f"profiles of GPUs of {uses.shape} and {runs.shape} for {len(places)}")
    held = list(entries.values())
    if (runs < 1).any() or any(not 0 <= place < len(held) for place in places):
        raise ValueError("a profile of a GPU is of no run, or of no row")
    for place, use, count in zip(places, uses.tolist(), runs.tolist(), strict=True):
        parts = tuple(GpuUsePart(*part) for part in use)
        check_gpu_use(parts)
        held[place].gpu_use = RecordedUse(parts, count)


def _row(stored: list[object]) -> Row:
    kind, bucket, model = stored
    if not isinstance(bucket, int) or not 0 <= bucket <= len(SIZE_BUCKETS_MB):
        raise ValueError(f"there is no bucket of sizes {bucket!r}")
    return Row(str(kind), bucket, str(model))


def _pairs(
    stored: list[list[list[object]]], sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> dict[tuple[Row, Row], tuple[float, float]]:
    """Co-runs by (victim, partner); a file of an HRM that did not learn them has none."""
    if len(stored) > PAIRS_MAX:
        raise ValueError(f"it has {len(stored)} pairs, at most {PAIRS_MAX} are kept")
    if sums.shape != (len(stored), 2) or not np.isfinite(sums).all() or (sums[:, 0] <= 0).any():
        raise ValueError(f"sums of pairs {sums.shape} are not finite, or not those of its pairs")
    return {
        (_row(victim), _row(partner)): (float(count), float(total))
        for (victim, partner), (count, total) in zip(stored, sums, strict=True)
    }
