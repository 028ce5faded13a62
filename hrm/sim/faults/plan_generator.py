"""How a seed becomes a plan: every draw, each from a source of randomness of its own.

The order of draws within one source is part of what a kept seed means. What is new gets a source of
its own, and belongs to a trait that kept seeds can leave out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

from hrm.core.master.rounds import AT_ONCE_MAX
from hrm.core.messages.submissions import SubmissionBounds
from hrm.core.vocabulary.bounds import AutoBindingRules, Bounds
from hrm.core.vocabulary.model import (
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.sim.actors.policies import POLICIES
from hrm.sim.faults.capacity import demand_of, how_many, next_to
from hrm.sim.faults.gpu_waiters import with_gpu_waiters, with_known_uses
from hrm.sim.faults.labels import nodes_for, with_labels, with_needs
from hrm.sim.faults.pipelines import with_pipelines
from hrm.sim.faults.plan import (
    MESSAGE_KINDS,
    QUIET_CHANCE,
    SMALL_EXECUTOR,
    TIMED_KINDS,
    TRAITS,
    ApplicationPlan,
    Limits,
    NodePlan,
    Plan,
    RemotePlan,
    SubmissionPlan,
    TimedFault,
    source,
)
from hrm.sim.faults.platforms import with_platforms
from hrm.sim.faults.priorities import with_priorities
from hrm.sim.faults.queues import with_queues
from hrm.sim.faults.rivals import rival_applications, with_rival_gpus
from hrm.sim.faults.scaling import with_scaling
from hrm.sim.faults.sizes import fits_whole, with_other_size, with_several_gpus
from hrm.sim.faults.training import with_training
from hrm.sim.faults.yielding import with_yielding

__all__ = ["draw", "must_run_at_once"]

_RENEWALS = 6
"""In the time of one lease, as many as by default."""


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
    if "driver-share" in traits:
        traits = _traits_of_drivers(traits)
    if "remotes" in traits and source(seed, "remotes-only").random() < 0.7:
        schedulers = 1  # the more is placed by the others
    if limits.horizon_s is not None:
        horizon_s = limits.horizon_s
    nodes = tuple(_node(seed, n + 1, limits, traits) for n in range(limits.nodes or node_count))
    count = application_count if limits.applications is None else limits.applications
    if "rival-gpus" in traits:
        nodes = with_rival_gpus(seed, nodes)
        applications = rival_applications(seed, horizon_s, nodes, count)
    else:
        each = range(1, count + 1)
        applications = tuple(_application_for_some(seed, n, horizon_s, nodes, traits) for n in each)
    rates = {kind: _rate(seed, kind, top, limits) for kind, top in MESSAGE_KINDS.items()}
    faults = [
        fault
        for kind, most in TIMED_KINDS.items()
        if kind not in limits.without
        for fault in _timed(seed, kind, most, horizon_s)
    ]
    faults.sort(key=lambda fault: fault.at_s)
    plan = Plan(
        seed=seed,
        limits=limits,
        horizon_s=horizon_s,
        schedulers=schedulers,
        bounds=_bounds_of_traits(seed, bounds, traits),
        nodes=nodes,
        applications=applications,
        rates=rates,
        faults=tuple(faults),
        traits=traits,
        policy=_policy(source(seed, "policy"), traits),
        remotes=_remotes(seed, traits),
        submissions=_submissions(seed, horizon_s, nodes, traits),
        submission_bounds=_submission_bounds(seed, bounds),
        at_once_max=_at_once_max(seed, traits),
    )
    if "yielding" in traits and "rival-gpus" not in traits:
        plan = with_yielding(plan)
    if "gpu-waiters" in traits and "rival-gpus" not in traits:
        plan = with_gpu_waiters(plan)
    if "pipelines" in traits:
        plan = with_pipelines(plan)
    if "scaling" in traits:
        plan = with_scaling(plan)
    if "queues" in traits:
        plan = with_queues(plan)
        plan = with_priorities(plan) if "priorities" in traits else plan
        plan = with_platforms(plan) if "platforms" in traits else plan
    return with_known_uses(plan) if "gpu-waiters" in traits else plan


def _at_once_max(seed: int, traits: tuple[str, ...]) -> int:
    """With the trait the streams of few applications fill a turn."""
    return source(seed, "short-turns").randint(1, 2) if "short-turns" in traits else AT_ONCE_MAX


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


def _with_rules(seed: int, number: int, node: NodePlan) -> NodePlan:
    """A node that moves the border between GPU and CPU cores itself; its binding has one."""
    if node.hardware is None or node.binding is None or not node.hardware.gpus:
        return node
    chance = source(seed, f"rules-{number}")
    rules = AutoBindingRules(
        window=chance.randint(1, 3),
        busy_percent=chance.uniform(20.0, 60.0),
        idle_percent=chance.uniform(10.0, 20.0),
        pause_s=chance.uniform(0.3, 2.0),
    )
    chance.choice((0.0, chance.uniform(0.5, 4.0), chance.uniform(0.5, 4.0)))  # kept seeds draw it
    most = (len(node.hardware.cores) - 1) // len(node.hardware.gpus)
    bound = chance.randint(1, max(1, most - 1))
    binding = replace(node.binding, mode=BindingMode.PARTIAL, bound_cores=bound)
    units = partition(NodeName(node.name), node.hardware, binding)
    return replace(node, units=units, binding=binding, auto_binding=rules)


def _bounds_of_traits(seed: int, bounds: Bounds, traits: tuple[str, ...]) -> Bounds:
    chance, moves = source(seed, "bounds"), source(seed, "relocation")
    if "training" in traits:
        few = source(seed, "training").choice((3, 60))
        bounds = replace(bounds, elastic_period_s=1.0, elastic_resizes_per_minute=few)
    if "remotes" in traits:
        bounds = replace(bounds, lease_timeout_s=chance.uniform(0.3, 4.0))
    bounds = _with_exclusion(seed, bounds, traits)
    share = source(seed, "driver-share").uniform(0.1, 0.6) if "driver-share" in traits else 1.0
    if "rival-gpus" in traits:
        bounds = replace(bounds, gpu_preemption=source(seed, "gpu-preemption").random() < 0.5)
    return replace(
        bounds,
        driver_share=share,
        scheduler_timeout_s=chance.uniform(3.0, 6.0),
        rebind_timeout_s=chance.uniform(0.5, 3.0),
        lease_scope="candidates" if "candidates" in traits else "global",
        waiting_bound="feedback" if "feedback" in traits else "limit",
        # In every second run, containers wait where they are.
        class_guess_s=source(seed, "guesses").uniform(2.0, 6.0),
        gang_wait_s=source(seed, "gang-wait").uniform(1.0, 6.0),
        relocation_wait_s=math.inf if moves.random() >= 0.5 else moves.uniform(0.5, 10.0),
    )


def _with_exclusion(seed: int, bounds: Bounds, traits: tuple[str, ...]) -> Bounds:
    """Nodes at which executors fail are excluded for a while; without the trait, never."""
    if "exclusion" not in traits:
        return replace(bounds, node_failures=0)
    chance = source(seed, "exclusion")
    return replace(
        bounds,
        node_failures=chance.randint(1, 2),
        node_failure_run_s=chance.uniform(1.0, 10.0),
        node_failure_window_s=chance.uniform(5.0, 30.0),
        node_failing_applications=chance.randint(1, 2),
        node_exclusion_s=chance.uniform(1.0, 6.0),
        node_exclusion_max_s=chance.uniform(6.0, 15.0),
    )


def _policy(chance: Random, traits: tuple[str, ...]) -> str:
    """The default most often: min-wait, with the trait "packing" fragmentation in its place."""
    default = "fragmentation" if "packing" in traits else "min-wait"
    if "policies" not in traits or chance.random() < 0.4:
        return default
    return chance.choice([name for name in sorted(POLICIES) if name != "fragmentation"])


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
    if "kept-batch" in traits and source(seed, f"kept-batch-{number}").random() < 0.5:
        node = replace(node, preemption_grace_s=None)
    if "gpus" in traits:
        node = _with_hardware(seed, number, node)
    if "several-gpus" in traits:
        node = with_several_gpus(source(seed, f"several-{number}"), node)
    if "labels" in traits:
        node = with_labels(source(seed, f"labels-{number}"), node)
    return _with_rules(seed, number, node) if "auto-binding" in traits else node


def _unit(unit_id: str, capacity: Resources, run_limit: int) -> ResourceUnit:
    return ResourceUnit(unit_id=ResourceUnitId(unit_id), capacity=capacity, run_limit=run_limit)


def _with_hardware(seed: int, number: int, node: NodePlan) -> NodePlan:
    """Most nodes of a cluster with GPUs: partitioned by a binding, and again on request."""
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
    binding = Partitioning(
        mode=chance.choice(list(BindingMode)),
        bound_cores=chance.randint(1, (cores - 1) // max(1, count)),
        reserve_cores=1,
        gpu_host_memory_mib=chance.choice((0, 0, 1536)),
    )
    units = partition(NodeName(node.name), hardware, binding)
    return replace(node, units=units, hardware=hardware, binding=binding)


def _application(
    seed: int, number: int, horizon_s: float, nodes: tuple[NodePlan, ...], traits: tuple[str, ...]
) -> ApplicationPlan:
    chance = source(seed, f"application-{number}")
    name, gpus = f"app-{number}", 0
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
            if len(unit.gpus) > 1 and (gpus or resources.gpu_memory_mib):
                gpus = len(unit.gpus)
    stream = chance.random() < 0.5
    targets = [(0.0, chance.randint(1, 3 if stream else 6))]
    if not stream or chance.random() < 0.3:
        targets += [
            (chance.uniform(0.5, horizon_s), chance.randint(0, 6))
            for _ in range(chance.randint(0, 4))
        ]
    targets.sort()
    targets.append((horizon_s, chance.randint(1, 2)))
    classes = [(chance.uniform(0.0, 2.0), "STREAM")] if stream else []
    changes = chance.randint(0, 2) if chance.random() < 0.3 else 0
    classes += [
        (chance.uniform(0.5, horizon_s), chance.choice(("BATCH", "STREAM"))) for _ in range(changes)
    ]
    declared = None
    if chance.random() < 0.3:
        declared = WorkloadClass.STREAM if stream else WorkloadClass.BATCH
    plan = ApplicationPlan(
        name=name,
        start_s=start_s,
        resources=resources,
        targets=tuple(targets),
        work_s=chance.uniform(1.0, 12.0),
        declared=declared,
        classes=tuple(sorted(classes)),
        kill_chance=chance.choice((0.0, 0.7)),
        duration_hint_s=chance.choice((0.0, 3.0)),
        gpus=gpus,
    )
    if gpus and not _fit_at_once(plan, nodes):
        # Which GPU is the largest depends on the nodes present; what fits none may run at first.
        gpus = gpus if gpus > 1 else 0
        plan = replace(plan, gpus=gpus, resources=replace(resources, gpu_memory_mib=4096))
    if "preemption" in traits:
        plan = _crowded(source(seed, f"crowd-{number}"), plan, stream=stream)
    if "kept-batch" in traits and stream:
        plan = replace(plan, work_s=plan.work_s + source(seed, f"lasting-{number}").uniform(0, 15))
    if "recurring" in traits:
        plan = _recurring(source(seed, f"title-{number}"), plan, number)
    if "training" in traits:
        plan = with_training(source(seed, f"training-{number}"), plan, horizon_s)
    if "gangs" in traits:
        plan = _with_gang(source(seed, f"gang-{number}"), plan, nodes)
    if "locality" in traits:
        plan = _with_data(source(seed, f"data-{number}"), plan, nodes)
    if "sizes" in traits:
        plan = with_other_size(source(seed, f"sizes-{number}"), plan, nodes, horizon_s)
    plan = _that_begins(plan, nodes)
    return _that_runs_at_once(plan, nodes) if must_run_at_once(traits) else plan


def _application_for_some(
    seed: int, number: int, horizon_s: float, nodes: tuple[NodePlan, ...], traits: tuple[str, ...]
) -> ApplicationPlan:
    """One that may require something of nodes, and fits those that have it."""
    needs = ApplicationPlan(f"app-{number}", 0.0, SMALL_EXECUTOR, (), 0.0)
    if "labels" in traits:
        needs = with_needs(source(seed, f"needs-{number}"), needs, nodes, horizon_s)
    plan = _application(seed, number, horizon_s, nodes_for(needs, nodes), traits)
    return replace(plan, labels=needs.labels, spark=needs.spark, exclusions=needs.exclusions)


def must_run_at_once(traits: tuple[str, ...]) -> bool:
    """Is no place in a unit's queue certain? Some policies and bounds let no container wait there.

    A stream, which is granted all or nothing, must then request no more than fits at once.
    """
    return "policies" in traits or "feedback" in traits


def _that_runs_at_once(plan: ApplicationPlan, nodes: tuple[NodePlan, ...]) -> ApplicationPlan:
    *begin, (end_s, last) = plan.targets
    most = max(1, _fit_at_once(plan, nodes))
    plan = replace(plan, targets=(*begin, (end_s, min(last, most))))
    if plan.other is None:
        return plan
    *begin, (end_s, _) = plan.other.targets
    return replace(plan, other=replace(plan.other, targets=(*begin, (end_s, 0))))


def _that_begins(plan: ApplicationPlan, nodes: tuple[NodePlan, ...]) -> ApplicationPlan:
    """A stream that requests more than there is says with how many it may begin."""
    most = max(count for _, count in plan.targets)
    fitting = _fit_at_once(plan, nodes)
    if plan.other is not None and not plan.gang_min:
        whole = fits_whole(plan, [unit for node in nodes for unit in node.units])
        return plan if whole else replace(plan, stream_min=1)
    if plan.gang_min or fitting >= most:
        return plan
    return replace(plan, stream_min=max(1, fitting // 2))


def _fit_at_once(plan: ApplicationPlan, nodes: tuple[NodePlan, ...]) -> int:
    units = [unit for node in nodes for unit in node.units]
    return how_many(demand_of(plan.resources, plan.gpus, units), units)


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


def _recurring(chance: Random, plan: ApplicationPlan, number: int) -> ApplicationPlan:
    """One of few names; most begin when another of that name has ended."""
    later_s = chance.uniform(0.0, 8.0) * (number - 1)
    title = f"job-{chance.randint(1, 2)}"
    return replace(plan, title=title, start_s=plan.start_s + later_s)


def _with_gang(
    chance: Random, plan: ApplicationPlan, nodes: tuple[NodePlan, ...]
) -> ApplicationPlan:
    """Let some applications start together; a few request more than the cluster has."""
    if chance.random() < 0.5:
        return plan
    gang = chance.randint(2, 5)
    if chance.random() < 0.95:
        gang = min(gang, _fit_at_once(plan, nodes))
    if gang < 2:
        return plan
    (begin_s, first), *middle, (end_s, last) = plan.targets
    if chance.random() < 0.5:
        last = max(last, gang)
    targets = ((begin_s, max(first, gang)), *middle, (end_s, last))
    return replace(plan, targets=targets, gang_min=gang)


def _with_data(
    chance: Random, plan: ApplicationPlan, nodes: tuple[NodePlan, ...]
) -> ApplicationPlan:
    """Let most applications have data on some hosts, not all of which are nodes of the cluster."""
    if chance.random() < 0.3:
        return plan
    names = [node.name for node in nodes] + ["elsewhere"]
    hosts = tuple(chance.sample(names, chance.randint(1, min(2, len(names)))))
    return replace(plan, hosts=hosts, local_executors=chance.randint(1, 4))


def _rate(seed: int, kind: str, top: float, limits: Limits) -> float:
    chance = source(seed, f"rate/{kind}")
    if chance.random() < QUIET_CHANCE or kind in limits.without:
        return 0.0
    return top * chance.random()


def _timed(seed: int, kind: str, most: int, horizon_s: float) -> list[TimedFault]:
    chance = source(seed, f"timed/{kind}")
    if chance.random() < QUIET_CHANCE:
        return []
    draws: Callable[[], float] = chance.random
    return [
        TimedFault(1.5 + draws() * max(0.5, horizon_s - 2.0), kind, draws(), draws())
        for _ in range(chance.randint(1, most))
    ]


def _traits_of_drivers(traits: tuple[str, ...]) -> tuple[str, ...]:
    """Drivers that wait for executors need submissions, and nodes whose units are at the end what
    they were when a driver got its place."""
    if "submissions" not in traits:
        return tuple(x for x in traits if x != "driver-share")
    return tuple(x for x in traits if x not in ("gpus", "auto-binding"))


def _submissions(
    seed: int, horizon_s: float, nodes: tuple[NodePlan, ...], traits: tuple[str, ...]
) -> tuple[SubmissionPlan, ...]:
    if "submissions" not in traits:
        return ()
    count = source(seed, "submissions").randint(1, 4)
    if "driver-share" not in traits:
        return tuple(
            _in_series(seed, n + 1, _submission(seed, n + 1, horizon_s), traits)
            for n in range(count)
        )
    count += source(seed, "more-submissions").randint(0, 4)
    return tuple(
        _in_series(
            seed,
            n + 1,
            _that_works(seed, n + 1, _submission(seed, n + 1, horizon_s), nodes),
            traits,
        )
        for n in range(count)
    )


def _in_series(
    seed: int, number: int, plan: SubmissionPlan, traits: tuple[str, ...]
) -> SubmissionPlan:
    """Most have the one key; some are tied to a client, which may go away before they end."""
    if "serial" not in traits:
        return plan
    chance = source(seed, f"serial-{number}")
    if chance.random() < 0.8:
        plan = replace(plan, serial_key="nightly")
    if chance.random() < 0.4:
        life_s = chance.uniform(0.0, 8.0) if chance.random() < 0.6 else math.inf
        plan = replace(plan, tie_s=chance.uniform(2.0, 6.0), client_life_s=life_s)
    return plan


def _that_works(
    seed: int, number: int, plan: SubmissionPlan, nodes: tuple[NodePlan, ...]
) -> SubmissionPlan:
    """A driver that ends when its executors have done its work: without them, never."""
    chance = source(seed, f"works-{number}")
    home = chance.choice(chance.choice(nodes).units).capacity
    vcores = chance.randint(1, home.vcores)
    executor = Resources(vcores, min(512 * chance.randint(1, 4), home.memory_mib))
    executors = chance.randint(1, 3)
    gang = chance.choice((0, 1, executors))
    if not gang:  # alone it may start anywhere, though no node is there that has both
        executor = SMALL_EXECUTOR
    units = [unit for node in nodes for unit in node.units]
    driver = demand_of(plan.resources, 0, units)
    if not next_to(driver, demand_of(executor, 0, units), units):
        executor = SMALL_EXECUTOR
    fitting = next_to(driver, demand_of(executor, 0, units), units)
    if not fitting:
        return plan  # no node is large enough for both, so it could never end
    if chance.random() < 0.9:
        gang = min(gang, fitting)
    return replace(
        plan,
        start_s=plan.start_s if chance.random() < 0.5 else 1.0,
        lives=(),
        executors=executors,
        executor=executor,
        gang_min=gang,
        work_s=chance.uniform(0.5, 3.0),
    )


def _submission_bounds(seed: int, bounds: Bounds) -> SubmissionBounds:
    """Leases that are longer than it takes to lose a node, which makes one wait, or shorter."""
    chance = source(seed, "submission-bounds")
    lease_s = chance.uniform(4.0, 14.0)
    return SubmissionBounds(
        driver_lease_s=lease_s,
        lease_margin_s=chance.uniform(0.3, 1.0),
        renew_s=lease_s / _RENEWALS,
        driver_restart_delay_s=chance.uniform(0.1, 0.6),
        driver_restart_delay_max_s=chance.uniform(1.0, 3.0),
        driver_restarts_max=chance.randint(1, 4),
        driver_restart_window_s=chance.uniform(10.0, 60.0),
        driver_launches_max=chance.randint(2, 4),
        recovery_s=bounds.recovery_window_s + chance.uniform(0.5, 2.0),
        serial_lease_s=lease_s * source(seed, "serial-lease").uniform(1.0, 1.5),
    )


def _submission(seed: int, number: int, horizon_s: float) -> SubmissionPlan:
    chance = source(seed, f"submission-{number}")
    resources = Resources(1, 512 * chance.randint(1, 2))
    lives = tuple(_life(chance, horizon_s) for _ in range(chance.randint(1, 4)))
    return SubmissionPlan(
        name=f"client-{number}",
        start_s=chance.uniform(0.5, 0.5 * horizon_s),
        resources=resources,
        supervise=chance.random() < 0.75,
        stream=chance.random() < 0.4,
        lives=lives,
        executors=chance.choice((0, 0, 1, 2)),
    )


def _life(chance: Random, horizon_s: float) -> tuple[float, int]:
    """Some fail at once, some run as long as there are faults."""
    long_s = chance.uniform(6.0, horizon_s + 4.0)
    run_s = chance.choice((0.05, chance.uniform(0.5, 6.0), long_s, long_s, long_s))
    return run_s, chance.choice((0, 0, 1, 3, 137))
