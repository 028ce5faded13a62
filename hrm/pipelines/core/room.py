"""A node's capacity and its use: cores, GPUs, memory. Only the node's core allocates.

Utilisation of a GPU is the last sample, corrected by prediction for what has started and ended
since: telemetry lags behind decisions by up to a second, in which a card can be overfilled twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hrm.pipelines.core.model import (
    Device,
    Estimates,
    GpuView,
    LearningEstimates,
    NodeView,
    ReadySubtask,
)
from hrm.pipelines.core.node_messages import GpuCard, LoadSampled, NodeCapacity
from hrm.pipelines.core.subtasks import Run

__all__ = ["Card", "Room"]


@dataclass(slots=True, eq=False)
class Card:
    """One GPU and its runs, in order of start. ``correction``: measured less predicted utilisation
    at the latest sample."""

    card: GpuCard
    runs: dict[int, Run] = field(default_factory=dict)
    correction: float = 0.0
    measured_mib: float = 0.0

    def predicted(self) -> float:
        return sum(run.sm for run in self.runs.values())

    def promised_mib(self) -> float:
        return sum(run.gpu_memory_mib for run in self.runs.values())

    def view(self, now: float, estimates: Estimates, *, held: bool = False) -> GpuView:
        """``held``: kept for a subtask that has waited too long; it shows as fully busy."""
        utilisation = 1.0 if held else self.predicted() + self.correction
        remaining_s = max((run.remaining_s(now) for run in self.runs.values()), default=0.0)
        return GpuView(
            index=self.card.index,
            model=self.card.model,
            memory_mib=self.card.memory_mib,
            memory_used_mib=max(self.promised_mib(), self.measured_mib),
            utilisation=min(1.0, max(0.0, utilisation)),
            running=tuple(run.row for run in self.runs.values()),
            remaining_s=remaining_s,
        )


class Room:
    """Invariants: a core has at most one run; promised memory never exceeds what there is."""

    def __init__(self, capacity: NodeCapacity, estimates: LearningEstimates) -> None:
        self.capacity = capacity
        self.estimates = estimates
        self.cores: list[Run | None] = [None] * capacity.cores
        self.cards = {one.index: Card(one) for one in capacity.gpus}
        self.sample: LoadSampled | None = None

    @property
    def runs(self) -> list[Run]:
        on_cores = [run for run in self.cores if run is not None]
        return on_cores + [run for card in self.cards.values() for run in card.runs.values()]

    @property
    def memory_free_mib(self) -> float:
        return self.capacity.memory_mib - sum(run.memory_mib for run in self.runs)

    def take(self, run: Run) -> None:
        """Book what the run holds; the caller has asked ``refusal``."""
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
            seconds = now - max(run.started_at, other.started_at)
            run.beside[other.row] = run.beside.get(other.row, 0.0) + seconds
            other.beside[run.row] = other.beside.get(run.row, 0.0) + seconds
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
