"""Containers that run on another platform than their queue's part of it are moved, two at a time.

Whoever comes first takes what is free, and what suits a queue changes as its run times are learned;
so what queues hold can differ from what they may hold on each platform
(``hrm.core.master.platform_shares``), though each has its share. Where a queue holds more than its
part on one platform and less on another, where another queue holds more than its part in exchange,
one container of each is ordered to end; or one alone, where the other platform has as much free.
They finish their tasks (decommissioning), and what their applications request in their place passes
with the platform of which a part is left then.

Batch alone is moved, and no driver, nothing with GPUs, nothing of a gang, nothing of a queue that
is not ``preemptible``; what has run for ``platform_move_after_s`` at least, so that an executor is
moved once in so long at most; none while a queue claims its guarantee. A round takes at most
``queue_preemption_part`` of the containers that run.

Limits: cycles of three and more queues are not found; what is exchanged is of one size.

Source: two-level fairness paper, section 4 (a pilot that is moved finishes its task first); that
exchanges are in pairs is this project's own.
"""

from __future__ import annotations

import math
from collections import Counter

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_shares import PlatformShares
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import QueueAccount
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.feasibility import demand_vector, fitting_rows
from hrm.core.vocabulary.model import ContainerState, EndCause, Resources, WorkloadClass

__all__ = ["MOVE_REASON", "PlatformMoves"]

MOVE_REASON = "its queue's part is on another platform"


class PlatformMoves:
    """``moved``: how many containers have been ordered to end for it."""

    def __init__(self, master_state: MasterState, shares: PlatformShares) -> None:
        self._master_state = master_state
        self._shares = shares
        self._next_s = -math.inf
        self.moved = 0

    def tick(self, now: float, *, is_calm: bool) -> None:
        """``is_calm``: no queue claims anything, and all that runs is known."""
        bounds = self._master_state.bounds
        if not bounds.platform_moves or not bounds.queue_preemption or not self._shares.divides:
            return
        if now < self._next_s or not is_calm:
            return
        self._next_s = now + bounds.platform_move_after_s / 6
        for container, why in self._exchanges(now):
            self.moved += 1
            assert container.node is not None, "what runs is at a node"
            self._master_state.send_stop(
                self._master_state.nodes[container.node],
                container,
                EndCause.PREEMPTED,
                f"{MOVE_REASON}: {why}",
                now,
                grace_s=bounds.queue_preemption_grace_s,
                decommission=True,
            )

    def _exchanges(self, now: float) -> list[tuple[Container, str]]:
        """What is to end now, each with the platform that its replacement is for."""
        movable = self._movable(now)
        if not movable:
            return []
        beyond, lacks = self._differences({name for name, _, _ in movable})
        most = self._master_state.bounds.queue_preemption_part * self._master_state.queues.placed
        found: list[tuple[Container, str]] = []
        for (name, here, size), containers in movable.items():
            for there in sorted(x for of, x in lacks if of == name):
                while containers and len(found) < max(2, most):
                    cores = size.vcores
                    if beyond.get((name, here), 0) < cores or lacks.get((name, there), 0) < cores:
                        break
                    other = self._partner(movable, beyond, lacks, name, here, there, size)
                    if other is None and not self._is_free(there, size):
                        break
                    for of, source, target in ((name, here, there), (other, there, here)):
                        if of is None:
                            continue
                        found.append((movable[of, source, size].pop(), target))
                        beyond[of, source] -= cores
                        lacks[of, target] -= cores
                    if other is None:
                        break  # what is free there is taken by one, and looked at again
        return found

    def _movable(self, now: float) -> dict[tuple[QueueName, str, Resources], list[Container]]:
        """What may be moved, by leaf, platform and size, the newest last."""
        master_state = self._master_state
        latest_s = now - master_state.bounds.platform_move_after_s
        found: dict[tuple[QueueName, str, Resources], list[Container]] = {}
        for app in master_state.live.values():
            account = master_state.queues.account(app)
            if app.is_driver or not self._may_lose(app, account):
                continue
            for container in app.in_state(ContainerState.RUNNING):
                may_end = container.stop_cause is None and container.started_at_s <= latest_s
                is_plain = not container.request.resources.gpu_memory_mib
                if may_end and is_plain and container.node is not None:
                    platform = master_state.nodes[container.node].platform
                    key = (account.name, platform, container.request.resources)
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

    def _differences(
        self, names: set[QueueName]
    ) -> tuple[dict[tuple[QueueName, str], float], dict[tuple[QueueName, str], float]]:
        """By leaf and platform, cores beyond its part that a leaf has at nodes, and cores that it
        holds less than its part."""
        placed: Counter[tuple[QueueName, str]] = Counter()
        for node in self._master_state.nodes.values():
            for container in node.containers.values():
                app = self._master_state.applications[container.application_id]
                cores = container.request.resources.vcores
                placed[QueueName(app.record.queue), node.platform] += cores
        beyond: dict[tuple[QueueName, str], float] = {}
        lacks: dict[tuple[QueueName, str], float] = {}
        for name in sorted(names):
            for part in self._shares.parts(name):
                more = placed[name, part.platform] - part.cores
                if more > 0:
                    beyond[name, part.platform] = more
                elif part.held < part.cores:
                    lacks[name, part.platform] = part.cores - part.held
        return beyond, lacks

    @staticmethod
    def _partner(
        movable: dict[tuple[QueueName, str, Resources], list[Container]],
        beyond: dict[tuple[QueueName, str], float],
        lacks: dict[tuple[QueueName, str], float],
        name: QueueName,
        here: str,
        there: str,
        size: Resources,
    ) -> QueueName | None:
        """A leaf that holds too much there, and lacks as much here."""
        for (other, platform), cores in beyond.items():
            if other == name or platform != there or cores < size.vcores:
                continue
            lacks_here = lacks.get((other, here), 0) >= size.vcores
            if lacks_here and movable.get((other, there, size)):
                return other
        return None

    def _is_free(self, platform: str, size: Resources) -> bool:
        """Could one of this size start there at once?"""
        state, demand = self._master_state.state, demand_vector(size)
        rows = state.rows_at(platform) & state.open & state.serving(demand)
        idle = (state.waiting_stream == 0) & (state.waiting_batch == 0)
        return bool((rows & idle & fitting_rows(demand, state.free)).any())
