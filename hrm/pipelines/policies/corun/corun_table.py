"""Measured co-runs of any GPU, as two CSV files in a directory.

``jobs.csv``, a line for each job: ``job`` (its name), ``kind`` (optional: jobs of one kind are the
same program with other inputs; default: its name), and any of ``CO_RUN_FEATURES``, the load that
the job alone puts on the GPU, each a share 0..1::

    job,kind,sm,dram
    resnet50 32,resnet50,0.96,0.67
    dcgan 64,dcgan,0.73,0.31

``runs.csv``, a line for each job of each set that ran together: ``run`` (any text that is the same
for the jobs of one set), ``sharing`` (``mps`` or ``time-slicing``), ``job``, and ``slowdown``: its
time in this set over its time alone, ``SLOWDOWNS``::

    run,sharing,job,slowdown
    1,time-slicing,resnet50 32,1.43
    1,time-slicing,dcgan 64,1.62

Neither has more than ``LINES_MAX`` lines. A feature that the table has no column for is 0 for all
jobs. Anything else that is missing is an error which names the file and the line: what a score is
worth may not depend on a hole.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.errors import InvalidRequest
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.model import CO_RUN_FEATURES, Device, Row, Vector
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.pair_effects import PairEffects, Ridges, pair_prior
from hrm.pipelines.policies.corun.predictors import Floats
from hrm.pipelines.policies.corun.slowdowns import LOADS, Slowdowns

__all__ = ["CoRun", "CoRunTable", "TabledEstimates", "TabledJob", "read_table", "write_table"]

JOBS, RUNS = "jobs.csv", "runs.csv"
LINES_MAX = 100_000
"""Of a file. What a score is worth is known from some hundred sets; a resample costs a sort."""
_JOB_COLUMNS = ("job", "kind")
_RUN_COLUMNS = ("run", "sharing", "job", "slowdown")
SLOWDOWNS = (0.1, 1_000.0)
"""What can have been measured: beyond these it is another figure, or another unit."""
_MODES = {mode.value: mode for mode in GpuSharing}


@dataclass(frozen=True, slots=True, kw_only=True)
class TabledJob:
    """A job of a table: ``features`` by name, each 0..1."""

    name: str
    kind: str
    features: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CoRun:
    """Jobs that ran together. ``slowdowns``: of each, in the order of ``rows``."""

    sharing: GpuSharing
    rows: tuple[Row, ...]
    slowdowns: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunTable:
    """``features``: the columns that it has; ``loads``: of each job, in ``CO_RUN_FEATURES``.

    A job's row has the number of the job within its kind as its bucket.
    """

    source: str
    features: tuple[str, ...]
    loads: Mapping[Row, Vector]
    runs: tuple[CoRun, ...]

    def modes(self) -> tuple[GpuSharing, ...]:
        """Those in which something was measured."""
        return tuple(mode for mode in GpuSharing if any(run.sharing is mode for run in self.runs))


class TabledEstimates:
    """``Estimates`` of a table's jobs, which learn from its co-runs as a worker's do.

    Times and memory are not in a table: each job takes a second, and no memory.
    """

    def __init__(
        self, table: CoRunTable, sharing: GpuSharing, ridges: Ridges | None = None
    ) -> None:
        self.sharing = sharing
        self.slowdowns = Slowdowns()
        self.pair_effects = PairEffects(ridges)
        self._loads_of = table.loads

    def run_s(self, row: Row, device: Device) -> float:
        return 1.0 if device is Device.GPU else math.inf

    def speedup(self, row: Row) -> float:
        return math.inf

    def gpu_features(self, row: Row) -> Vector:
        return self._loads_of[row]

    def memory_mib(self, row: Row) -> float:
        return 0.0

    def gpu_memory_mib(self, row: Row) -> float:
        return 0.0

    def run_deviation_s(self, row: Row, device: Device) -> float:
        return 0.0

    def gpu_memory_peak(self, row: Row) -> PeakMemory | None:
        return None

    def runs_alone(self, row: Row) -> int:
        return 0

    def gpu_use(self, row: Row) -> tuple[GpuUsePart, ...]:
        return ()

    def pair_prior(self, victim: Row, partner: Row) -> float:
        """See ``Stdm.pair_prior``."""
        return pair_prior(self._loads(victim), self._loads(partner), self.sharing)

    def observe(self, runs: Sequence[CoRun]) -> None:
        """Learn from what all jobs of ``runs`` took."""
        for run in runs:
            self._observe(run)
        self.pair_effects.fit(self.pair_prior)

    def _observe(self, run: CoRun) -> None:
        for place, (row, slowdown) in enumerate(zip(run.rows, run.slowdowns, strict=True)):
            others = (*run.rows[:place], *run.rows[place + 1 :])
            loads = np.sum([self._loads(other) for other in others], axis=0)
            self.slowdowns.observe(self._loads(row), loads, slowdown)
            self.pair_effects.observe(row, others, slowdown, self.pair_prior)

    def _loads(self, row: Row) -> Floats:
        return np.asarray(self._loads_of[row][:LOADS], np.float64)


def read_table(directory: Path) -> CoRunTable:
    """The table in ``directory``.

    Raises:
        InvalidRequest: a file is missing, a header has another form, or a cell is empty, is no
            number, or is out of its range; or there is nothing to compare.
    """
    features, rows, loads = _jobs(directory / JOBS)
    runs = tuple(_runs(directory / RUNS, rows))
    if len(runs) < 2:
        raise InvalidRequest(
            f"{directory / RUNS} has {len(runs)} sets of jobs that ran together; ranking needs at "
            f"least 2"
        )
    return CoRunTable(source=str(directory), features=features, loads=loads, runs=runs)


def _jobs(path: Path) -> tuple[tuple[str, ...], dict[str, Row], dict[Row, Vector]]:
    rows: dict[str, Row] = {}
    loads: dict[Row, Vector] = {}
    of_kind: dict[str, int] = {}
    features: tuple[str, ...] = ()
    for where, cells in _lines(path, ("job",), (*_JOB_COLUMNS, *CO_RUN_FEATURES)):
        name = cells["job"]
        if name in rows:
            raise InvalidRequest(f"{where}: job {name!r} is there twice; give each job one line")
        kind = cells.get("kind", name)
        row = rows[name] = Row(kind, of_kind.get(kind, 0), "")
        of_kind[kind] = row.bucket + 1
        features = tuple(one for one in CO_RUN_FEATURES if one in cells)
        shares = [
            _share(where, one, cells[one]) if one in cells else 0.0 for one in CO_RUN_FEATURES
        ]
        loads[row] = np.array(shares, np.float32)
    if not rows:
        raise InvalidRequest(f"{path} has no job; add a line for each")
    return features, rows, loads


def _runs(path: Path, rows: Mapping[str, Row]) -> Iterator[CoRun]:
    sets: dict[str, tuple[GpuSharing, list[tuple[Row, float]], str]] = {}
    for where, cells in _lines(path, _RUN_COLUMNS, _RUN_COLUMNS):
        mode = _MODES.get(cells["sharing"])
        if mode is None:
            raise InvalidRequest(
                f"{where}: sharing is {cells['sharing']!r}; write {' or '.join(_MODES)}"
            )
        row = rows.get(cells["job"])
        if row is None:
            raise InvalidRequest(
                f"{where}: there is no job {cells['job']!r} in {JOBS}; add it there, or leave out "
                f"run {cells['run']!r}"
            )
        slowdown = _number(where, "slowdown", cells["slowdown"])
        least, most = SLOWDOWNS
        if not least <= slowdown <= most:
            raise InvalidRequest(
                f"{where}: slowdown is {slowdown:g}; it is the time in the set over the time "
                f"alone, {least:g} to {most:g}: correct it, or leave out run {cells['run']!r}"
            )
        known, jobs, _ = sets.setdefault(cells["run"], (mode, [], where))
        if known is not mode:
            raise InvalidRequest(
                f"{where}: run {cells['run']!r} was {known.value} before; give each its own name"
            )
        jobs.append((row, slowdown))
    for name, (mode, jobs, where) in sets.items():
        if len(jobs) < 2:
            raise InvalidRequest(
                f"{where}: run {name!r} has one job; add those that ran with it, or leave it out"
            )
        yield CoRun(mode, tuple(row for row, _ in jobs), tuple(value for _, value in jobs))


def _lines(
    path: Path, needed: Sequence[str], allowed: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """(where, cells by column) of every line after the header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, needed, allowed)
            for cells in reader:
                if not cells:
                    continue
                where = f"{path}, line {reader.line_num}"
                if reader.line_num > LINES_MAX:
                    raise InvalidRequest(
                        f"{where}: a file may have {LINES_MAX:,} lines, minutes of ranking; "
                        f"draw some of the sets at random, each with all of its jobs, and try those"
                    )
                if len(cells) != len(header):
                    raise InvalidRequest(
                        f"{where}: {len(cells)} cells, but the header has {len(header)}"
                    )
                values = {k: v.strip() for k, v in zip(header, cells, strict=True)}
                for name, value in values.items():
                    if not value:
                        raise InvalidRequest(f"{where}: {name} is empty; {_filling(name)}")
                yield where, values
    except FileNotFoundError:
        raise InvalidRequest(
            f"there is no {path}; a table of co-runs is a directory with {JOBS} and {RUNS}"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"{path} cannot be read as CSV: {error}") from error


