"""Estimates in a file: what was learned outlives the process; the file contains no code.

One compressed ``.npz`` without pickles: arrays, and a line of JSON with a version, the names of the
metrics, the scales of memory and the rows; pairs are indexes of rows, and so are the rows of
profiles of GPUs and of spreads. A file of other metrics is refused; memory that was measured
against other scales is converted; the predictor is refitted from the cells. A message has the same
form, with the rows alone that its receiver does not have.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart, check_gpu_use
from hrm.errors import InvalidRequest
from hrm.pipelines.core.model import SIZE_BUCKETS_MB, Device, Row
from hrm.pipelines.policies.corun.estimate_entry import EstimateEntry
from hrm.pipelines.policies.corun.metrics import COLUMN, METRICS
from hrm.pipelines.policies.corun.pair_effects import PAIRS_MAX
from hrm.pipelines.policies.corun.stored_spreads import add_spreads, spread_arrays
from hrm.pipelines.policies.corun.subtask_estimates import ROWS_MAX, Stdm
from hrm.policies.shared_gpu.recorded_use import RecordedUse

__all__ = ["dump_estimates", "dump_within", "load_estimates", "merge_estimates"]

_VERSION = 2
_USE_SHAPE = (USE_PARTS, len(GpuUsePart._fields))
_DEVICES = (Device.CPU, Device.GPU)


def dump_within(estimates: Stdm, bytes_max: int, since: int = -1) -> tuple[bytes, bool]:
    """``dump_estimates`` in at most ``bytes_max``, and is it all? Where all is too much, the latest
    rows and pairs, half as many until they fit; empty: nothing has changed, or not one fits."""
    rows, pairs = estimates.since(since), estimates.pair_effects.since(since)
    left = most = max(len(rows), len(pairs))
    while left:
        content = dump_estimates(estimates, since=since, latest=left)
        if len(content) <= bytes_max:
            return content, left == most
        left //= 2
    return b"", not most


def dump_estimates(estimates: Stdm, *, since: int = -1, latest: int | None = None) -> bytes:
    """The content of a file, as of now; or of a message, which has what belongs to its rows alone.

    Args:
        since: with the rows and pairs that changed after ``estimates.changes`` was this; -1: all.
        latest: with at most so many rows, and so many pairs, those of the latest observations;
            None: all, and what was declared of kinds that have not run yet.
    """
    # The oldest first, as they are kept: a reader forgets in the same order.
    entries = dict(reversed([*islice(estimates.since(since).items(), latest)]))
    pairs = dict(reversed([*islice(estimates.pair_effects.since(since).items(), latest)]))
    rows = list(dict.fromkeys([*entries, *(row for pair in pairs for row in pair)]))
    place_of = {row: index for index, row in enumerate(rows)}
    is_file = since < 0 and latest is None
    kinds = estimates.devices.keys() if is_file else {row.kind for row in rows}
    meta = {
        "version": _VERSION,
        "metrics": METRICS,
        "memory_mib": estimates.memory_scale_mib,
        "gpu_memory_mib": {
            model: estimates.gpu_memory_scale_mib(model)
            for model in sorted({row.gpu_model for row in entries})
        },
        "rows": [list(row) for row in rows],
        "devices": {
            kind: sorted(device.value for device in devices)
            for kind, devices in estimates.devices.items()
            if kind in kinds
        },
        "declared_mib": {k: mib for k, mib in estimates.declared_mib.items() if k in kinds},
    }
    shape = (len(entries), len(METRICS))
    runs = np.full((len(entries), len(_DEVICES), 2), np.nan)
    for index, entry in enumerate(entries.values()):
        for number, device in enumerate(_DEVICES):
            if device in entry.runs:
                runs[index, number] = entry.runs[device]
    more = _gpu_uses(entries) | spread_arrays(list(entries.values()))
    if pairs or since < 0:  # the regression learns from the same co-runs
        more |= {f"slowdowns_{name}": array for name, array in estimates.slowdowns.state().items()}
    content = io.BytesIO()
    np.savez_compressed(
        content,
        meta=np.array(json.dumps(meta)),
        values=np.array([entry.values for entry in entries.values()]).reshape(shape),
        counts=np.array([entry.counts for entry in entries.values()]).reshape(shape),
        runs=runs,
        pairs=np.array([[place_of[one] for one in pair] for pair in pairs], np.int32).reshape(
            len(pairs), 2
        ),
        pair_sums=np.array(list(pairs.values())).reshape(len(pairs), 2),
        **more,  # type: ignore[arg-type]
    )
    return content.getvalue()


def _gpu_uses(entries: Mapping[Row, EstimateEntry]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of the profiles of GPUs, in single precision; without any, none: in a message of few
    rows each array counts."""
    recorded = {n: e.gpu_use for n, e in enumerate(entries.values()) if e.gpu_use is not None}
    if not recorded:
        return {}
    return {
        "gpu_use_rows": np.array(list(recorded), np.int32),
        "gpu_uses": np.array([use.parts for use in recorded.values()], np.float32),
        "gpu_use_runs": np.array([use.runs for use in recorded.values()], np.int64),
    }


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
        entry.spreads = {d: spread.at_speed(speeds[d]) for d, spread in entry.spreads.items()}
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
            rows = [_row(row) for row in meta["rows"]]
            entries = _entries(rows, file["values"], file["counts"], file["runs"])
            devices = {
                str(kind): frozenset(Device(value) for value in values)
                for kind, values in meta["devices"].items()
            }
            _rescale(entries, meta, estimates)
            declared = {str(kind): int(mib) for kind, mib in meta["declared_mib"].items()}
            pairs = _pairs(rows, file["pairs"], file["pair_sums"]) if "pairs" in file else {}
            if "gpu_uses" in file:
                places, runs = file["gpu_use_rows"], file["gpu_use_runs"]
                _add_gpu_uses(entries, places, file["gpu_uses"], runs)
            add_spreads(list(entries.values()), file)
            if "slowdowns_observed" in file:
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
    rows: list[Row],
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    counts: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    runs: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> dict[Row, EstimateEntry]:
    """Of the first rows, as many as there are ``values``; the others are those of pairs alone."""
    count = len(values)
    if count > min(ROWS_MAX, len(rows)):
        raise ValueError(f"it has {count} rows of {len(rows)}, at most {ROWS_MAX} are kept")
    shape = (count, len(METRICS))
    if values.shape != shape or counts.shape != shape or runs.shape != (count, 2, 2):
        raise ValueError(f"arrays of {values.shape}, {counts.shape}, {runs.shape} for {shape}")
    if np.isinf(values).any() or (values < 0).any() or not np.isfinite(counts).all():
        raise ValueError("a cell is no number from 0 on")
    if np.isinf(runs).any() or (runs < 0).any():
        raise ValueError("a time is no number from 0 on")
    found: dict[Row, EstimateEntry] = {}
    for index, row in enumerate(rows[:count]):
        found[row] = EstimateEntry(
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
    places: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    uses: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    runs: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> None:
    """Profiles, ``places`` as indexes of ``entries``; a file of an HRM that did not record them has
    none."""
    count = len(uses)
    if (places.shape, uses.shape, runs.shape) != ((count,), (count, *_USE_SHAPE), (count,)):
        raise ValueError(
            f"profiles of GPUs of {uses.shape}, of runs {runs.shape} and rows {places.shape}"
        )
    held = list(entries.values())
    if (runs < 1).any() or (places < 0).any() or (places >= len(held)).any():
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
    rows: list[Row],
    stored: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> dict[tuple[Row, Row], tuple[float, float]]:
    """Co-runs by (victim, partner), ``stored`` (pairs, 2) as indexes of ``rows``; a file of an HRM
    that did not learn them has none."""
    if len(stored) > PAIRS_MAX:
        raise ValueError(f"it has {len(stored)} pairs, at most {PAIRS_MAX} are kept")
    if stored.shape != (len(stored), 2) or ((stored < 0) | (stored >= len(rows))).any():
        raise ValueError(f"pairs {stored.shape} are not two of its {len(rows)} rows each")
    if sums.shape != (len(stored), 2) or not np.isfinite(sums).all() or (sums[:, 0] <= 0).any():
        raise ValueError(f"sums of pairs {sums.shape} are not finite, or not those of its pairs")
    return {
        (rows[victim], rows[partner]): (float(count), float(total))
        for (victim, partner), (count, total) in zip(stored, sums, strict=True)
    }
