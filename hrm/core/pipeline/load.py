"""How busy a node is, as the master hears it: utilisations, counts, and the expected wait."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from hrm.core.model import WorkloadClass
from hrm.core.pipeline.model import Device
from hrm.core.pipeline.node_messages import NodeLoad
from hrm.core.pipeline.room import Room
from hrm.core.pipeline.subtasks import PlacedTask

__all__ = ["node_load", "shared_out_s"]

Work = tuple[float, float]
"""Seconds that a subtask takes on a core and on a GPU; inf: no such version."""


def shared_out_s(work: Iterable[Work], cores: int, gpus: float) -> float:
    """Seconds until all is done if the work divides freely over cores and GPUs, best way.

    What gains most from a GPU goes there first, up to the cut that ends soonest. A lower bound of
    what any schedule needs; inf: some of it can run nowhere.
    """
    pairs = np.array([pair for pair in work if pair != (0.0, 0.0)], dtype=np.float64)
    if not len(pairs):
        return 0.0
    cpu_s, gpu_s = pairs[:, 0].copy(), pairs[:, 1].copy()
    if not cores:
        cpu_s[:] = math.inf
    if not gpus:
        gpu_s[:] = math.inf
    if np.any(np.isinf(cpu_s) & np.isinf(gpu_s)):
        return math.inf
    only_gpu, only_cpu = np.isinf(cpu_s), np.isinf(gpu_s)
    both = ~(only_gpu | only_cpu)
    order = np.argsort(-cpu_s[both] / np.maximum(gpu_s[both], 1e-9), kind="stable")
    on_gpu = np.concatenate(([0.0], np.cumsum(gpu_s[both][order]))) + gpu_s[only_gpu].sum()
    cpu_total = cpu_s[both].sum()
    on_cpu = cpu_total - np.concatenate(([0.0], np.cumsum(cpu_s[both][order])))
    on_cpu = np.maximum(0.0, on_cpu) + cpu_s[only_cpu].sum()
    return float(np.min(np.maximum(on_cpu / max(cores, 1), on_gpu / max(gpus, 1e-9))))


def node_load(room: Room, tasks: Iterable[PlacedTask], now: float) -> NodeLoad:
    """The record of the node at ``now``. What no sample tells is taken from the books."""
    tasks = list(tasks)
    capacity, sample, estimates = room.capacity, room.sample, room.estimates
    cards = [card.view(now, estimates) for card in room.cards.values()]
    free_mib = room.memory_free_mib
    free_cores = sum(run is None for run in room.cores)
    gpu_total_mib = sum(card.memory_mib for card in cards)
    gpu_used_mib = sum(card.memory_used_mib for card in cards)
    cpu = 1.0 - free_cores / capacity.cores if capacity.cores else 0.0
    memory = 1.0 - free_mib / capacity.memory_mib if capacity.memory_mib else 0.0
    real = [task for task in tasks if not task.claim]
    begun = [task for task in real if task.begun]
    waiting = [task for task in real if not task.begun]
    stream = sum(task.workload is WorkloadClass.STREAM for task in waiting)
    return NodeLoad(
        at=now,
        cpu=sample.cpu if sample else cpu,
        gpu=sum(card.utilisation for card in cards) / len(cards) if cards else 0.0,
        memory=sample.memory if sample else memory,
        gpu_memory=min(1.0, gpu_used_mib / gpu_total_mib) if gpu_total_mib else 0.0,
        sent=sample.sent if sample else 0.0,
        received=sample.received if sample else 0.0,
        running=len(begun),
        waiting_batch=len(waiting) - stream,
        waiting_stream=stream,
        expected_wait_s=shared_out_s(_work(room, tasks, now), capacity.cores, len(cards)),
        free_cores=free_cores,
        free_memory_mib=free_mib,
        free_gpu_memory_mib=max(0.0, gpu_total_mib - gpu_used_mib),
        tasks=frozenset(task.spec.task_id for task in real),
    )


def _work(room: Room, tasks: Iterable[PlacedTask], now: float) -> Iterable[Work]:
    estimates = room.estimates
    for task in tasks:
        for one in task.subtasks.values():
            if one.run is not None:
                left_s = one.run.remaining_s(now)
                on_cpu = one.run.device is Device.CPU
                yield (left_s, math.inf) if on_cpu else (math.inf, left_s)
            elif not one.over:
                yield (
                    estimates.run_s(one.row, Device.CPU) if Device.CPU in one.devices else math.inf,
                    estimates.run_s(one.row, Device.GPU) if Device.GPU in one.devices else math.inf,
                )
