"""Why is my application waiting? Why did it end? As text.

Why it waits follows from the current state. How it ended, what it lost and what it was refused
comes from its history, which is kept longer than the state: it still explains an application that
the master has forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hrm.core.master import gangs, locality
from hrm.core.master.drained_nodes import drained_note
from hrm.core.master.driver_places import NO_NODE, NO_SUITED_NODE, DriverPlaces
from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_shares import platform_line
from hrm.core.master.priorities import priority_lines
from hrm.core.master.queue_report import prospect
from hrm.core.master.state import MasterState
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.advice import advice_for
from hrm.core.vocabulary.columns import Bools
from hrm.core.vocabulary.feasibility import (
    Column,
    Vector,
    could_hold,
    current_vector,
    demand_vector,
    fits,
    fitting_rows,
    minus,
    plus,
    pooled_part,
)
from hrm.core.vocabulary.history import RequestRecord, StateEvent
from hrm.core.vocabulary.model import (
    ApplicationState,
    ContainerState,
    NodeName,
    NodeState,
    Resources,
    ResourceUnitId,
    WorkloadClass,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import lasting, unmet

__all__ = ["explain", "explain_past"]

_DETAILS_MAX = 20
_TROUBLES_MAX = 5
_NAMED_MAX = 5
_KEPT_SETTING = "preemption = false of the agent"


def explain(
    master_state: MasterState, app: Application, now: float, history: Sequence[StateEvent] = ()
) -> tuple[str, list[str]]:
    """One line, and the details behind it. ``history``: the application's, oldest first."""
    evidence = app.record.class_evidence or "no streaming query was seen"
    of_class = f"it is of class {app.record.workload_class.value}: {evidence}"
    details = [*priority_lines(master_state, app), of_class, *_failure_lines(history)]
    details += _required(master_state, app)
    details += _excluded(master_state, app, now)
    if not app.life.state.ended:
        details += list(master_state.ahead.values())[:_DETAILS_MAX]
    state = app.life.state
    if state.ended:
        seconds = app.record.ended_at_s - app.record.submitted_at_s
        message = f": {app.record.message}" if app.record.message else ""
        return f"{state.value} after {seconds:.1f} s{message}", details
    if state is ApplicationState.DETACHED:
        left_s = master_state.bounds.application_grace_s - (now - (app.away_since_s or now))
        left = f"it has {max(0.0, left_s):.0f} s to come back before the application fails"
        return f"its AppMaster is away; {left}", details
    pending = app.in_state(ContainerState.PENDING)
    placed = app.in_state(ContainerState.ASSIGNED, ContainerState.WAITING)
    running = app.in_state(ContainerState.RUNNING)
    details += [_waiting_line(master_state, x, now) for x in placed[:_DETAILS_MAX]]
    if pending:
        details += _held_by_drivers(master_state, pending)
        return _pending_line(master_state, app, pending, now), details
    if placed:
        details += _held_by_drivers(master_state, placed)
        run = f"{len(running)} of {len(running) + len(placed)} containers run"
        why = _preempting(master_state, app, placed, now)
        return f"{run}; the others wait in the queue of a resource unit{why}", details
    if not app.containers:
        return "it requests no executors now", details
    run = f"{len(running)} container{'s run' if len(running) != 1 else ' runs'}"
    if (gang := gangs.missing(app)) and app.gang_lacked_s is not None:
        lost, _ = _lost(master_state, app, gang, app.gang_lacked_s, now)
        return f"{run}; {_start(app)}{lost}", details
    return f"it waits for nothing: {run}", details


def explain_past(history: Sequence[StateEvent]) -> tuple[str, list[str]]:
    """The same for an application that the master has forgotten; its history is not empty."""
    ended = next((event for event in reversed(history) if event.ends_application), None)
    if ended is None:
        latest = history[-1]
        return (
            f"the master no longer has a record of it; its last known state is {latest.to_state}",
            [],
        )
    began = next((event for event in history if event.kind == "application"), ended)
    after = f" after {ended.at_s - began.at_s:.1f} s" if not began.from_state else ""
    reason = f": {ended.reason}" if ended.reason else ""
    details = [f"it was {began.reason}"] if not began.from_state and began.reason else []
    return f"{ended.to_state}{after}{reason}", [*details, *_failure_lines(history)]


