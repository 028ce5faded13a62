"""What a seed means: the cluster, the applications, and which faults befall them when.

A plan is drawn whole before its run. Every kind of fault and every application has a source of
chance of its own, named after the seed, so that leaving one out changes the others as little as
possible: that is what makes shrinking work.

Beyond faults a run may have *traits*: gangs, GPUs, remote schedulers and so on. Each is drawn from
a source of its own, too, and leaving it out leaves a plainer cluster with the same faults.

Times are virtual and short (a node is lost after about five seconds, not fifteen): a run must be
cheap, because the number of runs is what finds bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from hrm.core.binding import Binding, BindingMode, Core, Hardware, cut
from hrm.core.bounds import Bounds
from hrm.core.model import (
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.sim.policies import POLICIES
from hrm.sim.room import demand_of, how_many

__all__ = [
    "KINDS",
    "TRAITS",
    "ApplicationPlan",
    "Limits",
    "NodePlan",
    "Plan",
    "RemotePlan",
    "TimedFault",
    "draw",
    "must_run_at_once",
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
}
"""Faults that befall single messages, proposals and executors, with their highest rate."""

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
}
"""Faults that happen at moments, with the most of a kind in one run."""

KINDS = (*MESSAGE_KINDS, *TIMED_KINDS)
TRAITS = {
    "gangs": 0.5,
    "candidates": 0.5,
    "feedback": 0.3,
    "gpus": 0.5,
    "remotes": 0.45,
    "policies": 0.4,
    "preemption": 0.6,
}
"""What a run may have beside the plain cluster, with the chance that it has it."""

_QUIET_CHANCE = 0.45
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
    """``pick`` and ``size``, both within [0, 1), say whom it befalls and how bad it is."""

    at_s: float
    kind: str
    pick: float
    size: float


@dataclass(frozen=True, slots=True)
class NodePlan:
    """``clock_offset_s``: against the master's.

    ``hardware`` and ``binding``: what ``units`` are cut from, where the node can be cut anew.
    ``preemption_grace_s``: time that batch has to make way for a stream; None: it never must.
    """

    name: str
    units: tuple[ResourceUnit, ...]
    clock_offset_s: float
    clock_rate: float
    heartbeat_interval_s: float
    hardware: Hardware | None = None
    binding: Binding | None = None
    preemption_grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class RemotePlan:
    """One scheduler in a process of its own."""

    name: str
    policy: str


@dataclass(frozen=True, slots=True)
class ApplicationPlan:
    """One driver. ``targets``: from when on it wants how many executors; the last is at least 1.

    ``work_s``: executor seconds until it is done. ``classes``: what its AppMaster observes, when.
    ``kill_chance``: that it names executors when it lowers its target, as dynamic allocation does.
    ``gpus``: 1 where each executor wants a GPU for itself; ``resources`` then name no device memory.
    ``gang_min``: how many executors are to start together; 0: each by itself.
    """

    name: str
    start_s: float
    resources: Resources
    targets: tuple[tuple[float, int], ...]
    work_s: float
    declared: WorkloadClass | None
    classes: tuple[tuple[float, str], ...]
    kill_chance: float
    duration_hint_s: float
    gpus: int = 0
    gang_min: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before a run begins."""

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
    """The source of chance of one purpose."""
    return Random(f"{seed}/{purpose}")  # noqa: S311 - chance that can be repeated is the point


def draw(seed: int, limits: Limits | None = None) -> Plan:
    """The plan of a seed, within the caller's limits."""
    limits = limits or Limits()
    chance = source(seed, "plan")
    horizon_s = chance.uniform(8.0, 22.0)
    node_count = chance.randint(1, 4)
    application_count = chance.randint(1, 5)
    schedulers = chance.randint(1, 3)
    bounds = _bounds(chance)
    traits = tuple(
        trait
        for trait, likely in TRAITS.items()
        if trait not in limits.without and source(seed, f"trait/{trait}").random() < likely
    )
    if limits.horizon_s is not None:
        horizon_s = limits.horizon_s
    nodes = tuple(_node(seed, n + 1, limits, traits) for n in range(limits.nodes or node_count))
    count = application_count if limits.applications is None else limits.applications
    applications = tuple(_application(seed, n + 1, horizon_s, nodes, traits) for n in range(count))
    rates = {kind: _rate(seed, kind, top, limits) for kind, top in MESSAGE_KINDS.items()}
    faults = [
        fault
        for kind, most in TIMED_KINDS.items()
        if kind not in limits.without
        for fault in _timed(seed, kind, most, horizon_s)
    ]
    faults.sort(key=lambda fault: fault.at_s)
    return Plan(
        seed,
        limits,
        horizon_s,
        schedulers,
        _bounds_of_traits(seed, bounds, traits),
        nodes,
        applications,
        rates,
        tuple(faults),
        traits,
        _policy(source(seed, "policy"), traits),
        _remotes(seed, traits),
    )


