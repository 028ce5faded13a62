"""Plans for bugs that are too rare for the faults of a seed: one kind of fault, many times."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.vocabulary.model import (
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.sim.faults.plan import (
    KINDS,
    TRAITS,
    ApplicationPlan,
    Limits,
    OtherSize,
    Plan,
    TimedFault,
    source,
)
from hrm.sim.faults.plan_generator import draw
from hrm.sim.faults.rivals import rival_applications, with_rival_gpus

__all__ = [
    "LATER",
    "behind_a_labelled_gang",
    "behind_a_large_gang",
    "behind_a_stream",
    "behind_an_excluded_job",
    "behind_large_requests",
    "behind_waiting_batch",
    "beside_a_free_gpu",
    "beside_kept_batch",
    "crashing_agents",
    "cut_drivers",
    "cut_series",
    "gpu_rivals",
    "halved_streams",
    "hanging_agents",
    "late_streams",
    "recurring",
    "rival_gang",
    "rivals_of_kinds",
    "rivals_of_sizes",
    "rivals_that_want_more",
    "waiting_streams",
    "waves_of_streams",
]

LATER = frozenset(
    {
        *("serial", "sizes", "several-gpus", "labels", "kept-batch", "queues", "yielding"),
        *("pipelines", "priorities", "training", "scaling", "gpu-waiters"),
    }
)
"""Traits that seeds which found something had not yet, when they did."""


def crashing_agents(seed: int) -> Plan:
    """On a slow network agents crash repeatedly, and nodes are repartitioned, and close for a
    moment, meanwhile: an agent's registration arrives after its successor's."""
    chance = source(seed, "agents that crash")
    faults = [
        TimedFault(2.0 + 0.3 * n, "agent-crash", chance.random(), 0.2 * chance.random())
        for n in range(20)
    ]
    faults += [
        TimedFault(2.1 + 0.3 * n, "rebind", chance.random(), chance.random()) for n in range(20)
    ]
    faults += [TimedFault(2.2 + 0.3 * n, "full-disk", chance.random(), 0.0) for n in range(20)]
    faults.sort(key=lambda fault: fault.at_s)
    without = frozenset({"submissions", "remotes", "recurring", *LATER})
    plan = draw(seed, Limits(nodes=2, applications=2, horizon_s=9.0, without=without))
    return replace(plan, rates={"delay": 0.5}, faults=tuple(faults))


def cut_drivers(seed: int) -> Plan:
    """Machines on which submitted drivers run are disconnected for longer than a lease."""
    chance = source(seed, "drivers that are cut off")
    faults = tuple(
        TimedFault(2.0 + 0.5 * n, "driver-cut", chance.random(), chance.uniform(0.5, 1.0))
        for n in range(30)
    )
    plan = draw(seed, Limits(nodes=3, applications=0, horizon_s=18.0, without=LATER))
    return replace(plan, rates={}, faults=faults)


def cut_series(seed: int) -> Plan:
    """The same, of submissions that have one key, and each of which runs for long."""
    plan = cut_drivers(seed)
    each = tuple(
        replace(x, serial_key="nightly", supervise=False, lives=((30.0, 0),))
        for x in plan.submissions
    )
    return replace(plan, submissions=each)


def hanging_agents(seed: int) -> Plan:
    """Agents hang until their nodes are lost and forgotten, and go on while the master's disk is
    full."""
    chance = source(seed, "agents that hang")
    faults = []
    for n in range(3):
        at_s, size = 3.0 + 30.0 * n, chance.uniform(0.8, 0.99)
        on_s = at_s + 24.0 * size
        faults.append(TimedFault(at_s, "hang", chance.random(), size))
        faults.append(TimedFault(on_s - 4.0, "full-master-disk", 0.0, chance.uniform(0.5, 0.8)))
    without = frozenset({"submissions", "remotes", "rival-gpus", *LATER})
    plan = draw(seed, Limits(nodes=2, applications=2, horizon_s=95.0, without=without))
    return replace(plan, rates={}, faults=tuple(faults))


def waves_of_streams(seed: int) -> Plan:
    """Batch fills two nodes and waits there, and short streams preempt it again and again; in every
    second plan the master crashes meanwhile."""
    chance = source(seed, "waves of streams")
    without = frozenset(
        {"submissions", "gangs", "gpus", "auto-binding", "feedback", "policies", *LATER}
    )
    plan = draw(seed, Limits(nodes=2, applications=0, horizon_s=20.0, without=without))
    grace_s = chance.uniform(0.2, 2.0)
    nodes = tuple(replace(x, preemption_grace_s=grace_s, units=x.units[:1]) for x in plan.nodes)
    small = Resources(1, 256)
    batch = [
        ApplicationPlan(f"batch-{n}", 1.0 + 0.5 * n, small, ((0.0, 12),), chance.uniform(60, 90))
        for n in range(2)
    ]
    streams = [
        ApplicationPlan(
            f"stream-{n}",
            4.0 + 2.0 * n,
            small,
            ((0.0, chance.randint(1, 3)),),
            chance.uniform(2.0, 6.0),
            declared=WorkloadClass.STREAM,
        )
        for n in range(5)
    ]
    crash = TimedFault(chance.uniform(5.0, 12.0), "master-crash", chance.random(), 0.3)
    bounds = replace(plan.bounds, waiting_limit=64, wait_max_s=60.0)
    return replace(
        plan,
        nodes=nodes,
        bounds=bounds,
        applications=(*batch, *streams),
        rates={"delay": 0.1},
        faults=(crash,) if seed % 2 else (),
    )


def recurring(seed: int) -> Plan:
    """One application comes back again and again, now a stream and now batch; in every second plan
    the master or an AppMaster crashes meanwhile."""
    chance = source(seed, "recurring")
    without = frozenset(
        {"submissions", "gangs", "gpus", "auto-binding", "feedback", "policies", *LATER}
    )
    plan = draw(seed, Limits(nodes=2, applications=0, horizon_s=40.0, without=without))
    applications = tuple(
        ApplicationPlan(
            f"run-{n}",
            1.0 + 7.0 * n + chance.uniform(0.0, 2.0),
            Resources(1, 256),
            ((0.0, chance.randint(1, 2)),),
            chance.uniform(3.0, 16.0),
            declared=WorkloadClass.BATCH if chance.random() < 0.2 else None,
            classes=((chance.uniform(0.2, 3.0), "STREAM"),) if chance.random() < 0.5 else (),
            title="job",
        )
        for n in range(6)
    )
    kinds = ("master-crash", "appmaster-crash")
    faults = [
        TimedFault(chance.uniform(5.0, 40.0), chance.choice(kinds), chance.random(), 0.3)
        for _ in range(3 if seed % 2 else 0)
    ]
    faults.sort(key=lambda fault: fault.at_s)
    return replace(plan, applications=applications, rates={"delay": 0.1}, faults=tuple(faults))


def gpu_rivals(seed: int, *, preemption: bool = False) -> Plan:
    """Nothing fails; batch applications of several schedulers compete for GPUs."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=2, applications=3, horizon_s=20.0, without=without))
    nodes = with_rival_gpus(seed, plan.nodes)
    applications = rival_applications(seed, plan.horizon_s, nodes, 3, losses=False)
    bounds = replace(plan.bounds, gpu_preemption=preemption)
    return replace(
        plan, nodes=nodes, applications=applications, schedulers=1 + seed % 3, bounds=bounds
    )


