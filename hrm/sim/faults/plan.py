"""What a seed means: the cluster, the applications, and which faults happen to them when.

A plan is drawn whole before its run. Every kind of fault and every application has a source of
randomness of its own, named after the seed, so that leaving one out changes the others as little as
possible: that is what makes shrinking work. So has each *trait* (gangs, GPUs, remote schedulers and
so on), and leaving one out leaves a plainer cluster with the same faults.

Times are virtual and short (a node is lost after about five seconds, not fifteen): a run must be
cheap, because the number of runs is what finds bugs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from hrm.core.master.rounds import AT_ONCE_MAX
from hrm.core.messages.submissions import SubmissionBounds
from hrm.core.node.auto_partitioning import AutoBindingRules
from hrm.core.pool.scaler import ScalerBounds
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.vocabulary.bounds import YIELD_GRACE_S, Bounds, GpuWaiterBounds
from hrm.core.vocabulary.model import Resources, ResourceUnit, TrainingReport, WorkloadClass
from hrm.core.vocabulary.partitioning import Hardware, Partitioning
from hrm.core.vocabulary.workload_bounds import WORKLOAD_BOUNDS, WorkloadBounds
from hrm.policies.shared_gpu.container_uses import ContainerKind
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.sim.faults.pipeline_plan import PipelineClientPlan

__all__ = [
    "KINDS",
    "KINDS_OF_WORKERS",
    "TRAITS",
    "ApplicationPlan",
    "GpuWaitersPlan",
    "Limits",
    "NodePlan",
    "OtherSize",
    "Plan",
    "RemotePlan",
    "ScalingPlan",
    "SubmissionPlan",
    "TimedFault",
    "source",
]

MESSAGE_KINDS = {
    "loss": 0.02,
    "vanish": 0.08,
    "delay": 0.10,
    "duplicate": 0.08,
    "reorder": 0.08,
    "proposal-stall": 0.30,
    "proposal-death": 0.15,
    "proposal-duplicate": 0.30,
    "launch-failure": 0.08,
    "executor-crash": 0.20,
    "submitted-crash": 0.50,
    "worker-mute": 0.30,
    "worker-deaf": 0.60,
    "step-crash": 0.25,
}
"""Faults of single messages, proposals, executors and drivers, with their highest rate."""

TIMED_KINDS = {
    "partition": 3,
    "node-crash": 2,
    "node-loss": 1,
    "agent-crash": 3,
    "master-crash": 2,
    "appmaster-crash": 2,
    "driver-death": 1,
    "kill": 1,
    "drain": 2,
    "slow-disk": 3,
    "clock-skew": 1,
    "rebind": 4,
    "scheduler-crash": 3,
    "bad-node": 2,
    "submission-kill": 2,
    "driver-cut": 3,
    "full-disk": 2,
    "impostor": 4,
    "sleep": 4,
    "full-master-disk": 2,
    "lost-store": 1,
    "old-store": 1,
    "hang": 2,
    "queues-change": 3,
    "revocation": 3,
}
"""Faults that happen at moments, with the most of a kind in one run."""

KINDS = (*MESSAGE_KINDS, *TIMED_KINDS)
KINDS_OF_WORKERS = frozenset({"worker-mute", "worker-deaf", "step-crash"})
"""Those that happen to workers of pipelines alone."""
TRAITS = {
    "gangs": 0.5,
    "candidates": 0.5,
    "feedback": 0.3,
    "gpus": 0.5,
    "remotes": 0.45,
    "policies": 0.4,
    "preemption": 0.6,
    "kept-batch": 0.4,
    "auto-binding": 0.5,
    "exclusion": 0.5,
    "locality": 0.4,
    "submissions": 0.4,
    "short-turns": 0.4,
    "recurring": 0.25,
    "rival-gpus": 0.12,
    "driver-share": 0.3,
    "sizes": 0.3,
    "several-gpus": 0.5,
    "serial": 0.5,
    "labels": 0.35,
    "queues": 0.35,
    "platforms": 0.5,
    "yielding": 0.35,
    "pipelines": 0.35,
    "packing": 0.3,
    "priorities": 0.5,
    "training": 0.35,
    "scaling": 0.3,
    "gpu-waiters": 0.35,
}
"""What a run may have in addition to the plain cluster, with its probability."""

SMALL_EXECUTOR = Resources(1, 512)

QUIET_CHANCE = 0.45
"""That a kind does not happen at all in a run: few kinds at a time explore deeper."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the caller fixes; None leaves it to the seed.

    ``without``: kinds of fault that do not happen, traits that the run does not have.
    """

    nodes: int | None = None
    applications: int | None = None
    horizon_s: float | None = None
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TimedFault:
    """``pick`` and ``size``, both within [0, 1), decide what it hits and how bad it is."""

    at_s: float
    kind: str
    pick: float
    size: float


@dataclass(frozen=True, slots=True)
class GpuWaitersPlan:
    """``known``: what a node has recorded of containers' use of GPUs before the run."""

    known: tuple[tuple[ContainerKind, RecordedUse], ...]
    bounds: GpuWaiterBounds


