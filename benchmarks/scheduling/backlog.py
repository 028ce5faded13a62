"""What a container's end costs while jobs wait, and what a cluster without a free slot places.

The master's core, its schedulers and the order of their rounds, without store and network, in
virtual time. All slots of the cluster are taken, and nothing may wait at a unit, so each end gives
one slot to one of the jobs that wait. These request one container each, of ``DEMANDS`` sizes, or
are of one of the ``KINDS``: with one node excluded for all of them; gangs of two, none of which one
slot serves; streams, none of which starts in less than what two ends free; applications that want a
GPU each, in a cluster of ``GPU_NODES`` at most, whose every slot has one.

With ``waiting_limit`` containers do wait at units, as by default: a request is then placed there.

An end is counted from the node's report until no round is due any more: it includes the placement
that follows, and the rounds of other jobs that find nothing.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.scheduling.cells import (
    BATCH,
    NODE_SLOTS,
    STREAM,
    TASK,
    building,
    node_names,
    unit_of,
)
from hrm import policies
from hrm.core.master.core import MasterCore
from hrm.core.master.exclusion import CONFIRM_S
from hrm.core.master.rounds import RoundSequencer
from hrm.core.master.wake_timers import WakeTimers
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
    WorkloadClass,
)

__all__ = [
    "DEMANDS",
    "GPU_NODES",
    "KINDS",
    "Ends",
    "FullCluster",
    "measure_ends",
    "measure_queued",
    "measure_requests",
]

DEMANDS = 4
GPU_NODES = 1
KINDS = ("excluded", "gang", "stream", "gpu")
_STEP_S = 0.01
_GPU_TASK = replace(TASK, gpu_memory_mib=1_000)
_FOR_EVER_S = 1e6
_MORE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of containers, one after the other. ``ms``: processor time of each, with what follows;
    ``rounds`` and ``placed``: of all schedulers meanwhile."""

    jobs: int
    ms: Sequence[float]
    rounds: int
    placed: int

    @property
    def median_ms(self) -> float:
        return median(self.ms)


class FullCluster:
    """A master's core over like nodes whose slots are all taken, and ``jobs`` that wait."""

    def __init__(
        self,
        nodes: int,
        jobs: int,
        schedulers: int,
        *,
        policy: str = "min-wait",
        tasks: int = 1,
        kind: str = "",
        waiting_limit: int = 0,
        queues: Sequence[QueueSpec] = (),
    ) -> None:
        nodes = min(nodes, GPU_NODES) if kind == "gpu" else nodes
        slots = nodes * NODE_SLOTS
        bounds = Bounds(
            node_timeout_s=1e9, node_failures=int(kind == "excluded"), node_exclusion_s=_FOR_EVER_S,
            node_exclusion_max_s=_FOR_EVER_S, waiting_limit=waiting_limit,
            applications_limit=jobs + _MORE, containers_limit=2 * slots + jobs * tasks + _MORE,
        )  # fmt: skip
        chosen = [policies.load(policy, x) for x in range(schedulers)]
        self.core = MasterCore(1, chosen, bounds, queues=QueueTree.of(queues))
        self.now = 1_000.0
        self.running: deque[tuple[NodeName, c.AssignContainer]] = deque()
        self._rounds = RoundSequencer(self.core)
        self._wakes = WakeTimers()
        self._calls = itertools.count(1)
        self._sequences = itertools.count(2)
        self._admitted = ApplicationId("")
        with building():
            for name in node_names(nodes):
                self.submit(
                    e.NodeRegistered(
                        now=self.now, call_id=next(self._calls), node=name, identity=name,
                        incarnation="1", sequence=1, host="h", endpoint="h:1",
                        units=(_unit_of(name, kind),),
                    )
                )  # fmt: skip
            self._fill(slots, jobs, tasks, kind)

    def _fill(self, slots: int, jobs: int, tasks: int, kind: str) -> None:
        """One application takes all slots; ``jobs`` of this kind wait."""
        self.request(self.register(), slots, _GPU_TASK if kind == "gpu" else TASK)
        self._wait(jobs, tasks, kind)

    def _wait(self, jobs: int, tasks: int, kind: str) -> None:
        """``jobs`` of this kind arrive."""
        if kind == "excluded":
            self._exclude(next(iter(self.core.master_state.nodes)))
        for number in range(jobs):
            if kind == "gang":
                self.request(self.register(gang_min=2), 2, TASK)
            elif kind == "stream":
                self.request(self.register(STREAM), 2, TASK)
            elif kind == "gpu":
                self.request(self.register(), tasks, _GPU_TASK)
            else:
                size = number % DEMANDS
                self.request(self.register(), tasks, Resources(1, TASK.memory_mib * (1 + size)))

    def _exclude(self, node: NodeName) -> None:
        """For all, as after its containers of several applications have failed."""
        exclusions = self.core.master_state.exclusions
        end = ContainerEnd(cause=EndCause.EXITED, exit_code=1)
        for number in range(Bounds().node_failing_applications):
            exclusions.failed(ApplicationId(f"failing-{number}"), node, end, self.now)
        self.now += 2 * CONFIRM_S
        many = len(self.core.master_state.nodes)
        excluded = exclusions.tick(self.now, lambda _: True, lambda: many)
        assert excluded == [node], "the node is excluded for all"

    @property
    def rounds(self) -> int:
        return sum(scheduler.rounds for scheduler in self.core.placement.schedulers.values())

    def register(
        self, declared_class: WorkloadClass = BATCH, gang_min: int = 0, queue: str = ""
    ) -> ApplicationId:
        call_id = next(self._calls)
        self.submit(
            e.ApplicationRegistered(
                now=self.now, call_id=call_id, application_id=ApplicationId(""),
                submission_key=f"key-{call_id}", name="app", user="user",
                declared_class=declared_class, gang_min=gang_min, queue=queue,
            )
        )  # fmt: skip
        return self._admitted

    def request(self, app: ApplicationId, tasks: int, resources: Resources) -> None:
        requests = tuple(
            ContainerRequest(executor_id=str(x), resource_profile_id=0, resources=resources)
            for x in range(1, tasks + 1)
        )
        self.submit(e.ContainersRequested(now=self.now, application_id=app, requests=requests))

    def end_one(self) -> None:
        """The container that has run for longest ends; all that follows."""
        node, message = self.running.popleft()
        self.now += _STEP_S
        spec = message.spec
        status = ContainerStatus(
            container_id=spec.container_id, application_id=spec.application_id,
            executor_id=spec.executor_id, resource_profile_id=0,
            workload_class=spec.workload_class, resources=spec.resources,
            state=ContainerState.ENDED, node=node, unit_id=spec.unit_id, started_at_s=1.0,
            end=ContainerEnd(cause=EndCause.EXITED, exit_code=0),
        )  # fmt: skip
        self.submit(
            e.ContainerReported(
                now=self.now, node=node, incarnation="1", sequence=next(self._sequences),
                container=status,
            )
        )  # fmt: skip

    def submit(self, event: e.MasterEvent) -> None:
        """Handle an event and all rounds that are due then, as the master's loop does."""
        following: e.MasterEvent | None = event
        while following is not None:
            for command in self.core.handle(following):
                self._carry_out(command)
            for name in self._wakes.take_due(self.now):
                self._rounds.wake(name, self.now)
            self._rounds.taken(following, self.now)
            following = self._rounds.at_once(self.now) or self._rounds.step(self.now)

    def _carry_out(self, command: c.MasterCommand) -> None:
        if isinstance(command, c.WakeScheduler):
            self._wakes.set(command.scheduler, command.at_s)
        elif isinstance(command, c.ProposeClaims):
            self._rounds.propose(command.proposal)
        elif isinstance(command, c.SendToNode):
            if isinstance(command.message, c.AssignContainer):
                self.running.append((command.node, command.message))
        elif isinstance(command, c.Reply) and isinstance(command.result, c.ApplicationAdmitted):
            self._admitted = command.result.application_id


