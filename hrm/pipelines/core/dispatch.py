"""What starts next on a node: subtasks with priority, the policy, the check of its starts.

Two kinds of subtasks are started before the policy is called:

- a row of which fewer than two metrics were measured, one at a time on each device: the run itself
  is the profile (section 3.1);
- one that has waited 5 times its predicted run time (section 3.4), and at least
  ``starvation_floor_s``. What it needs and cannot have yet is reserved for it.

A policy that fails is replaced for this one call by first fit; infeasible starts are refused. Both
are counted. If nothing runs and the policy starts nothing, the core starts what has waited longest.

Source: LDWP + IAWP, sections 3.1 and 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hrm.pipelines.core import feasibility
from hrm.pipelines.core.model import (
    Device,
    LearningEstimates,
    NodePolicy,
    NodeView,
    ReadySubtask,
    StartDecision,
    SubtaskKey,
)
from hrm.pipelines.core.node_resources import NodeResources

__all__ = ["FOR_NOTHING_ELSE", "FOR_PROFILE", "FOR_WAITING", "Dispatcher", "NodeBounds"]

FOR_PROFILE, FOR_WAITING, FOR_NOTHING_ELSE = "profile", "long wait", "idle node"
FOR_FAULT = "first-fit"
"""``placed_by`` of what the core starts before, after or instead of the policy."""

_PROFILED_CELLS = 2
_REFUSALS_KEPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    """Bounds of a node's core."""

    tasks_limit: int = 1_000
    starvation_factor: float = 5.0
    starvation_floor_s: float = 30.0
    profiling: bool = True


class Dispatcher:
    """``ready`` is the core's own list: a started subtask leaves it immediately.

    ``refused`` and ``faults`` count errors of the policy; ``refusals`` holds the latest as text.
    """

    def __init__(
        self,
        policy: NodePolicy,
        resources: NodeResources,
        ready: Mapping[SubtaskKey, ReadySubtask],
        bounds: NodeBounds,
        *,
        start: Callable[[StartDecision, float, bool], None],
    ) -> None:
        """``start(which, now, profile)`` carries a start out."""
        self.policy = policy
        self.refusals: list[str] = []
        self.refused = 0
        self.faults = 0
        self._resources = resources
        self._ready = ready
        self._bounds = bounds
        self._start = start

    @property
    def _estimates(self) -> LearningEstimates:
        return self._resources.estimates

    def dispatch(self, now: float) -> None:
        """Start all that may start now: by priority, by the policy, or else the oldest."""
        if not self._ready:
            return
        if self._bounds.profiling:
            self._start_profiles(now)
        held, memory_held = self._start_starved(now)
        if not self._ready:
            return
        ready = tuple(self._ready.values())
        view = self._resources.view(now, ready, held=held, memory_held=memory_held)
        try:
            starts = self.policy.dispatch(view)
        except Exception as error:
            self.faults += 1
            what = f"{self.policy.name} failed: {error!r}"
            self._remember(what)
            for one in ready:
                view = self._resources.view(now, (), held=held, memory_held=memory_held)
                start = self._first_fit(one, view, FOR_FAULT)
                if start is not None:
                    self._start(start._replace(fallback=what), now, False)
        else:
            for start in starts:
                self._start_if_fits(start, now, held, memory_held)
        if self._ready and not self._resources.runs:
            self._start_anything(now)

    def _remember(self, what: str) -> None:
        del self.refusals[: max(0, len(self.refusals) + 1 - _REFUSALS_KEPT)]
        self.refusals.append(what)

    def _start_if_fits(
        self, start: StartDecision, now: float, held: frozenset[int], memory_held: bool
    ) -> None:
        ready = self._ready.get(start.key)
        if ready is None:
            why = "it is not ready"
        else:
            view = self._resources.view(now, (), held=held, memory_held=memory_held)
            why = feasibility.refusal(view, ready, start.device, start.number)
        if not why:
            self._start(start._replace(placed_by=start.placed_by or self.policy.name), now, False)
            return
        self.refused += 1
        self._remember(
            f"{self.policy.name}: {start.key.subtask} of {start.key.task_id} on "
            f"{start.device.value} {start.number}: {why}"
        )

    def _places(self, ready: ReadySubtask) -> list[tuple[Device, int]]:
        """Where it could run were the node empty, the faster device first; GPUs emptiest first."""
        cards = self._resources.cards.values()
        by_runs = sorted(cards, key=lambda card: (len(card.runs), card.card.index))
        gpus = [(Device.GPU, card.card.index) for card in by_runs]
        cores = [(Device.CPU, number) for number in range(len(self._resources.cores))]
        seconds = self._estimates.run_s
        gpu_first = seconds(ready.row, Device.GPU) <= seconds(ready.row, Device.CPU)
        places = gpus + cores if gpu_first else cores + gpus
        return [place for place in places if place[0] in ready.devices]

    def _first_fit(
        self,
        ready: ReadySubtask,
        view: NodeView,
        why: str,
        places: list[tuple[Device, int]] | None = None,
    ) -> StartDecision | None:
        for device, number in self._places(ready) if places is None else places:
            if not feasibility.refusal(view, ready, device, number):
                return StartDecision(ready.key, device, number, why)
        return None

    def _start_profiles(self, now: float) -> None:
        """Little-known rows, where they are expected to end first, one run per device."""
        profiling = {(run.device, run.number) for run in self._resources.runs if run.profile}
        on_core = any(device is Device.CPU for device, _ in profiling)
        rows = {run.row for run in self._resources.runs if run.profile}
        for ready in list(self._ready.values()):
            if ready.row in rows:
                continue
            if self._estimates.measured_cells(ready.row) >= _PROFILED_CELLS:
                continue
            places = [
                place
                for place in self._places(ready)
                if not (on_core if place[0] is Device.CPU else place in profiling)
            ]
            start = self._first_fit(ready, self._resources.view(now, ()), FOR_PROFILE, places)
            if start is not None:
                self._start(start, now, True)
                rows.add(ready.row)
                profiling.add((start.device, start.number))
                on_core = on_core or start.device is Device.CPU

    def _starving(self, ready: ReadySubtask, now: float) -> bool:
        waited_s, bounds = now - ready.since, self._bounds
        if waited_s <= bounds.starvation_floor_s:
            return False
        run_s = min(self._estimates.run_s(ready.row, device) for device in ready.devices)
        return waited_s > bounds.starvation_factor * run_s

    def _start_starved(self, now: float) -> tuple[frozenset[int], bool]:
        """Start starved subtasks; for the first that does not fit, reserve a GPU or the memory."""
        starved = [ready for ready in self._ready.values() if self._starving(ready, now)]
        starved.sort(key=lambda ready: ready.since)
        for ready in starved:
            start = self._first_fit(ready, self._resources.view(now, ()), FOR_WAITING)
            if start is not None:
                self._start(start, now, False)
                continue
            if ready.memory_mib > self._resources.memory_free_mib:
                return frozenset(), True
            gpus = [number for device, number in self._places(ready) if device is Device.GPU]
            return frozenset(gpus[:1]), False
        return frozenset(), False

    def _start_anything(self, now: float) -> None:
        for ready in list(self._ready.values()):
            start = self._first_fit(ready, self._resources.view(now, ()), FOR_NOTHING_ELSE)
            if start is not None:
                self._start(start, now, False)
                return
