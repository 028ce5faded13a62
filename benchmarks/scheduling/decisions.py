"""Decisions per second, in process: snapshot, choose, commit, settle; no events, no store, no wire.

A decision is one container that was placed. The scheduler has the job's requests before the clock
starts. After the clock stops, as many of the oldest containers end as were placed, so that the
cluster stays half full; the rows that this changes are copied by the next round's snapshot, inside
the clock, as in a master.
"""

from __future__ import annotations

import cProfile
import gc
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scheduling.cells import (
    BATCH,
    NODE_SLOTS,
    STREAM,
    TASK,
    Cell,
    Sample,
    building,
    node_names,
    requests_of,
    unit_of,
)
from hrm import policies
from hrm.core.messages.claims import Decision, Entry, Outcome, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import demand_vector
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerRequest

__all__ = ["Conflicts", "HalfFull", "Rounds", "measure_conflicts", "measure_decisions"]

RUN_LIMIT_S = 1.5
"""Slow cells, such as one task among 100,000 nodes, are measured over fewer decisions."""
_STAGES = ("next", "snapshot", "choose", "commit", "settle")
_LEASE_S = 3600.0  # a lease is for one round here, and the clock of the core stands still


class HalfFull:
    """A cluster of which every second slot, at random, is in use, and its containers."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.state = SharedState()
        self.bounds = Bounds(lease_timeout_s=_LEASE_S)
        self.negotiator = Negotiator(self.state, self.bounds)
        self.live: deque[tuple[ContainerId, int]] = deque()
        self.numbers = itertools.count(1)
        demand = demand_vector(TASK)
        generator = random.Random(seed)
        filled: list[tuple[ContainerId, int]] = []
        for name in node_names(nodes):
            queue = UnitQueue(unit_of(name))
            for slot in range(generator.randint(NODE_SLOTS // 4, 3 * NODE_SLOTS // 4)):
                container_id = ContainerId(f"{name}-{slot}")
                queue.run_if_free(Entry(container_id, BATCH, demand, 60.0), 0.0)
                filled.append((container_id, len(self.state.rows)))
            self.state.add(name, queue)
        generator.shuffle(filled)
        rows = list(self.state.rows.values())
        self.live.extend((container_id, rows[number]) for container_id, number in filled)
        self.size = len(self.live)

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Record the placed containers, so that they can be ended."""
        rows = self.state.rows
        self.live.extend(
            (x.claim.entry.container_id, rows[x.claim.unit_id])
            for x in outcomes
            if x.decision is not Decision.ABORT
        )

    def thin(self, size: int | None = None) -> None:
        """Let the oldest containers end until there are ``size``, as many as at the beginning."""
        changed: dict[int, None] = {}
        while len(self.live) > (self.size if size is None else size):
            container_id, row = self.live.popleft()
            self.state.queue(row).remove(container_id)
            changed[row] = None
        for row in changed:
            # Its node starts what waits there, and reports it.
            self.state.queue(row).start_all(0.0)
        self.state.refresh_all(changed)


class Rounds:
    """Rounds of one scheduler over a shared cluster, timed stage by stage."""

    def __init__(self, cluster: HalfFull, cell: Cell, index: int = 0) -> None:
        self.cluster = cluster
        self.cell = cell
        policy = policies.load(cell.policy, index)
        self.scheduler = Scheduler(f"scheduler-{index + 1}", policy, cluster.bounds)
        self.view: ClusterView = ClusterView(cluster.state)
        self.requests = requests_of(cell.tasks)
        self.elapsed_s = dict.fromkeys(_STAGES, 0.0)
        self.decided = 0
        self.token = 0

    def add_job(self, requests: tuple[ContainerRequest, ...] | None = None) -> None:
        """Give the scheduler one job."""
        application_id = ApplicationId(f"job-{next(self.cluster.numbers)}")
        for request in requests or self.requests:
            container_id = ContainerId(f"{application_id}-{request.executor_id}")
            self.scheduler.add(application_id, self.cell.workload_class, container_id, request, 0.0)

    def choose(self) -> tuple[Job, Proposal]:
        """The first half of a round: up to the proposal."""
        clock, elapsed = time.perf_counter, self.elapsed_s
        begun = clock()
        job = self.scheduler.next_job(0.0)
        assert job is not None
        found = clock()
        self.view.renew()
        if job.workload_class is STREAM:
            lease = self.cluster.negotiator.lease
            self.token = lease.acquire(self.scheduler.name, 0.0) or 0
            self.view.keep_open(lease.units)
        seen = clock()
        proposal = self.scheduler.choose(job, self.view, self.token, 0.0)
        chosen = clock()
        elapsed["next"] += found - begun
        elapsed["snapshot"] += seen - found
        elapsed["choose"] += chosen - seen
        return job, proposal

    def commit(self, job: Job, proposal: Proposal) -> list[Outcome]:
        """The second half: up to the grants."""
        clock, elapsed = time.perf_counter, self.elapsed_s
        begun = clock()
        outcomes = self.cluster.negotiator.commit(proposal, 0.0)
        assert outcomes is not None
        if self.token:
            self.cluster.negotiator.lease.release(self.scheduler.name, self.token)
            self.token = 0
        committed = clock()
        granted = self.scheduler.settle(job, outcomes, 0.0)
        elapsed["commit"] += committed - begun
        elapsed["settle"] += clock() - committed
        self.decided += len(granted)
        return granted

    def run(
        self, decisions: int, profile: cProfile.Profile | None = None
    ) -> tuple[float, float, dict[str, float]]:
        """Run at least ``decisions``, or as many as ``RUN_LIMIT_S`` allows; returns decisions per
        second, per second of this thread's processor time, and microseconds of each by stage."""
        self.elapsed_s = dict.fromkeys(_STAGES, 0.0)
        self.decided = 0
        cpu_s = 0.0
        limit_s = time.perf_counter() + RUN_LIMIT_S
        while self.decided < decisions and (not self.decided or time.perf_counter() < limit_s):
            self.add_job()
            if profile:
                profile.enable()
            begun_s = time.thread_time()
            granted = self.commit(*self.choose())
            cpu_s += time.thread_time() - begun_s
            if profile:
                profile.disable()
            assert len(granted) == self.cell.tasks, "a half-empty cluster has room for every job"
            self.cluster.record(granted)
            self.cluster.thin()
        total_s = sum(self.elapsed_s.values())
        stages_us = {name: 1e6 * s / self.decided for name, s in self.elapsed_s.items()}
        return self.decided / total_s, self.decided / cpu_s, stages_us


