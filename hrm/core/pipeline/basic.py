"""The plainest policies, one for each stage: what the cores fall back on.

``LeastLoaded`` gives a task to the node with the least expected wait, the fewest tasks on ties.
``FirstFit`` starts what has been ready longest where it is expected to end first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hrm.core.pipeline.feasible import Limits, Room
from hrm.core.pipeline.model import (
    Choice,
    ClusterView,
    Device,
    Estimates,
    NodeView,
    ReadySubtask,
    Start,
    TaskId,
    TaskSpec,
)

__all__ = ["FirstFit", "LeastLoaded"]


class LeastLoaded:
    """A ``ClusterPolicy``. Ties end at the lowest row, so runs repeat."""

    name = "least-loaded"

    def choose(self, task: TaskSpec, view: ClusterView, fits: npt.NDArray[np.bool_]) -> Choice:
        tasks = view.running + view.waiting_batch + view.waiting_stream
        rows = np.flatnonzero(fits)
        order = np.lexsort((rows, tasks[rows], view.expected_wait_s[rows]))
        node = int(rows[order[0]])
        return Choice(node=node, why=f"expected wait {view.expected_wait_s[node]:.1f} s")

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        """It keeps nothing."""


class FirstFit:
    """A ``NodePolicy``: in the order of readiness, each on the device that runs it fastest and has
    room, on ties a GPU; who finds none does not hold up the others."""

    name = "first-fit"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()

    def dispatch(self, view: NodeView) -> list[Start]:
        room = Room(view, self._limits)
        for subtask in view.ready:
            if not room.idle_cores and not room.gpus:
                break
            self._place(room, subtask, view.estimates)
        return room.starts

    def _place(self, room: Room, subtask: ReadySubtask, estimates: Estimates) -> None:
        def slowness(device: Device) -> tuple[float, bool]:
            return estimates.run_s(subtask.row, device), device is Device.CPU

        for device in sorted(subtask.devices, key=slowness):
            for number in self._numbers(room, device):
                if room.fits(subtask, device, number):
                    room.take(subtask, device, number)
                    return

    @staticmethod
    def _numbers(room: Room, device: Device) -> list[int]:
        if device is Device.CPU:
            return room.idle_cores[:1]
        emptiest = sorted(room.gpus, key=lambda gpu: (len(gpu.running), gpu.index))
        return [gpu.index for gpu in emptiest]
