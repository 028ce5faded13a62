"""Several executors on one GPU: a model of their waiting for each other.

A task on a GPU goes through four stages, over and over: copy in (E^hd, bus), kernel (E^g, GPU),
copy out (E^dh, bus), work on the CPU (E^c). Alone it leaves the GPU idle in three of them. With
others, one task's kernel runs while another copies or computes, until one of the servers is always
busy: then the next executor adds nothing. The servers are the kernel engine and the copy engines of
each GPU, each used by one at a time, and the cores of the node; a task is admitted to a GPU only
while the device memory of all there fits.

Two results: ``throughput_bound``, an upper bound for any schedule; and ``simulate``, which plays
the stages as discrete events. GPU tasks have priority over CPU tasks wherever both want a core.

Limits: a kernel takes as long with others as alone, copies too, and switching is free. Real GPUs
are slower than that, and ``benchmarks.paper.gpu_sharing`` shows by how much.

Source: HRM paper, sections 3.2 (stages, sharing), 6.2.4 and 6.2.5 (what it is checked against).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hrm.errors import InvalidRequest

__all__ = ["CpuWork", "GpuWork", "Machine", "Stages", "Usage", "simulate", "throughput_bound"]

_GPU_FIRST, _CPU_LATER = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds of one cycle: E^hd, E^g, E^dh, E^c."""

    copy_in_s: float
    kernel_s: float
    copy_out_s: float
    cpu_s: float

    @property
    def cycle_s(self) -> float:
        return self.copy_in_s + self.kernel_s + self.copy_out_s + self.cpu_s

    @classmethod
    def measured(
        cls, cycle_s: float, gpu_busy: float, copy_in_s: float = 0.0, copy_out_s: float = 0.0
    ) -> Stages:
        """From one executor alone: ``gpu_busy`` is the part of the cycle its kernel runs. What
        is neither kernel nor copy is CPU work.

        Raises:
            InvalidRequest: less than nothing is left for the CPU.
        """
        kernel_s = gpu_busy * cycle_s
        cpu_s = cycle_s - kernel_s - copy_in_s - copy_out_s
        if not (cycle_s > 0 and 0 <= gpu_busy <= 1 and cpu_s >= 0):
            raise InvalidRequest(
                f"a cycle of {cycle_s:g} s with the GPU busy for {gpu_busy:g} of it and copies of "
                f"{copy_in_s + copy_out_s:g} s leaves {cpu_s:g} s for the CPU"
            )
        return cls(copy_in_s=copy_in_s, kernel_s=kernel_s, copy_out_s=copy_out_s, cpu_s=cpu_s)

    def stretched(self, factor: float) -> Stages:
        """Every stage ``factor`` times as long."""
        return Stages(
            copy_in_s=factor * self.copy_in_s,
            kernel_s=factor * self.kernel_s,
            copy_out_s=factor * self.copy_out_s,
            cpu_s=factor * self.cpu_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node. ``device_mib``: memory of each of its ``gpus``."""

    cores: int
    gpus: int = 1
    device_mib: int = 0
    copy_engines: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWork:
    """An executor on GPU number ``gpu``, for ``cycles`` cycles.

    ``spins``: it polls for its copies and kernels, and so holds a core for the whole cycle (CUDA's
    default where cores are plenty); else it holds one while it copies and in E^c.
    """

    stages: Stages
    cycles: int
    device_mib: int = 0
    gpu: int = 0
    spins: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWork:
    """A slot of a CPU job: ``cpu_s`` on a core, then ``other_s`` without one (disk, network)."""

    cpu_s: float
    other_s: float
    cycles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run used. ``kernels`` and ``buses``: mean busy part over the GPUs; ``cores``: of all.
    ``gpu_cycles``: done; ``device_mib_max``: most in use on one GPU at once."""

    elapsed_s: float
    gpu_cycles: int
    kernels: float
    buses: float
    cores: float
    device_mib_max: int


def throughput_bound(stages: Stages, executors: int, machine: Machine, work: GpuWork) -> float:
    """Cycles a second that ``executors`` like ``work``, spread evenly, cannot exceed.

    The least of: each cycle runs without waiting; kernel engines, copy engines and cores are always
    busy. Executors that do not fit into device memory do not count.
    """
    per_gpu = math.ceil(executors / machine.gpus)
    if work.device_mib:
        per_gpu = min(per_gpu, machine.device_mib // work.device_mib)
    together = min(executors, per_gpu * machine.gpus)
    copies_s = stages.copy_in_s + stages.copy_out_s
    core_s = stages.cycle_s if work.spins else copies_s + stages.cpu_s
    return min(
        together / stages.cycle_s,
        _rate(machine.gpus, stages.kernel_s),
        _rate(machine.gpus * machine.copy_engines, copies_s),
        _rate(machine.cores, core_s),
    )


def _rate(servers: int, seconds: float) -> float:
    return servers / seconds if seconds else math.inf


_Step: TypeAlias = "tuple[str, _Server | None, float]"
_Process: TypeAlias = Generator[_Step, None, None]


class _Server:
    """``capacity`` like servers with one queue, by priority and then arrival.

    Invariant: no process waits while one is free. ``busy_s`` counts up to ``at_s``.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free = capacity
        self.waiting: list[tuple[int, int, _Process]] = []
        self.busy_s = self.at_s = 0.0

    def pass_time(self, now: float) -> None:
        self.busy_s += (self.capacity - self.free) * (now - self.at_s)
        self.at_s = now


class _World:
    def __init__(self, machine: Machine, draw: Callable[[float], float]) -> None:
        self.now = 0.0
        self.draw = draw
        self.cores = _Server(machine.cores)
        self.kernels = [_Server(1) for _ in range(machine.gpus)]
        self.buses = [_Server(machine.copy_engines) for _ in range(machine.gpus)]
        self.device_mib = [0] * machine.gpus
        self.device_mib_max = 0
        self.gpu_cycles = 0
        self._limit_mib = machine.device_mib
        self._outside: list[list[GpuWork]] = [[] for _ in range(machine.gpus)]
        self._queue: list[tuple[float, int, _Process, int]] = []
        self._order = itertools.count()

    # --- the event loop -------------------------------------------------------------------------

    def begin(self, process: _Process, priority: int) -> None:
        heapq.heappush(self._queue, (self.now, next(self._order), process, priority))

    def run(self, until_s: float) -> None:
        while self._queue and self._queue[0][0] <= until_s:
            self.now, _, process, priority = heapq.heappop(self._queue)
            self._step(process, priority)
        if math.isfinite(until_s):
            self.now = until_s
        for server in (self.cores, *self.kernels, *self.buses):
            server.pass_time(self.now)

    def _step(self, process: _Process, priority: int) -> None:
        """Continue a process until it has to wait, for a server or for time to pass."""
        for what, server, seconds in process:
            if what == "pass":
                at_s = self.now + seconds
                heapq.heappush(self._queue, (at_s, next(self._order), process, priority))
                return
            assert server is not None
            if what == "take":
                if not server.free:
                    entry = (priority, next(self._order), process)
                    heapq.heappush(server.waiting, entry)
                    return
                server.pass_time(self.now)
                server.free -= 1
            elif server.waiting:  # passed directly to the next
                next_priority, _, waiter = heapq.heappop(server.waiting)
                self.begin(waiter, next_priority)
            else:
                server.pass_time(self.now)
                server.free += 1

    # --- what processes do ----------------------------------------------------------------------

    def admit(self, work: GpuWork) -> None:
        """Admit an executor to its GPU, now or when the memory of others is free."""
        self._outside[work.gpu].append(work)
        self._admit_all(work.gpu)

    def _admit_all(self, gpu: int) -> None:
        outside = self._outside[gpu]
        while outside:
            used_mib = self.device_mib[gpu] + outside[0].device_mib
            if self._limit_mib and used_mib > self._limit_mib:
                return
            self.device_mib[gpu] = used_mib
            self.device_mib_max = max(self.device_mib_max, used_mib)
            self.begin(self._gpu(outside.pop(0)), _GPU_FIRST)

    def _gpu(self, work: GpuWork) -> _Process:
        stages, bus, kernel = work.stages, self.buses[work.gpu], self.kernels[work.gpu]
        for _ in range(work.cycles):
            if work.spins:
                yield ("take", self.cores, 0.0)
            for server, seconds in (
                (bus, stages.copy_in_s),
                (kernel, stages.kernel_s),
                (bus, stages.copy_out_s),
            ):
                yield from self._on_device(server, seconds, work.spins or server is kernel)
            if not work.spins:
                yield ("take", self.cores, 0.0)
            yield ("pass", None, self.draw(stages.cpu_s))
            yield ("give", self.cores, 0.0)
            self.gpu_cycles += 1
        self.device_mib[work.gpu] -= work.device_mib
        self._admit_all(work.gpu)

    def _on_device(self, server: _Server, seconds: float, without_core: bool) -> _Process:
        """One stage on an engine; with a core of its own where it copies and does not spin."""
        yield ("take", server, 0.0)
        if not without_core:
            yield ("take", self.cores, 0.0)
        yield ("pass", None, self.draw(seconds))
        if not without_core:
            yield ("give", self.cores, 0.0)
        yield ("give", server, 0.0)

    def cpu(self, work: CpuWork) -> _Process:
        for _ in range(work.cycles):
            yield ("take", self.cores, 0.0)
            yield ("pass", None, self.draw(work.cpu_s))
            yield ("give", self.cores, 0.0)
            yield ("pass", None, self.draw(work.other_s))


def simulate(
    machine: Machine,
    gpu_work: Sequence[GpuWork],
    cpu_work: Sequence[CpuWork] = (),
    *,
    variation: float = 0.0,
    seed: int = 0,
    until_s: float = math.inf,
) -> Usage:
    """Play the stages of all executors from time 0 until all are done, or until ``until_s``.

    ``variation``: standard deviation over mean of every stage's time; 0: always the same, 1: as
    irregular as an exponential distribution. One seed, one result.

    Raises:
        InvalidRequest: an executor requests a GPU that does not exist, or more than its memory.
    """
    for work in gpu_work:
        if not 0 <= work.gpu < machine.gpus:
            raise InvalidRequest(f"there is no GPU {work.gpu}; the machine has {machine.gpus}")
        if machine.device_mib and work.device_mib > machine.device_mib:
            raise InvalidRequest(
                f"an executor wants {work.device_mib} MiB of a GPU of {machine.device_mib} MiB"
            )
    generator = np.random.default_rng(seed)
    shape = 1.0 / variation**2 if variation else 0.0

    def draw(mean_s: float) -> float:
        if not shape or not mean_s:
            return mean_s
        return float(generator.gamma(shape, mean_s / shape))

    world = _World(machine, draw)
    for work in gpu_work:
        world.admit(work)
    for slot in cpu_work:
        world.begin(world.cpu(slot), _CPU_LATER)
    world.run(until_s)
    elapsed_s = world.now

    def busy(servers: Sequence[_Server]) -> float:
        offered_s = elapsed_s * sum(server.capacity for server in servers)
        return sum(server.busy_s for server in servers) / offered_s if offered_s else 0.0

    return Usage(
        elapsed_s=elapsed_s,
        gpu_cycles=world.gpu_cycles,
        kernels=busy(world.kernels),
        buses=busy(world.buses),
        cores=busy([world.cores]),
        device_mib_max=world.device_mib_max,
    )