def rivals_of_kinds(seed: int, *, preemption: bool = False) -> Plan:
    """The same; one node has its GPUs in pairs, and applications request pairs, too."""
    plan = gpu_rivals(seed, preemption=preemption)
    pairs, *others = plan.nodes
    assert pairs.hardware is not None and pairs.binding is not None
    gpus = tuple(Gpu(index=x, memory_mib=8192, numa=x % 2) for x in range(4))
    hardware = replace(pairs.hardware, gpus=gpus)
    binding = replace(pairs.binding, gpus_per_unit=2)
    units = partition(NodeName(pairs.name), hardware, binding)
    pairs = replace(pairs, units=units, hardware=hardware, binding=binding)
    return replace(_with_others(plan, Resources(1, 512), gpus=2), nodes=(pairs, *others))


def rivals_of_sizes(seed: int, *, preemption: bool = False) -> Plan:
    """The same; applications request whole GPUs and parts of one."""
    plan = gpu_rivals(seed, preemption=preemption)
    return _with_others(plan, Resources(1, 512, 2048), gpus=1)


def rivals_that_want_more(seed: int) -> Plan:
    """Nothing fails. Two applications hold half of the GPUs each; then both want more of them, one
    a little later, and none ends for long."""
    plan = gpu_rivals(seed)
    gpus = sum(unit.gpu is not None for node in plan.nodes for unit in node.units)
    late_s = source(seed, "more").uniform(0.5, 2.5)
    applications = tuple(
        replace(
            application,
            start_s=1.0,
            targets=((0.0, many), (at_s, many + 6), (40.0, many + 6)),
            work_s=60.0 * many,
        )
        for application, many, at_s in zip(
            plan.applications, (gpus // 2, gpus - gpus // 2), (6.0, 6.0 + late_s), strict=False
        )
    )
    return replace(plan, applications=applications)


def rival_gang(seed: int) -> Plan:
    """The same; the last comes when the others hold all, and its first executors, most of what
    there is, start together. Executors are preempted for fair shares."""
    plan = gpu_rivals(seed, preemption=True)
    *others, last = plan.applications
    gpus = sum(unit.gpu is not None for node in plan.nodes for unit in node.units)
    many = source(seed, "gang").randint(2, gpus - 1)
    targets = ((0.0, many), (60.0, many))
    gang = replace(last, start_s=5.0, targets=targets, gang_min=many)
    return replace(plan, applications=(*others, gang))


def _with_others(plan: Plan, resources: Resources, gpus: int) -> Plan:
    """Applications also request some of these, more and fewer of them as time passes."""
    chance = source(plan.seed, "others")
    applications = []
    for application in plan.applications:
        times = [at_s for at_s, _ in application.targets]
        targets = tuple((at_s, chance.randint(0, 6)) for at_s in times)
        other = OtherSize(resources, targets, gpus)
        applications.append(replace(application, other=other))
    return replace(plan, applications=tuple(applications))


def late_streams(seed: int) -> Plan:
    """Nothing fails. On one node a stream holds most cores; what queues there as batch, and cannot
    start next to it, turns out to be a stream."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=2, horizon_s=20.0, without=without))
    unit = ResourceUnit(
        unit_id=ResourceUnitId("node-1/cpu"), capacity=Resources(10, 10_240), run_limit=10
    )
    holder = ApplicationPlan(
        name="app-1",
        start_s=0.5,
        resources=Resources(7, 512),
        targets=((0.0, 1), (20.0, 1)),
        work_s=30.0,
        declared=WorkloadClass.STREAM,
    )
    late = ApplicationPlan(
        name="app-2",
        start_s=2.0,
        resources=Resources(3, 512),
        targets=((0.0, 2), (20.0, 2)),
        work_s=60.0,
        classes=((3.0, "STREAM"),),
        duration_hint_s=4.0,
    )
    nodes = (replace(plan.nodes[0], units=(unit,)),)
    return replace(plan, nodes=nodes, applications=(holder, late))


def halved_streams(seed: int, *, losses: bool = True) -> Plan:
    """A stream of two fills two nodes. One is free; batch holds one that preempts it and one that
    does not. ``losses``: the second of the three fails for good; else nothing does, and there are
    the others alone."""
    chance = source(seed, "halved streams")
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=3, applications=2, horizon_s=20.0, without=without))
    free, preempting, keeping = (
        replace(
            node,
            units=(
                ResourceUnit(
                    unit_id=ResourceUnitId(f"{node.name}/cpu"),
                    capacity=Resources(4, memory_mib),
                    run_limit=4,
                ),
            ),
            preemption_grace_s=grace_s,
        )
        for node, memory_mib, grace_s in zip(
            plan.nodes, (1_024, 8_192, 8_192), (4.0, 4.0, None), strict=True
        )
    )
    nodes = (free, preempting, keeping) if losses else (free, keeping)
    batch = ApplicationPlan(
        "app-1", 0.5, Resources(1, 2_048), ((0.0, 8),), 200.0, declared=WorkloadClass.BATCH
    )
    stream = ApplicationPlan(
        "app-2", 3.0, Resources(4, 512), ((0.0, 2),), 60.0, declared=WorkloadClass.STREAM
    )
    at_s = 3.5 + chance.uniform(0.0, 2.0)
    faults = (TimedFault(at_s, "node-loss", 0.5, 0.0),) if losses else ()
    bounds = replace(plan.bounds, gang_wait_s=2.0)
    applications = (batch, stream)
    return replace(plan, nodes=nodes, applications=applications, faults=faults, bounds=bounds)


def behind_waiting_batch(seed: int) -> Plan:
    """Nothing fails. Batch fills a node, and as much waits there as may; a stream comes then, in
    every second plan one of more executors than that."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=2, horizon_s=20.0, without=without))
    unit = ResourceUnit(
        unit_id=ResourceUnitId("node-1/cpu"), capacity=Resources(8, 8_192), run_limit=8
    )
    small, most = Resources(1, 512), 3
    batch = ApplicationPlan("app-1", 0.5, small, ((0.0, 8 + most),), 200.0, duration_hint_s=200.0)
    stream = ApplicationPlan(
        "app-2", 4.0, small, ((0.0, 2 * most if seed % 2 else 1),), 60.0,
        declared=WorkloadClass.STREAM,
    )  # fmt: skip
    bounds = replace(plan.bounds, waiting_limit=most, wait_max_s=900.0)
    nodes = (replace(plan.nodes[0], units=(unit,), preemption_grace_s=4.0),)
    return replace(plan, nodes=nodes, applications=(batch, stream), bounds=bounds)


def beside_kept_batch(seed: int) -> Plan:
    """Nothing fails. Batch holds a node that preempts none; a stream holds another, for a while. A
    second one, which comes meanwhile, waits; batch that comes after it takes what the first leaves.
    """
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=2, applications=4, horizon_s=20.0, without=without))
    small, large = Resources(1, 512), Resources(4, 512)
    keeping, preempting = (
        replace(
            node,
            units=(
                ResourceUnit(
                    unit_id=ResourceUnitId(f"{node.name}/cpu"),
                    capacity=Resources(4, memory_mib),
                    run_limit=4,
                ),
            ),
            preemption_grace_s=grace_s,
        )
        for node, memory_mib, grace_s in zip(plan.nodes, (8_192, 2_048), (None, 4.0), strict=True)
    )
    stream = WorkloadClass.STREAM
    applications = (
        ApplicationPlan("app-1", 0.5, Resources(1, 2_048), ((0.0, 4),), 200.0),
        ApplicationPlan("app-2", 3.0, large, ((0.0, 1),), 10.0, declared=stream),
        ApplicationPlan("app-3", 5.0, large, ((0.0, 1),), 20.0, declared=stream),
        ApplicationPlan("app-4", 6.0, small, ((0.0, 4),), 90.0),
    )
    bounds = replace(plan.bounds, relocation_wait_s=2.0, waiting_limit=64)
    nodes = (keeping, preempting)
    return replace(plan, nodes=nodes, applications=applications, bounds=bounds)


