"""Runs tenants alone on a platform, and all of them together under one division.

Alone, a tenant has as many executors as its part of both nodes, all on one platform: what it could
ideally have is the faster of the two. Together all begin with an empty table of run times. Each
tenant first repeats small jobs on half of its part of either platform, where labels put it: what
has never run somewhere is only guessed, and nothing in HRM tries it. Then come the applications
that count, without labels; they repeat small jobs until shares have found their platforms.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.clusters import Submission
from benchmarks.platforms.cluster import UnlikeNodes
from benchmarks.platforms.inputs import Inputs, Work
from benchmarks.platforms.plan import FAST, SLOW, Division, Plan, Tenant
from benchmarks.processes import BenchmarkError, wait_until
from benchmarks.sharing.store import paced_settings

__all__ = ["Alone", "TenantRun", "Together", "run_alone", "run_together"]

_APP = Path(__file__).resolve().parent.parent / "apps" / "tenant.py"
_READY_LIMIT_S = 240.0
_END_LIMIT_S = 900.0
_POLL_S = 0.2
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class PlatformTasks:
    """Of the jobs that count: tasks on a platform, and their mean run time in seconds."""

    tasks: int
    mean_s: float


@dataclass(slots=True, kw_only=True)
class TenantRun:
    """What one tenant did in one run: when its jobs that count began and ended, in seconds since
    the epoch, and where their tasks ran."""

    tenant: str
    begun_s: float
    ended_s: float
    tasks: int
    by_platform: dict[str, PlatformTasks]
    complaints: list[str]

    @property
    def tasks_per_s(self) -> float:
        return self.tasks / (self.ended_s - self.begun_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A tenant alone on a platform with ``executors``; ``machine_busy``: part of the machine's
    processor time that was used."""

    platform: str
    executors: int
    run: TenantRun
    machine_busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """``preempted``: executors that ended for a division, before the jobs that count and in
    them."""

    arm: str
    runs: list[TenantRun]
    preempted: tuple[int, int]
    machine_busy: float

    @property
    def makespan_s(self) -> float:
        """From the first job that counts to the end of the last."""
        return max(x.ended_s for x in self.runs) - min(x.begun_s for x in self.runs)


@dataclass(slots=True)
class _Started:
    tenant: Tenant
    submission: Submission
    directory: Path

    @property
    def ready(self) -> bool:
        return (self.directory / "ready").exists()


def _submit(
    cluster: UnlikeNodes, plan: Plan, inputs: Inputs, tenant: Tenant, directory: Path,
    *, jobs: int, executors: int, platform: str | None,
) -> _Started:  # fmt: skip
    events = directory / "events"
    events.mkdir(parents=True)
    rate = round(plan.file_bytes / tenant.wait_s)
    settings = {
        **cluster.submit_settings(),
        **paced_settings(inputs.jar, rate, plan.file_bytes),
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        "spark.hrm.queue": tenant.queue,
    }
    if platform is not None:
        settings["spark.hrm.node.label"] = f"speed={platform}"
    arguments: list[object] = [
        "--name", tenant.name, "--input", inputs.jobs[tenant.name].name,
        "--warm-up", inputs.warm_up[tenant.name].name, "--executors", executors, "--jobs", jobs,
        "--ready", directory / "ready", "--go", directory.parent / "go",
        "--measure", directory.parent / "measure",
    ]  # fmt: skip
    return _Started(tenant, cluster.submit(_APP, arguments, directory, settings), directory)


