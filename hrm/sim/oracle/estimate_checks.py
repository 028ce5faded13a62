"""Estimates are of what was observed, and none queues where no estimate holds.

No learned run time is longer than the time in which it was observed, whatever crashed, slept or
came twice meanwhile. What runs is due at some time that is not past. And batch is bound to no unit
whose cores others may take before, but where it starts as soon as others have yielded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.queue.start_rule import due_s
from hrm.sim.oracle.yielding import starts_soon

__all__ = ["EstimateChecks"]

_SLACK_S = 1e-6


class EstimateChecks:
    """``_began_s``: when the cluster did."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._began_s = math.inf

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        """Check what one event of the master has made of its estimates."""
        self._began_s = min(self._began_s, event.now)
        passed_s = event.now - self._began_s + _SLACK_S
        for command in commands:
            if isinstance(command, c.PersistRunTime) and not 0 < command.row.mean_s <= passed_s:
                self._violated(
                    f"{command.row.name} is said to run for {command.row.mean_s} s, after "
                    f"{passed_s:.1f} s in all"
                )
            if isinstance(event, e.ClaimsProposed) and isinstance(command, c.SendToNode):
                self._queued(core, command.message)
        for queue in core.master_state.state.queues:
            if queue is None:
                continue
            for entry in queue.running.values():
                at_s = due_s(entry, event.now, queue.unit.yield_grace_s)
                if not entry.has_no_end and not event.now <= at_s < math.inf:
                    self._violated(f"{entry.container_id} runs, and is due never or in the past")

    def _queued(self, core: MasterCore, message: c.NodeMessage) -> None:
        if not isinstance(message, c.AssignContainer):
            return
        spec = message.spec
        if spec.stands_first:
            return  # it was preempted there, and keeps its place
        queue = core.master_state.state.find(spec.unit_id)
        shares = queue is not None and len(queue.pool) > 1
        waits = queue is not None and spec.container_id in queue.batch_waiting
        if queue is not None and waits and shares and not starts_soon(queue):
            self._violated(f"{spec.container_id} is queued at {spec.unit_id}, which shares cores")
