"""Jobs on units of two slots, where a container runs the slower the worse its neighbour suits it.

``MasterCore`` and ``NodeCore`` are the real ones, and so are the policies; this module carries
their messages and lets containers progress: at each start and end on a unit, those that are left
there go on at another speed. How fast five kinds of jobs are alone and in every pair was measured
on one GPU (``benchmarks.fairness.measured``). A kind is a tenant: an application's name.

What is left out: heartbeats, faults, and the cost of deciding. A run is a function of its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from benchmarks.fairness.world import World
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import Tenant, introduce
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.tenancy.affinities import kind_of
from hrm.core.tenancy.queue_spec import DEFAULT_QUEUE
from hrm.core.vocabulary.bounds import SCHEDULERS, Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerSpec,
    EndCause,
    NodeName,
    Resources,
)
from hrm.errors import LimitReached
from hrm.policies.mapping import Mix
from hrm.runtime.clock import Clock
from hrm.runtime.direct import DirectMaster, DirectNode
from hrm.runtime.virtual_disk import VirtualDisk
from hrm.testing.virtual import unit

__all__ = ["Told", "Wanted", "Workload", "run"]

SLOTS = 2
PLATFORM = 1
"""The faster of the two kinds of GPU that were measured."""
CONTAINERS_MAX = 8
NAMES = ("ant", "bee", "cat", "dog", "eel")
"""Of the kinds. Their own differ in digits, which count as one sign in affinities."""
WARM_UP = 0.2
"""This part of the jobs, the first, is not measured: the cluster fills, and first affinities are
learned."""

_SPREAD = 0.3
"""Of the logarithm of how long containers of one kind run alone."""
_DELAY_S = 0.001
_EVENTS_MAX = 5_000_000
_FOR_EVER_S = 1e12
_TICK_EVERY_JOBS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``load``: the work that comes, in seconds alone, over the time of all slots. ``queue``: may
    containers wait at units, as is the default? ``learn``: affinities from the containers that
    end."""

    load: float
    nodes: int
    containers: int
    seed: int
    queue: bool = True
    learn: bool = False


@dataclass(slots=True)
class _Job:
    kind: int
    at_s: float
    alone_s: list[float]
    counts: bool
    left: int = 0
    admitted: bool = False


@dataclass(slots=True)
class _Process:
    """``left_s``: work that is left, in seconds alone, at ``since_s``. ``with_s``: seconds beside
    each kind. ``token``: of the end that is planned."""

    kind: int
    alone_s: float
    counts: bool
    left_s: float
    started_at_s: float
    since_s: float
    slowdown: float = 1.0
    with_s: dict[int, float] = field(default_factory=dict)
    token: int = 0