def _bounds(chance: Random) -> Bounds:
    tight = chance.random() < 0.3
    return Bounds(
        node_timeout_s=chance.uniform(3.5, 6.0),
        application_grace_s=chance.uniform(6.0, 12.0),
        lease_timeout_s=chance.uniform(0.3, 1.5),
        proposal_timeout_s=chance.uniform(0.5, 2.0),
        resend_delay_s=chance.uniform(0.8, 1.5),
        recovery_window_s=chance.uniform(1.5, 5.0),
        stop_grace_s=chance.uniform(0.2, 1.5),
        default_duration_s=10.0,
        wait_max_s=chance.uniform(5.0, 60.0),
        waiting_limit=chance.randint(1, 3) if tight else 64,
    )


def _bounds_of_traits(seed: int, bounds: Bounds, traits: tuple[str, ...]) -> Bounds:
    chance = source(seed, "bounds")
    return replace(
        bounds,
        scheduler_timeout_s=chance.uniform(3.0, 6.0),
        rebind_timeout_s=chance.uniform(0.5, 3.0),
        lease_scope="candidates" if "candidates" in traits else "global",
        waiting_bound="feedback" if "feedback" in traits else "limit",
    )


def _policy(chance: Random, traits: tuple[str, ...]) -> str:
    """Min-wait most often: it is what HRM has by default."""
    if "policies" not in traits or chance.random() < 0.4:
        return "min-wait"
    return chance.choice(sorted(POLICIES))


def _remotes(seed: int, traits: tuple[str, ...]) -> tuple[RemotePlan, ...]:
    if "remotes" not in traits:
        return ()
    chance = source(seed, "remotes")
    names = [f"outside-{n + 1}" for n in range(chance.randint(1, 2))]
    return tuple(RemotePlan(name, _policy(chance, traits)) for name in names)


def _node(seed: int, number: int, limits: Limits, traits: tuple[str, ...]) -> NodePlan:
    chance = source(seed, f"node-{number}")
    name = f"node-{number}"
    vcores = chance.randint(2, 8)
    memory_mib = 1024 * chance.randint(2, 12)
    run_limit = chance.randint(2, vcores) if chance.random() < 0.3 else vcores
    units = [_unit(f"{name}/cpu", Resources(vcores, memory_mib), run_limit)]
    if chance.random() < 0.25:
        units.append(_unit(f"{name}/gpu0", Resources(chance.randint(2, 4), 8192, 16384), 4))
    skewed = chance.random() < 0.5 and "clock-skew" not in limits.without
    offset_s = chance.uniform(-30.0, 30.0) if skewed else 0.0
    rate = chance.uniform(0.98, 1.02) if skewed else 1.0
    node = NodePlan(name, tuple(units), offset_s, rate, chance.uniform(0.7, 1.1))
    if "preemption" in traits:
        grace_s = source(seed, f"preemption-{number}").uniform(0.2, 4.0)
        node = replace(node, preemption_grace_s=grace_s)
    return _with_hardware(seed, number, node) if "gpus" in traits else node


def _unit(unit_id: str, capacity: Resources, run_limit: int) -> ResourceUnit:
    return ResourceUnit(unit_id=ResourceUnitId(unit_id), capacity=capacity, run_limit=run_limit)


