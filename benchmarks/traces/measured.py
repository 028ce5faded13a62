"""Measured tables: interference of jobs, kernels and inference models, and traffic.

They are the input of learned schedulers; nothing here is replayed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.traces.reading import (
    BadRow,
    LoadReport,
    Row,
    check_taken,
    find,
    read_csv,
    read_json,
)
from benchmarks.traces.trace_records import (
    InferenceInterference,
    InferenceProfile,
    KernelProfile,
    PairThroughput,
    PlacementProfile,
    RequestGap,
    ScalabilityProfile,
    TrafficSample,
    ValidationPoint,
)
from hrm.errors import InvalidRequest

__all__ = [
    "gavel_pairs",
    "igniter_pairs",
    "igniter_profiles",
    "orion_gaps",
    "orion_kernels",
    "pollux_placements",
    "pollux_scalability",
    "pollux_validation",
    "traffic",
]

_ALONE = "null"
_BOUNDS = {1: "compute", 0: "memory", -1: "unknown"}


def gavel_pairs(path: Path, report: LoadReport) -> Iterator[PairThroughput]:
    """Throughput of training jobs alone and in pairs on one GPU. A row is one measurement.

    Caution: the pairs of ``…_unconsolidated`` GPUs repeat those of the GPU itself.
    """
    file = find(path, "simulation_throughputs.json*", "*_throughputs*.json*")
    document = read_json(file)
    if not isinstance(document, Mapping):
        raise InvalidRequest(f"{file} is no such table: its JSON is no object of GPUs")
    for gpu, jobs in document.items():
        if not isinstance(jobs, Mapping):
            report.refused(f"{file}: {gpu}", BadRow("no object of jobs"))
            continue
        for job, others in jobs.items():
            if not isinstance(others, Mapping):
                report.refused(f"{file}: {gpu}/{job}", BadRow("no object of partners"))
                continue
            for other, rates in others.items():
                try:
                    record = _pair(str(gpu), job, other, rates)
                except BadRow as why:
                    report.refused(f"{file}: {gpu}/{job}/{other}", why)
                else:
                    report.taken()
                    yield record
    check_taken(file, report)


def _pair(gpu: str, job: str, other: str, rates: Any) -> PairThroughput:
    name, scale = _job_key(job)
    if other == _ALONE:
        return PairThroughput(gpu=gpu, job=name, scale=scale, iterations_per_s=_rate(rates))
    if not isinstance(rates, list) or len(rates) != 2:
        raise BadRow("a pair needs two throughputs", str(rates))
    second, second_scale = _job_key(other)
    return PairThroughput(
        gpu=gpu,
        job=name,
        scale=scale,
        iterations_per_s=_rate(rates[0]),
        other=second,
        other_scale=second_scale,
        other_per_s=_rate(rates[1]),
    )


def _job_key(key: str) -> tuple[str, int]:
    """``('ResNet-18 (batch size 16)', 2)`` or the name alone, which is one of one GPU."""
    if not key.startswith("("):
        return key, 1
    try:
        name, scale = ast.literal_eval(key)
        return str(name), int(scale)
    except (ValueError, SyntaxError, TypeError):
        raise BadRow("a job is no (type, GPUs)", key) from None


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadRow("a throughput is no number from 0 up", str(value))
    return float(value)


def pollux_placements(path: Path, report: LoadReport) -> Iterator[PlacementProfile]:
    """Step times of one application by placement; in a directory of applications, the first's."""
    file = find(path, "placements.csv*", "*/placements.csv*")
    return read_csv(file, report, _placement, ("placement", "local_bsz", "step_time", "sync_time"))


def _placement(row: Row) -> PlacementProfile:
    digits = row.text("placement")
    if not re.fullmatch(r"[1-9]\d*", digits):
        raise BadRow("placement is not one digit a node", digits)
    return PlacementProfile(
        placement=tuple(int(digit) for digit in digits),
        local_batch=row.whole("local_bsz", 1),
        step_s=row.number("step_time", 0),
        sync_s=row.number("sync_time", 0),
    )


def pollux_scalability(path: Path, report: LoadReport) -> Iterator[ScalabilityProfile]:
    """Step times of one application by nodes and GPUs."""
    file = find(path, "scalability.csv*", "*/scalability.csv*")
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    return read_csv(file, report, _scalability, columns)


def _scalability(row: Row) -> ScalabilityProfile:
    return ScalabilityProfile(
        nodes=row.whole("num_nodes", 1),
        replicas=row.whole("num_replicas", 1),
        local_batch=row.whole("local_bsz", 1),
        step_s=row.number("step_time", 0),
        sync_s=row.number("sync_time", 0),
    )


