"""What a node knows of its subtasks: measured cells, running means, and predictions for the rest.

The table has a row for each (kind, bucket of input size, model of GPU) and a column for each metric
(``metrics``). A measured cell is never replaced by a prediction. An unknown one is taken from:

1. rows of the same kind with inputs of other sizes, interpolated over the size;
2. the predictor (``predictors``), from the cells that are known so far;
3. ``metrics.DEFAULTS``, as long as this column was not measured for any row.

A duration is that of the same kind at other sizes, else the other device's over the speed-up of the
most similar rows, else a rate over the size that is typical of the device, at first
``DEFAULT_S_PER_MB``. A prediction of memory is limited to the capacity of an empty node or GPU:
only a measurement may keep a subtask from ever starting.

Source: LDWP + IAWP, sections 2.4 (STDM) and 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from hrm.core.vocabulary.gpu_use import GpuUsePart, check_gpu_use
from hrm.errors import InvalidRequest
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.model import CO_RUN_FEATURES, Device, Row, SubtaskSpec, Vector
from hrm.pipelines.policies.corun.estimate_entry import RUNS_REMEMBERED, EstimateEntry
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.metrics import (
    BUCKET_MB,
    COLUMN,
    DEFAULTS,
    METRICS,
    applies,
    interpolated_s,
    scaled_size,
    scaled_speedup,
    speedup_of,
)
from hrm.pipelines.policies.corun.pair_effects import PairEffects, pair_prior
from hrm.pipelines.policies.corun.predictors import Floats, Gaussian, Neighbours, Predictor
from hrm.pipelines.policies.corun.slowdowns import LOADS, Slowdowns
from hrm.policies.shared_gpu.recorded_use import RecordedUse

__all__ = ["DEFAULT_S_PER_MB", "ROWS_MAX", "Stdm"]

DEFAULT_S_PER_MB = {Device.CPU: 0.04, Device.GPU: 0.01}
ROWS_MAX = 4096
"""The least recently used row is evicted for a new one."""

_BOTH = frozenset(Device)
_GPU_FEATURES = [COLUMN[name] for name in CO_RUN_FEATURES]
_PEAKS = ("memory", "gpu_memory")
_PEAK_COLUMNS = [COLUMN[name] for name in _PEAKS]
_ANY_MODEL = ("cpu", "memory")
_LOG_MB = np.log(BUCKET_MB)
_SPEEDUP, _SIZE = COLUMN["speedup"], COLUMN["size"]
_MOVED = 0.02
_NEAR = 0.05
"""Up to this distance, on scales of 0..1, a value counts as inside of what was measured."""
_UNMEASURED_MOST = {"memory": 0.5, "gpu_memory": 0.8}
_GPU_MEMORY_MIB = 8192.0


class Stdm:
    """``LearningEstimates`` of one node, or of like nodes.

    ``memory_mib`` of the node and ``gpu_memory_mib`` by model are the scales of the memory columns;
    a model that is not named counts as 8 GiB. ``refit_after``: new cells before the predictor is
    fitted again (at least 5 % of all). ``sharing``: how runs share these GPUs.
    ``fits_pairs``: false for a table that collects co-runs and decides nothing by them.
    """

    def __init__(
        self,
        *,
        memory_mib: float,
        gpu_memory_mib: Mapping[str, float] | None = None,
        predictor: Predictor | None = None,
        slowdowns: Slowdowns | None = None,
        refit_after: int = 8,
        sharing: GpuSharing = GpuSharing.TIME_SLICING,
        fits_pairs: bool = True,
    ) -> None:
        self.memory_scale_mib = memory_mib
        """What 1 means in the column of host memory."""
        self._gpu_memory_mib = dict(gpu_memory_mib or {})
        self.predictor: Predictor = Gaussian() if predictor is None else predictor
        self.slowdowns = Slowdowns() if slowdowns is None else slowdowns
        self.sharing = sharing
        self.pair_effects = PairEffects()
        self._fits_pairs = fits_pairs
        self._ratios = Neighbours()
        self._refit_after = refit_after
        self.entries: dict[Row, EstimateEntry] = {}
        self.devices: dict[str, frozenset[Device]] = {}
        self.declared_mib: dict[str, int] = {}
        self._of_kind: dict[str, list[Row]] = {}
        self._cells = 0
        self._new_cells = 0
        self._fitted = False
        self._ranges: tuple[Floats, Floats] | None = None
        self.changes = 0
        """Increases with every update."""
        self._completed: dict[Row, Floats] = {}
        self._features: dict[Row, Vector] = {}
        self._runs_s: dict[str, dict[tuple[Row, Device], float]] = {}
        """By kind, of which alone they follow; what follows from all kinds is not kept."""

    # -- what is learned ---------------------------------------------------------------------

    def declare(self, row: Row, subtask: SubtaskSpec) -> None:
        """See ``LearningEstimates``. An undeclared kind is assumed to have both versions; if
        pipelines declare different ones for a kind, all count, or a run of one would contradict
        what another has declared."""
        kind, known = row.kind, self.devices.get(row.kind, frozenset())
        if not known and len(self.devices) >= ROWS_MAX:
            oldest = next(iter(self.devices))
            del self.devices[oldest]
            self.declared_mib.pop(oldest, None)
        if known != known | subtask.devices:
            self.devices[kind] = known | subtask.devices
            self._forget_predictions(kind)
        if subtask.gpu_memory_mib:
            self.declared_mib[kind] = subtask.gpu_memory_mib

    def measured_cells(self, row: Row) -> int:
        entry = self.entries.get(row)
        if entry is None:
            return 0
        return int(np.count_nonzero(np.isfinite(entry.values))) + len(entry.runs)

    def measured_s(self, row: Row, device: Device) -> float | None:
        """See ``LearningEstimates``: the mean. On a core the GPU model does not matter."""
        entry = self.entries.get(row)
        if entry is not None and device in entry.runs:
            return entry.runs[device][0]
        if device is Device.GPU:
            return None
        same = [other for other in self._of_kind.get(row.kind, ()) if other.bucket == row.bucket]
        times = [self.entries[o].runs[device][0] for o in same if device in self.entries[o].runs]
        return sum(times) / len(times) if times else None

    def measured_models(self, kind: str) -> list[str]:
        return list(dict.fromkeys(row.gpu_model for row in self._of_kind.get(kind, ())))

    def observe_cells(self, row: Row, cells: Mapping[str, float]) -> None:
        """See ``LearningEstimates``; what has no column here is left out."""
        for name, value in cells.items():
            if name in COLUMN and name != "size" and applies(name, self._versions(row)):
                self.observe(row, name, value)

    def observe(self, row: Row, metric: str, value: float) -> None:
        """A measured ``metric``: memory in MiB, ``speedup`` a ratio, all else a share 0..1.

        Raises:
            InvalidRequest: no such metric, not one of this subtask, or not a number of at least 0.
        """
        if metric not in COLUMN or metric == "size":
            raise InvalidRequest(f"{metric!r} is no metric of subtasks; one of {METRICS[:-1]}")
        if not applies(metric, self._versions(row)):
            raise InvalidRequest(f"{row.kind!r} has no version of which {metric!r} can be measured")
        if not math.isfinite(value) or value < 0:
            raise InvalidRequest(f"{metric} of {row.kind!r} is {value}; it must be a number >= 0")
        self.changes += 1
        entry, column = self._entry(row), COLUMN[metric]
        before = entry.values[column]
        scaled = self._scaled(row, metric, value)
        entry.counts[column] += 1
        if not math.isfinite(before):
            entry.values[column] = scaled
            self._cells += 1
        elif metric in _PEAKS:
            entry.values[column] = max(before, scaled)
        else:
            count = min(entry.counts[column], RUNS_REMEMBERED)
            entry.values[column] += (scaled - before) / count
        if not abs(entry.values[column] - before) <= _MOVED:
            self._new_cells += 1
        if not abs(entry.values[column] - before) <= 1e-9:
            self._forget_predictions(row.kind)

    def observe_run(
        self,
        row: Row,
        device: Device,
        seconds: float,
        memory_mib: float = 0.0,
        gpu_memory_mib: float = 0.0,
        co_runners: tuple[Row, ...] = (),
    ) -> None:
        """See ``LearningEstimates``. A shared run updates slow-downs, an exclusive one the time
        alone; a co-runner for half of the time counts in full.

        Raises:
            InvalidRequest: a time or memory is not a number above 0.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise InvalidRequest(f"a run of {row.kind!r} took {seconds} s; it must be >= 0")
        self.changes += 1
        entry = self._entry(row)
        if device is Device.GPU and co_runners:
            loads = self._loads(row)
            others = np.sum([self._loads(other) for other in co_runners], axis=0)
            mean_s, count = entry.runs.get(device, (0.0, 0))
            if count and mean_s > 0:
                slowdown = seconds / mean_s
                self.slowdowns.observe(loads, others, slowdown)
                self.pair_effects.observe(
                    row, co_runners, slowdown, self.pair_prior, mark=self.changes
                )
                if self._fits_pairs:
                    self.pair_effects.fit(self.pair_prior)
            else:
                guess = seconds / self.slowdowns.slowdown(loads, others[None, :])
                entry.runs[device] = (guess, 0)
        else:
            entry.ran_alone(device, seconds)
        self._runs_s.pop(row.kind, None)
        if memory_mib:
            self.observe(row, "memory", memory_mib)
        if gpu_memory_mib and device is Device.GPU:
            self.observe(row, "gpu_memory", gpu_memory_mib)
            entry.reached(gpu_memory_mib)
        self._learn_speedup(row, entry)

    def observe_gpu_use(self, row: Row, use: Sequence[GpuUsePart]) -> None:
        """See ``LearningEstimates``.

        Raises:
            InvalidRequest: it is no profile.
        """
        check_gpu_use(use)
        if not use or Device.GPU not in self._versions(row):
            return
        self.changes += 1
        entry = self._entry(row)
        known = entry.gpu_use
        entry.gpu_use = RecordedUse(tuple(use)) if known is None else known.observed(use)

    def observe_out_of_gpu_memory(self, row: Row, had_mib: float) -> None:
        """See ``LearningEstimates``."""
        if had_mib > 0 and Device.GPU in self._versions(row):
            self.changes += 1
            self._entry(row).ran_out(had_mib)

    def _learn_speedup(self, row: Row, entry: EstimateEntry) -> None:
        if len(self._versions(row)) < 2:
            return
        cpu_s, gpu_s = self.measured_s(row, Device.CPU), self.measured_s(row, Device.GPU)
        if cpu_s is None or not gpu_s:
            return
        value = scaled_speedup(cpu_s / gpu_s)
        before = entry.values[_SPEEDUP]
        if not abs(value - before) <= 1e-9:
            self._cells += not math.isfinite(before)
            self._new_cells += not abs(value - before) <= _MOVED
            entry.values[_SPEEDUP] = value
            entry.counts[_SPEEDUP] += 1
            self._forget_predictions(row.kind)

    def adopt(
        self,
        entries: Mapping[Row, EstimateEntry],
        devices: Mapping[str, frozenset[Device]],
        declared_mib: Mapping[str, int],
        pairs: Mapping[tuple[Row, Row], tuple[float, float]] | None = None,
    ) -> None:
        """Start with rows, and ``pairs`` (``PairEffects.sums``), that were measured before
        (``store``); replaces rows and pairs of the same key."""
        for row, entry in entries.items():
            self._entry(row)
            entry.own = dict(entry.runs)
            self.entries[row] = entry
        self.devices |= devices
        self.declared_mib |= declared_mib
        self._cells = sum(int(np.isfinite(e.values).sum()) for e in self.entries.values())
        self._new_cells = self._cells
        self._fitted = False
        self.changes += 1
        self._forget_everything()
        if pairs:
            self.pair_effects.adopt(pairs)
            if self._fits_pairs:
                self.pair_effects.fit(self.pair_prior)

    def merge(
        self,
        entries: Mapping[Row, EstimateEntry],
        devices: Mapping[str, frozenset[Device]],
        declared_mib: Mapping[str, int],
        pairs: Mapping[tuple[Row, Row], tuple[float, float]],
    ) -> None:
        """Take in rows of a table that others write to as well, this node among them: of each cell,
        pair and profile of a GPU what more observations have gone into, the larger peak, and of
        each time its own once there are ``OWN_RUNS``, until then that of more runs."""
        for kind, versions in devices.items():
            self.devices[kind] = self.devices.get(kind, frozenset()) | versions
        self.declared_mib |= declared_mib
        moved = {row.kind for row, other in entries.items() if self._merge_row(row, other)}
        if moved:
            self.changes += 1
            self._forget_predictions(*moved)
        known = self.pair_effects.sums()
        more = {p: sums for p, sums in pairs.items() if sums[0] > known.get(p, (0.0, 0.0))[0]}
        if more:
            self.pair_effects.adopt(more)
            if self._fits_pairs:
                self.pair_effects.fit(self.pair_prior)

    def _merge_row(self, row: Row, other: EstimateEntry) -> bool:
        """Has anything changed?"""
        own = self._entry(row)
        known = np.isfinite(own.values)
        take = np.isfinite(other.values) & ((other.counts > own.counts) | ~known)
        runs = [own.take_run(device, *run) for device, run in other.runs.items()]
        uses = own.take_use(other.gpu_use)
        spreads = own.take_spreads(other)
        if len(own.runs) == len(Device) and known[_SPEEDUP]:
            take[_SPEEDUP] = False  # that of this node's own times, below
        values = np.where(take, other.values, own.values)
        peaks = np.stack([own.values, other.values])[:, _PEAK_COLUMNS]
        values[_PEAK_COLUMNS] = np.fmax(*peaks)
        changed = np.isfinite(values) & ~(np.abs(values - own.values) <= 1e-9)
        self._new_cells += int((changed & ~(np.abs(values - own.values) <= _MOVED)).sum())
        self._cells += int(np.isfinite(values).sum()) - int(known.sum())
        own.values, own.counts = values, np.where(take, other.counts, own.counts)
        if any(runs):
            self._learn_speedup(row, own)
        return any(runs) or uses or spreads or bool(changed.any())

    def since(self, mark: int) -> dict[Row, EstimateEntry]:
        """Rows that changed after ``changes`` was ``mark``, the latest first; -1: all rows."""
        rows = reversed(self.entries.items())
        return {row: entry for row, entry in rows if entry.changed > mark}

    # -- queries (hrm.pipelines.core.model.Estimates) -------------------------------------------

    def run_s(self, row: Row, device: Device) -> float:
        if device not in self._versions(row):
            return math.inf
        known = self._runs_s.get(row.kind)
        if known is None:
            known = self._runs_s[row.kind] = {}
        found = known.get((row, device))
        if found is None:
            found = self._run_s(row, device)
            if any(self.entries[one].runs for one in self._of_kind.get(row.kind, ())):
                known[row, device] = found
        return found

    def speedup(self, row: Row) -> float:
        devices = self._versions(row)
        if Device.GPU not in devices:
            return 0.0
        if Device.CPU not in devices:
            return math.inf
        cpu_s, gpu_s = self._known_s(row, Device.CPU), self._known_s(row, Device.GPU)
        if cpu_s is not None and gpu_s is not None:
            return cpu_s / max(gpu_s, 1e-9)
        return max(speedup_of(float(self.complete(row)[_SPEEDUP])), 1e-3)

    def gpu_features(self, row: Row) -> Vector:
        """See ``Estimates``; all 0 without a GPU version."""
        if Device.GPU not in self._versions(row):
            return np.zeros(len(CO_RUN_FEATURES), np.float32)
        self._refit()
        found = self._features.get(row)
        if found is None:
            found = np.clip(self.complete(row)[_GPU_FEATURES], 0.0, 1.0).astype(np.float32)
            found.flags.writeable = False
            self._features[row] = found
        return found

    def pair_prior(self, victim: Row, partner: Row) -> float:
        """ln(slow-down) of ``victim`` next to ``partner``, by their loads alone."""
        return pair_prior(self._loads(victim), self._loads(partner), self.sharing)

    def memory_mib(self, row: Row) -> float:
        return self._memory(row, "memory", self.memory_scale_mib)

    def gpu_memory_mib(self, row: Row) -> float:
        """See ``Estimates``; the author's declaration counts until something is measured."""
        if Device.GPU not in self._versions(row):
            return 0.0
        entry = self.entries.get(row)
        if entry is None or not math.isfinite(entry.values[COLUMN["gpu_memory"]]):
            declared = self.declared_mib.get(row.kind)
            if declared is not None:
                return float(declared)
        return self._memory(row, "gpu_memory", self.gpu_memory_scale_mib(row.gpu_model))

    def run_deviation_s(self, row: Row, device: Device) -> float:
        """See ``Estimates``."""
        entry = self.entries.get(row)
        spread = None if entry is None else entry.spreads.get(device)
        return 0.0 if spread is None else self.run_s(row, device) * spread.deviation()

    def gpu_memory_peak(self, row: Row) -> PeakMemory | None:
        """See ``Estimates``."""
        entry = self.entries.get(row)
        return None if entry is None or entry.peak is None else entry.peak.peak()

    def runs_alone(self, row: Row) -> int:
        """See ``Estimates``."""
        entry = self.entries.get(row)
        return 0 if entry is None else entry.runs.get(Device.GPU, (0.0, 0))[1]

    def gpu_use(self, row: Row) -> tuple[GpuUsePart, ...]:
        """See ``Estimates``."""
        entry = self.entries.get(row)
        return () if entry is None or entry.gpu_use is None else entry.gpu_use.parts

    def outside(self, rows: Iterable[Row]) -> float:
        """How far ``rows`` are from what was measured here when the predictor was last fitted: the
        share of their metrics, 0..1, that lie outside of the 0.1 and 99.9 percentiles.

        Metrics that were measured for no row are the same for all and do not count. 1: no row has
        been measured yet.
        """
        self._refit()
        if self._ranges is None:
            return 1.0
        low, high = self._ranges
        counted = missed = 0
        for row in rows:
            devices = self._versions(row)
            used = np.array([applies(name, devices) for name in METRICS]) & np.isfinite(low)
            values = self.complete(row)
            counted += int(used.sum())
            missed += int((((values < low) | (values > high)) & used).sum())
        return missed / counted if counted else 1.0

    def complete(self, row: Row) -> Floats:
        """All metrics of ``row``, 0..1, measured or predicted, shape (metrics,)."""
        self._refit()
        found = self._completed.get(row)
        if found is None:
            known = self._with_kin(row)
            found = self.predictor.predict(known) if self._fitted else known
            if self._fitted and not math.isfinite(known[_SPEEDUP]):
                found[_SPEEDUP] = self._ratios.predict(known)[_SPEEDUP]
            found = np.where(np.isfinite(found), found, DEFAULTS)
            if len(self._completed) >= ROWS_MAX:
                self._forget_everything()
            self._completed[row] = found
        return found

    # -- how it is found -------------------------------------------------------------------------

    def _versions(self, row: Row) -> frozenset[Device]:
        return self.devices.get(row.kind, _BOTH)

    def _entry(self, row: Row) -> EstimateEntry:
        entry = self.entries.pop(row, None)
        if entry is None:
            entry = EstimateEntry()
            if len(self.entries) >= ROWS_MAX:
                oldest = next(iter(self.entries))
                self._cells -= int(np.isfinite(self.entries.pop(oldest).values).sum())
                self._of_kind[oldest.kind].remove(oldest)
                if not self._of_kind[oldest.kind]:
                    del self._of_kind[oldest.kind]
            self._of_kind.setdefault(row.kind, []).append(row)
        entry.changed = self.changes
        self.entries[row] = entry
        return entry

    def _forget_predictions(self, *kinds: str) -> None:
        cache: dict[Row, Floats] | dict[Row, Vector]
        for cache in (self._completed, self._features):
            for row in [row for row in cache if row.kind in kinds]:
                del cache[row]
        for kind in kinds:
            self._runs_s.pop(kind, None)

    def _forget_everything(self) -> None:
        self._completed.clear()
        self._features.clear()
        self._runs_s.clear()

    def gpu_memory_scale_mib(self, model: str) -> float:
        """What 1 means in the column of device memory, in rows of this model."""
        return self._gpu_memory_mib.get(model, _GPU_MEMORY_MIB)

    def _scaled(self, row: Row, metric: str, value: float) -> float:
        if metric == "memory":
            return value / self.memory_scale_mib
        if metric == "gpu_memory":
            return value / self.gpu_memory_scale_mib(row.gpu_model)
        return scaled_speedup(value) if metric == "speedup" else min(1.0, value)

    def measured_mib(self, row: Row, metric: Literal["memory", "gpu_memory"]) -> float:
        """The greatest memory that its runs were seen to take; 0: not measured."""
        entry = self.entries.get(row)
        held = math.nan if entry is None else float(entry.values[COLUMN[metric]])
        of_host = metric == "memory"
        scale = self.memory_scale_mib if of_host else self.gpu_memory_scale_mib(row.gpu_model)
        return held * scale if math.isfinite(held) else 0.0

    def _memory(self, row: Row, metric: str, scale_mib: float) -> float:
        entry, column = self.entries.get(row), COLUMN[metric]
        if entry is not None and math.isfinite(entry.values[column]):
            return float(entry.values[column]) * scale_mib
        return min(float(self.complete(row)[column]), _UNMEASURED_MOST[metric]) * scale_mib

    def _loads(self, row: Row) -> Floats:
        return np.asarray(self.gpu_features(row)[:LOADS], np.float64)

    def _with_kin(self, row: Row) -> Floats:
        """The row's measured cells, its size, and those of its kind at other sizes."""
        entry = self.entries.get(row)
        known = np.full(len(METRICS), np.nan) if entry is None else entry.values.copy()
        known[_SIZE] = min(1.0, scaled_size(BUCKET_MB[row.bucket]))
        kin = [other for other in self._of_kind.get(row.kind, ()) if other != row]
        if not kin:
            return known
        for name in METRICS:
            column = COLUMN[name]
            if math.isfinite(known[column]):
                continue
            points = {
                other.bucket: self.entries[other].values[column]
                for other in kin
                if (other.gpu_model == row.gpu_model or name in _ANY_MODEL)
                and math.isfinite(self.entries[other].values[column])
            }
            if points:
                buckets = sorted(points)
                values = [points[bucket] for bucket in buckets]
                known[column] = np.interp(_LOG_MB[row.bucket], _LOG_MB[buckets], values)
        return known

    def table(self) -> Floats:
        """All measured cells and the sizes, (rows, metrics), NaN where not measured."""
        table = np.stack([entry.values for entry in self.entries.values()])
        table[:, _SIZE] = [min(1.0, scaled_size(BUCKET_MB[row.bucket])) for row in self.entries]
        return table

    def _refit(self) -> None:
        due = max(self._refit_after, 0.05 * self._cells) if self._fitted else 1
        if self._new_cells < due:
            return
        table = self.table()
        self.predictor.fit(table)
        self._ratios.fit(table)
        measured = np.isfinite(table).any(axis=0)
        low, high = np.full((2, len(METRICS)), np.nan)
        low[measured], high[measured] = np.nanpercentile(table[:, measured], (0.1, 99.9), axis=0)
        self._ranges = low - _NEAR, high + _NEAR
        self._fitted = True
        self._new_cells = 0
        self._forget_everything()

    def _known_s(self, row: Row, device: Device) -> float | None:
        """Measured, or interpolated over the sizes of the same kind."""
        measured = self.measured_s(row, device)
        if measured is not None:
            return measured
        points = {}
        for other in self._of_kind.get(row.kind, ()):
            run = self.entries[other].runs.get(device)
            if run is not None and (device is Device.CPU or other.gpu_model == row.gpu_model):
                points[other.bucket] = max(run[0], 1e-6)
        return interpolated_s(points, row.bucket) if points else None

    def _run_s(self, row: Row, device: Device) -> float:
        known = self._known_s(row, device)
        if known is not None:
            return known
        if len(self._versions(row)) == 2:
            if device is Device.GPU:
                return self.run_s(row, Device.CPU) / self.speedup(row)
            gpu_s = self._known_s(row, Device.GPU)
            if gpu_s is not None:
                return gpu_s * self.speedup(row)
        rates = [
            entry.runs[device][0] / BUCKET_MB[known_row.bucket]
            for known_row, entry in self.entries.items()
            if device in entry.runs
        ]
        rate = float(np.median(rates)) if rates else DEFAULT_S_PER_MB[device]
        return rate * BUCKET_MB[row.bucket]
