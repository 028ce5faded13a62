"""Replay a trace through the production core in virtual time.

Every job is an application that requests the containers of its first tasks, and those of a task
when all tasks before it have ended. Containers run as long as the trace says; the application ends
when all are done. ``MasterCore`` and ``NodeCore`` are the real ones; this module only carries their
messages, in order and after ``network_delay_s``, and advances the clock to the next event. So what
is compared is what would run in production, under any policy.

What is left out, so that months take minutes: heartbeats and the time limits that they serve (no
node fails here), and the cost of deciding (rounds take no virtual time). Retries back off without
end, since a scheduler is woken whenever capacity is freed anyway. A run is a function of its
arguments: same jobs, nodes and policy, same history.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.traces.replay_measures import Distribution, Measures, distribution
from benchmarks.traces.replay_plan import (
    PARTS_PER_CORE,
    JobPlan,
    TaskPlan,
    median_request,
    offered_load,
)
from benchmarks.traces.trace_records import TraceNode
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.vocabulary.bounds import SCHEDULERS, Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    ContainerSpec,
    ContainerStatus,
    EndCause,
    Gpu,
    NodeName,
)
from hrm.core.vocabulary.partitioning import Core, Hardware, Partitioning, partition
from hrm.errors import LimitReached
from hrm.runtime.clock import Clock
from hrm.runtime.direct import DirectMaster, DirectNode
from hrm.runtime.virtual_disk import VirtualDisk

__all__ = ["Estimates", "ReplayResult", "Setup", "replay"]

_FOR_EVER_S = 1e12
_START_S = 1_000.0
_TICK_EVERY_JOBS = 256
_SLACK_S = 100_000.0
_NOT_YET = ApplicationId("")


class Estimates(enum.Enum):
    """What the scheduler knows of run times: those of the trace, those of earlier jobs of the same
    kind and user, or nothing but the default."""

    EXACT = "exact"
    LEARNED = "learned"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Seconds are virtual. ``wait``: of containers, from the request (after the tasks before it) to
    the start. ``completion``: of jobs, from arrival to end. ``history``: a hash over all starts.

    ``jobs_refused``: no node could ever serve them. ``restarts``: containers that were taken from
    their job before their time and ran again from the start.
    """

    jobs: int
    jobs_refused: int
    containers: int
    restarts: int
    wait: Distribution
    completion: Distribution
    makespan_s: float
    offered_load: float
    vcore_utilisation: float
    gpu_utilisation: float
    fragmentation: float
    events: int
    history: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """``schedulers`` of ``policy``, which gets the number of its scheduler. ``bounds``: the core's;
    its time limits for nodes and its retries are replaced as said above."""

    policy: Callable[[int], PlacementPolicy]
    schedulers: int = SCHEDULERS
    estimates: Estimates = Estimates.EXACT
    gpu_memory_mib: int = 16_384
    network_delay_s: float = 0.001
    bounds: Bounds = field(default_factory=Bounds)
    events_max: int = 50_000_000


@dataclass(slots=True)
class _Want:
    """A container that a job needs. ``asked_at_s``: its first request; there may be others."""

    task: TaskPlan
    duration_s: float
    asked_at_s: float
    started: bool = False


@dataclass(slots=True)
class _Run:
    """A live job. ``left``: containers of each task that have not ended; ``blocked``: tasks that
    wait for others, and for how many; ``children``: the tasks that wait for a task;
    ``profiles``: a number for each size of container."""

    plan: JobPlan
    left: dict[str, int]
    blocked: dict[str, int]
    children: dict[str, list[str]]
    profiles: dict[str, int]
    wants: dict[str, _Want] = field(default_factory=dict)
    application_id: ApplicationId = _NOT_YET
    executors: int = 0


def replay(plans: Sequence[JobPlan], nodes: Sequence[TraceNode], setup: Setup) -> ReplayResult:
    """Run ``plans`` (of ``plan_jobs``, at least one) to their end on ``nodes``.

    Raises:
        LimitReached: more than ``events_max`` events; lower the load or the number of jobs.
    """
    world = _Replay(plans, nodes, setup)
    world.run()
    measures = world.measures
    return ReplayResult(
        jobs=len(plans),
        jobs_refused=world.refused,
        containers=measures.starts - world.restarts,
        restarts=world.restarts,
        wait=distribution(measures.waits_s),
        completion=distribution(measures.completions_s),
        makespan_s=world.last_end_s - _START_S,
        offered_load=offered_load(plans, nodes, setup.gpu_memory_mib),
        vcore_utilisation=measures.vcore_utilisation,
        gpu_utilisation=measures.device_utilisation,
        fragmentation=measures.fragmentation,
        events=world.events,
        history=measures.history(),
    )


