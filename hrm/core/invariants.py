"""What must hold after every event, recounted from scratch.

Tests and the simulator call these after each event; the live daemons do not (they cost a pass over
everything). Each function returns a text for each violation; an empty list means none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import numpy as np

from hrm.core.master import gangs
from hrm.core.master.core import MasterCore
from hrm.core.master.holdings import kept_bytes, launch_bytes
from hrm.core.master.state import MasterState
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.yielding import to_come
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import (
    Column,
    capacity_vector,
    current_vector,
    minus,
    pooled_part,
)
from hrm.core.vocabulary.model import (
    NO_LAUNCH,
    NOTHING,
    ContainerState,
    NodeState,
    Resources,
    is_driver,
)
from hrm.core.vocabulary.partitioning import BindingMode

__all__ = [
    "binding_violations",
    "master_violations",
    "node_violations",
    "table_violations",
    "unit_violations",
]


def unit_violations(queue: UnitQueue) -> list[str]:
    """No over-commitment, ``free`` equal to a recount, no container in two places."""
    name = queue.unit.unit_id
    found: list[str] = []
    free = stream_headroom = current_vector(queue.unit)
    for sibling in queue.pool:
        for entry in (*sibling.running.values(), *sibling.stream_waiting.values()):
            demand = entry.demand if sibling is queue else pooled_part(entry.demand)
            if entry.container_id in sibling.running:
                free = minus(free, demand)
            if entry.has_no_end:
                stream_headroom = minus(stream_headroom, demand)
    if min(free) < 0:
        found.append(f"{name} is over its capacity: {free}")
    if free != queue.free:
        found.append(f"{name} has {queue.free} as free, a recount gives {free}")
    if stream_headroom != queue.stream_headroom:
        found.append(
            f"{name} leaves {queue.stream_headroom} to streams, a recount gives {stream_headroom}"
        )
    waiting = [*queue.stream_waiting, *queue.batch_waiting, *queue.yielding_waiting]
    places = Counter([*queue.running, *waiting])
    found += [f"{x} is in {n} places of {name}" for x, n in places.items() if n > 1]
    here = [x for x, owner in queue.line.items() if owner is queue]
    if here != list(queue.batch_waiting):
        found.append(f"{name} queues {[*queue.batch_waiting]}, in the pool's line are {here}")
    here = [x for x, owner in queue.yielding_line.items() if owner is queue]
    if here != list(queue.yielding_waiting):
        found.append(f"{name} lets {[*queue.yielding_waiting]} wait last, in line are {here}")
    yielding = sum(entry.yields_now for entry in queue.running.values())
    if queue.yielding != yielding:
        found.append(f"{name} counts {queue.yielding} that yield, a recount gives {yielding}")
    return found


def node_violations(core: NodeCore) -> list[str]:
    """Units valid; containers and queues agree; no startable waiter, none while it is closed."""
    found = binding_violations(core)
    if core.closed and any(queue.waiting_count for queue in core.units.values()):
        found.append(f"{core.name} is closed ({core.closed}), and containers wait there")
    holding = {ContainerState.RUNNING, ContainerState.STOPPING}
    for unit_id, queue in core.units.items():
        found += unit_violations(queue)
        here = {x for x, k in core.containers.items() if k.spec.unit_id == unit_id}
        running = {x for x in here if core.containers[x].life.state in holding}
        waiting = {x for x in here if core.containers[x].life.state is ContainerState.WAITING}
        if running != set(queue.running):
            found.append(f"{unit_id} runs {sorted(queue.running)}, states say {sorted(running)}")
        queued = {*queue.stream_waiting, *queue.batch_waiting, *queue.yielding_waiting}
        if waiting != queued:
            found.append(f"{unit_id} queues {sorted(queued)}, states say {sorted(waiting)}")
    return found


def binding_violations(core: NodeCore) -> list[str]:
    """However a node is partitioned, its units add up to its hardware at every moment.

    Cores, memory and device memory are conserved, by the layout and as they are now; what is
    borrowed is held, and as much is lent; no core is bound twice, and units that share are in one
    pool.
    """
    found: list[str] = []
    for unit_id, queue in core.units.items():
        found += _borrowing_violations(queue)
        if queue.capacity != current_vector(queue.unit):
            found.append(f"{unit_id} offers {queue.capacity}, not {queue.unit.current}")
        owner = queue.unit.pool or unit_id
        pool = sorted(x for x, q in core.units.items() if (q.unit.pool or x) == owner)
        joined = sorted(sibling.unit.unit_id for sibling in queue.pool)
        if pool != joined:
            found.append(f"{unit_id} shares with {joined}, its units say {pool}")
    if core.hardware is None:
        return found
    units = [queue.unit for queue in core.units.values()]
    gpus = core.hardware.gpus[: core.binding.gpu_limit]
    offered = [queue.unit.gpus for queue in core.units.values() if queue.unit.gpus]
    if sorted(x.index for each in offered for x in each) != sorted(x.index for x in gpus):
        found.append(f"the units of {core.name} offer other GPUs than it has, or one twice")
    device_mib = sum(len(each) * min(x.memory_mib for x in each) for each in offered)
    whole = Resources(len(core.hardware.cores), core.hardware.memory_mib, device_mib)
    for when, own in (("by the layout", [x.own(x.target) for x in units]),
                      ("now", [x.own(x.current) for x in units])):  # fmt: skip
        if sum(own, NOTHING) != whole:
            found.append(f"the units of {core.name} add up to {own} {when}, it has {whole}")
    kept = sum(unit.target.vcores for unit in units if unit.gpu is None)
    if gpus and core.binding.mode is BindingMode.PARTIAL and kept < core.binding.reserve_cores:
        found.append(f"{core.name} keeps {kept} cores for CPU jobs: {core.binding}")
    bound = Counter(cpu for unit in units for cpu in unit.cpus)
    found += [f"core {cpu} is bound to {n} units" for cpu, n in bound.items() if n > 1]
    if any(unit.cpus for unit in units):
        found += [
            f"{unit.unit_id} is bound to cores {unit.cpus}, and has {unit.current.vcores}"
            for unit in units
            if len(unit.cpus) != unit.current.vcores
        ]
    return found


def _borrowing_violations(queue: UnitQueue) -> list[str]:
    """Nothing that is idle is borrowed; a unit that goes holds something, and none waits there."""
    unit, found = queue.unit, list[str]()
    free = Resources(*queue.free[: Column.SLOTS])
    if (unit.borrowed.vcores and free.vcores) or (unit.borrowed.memory_mib and free.memory_mib):
        found.append(f"{unit.unit_id} borrows {unit.borrowed}, and {free} of it are idle")
    if min(*map(min, (astuple(unit.target), astuple(unit.current), astuple(unit.lent)))) < 0:
        found.append(f"{unit.unit_id} has less than nothing: {unit}")
    if unit.draining and (queue.waiting_count or not queue.running):
        found.append(
            f"{unit.unit_id} goes, {len(queue.running)} run there and {queue.waiting_count} wait"
        )
    return found


def master_violations(core: MasterCore) -> list[str]:
    """The parts of the master's state agree with each other and with the table."""
    state = core.master_state
    return _table(state) + _containers(state) + _holdings(state) + _jobs(core) + _drains(core)


