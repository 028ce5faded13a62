"""What was preempted keeps its place: its replacement stands first where it ran.

A stream preempts a batch container; the application requests another, under a new id. Had that to
queue at the end, the work would wait a second time behind what it had waited for before, and a
short stream could cost a long one its turn. So the master keeps the place, application, resource
profile and unit, from the node's report of the preemption until the application's next request of
that profile, which takes it. The request starts elsewhere if its scheduler finds capacity that is
free now; else it waits at that unit before other batch (``UnitQueue.enqueue``). Streams go before
it as before any batch.

It is a right to a place in the queue, not to the unit: where the estimate is that it would wait
there for longer than ``wait_max_s``, as when streams hold all of it, or where the unit is gone,
closed, excluded for the application or none that it may use, it is placed like any other. A place
at an excluded node counts where no other node could hold the container: then it goes there all the
same. One that waits there may be moved to capacity elsewhere; it takes the place with it until it
has started once.

Limits: a place that is not taken within ``application_grace_s`` lapses, and so does the oldest of
more than ``PLACES_MAX`` of one application. A restarted master knows the places of victims that
still end and of replacements that already wait; a replacement that no node had received when its
predecessor stopped queues like any other.

Source: HRM paper, section 4.3.1 (the preempted batch queues again); that it queues first is an
inference from the priority of what has waited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from hrm.core.messages.claims import Claim
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ContainerEnd,
    ContainerRequest,
    EndCause,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["PLACES_MAX", "KeptPlaces", "claims_at_places"]

PLACES_MAX = 1_000
"""Places that are kept for one application."""

_MOVED = (EndCause.PREEMPTED, EndCause.LOST)
"""Ends of a waiting container that its application requests again."""


class _Place(NamedTuple):
    resource_profile_id: int
    unit_id: ResourceUnitId
    until_s: float


class KeptPlaces:
    """The places that no request has taken yet, ``kept`` by application.

    Invariants: none of an application is older than the next; an application without any has no
    entry.
    """

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self.kept: dict[ApplicationId, deque[_Place]] = {}

    def keep(
        self,
        application_id: ApplicationId,
        resource_profile_id: int,
        unit_id: ResourceUnitId,
        now: float,
    ) -> None:
        """A container of this profile was preempted at this unit."""
        kept = self.kept.setdefault(application_id, deque(maxlen=PLACES_MAX))
        kept.append(_Place(resource_profile_id, unit_id, now + self._kept_s))

    def waiter_ended(
        self,
        application_id: ApplicationId,
        request: ContainerRequest,
        end: ContainerEnd,
        now: float,
    ) -> None:
        """One that never started passes its place on, where it ends only to wait elsewhere."""
        if request.place and end.cause in _MOVED:
            self.keep(application_id, request.resource_profile_id, request.place, now)

    def take(
        self, application_id: ApplicationId, resource_profile_id: int, now: float
    ) -> ResourceUnitId:
        """The oldest place for a container of this profile, which is its from now on."""
        kept = self.kept.get(application_id)
        if kept is None:
            return NO_UNIT
        found = next(
            (x for x in kept if x.resource_profile_id == resource_profile_id and now < x.until_s),
            None,
        )
        if found is None:
            return NO_UNIT
        kept.remove(found)
        if not kept:
            del self.kept[application_id]
        return found.unit_id

    def forget(self, application_id: ApplicationId) -> None:
        self.kept.pop(application_id, None)

    def tick(self, now: float) -> None:
        """Drop those that have lapsed."""
        for application_id, kept in list(self.kept.items()):
            while kept and now >= kept[0].until_s:
                kept.popleft()
            if not kept:
                del self.kept[application_id]


def claims_at_places(
    scheduler: Scheduler,
    job: Job,
    claims: Iterable[Claim],
    state: SharedState,
    avoided: frozenset[NodeName],
) -> tuple[Claim, ...]:
    """The claims of a round, and one for each replacement that could not be placed otherwise.

    The negotiator moves a claim to its container's place where it would not run at once. Places on
    ``avoided`` nodes, unless no other could hold the container, and on those that do not meet the
    job's requirement, do not count. A share of GPUs has been divided among the claims as they are,
    so none is added that needs one.
    """
    found: list[Claim] = []
    for claim in claims:
        place = _usable(claim.entry.place, claim.entry.demand, state, avoided, job.requires)
        found.append(claim._replace(entry=claim.entry._replace(place=place)))
    if job.workload_class is WorkloadClass.STREAM or job.gang:
        return tuple(found)
    claimed = {claim.entry.container_id for claim in found}
    for container_id, request in job.pending.items():
        needs_gpu = request.resources.gpu_memory_mib > 0
        if request.place and not needs_gpu and container_id not in claimed:
            entry = scheduler.entry(container_id, job.workload_class, request)
            place = _usable(entry.place, entry.demand, state, avoided, job.requires)
            if place:
                found.append(Claim(entry, place, 0))
    return tuple(found)


def _usable(
    place: ResourceUnitId,
    demand: Vector,
    state: SharedState,
    avoided: frozenset[NodeName],
    requires: NodeRequirement | None,
) -> ResourceUnitId:
    """The place, if its unit takes a container of the application with this demand now."""
    row = state.rows.get(place)
    if row is None or not state.open[row]:
        return NO_UNIT
    if requires is not None and not state.suited(requires)[row]:
        return NO_UNIT
    if state.node(row) in avoided and state.has_capacity_outside(avoided, demand, requires):
        return NO_UNIT
    return place
