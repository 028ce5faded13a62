"""Containers that run on another platform than their queue's part of it are moved, two at a time.

Whoever comes first takes what is free, and what suits a queue changes as its run times are learned;
so what queues hold can differ from what they may hold on each platform
(``hrm.core.master.platform_shares``), though each has its share. Where a queue has more than its
part on one platform and less on another, where another queue has more than its part in exchange,
one container of each is ordered to end; or one alone, where the other platform has as much free.
They finish their tasks (decommissioning), each in its own time. What their applications request
instead gets the first place at the unit that the other leaves (``hrm.core.queue``): the earlier of
the two waits there, and nobody else takes what comes free.

Batch alone is moved, and no driver, nothing with GPUs, nothing of a gang, nothing of a queue that
is not ``preemptible``, nothing to where it may not run; what has run for ``platform_move_after_s``
at least, so that an executor is moved once in so long at most; none while a queue claims what it
is guaranteed. A round takes at most ``queue_preemption_part`` of the containers that run, and no
more than ``_ROUND_MAX``; the next waits until it is over. After one that has brought nothing nearer
to its part, the pause before the next doubles, up to ``_PAUSE_MAX_S``.

Limits: cycles of three and more queues are not found. What is exchanged has as many cores; its
memory fits on both sides.

Source: two-level fairness paper, section 4 (a pilot that is moved finishes its task first); that
exchanges are in pairs is this project's own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_shares import PlatformShares
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import QueueAccount
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.feasibility import Vector, demand_vector, fits, fitting_rows, plus
from hrm.core.vocabulary.model import (
    ContainerId,
    ContainerState,
    EndCause,
    ResourceUnitId,
    WorkloadClass,
)

__all__ = ["MOVE_REASON", "PlatformMoves"]

MOVE_REASON = "its queue's part is on another platform"

_LEAST = 0.15
"""Of what a queue may have; what is less than that on the wrong platform is left there, unless more
has been moved from there before: estimates are not as exact."""
_PAUSE_MAX_S = 900.0
_ROUND_MAX = 256
"""Containers that are moved in one round at most."""
_PARTNERS_MAX = 16
"""Containers of another queue that are looked at for an exchange with one."""
_REQUESTED_S = 10.0
"""As long after its end as an application takes to request another, generously."""

_Movable: TypeAlias = dict[tuple[QueueName, str, int], list[Container]]
_Cores: TypeAlias = dict[tuple[QueueName, str], float]


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A container of this leaf is to start at this unit, once that one has left it."""

    name: QueueName
    unit_id: ResourceUnitId
    demand: Vector
    leaves: ContainerId
    until_s: float