class _Master(DirectMaster):
    def __init__(self, world: _Replay, core: MasterCore, delay_s: float) -> None:
        super().__init__(core, world.clock, VirtualDisk(), delay_s)
        self._world = world

    def notify(self, command: c.NotifyApplication) -> None:
        self.clock.after(self.delay_s, self._world.noticed, command.application_id, command.notice)

    def complete_call(self, command: c.Reply | c.Refuse) -> None:
        if isinstance(command, c.Refuse):
            raise command.error
        if isinstance(command.result, c.ApplicationAdmitted):
            application_id = command.result.application_id
            self.clock.after(self.delay_s, self._world.admitted, command.call_id, application_id)


class _Node(DirectNode):
    """No heartbeat is due and it is not partitioned again."""

    def __init__(self, world: _Replay, core: NodeCore) -> None:
        super().__init__(core, world.clock, world.master)
        self._world = world

    def runs_s(self, spec: ContainerSpec) -> float | None:
        return self._world.started(self.name, spec)

    def over(self, spec: ContainerSpec) -> None:
        now = self.clock.now
        self._world.measures.ended(self.name, spec.unit_id, spec.resources, now)


class _Replay:
    """The jobs, and the system that serves them. Invariant: ``live`` jobs have arrived, or will,
    and are not over."""

    def __init__(self, plans: Sequence[JobPlan], nodes: Sequence[TraceNode], setup: Setup) -> None:
        self.clock = Clock(_START_S)
        self.last_end_s = _START_S
        self.events = self.refused = self.restarts = 0
        self.live = len(plans)
        self._setup = setup
        self._admissions: dict[int, _Run] = {}
        self._runs: dict[ApplicationId, _Run] = {}
        policies = [setup.policy(index) for index in range(setup.schedulers)]
        core = MasterCore(1, policies, _lean(setup), now=_START_S)
        self.master = _Master(self, core, setup.network_delay_s)
        joining = [_Node(self, _core(x, setup.gpu_memory_mib)) for x in nodes]
        units = [
            (node.name, tuple(queue.unit for queue in node.core.units.values())) for node in joining
        ]
        self.measures = Measures(units, median_request(plans))
        self.measures.begin(_START_S, _START_S + plans[-1].arrival_s)
        for node in joining:
            node.register()
        # Not even one container at a time takes as long, nor does work that preemption repeats.
        runs_s = sum(x for plan in plans for task in plan.tasks for x in task.durations_s)
        self._horizon_s = _START_S + plans[-1].arrival_s + 10 * runs_s + _SLACK_S
        for number, plan in enumerate(plans, 1):
            self.clock.at(_START_S + plan.arrival_s, self._arrive, number, plan)

    @property
    def now(self) -> float:
        return self.clock.now

    def run(self) -> None:
        """Run until the last job is over."""
        while self.live:
            self.events += 1
            if self.events > self._setup.events_max or not self.clock.step(self._horizon_s):
                first = next(iter(self._runs.values()), None)
                name = first.plan.job.job_id if first else "none of those that came"
                raise LimitReached(
                    f"{self.live} jobs are not over after {self.events} events and "
                    f"{self.now - _START_S:.0f} s, the first is {name}: the cluster is overloaded, "
                    f"or a job can never start; replay fewer jobs, or a lower load"
                )
        self.measures.finish(self.now)

    # --- jobs -----------------------------------------------------------------------------------

    def _arrive(self, number: int, plan: JobPlan) -> None:
        run = _run(plan)
        self._admissions[number] = run
        self.master.submit(
            e.ApplicationRegistered(
                now=self.now,
                call_id=number,
                application_id=ApplicationId(""),
                submission_key=str(number),
                name=plan.job.kind or "job",
                user=plan.job.user or "trace",
                declared_class=plan.job.workload_class,
                gang_min=plan.gang,
            )
        )

    def admitted(self, call_id: int, application_id: ApplicationId) -> None:
        run = self._admissions.pop(call_id, None)
        if run is None:
            return  # the reply to its attachment
        run.application_id = application_id
        self._runs[application_id] = run
        self.master.submit(
            e.ApplicationAttached(
                now=self.now,
                call_id=call_id,
                application_id=application_id,
                session=call_id,
                epoch=1,
            )
        )
        self._ask(run, [task for task in run.plan.tasks if not run.blocked[task.name]])

    def _ask(self, run: _Run, tasks: Iterable[TaskPlan]) -> None:
        """Request all containers of these tasks."""
        self._request(
            run,
            [
                _Want(task=task, duration_s=duration_s, asked_at_s=self.now)
                for task in tasks
                for duration_s in task.durations_s
            ],
        )

    def _request(self, run: _Run, wants: Iterable[_Want]) -> None:
        requests = []
        for want in wants:
            run.executors += 1
            run.wants[str(run.executors)] = want
            exact = self._setup.estimates is Estimates.EXACT
            requests.append(
                ContainerRequest(
                    executor_id=str(run.executors),
                    resource_profile_id=run.profiles[want.task.name],
                    resources=want.task.resources,
                    expected_duration_s=want.duration_s if exact else 0.0,
                    gpus=1 if want.task.resources.gpu_memory_mib else 0,
                )
            )
        if requests:
            self.master.submit(
                e.ContainersRequested(
                    now=self.now, application_id=run.application_id, requests=tuple(requests)
                )
            )

    def noticed(self, application_id: ApplicationId, notice: c.Notice) -> None:
        """An application is notified of its containers."""
        run = self._runs.get(application_id)
        if run is None:
            return
        if isinstance(notice, c.RequestRefused):
            self.refused += 1
            self._finish(run, ApplicationState.FAILED)
        elif isinstance(notice, c.ContainerChanged) and notice.status.end is not None:
            self._container_ended(run, notice.status)

    def _container_ended(self, run: _Run, status: ContainerStatus) -> None:
        want = run.wants.pop(status.executor_id, None)
        if want is None:
            return
        if status.end is not None and status.end.cause is not EndCause.EXITED:
            self.restarts += want.started
            self._request(run, [want])
            return
        name = want.task.name
        run.left[name] -= 1
        if run.left[name]:
            return
        del run.left[name]
        for child in run.children[name]:
            run.blocked[child] -= 1
        ready = {child for child in run.children[name] if not run.blocked[child]}
        self._ask(run, [task for task in run.plan.tasks if task.name in ready])
        if not run.left:
            self.last_end_s = max(self.last_end_s, self.now)
            self.measures.completions_s.append(self.now - _START_S - run.plan.arrival_s)
            self._finish(run, ApplicationState.SUCCEEDED)

    def _finish(self, run: _Run, state: ApplicationState) -> None:
        del self._runs[run.application_id]
        self.live -= 1
        self.master.submit(
            e.ApplicationFinished(now=self.now, application_id=run.application_id, state=state)
        )
        if self.live % _TICK_EVERY_JOBS == 0:
            self.clock.after(self._setup.network_delay_s, self._tick)

    def _tick(self) -> None:
        self.master.submit(e.Ticked(now=self.now))

    def started(self, node: NodeName, spec: ContainerSpec) -> float | None:
        """A container has started; returns its run time."""
        run = self._runs.get(spec.application_id)
        want = None if run is None else run.wants.get(spec.executor_id)
        self.measures.started(spec.container_id, node, spec.unit_id, spec.resources, self.now)
        if want is None:
            return None  # its job is over; the order to stop it is on its way
        if not want.started:
            want.started = True
            self.measures.waits_s.append(self.now - want.asked_at_s)
        return want.duration_s