def _failure_lines(history: Sequence[StateEvent]) -> list[str]:
    counted = Counter((x.is_failure, x.cause, x.reason) for x in history if x.ends_badly)
    lines = [
        f"{count} container{'s' if count > 1 else ''} {_ended(cause, count, is_failure)}: {message}"
        for (is_failure, cause, message), count in counted.most_common(_TROUBLES_MAX)
    ]
    refused = Counter(x.reason for x in history if x.to_state == RequestRecord.REFUSED.value)
    return lines + [f"refused {message}" for message, _ in refused.most_common(_TROUBLES_MAX)]


def _ended(cause: str, count: int, is_failure: bool) -> str:
    """How containers ended that were to run on; ``cause`` as its record keeps it."""
    if is_failure:
        return f"ended badly ({cause})"
    how = "lost with their nodes" if cause == "node-lost" else cause
    return f"{'were' if count > 1 else 'was'} {how}, which counts as no failure"


def _required(master_state: MasterState, app: Application) -> list[str]:
    """What it requires of nodes, and which of them meet it."""
    if app.life.state.ended or app.requires is None:
        return []
    nodes = [x for x in master_state.nodes.values() if x.state is not NodeState.LOST]
    others = [x for x in nodes if unmet(app.requires, x.properties)]
    suited = [x for x in nodes if not unmet(app.requires, x.properties)]
    lines = []
    if lasting(app.requires) is not None:
        lines.append(f"it runs only on nodes with {app.requires}")
    lines.append(f"{len(suited)} of {len(nodes)} nodes are for it")
    closed = [x for x in suited if x.state is not NodeState.ALIVE]
    lines += [f"{x.name} is for it, and {x.state.value}" for x in closed[:_DETAILS_MAX]]
    lines += [f"{x.name} {unmet(app.requires, x.properties)}" for x in others[:_DETAILS_MAX]]
    if len(others) > _DETAILS_MAX:
        lines.append(f"{len(others) - _DETAILS_MAX} more nodes are not for it")
    return lines


def _excluded(master_state: MasterState, app: Application, now: float) -> list[str]:
    """The nodes that it is kept from, for how long and why."""
    if app.life.state.ended:
        return []
    tracker = master_state.exclusions
    lines = [
        f"{x.node} is excluded for {scope} for {x.until_s - now:.0f} s more: {x.why}"
        for scope, found in (
            ("every application", tracker.of_all(now)),
            ("this application", tracker.of_application(app.application_id, now)),
        )
        for x in found
    ]
    if len(lines) > _DETAILS_MAX:
        lines[_DETAILS_MAX:] = [f"{len(lines) - _DETAILS_MAX} more nodes are excluded"]
    avoided = tracker.avoided(app.application_id, now)
    demands = {demand_vector(x.request.resources) for x in app.containers.values()}
    state, requires = master_state.state, app.requires
    if avoided and not all(state.has_capacity_outside(avoided, x, requires) for x in demands):
        names = ", ".join(sorted(avoided)[:_DETAILS_MAX])
        verb = "is" if len(avoided) == 1 else "are"
        lines.append(
            f"{names} {verb} used nevertheless: no other node could hold its containers; add one, "
            f"or read the logs of those that failed"
        )
    return lines


def _preempting(
    master_state: MasterState, app: Application, placed: list[Container], now: float
) -> str:
    """That what runs where a stream's containers wait is being preempted, and how long it has."""
    if app.record.workload_class is not WorkloadClass.STREAM:
        return ""
    units = dict.fromkeys(container.unit_id for container in placed)
    found = {x.container_id: x for unit_id in units for x in _victims(master_state, unit_id)}
    if not found:
        return ""
    return f", where {_ending(master_state, list(found.values()), now)}"


