"""The other end of ``core.scheduling.remote_scheduler``: a copy of the state, and the jobs to place
on it.

``apply`` takes the messages in order. The copy is then what the master had when it sent the latest
one; a property test checks this. The scheduler on top is the same as inside the master.
"""

from __future__ import annotations

from hrm.core.messages.state_changes import JobImage, StateChanged, UnitState
from hrm.core.queue.pools import queues_of
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.jobs import Job
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import demand_vector
from hrm.core.vocabulary.model import ResourceUnitId
from hrm.core.vocabulary.node_requirement import UNKNOWN_PROPERTIES, NodeProperties

__all__ = ["Replica"]


class Replica:
    """``sequence``: the number of the latest message taken in. ``_properties``: of each unit's
    node, as they were sent latest, until the unit is gone."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = SharedState()
        self.sequence = 0
        self._properties: dict[ResourceUnitId, NodeProperties] = {}

    def apply(self, message: StateChanged) -> None:
        for unit_id in message.gone:
            self._properties.pop(unit_id, None)
            if unit_id in self.state.rows:
                self.state.remove(unit_id)
        self._properties.update(message.properties)
        self._put(message.units)
        for job in message.jobs:
            self._update(job, message.now)
        if message.has_freed:
            self.scheduler.capacity_freed()
        self.sequence = message.sequence

    def _put(self, images: tuple[UnitState, ...]) -> None:
        """Replace units; each keeps its row. All that share cores come together."""
        queues = queues_of(image.unit for image in images)
        for image in images:
            queue = queues[image.unit.unit_id]
            for entry in image.running:
                queue.run(entry, entry.started_at_s)
            waiting = (*image.stream_waiting, *image.batch_waiting, *image.yielding_waiting)
            for entry in waiting:
                queue.restore(entry)
        known = [x for x in images if x.unit.unit_id in self.state.rows]
        if all(map(self._is_as_known, known)):
            for image in known:
                self.state.exchange(queues[image.unit.unit_id])
            for image in known:
                self._open(image)
        else:
            for image in reversed(known):
                # The row that became unused last is the first to be used again.
                self.state.remove(image.unit.unit_id)
            for image in known:
                self._add(image, queues)
        here = {image.unit.unit_id for image in known}
        for image in images:
            if image.unit.unit_id not in here:
                self._add(image, queues)

    def _is_as_known(self, image: UnitState) -> bool:
        """Is it the same unit of the same node, with other contents?"""
        unit_id = image.unit.unit_id
        row = self.state.rows[unit_id]
        same = self.state.properties[row] == self._properties.get(unit_id, UNKNOWN_PROPERTIES)
        return same and self.state.queue(row).unit == image.unit

    def _add(self, image: UnitState, queues: dict[ResourceUnitId, UnitQueue]) -> None:
        unit_id = image.unit.unit_id
        properties = self._properties.get(unit_id, UNKNOWN_PROPERTIES)
        self.state.add(image.node, queues[unit_id], properties)
        self._open(image)

    def _open(self, image: UnitState) -> None:
        unit_id = image.unit.unit_id
        if self.state.open[self.state.rows[unit_id]] != image.is_open:
            self.state.set_open(unit_id, image.is_open)
        self.state.limit_waiting(unit_id, image.waiting_limit)

    def _update(self, image: JobImage, now: float) -> None:
        """Set a job to the master's; its back-off goes on unless it requests more."""
        backlog = self.scheduler.backlog
        if not image.pending:
            backlog.remove(image.application_id)
            return
        job = backlog.jobs.get(image.application_id)
        if job is None:
            job = Job(image.application_id, image.workload_class)
            backlog.add(job)
        pending = {container_id: request for container_id, request, _ in image.pending}
        changed_class = job.workload_class is not image.workload_class
        changed = changed_class or job.avoid != frozenset(image.avoid)
        changed = changed or job.gpu_parts != image.gpu_parts or job.requires != image.requires
        if job.gang != image.gang or changed_class or pending.keys() != job.pending.keys():
            job.group = None
            if job.is_whole:
                job.lacks = {}
        asks_more = changed or job.gang != image.gang or not pending.keys() <= job.pending.keys()
        job.workload_class = image.workload_class
        job.gang = image.gang
        job.avoid = job.excluded = frozenset(image.avoid)
        job.requires = image.requires
        job.demands = {demand_vector(request.resources) for request in pending.values()}
        job.run_s = min(map(self.scheduler.run_s, pending.values()))
        job.prefers = any(request.prefers for request in pending.values())
        job.places = any(request.place for request in pending.values())
        job.yields = any(request.yields for request in pending.values())
        job.gpu_parts = image.gpu_parts
        job.pending = pending
        job.gpus = any(request.resources.gpu_memory_mib for request in pending.values())
        job.requested_at_s = {container_id: at_s for container_id, _, at_s in image.pending}
        job.renewed = job.renewed or asks_more
        backlog.place(job, min(job.not_before_s, now) if asks_more else None)
