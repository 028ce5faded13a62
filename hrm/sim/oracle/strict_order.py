"""Under a policy of strict order, does what waits for a stream's or a driver's end block others?

Such a policy tries nothing before what came first, so that a large job gets its turn as batch ends.
Streams and drivers do not end because something waits, and the executors of such a driver may be
what waits behind. So a job that could not start even if all batch ended is passed.

Sampled at each tick of the master once faults have stopped. A batch container that is the first of
its job and fits a unit at which nothing waits may so wait for ``_LIMIT_S`` only if one job before
it at its scheduler could start once batch has ended. That is counted generously here: closed units
count, streams that wait hold nothing, and units that share cores have them all. A stream or a
driver before it always counts as such a job: what these wait for has oracles of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hrm.core.master.core import MasterCore
from hrm.core.messages import events as e
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.jobs import Job
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import DRIVER_PREFIX, NodeState, WorkloadClass, is_driver
from hrm.core.vocabulary.node_requirement import suits
from hrm.sim.faults.capacity import fits_offer

__all__ = ["StrictOrder"]

_LIMIT_S = 10.0
"""Several times the longest pause between two rounds."""


class StrictOrder:
    """``_since_s``: of containers that wait though all before them wait for what has no end, since
    when."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._since_s: dict[str, float] = {}

    def master_began(self) -> None:
        self._since_s.clear()

    def after(self, core: MasterCore, event: e.MasterEvent, quiet_since_s: float) -> None:
        if not isinstance(event, e.Ticked) or event.now < quiet_since_s:
            return
        blocked = [] if core.master_state.recovering else [*_blocked(core, event.now)]
        self._since_s = {what: self._since_s.get(what, event.now) for what in blocked}
        for what, since_s in self._since_s.items():
            if event.now - since_s >= _LIMIT_S:
                self._violated(f"for {_LIMIT_S:.0f} s {what}")
                return


def _blocked(core: MasterCore, now: float) -> Iterator[str]:
    for scheduler in core.placement.schedulers.values():
        if scheduler.strict_order:
            yield from _blocked_at(core, scheduler, now)


def _blocked_at(core: MasterCore, scheduler: Scheduler, now: float) -> Iterator[str]:
    if any(x.workload_class is WorkloadClass.STREAM for x in scheduler.jobs.values()):
        return
    for job in scheduler.jobs.values():
        if not job.gang and not is_driver(job.application_id) and _fits_now(core, job, now):
            container_id = next(iter(job.pending))
            yield f"{container_id} fits, and waits behind what waits for streams or drivers to end"
        if is_driver(job.application_id) or not _waits_for_endless(core, job):
            return


def _fits_now(core: MasterCore, job: Job, now: float) -> bool:
    """Could the first container of the job start somewhere at once?"""
    container_id, request = next(iter(job.pending.items()))
    until_s = request.prefers_until_s(job.requested_at_s[container_id]) + _LIMIT_S
    if request.resources.gpu_memory_mib or (request.prefers and now < until_s):
        return False
    avoided = core.master_state.exclusions.avoided(job.application_id, now)
    app = core.master_state.applications[job.application_id]
    requires = app.requires and core.master_state.required(app)
    demand, state = demand_vector(request.resources), core.master_state.state
    for row in state.rows.values():
        node = core.master_state.nodes[state.node(row)]
        queue = state.queue(row)
        idle = not any(each.waiting_count for each in queue.pool)
        usable = node.state is NodeState.ALIVE and node.name not in avoided and state.open[row]
        usable = usable and (not requires or suits(requires, state.properties[row]))
        if usable and idle and not queue.unit.gpu_only and fits_offer(demand, queue.free):
            return True
    return False


def _waits_for_endless(core: MasterCore, job: Job) -> bool:
    """Would too little be there for the first of the job even if all batch had ended?"""
    state = core.master_state.state
    offers = [_beside_endless(state.queue(row)) for row in state.rows.values()]
    members = list(job.pending.values())[: max(1, job.gang)]
    wanted = Counter(demand_vector(x.resources) for x in members)
    return any(sum(_times(x, offer) for offer in offers) < many for x, many in wanted.items())


def _beside_endless(queue: UnitQueue) -> list[int]:
    left = list(queue.capacity)
    for entry in queue.running.values():
        if entry.workload_class is WorkloadClass.STREAM or entry.container_id.startswith(
            DRIVER_PREFIX
        ):
            left = [have - held for have, held in zip(left, entry.demand, strict=True)]
    return left


def _times(demand: Vector, offer: list[int]) -> int:
    return max(0, min(have // want for want, have in zip(demand, offer, strict=True) if want))
