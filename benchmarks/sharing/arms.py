"""Runs one arm: the stream with its load over time, and the backlog of batch next to it.

An arm is a manager with one pool, or with two parts of it: the stream's machines and batch's; the
one pool may have queues. The applications, their arguments and their settings are the same in all
arms, and so is what comes to the stream and when. The client of the backlog keeps a fixed number of
jobs submitted; whether they get executors is up to the manager.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.clusters import Cluster, Shape, Standalone, Submission
from benchmarks.processes import BenchmarkError, wait_until
from benchmarks.scheduling.cells import percentile
from benchmarks.sharing import measures
from benchmarks.sharing.inputs import TOP, Inputs
from benchmarks.sharing.machine import MachineUse
from benchmarks.sharing.measures import MicroBatch, Task, Use
from benchmarks.sharing.plan import (
    BATCH_QUEUES,
    STREAM_QUEUE,
    Arm,
    Plan,
    files_at,
    guarantees,
    job_name,
)
from benchmarks.sharing.store import paced, paced_settings
from benchmarks.startup import Started

__all__ = ["EndedJob", "Feed", "Pool", "Run", "clusters_of", "run_arm", "shape_of"]

_APP = Path(__file__).resolve().parent.parent / "apps" / "elastic_topk.py"
_READY_LIMIT_S = 240.0
_STEADY_LIMIT_S = 180.0
_END_LIMIT_S = 180.0
_POLL_S = 0.2
_SAMPLE_S = 1.0
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""The second compiler does not pay for itself within minutes, and takes cores from the tasks."""

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


class Feed:
    """Brings the stream its files, as many at each trigger as the plan says."""

    def __init__(self, plan: Plan, files: Sequence[Path], target: Path) -> None:
        self._plan = plan
        self._files = files
        self._target = target
        self._stop = threading.Event()
        self._window_tick: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.delivered_s: list[float] = []
        self.tick = 0

    def start(self) -> None:
        self._target.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def begin_window(self) -> None:
        """From the next trigger on the load is that of the window."""
        self._window_tick = self.tick

    def end(self) -> int:
        """No more files; how many there were."""
        self._stop.set()
        self._thread.join(10.0)
        return len(self.delivered_s)

    def _run(self) -> None:
        origin_s = time.monotonic()
        while not self._stop.wait(max(0.0, origin_s + self.tick * self._plan.trigger_s - now())):
            window = self._window_tick
            self._deliver(files_at(self._plan, -1 if window is None else self.tick - window))
            self.tick += 1

    def _deliver(self, count: int) -> None:
        for _ in range(count):
            number = len(self.delivered_s)
            if number == len(self._files):
                return
            partial = self._target / f".{number:05d}"
            shutil.copyfile(self._files[number], partial)
            partial.rename(self._target / f"{number:05d}.txt")
            self.delivered_s.append(time.time())


def now() -> float:
    return time.monotonic()


@dataclass(slots=True)
class _Backlog:
    """Keeps so many batch jobs submitted, in the order of the list: as many to each queue."""

    cluster: Cluster
    inputs: Inputs
    plan: Plan
    directory: Path
    queues: Sequence[str] = ("",)
    live: list[tuple[int, Submission]] = field(default_factory=list)
    ended: list[tuple[int, float]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    queue_of: list[str] = field(default_factory=list)
    begun_s: float = 0.0

    @property
    def submitted(self) -> int:
        return len(self.queue_of)

    def place(self, number: int) -> Path:
        return self.directory / f"batch-{number:02d}"

    def turn(self) -> None:
        """Note what has ended, and submit as many."""
        for number, submission in list(self.live):
            if not submission.running:
                self.live.remove((number, submission))
                self.ended.append((number, time.time()))
                self._check(number, submission)
        while len(self.live) < self.plan.backlog:
            self.begun_s = self.begun_s or time.time()
            live = [self.queue_of[number] for number, _ in self.live]
            number = self.submitted
            self.queue_of.append(min(self.queues, key=live.count))
            self.live.append((number, self._submit(number)))

    def _submit(self, number: int) -> Submission:
        plan, where = self.plan, self.place(number)
        job = self.inputs.jobs[job_name(number, plan.queries)]
        settings = _settings(self.cluster, plan, where, plan.batch_executors, self.queue_of[number])
        settings |= paced_settings(self.inputs.jar, plan.batch_bytes_per_s, plan.split_bytes)
        return self.cluster.submit(job.app, job.arguments(where), where, settings)

    def _check(self, number: int, submission: Submission) -> None:
        name = job_name(number, self.plan.queries)
        try:
            result = submission.result(_END_LIMIT_S)
            found = self.inputs.jobs[name].check(result, self.place(number))
        except (BenchmarkError, OSError) as error:
            found = [str(error)]
        self.complaints += [f"batch job {number}, {name}: {text}" for text in found]

    def stop(self) -> None:
        for _, submission in self.live:
            submission.process.process.terminate()
        for _, submission in self.live:
            submission.stop()


def _settings(
    cluster: Cluster, plan: Plan, directory: Path, executors: int, queue: str = ""
) -> dict[str, str]:
    events = directory / "events"
    events.mkdir(parents=True, exist_ok=True)
    return {
        **({"spark.hrm.queue": queue} if queue else {}),
        **cluster.submit_settings(),
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors * plan.slots),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    }


