"""The paper's set-up on a real master: 1,050 emulated nodes, real gRPC, real time.

Every system gets a master of its own (the production command, its own store), one at a time;
systems take turns, every second round backwards. Two experiments:

``bursts``
    Jobs at once, as in figure 6, every size on one master after an uncounted warm-up. Containers
    run for ``HOLD_S`` and end; jobs have attached before the burst, so the clock measures only
    requests and what follows from them.
``mixed``
    Streams among batch jobs, drawn as in virtual time, with each scope that the master offers for
    a stream's lease. Some schedulers are processes: a lease is held while one of them chooses and
    sends its claims. It blocks no scheduler inside the master, whose rounds are not interrupted.

What differs from the paper, and its effect on the numbers: master, schedulers, nodes and
applications share this machine's cores. Parallel schedulers can only be faster where there are
cores for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import common
from benchmarks.emulated import Agents, Application, run
from benchmarks.processes import BenchmarkError
from benchmarks.scheduling.daemon import Master, running
from benchmarks.simulation.figures import JobTimes, RunResult, summary
from benchmarks.simulation.workload import JobPlan, burst, mixed
from hrm.v1 import admin_pb2

__all__ = [
    "CENTRALISED",
    "LEASES",
    "LIVE",
    "SYSTEMS",
    "System",
    "run_bursts",
    "run_mixed",
]

NODES = 1_050
JOBS = (60, 120, 180)
WARM_UP_JOBS = 30
WARM_UP_HOLD_S = 0.5
HOLD_S = 4.0
HEARTBEAT_S = 5.0
LIMIT_S = 90.0
SAMPLE_PERIOD_S = 0.2
OPEN_AT_ONCE = 16
CENTRALISED = "centralised"
LIVE = "live"
MIXED_RATE_PER_S = 15.0
MIXED_JOBS = 100
MIXED_HOLD_S = 0.5
STREAMS_PER_S = (5, 20)


@dataclass(frozen=True, slots=True)
class System:
    """Schedulers in the master, and in processes of their own; what a stream's lease locks."""

    inside: int
    processes: int = 0
    lease_scope: str = "global"


SYSTEMS = {
    CENTRALISED: System(1),
    "HRM, 6 in the master": System(6),
    "HRM, 1 + 5 processes": System(1, 5),
}
LEASES = {f"lease {scope}": System(1, 2, scope) for scope in ("global", "candidates")}

_Figures = dict[str, float]
_Measured = list[tuple[float, _Figures]]


