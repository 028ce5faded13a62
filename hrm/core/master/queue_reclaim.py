"""What a queue has borrowed is taken back by preemption, for what others are guaranteed.

A container *claims* capacity if it has passed its queue and waited for ``queue_reclaim_wait_s``
without a place, and its queue would hold no more than its guarantee with it, at nodes; so would
each queue above that, up to the one below which it claims. Victims are containers that run, of
queues that hold more than they are guaranteed of what is lacking, and still hold as much as that
without them: no queue is ever brought below its guarantee. What yields goes first, and claims
nothing itself. Of the others the newest go first, for least work is lost, batch before streams;
drivers never, nor what a gang needs, nor what a queue has that is not ``preemptible``.

All that a claim takes is at one resource unit. The container is reserved the first place there
(``hrm.core.queue``), so that what its victims leave can go to nobody else, and starts without a
round trip when they have ended. One that waits in the queue of a unit is returned first. A gang
claims whole or not at all.

Where a queue above holds as much as it may, its children take from each other what lets it hold one
more; the container passes when they have ended. Where a maximum is reached only with what waits at
units, of that is returned what yields, and for a stream batch of its own queue.

A stream's container that lacks nothing but its own queue's share takes the place of the newest
batch of that queue, at one unit: streams go before batch within a queue, not across queues. So does
one of the highest class, where its queue ``interrupts``, with what is of the application of a lower
class that started last; what that loses it gets back before others (``core.master.priorities``),
and it is interrupted twice at most.

Why nothing goes back and forth: a claim leaves its queue within its guarantee, and nothing of a
queue within its guarantee is a victim. The queue that lost has more than its guarantee of the
resource in question without it, so it has no claim to that.

A round takes at most ``queue_preemption_part`` of the containers that run. Claims for which there
are no victims may wait in the queues of units from then on.

Limits: victims at units that share their cores with others are looked for at one of them alone.
What ends by itself meanwhile is not waited for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.own_victims import interrupts
from hrm.core.master.priorities import stand
from hrm.core.master.queue_line import QueueLine, dominant_part
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.master.reclaim_plan import Reclaim, ReclaimPlanner, Wanted
from hrm.core.master.returns import may_return, return_waiting, starts_where_it_waits
from hrm.core.master.state import MasterState
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.tenancy.accounts import AccountTree, QueueAccount
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import WaitReason
from hrm.core.vocabulary.history import PriorityRecord
from hrm.core.vocabulary.model import (
    ContainerId,
    ContainerState,
    EndCause,
    ResourceUnitId,
    WorkloadClass,
)

__all__ = ["RECLAIM_REASONS", "QueueReclaim"]

_KEPT_MAX = 64
"""Applications of one queue, and containers of one, that are looked at in one round."""
_REASON = "its queue holds more than it is guaranteed, and another lacks some of its guarantee"
_ELSEWHERE = "what its queue is guaranteed can be had elsewhere sooner"
_FOR_STREAM = "a stream of its queue waits, and goes before batch"
_INTERRUPTED = "one of the highest class of its queue waits, and interrupts it"
RECLAIM_REASONS = (_REASON, _FOR_STREAM, _INTERRUPTED)
"""Why containers that run are ordered to end here; the queue that gets what they hold follows."""


class QueueReclaim:
    """``preempted``: how many containers that ran have been ordered to end. ``is_calm``: when it
    last looked, no queue claimed any of its guarantee."""

    def __init__(
        self,
        master_state: MasterState,
        negotiator: Negotiator,
        lines: Mapping[QueueName, QueueLine],
        reserve: Callable[[Container, ResourceUnitId, float], bool],
        let_claim: Callable[[Container, float], None],
        may_start: Callable[[Container, ResourceUnitId], bool],
        reorder: Callable[[Application], None],
    ) -> None:
        """``reserve`` gives a PENDING container the first place at a unit, if it can have it;
        ``let_claim`` hands one to its scheduler that its queue keeps; ``may_start``: is a unit one
        where a driver may start, as to the share of drivers and what they need next to them?
        ``reorder``: lets a queue order an application again."""
        self._master_state = master_state
        self._usage: QueueUsage = master_state.queues
        self._negotiator = negotiator
        self._lines = lines
        self._reserve = reserve
        self._let_claim = let_claim
        self._may_start = may_start
        self._reorder = reorder
        self._next_run_s = -math.inf
        self._going: dict[ContainerId, float] = {}
        self.preempted = 0
        self.is_calm = False

    def tick(self, now: float) -> None:
        master_state, accounts = self._master_state, self._usage.accounts
        if accounts is None or now < self._next_run_s:
            return
        self.is_calm = False
        if not self._master_state.sees_all(now):
            return
        bounds = master_state.bounds
        self._next_run_s = now + bounds.relocation_period_s
        self._usage.forget_promises(now)
        if not bounds.queue_preemption or self._negotiator.lease.holder is not None:
            return
        resend_s = bounds.resend_delay_s
        self._going = {x: at_s for x, at_s in self._going.items() if now - at_s < resend_s}
        claims = list(self._claims(accounts, now))
        planner = ReclaimPlanner(master_state, self._usage, self._going)
        self.is_calm = not self._going and not any(
            planner.is_within(planner.claim(x, now)) for some in claims for x in some
        )
        if not claims:
            return
        found = planner.plan([planner.claim(x, now) for x in some] for some in claims)
        for group in found:
            self._carry_out(group, now)
        if not found and not self._going:
            self._usage.are_patient(x for some in claims for x in some)

    def cost(self, usage: QueueUsage, now: float) -> list[Container]:
        """What would be preempted, in the end, if this was the usage."""
        planner = ReclaimPlanner(self._master_state, usage, self._going)
        claims = ([planner.claim(x, now)] for x in self._all_waiting(usage))
        found = planner.plan(claims, everything=True)
        return [victim for group in found for each in group for victim in each.victims]

    def _claims(self, accounts: AccountTree, now: float) -> Iterable[Sequence[Container]]:
        """Those that have waited long enough, with their gangs; queues that hold least of their
        guarantee first."""
        wait_s = self._master_state.bounds.queue_reclaim_wait_s
        leaves = [accounts.of[name] for name in (*self._usage.unplaced, *self._lines)]
        unique = {x.name: x for x in leaves}
        for account in sorted(unique.values(), key=_rank):
            for container in list(self._usage.unplaced.get(account.name, {}).values()):
                if container.waits_for or container.request.yields:
                    continue
                app = self._master_state.applications[container.application_id]
                is_on_loan = container.container_id in self._usage.on_loan
                if is_on_loan and not interrupts(account, app):
                    continue  # one that interrupts takes its place of what its own queue holds
                if starts_where_it_waits(self._master_state, container):
                    continue
                if container.node is not None and container.request.place == container.unit_id:
                    continue
                is_stream = app.record.workload_class is WorkloadClass.STREAM
                if now - container.requested_at_s < (0.0 if is_stream else wait_s):
                    continue
                many = gangs.missing(app)
                if not many:
                    yield [container]
                    continue
                pending = [x for x in app.in_state(ContainerState.PENDING) if not x.withheld]
                if pending and pending[0] is container and len(pending) >= many:
                    yield pending[:many]
            yield from self._kept(account, now)

    def _kept(self, account: QueueAccount, now: float) -> Iterable[Sequence[Container]]:
        """Those that their queue keeps: streams and those that interrupt others, for it holds its
        share, with batch; and others where a queue above it holds as much as it may, with what its
        children have borrowed."""
        line = self._lines.get(account.name)
        if line is None:
            return
        for key in line.order[:_KEPT_MAX]:
            waiter = line.waiters[key[-1]]
            if waiter.app.application_id not in self._usage.active:
                continue
            is_stream = waiter.app.record.workload_class is WorkloadClass.STREAM
            reason, _ = waiter.reason(waiter)
            goes_first = is_stream or interrupts(account, waiter.app)
            if reason is not WaitReason.QUEUE_MAXIMUM and not (
                goes_first and reason is WaitReason.QUEUE_SHARE
            ):
                continue
            many = gangs.missing(waiter.app)
            containers = [x for x in waiter.containers.values() if not x.request.yields]
            if not is_stream and reason is WaitReason.QUEUE_SHARE:
                wait_s = self._master_state.bounds.queue_reclaim_wait_s
                containers = [x for x in containers if now - x.requested_at_s >= wait_s]
            if not many:
                yield from ([x] for x in containers[:_KEPT_MAX])
            elif len(containers) >= many:  # else the rest of its gang has passed
                yield containers[:many]

    def _all_waiting(self, usage: QueueUsage) -> Iterable[Container]:
        """All that waits for a place, of queues that hold least of their guarantee first."""
        waiting = [
            x
            for app in self._master_state.live.values()
            for x in app.containers.values()
            if x.state is ContainerState.PENDING and not x.held and x.application_id in usage.active
        ]
        assert usage.accounts is not None, "something is governed"
        rank = {account.name: _rank(account) for account in usage.accounts.leaves()}
        return sorted(waiting, key=lambda x: rank[self._queue_of(x)])

    def _queue_of(self, container: Container) -> QueueName:
        return QueueName(self._master_state.applications[container.application_id].record.queue)

    def supposed(self, claim: Wanted, many: int, usage: QueueUsage) -> list[Reclaim]:
        """What would be preempted for so many of these, each by itself."""
        planner = ReclaimPlanner(self._master_state, usage, self._going)
        return planner.plan_alike(claim, many)

    def _carry_out(self, group: Sequence[Reclaim], now: float) -> None:
        """Order what is in the way of each to end, and keep what that leaves for it."""
        bounds, is_reserved = self._master_state.bounds, False
        if not self._negotiator.may_reserve(_places(group)):
            return  # nothing is preempted in vain; and a gang has all of its places, or none
        for claim, unit_id, victims in group:
            container = claim.container
            assert container is not None, "what claims waits"
            app = self._master_state.applications[container.application_id]
            if container.state is not ContainerState.PENDING:
                if may_return(self._master_state, container, now):
                    return_waiting(self._master_state, container, _ELSEWHERE, now)
                continue
            if app.is_driver and unit_id and not self._may_start(container, unit_id):
                continue
            # Before the stream: its node would choose others that are in its way.
            plain = f"{_FOR_STREAM if claim.is_stream else _REASON}: {app.record.queue}"
            for victim in victims:
                is_interrupted = claim.interrupts and self._queue_of(victim) == app.record.queue
                why = f"{_INTERRUPTED}: {app.application_id}" if is_interrupted else plain
                if victim.state is ContainerState.RUNNING:
                    self._preempt(victim, why, now)
                    if is_interrupted:
                        self._interrupt(victim, why, now)
                elif may_return(self._master_state, victim, now, just_queued=True):
                    self._going[victim.container_id] = now
                    return_waiting(self._master_state, victim, why, now)
            if unit_id:
                if container.withheld:
                    self._let_claim(container, now)
                is_reserved |= self._reserve(container, unit_id, now)
            else:
                until_s = now + bounds.queue_preemption_grace_s + bounds.resend_delay_s
                self._usage.promise(container, app, until_s)
        if is_reserved:
            gangs.granted(self._master_state, app)

    def _interrupt(self, victim: Container, why: str, now: float) -> None:
        """Its application stands among those that were interrupted from now on."""
        other = self._master_state.applications[victim.application_id]
        standing = other.record.stands.after_interruption(now)
        stand(self._master_state, other, standing, PriorityRecord.INTERRUPTED, why, now)
        self._reorder(other)

    def _preempt(self, victim: Container, reason: str, now: float) -> None:
        master_state = self._master_state
        self._going[victim.container_id] = now
        self.preempted += 1
        assert victim.node is not None, "what runs is at a node"
        master_state.send_stop(
            master_state.nodes[victim.node],
            victim,
            EndCause.PREEMPTED,
            reason,
            now,
            grace_s=master_state.bounds.queue_preemption_grace_s,
            decommission=True,
        )


def _places(group: Sequence[Reclaim]) -> Counter[ResourceUnitId]:
    """How many first places in the line of batch these need at each unit; a stream needs none that
    others have not."""
    found = Counter[ResourceUnitId]()
    for claim, unit_id, _ in group:
        is_pending = claim.container is not None and claim.container.node is None
        if unit_id and is_pending:
            found[unit_id] = max(1, found[unit_id] + (not claim.is_stream))
    return found


def _rank(account: QueueAccount) -> tuple[float, QueueName]:
    return dominant_part(account.placed, account.limits.guaranteed), account.name
