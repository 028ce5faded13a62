"""A node's capacity and its use: cores, GPUs, memory. Only the node's core allocates.

Utilisation of a GPU is the last sample, corrected by prediction for what has started and ended
since: telemetry lags behind decisions by up to a second, in which a card can be overfilled twice.
``node_load`` is what the node reports of it to the master, including the expected wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hrm.core.vocabulary.model import WorkloadClass
from hrm.pipelines.core.device_memory import PeakMemory, certain
from hrm.pipelines.core.model import (
    Device,
    Estimates,
    GpuView,
    LearningEstimates,
    NodeView,
    ReadySubtask,
    Row,
)
from hrm.pipelines.core.node_messages import GpuCard, LoadSampled, NodeCapacity, NodeLoad
from hrm.pipelines.core.subtasks import NodeTask, Run

__all__ = ["Card", "NodeResources", "node_load", "shared_out_s"]

_P90 = 1.2816
"""Standard deviations of a normal distribution: what a sum of many steps is near to."""

Work = tuple[float, float]
"""Seconds that a subtask takes on a core and on a GPU; inf: no such version."""


@dataclass(slots=True, eq=False)
class Card:
    """One GPU and its runs, in order of start. ``correction``: measured less predicted utilisation
    at the latest sample. ``memory_risk``: see ``GpuView``."""

    card: GpuCard
    memory_risk: float = 0.0
    runs: dict[int, Run] = field(default_factory=dict)
    correction: float = 0.0
    measured_mib: float = 0.0

    def predicted(self) -> float:
        return sum(run.sm for run in self.runs.values())

    def reserved_mib(self) -> float:
        return sum(run.gpu_memory_mib for run in self.runs.values())

    def peaks(self) -> PeakMemory:
        """What its runs are expected to reach together: at least what they use now."""
        together = certain(0.0)
        for run in self.runs.values():
            together = together.plus(run.gpu_peak)
        return together.at_least(self.measured_mib)

    def view(self, now: float, estimates: Estimates, *, held: bool = False) -> GpuView:
        """``held``: reserved for a subtask that has waited too long; it shows as full."""
        utilisation = 1.0 if held else self.predicted() + self.correction
        remaining_s = max((run.remaining_s(now) for run in self.runs.values()), default=0.0)
        return GpuView(
            index=self.card.index,
            model=self.card.model,
            memory_mib=self.card.memory_mib,
            memory_used_mib=self.card.memory_mib
            if held
            else max(self.reserved_mib(), self.measured_mib),
            utilisation=min(1.0, max(0.0, utilisation)),
            running=tuple(run.row for run in self.runs.values()),
            elapsed_s=tuple(max(0.0, now - run.started_at_s) for run in self.runs.values()),
            remaining_s=remaining_s,
            peaks=certain(self.card.memory_mib) if held else self.peaks(),
            memory_risk=self.memory_risk,
        )


class NodeResources:
    """Invariants: a core has at most one run; reserved memory never exceeds the capacity."""

    def __init__(
        self, capacity: NodeCapacity, estimates: LearningEstimates, memory_risk: float = 0.0
    ) -> None:
        """``memory_risk``: see ``GpuView``."""
        self.capacity = capacity
        self.estimates = estimates
        self.cores: list[Run | None] = [None] * capacity.cores
        self.cards = {one.index: Card(one, memory_risk) for one in capacity.gpus}
        self.sample: LoadSampled | None = None

    @property
    def runs(self) -> list[Run]:
        on_cores = [run for run in self.cores if run is not None]
        return on_cores + [run for card in self.cards.values() for run in card.runs.values()]

    @property
    def memory_free_mib(self) -> float:
        return self.capacity.memory_mib - sum(run.memory_mib for run in self.runs)

    def take(self, run: Run) -> None:
        """Account for what the run holds; the caller has checked ``refusal``."""
        if run.device is Device.CPU:
            assert self.cores[run.number] is None
            self.cores[run.number] = run
        else:
            self.cards[run.number].runs[run.run] = run

    def release(self, run: Run, now: float) -> None:
        if run.device is Device.CPU:
            assert self.cores[run.number] is run
            self.cores[run.number] = None
            return
        card = self.cards[run.number]
        del card.runs[run.run]
        for other in card.runs.values():
            seconds = now - max(run.started_at_s, other.started_at_s)
            run.co_runner_s[other.row] = run.co_runner_s.get(other.row, 0.0) + seconds
            other.co_runner_s[run.row] = other.co_runner_s.get(run.row, 0.0) + seconds
        if not card.runs:
            card.correction = min(0.0, card.correction)
            card.measured_mib = 0.0

    def sampled(self, sample: LoadSampled) -> None:
        self.sample = sample
        cards = list(self.cards.values())
        for card, measured in zip(cards, sample.gpu_utilisation, strict=False):
            card.correction = measured - card.predicted()
        for card, used_mib in zip(cards, sample.gpu_memory_used_mib, strict=False):
            card.measured_mib = used_mib

    def view(
        self,
        now: float,
        ready: Sequence[ReadySubtask],
        *,
        held: frozenset[int] = frozenset(),
        memory_held: bool = False,
    ) -> NodeView:
        """``held`` cards and memory are reserved for subtasks that have waited too long."""
        return NodeView(
            now=now,
            ready=ready,
            idle_cores=tuple(i for i, run in enumerate(self.cores) if run is None),
            core_remaining_s=tuple(run.remaining_s(now) if run else 0.0 for run in self.cores),
            gpus=tuple(
                card.view(now, self.estimates, held=index in held)
                for index, card in self.cards.items()
            ),
            memory_free_mib=0.0 if memory_held else self.memory_free_mib,
            estimates=self.estimates,
        )


def shared_out_s(work: Iterable[Work], cores: int, gpus: float) -> float:
    """Seconds until all is done if the work divides freely and optimally over cores and GPUs.

    What gains most from a GPU is assigned to GPUs first, up to the division that ends soonest. A
    lower bound for any schedule; inf: some of it can run nowhere.
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