def _victims(master_state: MasterState, unit_id: ResourceUnitId) -> list[Container]:
    """What is being preempted for streams at a unit, and at those that share its cores."""
    queue = master_state.state.find(unit_id)
    row = master_state.state.rows.get(unit_id)
    if queue is None or row is None:
        return []
    node = master_state.nodes[master_state.state.node(row)]
    pool = {each.unit.unit_id for each in queue.pool}
    return [
        x
        for x in node.containers.values()
        if x.preempted and x.state is ContainerState.STOPPING and x.unit_id in pool
    ]


def _ending(master_state: MasterState, victims: Sequence[Container], now: float) -> str:
    """How many are being preempted, and by when the last of them has ended."""
    ends_in_s: list[float] = []
    for victim in victims:
        node = None if victim.node is None else master_state.nodes.get(victim.node)
        if node is not None and node.preemption_grace_s is not None:
            ends_in_s.append(victim.preempted_at_s + node.preemption_grace_s - now)
    many = len(victims)
    text = f"{many} batch container{'s are' if many > 1 else ' is'} being preempted for streams"
    if not ends_in_s:
        return text
    left_s = max(ends_in_s)
    if left_s <= 0:
        return f"{text}; the time to end is over (preemption_grace_s of the agent)"
    have = "have" if many > 1 else "has"
    return f"{text} and {have} {left_s:.0f} s more to end (preemption_grace_s of the agent)"


def _waiting_line(master_state: MasterState, container: Container, now: float) -> str:
    label, asks = f"executor {container.request.executor_id}", container.request.resources
    if is_driver(container.application_id):
        label = "the driver"
    queue = master_state.state.find(container.unit_id)
    if queue is None:
        return f"{label} waits at {container.unit_id}"
    waiting = [*queue.stream_waiting, *queue.batch_waiting, *queue.yielding_waiting]
    if container.container_id not in waiting:
        return f"{label} was sent to {container.unit_id}"
    place = ", in the place of one that was preempted there"
    kept = place if container.request.place == container.unit_id else ""
    victims = _victims(master_state, container.unit_id)
    ends = f" ({_ending(master_state, victims, now)})" if victims else ""
    kept_batch = ""
    if container.container_id in queue.stream_waiting and not queue.unit.preempts:
        kept_batch = f"; batch is not preempted there ({_KEPT_SETTING})"
    return (
        f"{label} waits at {container.unit_id} with {waiting.index(container.container_id)} before "
        f"it{kept}; {len(queue.running)} run there{ends}; it requests {asks}, and "
        f"{Resources(*queue.free[: Column.SLOTS])} of {queue.unit.current} are free{kept_batch}"
    )


