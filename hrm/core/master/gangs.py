"""Gangs: an application's first containers start together or wait together.

Two applications that each need eight executors before they can do anything, on a cluster that holds
twelve, would take six each and wait forever. ``spark.hrm.gang.min`` states how many of an
application's first containers are of no use alone: the negotiator grants that many at once, or
none, without a lease: a gang that lost the race tries again. What is granted must *run* at once, or
as soon as others have yielded (``hrm.core.queue.yielding``); the queue of a unit counts nowhere
else.

A stream starts whole: its gang is all of its first request, or ``spark.hrm.stream.min`` of it,
since half a stream keeps no deadline. A container of it may also wait where batch is preempted for
it, as its node has said of each unit (``ResourceUnit.preempts``): elsewhere batch need not end, and
it must run at once like any gang. (The paper commits all that a stream requests together.)

A gang protects the start only: once all of it have started, requests and replacements are placed
one by one. What is lost before makes it incomplete again (``hrm.core.master.gang_starts``). Nor is
capacity accumulated for it: while smaller applications keep taking what becomes free, it waits. An
application that needs fewer than its gang gets those together, once it has requested no more for as
long as the longest back-off, or for ``application_grace_s`` if it had lost some.

Limits: one number an application, counted over all its resource profiles in order of request. Where
these are of several sizes, a gang is refused if there is too little for all of one size, or for the
sum in some dimension; one for which no way to pack it was found waits all the same, and says so
(``unpacked``). Not in the HRM paper, which grants all or nothing to streams alone (its example in
section 1).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hrm.core.master.admission import resolve, suited_nodes
from hrm.core.master.entities import Application, Node
from hrm.core.master.packing import left_over, times
from hrm.core.master.state import MasterState
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import (
    Column,
    Vector,
    capacity_vector,
    could_hold,
    demand_vector,
    fits,
    minus,
    plus,
    pooled_part,
)
from hrm.core.vocabulary.model import (
    NOTHING,
    ContainerRequest,
    ContainerState,
    EndCause,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
    container_id_of,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement, lasting

__all__ = [
    "begin_stream",
    "granted",
    "missing",
    "no_stream",
    "reason",
    "refusal",
    "setting",
    "settle",
    "shrink",
    "silence_s",
    "unasked",
    "unpacked",
]

_NOTHING: Mapping[int, Vector] = {}
_PLACED = (ContainerState.ASSIGNED, ContainerState.WAITING, ContainerState.RUNNING)


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
        state, requires = master_state.state, lasting(app.requires)
        demands = _demands(master_state, requests, requires)
        most = _first_that_fit(state, demands, requires, _held_by_drivers(master_state))
        if 0 < most < app.gang_min and (
            record.class_guessed or _first_that_fit(state, demands, requires) == len(demands)
        ):
            app.gang_min = most


def _demands(
    master_state: MasterState,
    requests: Iterable[ContainerRequest],
    requires: NodeRequirement | None,
) -> list[Vector]:
    """What each of these requests takes; see ``admission.resolve``."""
    known: dict[tuple[Resources, int], Vector] = {}
    demands = []
    for request in requests:
        key = request.resources, request.gpus
        if key not in known:
            known[key] = demand_vector(resolve(master_state, request, requires).resources)
        demands.append(known[key])
    return demands


def _first_that_fit(
    state: SharedState,
    demands: Sequence[Vector],
    requires: NodeRequirement | None,
    held: Mapping[int, Vector] = _NOTHING,
) -> int:
    """How many of these, the first, all units of nodes that meet ``requires`` would hold together
    but for what is ``held`` at some rows: of each size and in sum, see the module's limits."""
    most = {demand: state.most(demand, held, requires) for demand in dict.fromkeys(demands)}
    rows = np.ones(len(state.total), np.bool_) if requires is None else state.suited(requires)
    first = np.unique(state.pool, return_index=True)[1]
    vcores, memory_mib = state.total[first[rows[first]], :2].sum(axis=0).tolist()
    gpu_memory_mib, slots = state.total[rows, 2:].sum(axis=0).tolist()
    left: Vector = (vcores, memory_mib, gpu_memory_mib, slots)
    for row, part in held.items():
        left = minus(left, part) if rows[row] else left
    for count, demand in enumerate(demands):
        most[demand] -= 1
        left = minus(left, demand)
        if min(most[demand], *left) < 0:
            return count
    return len(demands)


