"""Measured co-runs of others as tables that ``hrm policy score`` reads.

    python -m benchmarks.pipelines.corun_tables igniter DATA OUT
    python -m benchmarks.pipelines.corun_tables gavel-k80 DATA OUT
    hrm policy score OUT

``igniter``
    inference of four networks on a V100 under MPS with fixed shares of its multiprocessors (Xu et
    al., TPDS 2022). A job is a network, a batch size and a share: its latency alone, L2 and DRAM
    use are those at this share, and ``sm`` is the share.
``gavel-k80``, ``gavel-p100``, ``gavel-v100``
    training jobs in pairs on one GPU of this model, shared in time (Narayanan et al., OSDI 2020).
    Its jobs have no hardware metrics, so the table has no features. Pairs that did not fit into
    memory are left out.
``lucid``
    training jobs in pairs on an RTX 3090, shared in time (Hu et al., ASPLOS 2023):
    ``colocate_info.csv`` and ``single_data.csv`` of the paper's artefact, whose licence allows no
    commercial use. ``sm`` and ``dram`` are NVML's utilisations of the GPU and of its memory.

``docs/traces.md`` lists where each is published. Kernel profiles (Orion) come without co-runs, and
Muri's results are of whole clusters: neither is a table of co-runs.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from benchmarks.common import note
from benchmarks.traces.measured import gavel_pairs, igniter_pairs, igniter_profiles
from benchmarks.traces.reading import LoadReport
from hrm.errors import HrmError, InvalidRequest
from hrm.pipelines.policies.corun.corun_table import TabledJob, write_table
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing

__all__ = ["SOURCES", "Converted", "convert", "gavel", "igniter", "lucid", "main"]

Converted: TypeAlias = tuple[
    tuple[str, ...], list[TabledJob], list[tuple[GpuSharing, list[tuple[str, float]]]]
]
"""Features, jobs and runs, as ``write_table`` takes them."""
_LARGEST_BATCH = 32
_LUCID = ("model", "dataset", "batchsize", "amp")


def igniter(data: Path) -> Converted:
    """The pairs of iGniter in ``data``.

    Raises:
        InvalidRequest: there is no such data.
    """
    values = {
        (row.model, row.batch, row.gpu_percent, row.metric): row.value
        for row in igniter_profiles(data, LoadReport())
    }
    jobs: dict[tuple[str, int, int], TabledJob] = {}
    runs: list[tuple[GpuSharing, list[tuple[str, float]]]] = []
    for pair in igniter_pairs(data, LoadReport()):
        members = (
            (pair.first, pair.first_batch, pair.gpu_percent, pair.first_latency_ms),
            (pair.second, pair.second_batch, 100 - pair.gpu_percent, pair.second_latency_ms),
        )
        names = []
        for model, batch, share, latency_ms in members:
            job = model, batch, share
            metrics = [values.get((*job, name)) for name in ("latency", "l2cache", "dram")]
            alone_ms, l2, dram = metrics
            if not alone_ms or l2 is None or dram is None:
                break
            name = f"{model} batch {batch} on {share} %"
            jobs[job] = TabledJob(
                name=name,
                kind=model,
                features={
                    "sm": share / 100,
                    "l2": l2 / 100,
                    "dram": dram / 100,
                    "size": math.log1p(batch) / math.log1p(_LARGEST_BATCH),
                },
            )
            names.append((name, latency_ms / alone_ms))
        else:
            runs.append((GpuSharing.MPS, names))
    return ("sm", "l2", "dram", "size"), list(jobs.values()), runs


def gavel(data: Path, gpu: str) -> Converted:
    """The pairs of Gavel on one GPU of this model.

    Raises:
        InvalidRequest: there is no such data.
    """
    rows = [r for r in gavel_pairs(data, LoadReport()) if r.gpu == gpu and r.scale == 1]
    alone = {row.job: row.iterations_per_s for row in rows if not row.other}
    runs: dict[frozenset[str], list[tuple[str, float]]] = {}
    for row in rows:
        fits = row.other and row.other_scale == 1 and min(row.iterations_per_s, row.other_per_s) > 0
        if fits and alone.get(row.job) and alone.get(row.other):
            runs[frozenset((row.job, row.other))] = [
                (row.job, alone[row.job] / row.iterations_per_s),
                (row.other, alone[row.other] / row.other_per_s),
            ]
    if not runs:
        known = sorted({row.gpu for row in gavel_pairs(data, LoadReport())})
        raise InvalidRequest(f"{data} has no pairs on a {gpu}; it has {', '.join(known)}")
    names = sorted({job for run in runs for job in run})
    jobs = [TabledJob(name=n, kind=n.partition(" (")[0], features={}) for n in names]
    return (), jobs, [(GpuSharing.TIME_SLICING, run) for run in runs.values()]


def lucid(data: Path) -> Converted:
    """The pairs of Lucid in ``data``.

    Raises:
        InvalidRequest: there is no such data, or it has another form.
    """
    files = [data / "single_data.csv", data / "colocate_info.csv"]
    try:
        single, pairs = (list(csv.DictReader(path.read_text().splitlines())) for path in files)
        jobs = {
            tuple(row[name] for name in _LUCID): TabledJob(
                name=" ".join(row[name] for name in _LUCID),
                kind=row["model"],
                features={
                    "sm": float(row["gpu_util"]) / 100,
                    "dram": float(row["gmem_util"]) / 100,
                },
            )
            for row in single
        }
        runs = [
            (
                GpuSharing.TIME_SLICING,
                [
                    (
                        jobs[tuple(row[f"{name}{side}"] for name in _LUCID)].name,
                        1.0 / float(row[f"speed{side}"]),
                    )
                    for side in (1, 2)
                ],
            )
            for row in pairs
        ]
    except (OSError, KeyError, ValueError, ZeroDivisionError) as error:
        raise InvalidRequest(
            f"{data} does not hold {files[0].name} and {files[1].name} of Lucid's artefact: "
            f"{type(error).__name__}: {error}"
        ) from error
    return ("sm", "dram"), list(jobs.values()), runs


SOURCES: dict[str, Callable[[Path], Converted]] = {
    "igniter": igniter,
    "gavel-k80": lambda data: gavel(data, "k80"),
    "gavel-p100": lambda data: gavel(data, "p100"),
    "gavel-v100": lambda data: gavel(data, "v100"),
    "lucid": lucid,
}


def convert(source: str, data: Path, out: Path) -> Path:
    """Write ``source``, read from ``data``, to ``out`` as a table; returns ``out``.

    Raises:
        InvalidRequest: there is no such data.
    """
    write_table(out, *SOURCES[source](data))
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one source; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipelines.corun_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", choices=sorted(SOURCES))
    parser.add_argument("data", type=Path, help="its directory")
    parser.add_argument("out", type=Path, help="where jobs.csv and runs.csv are to be")
    given = parser.parse_args(arguments)
    try:
        out = convert(given.source, given.data, given.out)
    except HrmError as error:
        note(error.message)
        return 2
    note(f"written: {out / 'jobs.csv'}, {out / 'runs.csv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
