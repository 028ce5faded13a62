"""Traces of GPU training jobs: Philly, Muri, Gavel, Pollux; and DeepRM's job generator.

Jobs of several GPUs are ``together``: the workers of one training step wait for each other. None of
these traces has the cores or the memory that a job requested.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.traces.pollux import Profile, profiles
from benchmarks.traces.reading import BadRow, LeftOut, LoadReport, Row, find, read_csv, read_json
from benchmarks.traces.trace_records import JobGenerator, MeasuredJob, TraceJob, TraceTask
from hrm.errors import InvalidRequest

__all__ = [
    "deeprm_generator",
    "deeprm_jobs",
    "gavel_jobs",
    "muri_jobs",
    "muri_results",
    "philly_jobs",
    "pollux_jobs",
]

_MURI_COLUMNS = (
    "job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "duration",
    "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2",
)  # fmt: skip
_RESULT_COLUMNS = (
    "job_id", "num_gpu", "submit_time", "start_time", "end_time", "executed_time", "pending_time",
)  # fmt: skip


def philly_jobs(path: Path, report: LoadReport) -> Iterator[TraceJob]:
    """GPU jobs of Microsoft's Philly cluster, in the order of the file: not by time."""
    columns = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
    return read_csv(find(path, "philly.csv*"), report, _philly, columns)


def _philly(row: Row) -> TraceJob:
    gpus, duration_s = row.whole("num_gpus", 0), row.number("duration", 0)
    submitted_s, cluster = row.time_s("timestamp"), row.text("cluster")
    _must_have_run(gpus, duration_s)
    return _training(row.where.rpartition(":")[2], submitted_s, duration_s, gpus, user=cluster)


def muri_jobs(path: Path, report: LoadReport) -> Iterator[TraceJob]:
    """Training jobs of Muri's simulator and testbed traces. ``kind``: model and batch size."""
    file = find(path, "testbed_trace.csv*", "trace1.csv*", "sim_traces/trace1.csv*")
    return read_csv(file, report, _muri, _MURI_COLUMNS)


def _muri(row: Row) -> TraceJob:
    gpus, duration_s = row.whole("num_gpu", 0), row.number("duration", 0) / 1000
    submitted_s = row.number("submit_time", 0) / 1000
    kind = f"{row.text('model_name')} (batch size {row.whole('batch_size', 1)})"
    _must_have_run(gpus, duration_s)
    return _training(row.text("job_id"), submitted_s, duration_s, gpus, kind=kind)


def muri_results(path: Path, report: LoadReport) -> Iterator[MeasuredJob]:
    """What became of each job of Muri's testbed trace under one policy."""
    file = find(path, "testbed_results/Muri-S_job.csv*", "*_job.csv*")
    return read_csv(file, report, _muri_result, _RESULT_COLUMNS)


def _muri_result(row: Row) -> MeasuredJob:
    return MeasuredJob(
        job_id=row.text("job_id"),
        gpus=row.whole("num_gpu", 1),
        submit_s=row.number("submit_time", 0),
        start_s=row.number("start_time", 0),
        end_s=row.number("end_time", 0),
        executed_s=row.number("executed_time", 0),
        pending_s=row.number("pending_time", 0),
    )


def gavel_jobs(
    path: Path, report: LoadReport, rates_per_s: Mapping[tuple[str, int], float] | None = None
) -> Iterator[TraceJob]:
    """Training jobs of Gavel's traces: a number of steps each, and no duration.

    ``rates_per_s``: steps a second of (job type, GPUs), for instance from the measured throughputs;
    without them, those of a directory's ``simulation_throughputs.json``, alone on a P100, are used.
    A type that was not measured with so many GPUs is left out. Ill-formed throughputs count as bad
    rows, too.
    """
    if rates_per_s is None:
        rates_per_s = _gavel_rates(path, report)
    file = find(path, "traces_physical/minimize_makespan.csv*", "traces_msr_seed0/*.csv*")
    known = rates_per_s

    def job(row: Row) -> TraceJob:
        kind, steps = row.text("job_type"), row.number("total_steps", 0)
        gpus, arrival_s = row.whole("num_gpus", 0), row.number("arrival_s", 0)
        rate_per_s = known.get((kind, gpus), 0.0)
        if rate_per_s <= 0:
            raise LeftOut(f"no throughput was measured for {kind} on {gpus} GPUs")
        _must_have_run(gpus, steps / rate_per_s)
        name = row.where.rpartition(":")[2]
        return _training(name, arrival_s, steps / rate_per_s, gpus, kind=kind)

    return read_csv(file, report, job, ("job_type", "total_steps", "arrival_s", "num_gpus"))


def _gavel_rates(path: Path, report: LoadReport) -> dict[tuple[str, int], float]:
    from benchmarks.traces.measured import gavel_pairs

    folder = path if path.is_dir() else path.parent
    for place in (folder, folder.parent):
        if any(place.glob("simulation_throughputs.json*")):
            own = LoadReport()
            rates_per_s = {
                (pair.job, pair.scale): pair.iterations_per_s
                for pair in gavel_pairs(place, own)
                if pair.gpu == "p100" and not pair.other
            }
            report.adopt_bad(own)
            return rates_per_s
    raise InvalidRequest(
        f"{path} tells steps and no run times; put simulation_throughputs.json of the same "
        f"origin beside it, or above it"
    )


