"""Gangs: an application's first containers start together or wait together.

Two applications that each need eight executors before they can do anything, on a cluster that holds
twelve, would take six each and wait forever. ``spark.hrm.gang.min`` states how many of an
application's first containers are of no use alone: the negotiator grants that many at once, or
none, without a lease: a gang that lost the race tries again. What is granted must *run* at once;
the queue of a unit does not count.

A stream starts whole: its gang is all of its first request, or ``spark.hrm.stream.min`` of it,
since half a stream keeps no deadline. A container of it may also wait where batch is preempted for
it. (The paper commits all that a stream requests together.)

A gang protects the start only: later requests, and replacements, are placed one by one. Nor is
capacity accumulated for it: while smaller applications keep taking what becomes free, it waits. An
application that needs fewer than its gang gets those together, once it has requested no more for as
long as the longest back-off.

Limits: one number an application, counted over all its resource profiles in order of request. Not
in the HRM paper, which grants all or nothing to streams alone (its example in section 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hrm.core.master.state import Application, MasterState
from hrm.core.vocabulary.feasibility import (
    Vector,
    capacity_vector,
    could_hold,
    demand_vector,
    plus,
    pooled_part,
)
from hrm.core.vocabulary.model import (
    ContainerRequest,
    ContainerState,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
    is_driver,
)

__all__ = [
    "begin_stream",
    "missing",
    "no_stream",
    "reason",
    "refusal",
    "setting",
    "settled",
    "shrink",
    "times",
]


def begin_stream(
    master_state: MasterState, app: Application, requests: Sequence[ContainerRequest]
) -> None:
    """A stream makes its first request. Drivers, perhaps its own, keep what they hold: it waits for
    no more than the cluster has without them. One too large for the empty cluster is left as it
    is, to be refused, unless it is only guessed to be a stream."""
    record = app.record
    if record.workload_class is not WorkloadClass.STREAM or (
        app.containers or app.ended or record.first_running_at_s
    ):
        return
    app.gang_min = record.stream_min or record.gang_min or len(requests)
    if app.gang_min == len(requests) > 1:
        demand = demand_vector(requests[0].resources)
        most = _most_besides_drivers(master_state, demand)
        if 0 < most < app.gang_min and (
            record.class_guessed or app.gang_min <= master_state.state.most(demand)
        ):
            app.gang_min = most


def _most_besides_drivers(master_state: MasterState, demand: Vector) -> int:
    """How many of ``demand`` all units would hold if nothing but drivers ran there."""
    state = master_state.state
    held: dict[int, Vector] = {}
    for app in master_state.live.values():
        for container in app.containers.values() if is_driver(app.application_id) else ():
            row = state.rows.get(container.unit_id)
            if row is not None and container.state is not ContainerState.WAITING:
                more = demand_vector(container.request.resources)
                held[row] = plus(held.get(row, (0, 0, 0, 0)), more)
    return state.most(demand, held)


def no_stream(app: Application) -> None:
    """It has turned out to be batch: only ``spark.hrm.gang.min`` counts."""
    app.gang_min = min(app.gang_min, app.record.gang_min)


def missing(app: Application) -> int:
    """How many containers must be placed in one go before any other is; 0 where there is no gang,
    or it has been admitted."""
    if app.gang_min <= 1:
        return 0
    placed = sum(x.state is not ContainerState.PENDING for x in app.containers.values())
    return max(0, app.gang_min - placed)


def setting(app: Application) -> str:
    """What says how large its gang is."""
    record = app.record
    by_gang = record.workload_class is WorkloadClass.BATCH or (
        record.gang_min and not record.stream_min
    )
    return "spark.hrm.gang.min" if by_gang else "spark.hrm.stream.min"


def reason(app: Application) -> str:
    """Why it has a gang."""
    stated = app.record.stream_min or app.record.gang_min
    return setting(app) if stated else "a stream starts whole"


def settled(app: Application) -> None:
    """Forget the gang once it is placed: what ends later is replaced one by one."""
    if not missing(app):
        app.gang_min = 0


def shrink(app: Application) -> None:
    """What the application still requests is all there can be of its gang: it withdrew requests,
    or has requested fewer for so long that no more will come."""
    if missing(app):
        app.gang_min = min(app.gang_min, len(app.containers))


def times(demand: Vector, offer: Vector) -> int:
    """How many containers of ``demand`` fit into ``offer`` together."""
    folds = [have // want for want, have in zip(demand, offer, strict=True) if want > 0]
    return max(0, min(folds))


def refusal(master_state: MasterState, app: Application, resources: Resources) -> str:
    """Why a gang of such containers could never start; empty if it could, or if it is not known,
    or if there is a gang only because of a guess, which will be settled.

    Counted as if all of it were alike and every node empty; lost nodes may come back, as they do
    for single containers.
    """
    if not missing(app) or master_state.recovering or app.record.class_guessed:
        return ""
    nodes = list(master_state.nodes.values())
    if not nodes:
        return ""
    demand = demand_vector(resources)
    if master_state.state.most(demand) >= app.gang_min:
        return ""
    most = sum(_most(demand, node.units) for node in nodes)
    if most >= app.gang_min:
        return ""
    name, why = setting(app), reason(app)
    change = f"lower {name} or" if why == name else f"set {name} to at most {most}, lower"
    return (
        f"{app.gang_min} executors of {resources} are to start together ({why}), but the whole "
        f"cluster holds {most} of them when it is empty ({len(nodes)} "
        f"node{'s' if len(nodes) > 1 else ''}); {change} the size of executors, or add nodes"
    )


def _most(demand: Vector, units: Iterable[ResourceUnit]) -> int:
    """How many of ``demand`` a node's units hold together when they are empty.

    Units of a pool hold no more together than their cores and memory, which all of them show.
    """
    pools: dict[ResourceUnitId, list[ResourceUnit]] = defaultdict(list)
    for unit in units:
        pools[unit.pool or unit.unit_id].append(unit)
    most = 0
    for pool in pools.values():
        alone = sum(times(demand, capacity_vector(x)) for x in pool if could_hold(demand, x))
        most += min(alone, times(pooled_part(demand), capacity_vector(pool[0])))
    return most