@dataclass(frozen=True, slots=True)
class NodePlan:
    """``clock_offset_s``: against the master's.

    ``hardware`` and ``binding``: what ``units`` are partitions of, where the node can be
    partitioned again. ``preemption_grace_s``: time that preempted batch has; None: no preemption.
    ``auto_binding``: by which rules it moves the border of a partial binding itself. ``labels`` and
    ``sparks``, the versions of Spark that it has; no ``sparks``: not known. ``platform``: the group
    of like nodes that it is in. ``yield_grace_s``: time that a container has that yields.
    ``gpu_waiters``: how it orders batch for a shared GPU; None: as it came.
    """

    name: str
    units: tuple[ResourceUnit, ...]
    clock_offset_s: float
    clock_rate: float
    heartbeat_interval_s: float
    hardware: Hardware | None = None
    binding: Partitioning | None = None
    preemption_grace_s: float | None = None
    auto_binding: AutoBindingRules | None = None
    labels: tuple[str, ...] = ()
    sparks: tuple[str, ...] = ()
    platform: str = ""
    yield_grace_s: float = YIELD_GRACE_S
    gpu_waiters: GpuWaitersPlan | None = None


@dataclass(frozen=True, slots=True)
class RemotePlan:
    """One scheduler in a process of its own."""

    name: str
    policy: str


