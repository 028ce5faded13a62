"""A simulated node's hardware: independent cores, and GPUs that are shared.

A GPU gives each of its runs the speed that the world defines for exactly the present set of runs
(processor sharing): whenever a run starts or ends there, the progress of all others is accounted
for and they continue at new speeds. Cores run one subtask each, at full speed. Times are virtual
seconds; work is seconds alone.

Integrals (``Totals``) grow with every change, so a mean over any span is a difference of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.pipelines.core.model import SubtaskKey
from hrm.pipelines.sim.interference import InterferenceWorld
from hrm.pipelines.sim.profiles import Kind
from hrm.pipelines.sim.scenario import NodeType

__all__ = ["LINK_MB_PER_S", "GpuLoad", "SimulatedMachine", "Totals"]

LINK_MB_PER_S = 125.0
"""Gigabit Ethernet."""


@dataclass(slots=True, eq=False)
class _OnGpu:
    """A run on a GPU: ``left_s`` of work at ``speed``."""

    key: SubtaskKey
    kind: Kind
    left_s: float
    memory_mib: float
    speed: float = 1.0


class GpuLoad:
    """One device. ``version`` changes with its set of runs, which voids ends planned before."""

    def __init__(self, model: str, memory_mib: float, truth: InterferenceWorld) -> None:
        self.model = model
        self.memory_mib = memory_mib
        self.runs: dict[int, _OnGpu] = {}
        self.memory_used_mib = 0.0
        self.version = 0
        self.busy_s = 0.0
        """Time with at least one run."""
        self.used_s = 0.0
        """Integral of the share of its multiprocessors in use (0..1)."""
        self.work_s = 0.0
        """Integral of the speeds of all runs: work done, in seconds alone."""
        self.used = 0.0
        self._speeds = 0.0
        self._at_s = 0.0
        self._truth = truth

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        passed_s = now_s - self._at_s
        self._at_s = now_s
        if not self.runs or passed_s <= 0.0:
            return
        self.busy_s += passed_s
        self.used_s += passed_s * self.used
        self.work_s += passed_s * self._speeds
        for run in self.runs.values():
            run.left_s -= passed_s * run.speed

    def start(
        self, number: int, key: SubtaskKey, kind: Kind, work_s: float, memory_mib: float
    ) -> None:
        """After ``advance``."""
        self.runs[number] = _OnGpu(key, kind, work_s, memory_mib)
        self._changed()

    def stop(self, number: int) -> None:
        """After ``advance``."""
        del self.runs[number]
        self._changed()

    def next_end(self) -> tuple[float, int] | None:
        """When the next run ends if nothing changes before, and which; None: nothing runs."""
        if not self.runs:
            return None
        after_s, number = min((run.left_s / run.speed, number) for number, run in self.runs.items())
        return self._at_s + max(0.0, after_s), number

    def _changed(self) -> None:
        self.version += 1
        runs = list(self.runs.values())
        slowdowns = self._truth.slowdowns(self.model, tuple(run.kind.name for run in runs))
        for run, slowdown in zip(runs, slowdowns, strict=True):
            run.speed = 1.0 / slowdown
        self.used = min(1.0, sum(run.kind.features[0] for run in runs))
        self._speeds = sum(run.speed for run in runs)
        self.memory_used_mib = sum(run.memory_mib for run in runs)


@dataclass(frozen=True, slots=True)
class Totals:
    """Integrals over time since the node joined, shares times seconds, summed over its devices."""

    at_s: float
    cores_s: float
    memory_s: float
    received_s: float
    gpu_used_s: tuple[float, ...]
    gpu_busy_s: tuple[float, ...]
    gpu_work_s: tuple[float, ...]
    gpu_memory_s: tuple[float, ...]


class SimulatedMachine:
    """Cores, memory, link and GPUs of one node."""

    def __init__(self, kind: NodeType, truth: InterferenceWorld, now_s: float) -> None:
        self.type = kind
        self.gpus = [GpuLoad(kind.gpu_model, kind.gpu_memory_mib, truth) for _ in range(kind.gpus)]
        self.cores_used = 0.0
        self.memory_used_mib = 0.0
        self.since_s = now_s
        self._at_s = now_s
        self._cores_s = 0.0
        self._memory_s = 0.0
        self._gpu_memory_s = [0.0] * kind.gpus
        self._link_free_s = now_s
        self._link_busy_s = 0.0
        for gpu in self.gpus:
            gpu.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Let time pass for cores and memories; each GPU's runs have their own ``advance``."""
        passed_s = now_s - self._at_s
        if passed_s <= 0.0:
            return
        self._at_s = now_s
        self._cores_s += passed_s * self.cores_used
        self._memory_s += passed_s * min(1.0, self.memory_used_mib / self.type.memory_mib)
        for place, gpu in enumerate(self.gpus):
            if gpu.runs:
                self._gpu_memory_s[place] += passed_s * min(
                    1.0, gpu.memory_used_mib / gpu.memory_mib
                )

    def receive(self, now_s: float, megabytes: float) -> float:
        """Plan a transfer after those in progress; returns when it is over."""
        takes_s = megabytes / LINK_MB_PER_S
        self._link_free_s = max(self._link_free_s, now_s) + takes_s
        self._link_busy_s += takes_s
        return self._link_free_s

    def totals(self, now_s: float) -> Totals:
        """The integrals up to now."""
        self.advance(now_s)
        for gpu in self.gpus:
            gpu.advance(now_s)
        return Totals(
            now_s,
            self._cores_s,
            self._memory_s,
            self._link_busy_s - max(0.0, self._link_free_s - now_s),
            tuple(gpu.used_s for gpu in self.gpus),
            tuple(gpu.busy_s for gpu in self.gpus),
            tuple(gpu.work_s for gpu in self.gpus),
            tuple(self._gpu_memory_s),
        )