def _run(plan: JobPlan) -> _Run:
    children: dict[str, list[str]] = {task.name: [] for task in plan.tasks}
    for task in plan.tasks:
        for parent in task.parents:
            children[parent].append(task.name)
    sizes = list(dict.fromkeys(task.resources for task in plan.tasks))
    return _Run(
        plan=plan,
        left={task.name: len(task.durations_s) for task in plan.tasks},
        blocked={task.name: len(task.parents) for task in plan.tasks},
        children=children,
        profiles={task.name: sizes.index(task.resources) for task in plan.tasks},
    )


def _lean(setup: Setup) -> Bounds:
    """The bounds without what serves heartbeats, and with rare retries."""
    learned = setup.estimates is Estimates.LEARNED
    return replace(
        setup.bounds,
        node_timeout_s=_FOR_EVER_S,
        application_grace_s=_FOR_EVER_S,
        retry_delay_max_s=_FOR_EVER_S,
        ended_applications_kept=_TICK_EVERY_JOBS,
        run_times_kept=setup.bounds.run_times_kept if learned else 0,
    )


def _core(node: TraceNode, gpu_memory_mib: int) -> NodeCore:
    """The node with default partitioning: its GPUs share all cores."""
    hardware = Hardware(
        cores=(Core(None),) * (node.vcores * PARTS_PER_CORE),
        memory_mib=node.memory_mib,
        gpus=tuple(Gpu(index=x, memory_mib=gpu_memory_mib) for x in range(node.gpus)),
    )
    return NodeCore(NodeName(node.name), partition(NodeName(node.name), hardware, Partitioning()))
