"""Job traces of whole clusters: Alibaba's GPU and batch clusters, Google's, and TPC-H on Spark.

Each loader takes a path (of a file, or of a directory in which to look for it) and a ``LoadReport``
and yields records as it reads; see ``benchmarks.traces.FORMATS`` for where the traces come from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.traces.reading import (
    BadRow,
    LeftOut,
    LoadReport,
    Row,
    check_taken,
    find,
    find_all,
    in_order,
    read_csv,
    read_json,
    rows,
)
from benchmarks.traces.trace_records import TraceJob, TraceNode, TraceTask
from hrm.core.vocabulary.model import WorkloadClass
from hrm.errors import InvalidRequest

__all__ = [
    "alibaba_batch_jobs",
    "alibaba_gpu_jobs",
    "alibaba_gpu_nodes",
    "google_jobs",
    "tpch_jobs",
]

ALIBABA_2018_MACHINE_MIB = 96 * 4096
"""The trace gives memory in percent of a machine of 96 cores, without its size: 4 GiB a core."""

_POD_COLUMNS = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase",
    "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
_BATCH_COLUMNS = (
    "arrival_s", "job", "task", "duration_s", "plan_cpu", "plan_mem", "instances",
)  # fmt: skip
_GOOGLE_COLUMNS = ("submit_s", "wait_s", "run_s", "end_event", "sched_class", "user")
_GOOGLE_ENDS = {2: "evicted", 3: "failed", 4: "finished", 5: "killed", 6: "lost"}
_TASK_NAME = re.compile(r"[A-Za-z]+(\d+)((?:_\d+)*)$")


def alibaba_gpu_jobs(path: Path, report: LoadReport) -> Iterator[TraceJob]:
    """Pods of the "openb" traces: one task each, whole GPUs or a share of one.

    All are BATCH, latency-sensitive ones too: they end, which HRM's streams do not. A pod that was
    never scheduled has no run time and is left out. The GPU models that a pod allows are not kept.
    """
    file = find(path, "openb_pod_list_default.csv*", "openb_pod_list_*.csv*")
    return read_csv(file, report, _pod, _POD_COLUMNS)


def _pod(row: Row) -> TraceJob:
    gpus = row.whole("num_gpu", 0)
    share = row.number("gpu_milli", 0) / 1000 if gpus else 1.0
    if not 0 < share <= 1:
        raise BadRow("gpu_milli is not within 1 and 1000", row.text("gpu_milli"))
    created_s, deleted_s = row.number("creation_time", 0), row.number("deletion_time", 0)
    vcores, memory_mib = row.number("cpu_milli", 0) / 1000, row.whole("memory_mib", 0)
    name, quality = row.text("name"), row.text("qos")
    if not row.text("scheduled_time", ""):
        raise LeftOut("never scheduled")
    scheduled_s = row.number("scheduled_time", created_s)
    if deleted_s < scheduled_s:
        raise BadRow("deleted before it was scheduled", row.text("deletion_time"))
    if deleted_s == scheduled_s:
        raise LeftOut("ran for no time")
    task = TraceTask(
        name="pod",
        duration_s=deleted_s - scheduled_s,
        vcores=vcores,
        memory_mib=memory_mib,
        gpus=gpus,
        gpu_share=share,
    )
    return TraceJob(
        job_id=name,
        arrival_s=created_s,
        tasks=(task,),
        kind=quality,
        wait_s=scheduled_s - created_s,
    )


def alibaba_gpu_nodes(path: Path, report: LoadReport) -> Iterator[TraceNode]:
    """The machines of the same cluster."""
    file = find(path, "openb_node_list_gpu_node.csv*", "openb_node_list_*.csv*")
    columns = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
    return read_csv(file, report, _node, columns)


def _node(row: Row) -> TraceNode:
    return TraceNode(
        name=row.text("sn"),
        vcores=row.whole("cpu_milli", 1000) // 1000,
        memory_mib=row.whole("memory_mib", 1),
        gpus=row.whole("gpu", 0),
        model=row.text("model", ""),
    )


def alibaba_batch_jobs(path: Path, report: LoadReport) -> Iterator[TraceJob]:
    """Batch jobs of cluster-trace-v2018 as DAGs of tasks, as many rows a job as it has tasks.

    ``J12_4_11`` is task 12, a join, after tasks 4 and 11; ``task_…`` waits for none. Rows of a job
    follow each other, so a job is known when the next begins. Tasks that took no time are kept:
    others may wait for them. A job with an unreadable row is bad as a whole.
    """
    file = find(path, "sample_tasks.csv*")
    members: list[Row] = []
    known: set[str] = set()
    for row in rows(file, report, _BATCH_COLUMNS, header=False):
        try:
            job = row.text("job")
        except BadRow as why:
            report.refused(row.where, why)
            continue
        if members and members[0].text("job") != job:
            yield from _batch_job(members, known, report)
            members = []
        members.append(row)
    if members:
        yield from _batch_job(members, known, report)
    check_taken(file, report)


def _batch_job(members: list[Row], known: set[str], report: LoadReport) -> Iterator[TraceJob]:
    """The job of these rows, if it is one."""
    row = members[0]
    try:
        name = row.text("job")
        if name in known:
            raise BadRow("the job's rows do not follow each other", name)
        known.add(name)
        tasks: dict[str, TraceTask] = {}
        numbers: dict[str, str] = {}
        for row in members:
            task, number = _batch_task(row)
            if task.name in tasks or number in numbers:
                raise BadRow("two tasks of a job have one name", task.name)
            tasks[task.name] = task
            if number:
                numbers[number] = task.name
        parents = {
            key: tuple(numbers.get(number, f"task {number}") for number in task.parents)
            for key, task in tasks.items()
        }
        job = TraceJob(
            job_id=name,
            arrival_s=members[0].number("arrival_s", 0),
            tasks=tuple(
                _with_parents(tasks[key], parents[key]) for key in in_order(tasks, parents)
            ),
        )
    except BadRow as why:
        report.refused(row.where, why, len(members))
        return
    report.taken(len(members))
    yield job


def _batch_task(row: Row) -> tuple[TraceTask, str]:
    """A task whose parents are still numbers, and its own number (empty: it has none)."""
    name = row.text("task")
    named = _TASK_NAME.match(name)
    parents = tuple(dict.fromkeys(named[2].split("_")[1:])) if named else ()
    task = TraceTask(
        name=name,
        duration_s=row.number("duration_s", 0),
        instances=row.whole("instances", 1),
        vcores=row.number("plan_cpu", 0) / 100,
        memory_mib=round(row.number("plan_mem", 0) / 100 * ALIBABA_2018_MACHINE_MIB),
        parents=parents,
    )
    return task, named[1] if named else ""


def _with_parents(task: TraceTask, parents: tuple[str, ...]) -> TraceTask:
    return TraceTask(
        name=task.name,
        duration_s=task.duration_s,
        instances=task.instances,
        vcores=task.vcores,
        memory_mib=task.memory_mib,
        parents=parents,
        measured_s=task.measured_s,
    )


def google_jobs(path: Path, report: LoadReport) -> Iterator[TraceJob]:
    """Jobs of ClusterData2011_2, condensed to one row each: submission, wait, run time, class.

    The sizes are not known. ``kind`` is the scheduling class (0: batch … 3: most sensitive to
    latency); all are BATCH. A job that never ended, or in no time, is left out.
    """
    return read_csv(find(path, "jobs.csv*"), report, _google, _GOOGLE_COLUMNS)


def _google(row: Row) -> TraceJob:
    submitted_s, wait_s = row.number("submit_s", 0), row.number("wait_s", 0, default=-1)
    kind, user = row.whole("sched_class", 0), row.text("user")
    if not row.text("run_s", ""):
        raise LeftOut("never ended")
    run_s = row.number("run_s", 0)
    if row.whole("end_event") not in _GOOGLE_ENDS:
        raise BadRow("end_event is none that ends a job", row.text("end_event"))
    if run_s == 0:
        raise LeftOut("ran for no time")
    return TraceJob(
        job_id=row.where.rpartition(":")[2],
        arrival_s=submitted_s,
        tasks=(TraceTask(name="job", duration_s=run_s),),
        user=user,
        kind=f"class {kind}",
        wait_s=wait_s if wait_s >= 0 else None,
        workload_class=WorkloadClass.BATCH,
    )


def tpch_jobs(path: Path, report: LoadReport) -> Iterator[TraceJob]:
    """TPC-H queries as measured on Spark: stages with the run time of each of their tasks.

    A directory holds a file for each size of the data, and all of them are read. ``instances`` of a
    stage are its tasks; their times are those measured with the fewest executors and without
    starting one (the ``rest_wave``; else the first wave, else fresh ones). Queries have no arrival:
    all come at 0. A row is a stage.
    """
    for file in find_all(path, "tpch_*.json*"):
        yield from _queries(file, report)


def _queries(file: Path, report: LoadReport) -> Iterator[TraceJob]:
    document = read_json(file)
    if not isinstance(document, Mapping):
        raise InvalidRequest(f"{file} is no such trace: its JSON is no object of queries")
    scale = re.sub(r"\.json.*$", "", file.name)
    taken = 0
    for query, record in document.items():
        where = f"{file}: query {query}"
        try:
            job = _query(f"{scale}-q{query}", record)
        except BadRow as why:
            stages = record.get("num_stages", 1) if isinstance(record, Mapping) else 1
            report.refused(where, why, stages if isinstance(stages, int) and stages > 0 else 1)
        else:
            report.taken(len(job.tasks))
            taken += 1
            yield job
    if not taken:
        last = f"; {report.messages[-1]}" if report.messages else ""
        raise InvalidRequest(f"{file} is no such trace: none of its queries could be read{last}")


def _query(name: str, record: Any) -> TraceJob:
    try:
        durations = record["task_durations_ms"]
        edges = [(str(parent), str(child)) for parent, child in record["edges"]]
        tasks = {str(stage): _stage(str(stage), waves) for stage, waves in durations.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRow("a query lacks a field", f"{type(error).__name__}: {error}") from None
    parents: dict[str, list[str]] = {stage: [] for stage in tasks}
    for parent, child in edges:
        if child not in parents:
            raise BadRow("an edge leads to a stage that the query has not", child)
        parents[child].append(parent)
    order = in_order(tasks, parents)
    return TraceJob(
        job_id=name,
        arrival_s=0.0,
        tasks=tuple(_with_parents(tasks[stage], tuple(parents[stage])) for stage in order),
        kind=name.rpartition("-")[2],
        user="tpch",
    )


def _stage(stage: str, waves: Mapping[str, Mapping[str, list[float]]]) -> TraceTask:
    for wave in ("rest_wave", "first_wave", "fresh_durations"):
        executors = sorted((k for k, v in waves[wave].items() if v), key=int)
        if executors:
            counts = Counter({k: len(waves[wave][k]) for k in executors})
            times_s = tuple(float(ms) / 1000 for ms in waves[wave][executors[0]])
            if not all(0 <= time_s < math.inf for time_s in times_s):
                raise BadRow("a task's time is no number from 0 up", f"stage {stage}, {wave}")
            return TraceTask(
                name=stage,
                duration_s=fmean(times_s),
                instances=max(counts.values()),
                measured_s=times_s,
            )
    raise BadRow("a stage has no measured task", stage)