def _held_by_drivers(master_state: MasterState) -> dict[int, Vector]:
    """What drivers hold, by row."""
    state = master_state.state
    held: dict[int, Vector] = {}
    for app in master_state.live.values():
        for container in app.containers.values() if is_driver(app.application_id) else ():
            row = state.rows.get(container.unit_id)
            if row is not None and container.state is not ContainerState.WAITING:
                more = demand_vector(container.request.resources)
                held[row] = plus(held.get(row, (0, 0, 0, 0)), more)
    return held


def no_stream(app: Application) -> None:
    """It has turned out to be batch: only ``spark.hrm.gang.min`` counts."""
    app.gang_min = min(app.gang_min, app.record.gang_min)


def missing(app: Application) -> int:
    """How many containers must be placed in one go before any other is; 0 where there is no gang,
    or all of it have a place or have started. What is to stop has none."""
    if app.gang_min <= 1:
        return 0
    placed = sum(x.state in _PLACED and x.stop_cause is None for x in app.containers.values())
    return max(0, app.gang_min - placed)


def unasked(app: Application) -> int:
    """How many of those that are missing its AppMaster has yet to request, or to request again."""
    return max(0, missing(app) - len(app.in_state(ContainerState.PENDING)))


def silence_s(app: Application, now: float) -> float:
    """For how long its AppMaster could have requested what a gang has lost, and has not."""
    return min(app.gang_unasked_s, now - app.gang_lost_at_s)


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


def granted(master_state: MasterState, app: Application) -> None:
    """Some of its containers have been granted, and with the first of them its gang."""
    if app.gang_min > 1:
        master_state.starting[app.application_id] = app
    else:
        app.gang_min = 0


def settle(master_state: MasterState, app: Application) -> None:
    """Forget the gang once all of it have started: what ends later is replaced one by one."""
    run, least = ContainerState.RUNNING, app.gang_min
    if least <= 1 or least <= sum(
        x.state is run and x.stop_cause is None for x in app.containers.values()
    ):
        if app.gang_min > 1:
            master_state.gpus.renew(app.application_id)
        app.gang_min = 0
        app.gang_lacked_s, app.gang_unasked_s = None, 0.0
        master_state.starting.pop(app.application_id, None)


def shrink(app: Application) -> bool:
    """What the application still requests is all there can be of its gang: it withdrew requests,
    or has requested fewer for so long that no more will come. Returns whether that is so."""
    if not missing(app):
        return False
    released = EndCause.RELEASED
    wanted = sum(x.stop_cause is not released for x in app.containers.values())
    shrinks, app.gang_min = wanted < app.gang_min, min(app.gang_min, wanted)
    return shrinks


def refusal(
    master_state: MasterState,
    app: Application,
    resources: Resources,
    coming: Sequence[ContainerRequest] = (),
) -> str:
    """Why a gang with such containers could never start; empty if it could, if there are none in
    it, if it is not known, or if there is a gang only because of a guess, which will be settled.

    ``coming``: what it requests in addition to the containers that are known. Every node counts as
    empty; lost nodes may come back, as they do for single containers.
    """
    if not missing(app) or master_state.recovering or app.record.class_guessed:
        return ""
    requires = lasting(app.requires)
    demand, members = demand_vector(resources), _members(master_state, app, coming)
    if not master_state.nodes or demand not in members:
        return ""
    name, why, wanted = setting(app), reason(app), members[demand]
    if len(members) == 1 and master_state.state.most(demand, requires=requires) >= wanted:
        return ""
    nodes = suited_nodes(master_state, requires)
    if not nodes:
        return ""
    there = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    there += f" with {requires}" if requires is not None else ""
    change = f"lower {name} or" if why == name else f"set {name}, lower"
    if len(members) > 1:
        several = f"{app.gang_min} executors of several sizes are to start together ({why}), which"
        if lack := _lack(members, nodes):
            return f"{several} takes {lack} ({there}); {change} the size of executors, or add nodes"
        if lack := _lack_of_slots(members, nodes):
            change = f"lower {name}" if why == name else f"set {name}"
            return (
                f"{several} takes {lack} ({there}); {change}, raise run_limit of the agents, or "
                f"add nodes"
            )
    if master_state.state.most(demand, requires=requires) >= wanted:
        return ""
    most = sum(_most(demand, node.units) for node in nodes)
    if most >= wanted:
        return ""
    if why != name and len(members) == 1:
        change = f"set {name} to at most {most}, lower"
    return (
        f"{wanted} executors of {resources} are to start together ({why}), but the whole "
        f"cluster holds {most} of them when it is empty ({there}); {change} the size of "
        f"executors, or add nodes"
    )