def _pending_line(
    master_state: MasterState, app: Application, pending: list[Container], now: float
) -> str:
    request = pending[0].request.resources
    driver = is_driver(app.application_id)
    many = f"{len(pending)} executor{'s wait' if len(pending) > 1 else ' waits'}"
    many, each = ("the driver waits", "") if driver else (many, " each")
    oldest_s = now - min(x.requested_at_s for x in pending)
    since = f"{many} for a place ({request}{each}) since {oldest_s:.1f} s"
    there = [n for n in master_state.nodes.values() if n.state is not NodeState.LOST]
    if master_state.ahead and all(n.state is not NodeState.ALIVE for n in there):
        return f"{since}: no node is alive; {next(iter(master_state.ahead.values()))}"
    if not there:
        return f"{since}: no node is alive; start one with hrm agent, or see hrm nodes"
    note, is_all = drained_note(master_state)
    if is_all:
        return f"{since}: {note}"
    if pending[0].waits_for:
        return f"{since}: {pending[0].waits_for.why}"
    if pending[0].held:
        return f"{since}: the master has restarted and waits for its nodes to come back"
    if app.kept is not None and all(x.withheld for x in pending):
        return f"{since}: {app.kept.why}" + (f"; {note}" if note else "")
    state, demand = master_state.state, demand_vector(request)
    could = state.open & fitting_rows(demand, state.total) & state.serving(demand)
    if app.requires is not None:
        suited = could & state.suited(app.requires)
        if could.any() and not suited.any():
            return f"{since}: {NO_SUITED_NODE}"
        could = suited
    if not could.any():
        return f"{since}: {NO_NODE}"
    tried = f"; the last try: {app.refusal}" if app.refusal else ""
    gang = gangs.missing(app)
    if gang:
        return f"{since}: {_gang_reason(master_state, app, pending, gang, now)}{tried}"
    near = locality.waiting_line(pending[0].request, now - pending[0].requested_at_s)
    if near:
        return f"{since}: {near}"
    platform = platform_line(pending[0].request, now)
    if platform:
        return f"{since}: {platform}"
    if (could & fitting_rows(demand, state.free)).any():
        why = app.refusal or "there is capacity, its scheduler has not come to it yet"
        return f"{since}: {why}"
    if master_state.queues.governs and not driver:
        hope = prospect(master_state, app, pending[0])
        return f"{since}: no resource unit has that much free now. {hope}"
    smaller = could & (state.free[:, Column.VCORES] > 0) & (state.free[:, Column.SLOTS] > 0)
    smaller &= state.free[:, Column.GPU_MEMORY_MIB] >= demand[Column.GPU_MEMORY_MIB]
    sooner = (
        f", or sooner with less in {advice_for(app.application_id).size}" if smaller.any() else ""
    )
    most = _most_free(master_state, could, demand)
    return (
        f"{since}: no resource unit has that much free now; {most} (hrm nodes shows all){tried}. "
        f"{_starts_when(master_state, could, demand)}{sooner}"
    )


def _starts_when(master_state: MasterState, rows: Bools, demand: Vector) -> str:
    """What must end so that it starts at one of ``rows``: where units have lent what it lacks, that
    is not what runs there."""
    state = master_state.state
    lenders = {
        row: unit
        for row in rows.nonzero()[0].tolist()
        if not fits(demand, current_vector(unit := state.queue(row).unit))
    }
    if len(lenders) < np.count_nonzero(rows):
        return "It starts when something ends there"
    row, unit = max(lenders.items(), key=lambda x: (x[1].current.vcores, -x[0]))
    return (
        f"{unit.unit_id} has lent {unit.lent} of {unit.target} to other units of {state.node(row)} "
        f"since that was bound otherwise; it starts once what runs there has ended and given that "
        f"back, which nothing is preempted for (hrm nodes shows what is lent)"
    )


def _held_by_drivers(master_state: MasterState, waiting: list[Container]) -> list[str]:
    """What drivers hold of the cluster, where one of ``waiting`` would start without them."""
    if is_driver(waiting[0].application_id):
        return []
    places = DriverPlaces(master_state)
    state = master_state.state
    for demand in dict.fromkeys(demand_vector(x.request.resources) for x in waiting):
        for row, held in places.held.items():
            queue = state.queue(row)
            free = plus(queue.free, held)
            if could_hold(demand, queue.unit) and fits(demand, free):
                return [
                    f"{places.words()}, and it would start at {state.ids[row]} without those "
                    f"there; it starts when they end (hrm submissions lists them), or when nodes "
                    f"join"
                ]
    return []


def _most_free(master_state: MasterState, rows: Bools, demand: Vector) -> str:
    """Of ``rows``, what the one with the most free has free, and what of that is too little: the
    most vcores (of those, memory), for what uses GPUs first the most device memory."""
    state = master_state.state
    free = {row: tuple(state.free[row].tolist()) for row in rows.nonzero()[0].tolist()}
    gpu = Column.GPU_MEMORY_MIB
    most = max(free, key=lambda row: (free[row][gpu] if demand[gpu] else 0, free[row]))
    *parts, slots = free[most]
    names = ("vcores", "memory", "device memory")
    lacking = [x for x, has, asks in zip(names, parts, demand, strict=False) if has < asks]
    less = f", too little {' and '.join(lacking)}" if lacking else ""
    full = "" if slots else ", and runs as many containers as it may (run_limit)"
    return f"the most, {state.ids[most]}, has {Resources(*parts)}{less}{full}"


