"""An administrator of queues: states one more, states one otherwise, or removes one; or asks only
what that would cost. Each call is repeated by no one: it may get lost with its master.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import Amount, QueueName, QueueSpec
from hrm.errors import Unavailable
from hrm.runtime.virtual_disk import VirtualDisk
from hrm.sim.faults.plan import TimedFault, source
from hrm.sim.faults.queues import with_another_spec

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["QueuesAdministrator"]

_SPARE = "root.spare"
_REMOVED = 0.25
_CREATED = 0.45
_DRY = 0.15


class QueuesAdministrator:
    """``has_removed``: a queue may be gone that an application was to go to."""

    def __init__(self, world: World) -> None:
        self.has_removed = False
        self._world = world
        self._chance = source(world.plan.seed, "administrator")
        self._created = 0
        self._calls = 0

    def strike(self, fault: TimedFault) -> bool:
        """One change, of one queue."""
        world = self._world
        if world.master.core is None or not world.plan.queues:
            return False
        stated = {x.name: x for x in world.master.disk.queues if x.name != "root"}
        change = self._change(fault, stated)
        if change is None:
            return False
        # A user's limit is a multiple of a guarantee: with less of that, it may be too little.
        is_limited = any(x.user_limit_factor is not None for x in world.plan.queues)
        if self._chance.random() < _DRY or is_limited:
            change = replace(change, dry_run=True)
        self._ask(change)
        return True

    def _change(
        self, fault: TimedFault, stated: dict[QueueName, QueueSpec]
    ) -> e.QueuesChanged | None:
        names = list(stated)
        plain = e.QueuesChanged(now=0.0, call_id=0)
        if fault.size < _REMOVED and names:
            return replace(plain, removed=(names[int(fault.pick * len(names))],))
        if fault.size < _CREATED:
            self._created += 1
            part = Amount(round(0.4 * fault.pick, 2), is_part=True) if fault.pick < 0.5 else None
            spec = QueueSpec(
                name=QueueName(f"{_SPARE}-{self._created}"),
                guaranteed=(part, part, part),
                weight=1.0 + 2.0 * fault.pick,
            )
            return replace(plain, stated=(spec,), create=True)
        if not names:
            return None
        spec = stated[names[int(fault.pick * len(names))]]
        return replace(plain, stated=(with_another_spec(self._chance, self._world.plan, spec),))

    def _ask(self, change: e.QueuesChanged) -> None:
        world, disk = self._world, self._world.master.disk
        self._calls += 1
        number = self._calls
        if change.removed and not change.dry_run:
            self.has_removed = True

        def replied(result: c.Reply | c.Refuse) -> None:
            is_latest = number == self._calls and world.master.disk is disk
            if isinstance(result, c.Refuse):
                if is_latest and not (self.has_removed or _may_be_refused(change, result)):
                    why = result.error.message
                    world.oracle.violated(f"{_words(change)} is refused: {why}")
            elif not isinstance(result.result, c.QueueChangeCost):
                world.oracle.violated(f"{_words(change)} is answered by {result.result}")
            elif is_latest and not change.dry_run:
                self._check(change, disk)

        world.master.call(
            lambda call_id: replace(change, now=world.clock.now, call_id=call_id), replied
        )

    def _check(self, change: e.QueuesChanged, disk: VirtualDisk) -> None:
        """It is durable, and every later master has it, until the next change."""
        names = {x.name for x in disk.queues}
        if not set(change.stated) <= set(disk.queues) or names & set(change.removed):
            self._world.oracle.violated(f"{_words(change)} was confirmed before it was durable")


def _may_be_refused(change: e.QueuesChanged, refusal: c.Refuse) -> bool:
    """A queue with applications, or with others below it, stays; more than all cannot be
    guaranteed."""
    is_risky = bool(change.removed) or change.create or change.stated[0].guaranteed[0] is not None
    return is_risky or isinstance(refusal.error, Unavailable)


def _words(change: e.QueuesChanged) -> str:
    names = ", ".join([*(x.name for x in change.stated), *change.removed])
    return f"the change of {names}"
