"""The production master in virtual time, with its own decision time charged to the clock.

Each decider is a server: it takes one event at a time, in order of arrival, and is busy for the
cost of the event (``costs``), its messages and rows of the store included (``encoding``). The
master is one server: requests, commits, reports of nodes. Every scheduler is a process of its own
(``scheduler_process``), so that N of them really overlap: it chooses on its copy of the state, its
claims reach the negotiator when the round is over, and the commits of others meanwhile are the
price of optimism. The master pays for every change that it sends to a copy. The centralised system
is the same code with one scheduler on the master's own server: it chooses and commits one after the
other, without a copy.

Nodes are ``NodeCore`` with a machine each, so nothing is charged for them. Not simulated: gRPC
itself, and the disk (no durable write is between a request and its grant); the live mode of
``benchmarks.paper`` has both.

Source: HRM paper, section 6.1; the method (the real scheduler in virtual time, its own time
charged) is Firmament's.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from benchmarks.simulation.costs import CostModel, Kind, Measured, Tally
from benchmarks.simulation.encoding import Rows, received, send_command
from benchmarks.simulation.figures import JobTimes, RunResult
from benchmarks.simulation.scheduler_process import SchedulerProcess, change_size
from benchmarks.simulation.server import Server
from benchmarks.simulation.workload import JobPlan
from hrm.core.master.core import MasterCore
from hrm.core.master.write_gate import WRITES
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.messages.state_changes import StateChanged
from hrm.core.node.core import NodeCore
from hrm.core.scheduling.negotiator import StreamLease
from hrm.core.scheduling.session import SchedulerCall
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
from hrm.runtime.master import End, OnReply
from hrm.runtime.virtual_disk import VirtualDisk
from hrm.wire.shared_state import ChangeEncoder

__all__ = ["NoLease", "Setup", "TimedCluster", "simulate"]

TICK_S = 0.25
LIMIT_S = 3_600.0
LARGE = 16
_START_S = 1_000_000.0
_IDLE_BEATS = 5
_REPORTS = frozenset({Kind.REPORT, Kind.HEARTBEAT})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The system under test. Defaults are the paper's.

    ``schedulers``: 0 is the centralised system. ``large_nodes``: how many of the nodes, the last
    ones, have ``LARGE`` times the memory. ``network_s``: one way, to nodes and AppMasters;
    ``hop_s``: between a scheduler's process and the master. ``lease``: what a stream locks.
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


class _Master(DirectMaster):
    """What the core commands goes to the servers of ``cluster``, nodes and jobs."""

    def __init__(self, cluster: TimedCluster, core: MasterCore) -> None:
        super().__init__(core, cluster.clock, VirtualDisk(), cluster.setup.network_s)
        self._cluster = cluster

    def wake(self, scheduler: str) -> None:
        """The centralised scheduler chooses on the master's server."""
        self._cluster.to_master(
            Kind.ROUND, 0, e.SchedulerWoken(now=self.clock.now, scheduler=scheduler), 0.0
        )

    def propose(self, proposal: Proposal) -> None:
        event = e.ClaimsProposed(now=self.clock.now, proposal=proposal)
        self._cluster.to_master(Kind.COMMIT, len(proposal.claims), event, 0.0)

    def expect(self, on_reply: OnReply) -> int:
        """The number of a call that is on its way."""
        call_id = next(self.call_ids)
        self._calls[call_id] = on_reply
        return call_id

    def scheduler(self, name: str, session: int) -> End | None:
        return self._cluster.processes.get(name)

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
        match event:
            case e.ContainerReported():
                self.cluster.to_master(Kind.REPORT, 1, event, 0.0)
            case e.NodeReported():
                self.cluster.to_master(Kind.HEARTBEAT, len(event.containers), event, 0.0)
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
        self.cluster.to_master(Kind.REQUEST, count, event, self.cluster.setup.network_s)

    def assigned(self, executor_id: str) -> None:
        """A node has the order to run this container."""
        granted_s = self.times.granted_s
        if len(granted_s) < self.plan.containers and executor_id not in granted_s:
            granted_s[executor_id] = self.cluster.passed_s
            if len(granted_s) == self.plan.containers and self.plan.counted:
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
        self.claimed: list[ResourceUnitId] = []
        """Units of all claims that have been committed, in order."""
        self._charged_from_s = _START_S
        self.changes = ChangeEncoder()
        self._rows = Rows()
        here = [MinWait()] if setup.centralised else []
        self.core = MasterCore(1, here, setup.bounds, now=self.clock.now)
        if setup.lease == "none":
            self.core.negotiator.lease = NoLease(setup.bounds.lease_timeout_s)
        self.runtime = _Master(self, self.core)
        self.master = Server(self.clock, _REPORTS if setup.reports_last else frozenset())
        self.nodes: dict[str, _Node] = {}
        for index in range(setup.nodes):
            self._add_node(f"n{index}", index >= setup.nodes - setup.large_nodes)
        self.processes: dict[str, SchedulerProcess] = {}
        step = max(1, setup.nodes // max(1, setup.schedulers))
        for index in range(setup.schedulers):
            name = f"process-{index + 1}"
            process = SchedulerProcess(self, name, index + 1, MinWait(index * step), setup.bounds)
            self.processes[name] = process
            connected = e.SchedulerConnected(
                now=self.clock.now, call_id=0, scheduler=name, session=process.number
            )
            self._call(connected)
        self.jobs: dict[ApplicationId, _Job] = {}
        for number, plan in enumerate(plans):
            job = self._admit(number, plan)
            self.clock.after(plan.at_s, job.ask, plan.containers)
        for process in self.processes.values():
            process.connected = True
        self._ungranted = self._uncompleted = sum(plan.counted for plan in plans)
        self._begin_s = min(plan.at_s for plan in plans if plan.counted)
        if not all(plan.counted for plan in plans):
            self._charged_from_s += self._begin_s

    @property
    def hop_s(self) -> float:
        return self.setup.hop_s

    @property
    def charges_work(self) -> bool:
        """Does what this process does have a price? Not where prices are fixed, nor before the jobs
        that are measured."""
        return isinstance(self.costs, Measured) and self.clock.now >= self._charged_from_s

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
        schedulers = list(self.core.placement.schedulers.values())
        self.counts["rounds"] = sum(scheduler.rounds for scheduler in schedulers)
        schedulers += [process.session.scheduler for process in self.processes.values()]
        self.counts["retries"] = sum(scheduler.retries for scheduler in schedulers)
        self.counts["queued"] = negotiator.queued
        self.counts["aborted"] = negotiator.aborted
        counted = [job.times for job in self.jobs.values() if job.plan.counted]
        return RunResult(counted, self.counts, self.loads)

    # --- what servers, nodes and jobs call -------------------------------------------------------

    def to_master(self, kind: Kind, containers: int, event: e.MasterEvent, delay_s: float) -> None:
        """Send an event that concerns ``containers``; it arrives ``delay_s`` later."""
        read = received(event) if self.charges_work else _nothing
        work = functools.partial(self._take_in, kind, containers, event, read)
        self.clock.after(delay_s, self.master.arrive, kind, work)

    def call_master(self, containers: int, call: SchedulerCall, on_reply: OnReply) -> None:
        """A call of a scheduler's process."""
        call = replace(call, call_id=self.runtime.expect(on_reply))
        self.to_master(Kind.COMMIT, containers, call, self.hop_s)

    def timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """CPU seconds that ``work`` used, and what it returned."""
        begun_s = self.tally.clock()
        result = work()
        return self.tally.clock() - begun_s, result

    def charge(self, kind: Kind, containers: int, used_s: float) -> float:
        """Count work, and return what it costs on the virtual clock."""
        if self.clock.now < self._charged_from_s:
            return 0.0
        self.tally.add(kind, containers, used_s)
        return self.costs.charge_s(kind, containers, used_s)

    def _take_in(
        self, kind: Kind, containers: int, event: e.MasterEvent, read: Callable[[], object]
    ) -> tuple[float, Callable[[], None]]:
        """Let the core decide; returns the cost, and what follows."""
        event = replace(event, now=self.clock.now)
        if isinstance(event, e.ClaimsProposed):
            self._count_stale(event.proposal)

        read_s, _ = self.timed(read)
        used_s, commands = self.timed(lambda: self.runtime.decide(event))
        if kind is Kind.ROUND:
            proposed = [x for x in commands if isinstance(x, c.ProposeClaims)]
            containers = sum(len(command.proposal.claims) for command in proposed)
            if not proposed:
                kind = Kind.OTHER  # nothing to do: it waits for the lease, or for a reply
        parked = len(self.core.negotiator.parked)
        self.counts["parked"] = max(self.counts["parked"], parked)
        cost_s = sent_s = 0.0
        if _is_call(event):
            cost_s, read_s = self.charge(Kind.CALL, containers, read_s), 0.0
        for command in commands:
            if isinstance(command, c.SendToScheduler):
                cost_s += self._send_change(command.message)
            elif isinstance(command, c.Reply) and _is_call(event):
                cost_s += self.charge(Kind.CALL, containers, self._send(command))
            elif type(command) in WRITES:
                took_s, _ = self.timed(functools.partial(self._rows.write, command))
                cost_s += self.charge(Kind.STORE, 1, took_s)
            else:
                sent_s += self._send(command)
        cost_s += self.charge(kind, containers, read_s + used_s + sent_s)
        return cost_s, lambda: self.runtime.carry_out(event, commands)

    def _send(self, command: c.MasterCommand) -> float:
        """CPU seconds for the message of ``command``."""
        if not self.charges_work:
            return 0.0
        used_s, _ = self.timed(lambda: send_command(command, self.core.epoch))
        return used_s

    def _send_change(self, change: StateChanged) -> float:
        """What the message to one copy costs: units that no other has had since they changed are
        encoded for it."""
        before = self.changes.encoded
        encoded_s, _ = self.timed(lambda: self.changes.prepare(change.units))
        encoded = self.changes.encoded - before
        cost_s = self.charge(Kind.UNITS_ENCODED, encoded, encoded_s) if encoded else 0.0
        sent_s = self.timed(lambda: self.changes.encode(change))[0] if self.charges_work else 0.0
        return cost_s + self.charge(Kind.COPY_SENT, change_size(change), sent_s)

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
            busy_s = sum(process.server.busy_s for process in self.processes.values())
            self.loads["schedulers_busy"] = busy_s / passed_s / len(self.processes)

    def completed(self, job: _Job) -> None:
        self._uncompleted -= job.plan.counted
        event = e.ApplicationFinished(
            now=self.clock.now,
            application_id=job.application_id,
            state=ApplicationState.SUCCEEDED,
        )
        self.to_master(Kind.OTHER, 0, event, self.setup.network_s)

    # --- inside ----------------------------------------------------------------------------------

    def _add_node(self, name: str, large: bool) -> None:
        memory_mib = self.setup.memory_mib * (LARGE if large else 1)
        node = self.nodes[name] = _Node(self, name, Resources(self.setup.vcores, memory_mib))
        node.register()

    def _admit(self, number: int, plan: JobPlan) -> _Job:
        now = self.clock.now
        registered = e.ApplicationRegistered(
            now=now, call_id=0, application_id=ApplicationId(""), name=f"job-{number}",
            submission_key=f"job-{number}", user="somebody", declared_class=plan.workload_class,
        )  # fmt: skip
        admitted = self._call(registered)
        assert isinstance(admitted, c.ApplicationAdmitted)
        job = _Job(self, plan, admitted.application_id)
        self.jobs[job.application_id] = job
        attached = e.ApplicationAttached(
            now=now, call_id=0, application_id=job.application_id, session=1, epoch=1
        )
        self._call(attached)
        return job

    def _call(self, event: Any) -> object:
        """Before the clock starts: a call and its result, without cost."""
        replies: list[c.Reply | c.Refuse] = []
        call_id = self.runtime.expect(replies.append)
        self.runtime.submit(replace(event, call_id=call_id))
        (reply,) = replies
        if isinstance(reply, c.Refuse):
            raise reply.error
        return reply.result

    def _tick(self) -> None:
        self.to_master(Kind.OTHER, 0, e.Ticked(now=self.clock.now), 0.0)
        self.clock.after(TICK_S, self._tick)

    def _count_stale(self, proposal: Proposal) -> None:
        """Claims on units that others have claimed since this scheduler's copy was sent."""
        units = [claim.unit_id for claim in proposal.claims]
        process = self.processes.get(proposal.scheduler)
        if process is not None:
            since = set(itertools.islice(self.claimed, process.looked_at, None))
            self.counts["stale"] += sum(unit in since for unit in units)
        self.claimed += units


def _is_call(event: e.MasterEvent) -> bool:
    """Has a scheduler's process sent it?"""
    return isinstance(event, e.ClaimsProposed | e.LeaseRequested | e.LeaseReturned) and bool(
        event.call_id
    )


def _nothing() -> None:
    """Where costs are constants, no message is encoded."""


def simulate(
    setup: Setup, costs: CostModel, plans: Sequence[JobPlan], *, to_completion: bool = True
) -> RunResult:
    """One run of one system with one workload."""
    return TimedCluster(setup, costs, plans).run(to_completion=to_completion)
