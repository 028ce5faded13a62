"""The features of ``ldwp-set``: nothing in them has a unit, and no pipeline has a name.

Times are in units of the task's own *ideal*, its time alone on the fastest node that may take it;
counts are per unit (core or GPU) of a node; the age of a report is in ideals, too, because a report
of four seconds ago says little of a node whose tasks take one. So a cluster of two cores and tasks
of a second looks like one of thirty-two and tasks of an hour with the same load, and what was
learned on one holds on the other as far as the physics do.

Logarithms are clipped to ``MOST``. A number that is NaN in the view remains NaN here, so that the
caller notices.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.model import WorkloadClass
from hrm.pipelines.core.model import Device, PipelineClusterView, TaskSpec, Vector
from hrm.pipelines.policies.cluster.features import (
    CANDIDATES_MAX,
    Bools,
    Rows,
    completion_s,
    usable,
)

__all__ = ["MOST", "NODE_INPUTS", "SET_SCHEMA", "TASK_INPUTS", "SetState", "observe_set"]

NODE_INPUTS = (
    "cpu", "gpu", "memory", "gpu_memory", "free_cores", "running", "waiting", "wait", "run",
    "completion", "behind", "wait_relative", "report_age", "gpu_share", "units", "units_relative",
)  # fmt: skip
"""Of a node. ``wait``, ``run``, ``completion``: expected, in ideals; ``behind``: completion over
the earliest one of all candidates; ``_relative``: to the mean of the candidates."""
TASK_INPUTS = (
    "stream", "gpu_steps", "gpu_only_steps", "steps", "offered", "queue", "nodes", "busy",
    "length_relative", "spread",
)  # fmt: skip
"""Of the task and the cluster. ``offered``: ideals that arrive in the time of one, per unit;
``busy``: mean wait in ideals; ``length_relative``: the ideal over the mean work of the tasks that
wait and run; ``spread``: slowest over fastest node for it."""

MOST = 3.0
_NEVER_S = 1e12
_SCALE = 2.0
SET_SCHEMA = hashlib.sha256(
    json.dumps(["ldwp-set", 2, NODE_INPUTS, TASK_INPUTS, MOST, _SCALE]).encode()
).hexdigest()[:16]


class SetState(NamedTuple):
    """What ``ldwp-set`` decides from: ``nodes`` (n, 16), ``task`` (10,), ``rows`` (n,) of the
    view."""

    nodes: Vector
    task: Vector
    rows: Rows


def _log(ratio: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """The logarithm of a ratio of at least 0, scaled, within ``MOST`` of 0."""
    scaled = np.log(np.maximum(ratio, 1e-6)) / _SCALE
    within: npt.NDArray[np.floating] = np.minimum(np.maximum(scaled, -MOST), MOST)
    return within


def observe_set(task: TaskSpec, view: PipelineClusterView, fits: Bools) -> SetState:
    """Features of at most ``CANDIDATES_MAX`` nodes that may take the task, in row order.

    If there are more, those remain where the task is expected to be done first, so ``ect``'s choice
    is always among them.
    """
    rows = np.flatnonzero(usable(view, fits))
    if len(rows) > CANDIDATES_MAX:
        earliest = np.argpartition(completion_s(view)[rows], CANDIDATES_MAX)[:CANDIDATES_MAX]
        first = np.sort(earliest)
        rows = rows[first]
    wait_s = np.minimum(view.expected_wait_s[rows], _NEVER_S)
    run_s = np.minimum(view.task_s[rows], _NEVER_S)
    done_s = wait_s + run_s
    ideal_s = max(float(run_s.min()), 1e-6)
    units = np.maximum(view.cores[rows] + view.gpus[rows], 1.0)
    waiting = view.waiting_batch[rows] + view.waiting_stream[rows]
    running = view.running[rows]
    nodes = np.empty((len(rows), len(NODE_INPUTS)), dtype=np.float32)
    for number, column in enumerate((view.cpu, view.gpu, view.memory, view.gpu_memory)):
        nodes[:, number] = column[rows]
    nodes[:, 4] = view.free_cores[rows] / np.maximum(view.cores[rows], 1.0)
    nodes[:, 5] = _log(1.0 + running / units)
    nodes[:, 6] = _log(1.0 + waiting / units)
    nodes[:, 7] = _log(1.0 + wait_s / ideal_s)
    nodes[:, 8] = _log(run_s / ideal_s)
    nodes[:, 9] = _log(done_s / ideal_s)
    nodes[:, 10] = _log(done_s / max(float(done_s.min()), 1e-6))
    nodes[:, 11] = _log((wait_s + ideal_s) / (float(wait_s.mean()) + ideal_s))
    nodes[:, 12] = _log(1.0 + view.report_age_s[rows] / ideal_s)
    nodes[:, 13] = view.gpus[rows] / units
    nodes[:, 14] = _log(units)
    nodes[:, 15] = _log(units / float(units.mean()))
    work_s = float((wait_s * units).sum()) / max(1.0, float((running + waiting).sum()))
    steps = task.pipeline.subtasks
    on_gpu = sum(Device.GPU in step.devices for step in steps) / len(steps)
    gpu_only = sum(step.devices == {Device.GPU} for step in steps) / len(steps)
    offered = view.arrival_rate_per_s * ideal_s / float(units.sum())
    of_task = np.array(
        (
            1.0 + offered,
            1.0 + view.queue_length / float(units.sum()),
            len(rows),
            1.0 + float(wait_s.mean()) / ideal_s,
            ideal_s / work_s if work_s > 0.0 else 1.0,
            float(run_s.max()) / ideal_s,
        ),
        dtype=np.float32,
    )
    stream = float(task.workload_class is WorkloadClass.STREAM)
    head = np.array((stream, on_gpu, gpu_only, min(len(steps) / 8.0, MOST)), dtype=np.float32)
    of_both = np.concatenate((head, _log(of_task))).astype(np.float32)
    return SetState(nodes, of_both, rows)