def _unit_of(node: NodeName, kind: str) -> ResourceUnit:
    unit = unit_of(node)
    if kind != "gpu":
        return unit
    gpus_mib = NODE_SLOTS * _GPU_TASK.gpu_memory_mib
    return replace(unit, capacity=replace(unit.capacity, gpu_memory_mib=gpus_mib))


def measure_ends(cluster: FullCluster, ends: int) -> Ends:
    """Let ``ends`` containers end, and count each."""
    ms: list[float] = []
    for _ in range(min(20, ends)):
        cluster.end_one()
    gc.collect()
    gc.freeze()
    jobs = sum(len(x.jobs) for x in cluster.core.placement.schedulers.values())
    rounds, running = cluster.rounds, len(cluster.running)
    try:
        for _ in range(ends):
            begun_s = time.process_time()
            cluster.end_one()
            ms.append(1e3 * (time.process_time() - begun_s))
    finally:
        gc.unfreeze()
    return Ends(
        jobs=jobs, ms=ms, rounds=cluster.rounds - rounds,
        placed=len(cluster.running) - running + ends,
    )  # fmt: skip


def measure_requests(cluster: FullCluster, jobs: int) -> float:
    """The median processor time, milliseconds, of one job that requests a container and finds no
    place; it withdraws before the next one comes."""
    ms: list[float] = []
    for _ in range(jobs):
        cluster.now += _STEP_S
        app = cluster.register()
        begun_s = time.process_time()
        cluster.request(app, 1, TASK)
        ms.append(1e3 * (time.process_time() - begun_s))
        finished = e.ApplicationFinished(
            now=cluster.now, application_id=app, state=ApplicationState.SUCCEEDED
        )
        cluster.submit(finished)
    return median(ms)


def measure_queued(cluster: FullCluster, waiters: int) -> list[float]:
    """Processor times, milliseconds, of jobs that request a container each, which then waits at a
    unit, until ``waiters`` wait at each on average. Every fourth is of the same size."""
    ms: list[float] = []
    for number in range(waiters * len(cluster.core.master_state.nodes)):
        cluster.now += _STEP_S
        app = cluster.register()
        size = Resources(1, TASK.memory_mib * (1 + number % DEMANDS))
        begun_s = time.process_time()
        cluster.request(app, 1, size)
        ms.append(1e3 * (time.process_time() - begun_s))
    return ms