@dataclass(frozen=True, slots=True)
class OtherSize:
    """Executors of another size, in a resource profile of their own. ``targets`` and ``gpus``: as
    those of the application."""

    resources: Resources
    targets: tuple[tuple[float, int], ...]
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class ApplicationPlan:
    """One driver. ``targets``: from when on it requests how many executors; the last is at least 1.

    ``work_s``: executor seconds until it is done. ``classes``: what its AppMaster observes, when.
    ``kill_chance``: that it names executors when it lowers its target, as dynamic allocation does.
    ``gpus``: how many each executor requests; whole ones where ``resources`` name no device memory.
    0: none, or a part of one. ``other``: what it requests besides. ``gang_min``: how many executors
    are to start together; 0: each by itself.
    ``stream_min``: the same where it is a stream; 0: all that it requests at first. ``hosts``:
    where its data lies, and how many executors that would fill in ``local_executors``.
    ``title``: the name that it registers under, as others may; empty: its own. ``labels`` and
    ``spark``: what a node must have. ``exclusions``: from when on its driver excludes which hosts.
    ``queue``, ``user``, ``priority``: as it registers; ``queue`` may be empty. ``yields``: its
    executors do. ``priority_requests``: when so many steps up or down are requested for it.
    ``training``: what it reports of a model, when.
    """

    name: str
    start_s: float
    resources: Resources
    targets: tuple[tuple[float, int], ...]
    work_s: float
    declared: WorkloadClass | None = None
    classes: tuple[tuple[float, str], ...] = ()
    kill_chance: float = 0.0
    duration_hint_s: float = 0.0
    gpus: int = 0
    gang_min: int = 0
    stream_min: int = 0
    hosts: tuple[str, ...] = ()
    local_executors: int = 0
    title: str = ""
    other: OtherSize | None = None
    labels: tuple[str, ...] = ()
    spark: str = ""
    exclusions: tuple[tuple[float, tuple[str, ...]], ...] = ()
    queue: str = ""
    user: str = "somebody"
    priority: int = 0
    yields: bool = False
    priority_requests: tuple[tuple[float, int], ...] = ()
    training: tuple[tuple[float, TrainingReport], ...] = ()


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """One client that submits a driver.

    ``lives``: of each attempt, for how long its driver runs and the exit code that it then has; a
    later attempt than the last ends well after a second. ``executors``: how many it requests, each
    of ``executor``; ``gang_min``: how many of them start together. ``work_s``: executor seconds
    after which a driver is done; infinite: only its life counts. ``serial_key``: of submissions
    with the same one, one runs at a time. ``tie_s``: it is killed that long after the last sign of
    its client, which goes away ``client_life_s`` after it has submitted. ``labels``: what the node
    of its driver must have.
    """

    name: str
    start_s: float
    resources: Resources
    supervise: bool
    stream: bool
    lives: tuple[tuple[float, int], ...]
    executors: int
    executor: Resources = SMALL_EXECUTOR
    gang_min: int = 0
    work_s: float = math.inf
    serial_key: str = ""
    tie_s: float = 0.0
    client_life_s: float = math.inf
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """A scaler of the pool, which looks every ``interval_s``. ``fails``, ``lies``: that its hook
    says that it has failed, or has done other than it says; ``takes_s``: for how long it runs at
    most. ``dies``: that the process has died since the last look."""

    bounds: ScalerBounds
    interval_s: float
    fails: float = 0.0
    lies: float = 0.0
    dies: float = 0.0
    takes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before a run begins. ``at_once_max``: how many steps for streams
    fill a turn of the master; few, where streams are to hold up batch. ``queues``: the tree that
    there is at first; none: nothing is governed. ``queue_rules`` place drivers on nodes."""

    seed: int
    limits: Limits
    horizon_s: float
    schedulers: int
    bounds: Bounds
    nodes: tuple[NodePlan, ...]
    applications: tuple[ApplicationPlan, ...]
    rates: dict[str, float] = field(default_factory=dict)
    faults: tuple[TimedFault, ...] = ()
    traits: tuple[str, ...] = ()
    policy: str = "min-wait"
    remotes: tuple[RemotePlan, ...] = ()
    submissions: tuple[SubmissionPlan, ...] = ()
    submission_bounds: SubmissionBounds = field(default_factory=SubmissionBounds)
    at_once_max: int = AT_ONCE_MAX
    queues: tuple[QueueSpec, ...] = ()
    queue_rules: tuple[QueueRule, ...] = ()
    pipelines: tuple[PipelineClientPlan, ...] = ()
    workload_bounds: WorkloadBounds = WORKLOAD_BOUNDS
    scaling: ScalingPlan | None = None

    def work_s(self) -> float:
        """How long all of it runs if one thing runs after the other, as on the smallest node."""
        applications_s = sum(x.work_s for x in self.applications)
        drivers_s = sum(
            sum(run_s for run_s, _ in x.lives) if x.lives else x.work_s for x in self.submissions
        )
        pipelines_s = sum(sum(task.run_s) for client in self.pipelines for task in client.tasks)
        return applications_s + drivers_s + pipelines_s

    def command(self) -> str:
        """What to type to see exactly this run again."""
        words = ["hrm sim faults", f"--seed {self.seed}"]
        if self.limits.nodes is not None:
            words.append(f"--nodes {self.limits.nodes}")
        if self.limits.applications is not None:
            words.append(f"--applications {self.limits.applications}")
        if self.limits.horizon_s is not None:
            words.append(f"--horizon {self.limits.horizon_s:g}")
        words += [f"--without {kind}" for kind in sorted(self.limits.without)]
        return " ".join(words)

    def words(self) -> str:
        """The draw in one line."""
        rates = " ".join(f"{kind}={rate:.3f}" for kind, rate in self.rates.items() if rate)
        counts = " ".join(
            f"{kind}x{n}"
            for kind in TIMED_KINDS
            if (n := sum(fault.kind == kind for fault in self.faults))
        )
        return (
            f"seed {self.seed}: {len(self.nodes)} nodes, {self.schedulers} schedulers, "
            f"{len(self.applications)} applications, {self.horizon_s:.0f} s; "
            f"{self.policy}; {' '.join(self.traits) or 'no traits'}; "
            f"{rates or 'no message faults'}; {counts or 'no timed faults'}"
        )


def source(seed: int, purpose: str) -> Random:
    """The source of randomness of one purpose."""
    return Random(f"{seed}/{purpose}")  # nosec B311 # noqa: S311 - chance that can be repeated is the point
