"""The production master in virtual time, with its own decision time charged to the clock.

Each decider is a server: it takes one event at a time, in order of arrival, and is busy for the
cost of the event (``costs``). The master is one server: requests, commits, reports of nodes. Every
scheduler is a server of its own, like a process or machine, so that N of them really overlap: a
round reads the state when it begins and reaches the negotiator when it is over, and the commits of
others meanwhile are the price of optimism. The centralised system is the same code with one
scheduler on the master's own server: it chooses and commits one after the other.

Nodes are ``NodeCore`` with a machine each, so nothing is charged for them. Not simulated: the store
(no durable write is between a request and its grant) and the encoding of messages; the live mode
of ``benchmarks.paper`` has both.

Source: HRM paper, section 6.1; the method (the real scheduler in virtual time, its own time
charged) is Firmament's.
"""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.simulation.costs import CostModel, Kind, Tally
from benchmarks.simulation.figures import JobTimes, RunResult
from benchmarks.simulation.workload import JobPlan
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.node.core import NodeCore
from hrm.core.scheduling.negotiator import StreamLease
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    ContainerSpec,
    ContainerState,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.errors import HrmError
from hrm.policies.min_wait import MinWait
from hrm.runtime.clock import Clock
from hrm.runtime.direct import DirectMaster, DirectNode
from hrm.runtime.virtual_disk import VirtualDisk

__all__ = ["NoLease", "Setup", "TimedCluster", "simulate"]