def _gang_reason(
    master_state: MasterState,
    app: Application,
    pending: list[Container],
    gang: int,
    now: float,
) -> str:
    start = _start(app)
    if app.gang_lacked_s is not None:
        lost, is_over = _lost(master_state, app, gang, app.gang_lacked_s, now)
        start += lost
        if is_over:
            return start
    if len(pending) < gang:
        return f"{start}, and it has not requested {gang - len(pending)} of them yet"
    if unpacked := gangs.unpacked(master_state, app):
        return f"{start}; {unpacked}"
    avoided = master_state.exclusions.avoided(app.application_id, now)
    some = _fitting_count(master_state, app, pending[:gang], avoided)
    if some >= gang:
        return f"{start}; there is capacity for all, its scheduler has not come to it yet"
    without = ""
    if avoided and _fitting_count(master_state, app, pending[:gang], frozenset()) > some:
        names = ", ".join(sorted(avoided)[:_DETAILS_MAX])
        verb = "is" if len(avoided) == 1 else "are"
        without = f", without {names}, which {verb} excluded (see the details)"
    there = f"{start}, and there is capacity for {some} of the {gang} now{without}"
    return there + _not_preempting(master_state, app)


def _start(app: Application) -> str:
    return f"its first {app.gang_min} start together ({gangs.reason(app)})"


def _lost(
    master_state: MasterState, app: Application, gang: int, lacked_s: float, now: float
) -> tuple[str, bool]:
    """That a gang has lost a part before all of it had started, and what becomes of the rest; has
    that been decided?"""
    bounds = master_state.bounds
    holds = any(x.node is not None and x.stop_cause is None for x in app.containers.values())
    if not holds or lacked_s >= bounds.gang_wait_s:
        how = "some of them lost their places before all had started"
        return f"; {how}, so the others give theirs back and wait for the whole", True
    lost = "1 of them has lost its place" if gang == 1 else f"{gang} of them have lost theirs"
    start = f"; {lost} before all had started, and"
    if gangs.unasked(app):
        left_s = max(0.0, bounds.application_grace_s - gangs.silence_s(app, now))
        return f"{start} the others go on alone if no more is requested in {left_s:.0f} s", False
    left_s = max(0.0, bounds.gang_wait_s - lacked_s)
    until = f"unless there is another within {left_s:.0f} s"
    return f"{start} what the others hold is given back {until}", False


def _not_preempting(master_state: MasterState, app: Application) -> str:
    """That a stream would have batch preempted for it, but for the settings of some nodes."""
    if app.record.workload_class is not WorkloadClass.STREAM:
        return ""
    nodes = [x for x in master_state.nodes.values() if x.state is NodeState.ALIVE]
    kept = [x.name for x in nodes if not all(unit.preempts for unit in x.units)]
    if not kept:
        return ""
    names = ", ".join(kept[:_NAMED_MAX]) + (", ..." if len(kept) > _NAMED_MAX else "")
    return f"; batch is not preempted on {names} ({_KEPT_SETTING})"


def _fitting_count(
    master_state: MasterState,
    app: Application,
    members: Sequence[Container],
    avoided: frozenset[NodeName],
) -> int:
    """How many of them could start now."""
    view = ClusterView(master_state.state)
    if app.requires is not None:
        view.require(app.requires)
    if avoided:
        view.avoid(avoided)
    free: dict[int, Vector] = {}
    count = 0
    for container in members:
        demand = demand_vector(container.request.resources)
        view.open_to(demand)
        ahead = view.waiting_before(app.record.workload_class)
        rows = (view.open & (ahead == 0) & view.could_ever_fit(demand)).nonzero()[0].tolist()
        queues = {row: master_state.state.queue(row) for row in rows}
        free = {row: queue.free for row, queue in queues.items()} | free
        row = next((row for row in rows if fits(demand, free[row])), None)
        if row is not None:
            for each in {row, *(free.keys() & set(view.siblings(row)))}:
                free[each] = minus(free[each], demand if each == row else pooled_part(demand))
            count += 1
    return count
