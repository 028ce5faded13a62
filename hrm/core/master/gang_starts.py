"""Gangs that have been granted, until all of their containers have started.

What is granted may be lost before it runs: its node is drained, closed or lost while batch there
still has its grace period, or the container fails at its start. Then the gang is incomplete again.
What has a place keeps it for ``gang_wait_s``, while the others, requested again, are placed
together as the gang's rest. If they have no place by then, all is given back: what runs is stopped,
what waits is returned, both as preempted, and the application waits for the whole as at first.

It starts whole or it holds nothing: an operator who sees a stream run knows that it is all of it,
and others get the capacity that half of it would hold. The pause spares a gang whose rest finds a
place at once the loss of what it has done; it bounds how long half a gang holds anything.

A member waits only where capacity is made for it, so that its wait has an end: a stream where batch
is preempted, and any where others yield. One that waits elsewhere, as when its node was restarted
with another setting, or runs something else after all, is returned. Not so one for which there is
enough, by all that is known here, though its node has not started it: a node that still runs what
this master has no record of ends that in time, and the place would be found again at once.

Only time for which all that it lacks is requested counts: an AppMaster may be slow, or away. One
that is there and requests less for ``application_grace_s`` has what it needs, and its gang becomes
smaller: what it requests later is placed one by one. What was refused, as no cluster of this size
could hold the gang, was requested.

Nothing goes round without end: to be given back, a gang must have lost a member after it was
granted, and for each time a ``gang_wait_s`` passes. What a node reports that an earlier master has
granted is part of a gang that has been granted. Limit: a restarted master whose store has it that
some of a gang has run has no record of the rest; what runs of it counts as started.

Source: not in the HRM paper, whose transactions end with the grant (section 4.3.1).
"""

from __future__ import annotations

import math

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.returns import return_waiting, starts_where_it_waits
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.model import ContainerState, EndCause, WorkloadClass

__all__ = ["GangStarts"]

_GIVEN_BACK = "the rest of what was to start together with it found no place"
_IN_VAIN = "it is to start together with others, and nothing makes capacity for it where it waits"


class GangStarts:
    """Examines the applications of ``MasterState.starting``."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self._ticked_s = math.inf

    def tick(self, now: float) -> None:
        master_state = self._master_state
        passed_s, self._ticked_s = max(0.0, now - self._ticked_s), now
        if master_state.recovering:
            return
        for app in list(master_state.starting.values()):
            gangs.settle(master_state, app)
            if app.application_id not in master_state.starting:
                continue
            if gangs.missing(app):
                self._lacks(app, passed_s, now)
            else:
                app.gang_lacked_s, app.gang_unasked_s = None, 0.0
            self._return_hopeless(app, now)

    def woke(self, slept_s: float) -> None:
        """This master slept: what was requested meanwhile is yet to be placed."""
        self._ticked_s += slept_s

    def _lacks(self, app: Application, passed_s: float, now: float) -> None:
        """Some of it have no place, or none any more."""
        bounds = self._master_state.bounds
        placed = [x for x in app.containers.values() if x.node is not None]
        if not placed:
            # It holds nothing, and waits as one that has not been granted yet.
            del self._master_state.starting[app.application_id]
            app.gang_lacked_s, app.gang_unasked_s = None, 0.0
            return
        if app.gang_lacked_s is None:
            app.gang_lacked_s, passed_s = 0.0, 0.0
        refused_s = now - app.gang_refused_at_s
        if not gangs.unasked(app) or refused_s < bounds.application_grace_s:
            app.gang_lacked_s += passed_s
            app.gang_unasked_s = 0.0
        elif app.session is not None:
            app.gang_unasked_s += passed_s
        if app.gang_lacked_s >= bounds.gang_wait_s:
            self._give_back(placed, now)
        elif gangs.silence_s(app, now) >= bounds.application_grace_s:
            gangs.shrink(app)

    def _give_back(self, placed: list[Container], now: float) -> None:
        master_state = self._master_state
        for container in placed:
            overdue = now - container.sent_at_s >= master_state.bounds.resend_delay_s
            if container.state is ContainerState.STOPPING or not overdue:
                continue
            if container.state is not ContainerState.RUNNING:
                return_waiting(master_state, container, _GIVEN_BACK, now)
            elif container.stop_cause in (None, EndCause.PREEMPTED) and container.node is not None:
                node, cause = master_state.nodes[container.node], EndCause.PREEMPTED
                master_state.send_stop(node, container, cause, _GIVEN_BACK, now, decommission=True)

    def _return_hopeless(self, app: Application, now: float) -> None:
        """What waits where nothing makes capacity for it."""
        master_state = self._master_state
        for container in app.in_state(ContainerState.WAITING):
            queue = master_state.state.find(container.unit_id)
            promised = app.record.workload_class is WorkloadClass.STREAM and (
                queue is not None and queue.unit.preempts
            )
            promised = promised or container.request.place == container.unit_id
            promised = promised or starts_where_it_waits(master_state, container)
            overdue = now - container.sent_at_s >= master_state.bounds.resend_delay_s
            if not promised and overdue and container.stop_cause is None:
                return_waiting(master_state, container, _IN_VAIN, now)
