"""The node policies that a learned one must beat, with the same estimates and the same limits.

``random``   a place among those that fit, drawn for one subtask after the other
``mct``      minimum completion time: in order of arrival, each permanently to the device that ends
             it first, ties to the GPU; devices take their own queue's in order
``min-min``  the same for all that wait at once: the one that ends first goes first; the plan is
             made again at each call, and only what can start now is started
``pats``     a list sorted by speed-up: an idle core takes the smallest, a GPU the largest

Sources: Ali et al. (2000) for the second and third, Teodoro et al. (2012, 2013) for the last; LDWP
+ IAWP, section 4. All fill a GPU up to the same limits; none considers what runs there.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from hrm.pipelines.core.feasibility import CAPS, Caps
from hrm.pipelines.core.model import Device, NodeView, ReadySubtask, StartDecision, SubtaskKey
from hrm.pipelines.policies.corun.tentative import Tentative

__all__ = ["CorunMinMin", "CorunRandom", "Mct", "Pats"]

_CORES = -1
"""The queue of all cores. A GPU's queue has its index."""


class CorunRandom:
    """Uniform over the devices that have a version and can take it, then over their numbers."""

    name = "random"

    def __init__(self, *, rng: np.random.Generator, caps: Caps = CAPS) -> None:
        self._rng = rng
        self._caps = caps

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        free = Tentative(view, self._caps)
        for subtask in free.left():
            places = {
                Device.CPU: [n for n in free.idle_cores if free.fits(subtask, Device.CPU, n)],
                Device.GPU: [gpu.index for gpu in free.fitting(subtask)],
            }
            devices = [device for device in Device if places[device]]
            if devices:
                device = devices[int(self._rng.integers(len(devices)))]
                numbers = places[device]
                free.take(subtask, device, numbers[int(self._rng.integers(len(numbers)))])
        return free.starts


class Mct:
    """Each arrival is assigned to a queue once. A restart assigns the waiting ones again."""

    name = "mct"

    def __init__(self, *, rng: np.random.Generator, caps: Caps = CAPS) -> None:
        self._caps = caps
        self._queue_of: dict[SubtaskKey, int] = {}

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        free = Tentative(view, self._caps)
        present = {subtask.key for subtask in view.ready}
        self._queue_of = {k: queue for k, queue in self._queue_of.items() if k in present}
        queues: dict[int, list[ReadySubtask]] = {_CORES: []}
        queues |= {gpu.index: [] for gpu in view.gpus}
        for subtask in view.ready:
            queue = self._queue_of.get(subtask.key)
            if queue not in queues:
                queue = self._chosen(view, free, subtask, queues)
            if queue is not None:
                self._queue_of[subtask.key] = queue
                queues[queue].append(subtask)
        for subtask in queues[_CORES]:
            if not free.take_core(subtask):
                break
        for gpu in view.gpus:
            for subtask in queues[gpu.index]:
                if not free.fits(subtask, Device.GPU, gpu.index):
                    break
                free.take(subtask, Device.GPU, gpu.index)
        return free.starts

    def _chosen(
        self,
        view: NodeView,
        free: Tentative,
        subtask: ReadySubtask,
        queues: dict[int, list[ReadySubtask]],
    ) -> int | None:
        """The queue in which it would end first; None: no device can ever run it."""
        wait_s = {
            gpu.index: sum(free.work_s(other.row, gpu) for other in queues[gpu.index])
            for gpu in free.gpus_for(subtask)
        }
        if view.core_remaining_s:
            wait_s[_CORES] = _core_wait_s(view, queues[_CORES])
        ends = _ends(view, free, subtask, wait_s)
        return min(ends)[2] if ends else None


