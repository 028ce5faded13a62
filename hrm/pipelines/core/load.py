"""The load that a node reports to the master: utilisations, counts, and the expected wait."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hrm.core.vocabulary.model import WorkloadClass
from hrm.pipelines.core.model import Device
from hrm.pipelines.core.node_messages import NodeLoad
from hrm.pipelines.core.room import Room
from hrm.pipelines.core.subtasks import PlacedTask

__all__ = ["node_load", "shared_out_s"]

Work = tuple[float, float]
"""Seconds that a subtask takes on a core and on a GPU; inf: no such version."""


def shared_out_s(work: Iterable[Work], cores: int, gpus: float) -> float:
    """Seconds until all is done if the work divides freely over cores and GPUs, best way.

    What gains most from a GPU goes there first, up to the cut that ends soonest. A lower bound of
    what any schedule needs; inf: some of it can run nowhere.
    """
    on_cpu = on_gpu = 0.0
    either: list[Work] = []
    for cpu_s, gpu_s in work:
        no_core, no_gpu = not cores or cpu_s == math.inf, not gpus or gpu_s == math.inf
        if no_core and no_gpu:
            if cpu_s or gpu_s:
                return math.inf
        elif no_core:
            on_gpu += gpu_s
        elif no_gpu:
            on_cpu += cpu_s
        else:
            either.append((cpu_s, gpu_s))
            on_cpu += cpu_s
    either.sort(key=lambda pair: pair[1] / max(pair[0], 1e-9))
    cores, gpus = max(cores, 1), max(gpus, 1e-9)
    best_s = max(on_cpu / cores, on_gpu / gpus)
    for cpu_s, gpu_s in either:
        on_cpu -= cpu_s
        on_gpu += gpu_s
        ends_s = max(on_cpu / cores, on_gpu / gpus)
        if ends_s > best_s:  # first it falls, then it rises
            break
        best_s = ends_s
    return max(0.0, best_s)


def node_load(room: Room, tasks: Iterable[PlacedTask], now: float) -> NodeLoad:
    """The node's load at ``now``. What no sample covers is taken from the node's state."""
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
        running=len(real) - len(waiting),
        waiting_batch=len(waiting) - stream,
        waiting_stream=stream,
        expected_wait_s=shared_out_s(_work(room, tasks, now), capacity.cores, len(cards)),
        free_cores=free_cores,
        free_memory_mib=max(0.0, free_mib),
        free_gpu_memory_mib=max(0.0, gpu_total_mib - gpu_used_mib),
        tasks=frozenset(task.spec.task_id for task in real),
    )


def _work(room: Room, tasks: Iterable[PlacedTask], now: float) -> Iterable[Work]:
    run_s, cpu, gpu, never = room.estimates.run_s, Device.CPU, Device.GPU, math.inf
    for task in tasks:
        for one in task.subtasks.values():
            if one.run is not None:
                left_s = one.run.remaining_s(now)
                yield (left_s, never) if one.run.device is cpu else (never, left_s)
            elif not one.over:
                devices, row = one.devices, one.row
                yield (
                    run_s(row, cpu) if cpu in devices else never,
                    run_s(row, gpu) if gpu in devices else never,
                )