TICK_S = 0.25
LIMIT_S = 3_600.0
LARGE = 16
_START_S = 1_000_000.0
_IDLE_BEATS = 5
_REPORTS = frozenset({Kind.REPORT, Kind.HEARTBEAT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The system under test. Defaults are the paper's.

    ``schedulers``: 0 is the centralised system. ``large_nodes``: how many of the nodes, the last
    ones, have ``LARGE`` times the memory. ``network_s``: one way, to nodes and AppMasters;
    ``hop_s``: between a scheduler and the negotiator. ``lease``: what a stream locks.
    ``reports_last``: the master takes in reports of nodes only when nothing else waits.
    """

    schedulers: int = 6
    nodes: int = 1_050
    large_nodes: int = 0
    vcores: int = 16
    memory_mib: int = 65_536
    network_s: float = 100e-6
    hop_s: float = 100e-6
    heartbeat_interval_s: float = 1.0
    lease: Literal["global", "candidates", "none"] = "global"
    reports_last: bool = False
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def centralised(self) -> bool:
        return self.schedulers == 0


class NoLease(StreamLease):
    """No lock at all: every scheduler always has it, and it locks nothing. Streams are then as
    optimistic as batch, and still all or nothing."""

    def acquire(
        self, scheduler: str, now: float, units: frozenset[ResourceUnitId] | None = None
    ) -> int | None:
        self.token += 1
        return self.token

    def locks(self, unit_id: ResourceUnitId) -> bool:
        return False

    def holds(self, scheduler: str, token: int, now: float) -> bool:
        return True


class _Server:
    """Handles one thing at a time. Invariant: it is busy, or nothing waits."""

    def __init__(self, cluster: TimedCluster) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._waiting: deque[tuple[Kind, int, e.MasterEvent]] = deque()
        self._last: deque[tuple[Kind, int, e.MasterEvent]] = deque()
        self._put_off = _REPORTS if cluster.setup.reports_last else frozenset()
        self._busy = False
        self._changed_s = cluster.clock.now
        self._area_s = 0.0
        self.busy_s = 0.0
        self.waiting_max = 0

    def arrive(self, kind: Kind, containers: int, event: e.MasterEvent) -> None:
        self._count()
        queue = self._last if kind in self._put_off else self._waiting
        queue.append((kind, containers, event))
        self.waiting_max = max(self.waiting_max, self._length())
        if not self._busy:
            self._begin()

    def waited_s(self) -> float:
        """The integral of the queue's length so far."""
        self._count()
        return self._area_s

    def _begin(self) -> None:
        self._count()
        kind, containers, event = (self._waiting or self._last).popleft()
        self._busy = True
        event = replace(event, now=self._clock.now)
        cost_s, commands = self._cluster.take_in(kind, containers, event)
        self.busy_s += cost_s
        self._clock.after(cost_s, self._done, event, commands)

    def _done(self, event: e.MasterEvent, commands: list[c.MasterCommand]) -> None:
        self._busy = False
        self._cluster.runtime.carry_out(event, commands)
        if self._length() and not self._busy:
            self._begin()

    def _length(self) -> int:
        return len(self._waiting) + len(self._last)

    def _count(self) -> None:
        now = self._clock.now
        self._area_s += self._length() * (now - self._changed_s)
        self._changed_s = now


class _Master(DirectMaster):
    """What the core commands goes to the servers of ``cluster``, nodes and jobs."""

    def __init__(self, cluster: TimedCluster, core: MasterCore) -> None:
        super().__init__(core, cluster.clock, VirtualDisk(), cluster.setup.network_s)
        self._cluster = cluster
        self._hop_s = 0.0 if cluster.setup.centralised else cluster.setup.hop_s

    def wake(self, scheduler: str) -> None:
        """Send a message to the scheduler's process, whose rounds overlap with those of others."""
        woken = e.SchedulerWoken(now=self.clock.now, scheduler=scheduler)
        server = self._cluster.schedulers[scheduler]
        self.clock.after(self._hop_s, server.arrive, Kind.ROUND, 0, woken)

    def propose(self, proposal: Proposal) -> None:
        event = e.ClaimsProposed(now=self.clock.now, proposal=proposal)
        count = len(proposal.claims)
        self.clock.after(self._hop_s, self._cluster.master.arrive, Kind.COMMIT, count, event)

    def notify(self, command: c.NotifyApplication) -> None:
        job = self._cluster.jobs[command.application_id]
        self.clock.after(self.delay_s, job.notified, command.notice)


class _Node(DirectNode):
    """A node whose processes run for as long as their job says."""

    def __init__(self, cluster: TimedCluster, name: str, capacity: Resources) -> None:
        self.cluster = cluster
        unit = ResourceUnit(
            unit_id=ResourceUnitId(f"{name}/cpu"), capacity=capacity, run_limit=capacity.vcores
        )
        core = NodeCore(NodeName(name), (unit,))
        super().__init__(core, cluster.clock, cluster.runtime, drain_s=1.0)

    def beat(self, interval_s: float) -> None:
        clock = self.clock
        self.handle(e.HeartbeatDue(now=clock.now))
        # Nothing is measured once all is granted; nodes only must not become lost meanwhile.
        pause_s = interval_s if self.cluster.waiting else _IDLE_BEATS * interval_s
        clock.after(pause_s, self.beat, interval_s)

    def runs_s(self, spec: ContainerSpec) -> float | None:
        return self.cluster.jobs[spec.application_id].plan.run_s

    def received(self, message: c.NodeMessage, epoch: int, incarnation: int) -> None:
        if isinstance(message, c.AssignContainer):
            self.cluster.jobs[message.spec.application_id].assigned(message.spec.executor_id)
        super().received(message, epoch, incarnation)

    def submit(self, event: e.MasterEvent) -> None:
        master = self.cluster.master
        match event:
            case e.ContainerReported():
                master.arrive(Kind.REPORT, 1, event)
            case e.NodeReported():
                master.arrive(Kind.HEARTBEAT, len(event.containers), event)
            case _:
                super().submit(event)


class _Job:
    """An application: requests once, counts its notices, requests again what it has lost."""

    def __init__(self, cluster: TimedCluster, plan: JobPlan, application_id: ApplicationId) -> None:
        self.cluster = cluster
        self.plan = plan
        self.application_id = application_id
        self.times = JobTimes(plan.workload_class, plan.at_s)
        self._asked = 0
        self._left = plan.containers

    def ask(self, count: int) -> None:
        numbers = range(self._asked + 1, self._asked + count + 1)
        self._asked += count
        requests = tuple(
            ContainerRequest(
                executor_id=str(number),
                resource_profile_id=0,
                resources=self.plan.resources,
                expected_duration_s=self.plan.run_s,
            )
            for number in numbers
        )
        event = e.ContainersRequested(
            now=self.cluster.clock.now, application_id=self.application_id, requests=requests
        )
        self.cluster.to_master(Kind.REQUEST, count, event)

    def assigned(self, executor_id: str) -> None:
        """A node has the order to run this container."""
        granted_s = self.times.granted_s
        if len(granted_s) < self.plan.containers and executor_id not in granted_s:
            granted_s[executor_id] = self.cluster.passed_s
            if len(granted_s) == self.plan.containers:
                self.cluster.granted()

    def notified(self, notice: c.Notice) -> None:
        if isinstance(notice, c.RequestRefused):
            raise HrmError(f"the master refused a request of the experiment: {notice.message}")
        if not isinstance(notice, c.ContainerChanged):
            return
        status, times, now = notice.status, self.times, self.cluster.passed_s
        if status.state is ContainerState.ENDED:
            if status.end is not None and status.end.cause is not EndCause.EXITED:
                self.cluster.counts["preempted"] += 1
                self.ask(1)
                return
            self._left -= 1
            if self._left == 0:
                times.completed_s = now
                self.cluster.completed(self)
        elif len(times.notified_s) < self.plan.containers and status.node:
            times.notified_s.setdefault(status.executor_id, now)


class TimedCluster:
    """One run: ``run`` it once."""

    def __init__(self, setup: Setup, costs: CostModel, plans: Sequence[JobPlan]) -> None:
        self.clock = Clock(_START_S)
        self.setup = setup
        self.costs = costs
        self.tally = Tally()
        self.counts = dict.fromkeys(
            ("rounds", "retries", "stale", "queued", "aborted", "parked", "preempted"), 0
        )
        self.loads: dict[str, float] = {}
        self._claimed: list[ResourceUnitId] = []
        self._rounds_of: dict[str, int] = {}
        count = max(1, setup.schedulers)
        step = max(1, setup.nodes // count)
        policies = [MinWait(index * step) for index in range(count)]
        self.core = MasterCore(1, policies, setup.bounds, now=self.clock.now)
        if setup.lease == "none":
            self.core.negotiator.lease = NoLease(setup.bounds.lease_timeout_s)
        self.runtime = _Master(self, self.core)
        self.master = _Server(self)
        self.schedulers = {
            name: self.master if setup.centralised else _Server(self)
            for name in self.core.placement.schedulers
        }
        self.nodes: dict[str, _Node] = {}
        for index in range(setup.nodes):
            self._add_node(f"n{index}", index >= setup.nodes - setup.large_nodes)
        self.jobs: dict[ApplicationId, _Job] = {}
        for number, plan in enumerate(plans):
            job = self._admit(number, plan)
            self.clock.after(plan.at_s, job.ask, plan.containers)
        self._ungranted = self._uncompleted = len(self.jobs)
        self._begin_s = min(plan.at_s for plan in plans)

    @property
    def passed_s(self) -> float:
        return self.clock.now - _START_S

    @property
    def waiting(self) -> bool:
        """Does any job still wait for a place?"""
        return self._ungranted > 0

    def run(self, *, to_completion: bool = True) -> RunResult:
        """Until every job is completed, or has only been granted all of its containers.

        Raises:
            HrmError: that took more than ``LIMIT_S`` of virtual time.
        """
        interval_s = self.setup.heartbeat_interval_s
        for index, node in enumerate(self.nodes.values()):
            self.clock.after(interval_s * index / len(self.nodes), node.beat, interval_s)
        self.clock.after(TICK_S, self._tick)
        # The heap has a thousand simulated nodes, which a real master need not collect.
        gc.disable()
        try:
            while self._uncompleted if to_completion else self._ungranted:
                if not self.clock.step(_START_S + LIMIT_S):
                    raise HrmError(f"the experiment has not ended within {LIMIT_S:.0f} s")
        finally:
            gc.enable()
        negotiator = self.core.negotiator
        schedulers = self.core.placement.schedulers.values()
        self.counts["rounds"] = sum(scheduler.rounds for scheduler in schedulers)
        self.counts["retries"] = sum(scheduler.retries for scheduler in schedulers)
        self.counts["queued"] = negotiator.queued
        self.counts["aborted"] = negotiator.aborted
        return RunResult([job.times for job in self.jobs.values()], self.counts, self.loads)

    # --- what servers, nodes and jobs call -------------------------------------------------------

    def take_in(
        self, kind: Kind, containers: int, event: e.MasterEvent
    ) -> tuple[float, list[c.MasterCommand]]:
        """Let the core decide; returns the cost and the commands."""
        if isinstance(event, e.ClaimsProposed):
            self._count_stale(event.proposal)
        elif isinstance(event, e.SchedulerWoken):
            in_flight = self.core.placement.schedulers[event.scheduler].in_flight
            if in_flight is None:
                self._rounds_of[event.scheduler] = len(self._claimed)
        begun_s = self.tally.clock()
        commands = self.runtime.decide(event)
        used_s = self.tally.clock() - begun_s
        if kind is Kind.ROUND:
            containers = sum(
                len(command.proposal.claims)
                for command in commands
                if isinstance(command, c.ProposeClaims)
            )
        self.tally.add(kind, containers, used_s)
        parked = len(self.core.negotiator.parked)
        self.counts["parked"] = max(self.counts["parked"], parked)
        if kind is Kind.ROUND and not any(isinstance(x, c.ProposeClaims) for x in commands):
            kind = Kind.OTHER  # nothing to do: it waits for the lease, or for a reply
        return self.costs.charge_s(kind, containers, used_s), commands

    def to_master(self, kind: Kind, containers: int, event: e.MasterEvent) -> None:
        self.clock.after(self.setup.network_s, self.master.arrive, kind, containers, event)

    def granted(self) -> None:
        """One more job has all of its containers."""
        self._ungranted -= 1
        if self._ungranted:
            return
        passed_s = max(1e-9, self.passed_s - self._begin_s)
        self.loads = {
            "master_busy": self.master.busy_s / passed_s,
            "master_queue": self.master.waited_s() / passed_s,
            "master_queue_max": float(self.master.waiting_max),
            "makespan_ms": 1e3 * passed_s,
        }
        if not self.setup.centralised:
            busy_s = sum(server.busy_s for server in self.schedulers.values())
            self.loads["schedulers_busy"] = busy_s / passed_s / len(self.schedulers)

    def completed(self, job: _Job) -> None:
        self._uncompleted -= 1
        event = e.ApplicationFinished(
            now=self.clock.now,
            application_id=job.application_id,
            state=ApplicationState.SUCCEEDED,
        )
        self.to_master(Kind.OTHER, 0, event)

    # --- inside ----------------------------------------------------------------------------------

    def _add_node(self, name: str, large: bool) -> None:
        memory_mib = self.setup.memory_mib * (LARGE if large else 1)
        node = self.nodes[name] = _Node(self, name, Resources(self.setup.vcores, memory_mib))
        node.register()

    def _admit(self, number: int, plan: JobPlan) -> _Job:
        now = self.clock.now
        registered = e.ApplicationRegistered(
            now=now, call_id=1, application_id=ApplicationId(""), name=f"job-{number}",
            submission_key=f"job-{number}", user="somebody", declared_class=plan.workload_class,
        )  # fmt: skip
        results = [x.result for x in self.core.handle(registered) if isinstance(x, c.Reply)]
        (admitted,) = results
        assert isinstance(admitted, c.ApplicationAdmitted)
        job = _Job(self, plan, admitted.application_id)
        self.jobs[job.application_id] = job
        self.core.handle(
            e.ApplicationAttached(
                now=now, call_id=2, application_id=job.application_id, session=1, epoch=1
            )
        )
        return job

    def _tick(self) -> None:
        self.master.arrive(Kind.OTHER, 0, e.Ticked(now=self.clock.now))
        self.clock.after(TICK_S, self._tick)

    def _count_stale(self, proposal: Proposal) -> None:
        """Claims on units that others have claimed since this scheduler looked."""
        since = set(itertools.islice(self._claimed, self._rounds_of[proposal.scheduler], None))
        units = [claim.unit_id for claim in proposal.claims]
        self.counts["stale"] += sum(unit in since for unit in units)
        self._claimed += units


def simulate(
    setup: Setup, costs: CostModel, plans: Sequence[JobPlan], *, to_completion: bool = True
) -> RunResult:
    """One run of one system with one workload."""
    return TimedCluster(setup, costs, plans).run(to_completion=to_completion)
