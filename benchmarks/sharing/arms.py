"""Runs one arm: the stream with its load over time, and the backlog of batch next to it.

An arm is a manager with one pool, or with two parts of it: the stream's machines and batch's; the
one pool may have queues. The applications, their arguments and their settings are the same in all
arms, and so is what comes to the stream and when. The client of the backlog keeps a fixed number of
jobs submitted; whether they get executors is up to the manager.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clusters import Cluster, Shape, Standalone, Submission
from benchmarks.processes import BenchmarkError
from benchmarks.scheduling.cells import percentile
from benchmarks.sharing import measures
from benchmarks.sharing.inputs import Inputs
from benchmarks.sharing.load import (
    END_LIMIT_S,
    POLL_S,
    Backlog,
    Feed,
    await_empty,
    begin_stream,
    kept_up,
    now,
    submit_stream,
)
from benchmarks.sharing.machine import MachineUse
from benchmarks.sharing.measures import MicroBatch, Task, Use
from benchmarks.sharing.plan import (
    BATCH_QUEUES,
    STREAM_QUEUE,
    Arm,
    Plan,
    guarantees,
    job_name,
)
from benchmarks.startup import Started

__all__ = ["EndedJob", "Pool", "Run", "clusters_of", "run_arm", "shape_of"]

_SAMPLE_S = 1.0
_KINDS: dict[str, type[Cluster]] = {"hrm": Started, "standalone": Standalone}


def shape_of(plan: Plan, nodes: int) -> Shape:
    """``nodes`` machines of the pool."""
    memory_mib = plan.executor_memory_mib + plan.executor_overhead_mib
    return Shape(
        nodes=nodes,
        cores_per_node=plan.executors_per_node * plan.slots,
        memory_per_node_mib=plan.executors_per_node * memory_mib,
        executor_memory_mib=plan.executor_memory_mib,
        executor_overhead_mib=plan.executor_overhead_mib,
        executors=plan.batch_executors,
        executor_cores=plan.slots,
        shuffle_partitions=plan.slots,
    )


class _Queued(Started):
    """HRM with the queues of a plan in the ``hrm.toml`` of its master."""

    def __init__(self, shape: Shape, directory: Path, plan: Plan) -> None:
        super().__init__(shape, directory)
        self._plan = plan

    def configure(self) -> None:
        tables = [
            f'[queues."{name}"]\nguaranteed = "{percent}%"\n'
            for name, percent in guarantees(self._plan).items()
        ]
        wait = f"[master]\nqueue_reclaim_wait_s = {self._plan.reclaim_wait_s:g}\n"
        (self.state_dir / "hrm.toml").write_text("\n".join([wait, *tables]))


@dataclass(frozen=True, slots=True)
class Pool:
    """Where the stream's and where batch's executors run: one cluster, or one for each."""

    stream: Cluster
    batch: Cluster

    @property
    def clusters(self) -> list[Cluster]:
        return [self.stream] if self.stream is self.batch else [self.stream, self.batch]


def clusters_of(
    plan: Plan, arms: Iterable[Arm], directory: Path, running: contextlib.ExitStack
) -> dict[tuple[str, str], Pool]:
    """(manager, kind of pool) to its pool, for these arms; all stay up until ``running`` ends."""

    def begin(arm: Arm, part: str, nodes: int) -> Cluster:
        shape, where = shape_of(plan, nodes), directory / f"{arm.manager}-{part}"
        cluster = _Queued(shape, where, plan) if arm.queues else _KINDS[arm.manager](shape, where)
        return running.enter_context(cluster)

    pools: dict[tuple[str, str], Pool] = {}
    half = plan.nodes // 2
    for arm in arms:
        if (arm.manager, arm.pool) in pools:
            continue
        if arm.shared:
            whole = begin(arm, arm.pool, plan.nodes)
            pool = Pool(whole, whole)
        else:
            pool = Pool(begin(arm, "streams", half), begin(arm, "batch", plan.nodes - half))
        pools[arm.manager, arm.pool] = pool
    return pools


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A batch job by its place in the list. ``ended_s``: from the submission of the first job;
    ``slot_s``: slot time that it cost."""

    number: int
    name: str
    ended_s: float
    slot_s: float


@dataclass(slots=True, kw_only=True)
class Run:
    """What one run of an arm gave. ``at_work_s``: of each micro-batch, the part in which a task
    ran; ``late``: micro-batches longer than their trigger's interval;
    ``executors``: the stream's, each change with its seconds from the beginning of the window;
    ``machine_cpu_s``: processor time of the whole machine in the window, ``cpu_by_role_s``: who
    used it; ``preempted``: executors
    whose end within the window HRM ordered for others, by queue ("" where there are none)."""

    arm: str
    window_s: float
    stream: Use
    batch: Use
    durations_s: list[float]
    delays_s: list[float]
    late: int
    executors: list[tuple[float, int]]
    jobs: list[EndedJob]
    makespan_s: float | None
    machine_cpu_s: float
    complaints: list[str]
    at_work_s: list[float] = field(default_factory=list)
    preempted: dict[str, int] = field(default_factory=dict)
    cpu_by_role_s: dict[str, float] = field(default_factory=dict)

    @property
    def p99_s(self) -> float:
        return percentile(self.durations_s, 0.99)


