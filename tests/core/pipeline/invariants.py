"""What must hold after every event, recounted from the records: for tests and simulations.

No core is used twice, memory is never overcommitted, every run belongs to one RUNNING subtask and
vice versa, every live task is in exactly one place.
"""

from __future__ import annotations

import functools

from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.device_memory import PeakMemory, certain
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import Device
from hrm.pipelines.core.node import PipelineNode
from hrm.pipelines.core.subtasks import SubtaskState

__all__ = ["check_cluster", "check_node"]

_SLACK_MIB = 1e-6


def check_node(node: PipelineNode) -> None:
    """AssertionError, with what does not hold."""
    resources = node.resources
    runs = resources.runs
    assert len({run.run for run in runs}) == len(runs), "a run is booked twice"
    assert resources.memory_free_mib >= -_SLACK_MIB, (
        f"memory promised twice: {resources.memory_free_mib}"
    )
    for number, run in enumerate(resources.cores):
        assert run is None or (run.device is Device.CPU and run.number == number)
    for card in resources.cards.values():
        limit_mib = CAPS.gpu_memory_share * card.card.memory_mib
        assert len(card.runs) <= CAPS.co_runners_max, f"too many on GPU {card.card.index}"
        peaks = [run.gpu_peak for run in card.runs.values()]
        risk = functools.reduce(PeakMemory.plus, peaks, certain(0.0)).exceeds(limit_mib)
        rarely = len(card.runs) > 1 and risk <= card.memory_risk
        over = card.reserved_mib() > limit_mib + _SLACK_MIB
        assert rarely or not over, f"GPU {card.card.index} is over"
    held = {run.run for run in runs}
    seen: set[int] = set()
    ready: set[object] = set()
    for task_id, task in node.tasks.items():
        assert task_id == task.spec.task_id
        done = {n for n, one in task.subtasks.items() if one.state is SubtaskState.DONE}
        for one in task.subtasks.values():
            assert (one.run is not None) == (one.state is SubtaskState.RUNNING), one.key
            assert (one.ready is not None) == (one.state is SubtaskState.READY), one.key
            if one.run is not None:
                seen.add(one.run.run)
            if one.ready is not None:
                ready.add(one.key)
            if one.state in (SubtaskState.RUNNING, SubtaskState.READY, SubtaskState.DONE):
                assert done.issuperset(one.spec.after), f"{one.key} began before its inputs"
        assert task.ending is None or task.running, f"{task_id} has ended and is still here"
    assert seen == held, f"booked {held}, running {seen}"
    assert ready == set(node._ready), "the list of the ready is not what is ready"


def check_cluster(cluster: PipelineCluster) -> None:
    """AssertionError, with what does not hold."""
    places: dict[object, int] = dict.fromkeys(cluster.tasks, 0)
    placed = [t for row in cluster.table.nodes.values() for t in row.placed]
    for task_id in [*cluster.queue, *cluster.stranded, *placed]:
        assert task_id in places, f"{task_id} has a place and has ended"
        places[task_id] += 1
    wrong = {task_id: count for task_id, count in places.items() if count != 1}
    assert not wrong, f"in none or several places: {wrong}"
    assert not (cluster.tasks.keys() & cluster.ended.keys()), "live and ended"
    for name, row in cluster.table.nodes.items():
        for task_id in row.placed:
            assert cluster.tasks[task_id].node == name, f"{task_id} is not on {name}"
        assert row.unreported.keys() <= row.placed.keys()
    assert len(cluster.ended) <= cluster.bounds.ended_kept
