"""The index of a scheduler's backlog states what a look at every job would.

``ScannedBacklog`` is the rule without an index: each job has its time, and everything that happens
looks at all of them. The index is compared with it step by step, and over whole clusters by the
order of their grants.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages.claims import GpuPart, Outcome, Proposal
from hrm.core.scheduling import scheduler as scheduler_module
from hrm.core.scheduling.backlog import Backlog
from hrm.core.scheduling.jobs import Job
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector, fits
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerState,
    EndCause,
    FirstExecutors,
    Gpu,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement, excluding
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.testing import VirtualCluster, unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
DEMANDS: list[Vector] = [(1, 10, 0, 1), (1, 20, 0, 1), (2, 10, 0, 1), (2, 20, 0, 1)]


class ScannedBacklog(Backlog):
    """The same rule, without cohorts."""

    def add(self, job: Job) -> None:
        job.arrival = next(self._arrivals)
        job.own_s = 0.0
        self.jobs[job.application_id] = job

    def remove(self, application_id: ApplicationId) -> None:
        self.jobs.pop(application_id, None)
        self.gpu_jobs.pop(application_id, None)

    def place(self, job: Job, at_s: float | None = None) -> None:
        job.own_s = job.not_before_s if at_s is None else at_s
        if job.gpus:
            self.gpu_jobs[job.application_id] = job

    def declined(self, job: Job, rounds: int) -> None:
        job.gpus_declined = rounds

    def capacity_freed(self) -> None:
        for job in self.jobs.values():
            job.own_s = 0.0
            job.gpus_declined = 0

    def hold_back(self, job: Job, now: float) -> None:
        for other in self.jobs.values():
            if other.delay_s and not other.places and self._wants_no_less(other, job):
                other.own_s = max(other.not_before_s, now + other.delay_s)

    def _wants_no_less(self, other: Job, job: Job) -> bool:
        if other.is_whole != job.is_whole or other.gets_no_gpu != job.gets_no_gpu:
            return False
        if job.gets_no_gpu:
            same = other.requires == job.requires and other.excluded == job.excluded
            return same and other.demands <= job.lacks.keys()
        if job.is_whole:
            if other.group is None or job.group is None or other.demands != job.demands:
                return False
            more = len(job.demands) == 1 and other.group[0] >= job.group[0]
            return (more or other.group == job.group) and all(
                getattr(other, x) == getattr(job, x)
                for x in ("workload_class", "requires", "excluded")
            )
        lacking = [x for x in job.lacks if job.lacks[x] <= other.run_s]
        if job.avoid:
            same = other.requires == job.requires and other.excluded == job.excluded
            return same and other.demands <= set(lacking)
        if job.requires not in (None, other.requires):
            return False
        return all(any(fits(x, one) for x in lacking) for one in other.demands)

    def next_job(self, now: float) -> Job | None:
        ready = [job for job in self._candidates() if job.not_before_s <= now]
        return min(ready, key=lambda job: job.workload_class is BATCH, default=None)

    def has_stream(self, now: float) -> bool:
        job = self.next_job(now)
        return job is not None and job.workload_class is STREAM

    def next_time_s(self) -> float | None:
        return min((job.not_before_s for job in self._candidates()), default=None)

    def violations(self) -> list[str]:
        return []

    def _candidates(self) -> list[Job]:
        jobs = list(self.jobs.values())
        if self.in_order and jobs:
            return [min(jobs, key=lambda job: job.workload_class is BATCH)]
        return jobs


STEPS = st.tuples(
    st.sampled_from(
        [
            "add",
            "add",
            "remove",
            "round",
            "round",
            "round",
            "free",
            "ask",
            "class",
            "gang",
            "more",
            "place",
            "require",
            "exclude",
            "gpu",
        ]
    ),
    st.integers(0, 11),
    st.sampled_from(DEMANDS),
    st.sampled_from([0.0, 0.05, 0.1, 0.2]),
    st.sampled_from([-0.03, 0.0, 0.01, 0.05, 0.3]),
)


class Pair:
    """One history, told to the index and to the rule without one."""

    def __init__(self, *, in_order: bool) -> None:
        self.both = Backlog(in_order=in_order), ScannedBacklog(in_order=in_order)
        self.in_order = in_order
        self.now = 10.0

    def step(self, what: str, number: int, demand: Vector, delay_s: float) -> None:
        application_id = ApplicationId(f"app-{number}")
        for backlog in self.both:
            job = backlog.jobs.get(application_id)
            if what == "free":
                backlog.capacity_freed()
            elif what == "round":
                self.round_in_vain(backlog, hold=number % 4 > 0 and not self.in_order)
            elif job is None:
                if what == "add":
                    job = Job(application_id, STREAM if number % 5 == 0 else BATCH)
                    backlog.add(job)
                    job.demands.add(demand)
                    backlog.place(job)
            elif what == "remove":
                backlog.remove(application_id)
            else:
                self.change(backlog, job, what, demand, delay_s)

    def change(self, backlog: Backlog, job: Job, what: str, demand: Vector, delay_s: float) -> None:
        if what == "class":
            job.workload_class = STREAM if job.workload_class is BATCH else BATCH
            job.group = None
            backlog.place(job, self.now)
        elif what == "gang":
            job.gang = 0 if job.gang == 4 else job.gang + 2
            job.group = None
            backlog.place(job)
        elif what == "exclude":
            nodes = frozenset({NodeName("n1")}) if delay_s else frozenset()
            job.avoid = nodes if delay_s < 0.2 else frozenset()
            job.excluded = nodes
            backlog.place(job)
        elif what == "gpu":
            job.gpus = True
            part = GpuPart(int(delay_s == 0.2), 0)
            job.gpu_parts = dict.fromkeys(job.demands, part) if delay_s else {}
            backlog.place(job)
        elif what == "more":
            job.demands.add(demand)
            job.run_s = min(job.run_s, 10.0 + delay_s)
            backlog.place(job, min(job.not_before_s, self.now))
        elif what == "place":
            job.places = True
            backlog.place(job)
        elif what == "require":
            labels = frozenset({f"speed={delay_s}"}) if delay_s else frozenset()
            job.requires = excluding(NodeRequirement(labels=labels), frozenset())
            backlog.place(job)
        elif what == "ask":
            job.delay_s = delay_s
            backlog.place(job, self.now + delay_s)

    def round_in_vain(self, backlog: Backlog, *, hold: bool) -> None:
        job = backlog.next_job(self.now)
        if job is None:
            return
        job.delay_s = min(max(2 * job.delay_s, 0.05), 0.4)
        backlog.place(job, self.now + job.delay_s)
        if hold and not job.places and job.gpus == job.gets_no_gpu:
            if job.is_whole:
                job.group = (job.gang, frozenset(), frozenset())
                backlog.place(job)
            job.lacks = dict.fromkeys(job.demands, job.run_s)
            backlog.hold_back(job, self.now)

    def compare(self) -> None:
        indexed, scanned = self.both
        assert list(indexed.jobs) == list(scanned.jobs)
        times = [{x: job.not_before_s for x, job in each.jobs.items()} for each in self.both]
        assert times[0] == times[1]
        assert indexed.next_time_s() == scanned.next_time_s()
        for at_s in (self.now, self.now + 0.06, self.now - 0.02, self.now):
            names = [job and job.application_id for job in (x.next_job(at_s) for x in self.both)]
            assert names[0] == names[1]
            assert indexed.has_stream(at_s) == scanned.has_stream(at_s)
        assert indexed.violations() == []


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEPS, max_size=40), in_order=st.booleans())
def test_the_index_agrees_with_a_look_at_every_job(steps: list[Any], in_order: bool) -> None:
    pair = Pair(in_order=in_order)
    for what, number, demand, delay_s, passed_s in steps:
        pair.now += passed_s
        pair.step(what, number, demand, delay_s)
        pair.compare()


def test_entries_of_jobs_that_are_gone_do_not_pile_up() -> None:
    backlog = Backlog()
    stays = Job(ApplicationId("stays"), BATCH, demands={DEMANDS[0]}, delay_s=0.05)
    backlog.add(stays)
    for number in range(2_000):
        job = Job(ApplicationId(f"app-{number}"), BATCH, demands={DEMANDS[0]}, delay_s=0.05)
        backlog.add(job)
        backlog.place(job, float(number))
        backlog.place(stays, float(number))
        backlog.remove(job.application_id)
    cohort = stays.cohort
    assert cohort is not None
    heaps = (cohort.shared, cohort._due, cohort.times, cohort._upcoming)

    assert sum(len(heap.entries) for heap in heaps) < 200


def grants(schedulers: int, seed: int) -> list[tuple[float, str, str, str]]:
    """Every claim's outcome, in order, in a small cluster under a random load with a backlog."""
    chance = random.Random(seed)
    units = [unit(f"n{x}") for x in range(3)]
    cluster = VirtualCluster(
        units, schedulers=schedulers, run_s=0.7, bounds=Bounds(waiting_limit=1)
    )
    negotiator = cluster.master.placement.negotiator
    commit = negotiator.commit
    found: list[tuple[float, str, str, str]] = []

    def seen(proposal: Proposal, now: float) -> list[Outcome] | None:
        outcomes = commit(proposal, now)
        for (entry, unit_id, _), decision, _ in outcomes or ():
            found.append((now, entry.container_id, unit_id, decision.name))
        return outcomes

    negotiator.commit = seen  # type: ignore[method-assign]
    for _ in range(30):
        kind = STREAM if chance.random() < 0.1 else BATCH
        size = Resources(chance.randint(1, 3), chance.choice([512, 1_024, 2_048]))
        gang = chance.choice([0, 0, 0, 2])
        app = cluster.submit(chance.randint(1, 5), size, kind, gang_min=gang)
        cluster.advance(chance.choice([0.0, 0.02, 0.1, 0.3]))
        if chance.random() < 0.1:
            cluster.finish(app)
    cluster.advance(6.0)
    return found


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_the_order_of_grants_is_that_of_the_rule_without_an_index(
    schedulers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = grants(schedulers, seed=1)
    monkeypatch.setattr(scheduler_module, "Backlog", ScannedBacklog)
    scanned = grants(schedulers, seed=1)

    assert indexed == scanned
    assert len(indexed) > 40


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_rounds_that_are_spared_would_have_granted_nothing(
    schedulers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = 0
    spare = Scheduler.spare

    def counted(self: Scheduler, job: Job) -> bool:
        nonlocal spared
        found = spare(self, job)
        spared += found
        return found

    monkeypatch.setattr(Scheduler, "spare", counted)
    without = grants(schedulers, seed=2)
    assert spared
    monkeypatch.setattr(Scheduler, "spare", lambda *_: False)

    assert without == grants(schedulers, seed=2)


def executors_that_run(cluster: VirtualCluster, app: ApplicationId) -> list[int]:
    return [
        int(x.request.executor_id)
        for x in cluster.app(app).containers.values()
        if x.state is ContainerState.RUNNING
    ]


def end_all(cluster: VirtualCluster, app: ApplicationId) -> int:
    """All that runs of an application ends; how many did."""
    ended = executors_that_run(cluster, app)
    for executor in ended:
        cluster.end_process(app, executor)
    return len(ended)


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_who_waits_for_cores_holds_up_nobody_who_waits_for_a_gpu(schedulers: int) -> None:
    cluster = VirtualCluster(schedulers=schedulers)
    cores, gpus = tuple(Core(x) for x in range(4)), (Gpu(index=0, memory_mib=16_384),)
    hardware = Hardware(cores=cores, memory_mib=16_384, gpus=gpus)
    cluster.add_hardware("n0", hardware, Partitioning(mode=BindingMode.PARTIAL))
    cluster.submit(3, workload_class=STREAM)  # all cores that no GPU has
    cluster.advance(2.0)
    for _ in range(schedulers):
        cluster.submit(1)
    cluster.advance(5.0)
    of_gpu = cluster.submit(14, Resources(1, 1_024, 16_384))
    cluster.advance(5.0)
    assert cluster.states(of_gpu)["pending"] > 1

    ended = 0
    for _ in range(25):
        ended += end_all(cluster, of_gpu)
        cluster.advance(3.0)

    assert ended == 14


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_who_no_longer_waits_for_little_holds_up_nobody_who_does(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n0")], schedulers=schedulers)
    cluster.submit(2, workload_class=STREAM)  # of four cores; so four are never free
    runs = cluster.submit(2)
    large = [cluster.submit(0) for _ in range(schedulers)]
    for app in large:
        cluster.request(app, [1], Resources(4, 1_024))
        cluster.request(app, [2], expected_duration_s=5_000.0)
    cluster.advance(5.0)
    small = cluster.submit(30)
    cluster.advance(5.0)
    for app in large:
        cluster.release(app, 2)
    cluster.advance(5.0)
    assert cluster.states(small)["pending"] > 1

    ended = 0
    for _ in range(60):
        end_all(cluster, runs)
        ended += end_all(cluster, small)
        cluster.advance(3.0)

    assert ended == 30
    assert [cluster.states(app) for app in large] == [{"pending": 1}] * schedulers


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_long_ones_that_may_wait_nowhere_hold_up_no_short_one(schedulers: int) -> None:
    cluster = VirtualCluster([unit("n0")], schedulers=schedulers, bounds=Bounds(waiting_limit=8))
    for cores in (3, 4):  # the second waits for the end of the first, and leaves a core free
        app = cluster.submit(0)
        cluster.request(app, [1], Resources(cores, 1_024), expected_duration_s=590.0)
        cluster.advance(1.0)
    long = [cluster.submit(0) for _ in range(schedulers)]
    for app in long:
        cluster.request(app, [1, 2], expected_duration_s=4_000.0)
    cluster.advance(5.0)
    short = cluster.submit(0)
    cluster.request(short, range(1, 41), expected_duration_s=2.0)
    cluster.advance(5.0)
    assert cluster.states(short)["pending"] > 8

    ended = 0
    for _ in range(60):
        ended += end_all(cluster, short)
        cluster.advance(2.0)

    assert ended == 40
    assert [cluster.states(app) for app in long] == [{"pending": 2}] * schedulers


@pytest.mark.parametrize("workload_class", [BATCH, STREAM])
@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_what_starts_together_holds_up_nothing_smaller(
    schedulers: int, workload_class: WorkloadClass
) -> None:
    """Neither at its own scheduler nor at others: each has a large one that came before."""
    cluster = VirtualCluster([unit("n0")], schedulers=schedulers, bounds=Bounds(waiting_limit=0))
    cluster.submit(2, workload_class=workload_class)  # of four cores; so four are never free
    ends = cluster.submit(2, workload_class=workload_class)
    cluster.advance(1.0)
    large = [
        cluster.submit(4, workload_class=workload_class, gang_min=4) for _ in range(schedulers)
    ]
    cluster.advance(5.0)
    small = [
        cluster.submit(2, workload_class=workload_class, gang_min=2) for _ in range(2 * schedulers)
    ]
    cluster.advance(5.0)
    for app in (*large, *small):
        assert set(cluster.states(app)) == {"pending"}

    left = list(small)
    while left:
        assert end_all(cluster, ends) == 2
        cluster.advance(0.5)
        (ends,) = (app for app in left if cluster.states(app).get("running") == 2)
        left.remove(ends)

    assert [cluster.states(app) for app in large] == [{"pending": 4}] * schedulers


@pytest.mark.parametrize("schedulers", [1, 2])
def test_what_avoids_a_node_holds_up_nothing_that_only_that_node_could_hold(
    schedulers: int,
) -> None:
    """What no other node could hold goes to an excluded one all the same."""
    bounds = Bounds(waiting_limit=0, node_failures=1, node_failing_applications=99)
    cluster = VirtualCluster([unit("n0"), unit("n1", 2)], schedulers=schedulers, bounds=bounds)
    exclusions = cluster.master.master_state.exclusions
    first = cluster.submit(1, Resources(4, 1_024))
    cluster.advance(1.0)
    cluster.submit(2)
    cluster.advance(1.0)
    small = [cluster.submit(1) for _ in range(schedulers)]
    large = [cluster.submit(1, Resources(3, 1_024)) for _ in range(schedulers)]
    crash = ContainerEnd(cause=EndCause.EXITED, exit_code=1)
    for app in (*small, *large):
        exclusions.failed(app, NodeName("n0"), crash, cluster.now)
    cluster.advance(5.0)
    for app in (*small, *large):
        assert cluster.states(app) == {"pending": 1}

    assert end_all(cluster, first) == 1
    cluster.advance(0.5)

    assert sorted(str(cluster.states(app)) for app in large)[-1] == "{'running': 1}"
    assert [cluster.states(app) for app in small] == [{"pending": 1}] * schedulers


def test_a_driver_waits_where_its_place_is_granted() -> None:
    """A driver has no end: it is backfilled nowhere, however long a container runs by default."""
    cluster = VirtualCluster([unit("n0")], schedulers=1)
    for cores, run_s in ((3, 550.0), (4, 300.0)):
        app = cluster.submit(0)
        cluster.request(app, [1], Resources(cores, 1_024), expected_duration_s=run_s)
        cluster.advance(1.0)
    cluster.add_node(unit("n1", 5))
    app = cluster.submit(0)
    cluster.request(app, [1], Resources(5, 1_024), expected_duration_s=100.0)
    cluster.advance(1.0)
    first = FirstExecutors(count=1, resources=Resources(1, 1_024), stated=False)
    driver = cluster.submit(1, new_id=ApplicationId("driver-1"), first_executors=first)
    cluster.advance(3.0)

    assert cluster.states(driver) == {"waiting": 1}
    assert cluster.container(driver, 1).unit_id == "n1/cpu"


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_who_came_first_gets_what_becomes_free_whoever_schedules(schedulers: int) -> None:
    """Twelve applications of three containers each on two cores: granted in order of arrival."""
    cluster = VirtualCluster(
        [unit("n1", vcores=2)], schedulers=schedulers, bounds=Bounds(waiting_limit=0)
    )
    apps = []
    for _ in range(12):
        apps.append(cluster.submit(3))
        cluster.advance(0.5)
    granted: dict[ContainerId, None] = {}
    for _ in range(18):
        (node,) = cluster.nodes.values()
        granted |= dict.fromkeys(sorted(node.processes))
        for container_id in sorted(node.processes):
            node.end(container_id, ContainerEnd(cause=EndCause.EXITED, exit_code=0))
            cluster.advance(0.5)
    order = [container_id.rpartition("-x")[0] for container_id in granted]
    places = [apps.index(ApplicationId(app)) for app in order]
    assert sorted(places) == sorted(number for number in range(12) for _ in range(3))
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(places)), places


def test_in_strict_order_a_stream_goes_first_among_those_that_are_passed_too() -> None:
    backlog = Backlog(in_order=True)
    batch = Job(ApplicationId("batch"), WorkloadClass.BATCH)
    stream = Job(ApplicationId("stream"), WorkloadClass.STREAM)
    for job in (batch, stream):
        backlog.add(job)
        backlog.passed(job, is_passed=True)
    assert backlog.next_job(1.0) is stream
    assert backlog.has_stream(1.0)
    backlog.place(stream, 2.0)
    assert backlog.next_job(1.0) is batch