def run_arm(arm: Arm, pool: Pool, inputs: Inputs, plan: Plan, directory: Path) -> Run:
    """One run, from an empty pool to an empty pool.

    Raises:
        BenchmarkError: an application failed, or a limit was exceeded.
    """
    watched = directory / "watched"
    watched.mkdir(parents=True)
    queue = STREAM_QUEUE if arm.queues else ""
    stream = submit_stream(pool.stream, inputs, plan, directory, watched, queue)
    queues = BATCH_QUEUES if arm.queues else ("",)
    backlog = Backlog(pool.batch, inputs, plan, directory, queues)
    feed = Feed(plan, inputs.stream, watched)
    try:
        begin_stream(stream, feed, directory)
        with kept_up(backlog if arm.batch else None):
            begin_s = _pass(plan.settle_s if arm.batch else 0.0, stream, backlog, arm)
            feed.begin_window()
            used = MachineUse(
                {each.mark for each in pool.clusters},
                stream.process.process.pid,
                directory,
            )
            end_s = _pass(plan.window_s, stream, backlog, arm, used)
            _pass(plan.drain_s, stream, backlog, arm)
            limit_s = now() + plan.makespan_limit_s
            while arm.batch and len(backlog.ended) < plan.jobs_counted and now() < limit_s:
                _pass(POLL_S, stream, backlog, arm)
        (directory / "stop").write_text(str(feed.end()))
        result = stream.result(END_LIMIT_S)
    finally:
        feed.end()
        stream.stop()
    batches = measures.micro_batches(result, plan.rows_per_file)
    run = _measured(arm, plan, directory, (begin_s, end_s), batches, feed.delivered_s, backlog)
    run.machine_cpu_s = used.total_s
    run.cpu_by_role_s = dict(used.by_role())
    run.preempted = _preempted(pool, begin_s, end_s)
    run.executors = [(at_s - begin_s, count) for at_s, count in result["executors"]]
    run.complaints += [
        f"stream: {text}"
        for text in measures.stream_complaints(
            batches, inputs.stream_expected, len(feed.delivered_s)
        )
    ]
    await_empty(pool.clusters)
    return run


def _pass(
    seconds: float, stream: Submission, backlog: Backlog, arm: Arm, used: MachineUse | None = None
) -> float:
    """Let time pass, with the backlog kept up; when it was over, seconds since the epoch.

    Raises:
        BenchmarkError: the stream has ended.
    """
    deadline, sample_at = now() + seconds, 0.0
    while now() < deadline:
        if used is not None and now() >= sample_at:
            sample_at = now() + _SAMPLE_S
            used.sample()
        if not stream.running:
            stream.result(1.0)
            raise BenchmarkError("the stream ended before its window")
        if arm.batch:
            backlog.turn()
        time.sleep(min(POLL_S, max(0.0, deadline - now())))
    if used is not None:
        used.sample()
    return time.time()


def _measured(
    arm: Arm, plan: Plan, directory: Path, window: tuple[float, float],
    batches: Sequence[MicroBatch], delivered_s: Sequence[float], backlog: Backlog,
) -> Run:  # fmt: skip
    begin_s, end_s = window
    tasks: dict[int, list[Task]] = {
        number: measures.read_tasks(backlog.place(number) / "events")
        for number in range(backlog.submitted)
    }
    inside = [batch for batch in batches if begin_s <= batch.begun_s < end_s]
    jobs = [
        EndedJob(
            number,
            job_name(number, plan.queries),
            at_s - backlog.begun_s,
            measures.slot_seconds(tasks[number]),
        )
        for number, at_s in backlog.ended
    ]
    counted = plan.jobs_counted
    files_delays = measures.delays(batches, delivered_s)
    of_stream = measures.read_tasks(directory / "stream" / "events")
    return Run(
        arm=arm.name,
        window_s=end_s - begin_s,
        stream=measures.use(of_stream, begin_s, end_s),
        batch=measures.use([t for each in tasks.values() for t in each], begin_s, end_s),
        durations_s=[batch.seconds for batch in inside],
        at_work_s=[round(measures.at_work_s(of_stream, batch), 3) for batch in inside],
        delays_s=[
            delay
            for delay, at_s in zip(files_delays, delivered_s, strict=False)
            if begin_s <= at_s < end_s
        ],
        late=sum(batch.seconds > plan.trigger_s for batch in inside),
        executors=[],
        jobs=jobs,
        makespan_s=jobs[counted - 1].ended_s if len(jobs) >= counted else None,
        machine_cpu_s=0.0,
        complaints=list(backlog.complaints),
    )


def _preempted(pool: Pool, begin_s: float, end_s: float) -> dict[str, int]:
    """Executors that HRM ended for others between two moments, by the queue that lost them."""
    found: dict[str, int] = {}
    for cluster in pool.clusters:
        if isinstance(cluster, Started):
            queues = {app["application_id"]: app.get("queue", "") for app in cluster.applications()}
            for event in cluster.events("container", time.time() - begin_s):
                if event["cause"] == "preempted" and begin_s <= event["at_s"] < end_s:
                    queue = queues.get(event["application_id"], "")
                    found[queue] = found.get(queue, 0) + 1
    return found
