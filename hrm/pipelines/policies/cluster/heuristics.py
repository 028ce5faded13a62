"""Cluster policies that do not learn: baselines of the learned ones, and their fallback.

``ect`` is Ali et al. (2000) in immediate mode; ``demand`` is the cluster half of PATS (Teodoro et
al. 2012), in which nodes pull; ``min-wait`` is algorithm 1 of the HRM paper over nodes. A number
that is NaN counts as the worst possible: one node's bad report must not keep tasks from others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Choice, PipelineClusterView, TaskId, TaskSpec, Vector
from hrm.pipelines.policies.cluster.features import Bools, completion_s, usable

__all__ = ["ClusterMinMin", "ClusterMinWait", "ClusterRandom", "Demand", "Ect", "LeastLoaded"]


class _Heuristic:
    """One that learns nothing from how tasks end."""

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        """See ``ClusterPolicy.ended``."""


class ClusterRandom(_Heuristic):
    """Uniform over the nodes that fit."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        rows = np.flatnonzero(usable(view, fits))
        row = int(rows[self._rng.integers(len(rows))])
        return Choice(node=row, why=f"{view.names[row]}: drawn among {len(rows)} that fit")


class LeastLoaded(_Heuristic):
    """Fewest tasks for each core and GPU; of equal ones the lowest load, then the lowest row.

    Load is that of the LDWP paper (equation 7), the mean of four utilisations. It comes second
    because it is as old as the node's last report, while tasks are counted as they are placed.
    """

    name = "least-loaded"

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        rows = np.flatnonzero(usable(view, fits))
        tasks = view.running[rows] + view.waiting_batch[rows] + view.waiting_stream[rows]
        share = tasks / np.maximum(view.cores[rows] + view.gpus[rows], 1.0)
        load = (view.cpu + view.memory + view.gpu + view.gpu_memory)[rows] / 4.0
        fewest = _worst(share)
        equal = np.flatnonzero(fewest == fewest.min())
        best = int(equal[np.argmin(_worst(load[equal]))])
        row = int(rows[best])
        why = f"{view.names[row]}: {tasks[best]:g} tasks, load {load[best]:.2f}, the least of all"
        return Choice(node=row, why=why)


class Ect(_Heuristic):
    """Earliest completion: expected wait plus expected time of the task; ties to the lowest row."""

    name = "ect"

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        """See ``ClusterPolicy.choose``. ``scores`` are the completion times, negated."""
        done_s = np.where(usable(view, fits), completion_s(view), np.float32(np.inf))
        row = int(np.argmin(done_s))
        if not fits[row]:  # all times are infinite
            row = int(np.argmax(fits))
        wait_s, task_s = view.expected_wait_s[row], view.task_s[row]
        name = view.names[row]
        why = f"{name}: expected wait {wait_s:.1f} s + run {task_s:.1f} s, earliest of all"
        return Choice(node=row, why=why, scores=-done_s)


class ClusterMinWait(_Heuristic):
    """Least estimated wait (HRM paper, algorithm 1), whatever the node's speed.

    Nodes of equal wait are chosen in turn, like units under the placement policy of this name.
    """

    name = "min-wait"

    def __init__(self) -> None:
        self._cursor = 0

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        rows = np.flatnonzero(usable(view, fits))
        row, self._cursor = _in_turn(rows, _worst(view.expected_wait_s[rows]), self._cursor)
        why = (
            f"{view.names[row]}: expected wait {view.expected_wait_s[row]:.1f} s, the least of all"
        )
        return Choice(node=row, why=why)


class Demand(_Heuristic):
    """An idle node pulls the head of the queue; of several, the one that pulled longest ago.

    A node is idle if it has a free core and no waiting task. While none is idle, the head of the
    queue waits, and the queue with it.
    """

    name = "demand"

    def __init__(self) -> None:
        self._pulled: dict[NodeName, int] = {}
        self._count = 0

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        may = usable(view, fits)
        waiting = view.waiting_batch + view.waiting_stream
        # A node without a report is not idle; if none has reported, any will do.
        known = may & ~np.isnan(waiting + view.free_cores)
        idle = np.flatnonzero(known & (view.free_cores > 0) & (waiting == 0))
        if not len(idle) and known.any():
            return Choice(node=-1, why=f"none of {np.count_nonzero(may)} nodes that fit is idle")
        rows = idle if len(idle) else np.flatnonzero(may)
        row = int(min(rows, key=lambda each: self._pulled.get(view.names[each], 0)))
        self._count += 1
        self._pulled[view.names[row]] = self._count
        if len(self._pulled) > 2 * len(view.names):
            self._pulled = {n: self._pulled[n] for n in view.names if n in self._pulled}
        return Choice(node=row, why=f"{view.names[row]}: idle, and pulled a task longest ago")


class ClusterMinMin(Ect):
    """Min-min over the available tasks, of which there is only one: its choice is that of ``ect``.

    Batch mode would choose among the whole queue, and its order, too; a policy is called for the
    head alone.
    """

    name = "min-min"


def _worst(values: Vector) -> Vector:
    return np.where(np.isnan(values), np.float32(np.inf), values)


def _in_turn(rows: npt.NDArray[np.intp], scores: Vector, cursor: int) -> tuple[int, int]:
    """The row of the least score, of equal ones the first from ``cursor``; the next cursor."""
    best = rows[scores == scores.min()]
    row = int(best[np.searchsorted(best, cursor) % len(best)])
    return row, row + 1
