"""What starts next on a node: subtasks with priority, the policy, the check of its starts.

A policy chooses devices and co-runners, not whose turn it is: it is shown a *window*, the subtasks
of the tasks that are due first (``order``). The rest waits behind it, however well it would suit a
device: under overload a policy that chooses among all that is ready begins many tasks and ends few.
The window has as many as can be of use on a device: one for each core, ``QUEUED_MAX`` for each GPU.
Those that run on a core only, on a GPU only, and on either (the larger of the two numbers) are
counted apart: what waits for a GPU hides nothing that an idle core could run.

Two kinds of subtasks are started before the policy is called:

- one that is *overdue*: ``passes_max`` others that were due after it have started while it was in
  the window. It goes where it is expected to end first; what it needs there and cannot have yet is
  reserved for it, and nothing else starts there. (Section 3.4 has this for what has waited five
  times its run time, which under overload is everything.)
- then a row of which fewer than two metrics were measured, one at a time on each device: the run
  itself is the profile (section 3.1).

A policy that fails is replaced for this one call by first fit; infeasible starts are refused. Both
are counted. If nothing runs and the policy starts nothing, the core starts what has waited longest.

Source: LDWP + IAWP, sections 3.1 and 3.4.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hrm.core.vocabulary.bounds import DEVICE_MEMORY_RISK
from hrm.pipelines.core import feasibility
from hrm.pipelines.core.feasibility import QUEUED_MAX
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
from hrm.pipelines.core.order import DueOrder, Rank, Work

__all__ = [
    "FOR_NOTHING_ELSE",
    "FOR_PROFILE",
    "FOR_WAITING",
    "Dispatcher",
    "NodeBounds",
    "ReadyList",
]

FOR_PROFILE, FOR_WAITING, FOR_NOTHING_ELSE = "profile", "long wait", "idle node"
FOR_FAULT = "first-fit"
"""``placed_by`` of what the core starts before, after or instead of the policy."""

_PROFILED_CELLS = 2
_REFUSALS_KEPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    """Bounds of a node's core. ``passes_max``: see the module; ``device_memory_risk``: of each GPU
    (``GpuView.memory_risk``); 0: estimates count as certain."""

    tasks_limit: int = 1_000
    passes_max: int = 64
    profiling: bool = True
    device_memory_risk: float = DEVICE_MEMORY_RISK


class ReadyList:
    """The subtasks that may start, in the order in which their tasks are due.

    Those that can run on the same devices have an order of their own, so that the first ones for a
    device are found without passing over all that cannot run there.
    """

    def __init__(self, remaining_s: Callable[[Work], float]) -> None:
        self._remaining_s = remaining_s
        self._orders: dict[frozenset[Device], DueOrder[SubtaskKey]] = {}
        self._ready: dict[SubtaskKey, ReadySubtask] = {}
        self._numbers: dict[SubtaskKey, int] = {}
        self._passes: dict[SubtaskKey, int] = {}
        self._added = 0

    def rank(self, ready: ReadySubtask, work: Work, submitted_at_s: float) -> None:
        """Its task has ``work`` left, and was submitted then. Also one that is there: it keeps its
        number and its passes."""
        key, known = ready.key, self._ready.get(ready.key)
        if known is not None:
            self._orders[known.devices].discard(key)
        else:
            self._added += 1
            self._numbers[key] = self._added
        self._ready[key] = ready
        order = self._orders.setdefault(ready.devices, DueOrder(self._remaining_s))
        order.add(key, work, submitted_at_s, self._numbers[key])

    def discard(self, key: SubtaskKey) -> None:
        """Also one that is not there."""
        known = self._ready.pop(key, None)
        if known is not None:
            self._orders[known.devices].discard(key)
            del self._numbers[key]
            self._passes.pop(key, None)

    def get(self, key: SubtaskKey) -> ReadySubtask | None:
        return self._ready.get(key)

    def passes(self, key: SubtaskKey) -> int:
        """How many that were due after it have started while it was in the window."""
        return self._passes.get(key, 0)

    def passed(self, by: SubtaskKey, window: Iterable[ReadySubtask]) -> None:
        """``by`` is about to start: it passes all of ``window`` that are due before it."""
        for one in window:
            if one.key == by:
                return
            if one.key in self._ready:
                self._passes[one.key] = self.passes(one.key) + 1

    def window(self, most: Mapping[Device, int]) -> tuple[ReadySubtask, ...]:
        """Of those that can run on the same devices, the first ones: ``most`` for one of these."""
        shown: list[tuple[Rank, SubtaskKey]] = []
        for devices, order in self._orders.items():
            count = max((most.get(device, 0) for device in devices), default=0)
            shown += itertools.islice(order.ranked(), count)
        return tuple(self._ready[key] for _, key in sorted(shown))

    def __contains__(self, key: object) -> bool:
        return key in self._ready

    def __getitem__(self, key: SubtaskKey) -> ReadySubtask:
        return self._ready[key]

    def __iter__(self) -> Iterator[SubtaskKey]:
        """All of them, in order."""
        ranked = (order.ranked() for order in self._orders.values())
        return (key for _, key in heapq.merge(*ranked))

    def __len__(self) -> int:
        return len(self._ready)


class Dispatcher:
    """``ready`` is the core's own list: a started subtask leaves it immediately.

    ``refused`` and ``faults`` count errors of the policy; ``refusals`` holds the latest as text.
    """

    def __init__(
        self,
        policy: NodePolicy,
        resources: NodeResources,
        ready: ReadyList,
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
        self._carry_out = start
        self._window: tuple[ReadySubtask, ...] = ()
        capacity = resources.capacity
        self._most = {
            Device.CPU: capacity.cores,
            Device.GPU: QUEUED_MAX * len(capacity.gpus),
        }

    def window(self) -> tuple[ReadySubtask, ...]:
        """What its policy would be shown now."""
        return self._ready.window(self._most)

    def _start(self, start: StartDecision, now: float, profile: bool) -> None:
        self._ready.passed(start.key, self._window)
        self._carry_out(start, now, profile)

    @property
    def _estimates(self) -> LearningEstimates:
        return self._resources.estimates

    def dispatch(self, now: float) -> None:
        """Start all that may start now: by priority, by the policy, or else the oldest."""
        if not self._ready:
            return
        ready_before = len(self._ready)
        self._window = self.window()
        held, memory_held = self._start_overdue(now)
        if self._bounds.profiling:
            self._start_profiles(now, held, memory_held)
        if not self._ready:
            return
        if len(self._ready) < ready_before:
            self._window = self.window()
        ready = self._window
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

    def _start_profiles(self, now: float, held: frozenset[int], memory_held: bool) -> None:
        """Little-known rows, where they are expected to end first, one run per device."""
        little = [
            ready
            for ready in self._window
            if ready.key in self._ready
            and self._estimates.measured_cells(ready.row) < _PROFILED_CELLS
        ]
        if not little:
            return
        profiling = {(run.device, run.number) for run in self._resources.runs if run.profile}
        on_core = any(device is Device.CPU for device, _ in profiling)
        rows = {run.row for run in self._resources.runs if run.profile}
        for ready in little:
            if ready.row in rows:
                continue
            places = [
                place
                for place in self._places(ready)
                if not (on_core if place[0] is Device.CPU else place in profiling)
            ]
            view = self._resources.view(now, (), held=held, memory_held=memory_held)
            start = self._first_fit(ready, view, FOR_PROFILE, places)
            if start is not None:
                self._start(start, now, True)
                rows.add(ready.row)
                profiling.add((start.device, start.number))
                on_core = on_core or start.device is Device.CPU

    def _start_overdue(self, now: float) -> tuple[frozenset[int], bool]:
        """Start what is overdue; for what does not fit, reserve a GPU, or all memory. A core needs
        no reservation: the next one that is idle is given away here first."""
        held: frozenset[int] = frozenset()
        for ready in self._window:
            if self._ready.passes(ready.key) < self._bounds.passes_max:
                continue
            view = self._resources.view(now, (), held=held)
            device, number = self._soonest(ready, view)
            if not feasibility.refusal(view, ready, device, number):
                self._start(StartDecision(ready.key, device, number, FOR_WAITING), now, False)
            elif ready.memory_mib > self._resources.memory_free_mib:
                return held, True
            elif device is Device.GPU:
                held |= {number}
        return held, False

    def _soonest(self, ready: ReadySubtask, view: NodeView) -> tuple[Device, int]:
        """Where it is expected to end first, what runs there now included."""
        run_s, fits = self._estimates.run_s, feasibility.refusal
        waits: list[tuple[float, Device, int]] = []
        if Device.GPU in ready.devices:
            waits += [(gpu.remaining_s, Device.GPU, gpu.index) for gpu in view.gpus]
        if Device.CPU in ready.devices:
            waits += [
                (wait_s, Device.CPU, number) for number, wait_s in enumerate(view.core_remaining_s)
            ]
        ends = [
            (
                run_s(ready.row, device) + (wait_s if fits(view, ready, device, number) else 0.0),
                index,
            )
            for index, (wait_s, device, number) in enumerate(waits)
        ]
        _, device, number = waits[min(ends)[1]]
        return device, number

    def _start_anything(self, now: float) -> None:
        for ready in self._window:
            if ready.key not in self._ready:
                continue
            start = self._first_fit(ready, self._resources.view(now, ()), FOR_NOTHING_ELSE)
            if start is not None:
                self._start(start, now, False)
                return