def _with_hardware(seed: int, number: int, node: NodePlan) -> NodePlan:
    """Most nodes of a cluster with GPUs: one that is cut by a binding, and can be cut anew."""
    chance = source(seed, f"hardware-{number}")
    if chance.random() < 0.25:
        return node
    cores, sockets = chance.randint(3, 8), chance.randint(1, 2)
    count = 0 if chance.random() < 0.1 else chance.randint(1, 2)
    hardware = Hardware(
        cores=tuple(Core(index, index % sockets) for index in range(cores)),
        memory_mib=1024 * chance.randint(6, 16),
        gpus=tuple(
            Gpu(index=index, memory_mib=chance.choice((8192, 16384)), numa=index % sockets)
            for index in range(count)
        ),
        run_limit=chance.choice((0, 0, 0, 3)),
    )
    binding = Binding(
        mode=chance.choice(list(BindingMode)),
        bound_cores=chance.randint(1, (cores - 1) // max(1, count)),
        reserve_cores=1,
        gpu_host_memory_mib=chance.choice((0, 0, 1536)),
    )
    units = cut(NodeName(node.name), hardware, binding)
    return replace(node, units=units, hardware=hardware, binding=binding)


def _application(
    seed: int,
    number: int,
    horizon_s: float,
    nodes: tuple[NodePlan, ...],
    traits: tuple[str, ...],
) -> ApplicationPlan:
    chance = source(seed, f"application-{number}")
    name = f"app-{number}"
    gpus = 0
    burst = chance.random() < 0.5
    start_s = 1.0 if burst else chance.uniform(0.5, 0.6 * horizon_s)
    if chance.random() < 0.05:
        resources = Resources(64, 1024)
    else:
        unit = chance.choice(chance.choice(nodes).units)
        home = unit.capacity
        gpu = chance.choice((4096, 8192)) if home.gpu_memory_mib else 0
        vcores = chance.randint(1, min(4, home.vcores))
        memory_mib = min(512 * chance.randint(1, 4), home.memory_mib)
        resources = Resources(vcores, memory_mib, gpu)
        if unit.gpu is not None:
            resources, gpus = _use_of_gpu(source(seed, f"gpu-{number}"), resources, unit)
    stream = chance.random() < 0.5
    targets = [(0.0, chance.randint(1, 3 if stream else 6))]
    if not stream or chance.random() < 0.3:
        targets += [
            (chance.uniform(0.5, horizon_s), chance.randint(0, 6))
            for _ in range(chance.randint(0, 4))
        ]
    targets.sort()
    targets.append((horizon_s, chance.randint(1, 2)))
    classes = []
    if stream:
        classes.append((chance.uniform(0.0, 2.0), "STREAM"))
    changes = chance.randint(0, 2) if chance.random() < 0.3 else 0
    classes += [
        (chance.uniform(0.5, horizon_s), chance.choice(("BATCH", "STREAM"))) for _ in range(changes)
    ]
    declared = None
    if chance.random() < 0.3:
        declared = WorkloadClass.STREAM if stream else WorkloadClass.BATCH
    plan = ApplicationPlan(
        name,
        start_s,
        resources,
        tuple(targets),
        chance.uniform(1.0, 12.0),
        declared,
        tuple(sorted(classes)),
        chance.choice((0.0, 0.7)),
        chance.choice((0.0, 3.0)),
        gpus,
    )
    if "preemption" in traits:
        plan = _crowded(source(seed, f"crowd-{number}"), plan, stream=stream)
    if "gangs" in traits:
        plan = _with_gang(source(seed, f"gang-{number}"), plan, nodes)
    return _that_runs_at_once(plan, nodes) if must_run_at_once(traits) else plan


def must_run_at_once(traits: tuple[str, ...]) -> bool:
    """May nobody count on a place in a unit's queue? Some policies and bounds let none wait there.

    A stream, which is granted all or nothing, must then want no more than there is room for.
    """
    return "policies" in traits or "feedback" in traits


def _that_runs_at_once(plan: ApplicationPlan, nodes: tuple[NodePlan, ...]) -> ApplicationPlan:
    *begin, (end_s, last) = plan.targets
    units = [unit for node in nodes for unit in node.units]
    most = how_many(demand_of(plan.resources, plan.gpus, units), units)
    return replace(plan, targets=(*begin, (end_s, min(last, max(1, most)))))


def _use_of_gpu(chance: Random, resources: Resources, unit: ResourceUnit) -> tuple[Resources, int]:
    """A part of the GPU as drawn, a whole one, or, where the unit allows it, none."""
    kind = chance.random()
    if kind < 0.3:
        return replace(resources, gpu_memory_mib=0), 1
    if kind < 0.5 and not unit.gpu_only:
        return replace(resources, gpu_memory_mib=0), 0
    return resources, 0


def _crowded(chance: Random, plan: ApplicationPlan, *, stream: bool) -> ApplicationPlan:
    """Batch takes whatever there is, and streams come when it has."""
    if chance.random() < 0.3:
        return plan
    if stream:
        declared = WorkloadClass.STREAM if chance.random() < 0.7 else plan.declared
        start_s = plan.start_s + chance.uniform(0.5, 4.0)
        return replace(plan, start_s=start_s, declared=declared)
    (begin_s, _), *later = plan.targets
    targets = ((begin_s, chance.randint(4, 12)), *later)
    start_s = min(plan.start_s, chance.uniform(0.5, 1.5))
    work_s = plan.work_s + chance.uniform(5.0, 40.0)
    return replace(plan, start_s=start_s, targets=targets, work_s=work_s)


def _with_gang(
    chance: Random, plan: ApplicationPlan, nodes: tuple[NodePlan, ...]
) -> ApplicationPlan:
    """Let some applications start together; a few ask for more than the cluster has."""
    if chance.random() < 0.5:
        return plan
    gang = chance.randint(2, 5)
    if chance.random() < 0.95:
        units = [unit for node in nodes for unit in node.units]
        gang = min(gang, how_many(demand_of(plan.resources, plan.gpus, units), units))
    if gang < 2:
        return plan
    (begin_s, first), *middle, (end_s, last) = plan.targets
    targets = ((begin_s, max(first, gang)), *middle, (end_s, max(last, gang)))
    return replace(plan, targets=targets, gang_min=gang)


def _rate(seed: int, kind: str, top: float, limits: Limits) -> float:
    chance = source(seed, f"rate/{kind}")
    if chance.random() < _QUIET_CHANCE or kind in limits.without:
        return 0.0
    return top * chance.random()


def _timed(seed: int, kind: str, most: int, horizon_s: float) -> list[TimedFault]:
    chance = source(seed, f"timed/{kind}")
    if chance.random() < _QUIET_CHANCE:
        return []
    draws: Callable[[], float] = chance.random
    return [
        TimedFault(1.5 + draws() * max(0.5, horizon_s - 2.0), kind, draws(), draws())
        for _ in range(chance.randint(1, most))
    ]