def waiting_streams(seed: int) -> Plan:
    """Nothing fails. Streams wait for batch, which is not preempted, while nodes move the border
    between GPU and CPU cores."""
    without = frozenset(
        {"submissions", "remotes", "policies", "feedback", "preemption", "gangs", *LATER}
    )
    plan = draw(seed, Limits(nodes=1, applications=8, horizon_s=20.0, without=without))
    return replace(plan, rates={}, faults=())


def behind_large_requests(seed: int) -> Plan:
    """Nothing fails. A stream holds a part of a node. What waited for little, and no longer does,
    waits for more than the stream leaves; and many small containers, few of which may wait at the
    unit, wait for less."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=4, horizon_s=20.0, without=without))
    unit = ResourceUnit(
        unit_id=ResourceUnitId("node-1/cpu"), capacity=Resources(8, 8_192), run_limit=8
    )
    small = Resources(1, 512)
    stream = ApplicationPlan(
        "app-1", 0.5, Resources(3, 512), ((0.0, 1),), 60.0, declared=WorkloadClass.STREAM
    )
    large = ApplicationPlan(
        "app-2",
        1.0,
        small,
        ((0.0, 12), (3.0, 0), (60.0, 1)),
        60.0,
        kill_chance=1.0,
        other=OtherSize(Resources(6, 512), ((0.0, 1),)),
    )
    ends = ApplicationPlan("app-3", 1.0, small, ((0.0, 2),), 30.0)
    waits = ApplicationPlan("app-4", 4.0, small, ((0.0, 12),), 150.0)
    bounds = replace(plan.bounds, waiting_limit=1, wait_max_s=60.0)
    nodes = (replace(plan.nodes[0], units=(unit,)),)
    applications = (stream, large, ends, waits)
    return replace(plan, nodes=nodes, schedulers=1, bounds=bounds, applications=applications)


def behind_a_large_gang(seed: int) -> Plan:
    """Nothing fails. A stream holds a part of a node for good, and batch the rest for a while; two
    gangs wait, of which the first wants more than the stream leaves, and the second less."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=4, horizon_s=20.0, without=without))
    unit = ResourceUnit(
        unit_id=ResourceUnitId("node-1/cpu"), capacity=Resources(8, 8_192), run_limit=8
    )
    one = Resources(1, 512)
    stream = ApplicationPlan(
        "app-1", 0.5, Resources(3, 512), ((0.0, 1),), 90.0, declared=WorkloadClass.STREAM
    )
    batch = ApplicationPlan("app-2", 1.0, one, ((0.0, 5),), 120.0)
    large = ApplicationPlan("app-3", 2.0, one, ((0.0, 6),), 5.0, gang_min=6)
    small = ApplicationPlan("app-4", 3.0, one, ((0.0, 2),), 5.0, gang_min=2)
    nodes = (replace(plan.nodes[0], units=(unit,)),)
    applications = (stream, batch, large, small)
    return replace(plan, nodes=nodes, schedulers=1, applications=applications)