def measure_decisions(
    cells: Sequence[Cell], repetitions: int, decisions: int
) -> dict[Cell, Sample]:
    """Every cell ``repetitions`` times, in turns; the first turn, which warms up, is not counted.

    Cells of one cluster size share the cluster.
    """
    with building():
        clusters = {nodes: HalfFull(nodes) for nodes in sorted({cell.nodes for cell in cells})}
    rounds = {cell: Rounds(clusters[cell.nodes], cell) for cell in cells}
    samples = {cell: Sample() for cell in cells}
    gc.collect()
    gc.freeze()
    try:
        for turn in range(repetitions + 1):
            for cell in cells if turn % 2 else reversed(cells):
                gc.collect()
                rate, cpu_rate, stages_us = rounds[cell].run(decisions if turn else decisions // 4)
                if turn:
                    samples[cell].values.append(rate)
                    samples[cell].cpu_values.append(cpu_rate)
                    for name, elapsed_us in stages_us.items():
                        samples[cell].stages_us.setdefault(name, []).append(elapsed_us)
    finally:
        gc.unfreeze()
    return samples


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The outcomes of claims that ``schedulers`` made at the same time on the same state."""

    schedulers: int
    claims: int
    run: int
    queued: int
    aborted: int
    stale: int

    @property
    def rate(self) -> float:
        """Share of the claims that did not get the capacity that their scheduler saw."""
        return (self.queued + self.aborted) / self.claims


def measure_conflicts(cell: Cell, schedulers: int, rounds: int, filled: float) -> Conflicts:
    """Conflicts if all schedulers choose before any of them commits: the worst case.

    ``filled``: share of the slots in use before each round. ``stale``: claims whose unit had
    changed since the snapshot, whether that mattered or not.
    """
    cluster = HalfFull(cell.nodes)
    each = [Rounds(cluster, cell, index) for index in range(schedulers)]
    size = int(filled * cell.nodes * NODE_SLOTS)
    each[0].add_job(requests_of(max(1, size - cluster.size)))
    if size > cluster.size:
        cluster.record(each[0].commit(*each[0].choose()))
    else:
        each[0].scheduler.backlog.clear()
    counts = dict.fromkeys(Decision, 0)
    stale = claims = 0
    for _ in range(rounds):
        cluster.thin(size)
        for one in each:
            one.scheduler.backlog.clear()
            one.add_job()
        chosen = [one.choose() for one in each]
        for one, (job, proposal) in zip(each, chosen, strict=True):
            rows, version = cluster.state.rows, cluster.state.version
            stale += sum(int(version[rows[x.unit_id]]) != x.version for x in proposal.claims)
            outcomes = cluster.negotiator.commit(proposal, 0.0)
            assert outcomes is not None
            claims += len(outcomes)
            for outcome in outcomes:
                counts[outcome.decision] += 1
            one.scheduler.settle(job, outcomes, 0.0)
            cluster.record(outcomes)
    return Conflicts(
        schedulers,
        claims,
        counts[Decision.RUN],
        counts[Decision.QUEUE],
        counts[Decision.ABORT],
        stale,
    )