def _drains(core: MasterCore) -> list[str]:
    found: list[str] = []
    for name, node in core.master_state.nodes.items():
        draining, wanted = node.state is NodeState.DRAINING, name in core.nodes.drains.drained
        if node.state is not NodeState.LOST and draining is not wanted:
            found.append(f"{name} is {node.state.value}, its drain is {'on' if wanted else 'off'}")
    return found


def table_violations(state: SharedState) -> list[str]:
    """Every row equals the state of its unit's queues."""
    found: list[str] = []
    for unit_id, row in state.rows.items():
        queue = state.queue(row)
        found += unit_violations(queue)
        if not np.array_equal(state.stream_headroom[row], queue.stream_headroom):
            found.append(f"row {row} of {unit_id} is stale: leaves {state.stream_headroom[row]}")
        if not np.array_equal(state.total[row], capacity_vector(queue.unit)):
            found.append(f"row {row} of {unit_id} is stale: {state.total[row]} in all")
        if not np.array_equal(state.free[row], queue.free):
            found.append(f"row {row} of {unit_id} is stale: {state.free[row]}")
        coming = to_come(queue)
        if tuple(state.coming[row].tolist()) != coming or state.yields[row] != any(coming):
            found.append(f"row {row} of {unit_id} is stale: {state.coming[row]} are to come")
        image = queue.image()
        counts = (len(image.stream_waiting), len(image.batch_waiting))
        if counts != (state.waiting_stream[row], state.waiting_batch[row]):
            found.append(f"row {row} of {unit_id} miscounts its waiters")
    return found


def _table(master_state: MasterState) -> list[str]:
    state = master_state.state
    found = table_violations(state)
    for unit_id, row in state.rows.items():
        queue = state.queue(row)
        node = master_state.nodes.get(state.node(row))
        if node is None or node.state is NodeState.LOST:
            found.append(f"{unit_id} belongs to no live node")
        here = (*queue.running, *queue.stream_waiting, *queue.batch_waiting)
        for container_id in (*here, *queue.yielding_waiting):
            if node is not None and container_id not in node.containers:
                found.append(f"{container_id} holds capacity at {unit_id} but is not on its node")
    return found