class Told:
    """A policy to which the true slowdowns are known from the start, whatever the master knows."""

    def __init__(self, policy: PlacementPolicy, world: World, wanted: Wanted) -> None:
        self._policy = policy
        self.name = policy.name
        introduce(policy, _Truth(world, wanted))

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy``."""
        return self._policy.place(view, placement, now)


class Wanted:
    """What each kind holds and waits for, and whose applications are whose."""

    def __init__(self) -> None:
        self.cores: dict[int, int] = {}
        self.kinds: dict[ApplicationId, int] = {}


class _Truth:
    """See ``CoRunning``: the measured slowdowns."""

    revision = 1

    def __init__(self, world: World, wanted: Wanted) -> None:
        self._world = world
        self._wanted = wanted

    def tenant_of(self, application_id: ApplicationId) -> Tenant:
        return (str(self._wanted.kinds[application_id]),)

    def slowdown(self, tenant: Tenant, other: Tenant) -> float:
        return _pair(self._world, int(tenant[0]), int(other[0]))

    def wanted(self) -> Mapping[Tenant, Vector]:
        return {(str(kind),): (n, n * 1024, 0, n) for kind, n in self._wanted.cores.items() if n}


def _pair(world: World, kind: int, other: int) -> float:
    cores = ((kind, SLOTS),) if kind == other else tuple(sorted(((kind, 1), (other, 1))))
    return world.slowdowns.slowdown(kind, Mix(cores), PLATFORM)


def run(
    world: World, workload: Workload, policy: Callable[[int, World, Wanted], PlacementPolicy]
) -> dict[str, float]:
    """Run the jobs of a workload to their end.

    Returns the mean slowdown of containers over alone (``slowdown``), that of the kind that is
    slowed most (``worst``), the mean of the time from a job's arrival to its end over that of its
    longest container alone (``response``), and the part of slots at work (``used``).

    Raises:
        LimitReached: more events than any such workload has.
    """
    simulated = _Simulated(world, workload, policy)
    simulated.run()
    by_kind: dict[int, list[float]] = {}
    for kind, slowdown in simulated.slowdowns:
        by_kind.setdefault(kind, []).append(slowdown)
    busy_s, lasted_s = simulated.busy_s, simulated.clock.now
    return {
        "slowdown": fmean(slowdown for _, slowdown in simulated.slowdowns),
        "worst": max(fmean(values) for values in by_kind.values()),
        "response": fmean(simulated.responses),
        "used": busy_s / (lasted_s * workload.nodes * SLOTS),
    }


class _Master(DirectMaster):
    def __init__(self, simulated: _Simulated, core: MasterCore) -> None:
        super().__init__(core, simulated.clock, VirtualDisk(), _DELAY_S)
        self._simulated = simulated

    def notify(self, command: c.NotifyApplication) -> None:
        notice = command.notice
        if isinstance(notice, c.ContainerChanged) and notice.status.end is not None:
            ended = self._simulated.container_ended
            self.clock.after(self.delay_s, ended, command.application_id)

    def complete_call(self, command: c.Reply | c.Refuse) -> None:
        if isinstance(command, c.Refuse):
            raise command.error
        if isinstance(command.result, c.ApplicationAdmitted):
            application_id = command.result.application_id
            admitted = self._simulated.admitted
            self.clock.after(self.delay_s, admitted, command.call_id, application_id)


class _Node(DirectNode):
    """One unit. ``running``: what runs on it, with its progress."""

    def __init__(self, simulated: _Simulated, core: NodeCore) -> None:
        super().__init__(core, simulated.clock, simulated.master)
        self._simulated = simulated
        self.running: dict[ContainerId, _Process] = {}

    def start(self, spec: ContainerSpec) -> None:
        super().start(spec)
        process = self._simulated.process_of(spec)
        self._progress()
        self.running[spec.container_id] = process
        self._go_on()

    def over(self, spec: ContainerSpec) -> None:
        self._progress()
        self._simulated.ended(self.running.pop(spec.container_id))
        self._go_on()

    def _progress(self) -> None:
        """Take what has run until now off what is left."""
        now = self.clock.now
        kinds = [process.kind for process in self.running.values()]
        for place, process in enumerate(self.running.values()):
            took_s = now - process.since_s
            process.left_s -= took_s / process.slowdown
            process.since_s = now
            for other in kinds[:place] + kinds[place + 1 :]:
                process.with_s[other] = process.with_s.get(other, 0.0) + took_s

    def _go_on(self) -> None:
        """At the speed of the mix that is here now."""
        processes = list(self.running.items())
        for place, (container_id, process) in enumerate(processes):
            others = [x.kind for _, x in processes[:place] + processes[place + 1 :]]
            process.slowdown = self._simulated.slowdown(process.kind, others)
            process.token += 1
            left_s = max(0.0, process.left_s) * process.slowdown
            self.clock.after(left_s, self._due, container_id, process.token)

    def _due(self, container_id: ContainerId, token: int) -> None:
        process = self.running.get(container_id)
        if process is not None and process.token == token:
            self.end(container_id, ContainerEnd(cause=EndCause.EXITED, exit_code=0))


class _Simulated:
    """The jobs, and the system that serves them."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        policy: Callable[[int, World, Wanted], PlacementPolicy],
    ) -> None:
        self.clock = Clock(0.0)
        self.slowdowns: list[tuple[int, float]] = []
        self.responses: list[float] = []
        self.busy_s = 0.0
        self._world, self._workload = world, workload
        self._jobs = _jobs(world, workload)
        self._live = len(self._jobs)
        self._by_id: dict[ApplicationId, _Job] = {}
        self._wanted = Wanted()
        self._durations: dict[ContainerId, tuple[_Job, float]] = {}
        bounds = replace(
            Bounds(),
            node_timeout_s=_FOR_EVER_S,
            application_grace_s=_FOR_EVER_S,
            ended_applications_kept=_TICK_EVERY_JOBS,
        )
        if not workload.queue:
            bounds = replace(bounds, waiting_limit=0)
        policies = [policy(index, world, self._wanted) for index in range(SCHEDULERS)]
        self.master = _Master(self, MasterCore(1, policies, bounds))
        for number in range(workload.nodes):
            one = unit(f"n{number:03}", vcores=SLOTS)
            name = one.unit_id.partition("/")[0]
            _Node(self, NodeCore(NodeName(name), (one,))).register()
        for number, job in enumerate(self._jobs):
            self.clock.at(job.at_s, self._arrive, number)

    def run(self) -> None:
        for _ in range(_EVENTS_MAX):
            if not self._live:
                return
            if not self.clock.step():
                break
        raise LimitReached(f"{self._live} jobs are not over at {self.clock.now:.0f} s")

    def slowdown(self, kind: int, others: list[int]) -> float:
        return _pair(self._world, kind, others[0]) if others else 1.0

    def process_of(self, spec: ContainerSpec) -> _Process:
        job, alone_s = self._durations[spec.container_id]
        now = self.clock.now
        return _Process(job.kind, alone_s, job.counts, alone_s, now, now)

    def ended(self, process: _Process) -> None:
        """A process has done its work."""
        took_s = self.clock.now - process.started_at_s
        self.busy_s += took_s
        if process.counts:
            self.slowdowns.append((process.kind, took_s / process.alone_s))
        if self._workload.learn:
            company = {
                kind_of(DEFAULT_QUEUE, NAMES[kind]): min(1.0, with_s / took_s)
                for kind, with_s in process.with_s.items()
            }
            self.master.core.master_state.affinities.observe(
                DEFAULT_QUEUE,
                NAMES[process.kind],
                "all",
                "gpu",
                1,
                took_s,
                min(1.0, sum(company.values())),
                company,
            )

    def _arrive(self, number: int) -> None:
        self.master.submit(
            e.ApplicationRegistered(
                now=self.clock.now,
                call_id=number,
                application_id=ApplicationId(""),
                submission_key=str(number),
                name=NAMES[self._jobs[number].kind],
                user="simulated",
            )
        )

    def admitted(self, call_id: int, application_id: ApplicationId) -> None:
        job = self._jobs[call_id]
        if job.admitted:
            return  # the reply to its attachment
        job.admitted = True
        self._by_id[application_id] = job
        self._wanted.kinds[application_id] = job.kind
        self._wanted.cores[job.kind] = self._wanted.cores.get(job.kind, 0) + len(job.alone_s)
        job.left = len(job.alone_s)
        now, one = self.clock.now, Resources(1, 1024)
        self.master.submit(
            e.ApplicationAttached(
                now=now, call_id=call_id, application_id=application_id, session=1, epoch=1
            )
        )
        requests = []
        for number, alone_s in enumerate(job.alone_s, 1):
            self._durations[ContainerId(f"{application_id}-x{number}")] = (job, alone_s)
            requests.append(
                ContainerRequest(executor_id=str(number), resource_profile_id=0, resources=one)
            )
        self.master.submit(
            e.ContainersRequested(now=now, application_id=application_id, requests=tuple(requests))
        )

    def container_ended(self, application_id: ApplicationId) -> None:
        job = self._by_id[application_id]
        job.left -= 1
        self._wanted.cores[job.kind] -= 1
        if job.left:
            return
        now = self.clock.now
        if job.counts:
            self.responses.append((now - job.at_s) / max(job.alone_s))
        self._live -= 1
        self.master.submit(
            e.ApplicationFinished(
                now=now, application_id=application_id, state=ApplicationState.SUCCEEDED
            )
        )
        if self._live % _TICK_EVERY_JOBS == 0:
            self.master.submit(e.Ticked(now=now))


def _jobs(world: World, workload: Workload) -> list[_Job]:
    """Jobs of all kinds, each kind with as much work; they come at random."""
    draw = random.Random(f"{workload.seed} {workload.load}")
    alone_s = world.run_s[:, PLATFORM].tolist()
    kinds = range(len(alone_s))
    weights = [1.0 / each_s for each_s in alone_s]
    jobs: list[_Job] = []
    containers, at_s = 0, 0.0
    mean_work_s = len(alone_s) / sum(weights) * (1 + CONTAINERS_MAX) / 2
    gap_s = mean_work_s / (workload.load * workload.nodes * SLOTS)
    while containers < workload.containers:
        kind = draw.choices(kinds, weights)[0]
        count = draw.randint(1, CONTAINERS_MAX)
        lasts = [
            alone_s[kind] * draw.lognormvariate(-(_SPREAD**2) / 2, _SPREAD) for _ in range(count)
        ]
        at_s += draw.expovariate(1.0 / gap_s)
        counts = containers >= WARM_UP * workload.containers
        jobs.append(_Job(kind, at_s, lasts, counts))
        containers += count
    return jobs