def _ends(
    view: NodeView, free: Tentative, subtask: ReadySubtask, wait_s: Mapping[int, float]
) -> list[tuple[float, int, int]]:
    """(end, GPU before CPU, place) for each place that may run it, after ``wait_s`` of others."""
    run_s, row = view.estimates.run_s, subtask.row
    ends = [
        (wait_s[gpu.index] + free.wait_s(subtask, gpu) + run_s(row, Device.GPU), 0, gpu.index)
        for gpu in free.gpus_for(subtask)
    ]
    if Device.CPU in subtask.devices and _CORES in wait_s:
        ends.append((wait_s[_CORES] + run_s(row, Device.CPU), 1, _CORES))
    return ends


def _core_wait_s(view: NodeView, queued: Sequence[ReadySubtask]) -> float:
    """Until a core is free after the ``queued``, each on the first free core."""
    free_s = list(view.core_remaining_s)
    heapq.heapify(free_s)
    for other in queued:
        heapq.heapreplace(free_s, free_s[0] + view.estimates.run_s(other.row, Device.CPU))
    return free_s[0]


class CorunMinMin:
    """All that it is shown is planned; the plan is quadratic in that, and the node's window bounds
    it."""

    name = "min-min"

    def __init__(self, *, rng: np.random.Generator, caps: Caps = CAPS) -> None:
        self._caps = caps

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        free = Tentative(view, self._caps)
        waiting = list(view.ready)
        cores_s = [*view.core_remaining_s]
        heapq.heapify(cores_s)
        places = [gpu.index for gpu in view.gpus] + [_CORES] * bool(cores_s)
        if not waiting or not places:
            return []
        wait_s = np.zeros(len(places))
        run_s = np.full((len(waiting), len(places)), np.inf)
        start_s = np.zeros_like(run_s)
        """Until each may start at a place with nothing planned ahead of it."""
        for age, subtask in enumerate(waiting):
            for gpu in free.gpus_for(subtask):
                run_s[age, places.index(gpu.index)] = view.estimates.run_s(subtask.row, Device.GPU)
            if cores_s and Device.CPU in subtask.devices:
                run_s[age, -1] = view.estimates.run_s(subtask.row, Device.CPU)
        for place, gpu in enumerate(free.gpus):
            start_s[:, place] = [free.wait_s(subtask, gpu) for subtask in waiting]
        for _ in waiting:
            if cores_s:
                wait_s[-1] = cores_s[0]
            ends_s = wait_s + start_s + run_s
            end_s = ends_s.min()
            if not np.isfinite(end_s):
                break
            equal = np.argwhere(ends_s == end_s)
            age, place = min(equal.tolist(), key=lambda at: (places[at[1]] == _CORES, *at))
            subtask = waiting[age]
            run_s[age] = np.inf
            if places[place] == _CORES:
                if cores_s[0] <= 0:
                    free.take_core(subtask)
                heapq.heapreplace(cores_s, float(end_s))
                continue
            number = places[place]
            if wait_s[place] <= 0 and free.fits(subtask, Device.GPU, number):
                free.take(subtask, Device.GPU, number)
                start_s[:, place] = [free.wait_s(other, free.gpus[place]) for other in waiting]
            else:
                wait_s[place] += free.work_s(subtask.row, free.gpus[place])
        return free.starts


class Pats:
    """CPU-only work counts as speed-up 0, GPU-only as infinite. Of several GPUs the idlest."""

    name = "pats"

    def __init__(self, *, rng: np.random.Generator, caps: Caps = CAPS) -> None:
        self._caps = caps

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        free = Tentative(view, self._caps)
        speedup = {subtask.key: view.estimates.speedup(subtask.row) for subtask in view.ready}
        rising = sorted(view.ready, key=lambda subtask: speedup[subtask.key])
        taken: set[SubtaskKey] = set()
        for subtask in rising:
            if not free.idle_cores:
                break
            if free.take_core(subtask):
                taken.add(subtask.key)
        for subtask in sorted(view.ready, key=lambda subtask: -speedup[subtask.key]):
            if subtask.key in taken:
                continue
            if fitting := free.fitting(subtask):
                gpu = min(fitting, key=lambda gpu: (gpu.utilisation, len(gpu.running), gpu.index))
                free.take(subtask, Device.GPU, gpu.index)
        return free.starts