def _containers(master_state: MasterState) -> list[str]:
    found: list[str] = []
    seen: Counter[str] = Counter()
    for node in master_state.nodes.values():
        for container_id, container in node.containers.items():
            seen[container_id] += 1
            if node.state is NodeState.LOST:
                found.append(f"{container_id} is granted on a lost node, {node.name}")
            if container.node != node.name:
                found.append(f"{container_id} is on {node.name} but records {container.node}")
            queue = master_state.state.find(container.unit_id)
            if queue is not None and container_id not in queue:
                found.append(f"{container_id} holds no capacity at {container.unit_id}")
    found += [f"{x} is on {n} nodes" for x, n in seen.items() if n > 1]
    for app in master_state.applications.values():
        for container in app.containers.values():
            state = container.state
            if state is ContainerState.ENDED:
                found.append(f"{container.container_id} has ended but counts as live")
            placed = container.node is not None
            if placed != (state is not ContainerState.PENDING):
                found.append(f"{container.container_id} is {state.value} at {container.node}")
            if placed and seen[container.container_id] != 1:
                found.append(f"{container.container_id} is not among its node's containers")
        drivers = [x for x in app.containers if x in master_state.drivers]
        if drivers != (list(app.containers) if is_driver(app.application_id) else []):
            found.append(f"{app.application_id} miscounts its drivers")
        if app.life.state.ended and app.in_state(ContainerState.RUNNING, ContainerState.PENDING):
            found.append(f"{app.application_id} has ended but its containers still run")
    return found


def _holdings(master_state: MasterState) -> list[str]:
    found: list[str] = []
    holdings = master_state.holdings
    live = sum(launch_bytes(app.launch) for app in master_state.live.values())
    ended = [app for app in master_state.applications.values() if app.life.state.ended]
    if holdings.live_bytes != live:
        found.append(
            f"launches are counted as holding {holdings.live_bytes} bytes, they hold {live}"
        )
    if holdings.ended_bytes != sum(map(kept_bytes, ended)):
        found.append(f"ended applications do not hold {holdings.ended_bytes} bytes")
    found += [f"{x.application_id} has ended with a launch" for x in ended if x.launch != NO_LAUNCH]
    return found


def _jobs(core: MasterCore) -> list[str]:
    found: list[str] = []
    master_state = core.master_state
    for app in master_state.live_applications():
        job = core.placement.schedulers[app.scheduler].jobs.get(app.application_id)
        pending = app.in_state(ContainerState.PENDING)
        wanted = {x.container_id for x in pending if not (x.held or x.waits_for or x.withheld)}
        held = any(x.held for x in pending)
        if held and not (master_state.recovering and app.recovered):
            found.append(f"{app.application_id} is held back, and no node is waited for")
        queued = set() if job is None else set(job.pending)
        if wanted != queued:
            found.append(
                f"{app.application_id} waits for {sorted(wanted)}, its job has {sorted(queued)}"
            )
    found += master_state.queues.violations(master_state.applications.values())
    found += core.placement.queues.violations()
    live = (x for app in master_state.applications.values() for x in app.containers.values())
    found += master_state.gpus.violations(live)
    found += core.placement.gpu_shares.violations()
    waiting = [x for x in master_state.drivers.values() if x.waits_for]
    if [x.container_id for x in waiting] != sorted(
        core.placement.drivers.waiting, key=list(master_state.drivers).index
    ):
        found.append(f"{len(waiting)} drivers wait, the queue of drivers has others")
    unqueued = master_state.drivers.keys() - {x.container_id for x in waiting}
    if unqueued != master_state.unqueued_drivers.keys():
        found.append(f"{len(unqueued)} drivers are not in their queue, the index has others")
    found += core.placement.drivers.violations()
    found += [f"{x.container_id} waits, and is placed" for x in waiting if x.node is not None]
    for scheduler in core.placement.schedulers.values():
        found += [f"{scheduler.name}: {what}" for what in scheduler.backlog.violations()]
        if scheduler.exhaustion is not None:
            found += [f"{scheduler.name}: {x}" for x in scheduler.exhaustion.violations()]
        for application_id, job in scheduler.jobs.items():
            if not job.pending:
                found.append(f"{scheduler.name} keeps an empty job of {application_id}")
            owner = master_state.applications.get(application_id)
            if owner is None or owner.life.state.ended:
                found.append(f"{scheduler.name} schedules {application_id}, which has ended")
            elif isinstance(scheduler, RemoteScheduler) and job.gang != gangs.missing(owner):
                found.append(
                    f"{scheduler.name} has a gang of {job.gang} of {application_id}, which lacks "
                    f"{gangs.missing(owner)}"
                )
    return found