def pollux_jobs(
    path: Path, report: LoadReport, known: Mapping[str, Profile] | None = None
) -> Iterator[TraceJob]:
    """Training jobs of Pollux's workloads. ``kind``: application and batch size.

    ``known``: what was measured of each application; without it, what is found near the file. Run
    times come from there (see ``pollux``), and a job whose batch size or GPUs were not measured is
    left out. Where there are no measurements at all every run time is 0.
    """
    file = find(path, "workload-1.csv*", "workloads/workload-1.csv*")
    columns = ("name", "time", "application", "num_replicas", "batch_size")
    measured = profiles(file) if known is None else known

    def job(row: Row) -> TraceJob:
        application, batch = row.text("application"), row.whole("batch_size", 1)
        gpus, arrival_s = row.whole("num_replicas", 1), row.number("time", 0)
        name, kind, run_s = row.text("name"), f"{application} (batch size {batch})", 0.0
        if measured:
            profile = measured.get(application)
            run_s = profile.run_s(batch, gpus) if profile else 0.0
            if run_s <= 0:
                raise LeftOut(f"no training of {kind} was measured on {gpus} GPUs")
        return _training(name, arrival_s, run_s, gpus, kind=kind)

    return read_csv(file, report, job, columns)


def deeprm_generator(path: Path, report: LoadReport) -> Iterator[JobGenerator]:
    """The parameters of DeepRM's job generator: one record."""
    file = find(path, "params.json*")
    record = read_json(file)
    try:
        bimodal = record["bimodal_distribution"]
        generator = JobGenerator(
            resources=int(record["num_resources"]),
            slots=int(record["res_slots_per_resource"]),
            arrival_probability=float(record["new_job_rate_bernoulli_per_step"]),
            short_probability=float(bimodal["small_job_chance"]),
            short_steps=_pair(bimodal["small_len_uniform_int_inclusive"]),
            long_steps=_pair(bimodal["big_len_uniform_int_inclusive"]),
            dominant_slots=_pair(bimodal["dominant_size_uniform_int_inclusive"]),
            other_slots=_pair(bimodal["other_size_uniform_int_inclusive"]),
            queue_visible=int(record["num_visible_jobs"]),
            backlog=int(record["backlog_size"]),
            extra={k: float(v) for k, v in record.items() if isinstance(v, int | float)},
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{file} holds no parameters of DeepRM's generator: {type(error).__name__}: {error}"
        ) from None
    _check_generator(generator, file)
    report.taken()
    yield generator


def deeprm_jobs(generator: JobGenerator, steps: int, seed: int) -> Iterator[TraceJob]:
    """Jobs drawn as DeepRM draws them, for ``steps`` steps of a second: the first resource as
    vcores, the second as GiB of memory."""
    chance = random.Random(seed)  # nosec B311
    for step in range(steps):
        if chance.random() >= generator.arrival_probability:
            continue
        short = chance.random() < generator.short_probability
        duration = chance.randint(*(generator.short_steps if short else generator.long_steps))
        dominant = chance.randrange(generator.resources)
        sizes = [
            chance.randint(*(generator.dominant_slots if x == dominant else generator.other_slots))
            for x in range(generator.resources)
        ]
        memory_mib = 1024 * sizes[1] if len(sizes) > 1 else 0
        task = TraceTask(
            name="job", duration_s=float(duration), vcores=float(sizes[0]), memory_mib=memory_mib
        )
        kind = "short" if short else "long"
        yield TraceJob(job_id=str(step), arrival_s=float(step), tasks=(task,), kind=kind)


def _check_generator(generator: JobGenerator, file: Path) -> None:
    """Refuse what no job could be drawn from."""
    ranges = {
        "small_len": generator.short_steps,
        "big_len": generator.long_steps,
        "dominant_size": generator.dominant_slots,
        "other_size": generator.other_slots,
    }
    wrong = [
        f"{name} {low} to {high}" for name, (low, high) in ranges.items() if not 1 <= low <= high
    ]
    if not 0 < generator.arrival_probability <= 1:
        wrong.append(f"new_job_rate {generator.arrival_probability}")
    if not 0 <= generator.short_probability <= 1:
        wrong.append(f"small_job_chance {generator.short_probability}")
    if generator.resources < 1:
        wrong.append(f"num_resources {generator.resources}")
    if wrong:
        raise InvalidRequest(
            f"{file} holds no parameters of DeepRM's generator: {', '.join(wrong)}; lengths and "
            f"sizes are ranges from 1 up, rates and chances at most 1"
        )


def _pair(value: Any) -> tuple[int, int]:
    low, high = value
    return int(low), int(high)


def _must_have_run(gpus: int, duration_s: float) -> None:
    if gpus < 1:
        raise BadRow("a training job without a GPU")
    if duration_s == 0:
        raise LeftOut("ran for no time")


def _training(
    job_id: str, arrival_s: float, duration_s: float, gpus: int, kind: str = "", user: str = ""
) -> TraceJob:
    task = TraceTask(name="train", duration_s=duration_s, instances=gpus, gpus=1)
    return TraceJob(
        job_id=job_id, arrival_s=arrival_s, tasks=(task,), kind=kind, user=user, together=gpus > 1
    )