class PlatformMoves:
    """``moved``: how many containers have been ordered to end for it. ``_arrivals``: of the round
    under way; ``_beyond``: the cores beyond parts before it, 0 where there was none; ``_begun``:
    leaves and platforms that had too much there, and are not done."""

    def __init__(
        self,
        master_state: MasterState,
        shares: PlatformShares,
        reserve: Callable[[Container, ResourceUnitId, float], bool],
    ) -> None:
        """``reserve`` gives a PENDING container the first place at a unit, if it can have it."""
        self._master_state = master_state
        self._shares = shares
        self._reserve = reserve
        self._next_s = -math.inf
        self._over_s = -math.inf
        self._pause_s = 0.0
        self._beyond = 0.0
        self._arrivals: list[_Arrival] = []
        self._begun: set[tuple[QueueName, str]] = set()
        self._now = -math.inf
        self.moved = 0

    def tick(self, now: float, *, is_calm: bool) -> None:
        """``is_calm``: no queue claims anything, and all that runs is known."""
        bounds, self._now = self._master_state.bounds, now
        if not self._shares.divides:
            self._arrivals.clear()
            return
        self._arrivals = [x for x in self._arrivals if not self._arrives(x, now)]
        if not bounds.platform_moves or not bounds.queue_preemption or not is_calm:
            return
        if now < self._next_s or (self._arrivals and now < self._over_s):
            return
        for container, platform in self._round(now):
            self.moved += 1
            assert container.node is not None, "what runs is at a node"
            self._master_state.send_stop(
                self._master_state.nodes[container.node],
                container,
                EndCause.PREEMPTED,
                f"{MOVE_REASON}: {platform}",
                now,
                grace_s=bounds.queue_preemption_grace_s,
                decommission=True,
            )

    def _round(self, now: float) -> list[tuple[Container, str]]:
        """What is to end now, each with the platform that its replacement is for."""
        bounds = self._master_state.bounds
        base_s = bounds.platform_move_after_s / 6
        movable = self._movable(now)
        beyond, lacks = self._differences({name for name, _, _ in movable})
        whole = sum(beyond.values())
        is_in_vain = 0 < self._beyond <= whole
        self._pause_s = min(2 * max(self._pause_s, base_s), _PAUSE_MAX_S) if is_in_vain else 0.0
        self._beyond = 0.0
        if is_in_vain:
            self._next_s = now + self._pause_s
            return []
        self._next_s = now + base_s
        found = self._exchanges(movable, beyond, lacks, now)
        if found:
            self._beyond = whole
            grace_s = bounds.queue_preemption_grace_s + bounds.resend_delay_s + _REQUESTED_S
            self._over_s = now + grace_s
            self._next_s = max(self._next_s, now + grace_s / 4)
        return found

    def _exchanges(
        self, movable: _Movable, beyond: _Cores, lacks: _Cores, now: float
    ) -> list[tuple[Container, str]]:
        part = self._master_state.bounds.queue_preemption_part
        most = min(max(2, part * self._master_state.queues.placed), _ROUND_MAX)
        found: list[tuple[Container, str]] = []
        for (name, here, cores), containers in movable.items():
            for there in sorted(x for of, x in lacks if of == name):
                while containers and len(found) < most:
                    if beyond.get((name, here), 0) < cores or lacks.get((name, there), 0) < cores:
                        break
                    one = containers[-1]
                    if not self._may_go(one, there):
                        break
                    other = self._partner(movable, beyond, lacks, one, name, here, there)
                    if other is None and not self._is_free(there, one):
                        break
                    containers.pop()
                    found.append((one, there))
                    beyond[name, here] -= cores
                    lacks[name, there] -= cores
                    if other is None:
                        break  # what is free there is taken by one, and looked at again
                    partner, theirs = other
                    movable[theirs, there, cores].remove(partner)
                    found.append((partner, here))
                    beyond[theirs, there] -= cores
                    lacks[theirs, here] -= cores
                    self._await(name, one, partner, now)
                    self._await(theirs, partner, one, now)
        return found

    def _await(self, name: QueueName, mover: Container, leaver: Container, now: float) -> None:
        """What the leaf of ``mover`` requests instead of it is to start where ``leaver`` is."""
        bounds = self._master_state.bounds
        until_s = now + bounds.queue_preemption_grace_s + bounds.resend_delay_s + _REQUESTED_S
        demand = demand_vector(mover.request.resources)
        arrival = _Arrival(name, leaver.unit_id, demand, leaver.container_id, until_s)
        self._arrivals.append(arrival)

    def _arrives(self, arrival: _Arrival, now: float) -> bool:
        """Reserve the place for what has been requested; is it over with this one?"""
        state = self._master_state.state
        row = state.rows.get(arrival.unit_id)
        if now >= arrival.until_s or row is None or not state.open[row]:
            return True
        queue = state.queue(row)
        is_leaving = arrival.leaves in queue.running
        if not is_leaving and not (fits(arrival.demand, queue.free) and not queue.ranked_count):
            return False  # somebody else has it; it may end before this is over
        waiting = self._master_state.queues.unplaced.get(arrival.name, {})
        for container in list(waiting.values()):
            is_plain = container.state is ContainerState.PENDING and not container.withheld
            is_plain = is_plain and not container.request.yields
            is_like = demand_vector(container.request.resources) == arrival.demand
            if not (is_plain and is_like) or container.waits_for or container.request.place:
                continue
            if container.container_id in self._master_state.queues.on_loan:
                continue
            if self._may_be_on(container, row) and self._reserve(container, arrival.unit_id, now):
                return True
        return False

    def _may_be_on(self, container: Container, row: int) -> bool:
        """May it run at this row, by what its application requires and avoids?"""
        master_state, state = self._master_state, self._master_state.state
        app = master_state.applications[container.application_id]
        if gangs.missing(app) or app.is_driver:
            return False
        avoided = master_state.exclusions.avoided(app.application_id, self._now)
        if state.node(row) in avoided:
            return False
        return app.requires is None or bool(state.suited(app.requires)[row])

    def _movable(self, now: float) -> _Movable:
        """What may be moved, by leaf, platform and cores, the newest last."""
        master_state, state = self._master_state, self._master_state.state
        latest_s = now - master_state.bounds.platform_move_after_s
        found: _Movable = {}
        for app in master_state.live.values():
            account = master_state.queues.account(app)
            if app.is_driver or not self._may_lose(app, account):
                continue
            for container in app.in_state(ContainerState.RUNNING):
                may_end = container.stop_cause is None and container.started_at_s <= latest_s
                resources, row = container.request.resources, state.rows.get(container.unit_id)
                is_plain = not resources.gpu_memory_mib and not container.request.yields
                if may_end and is_plain and row is not None and state.open[row]:
                    platform = state.properties[row].platform
                    key = (account.name, platform, resources.vcores)
                    found.setdefault(key, []).append(container)
        for containers in found.values():
            containers.sort(key=lambda x: (x.started_at_s, x.container_id))
        return found

    @staticmethod
    def _may_lose(app: Application, account: QueueAccount) -> bool:
        """May what runs of this application be moved at all?"""
        is_batch = app.record.workload_class is WorkloadClass.BATCH
        is_gang = app.record.gang_min > 0 or gangs.missing(app) > 0
        return is_batch and not is_gang and all(x.spec.preemptible for x in account.path)

    def _differences(self, names: set[QueueName]) -> tuple[_Cores, _Cores]:
        """By leaf and platform, cores beyond its part that a leaf has at open units, and cores that
        it holds less than its part."""
        state, placed = self._master_state.state, Counter[tuple[QueueName, str]]()
        for node in self._master_state.nodes.values():
            for container in node.containers.values():
                row = state.rows.get(container.unit_id)
                if row is None or not state.open[row]:
                    continue
                app = self._master_state.applications[container.application_id]
                cores = container.request.resources.vcores
                placed[QueueName(app.record.queue), node.platform] += cores
        beyond: _Cores = {}
        lacks: _Cores = {}
        begun, self._begun = self._begun, set()
        for name in sorted(names):
            parts = self._shares.parts(name)
            least = _LEAST * sum(part.cores for part in parts)
            for part in parts:
                where, more = (name, part.platform), placed[name, part.platform] - part.cores
                if more > (0 if where in begun else least):
                    if not self._shares.is_unknown(name, part.platform):
                        beyond[where] = more
                        self._begun.add(where)
                elif part.held < part.cores:
                    lacks[where] = part.cores - part.held
        return beyond, lacks

    def _partner(
        self,
        movable: _Movable,
        beyond: _Cores,
        lacks: _Cores,
        one: Container,
        name: QueueName,
        here: str,
        there: str,
    ) -> tuple[Container, QueueName] | None:
        """A container of a leaf that has too much there, and lacks as much here, where each fits in
        what the other leaves."""
        cores = one.request.resources.vcores
        for (other, platform), more in beyond.items():
            if other == name or platform != there or more < cores:
                continue
            if lacks.get((other, here), 0) < cores:
                continue
            newest = reversed(movable.get((other, there, cores), []))
            for each in itertools.islice(newest, _PARTNERS_MAX):
                if self._fits(one, each) and self._fits(each, one) and self._may_go(each, here):
                    return each, other
        return None

    def _fits(self, mover: Container, leaver: Container) -> bool:
        """Does one fit where the other is, when that has left, and may it run there?"""
        state = self._master_state.state
        row = state.rows[leaver.unit_id]
        left = plus(state.queue(row).free, demand_vector(leaver.request.resources))
        demand = demand_vector(mover.request.resources)
        return fits(demand, left) and self._may_be_on(mover, row)

    def _may_go(self, container: Container, platform: str) -> bool:
        """Is there any unit of this platform that it may be on?"""
        app = self._master_state.applications[container.application_id]
        demand = demand_vector(container.request.resources)
        return self._shares.could_hold(platform, demand, app.requires)

    def _is_free(self, platform: str, container: Container) -> bool:
        """Could one like it start there at once?"""
        state, demand = self._master_state.state, demand_vector(container.request.resources)
        app = self._master_state.applications[container.application_id]
        rows = state.rows_at(platform) & state.open & state.serving(demand)
        if app.requires is not None:
            rows &= state.suited(app.requires)
        idle = (state.waiting_stream == 0) & (state.waiting_batch == 0)
        return bool((rows & idle & fitting_rows(demand, state.free)).any())