def _submit_stream(
    arm: Arm, cluster: Cluster, inputs: Inputs, plan: Plan, directory: Path, watched: Path
) -> Submission:
    where = directory / "stream"
    most = plan.stream_executors_max
    settings = _settings(cluster, plan, where, most, STREAM_QUEUE if arm.queues else "")
    settings["spark.executor.instances"] = "1"
    file_bytes = inputs.stream[0].stat().st_size
    settings |= paced_settings(inputs.jar, round(file_bytes / plan.file_s), 2 * file_bytes)
    arguments: list[object] = [
        "--input", paced(watched), "--rows-per-file", plan.rows_per_file, "--slots", plan.slots,
        "--executors-max", most, "--trigger-s", plan.trigger_s, "--k", TOP,
        "--ready", directory / "ready", "--steady", directory / "steady",
        "--stop", directory / "stop",
        "--timeout", _READY_LIMIT_S + plan.window_s + plan.makespan_limit_s + _END_LIMIT_S,
        "--checkpoint", where / "checkpoint",
    ]  # fmt: skip
    return cluster.submit(_APP, arguments, where, settings)


def run_arm(arm: Arm, pool: Pool, inputs: Inputs, plan: Plan, directory: Path) -> Run:
    """One run, from an empty pool to an empty pool.

    Raises:
        BenchmarkError: an application failed, or a limit was exceeded.
    """
    watched = directory / "watched"
    watched.mkdir(parents=True)
    stream = _submit_stream(arm, pool.stream, inputs, plan, directory, watched)
    queues = BATCH_QUEUES if arm.queues else ("",)
    backlog = _Backlog(pool.batch, inputs, plan, directory, queues)
    feed = Feed(plan, inputs.stream, watched)
    try:
        _wait_for(stream, (directory / "ready").exists, _READY_LIMIT_S, "the stream to begin")
        feed.start()
        steady = directory / "steady"
        _wait_for(
            stream, steady.exists, _STEADY_LIMIT_S, "the stream to keep up with its base load"
        )
        with _turning(backlog if arm.batch else None):
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
                _pass(_POLL_S, stream, backlog, arm)
        (directory / "stop").write_text(str(feed.end()))
        result = stream.result(_END_LIMIT_S)
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
    _await_empty(pool)
    return run


@contextlib.contextmanager
def _turning(backlog: _Backlog | None) -> Iterator[None]:
    if backlog is None:
        yield
        return
    backlog.turn()
    try:
        yield
    finally:
        backlog.stop()


def _pass(
    seconds: float, stream: Submission, backlog: _Backlog, arm: Arm, used: MachineUse | None = None
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
        time.sleep(min(_POLL_S, max(0.0, deadline - now())))
    if used is not None:
        used.sample()
    return time.time()


def _wait_for(stream: Submission, condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """As ``wait_until``, while the stream runs."""

    def holds() -> bool:
        if not stream.running:
            stream.result(1.0)
        return condition()

    wait_until(holds, limit_s, what)


def _measured(
    arm: Arm, plan: Plan, directory: Path, window: tuple[float, float],
    batches: Sequence[MicroBatch], delivered_s: Sequence[float], backlog: _Backlog,
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


def _await_empty(pool: Pool) -> None:
    """Until no executor of it runs: each does so in a directory of its cluster's."""
    places = [cluster.directory.resolve() for cluster in pool.clusters]

    def empty() -> bool:
        for process in psutil.process_iter(["cmdline"]):
            if "--executor-id" in (process.info["cmdline"] or []):
                with contextlib.suppress(psutil.Error, OSError):
                    if any(Path(process.cwd()).is_relative_to(place) for place in places):
                        return False
        return True

    wait_until(empty, _END_LIMIT_S, "the executors of the last run to end", 0.5)
