"""The plainest policies, one for each stage: what the cores fall back on.

``LeastLoaded`` gives a task to the node with the least expected wait, the fewest tasks on ties.
``FirstFit`` starts what has been ready longest where it is expected to end first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hrm.pipelines.core import feasibility
from hrm.pipelines.core.model import (
    Choice,
    ClusterView,
    Device,
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
    """A ``NodePolicy``: in the order of readiness, each on the fastest device where it fits, on
    ties a GPU; a subtask that fits nowhere does not block the others."""

    name = "first-fit"

    def dispatch(self, view: NodeView) -> list[Start]:
        starts: list[Start] = []
        for subtask in view.ready:
            if not view.idle_cores and not view.gpus:
                break
            start = self._place(view, subtask)
            if start is not None:
                starts.append(start)
                view = feasibility.started(view, start)
        return starts

    def _place(self, view: NodeView, subtask: ReadySubtask) -> Start | None:
        run_s = view.estimates.run_s
        for device in sorted(
            subtask.devices, key=lambda d: (run_s(subtask.row, d), d is Device.CPU)
        ):
            for number in self._numbers(view, device):
                if not feasibility.refusal(view, subtask, device, number):
                    return Start(subtask.key, device, number)
        return None

    @staticmethod
    def _numbers(view: NodeView, device: Device) -> list[int]:
        if device is Device.CPU:
            return list(view.idle_cores[:1])
        emptiest = sorted(view.gpus, key=lambda gpu: (len(gpu.running), gpu.index))
        return [gpu.index for gpu in emptiest]