def behind_a_labelled_gang(seed: int) -> Plan:
    """Nothing fails. A stream holds the node that has a label, batch the other one for a while. Two
    gangs wait: a small one for the label, a larger one for any node."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=2, applications=4, horizon_s=20.0, without=without))
    labelled, other = (
        replace(
            node,
            labels=labels,
            units=(
                ResourceUnit(
                    unit_id=ResourceUnitId(f"{node.name}/cpu"),
                    capacity=Resources(4, 8_192),
                    run_limit=4,
                ),
            ),
        )
        for node, labels in zip(plan.nodes, (("ssd",), ()), strict=True)
    )
    one, ssd = Resources(1, 512), ("ssd",)
    stream = ApplicationPlan(
        "app-1",
        0.5,
        Resources(4, 512),
        ((0.0, 1),),
        90.0,
        declared=WorkloadClass.STREAM,
        labels=ssd,
    )
    batch = ApplicationPlan("app-2", 1.5, one, ((0.0, 4),), 60.0)
    small = ApplicationPlan("app-3", 3.0, one, ((0.0, 2),), 5.0, gang_min=2, labels=ssd)
    large = ApplicationPlan("app-4", 4.0, one, ((0.0, 3),), 5.0, gang_min=3)
    applications = (stream, batch, small, large)
    return replace(plan, nodes=(labelled, other), schedulers=1, applications=applications)


def behind_an_excluded_job(seed: int) -> Plan:
    """A stream fills one node. At the other, what starts first fails, so the node is excluded for
    that application, which waits for the stream; then batch fills it for a while, and another
    application waits for that."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=2, applications=4, horizon_s=20.0, without=without))
    nodes = tuple(
        replace(
            node,
            units=(
                ResourceUnit(
                    unit_id=ResourceUnitId(f"{node.name}/cpu"),
                    capacity=Resources(4, 8_192),
                    run_limit=4,
                ),
            ),
        )
        for node in plan.nodes
    )
    one = Resources(1, 512)
    stream = ApplicationPlan(
        "app-1", 0.5, Resources(4, 512), ((0.0, 1),), 90.0, declared=WorkloadClass.STREAM
    )
    fails = ApplicationPlan("app-2", 1.5, one, ((0.0, 1),), 5.0)
    batch = ApplicationPlan("app-3", 4.0, one, ((0.0, 4),), 120.0)
    waits = ApplicationPlan("app-4", 6.0, one, ((0.0, 1),), 5.0)
    bounds = replace(
        plan.bounds,
        waiting_limit=0,
        node_failures=1,
        node_failure_run_s=5.0,
        node_failing_applications=3,
        node_exclusion_s=300.0,
        node_exclusion_max_s=300.0,
    )
    return replace(
        plan,
        nodes=nodes,
        bounds=bounds,
        schedulers=1,
        applications=(stream, fails, batch, waits),
        faults=(TimedFault(1.0, "bad-node", 0.9, 0.1),),
    )