def node_load(resources: NodeResources, tasks: Iterable[NodeTask], now: float) -> NodeLoad:
    """The node's load at ``now``. What no sample includes is taken from the node's state."""
    tasks = list(tasks)
    capacity, sample, estimates = resources.capacity, resources.sample, resources.estimates
    cards = [card.view(now, estimates) for card in resources.cards.values()]
    free_mib = resources.memory_free_mib
    free_cores = sum(run is None for run in resources.cores)
    gpu_total_mib = sum(card.memory_mib for card in cards)
    gpu_used_mib = sum(card.memory_used_mib for card in cards)
    cpu = 1.0 - free_cores / capacity.cores if capacity.cores else 0.0
    memory = 1.0 - free_mib / capacity.memory_mib if capacity.memory_mib else 0.0
    wait_s = shared_out_s(_work(resources, tasks, now), capacity.cores, len(cards))
    units = max(1, capacity.cores + len(cards))
    waiting = [task for task in tasks if not task.begun]
    stream = sum(task.workload_class is WorkloadClass.STREAM for task in waiting)
    return NodeLoad(
        at=now,
        cpu=sample.cpu if sample else cpu,
        gpu=sum(card.utilisation for card in cards) / len(cards) if cards else 0.0,
        memory=sample.memory if sample else memory,
        gpu_memory=min(1.0, gpu_used_mib / gpu_total_mib) if gpu_total_mib else 0.0,
        sent=sample.sent if sample else 0.0,
        received=sample.received if sample else 0.0,
        running=len(tasks) - len(waiting),
        waiting_batch=len(waiting) - stream,
        waiting_stream=stream,
        expected_wait_s=wait_s,
        expected_wait_p90_s=wait_s + _P90 * _work_deviation_s(resources, tasks) / units,
        free_cores=free_cores,
        free_memory_mib=max(0.0, free_mib),
        free_gpu_memory_mib=max(0.0, gpu_total_mib - gpu_used_mib),
        tasks=frozenset(task.spec.task_id for task in tasks),
    )


def _work_deviation_s(resources: NodeResources, tasks: Iterable[NodeTask]) -> float:
    """Standard deviation of all work that is left, each step where it is faster. Steps are taken to
    be independent, and what runs to be as uncertain as what waits."""
    run_s, deviation_s = resources.estimates.run_s, resources.estimates.run_deviation_s
    variances: dict[tuple[Row, frozenset[Device]], float] = {}
    total = 0.0
    for task in tasks:
        for one in task.subtasks.values():
            if one.over:
                continue
            key = one.row, one.devices if one.run is None else frozenset({one.run.device})
            if key not in variances:
                device = min(key[1], key=lambda each: (run_s(one.row, each), each.value))
                variances[key] = deviation_s(one.row, device) ** 2
            total += variances[key]
    return math.sqrt(total)


def _work(resources: NodeResources, tasks: Iterable[NodeTask], now: float) -> Iterable[Work]:
    run_s, cpu, gpu, never = resources.estimates.run_s, Device.CPU, Device.GPU, math.inf
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
