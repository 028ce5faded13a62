"""What follows from a round: what was granted is assigned, what can never be served is refused.

A granted container is assigned to its node, which gets the order to start it. Where a round found
nothing, and the job backs off for the longest time already, waiting may be of no use: a gang whose
application requests no more becomes smaller, and what no node will ever serve is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hrm.core.master import admission, driver_places, gangs, queue_bounds
from hrm.core.master.driver_queue import DriverQueue
from hrm.core.master.entities import Application, Container
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Claim, Decision, Entry, Outcome
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.advice import advice_for
from hrm.core.vocabulary.feasibility import Column
from hrm.core.vocabulary.history import RequestRecord
from hrm.core.vocabulary.model import ContainerEnd, EndCause
from hrm.core.vocabulary.node_requirement import lasting
from hrm.core.vocabulary.transitions import ContainerHappening

__all__ = ["Settlement"]


class Settlement:
    """Ends the wait of containers: by a grant, a refusal, or because they are withdrawn."""

    def __init__(
        self,
        master_state: MasterState,
        schedulers: Mapping[str, Scheduler],
        drivers: DriverQueue,
    ) -> None:
        self._master_state = master_state
        self._schedulers = schedulers
        self._drivers = drivers

    def settle(self, scheduler: Scheduler, job: Job, outcomes: list[Outcome], now: float) -> None:
        """The round of a job is over."""
        master_state = self._master_state
        app = master_state.applications[job.application_id]
        granted = scheduler.settle(job, outcomes, now)
        app.refusal = job.last_refusal
        self._assign(app, granted, now)
        if granted:
            if master_state.gpus.uses:
                master_state.gpus.renew(app.application_id)
            gangs.granted(master_state, app)
        patience_s = master_state.bounds.retry_delay_max_s
        if not outcomes and job.delay_s >= patience_s:
            comes_again = now - app.gang_lost_at_s < master_state.bounds.application_grace_s
            comes_again |= job.application_id in master_state.starting
            asked_at_s = max(job.requested_at_s.values(), default=now)
            if not comes_again and now - asked_at_s >= patience_s:
                gangs.shrink(app)
            self._refuse_hopeless(app, job, now)
            if job.gang and not app.unpacked:
                self._record_unpacked(app, now)

    def _assign(self, app: Application, granted: Sequence[Outcome], now: float) -> None:
        """These have a place at a unit: their nodes get the order to start them, or to let them
        wait."""
        master_state, state = self._master_state, self._master_state.state
        for (entry, unit_id, _), decision, _ in granted:
            container = app.containers[entry.container_id]
            node = master_state.nodes[state.node(state.rows[unit_id])]
            container.unit_id = unit_id
            container.node = node.name
            container.assigned_at_s = container.sent_at_s = now
            container.queued = decision is Decision.QUEUE
            how = "queued at the unit" if container.queued else "starts at once"
            container.life.take(ContainerHappening.GRANTED, now, how)
            if entry.demand[Column.GPU_MEMORY_MIB]:
                master_state.gpus.changed(container)
            node.containers[entry.container_id] = container
            # Its node notifies the application: it knows whether the container runs or waits.
            master_state.send(node, c.AssignContainer(spec=master_state.spec(container, app)))
        if master_state.queues.accounts is not None:
            placed = [app.containers[x.claim.entry.container_id] for x in granted]
            master_state.queues.note_all(placed, app)

    def reserved(self, app: Application, entry: Entry, now: float) -> None:
        """A PENDING container, taken from its scheduler, waits first at the unit of its place."""
        claim = Claim(entry, entry.place, 0)
        self._assign(app, (Outcome(claim, Decision.QUEUE),), now)

    def refuse(self, container: Container, why: str, now: float) -> None:
        """A PENDING container ends, and its application gets to know why."""
        self.take_from(container)
        notice = c.RequestRefused(
            executor_ids=(container.request.executor_id,),
            resource_profile_id=container.request.resource_profile_id,
            message=why,
        )
        self._master_state.notify(container.application_id, notice)
        self._master_state.applications[container.application_id].gang_refused_at_s = now
        end = ContainerEnd(cause=EndCause.KILLED, message=why)
        self._master_state.end_container(container, ContainerHappening.GIVEN_UP, end, now)

    def take_from(self, container: Container) -> None:
        """A PENDING container is with its scheduler, or in the queue of drivers, no more."""
        app = self._master_state.applications[container.application_id]
        if container.waits_for is not None:
            self._drivers.drop(container)
        self._schedulers[app.scheduler].withdraw(app.application_id, container.container_id)
        if self._master_state.gpus.uses:
            self._master_state.gpus.renew(app.application_id)

    def _record_unpacked(self, app: Application, now: float) -> None:
        """A gang has waited: keep in its history where it may wait for ever."""
        why = gangs.unpacked(self._master_state, app)
        app.unpacked = bool(why)
        if why and self._master_state.watch is not None:
            became = RequestRecord.UNPACKED
            self._master_state.watch(
                ("application", app.application_id, None, None, became, now, why)
            )

    def _refuse_hopeless(self, app: Application, job: Job, now: float) -> None:
        """Requested before it was known that no node would ever serve it; now it is known."""
        driver = app.is_driver
        state, requires = self._master_state.state, lasting(app.requires)
        could = all(state.could_hold(demand, requires) for demand in job.demands)
        if not driver and not gangs.missing(app) and could:
            return
        containers = [app.containers[container_id] for container_id in job.pending]
        for container, why in self.hopeless(app, containers, now):
            self.refuse(container, why, now)

    def hopeless(
        self, app: Application, containers: Sequence[Container], now: float
    ) -> list[tuple[Container, str]]:
        """Those of them that no node will ever serve, or no queue let pass, with the reason."""
        requires, driver = lasting(app.requires), app.is_driver
        refusals = {
            resources: admission.refusal(
                self._master_state,
                resources,
                advice=advice_for(app.application_id),
                requires=requires,
            )
            or gangs.refusal(self._master_state, app, resources)
            or queue_bounds.refusal(self._master_state, app, resources, now)
            or (driver_places.refusal(self._master_state, app, resources) if driver else "")
            for resources in dict.fromkeys(x.request.resources for x in containers)
        }
        return [(x, why) for x in containers if (why := refusals[x.request.resources])]