def pollux_validation(path: Path, report: LoadReport) -> Iterator[ValidationPoint]:
    """Metric and gradient statistics of one application and batch size over its training."""
    file = find(path, "validation-*.csv*", "*/validation-*.csv*")
    columns = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
    return read_csv(file, report, _validation, columns)


def _validation(row: Row) -> ValidationPoint:
    return ValidationPoint(
        progress=row.number("progress", 0),
        iteration=row.whole("iteration", 0),
        metric=row.number("metric"),
        gradient_square=row.number("grad_sqr"),
        gradient_variance=row.number("grad_var"),
    )


def _igniter(path: Path, report: LoadReport) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(where, top key, its object) of every line."""
    file = find(path, "v100_profile_and_interference.jsonl*", "*.jsonl*")
    for where, value in read_json(file, lines=True):
        if isinstance(value, BadRow):
            report.refused(where, value)
        elif not isinstance(value, Mapping) or not all(
            isinstance(each, Mapping) for each in value.values()
        ):
            report.refused(where, BadRow("no object of objects"))
        else:
            yield from ((where, str(key), entry_value) for key, entry_value in value.items())
    check_taken(file, report)


def igniter_profiles(path: Path, report: LoadReport) -> Iterator[InferenceProfile]:
    """Latency, throughput, cache and memory use of inference models by batch and share of a V100.

    Caution: the throughputs at 10 % and 100 % are known to be wrong in the published file. A row is
    one value.
    """
    for where, model, tables in _igniter(path, report):
        if model == "interference":
            continue
        for metric, batches in tables.items():
            try:
                records = [
                    InferenceProfile(
                        model=model,
                        metric=str(metric),
                        batch=int(batch),
                        gpu_percent=int(percent),
                        value=_rate(value),
                    )
                    for batch, shares in batches.items()
                    for percent, value in shares.items()
                ]
            except (AttributeError, ValueError) as error:
                report.refused(where, BadRow("no table of batch and GPU share", str(error)))
            except BadRow as why:
                report.refused(where, why)
            else:
                report.taken(len(records))
                yield from records


def igniter_pairs(path: Path, report: LoadReport) -> Iterator[InferenceInterference]:
    """Latencies of two inference models that share a V100. A row is one pair."""
    for where, key, tables in _igniter(path, report):
        if key != "interference":
            continue
        for index, row in enumerate(tables.get("latency", [])):
            try:
                first, second, *numbers = row
                batch, second_batch, percent = (int(x) for x in numbers[:3])
                latency_ms, second_latency_ms = (_rate(x) for x in numbers[3:])
            except (TypeError, ValueError):
                report.refused(f"{where}: latency {index}", BadRow("no pair", str(row)))
                continue
            except BadRow as why:
                report.refused(f"{where}: latency {index}", why)
                continue
            report.taken()
            yield InferenceInterference(
                first=str(first),
                second=str(second),
                first_batch=batch,
                second_batch=second_batch,
                gpu_percent=percent,
                first_latency_ms=latency_ms,
                second_latency_ms=second_latency_ms,
            )


def orion_kernels(path: Path, report: LoadReport) -> Iterator[KernelProfile]:
    """Kernels of one model in launch order, profiled on a V100."""
    file = find(path, "*_fwd*.csv*", "kernels/*_fwd.csv*", "*.csv*")
    columns = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration")
    return read_csv(file, report, _kernel, columns)


def _kernel(row: Row) -> KernelProfile:
    bound = _BOUNDS.get(row.whole("Profile"))
    if bound is None:
        raise BadRow("Profile is none of 1, 0, -1", row.text("Profile"))
    return KernelProfile(
        name=row.text("Name"),
        bound=bound,
        memory_footprint=row.whole("Memory_footprint", 0),
        multiprocessors=row.whole("SM_usage", 0),
        duration_ns=row.whole("Duration", 0),
    )


def orion_gaps(path: Path, report: LoadReport) -> Iterator[RequestGap]:
    """Gaps between the requests of Orion's inference clients."""
    file = find(path, "inter_arrival_times.json*")
    document = read_json(file)
    if not isinstance(document, list):
        raise InvalidRequest(f"{file} is no such table: its JSON is no list of seconds")
    for index, value in enumerate(document):
        try:
            gap_s = _rate(value)
        except BadRow as why:
            report.refused(f"{file}: item {index}", why)
        else:
            report.taken()
            yield RequestGap(gap_s=gap_s)
    check_taken(file, report)


def traffic(path: Path, report: LoadReport) -> Iterator[TrafficSample]:
    """Traffic of a European provider's transatlantic link, a row an interval."""
    file = find(path, "isp_eu_hourly.csv*", "isp_*.csv*")
    return read_csv(file, report, _sample, ("time", "bits"))


def _sample(row: Row) -> TrafficSample:
    return TrafficSample(time_s=row.time_s("time"), bits=row.whole("bits", 0))