def _check_header(
    path: Path, header: Sequence[str], needed: Sequence[str], allowed: Sequence[str]
) -> None:
    missing = [name for name in needed if name not in header]
    unknown = [name for name in header if name not in allowed]
    twice = sorted({name for name in header if header.count(name) > 1})
    problem = (
        f"has no column {', '.join(missing)}"
        if missing
        else f"has a column {', '.join(map(repr, unknown))} that means nothing here"
        if unknown
        else f"has {', '.join(twice)} twice"
        if twice
        else ""
    )
    if problem:
        raise InvalidRequest(f"{path}, line 1: it {problem}; columns are {', '.join(allowed)}")


def _filling(name: str) -> str:
    if name in CO_RUN_FEATURES:
        return f"measure it, or leave the whole column {name} out"
    return "fill it in, or leave the line out"


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{where}: {name} is {text!r}, which is no finite number")
    return value


def _share(where: str, name: str, text: str) -> float:
    value = _number(where, name, text)
    if not 0.0 <= value <= 1.0:
        raise InvalidRequest(f"{where}: {name} is {value:g}; it is a share, 0 to 1")
    return value


def write_table(
    directory: Path,
    features: Sequence[str],
    jobs: Sequence[TabledJob],
    runs: Sequence[tuple[GpuSharing, Sequence[tuple[str, float]]]],
) -> None:
    """Write what ``read_table`` reads. ``runs``: of each set its mode, jobs and slow-downs.

    Raises:
        OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / JOBS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*_JOB_COLUMNS, *features))
        for job in jobs:
            writer.writerow((job.name, job.kind, *(f"{job.features[one]:.6g}" for one in features)))
    with (directory / RUNS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_RUN_COLUMNS)
        for number, (mode, members) in enumerate(runs, 1):
            for name, slowdown in members:
                writer.writerow((number, mode.value, name, f"{slowdown:.6g}"))
