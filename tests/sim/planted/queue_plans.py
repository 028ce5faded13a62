"""Plans for bugs of queues: nothing fails, and few applications want more than there is."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import Amount, QueueName, QueueSpec, Quota
from hrm.core.vocabulary.model import Resources, ResourceUnit, ResourceUnitId
from hrm.sim.faults.plan import (
    KINDS,
    TRAITS,
    ApplicationPlan,
    Limits,
    Plan,
    SubmissionPlan,
    TimedFault,
    source,
)
from hrm.sim.faults.plan_generator import draw

__all__ = [
    "below_a_maximum",
    "beside_what_does_not_fit",
    "borrowers",
    "changed_queues",
    "drivers_of_two_queues",
    "gang_of_borrowers",
    "interrupted",
    "kept_borrowers",
    "one_after_the_other",
    "raised_and_lowered",
    "three_queues",
    "two_platforms",
    "two_users",
]

_CORES = 8


def _part(part: float) -> Quota:
    amount = Amount(part, is_part=True)
    return (amount, amount, amount)


def _queue(name: str, part: float | None = None) -> QueueSpec:
    spec = QueueSpec(name=QueueName(name))
    return spec if part is None else replace(spec, guaranteed=_part(part))


def _app(
    name: str, queue: str, start_s: float, many: int, work_s: float, cores: int = 1
) -> ApplicationPlan:
    size = Resources(cores, 256)
    return ApplicationPlan(name, start_s, size, ((0.0, many),), work_s, queue=queue)


def _plan(*queues: QueueSpec, apps: tuple[ApplicationPlan, ...], nodes: int = 2) -> Plan:
    """A few nodes of eight cores; what is borrowed is taken back soon."""
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(0, Limits(nodes=nodes, applications=0, horizon_s=8.0, without=without))
    capacity = Resources(_CORES, 8192)
    unit = ResourceUnit(unit_id=ResourceUnitId(""), capacity=capacity, run_limit=_CORES)
    each = tuple(
        replace(x, units=(replace(unit, unit_id=ResourceUnitId(f"{x.name}/cpu")),))
        for x in plan.nodes
    )
    bounds = replace(
        plan.bounds,
        queue_preemption_part=1.0,
        queue_reclaim_wait_s=0.5,
        queue_preemption_grace_s=0.5,
        waiting_limit=64,
        wait_max_s=60.0,
    )
    traits = ("queues",)
    return replace(plan, nodes=each, bounds=bounds, queues=queues, applications=apps, traits=traits)


def borrowers() -> Plan:
    """One queue has taken all when another comes, to which most is guaranteed and little given by
    weight."""
    guaranteed = replace(_queue("root.a", 0.6), weight=0.5)
    apps = (
        _app("lends", "root.b", 1.0, 24, 700.0),
        _app("comes", "root.a", 4.0, 12, 400.0),
    )
    return _plan(guaranteed, replace(_queue("root.b", 0.0), weight=3.0), apps=apps)


def gang_of_borrowers() -> Plan:
    """The same; of what was taken, eight are a gang."""
    plan = borrowers()
    gang, other = plan.applications
    return replace(plan, applications=(replace(gang, gang_min=8), other))


def kept_borrowers() -> Plan:
    """The same; what was taken may not be preempted."""
    plan = borrowers()
    guaranteed, lender = plan.queues
    gang, other = plan.applications
    apps = (replace(gang, work_s=200.0), other)
    return replace(plan, queues=(guaranteed, replace(lender, preemptible=False)), applications=apps)


def three_queues() -> Plan:
    """A third queue claims its guarantee; the newest containers are of the second, which has no
    more than its own."""
    apps = (
        _app("first", "root.a", 1.0, 12, 300.0),
        _app("second", "root.b", 3.0, 4, 200.0),
        _app("third", "root.c", 6.0, 6, 200.0),
    )
    return _plan(_queue("root.a", 0.2), _queue("root.b", 0.25), _queue("root.c", 0.4), apps=apps)


def below_a_maximum() -> Plan:
    """Two queues may have half of the cluster together."""
    group = replace(_queue("root.g"), maximum=_part(0.5))
    apps = (
        _app("one", "root.g.a", 1.0, 6, 40.0),
        _app("other", "root.g.b", 1.5, 6, 40.0),
    )
    return _plan(group, _queue("root.g.a"), _queue("root.g.b"), apps=apps)


def beside_what_does_not_fit() -> Plan:
    """What one queue waits for is as large as a node, and small things of the other run on both."""
    small = _app("small", "root.b", 1.0, 10, 400.0)
    small = replace(small, targets=((0.0, 10), (5.0, 16)))
    apps = (small, _app("large", "root.a", 3.0, 1, 10.0, cores=_CORES))
    plan = _plan(_queue("root.a", 0.5), _queue("root.b", 0.5), apps=apps)
    return replace(plan, bounds=replace(plan.bounds, queue_preemption=False))


def one_after_the_other() -> Plan:
    """One application of a queue may run at a time; another queue has what is left."""
    apps = (
        _app("one", "root.a", 1.0, 4, 30.0),
        _app("next", "root.a", 1.5, 4, 30.0),
        _app("other", "root.b", 1.0, 16, 900.0),
    )
    return _plan(replace(_queue("root.a", 0.5), max_running=1), _queue("root.b", 0.5), apps=apps)


def two_users() -> Plan:
    """Of each of two users, who wait for a third, a container needs more than half of what there
    is."""
    starts = {"eve": 1.0, "ana": 3.0, "bob": 3.0}
    apps = tuple(
        replace(_app(user, "root.a", at_s, 1, 6.0, cores=6), user=user)
        for user, at_s in starts.items()
    )
    return _plan(replace(_queue("root.a"), minimum_user_limit=0.25), apps=apps, nodes=1)


def drivers_of_two_queues() -> Plan:
    """Half of the node is for drivers: one runs, the next is kept by its queue, and a third would
    still have its place."""
    plan = _plan(
        replace(_queue("root.a"), max_running=1, driver_share=1.0),
        replace(_queue("root.b"), driver_share=1.0),
        apps=(),
        nodes=1,
    )
    half = Resources(2, 512)
    names = ("first", "second", "third")
    drivers = tuple(
        SubmissionPlan(name, 1.0 + n, half, False, False, ((60.0, 0),), 0)
        for n, name in enumerate(names)
    )
    rules = tuple(
        QueueRule("name", f"{name} (driver)", "root.b" if name == "third" else "root.a")
        for name in names
    )
    bounds = replace(plan.bounds, driver_share=0.5)
    return replace(plan, submissions=drivers, queue_rules=rules, bounds=bounds)


def changed_queues() -> Plan:
    """Short applications end, while an administrator changes queues again and again."""
    chance = source(0, "changes")
    apps = tuple(_app(f"short-{n}", "root.a", 1.0 + 0.4 * n, 3, 3.0) for n in range(8))
    faults = tuple(
        TimedFault(1.5 + 0.1 * n, "queues-change", chance.random(), 0.9) for n in range(60)
    )
    return replace(_plan(_queue("root.a"), _queue("root.b"), apps=apps), faults=faults)


def two_platforms(seed: int, *, preemptible: bool = True) -> Plan:
    """Two halves of a cluster of two platforms; the seed says which suits which."""
    lender = replace(_queue("root.b", 0.5), preemptible=preemptible)
    apps = (
        _app("comes first", "root.b", 1.0, 8, 600.0),
        _app("comes later", "root.a", 4.0, 8, 600.0),
    )
    plan = _plan(_queue("root.a", 0.5), lender, apps=apps)
    nodes = tuple(
        replace(node, platform="new" if number % 2 else "old")
        for number, node in enumerate(plan.nodes)
    )
    bounds = replace(plan.bounds, platform_move_after_s=2.0, platform_wait_s=1.0)
    return replace(plan, seed=seed, nodes=nodes, bounds=bounds, traits=("queues", "platforms"))


def interrupted() -> Plan:
    """A queue is full when four of the highest class come one after the other, each for as long as
    it takes the one that was interrupted to go on; urgent ones wait all the time."""
    leaf = replace(_queue("root.a"), order="classes", interrupts=True)
    highest = [
        replace(_app(f"highest-{n}", "root.a", 4.0 + 14.0 * n, 8, 30.0), priority=5)
        for n in range(4)
    ]
    urgent = [replace(_app(f"urgent-{n}", "root.a", 5.0, 8, 200.0), priority=4) for n in range(2)]
    apps = (_app("long", "root.a", 1.0, 16, 900.0), *highest, *urgent)
    return _plan(leaf, apps=apps)


def raised_and_lowered() -> Plan:
    """One application holds a queue, and three wait in it; they are raised in bursts, of which each
    would make a normal one urgent, and back, if its requests were not summed."""
    leaf = replace(_queue("root.a"), order="classes")
    bursts = (
        ((4.0, 2), (4.2, -1), (4.4, 2), (9.0, 1)),
        ((4.1, 1), (4.3, -2), (4.5, 2)),
        ((6.0, 1),),
    )
    waiting = [
        replace(
            _app(f"waits-{n}", "root.a", 2.0 + 0.1 * n, 4, 20.0),
            priority=3,
            priority_requests=requests,
        )
        for n, requests in enumerate(bursts)
    ]
    plan = _plan(leaf, apps=(_app("holds", "root.a", 1.0, 16, 240.0), *waiting))
    bounds = replace(plan.bounds, priority_period_s=3.0, priority_ageing_s=1.0)
    return replace(plan, bounds=bounds)