def _run(
    cluster: UnlikeNodes, started: Sequence[_Started], warm_up_s: float
) -> tuple[list[dict[str, Any]], float, float]:
    """Let all begin at once, and their jobs that count after ``warm_up_s``: what each has printed,
    when these jobs could begin, and how busy the machine was since."""
    where = started[0].directory.parent

    def all_ready() -> bool:
        for each in started:
            if not each.submission.running:
                each.submission.result(1.0)
        return all(each.ready for each in started)

    wait_until(all_ready, _READY_LIMIT_S, "all tenants to have their executors", _POLL_S)
    cluster.throttle.limit_all()
    (where / "go").touch()
    _pass(started, warm_up_s)
    (where / "measure").touch()
    measured_s, before_s = time.time(), _machine_s()
    while any(each.submission.running for each in started):
        if time.time() - measured_s > _END_LIMIT_S:
            raise BenchmarkError(f"tenants ran past the limit of {_END_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)
    busy = (_machine_s() - before_s) / (time.time() - measured_s) / (psutil.cpu_count() or 1)
    return [each.submission.result(1.0) for each in started], measured_s, busy


def _pass(started: Sequence[_Started], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for each in started:
            if not each.submission.running:
                each.submission.result(1.0)
        time.sleep(_POLL_S)


def _machine_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _measured(
    cluster: UnlikeNodes, each: _Started, result: dict[str, Any], work: Work
) -> TenantRun:
    jobs = result["jobs"]
    begun_s, ended_s = jobs[0]["begun_s"], jobs[-1]["ended_s"]
    wrong = [
        f"{each.tenant.name}: a job of {job['tasks']} tasks computed {job['sum']}, not "
        f"{work.expected}"
        for job in jobs
        if (job["tasks"], job["sum"]) != (work.tasks, work.expected)
    ]
    return TenantRun(
        tenant=each.tenant.name,
        begun_s=begun_s,
        ended_s=ended_s,
        tasks=sum(job["tasks"] for job in jobs),
        by_platform=_by_platform(cluster, each.directory / "events", begun_s),
        complaints=wrong,
    )


def _by_platform(cluster: UnlikeNodes, events: Path, begun_s: float) -> dict[str, PlatformTasks]:
    """From the application's event log: its tasks that were launched since then."""
    times: dict[str, list[float]] = {}
    for path in sorted(p for p in events.iterdir() if p.is_file() and p.suffix != ".crc"):
        platforms = cluster.platforms_of(path.name.split(".")[0])
        with path.open() as lines:
            for line in lines:
                if line.startswith('{"Event":"SparkListenerTaskEnd"'):
                    info = json.loads(line)["Task Info"]
                    if info["Launch Time"] / 1000 >= begun_s - 0.001 and not info["Failed"]:
                        platform = platforms.get(info["Executor ID"], "unknown")
                        taken_s = (info["Finish Time"] - info["Launch Time"]) / 1000
                        times.setdefault(platform, []).append(taken_s)
    return {
        platform: PlatformTasks(len(each), round(sum(each) / len(each), 4))
        for platform, each in sorted(times.items())
    }


def run_alone(
    cluster: UnlikeNodes, plan: Plan, inputs: Inputs, tenant: Tenant, platform: str,
    directory: Path, executors: int | None = None,
) -> Alone:  # fmt: skip
    """One tenant on one platform, with its part of all slots unless another number is given.

    Raises:
        BenchmarkError: the application failed, or a limit was exceeded.
    """
    count = plan.executors if executors is None else executors
    started = _submit(
        cluster, plan, inputs, tenant, directory / tenant.name,
        jobs=plan.solo_jobs, executors=count, platform=platform,
    )  # fmt: skip
    with _ending([started]):
        (result,), _, busy = _run(cluster, [started], plan.solo_warm_up_s)
    run = _measured(cluster, started, result, inputs.jobs[tenant.name])
    return Alone(platform=platform, executors=count, run=run, machine_busy=round(busy, 4))


def run_together(
    arm: str, division: Division | None, plan: Plan, inputs: Inputs, directory: Path
) -> Together:
    """All tenants on a cluster of their own, from an empty one to an empty one.

    Raises:
        BenchmarkError: an application failed, or a limit was exceeded.
    """
    with UnlikeNodes(plan, directory / "cluster", division) as cluster:
        begun_s = time.time()
        learning = [
            _submit(
                cluster, plan, inputs, tenant, directory / "warm-up" / f"{tenant.name}-{platform}",
                jobs=0, executors=plan.executors // 2, platform=platform,
            )
            for tenant in plan.tenants
            for platform in (FAST, SLOW)
        ]  # fmt: skip
        with _ending(learning):
            _run(cluster, learning, plan.warm_up_s)
        started = [
            _submit(
                cluster, plan, inputs, tenant, directory / tenant.name,
                jobs=plan.jobs, executors=plan.executors, platform=None,
            )
            for tenant in plan.tenants
        ]  # fmt: skip
        with _ending(started):
            results, measured_s, busy = _run(cluster, started, plan.settle_s)
        ends_s = [
            event["at_s"]
            for event in cluster.events("container", time.time() - begun_s)
            if event["cause"] == "preempted"
        ]
        return Together(
            arm=arm,
            runs=[
                _measured(cluster, each, result, inputs.jobs[each.tenant.name])
                for each, result in zip(started, results, strict=True)
            ],
            preempted=(sum(x < measured_s for x in ends_s), sum(x >= measured_s for x in ends_s)),
            machine_busy=round(busy, 4),
        )


@contextlib.contextmanager
def _ending(started: Sequence[_Started]) -> Any:
    try:
        yield
    finally:
        for each in started:
            if each.submission.running:
                each.submission.stop()