def behind_a_stream(seed: int) -> Plan:
    """Nothing fails, and order is strict. A stream holds a part of a node for good; a large
    container waits for all of it, and small ones, which fit, come later."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=3, horizon_s=20.0, without=without))
    unit = ResourceUnit(
        unit_id=ResourceUnitId("node-1/cpu"), capacity=Resources(8, 8_192), run_limit=8
    )
    small = Resources(1, 512)
    stream = ApplicationPlan(
        "app-1", 0.5, Resources(3, 512), ((0.0, 1),), 90.0, declared=WorkloadClass.STREAM
    )
    large = ApplicationPlan("app-2", 2.0, Resources(6, 512), ((0.0, 1),), 5.0)
    behind = ApplicationPlan("app-3", 3.0, small, ((0.0, 2),), 5.0)
    nodes = (replace(plan.nodes[0], units=(unit,)),)
    applications = (stream, large, behind)
    bounds = replace(plan.bounds, waiting_limit=0)
    return replace(
        plan, nodes=nodes, schedulers=1, policy="fifo", bounds=bounds, applications=applications
    )


def beside_a_free_gpu(seed: int) -> Plan:
    """Nothing fails. A container waits for one of a node's two GPUs, and the other becomes free."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=3, horizon_s=20.0, without=without))
    hardware = Hardware(
        cores=tuple(Core(x) for x in range(6)),
        memory_mib=6_144,
        gpus=tuple(Gpu(index=x, memory_mib=8_192) for x in range(2)),
    )
    binding = Partitioning(mode=BindingMode.PARTIAL)
    units = partition(NodeName(plan.nodes[0].name), hardware, binding)
    node = replace(plan.nodes[0], units=units, hardware=hardware, binding=binding)
    applications = tuple(
        ApplicationPlan(f"app-{n + 1}", 1.0 + n, Resources(1, 512), ((0.0, 1),), work_s, gpus=1)
        for n, work_s in enumerate((60.0, 12.0, 60.0))
    )
    bounds = replace(plan.bounds, relocation_wait_s=2.0, waiting_limit=64, wait_max_s=60.0)
    return replace(plan, nodes=(node,), bounds=bounds, applications=applications)
