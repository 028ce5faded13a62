"""Runs one arm: the stream, the Spark jobs and the pipeline tasks at once, or the stream alone.

All arms use one cluster, one after another, each from an empty pool to an empty pool. In halves the
same applications and tasks name the label of their half. A run begins, with the window in which the
stream's load rises and falls, when the first jobs and all tasks of class batch are submitted, once
the stream keeps up with its base load.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.clusters import Submission
from benchmarks.one_pool.chaos import Chaos, Death
from benchmarks.one_pool.cluster import Labelled
from benchmarks.one_pool.measures import (
    Held,
    Span,
    covered_s,
    held_part,
    overlap_s,
    stage_waits,
    task_spans,
    union,
)
from benchmarks.one_pool.plan import PIPELINE_LABEL, SPARK_LABEL, Arm, Plan, work_list
from benchmarks.one_pool.tasks import Ended, TaskFlow
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
from hrm.pipelines import Client

__all__ = ["Run", "figures", "run_arm"]

_SAMPLE_S = 1.0
_PATIENCE_S = 120.0


@dataclass(slots=True, kw_only=True)
class Run:
    """What one run gave. Seconds; slot seconds are those of Spark tasks that succeeded and steps.

    ``makespan_s``: from the submission to the end of the last job and the last task; None: they
    have not all ended. ``spark_slot_s``, ``pipeline_slot_s``: used in that time. ``backlog_s``: for
    so long work waited for a slot, ``backlog_slot_s``: slot seconds used meanwhile.
    ``durations_s``: micro-batches that began in the window, ``late``: longer than their trigger's
    interval. ``response_p50_s``, ``response_p95_s``: of tasks by class, "batch" and "stream".
    ``machine_busy``: part of the machine's processor time. ``held_part``: part of the cores that
    containers held while one that had been requested waited; None: none did.
    """

    arm: str
    makespan_s: float | None = None
    spark_slot_s: float = 0.0
    pipeline_slot_s: float = 0.0
    backlog_s: float = 0.0
    backlog_slot_s: float = 0.0
    jobs_s: list[float] = field(default_factory=list)
    tasks_s: float | None = None
    durations_s: list[float] = field(default_factory=list)
    late: int = 0
    response_p50_s: dict[str, float] = field(default_factory=dict)
    response_p95_s: dict[str, float] = field(default_factory=dict)
    tasks: int = 0
    wrong: int = 0
    failed: int = 0
    lost: int = 0
    twice: int = 0
    again: int = 0
    preempted: dict[str, int] = field(default_factory=dict)
    machine_busy: float = 0.0
    held_part: float | None = None
    cpu_by_role_s: dict[str, float] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def slot_s(self) -> float:
        return self.spark_slot_s + self.pipeline_slot_s

    def utilisation(self, capacity: int) -> float | None:
        """Part of all slots that was used until the end of the last job and task."""
        return self.slot_s / self.makespan_s / capacity if self.makespan_s else None

    def backlog_utilisation(self, capacity: int) -> float | None:
        """The same while work waited for a slot."""
        return self.backlog_slot_s / self.backlog_s / capacity if self.backlog_s else None


@dataclass(slots=True)
class _Running:
    """What has been submitted. ``flow``, ``chaos`` None: the arm has none."""

    arm: Arm
    plan: Plan
    stream: Submission
    backlog: Backlog
    flow: TaskFlow | None
    chaos: Chaos | None
    used: MachineUse
    begin_s: float
    limit_s: float
    _sample_at_s: float = 0.0

    @property
    def passed_s(self) -> float:
        return time.time() - self.begin_s

    def is_over(self) -> bool:
        if self.passed_s < self.plan.offer.window_s:
            return False
        if self.flow is None or self.passed_s >= self.limit_s:
            return True
        chaos_over = self.chaos is None or self.chaos.is_over
        return self.flow.is_over and self.backlog.is_over and chaos_over

    def turn(self) -> None:
        if not self.stream.running:
            self.stream.result(1.0)
            raise BenchmarkError("the stream ended before the work")
        if now() >= self._sample_at_s:
            self._sample_at_s = now() + _SAMPLE_S
            self.used.sample()
        if self.flow is not None:
            self.backlog.turn()
            self.flow.turn(self.passed_s)
            if self.chaos is not None:
                self.chaos.turn(self.flow.ended / self.plan.tasks)
        time.sleep(POLL_S)


def run_arm(
    arm: Arm, cluster: Labelled, inputs: Inputs, text: Path, plan: Plan, directory: Path
) -> Run:
    """One run; ``text``: of the pipeline tasks' blocks.

    Raises:
        BenchmarkError: the stream failed, a daemon could not be killed, or a limit was exceeded.
    """
    offer, watched = plan.offer, directory / "watched"
    watched.mkdir(parents=True)
    on_half = {"spark.hrm.node.label": SPARK_LABEL} if arm.halves else {}
    stream = submit_stream(cluster, inputs, offer, directory, watched, more=on_half)
    backlog = Backlog(cluster, inputs, offer, directory, jobs_max=plan.jobs, more=on_half)
    feed = Feed(offer, inputs.stream, watched)
    try:
        begin_stream(stream, feed, directory)
        with contextlib.ExitStack() as ending:
            flow = _flow(arm, cluster, plan, text, directory, ending)
            ending.enter_context(kept_up(backlog if arm.works else None))
            feed.begin_window()
            begin_s = backlog.begun_s or time.time()
            chaos = None
            if arm.chaos:
                chaos = Chaos(plan, cluster.daemons, lambda: time.time() - begin_s)
                ending.callback(chaos.finish)
            running = _Running(
                *(arm, plan, stream, backlog, flow, chaos),
                MachineUse({cluster.mark}, stream.process.process.pid, directory),
                begin_s=begin_s,
                limit_s=plan.limit_s,
            )
            while not running.is_over():
                running.turn()
            running.used.sample()
            end_s = time.time()
            tasks = [] if flow is None else flow.results(cluster.daemons.log("master"))
        (directory / "stop").write_text(str(feed.end()))
        result = stream.result(END_LIMIT_S)
    finally:
        feed.end()
        stream.stop()
    run = _measured(running, tasks, directory)
    _add_stream(run, result, inputs, plan, (running.begin_s, feed))
    run.machine_busy = running.used.total_s / (end_s - running.begin_s) / (psutil.cpu_count() or 1)
    run.cpu_by_role_s = dict(running.used.by_role())
    if not arm.chaos:
        run.preempted = _preempted(cluster, running.begin_s, end_s)
        last_s = running.begin_s + (run.makespan_s or end_s - running.begin_s)
        run.held_part = held_part(
            _containers(cluster, running.begin_s), (running.begin_s, last_s), plan.capacity
        )
    await_empty([cluster])
    return run


def _flow(
    arm: Arm, cluster: Labelled, plan: Plan, text: Path, directory: Path,
    ending: contextlib.ExitStack,
) -> TaskFlow | None:  # fmt: skip
    if not arm.works:
        return None
    client = ending.enter_context(
        Client(
            cluster.master.removeprefix("hrm://"),
            token_path=cluster.token_file,
            patience_s=_PATIENCE_S,
            node_labels=[PIPELINE_LABEL] if arm.halves else (),
        )
    )
    works = work_list(plan, text.stat().st_size)
    flow = TaskFlow(client, works, plan, text, directory / "marks")
    ending.callback(flow.stop)
    return flow


def _measured(running: _Running, tasks: Sequence[Ended], directory: Path) -> Run:
    backlog, begin_s = running.backlog, running.begin_s
    run = Run(arm=running.arm.name, complaints=list(backlog.complaints))
    if running.flow is None:
        return run
    if running.chaos is not None:
        run.deaths = running.chaos.deaths
        if not running.chaos.is_over:
            run.complaints.append("not every daemon was killed and started again in time")
    ends_s = [at_s for _, at_s in backlog.ended]
    run.jobs_s = [at_s - begin_s for at_s in ends_s]
    if not backlog.is_over:
        missing = running.plan.jobs - len(ends_s)
        run.complaints.append(f"{missing} Spark jobs have not ended within the limit")
    places = [backlog.place(number) / "events" for number in range(backlog.submitted)]
    of_spark = [
        span
        for place in (*places, directory / "stream" / "events")
        for span in task_spans(measures.read_tasks(place))
    ]
    waits = [span for place in places for span in stage_waits(place)]
    _add_tasks(run, tasks, begin_s)
    figures(run, begin_s, ends_s, of_spark, waits, tasks)
    if not backlog.is_over:
        run.makespan_s = None
    return run


def figures(
    run: Run, begin_s: float, job_ends_s: Sequence[float], of_spark: Sequence[Span],
    stage_waits: Sequence[Span], tasks: Sequence[Ended],
) -> None:  # fmt: skip
    """Add makespan and use of slots to ``run``. ``of_spark``: tasks, the stream's among them;
    ``stage_waits``: of the jobs, when some of their tasks waited."""
    ends_s = [task.ended_s for task in tasks if task.ended_s is not None]
    last_s = max([*job_ends_s, *ends_s], default=begin_s)
    if len(ends_s) == len(tasks):
        run.makespan_s = last_s - begin_s
        run.tasks_s = max(ends_s, default=begin_s) - begin_s
    steps = [step for task in tasks for step in task.steps]
    whole = (begin_s, last_s)
    run.spark_slot_s = covered_s(of_spark, whole)
    run.pipeline_slot_s = covered_s(steps, whole)
    queued = [(task.submitted_s, task.steps[0][0]) for task in tasks if task.steps]
    backlog = union([*stage_waits, *queued])
    run.backlog_s = overlap_s(backlog, [whole])
    inside = [(max(a, begin_s), min(b, last_s)) for a, b in backlog if b > begin_s]
    run.backlog_slot_s = overlap_s([*of_spark, *steps], inside)


def _add_tasks(run: Run, tasks: Sequence[Ended], begin_s: float) -> None:
    def count(is_so: Callable[[Ended], bool]) -> int:
        return sum(is_so(task) for task in tasks)

    run.tasks = len(tasks)
    run.wrong = count(lambda task: task.is_wrong)
    run.failed = count(lambda task: task.is_failed)
    run.lost = count(lambda task: task.is_lost)
    run.twice = count(lambda task: task.is_twice)
    run.again = count(lambda task: task.attempt > 1 or task.runs > 1)
    run.complaints += [text for task in tasks if (text := task.complaint())]
    for name, is_stream in (("batch", False), ("stream", True)):
        responses_s = [
            task.ended_s - task.submitted_s
            for task in tasks
            if task.ended_s is not None and task.is_stream is is_stream
        ]
        if responses_s:
            run.response_p50_s[name] = percentile(responses_s, 0.5)
            run.response_p95_s[name] = percentile(responses_s, 0.95)


def _add_stream(
    run: Run, result: dict[str, object], inputs: Inputs, plan: Plan, begun: tuple[float, Feed]
) -> None:
    begin_s, feed = begun
    batches = measures.micro_batches(result, plan.offer.rows_per_file)
    end_s = begin_s + plan.offer.window_s
    inside = [batch for batch in batches if begin_s <= batch.begun_s < end_s]
    run.durations_s = [batch.seconds for batch in inside]
    run.late = sum(batch.seconds > plan.offer.trigger_s for batch in inside)
    found = measures.stream_complaints(batches, inputs.stream_expected, len(feed.delivered_s))
    run.complaints += [f"stream: {text}" for text in found]


def _containers(cluster: Labelled, since_s: float) -> Iterator[Held]:
    """All of this run, the stream's among them."""
    for app in cluster.applications():
        if app.get("ended_at_s") and app["ended_at_s"] < since_s:
            continue
        for each in cluster.containers(app["application_id"]):
            yield Held(
                vcores=int(each["resources"]["vcores"]),
                requested_s=each["requested_at_s"],
                started_s=each.get("started_at_s") or None,
                ended_s=each.get("ended_at_s") or None,
            )


def _preempted(cluster: Labelled, begin_s: float, end_s: float) -> dict[str, int]:
    """Containers that HRM ended for others, by kind."""
    found: dict[str, int] = {}
    for event in cluster.events("container", time.time() - begin_s):
        if event["cause"] == "preempted" and begin_s <= event["at_s"] < end_s:
            is_worker = event["application_id"].startswith("pipelines-")
            kind = "workers" if is_worker else "executors"
            found[kind] = found.get(kind, 0) + 1
    return found