def run_bursts(
    systems: Sequence[str],
    runs: int,
    directory: Path,
    *,
    nodes: int = NODES,
    jobs: Sequence[int] = JOBS,
    hold_s: float = HOLD_S,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Rows as ``benchmarks.simulation.run_points`` gives them, by jobs at once. ``seed``: of the
    first run's jobs; each run has the next one.

    Raises:
        BenchmarkError: a process did not start, did not respond in time, or was refused.
    """

    async def bursts(number: int, agents: Agents) -> _Measured:
        warm = burst(min(WARM_UP_JOBS, *jobs), 0, run_s=WARM_UP_HOLD_S)
        await _play(agents, "warm-up", warm)
        # Later bursts have a longer history, so every second run takes them in reverse order.
        sizes = jobs if number % 2 == 0 else tuple(reversed(jobs))
        return [
            (size, await _play(agents, f"burst-{size}", burst(size, seed + number, run_s=hold_s)))
            for size in sizes
        ]

    every = {name: SYSTEMS[name] for name in systems}
    return _rows(
        every, runs, directory, functools.partial(_cluster, nodes=nodes), bursts, on_progress
    )


def run_mixed(
    leases: Sequence[str],
    runs: int,
    directory: Path,
    *,
    nodes: int = NODES,
    jobs: int = MIXED_JOBS,
    streams_per_s: Sequence[float] = STREAMS_PER_S,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """The same by streams per second, for which a tenth of the nodes has capacity; see
    ``run_bursts``."""

    async def rates(number: int, agents: Agents) -> _Measured:
        def plans(count: int, rate: float, seed_of: int) -> list[JobPlan]:
            return mixed(MIXED_RATE_PER_S, count, rate, seed_of, run_s=MIXED_HOLD_S)

        await _play(agents, "warm-up", plans(min(WARM_UP_JOBS, jobs), streams_per_s[-1], 0))
        order = streams_per_s if number % 2 == 0 else tuple(reversed(streams_per_s))
        return [
            (rate, await _play(agents, f"streams-{rate}", plans(jobs, rate, seed + number)))
            for rate in order
        ]

    every = {name: LEASES[name] for name in leases}
    cluster = functools.partial(_cluster, nodes=nodes, large=nodes // 10)
    return _rows(every, runs, directory, cluster, rates, on_progress)


def _rows(
    systems: dict[str, System],
    runs: int,
    directory: Path,
    cluster: Callable[..., contextlib.AbstractAsyncContextManager[Agents]],
    measure: Callable[[int, Agents], Awaitable[_Measured]],
    on_progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    found: dict[tuple[float, str], list[_Figures]] = {}
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # masters end as expected

    async def one(number: int, name: str) -> None:
        where = directory / f"{number}-{list(systems).index(name)}"
        async with cluster(systems[name], where) as agents:
            for x, figures in await measure(number, agents):
                found.setdefault((x, name), []).append(figures)
                delay_ms = figures["delay_ms"]
                on_progress(f"live run {number + 1} of {runs}, {name}, {x:g}: {delay_ms:.0f} ms")

    for number, name in common.interleaved(list(systems), runs):
        try:
            run(one(number, name))
        except TimeoutError:
            raise BenchmarkError(
                f"{name}: not everything was placed and over within {LIMIT_S:.0f} s; the machine "
                f"may be too busy"
            ) from None
    return [
        {
            "system": name,
            "charging": LIVE,
            "x": x,
            "figures": {key: each.as_json() for key, each in summary(values).items()},
            "runs": {key: [one_of[key] for one_of in values] for key in values[0]},
        }
        for x in sorted({x for x, _ in found})
        for name in systems
        for values in (found[x, name],)
    ]


@contextlib.asynccontextmanager
async def _cluster(
    system: System, directory: Path, *, nodes: int, large: int = 0
) -> AsyncIterator[Agents]:
    """A master with its schedulers and all of its nodes, until the context ends."""
    settings = {"HRM_MASTER_LEASE_SCOPE": system.lease_scope}
    master = Master(
        directory, nodes, system.inside, heartbeat_interval_s=HEARTBEAT_S, settings=settings
    )
    with running(master):
        adding = (asyncio.to_thread(master.add_scheduler, x) for x in range(system.processes))
        await asyncio.gather(*adding)
        agents = Agents(master.target, master.token, nodes, None, large=large)
        try:
            await agents.start(HEARTBEAT_S, LIMIT_S)
            yield agents
        finally:
            await agents.close()


async def _play(agents: Agents, name: str, plans: Sequence[JobPlan]) -> _Figures:
    """Let every job of the plans request in time, run and end; returns what was measured."""
    jobs = [
        Application(
            agents, f"{name}-{number}", plan.workload_class, resources=plan.resources, follow=True
        )
        for number, plan in enumerate(plans)
    ]
    agents.hold_s = plans[0].run_s
    async with asyncio.timeout(LIMIT_S):
        for first in range(0, len(jobs), OPEN_AT_ONCE):
            await asyncio.gather(*(job.open() for job in jobs[first : first + OPEN_AT_ONCE]))
        before = await agents.cluster()
        with _no_garbage_collection():
            begun_s = time.perf_counter()
            placing = [
                asyncio.create_task(_ask(job, plan, begun_s))
                for job, plan in zip(jobs, plans, strict=True)
            ]
            samples = await _watch(agents, placing)
            placed_s = [await each for each in placing]
            await asyncio.gather(*(job.ran() for job in jobs))
        after = await agents.cluster()
        await asyncio.gather(*(job.finish() for job in jobs))
    times = [_times(job, plan) for job, plan in zip(jobs, plans, strict=True)]
    makespan_s = max(placed_s) - begun_s
    loads = {
        "scheduler_queue": fmean(sample.jobs for sample in samples),
        "scheduler_queue_max": float(max(sample.jobs for sample in samples)),
        "call_ms": 1e3 * fmean(sample.took_s for sample in samples),
        "makespan_ms": 1e3 * makespan_s,
        "containers_per_s": sum(plan.containers for plan in plans) / makespan_s,
    }
    return RunResult(times, _counts(before, after), loads).values()


async def _ask(job: Application, plan: JobPlan, begun_s: float) -> float:
    """Make one job's request in its time; returns when the last of its containers was placed."""
    await asyncio.sleep(begun_s + plan.at_s - time.perf_counter())
    await job.ask(plan.containers, plan.run_s)
    return time.perf_counter()


def _times(job: Application, plan: JobPlan) -> JobTimes:
    """As in virtual time, but from the time of the request."""
    granted_s = {str(number): delay_s for number, delay_s in enumerate(job.delays_s)}
    notified_s = dict.fromkeys(granted_s, job.last_report_s)
    return JobTimes(plan.workload_class, 0.0, granted_s, notified_s, job.completion_s)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The master's reply ``took_s`` after the request: how many jobs its schedulers have."""

    took_s: float
    jobs: int


async def _watch(agents: Agents, placing: Sequence[asyncio.Task[float]]) -> list[_Sample]:
    """Samples the master until nothing is being placed, at least once; rarely, because each sample
    costs it some milliseconds."""
    samples: list[_Sample] = []
    left: Collection[asyncio.Task[float]] = placing
    while left:
        asked_s = time.perf_counter()
        cluster = await agents.cluster()
        jobs = sum(scheduler.queued_jobs for scheduler in cluster.schedulers)
        samples.append(_Sample(time.perf_counter() - asked_s, jobs))
        _, left = await asyncio.wait(left, timeout=SAMPLE_PERIOD_S)
    return samples


def _counts(before: admin_pb2.Cluster, after: admin_pb2.Cluster) -> dict[str, int]:
    """What the master has counted between two samples."""

    def since(name: str) -> int:
        first, last = (
            sum(getattr(scheduler, name) for scheduler in cluster.schedulers)
            for cluster in (before, after)
        )
        return int(last - first)

    return {
        "rounds": since("rounds"),
        "retries": since("retries"),
        "queued": after.claims_queued - before.claims_queued,
        "aborted": after.claims_aborted - before.claims_aborted,
    }


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The generator's heap must not affect the master's times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
