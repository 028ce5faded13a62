"""Traces of real clusters, and measurements of real GPUs, read into records of HRM's own.

``FORMATS`` names every format that can be read, the records of its rows, and where the data is
published: HRM ships none of it. ``load`` reads a file whole; ``Format.read`` yields its records one
by one, for files that do not fit in memory::

    jobs, report = load("philly", Path("philly.csv.gz"))
    print(len(jobs), "jobs,", report.rows_bad, "bad rows")

Ill-formed rows are counted with their reason, and the first of them are reported by file and line;
see ``reading``. ``trace_records`` defines the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.traces import cluster_traces, measured, training_traces
from benchmarks.traces.reading import LoadReport
from benchmarks.traces.trace_records import Record, TraceJob
from hrm.errors import InvalidRequest

__all__ = ["FORMATS", "Format", "LoadReport", "find_format", "load", "load_jobs"]


@dataclass(frozen=True, slots=True)
class Format:
    """``rows``: what a record is. ``origin``: the public name of the data and its publisher."""

    name: str
    rows: str
    origin: str
    read: Callable[[Path, LoadReport], Iterator[Any]]

    @property
    def has_jobs(self) -> bool:
        return self.rows == "jobs"


_OPENB = "cluster-trace-gpu-v2023 of the GitHub repository alibaba/clusterdata (ATC 2023)"
_V2018 = "cluster-trace-v2018 of alibaba/clusterdata; an hour of it in All-less/trace-generator"
_GOOGLE = "ClusterData2011_2 of google/cluster-data (job_events), a row a job"
_PHILLY = "msr-fiddle/philly-traces, as condensed in petuum/adaptdl, branch osdi21-artifact"
_MURI = "the GitHub repository Rivendile/Muri (SIGCOMM 2022)"
_GAVEL = "the GitHub repository stanford-futuredata/gavel (OSDI 2020)"
_POLLUX = "the GitHub repository petuum/adaptdl, branch osdi21-artifact (OSDI 2021)"
_DECIMA = "the GitHub repository hongzimao/decima-sim (SIGCOMM 2019), its arrays as JSON"
_DEEPRM = "the GitHub repository hongzimao/deeprm (HotNets 2016), its parameters as JSON"
_IGNITER = "the GitHub repository icloud-ecnu/igniter (TPDS 2022)"
_ORION = "the GitHub repository eth-easl/orion (EuroSys 2024)"
_TRAFFIC = "Time Series Data Library, internet traffic of a European provider (Cortez et al. 2012)"

FORMATS = {
    each.name: each
    for each in (
        Format("alibaba-gpu-v2023", "jobs", _OPENB, cluster_traces.alibaba_gpu_jobs),
        Format("alibaba-gpu-v2023-nodes", "nodes", _OPENB, cluster_traces.alibaba_gpu_nodes),
        Format("alibaba-v2018-dag", "jobs", _V2018, cluster_traces.alibaba_batch_jobs),
        Format("google-2011-jobs", "jobs", _GOOGLE, cluster_traces.google_jobs),
        Format("philly", "jobs", _PHILLY, training_traces.philly_jobs),
        Format("muri", "jobs", _MURI, training_traces.muri_jobs),
        Format("muri-results", "measured jobs", _MURI, training_traces.muri_results),
        Format("gavel", "jobs", _GAVEL, training_traces.gavel_jobs),
        Format("gavel-pairs", "throughputs", _GAVEL, measured.gavel_pairs),
        Format("decima-tpch", "jobs", _DECIMA, cluster_traces.tpch_jobs),
        Format("pollux", "jobs", _POLLUX, training_traces.pollux_jobs),
        Format("pollux-placements", "step times", _POLLUX, measured.pollux_placements),
        Format("pollux-scalability", "step times", _POLLUX, measured.pollux_scalability),
        Format("pollux-validation", "training points", _POLLUX, measured.pollux_validation),
        Format("deeprm", "generators", _DEEPRM, training_traces.deeprm_generator),
        Format("internet-traffic", "samples", _TRAFFIC, measured.traffic),
        Format("igniter", "profile values", _IGNITER, measured.igniter_profiles),
        Format("igniter-pairs", "pairs", _IGNITER, measured.igniter_pairs),
        Format("orion-kernels", "kernels", _ORION, measured.orion_kernels),
        Format("orion-gaps", "request gaps", _ORION, measured.orion_gaps),
    )
}
"""Every format that can be read, by name."""


def find_format(name: str) -> Format:
    """The format of this name; ``_`` counts as ``-``.

    Raises:
        InvalidRequest: there is none; with those that there are.
    """
    found = FORMATS.get(name.replace("_", "-"))
    if found is None:
        raise InvalidRequest(
            f"no trace format is called {name!r}; name one of {', '.join(FORMATS)}"
        )
    return found


def load(name: str, path: Path, limit: int | None = None) -> tuple[list[Record], LoadReport]:
    """The first ``limit`` records of a file, in its order, and the report of its rows.

    Raises:
        InvalidRequest: no such format, or the file is of another one.
        NotFound: no such file.
    """
    report = LoadReport()
    return list(islice(find_format(name).read(path, report), limit)), report


def load_jobs(name: str, path: Path) -> tuple[list[TraceJob], LoadReport]:
    """All jobs of a job trace in order of arrival.

    Raises:
        InvalidRequest: the same, and where the format holds no jobs.
    """
    chosen = find_format(name)
    if not chosen.has_jobs:
        names = ", ".join(each.name for each in FORMATS.values() if each.has_jobs)
        raise InvalidRequest(f"{chosen.name} holds {chosen.rows}, no jobs; jobs have: {names}")
    report = LoadReport()
    jobs = list(chosen.read(path, report))
    return sorted(jobs, key=lambda job: job.arrival_s), report