def unpacked(master_state: MasterState, app: Application) -> str:
    """That no way was found to place a gang of several sizes, even on the empty cluster, and what
    to change; empty if one was, or all are alike, which ``refusal`` counts exactly. There may be a
    way all the same, so nothing is refused for it."""
    if not missing(app) or master_state.recovering:
        return ""
    members = _members(master_state, app, ())
    nodes = suited_nodes(master_state, lasting(app.requires))
    units = [unit for node in nodes for unit in node.units]
    if len(members) < 2 or not units or not (left := left_over(members, units)):
        return ""
    wanted = members.total()
    lacks = " and ".join(f"{many} of {_named(demand)}" for demand, many in left.items())
    name, why = setting(app), reason(app)
    change = f"lower {name} or" if why == name else f"set {name}, lower"
    return (
        f"even on the empty cluster no way was found to place them together: of {wanted} executors "
        f"of several sizes {wanted - left.total()} found a place, not {lacks}; {change} the size "
        f"of executors so that more of them fit a node, or add nodes"
    )


def _named(demand: Vector) -> Resources:
    vcores, memory_mib, gpu_memory_mib, slots = demand
    return Resources(vcores, memory_mib, gpu_memory_mib, slots if gpu_memory_mib else 1)


def _members(
    master_state: MasterState, app: Application, coming: Sequence[ContainerRequest]
) -> Counter[Vector]:
    """How many of each size a gang has: what has a place, and then what was requested first. While
    all is alike, what has not been requested yet is taken to be like it; not where some has ended,
    and may be requested again in another size."""
    known = sorted(app.containers.values(), key=lambda x: x.state is ContainerState.PENDING)
    asked = [container.request for container in known]
    asked += [
        x for x in coming if app.find(container_id_of(app.application_id, x.executor_id)) is None
    ]
    first = asked[: app.gang_min]
    members = Counter(_demands(master_state, first, lasting(app.requires)))
    if len(members) == 1 and not app.ended:
        members = Counter(dict.fromkeys(members, app.gang_min))
    return members


def _lack(members: Counter[Vector], nodes: Iterable[Node]) -> str:
    """Of what these take more together than all nodes have; empty if of nothing, but for slots."""
    total = sum((unit.own_capacity for node in nodes for unit in node.units), NOTHING)
    wanted = Resources(*(_sum(members, x) for x in Column if x is not Column.SLOTS))
    if fits(demand_vector(wanted), demand_vector(total)):
        return ""
    return f"{wanted}, but the whole cluster has {total}"


def _lack_of_slots(members: Counter[Vector], nodes: Iterable[Node]) -> str:
    """That more of them would run at once than all nodes run; empty if not."""
    units = [unit for node in nodes for unit in node.units]
    total = sum(capacity_vector(unit)[Column.SLOTS] for unit in units)
    wanted = _sum(members, Column.SLOTS)
    return f"{wanted} slots, but the whole cluster has {total}" if wanted > total else ""


def _sum(members: Counter[Vector], column: Column) -> int:
    return sum(demand[column] * many for demand, many in members.items())


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
