"""Node views for tests: estimates that are known, views at random, and a node that runs them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.feasibility import Caps, gpu_need_mib, host_need_mib
from hrm.pipelines.core.model import (
    Device,
    Estimates,
    GpuView,
    NodePolicy,
    NodeView,
    ReadySubtask,
    Row,
    StartDecision,
    SubtaskKey,
    TaskId,
    Vector,
)

BOTH = frozenset({Device.CPU, Device.GPU})
KINDS = {
    "edges": BOTH,
    "faces": BOTH,
    "track": frozenset({Device.CPU}),
    "batch": frozenset({Device.GPU}),
}
"""Kinds of random views, with their versions."""


class Known:
    """Estimates from dictionaries by kind; what is not in them has a plain default."""

    def __init__(
        self,
        cpu_s: Mapping[str, float] | None = None,
        gpu_s: Mapping[str, float] | None = None,
        features: Mapping[str, Sequence[float]] | None = None,
        gpu_memory_mib: Mapping[str, float] | None = None,
        memory_mib: float = 100.0,
        gpu_use: Mapping[str, tuple[GpuUsePart, ...]] | None = None,
        runs_alone: int = 0,
        gpu_peaks: Mapping[str, PeakMemory] | None = None,
    ) -> None:
        self._cpu_s = cpu_s or {}
        self._gpu_s = gpu_s or {}
        self._features = features or {}
        self._gpu_memory_mib = gpu_memory_mib or {}
        self._memory_mib = memory_mib
        self._gpu_use = gpu_use or {}
        self._runs_alone = runs_alone
        self._gpu_peaks = gpu_peaks or {}

    def run_s(self, row: Row, device: Device) -> float:
        if device not in KINDS.get(row.kind, BOTH):
            return math.inf
        return (self._cpu_s if device is Device.CPU else self._gpu_s).get(row.kind, 4.0)

    def speedup(self, row: Row) -> float:
        versions = KINDS.get(row.kind, BOTH)
        if versions != BOTH:
            return 0.0 if Device.CPU in versions else math.inf
        return self.run_s(row, Device.CPU) / self.run_s(row, Device.GPU)

    def gpu_features(self, row: Row) -> Vector:
        return np.array(self._features.get(row.kind, [0.1] * 8), np.float32)

    def memory_mib(self, row: Row) -> float:
        return self._memory_mib

    def gpu_memory_mib(self, row: Row) -> float:
        return self._gpu_memory_mib.get(row.kind, 500.0)

    def run_deviation_s(self, row: Row, device: Device) -> float:
        return 0.0

    def gpu_memory_peak(self, row: Row) -> PeakMemory | None:
        return self._gpu_peaks.get(row.kind)

    def runs_alone(self, row: Row) -> int:
        return self._runs_alone

    def gpu_use(self, row: Row) -> tuple[GpuUsePart, ...]:
        return self._gpu_use.get(row.kind, ())


def constant_use(gpu: float, memory_mib: float = 500.0) -> tuple[GpuUsePart, ...]:
    return (GpuUsePart(gpu, memory_mib, gpu, 0.1),) * USE_PARTS


def subtask(kind: str, *, task: str = "t", since: float = 0.0, bucket: int = 1) -> ReadySubtask:
    return ReadySubtask(
        key=SubtaskKey(TaskId(task), kind),
        row=Row(kind, bucket, "P4"),
        devices=KINDS.get(kind, BOTH),
        since=since,
    )


def gpu(index: int = 0, *, running: Sequence[str] = (), utilisation: float = 0.0) -> GpuView:
    return GpuView(
        index=index,
        model="P4",
        memory_mib=8000.0,
        memory_used_mib=500.0 * len(running),
        utilisation=utilisation,
        running=tuple(Row(kind, 1, "P4") for kind in running),
        remaining_s=4.0 if running else 0.0,
    )


def node_view(
    ready: Sequence[ReadySubtask],
    estimates: Estimates,
    *,
    now: float = 0.0,
    idle: Sequence[int] = (),
    cores: int | None = None,
    gpus: Sequence[GpuView] = (),
    memory_free_mib: float = 10_000.0,
) -> NodeView:
    count = len(idle) if cores is None else cores
    return NodeView(
        now=now,
        ready=ready,
        idle_cores=tuple(idle),
        core_remaining_s=tuple(0.0 if core in idle else 5.0 for core in range(count)),
        gpus=tuple(gpus),
        memory_free_mib=memory_free_mib,
        estimates=estimates,
    )


@st.composite
def views(draw: st.DrawFn) -> NodeView:
    """Any node, with anything ready, from idle to full."""
    cores = draw(st.integers(0, 4))
    idle = draw(st.lists(st.integers(0, max(0, cores - 1)), unique=True)) if cores else []
    kinds = st.sampled_from(sorted(KINDS))
    ready = [
        subtask(kind, task=f"t{number}", since=draw(st.floats(0, 90)))
        for number, kind in enumerate(draw(st.lists(kinds, max_size=12)))
    ]
    gpus = [
        gpu(
            2 * number,
            running=draw(st.lists(st.sampled_from(["edges", "faces", "batch"]), max_size=4)),
            utilisation=draw(st.floats(0, 1)),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    loads = st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8)
    estimates = Known(
        cpu_s={kind: draw(st.floats(0.1, 60)) for kind in KINDS},
        gpu_s={kind: draw(st.floats(0.1, 60)) for kind in KINDS},
        features={kind: draw(loads) for kind in KINDS},
        gpu_memory_mib={kind: draw(st.sampled_from([100.0, 3000.0, 9000.0])) for kind in KINDS},
        memory_mib=draw(st.sampled_from([10.0, 400.0])),
        gpu_use={
            kind: constant_use(draw(st.floats(0, 1)))
            for kind in draw(st.lists(st.sampled_from(["edges", "batch"]), unique=True))
        },
    )
    return node_view(
        ready,
        estimates,
        now=100.0,
        idle=sorted(idle),
        cores=cores,
        gpus=gpus,
        memory_free_mib=draw(st.floats(0, 2000)),
    )


def run_all(
    policy: NodePolicy,
    ready: Sequence[ReadySubtask],
    estimates: Known,
    *,
    cores: int = 1,
    gpus: int = 1,
) -> tuple[float, dict[str, tuple[Device, float]]]:
    """The makespan, and of each kind the device and the start, on a node without interference."""
    waiting = list(ready)
    running: list[tuple[float, int, StartDecision, Row]] = []
    began: dict[str, tuple[Device, float]] = {}
    now, turn = 0.0, 0
    while waiting or running:
        turn += 1
        assert turn < 100, f"{len(waiting)} never start"
        view = _view_of(now, waiting, running, estimates, cores, gpus)
        for start in policy.dispatch(view):
            one = next(one for one in waiting if one.key == start.key)
            waiting.remove(one)
            end = now + estimates.run_s(one.row, start.device)
            heapq.heappush(running, (end, turn * 100 + len(running), start, one.row))
            began[one.row.kind] = (start.device, now)
        now = heapq.heappop(running)[0]
        while running and running[0][0] <= now:
            heapq.heappop(running)
    return now, began


def started(view: NodeView, start: StartDecision) -> NodeView:
    """The view as it will be once ``start`` is carried out."""
    one = next(one for one in view.ready if one.key == start.key)
    estimates = view.estimates
    left = replace(
        view,
        ready=tuple(other for other in view.ready if other.key != start.key),
        memory_free_mib=view.memory_free_mib - host_need_mib(one, estimates),
    )
    if start.device is Device.CPU:
        idle = tuple(core for core in view.idle_cores if core != start.number)
        return replace(left, idle_cores=idle)
    load = float(estimates.gpu_features(one.row)[0])
    gpus = tuple(
        replace(
            each,
            memory_used_mib=each.memory_used_mib + gpu_need_mib(one, estimates),
            utilisation=min(1.0, each.utilisation + load),
            running=(*each.running, one.row),
        )
        if each.index == start.number
        else each
        for each in view.gpus
    )
    return replace(left, gpus=gpus)


def _view_of(
    now: float,
    waiting: Sequence[ReadySubtask],
    running: Sequence[tuple[float, int, StartDecision, Row]],
    estimates: Known,
    cores: int,
    gpus: int,
) -> NodeView:
    views = [gpu(number) for number in range(gpus)]
    busy_s = [0.0] * cores
    for end, _, start, row in running:
        if start.device is Device.CPU:
            busy_s[start.number] = end - now
        else:
            one = views[start.number]
            views[start.number] = replace(
                one,
                running=(*one.running, row),
                memory_used_mib=one.memory_used_mib + estimates.gpu_memory_mib(row),
                utilisation=one.utilisation + float(estimates.gpu_features(row)[0]),
                remaining_s=max(one.remaining_s, end - now),
            )
    return NodeView(
        now=now,
        ready=list(waiting),
        idle_cores=tuple(core for core in range(cores) if busy_s[core] == 0),
        core_remaining_s=tuple(busy_s),
        gpus=tuple(views),
        memory_free_mib=10_000.0,
        estimates=estimates,
    )


ONE_SLOT = Caps(co_runners_max=1)
