"""What fits a GPU and a node, and that what is chosen is counted at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hrm.core.pipeline.feasible import Limits, Room, fits_gpu, joined
from hrm.core.pipeline.model import (
    Device,
    GpuView,
    NodeView,
    ReadySubtask,
    Row,
    Start,
    SubtaskKey,
    TaskId,
    Vector,
)

BOTH = frozenset({Device.CPU, Device.GPU})
GPU = GpuView(index=3, model="P4", memory_mib=8000, memory_used_mib=0, utilisation=0.0)


class Known:
    """Estimates of which all are equal but the memory on a K80."""

    def run_s(self, row: Row, device: Device) -> float:
        return 10.0 if device is Device.CPU else 4.0

    def speedup(self, row: Row) -> float:
        return 2.5

    def gpu_features(self, row: Row) -> Vector:
        return np.full(8, 0.4, np.float32)

    def memory_mib(self, row: Row) -> float:
        return 1000.0

    def gpu_memory_mib(self, row: Row) -> float:
        return 3000.0 if row.gpu_model == "P4" else 30_000.0


ROW = Row("edges", 1, "P4")


def test_a_gpu_takes_what_stays_below_its_limits_with_it_there() -> None:
    limits = Limits()
    assert fits_gpu(GPU, ROW, Known(), limits)
    assert fits_gpu(replace(GPU, memory_used_mib=4200), ROW, Known(), limits)
    assert not fits_gpu(replace(GPU, memory_used_mib=4201), ROW, Known(), limits)
    assert not fits_gpu(replace(GPU, utilisation=0.9, running=(ROW,)), ROW, Known(), limits)
    assert fits_gpu(replace(GPU, utilisation=0.9), ROW, Known(), limits), "only strangers run"
    assert not fits_gpu(replace(GPU, running=(ROW,) * 4), ROW, Known(), limits)


def test_what_counts_is_the_row_of_that_gpus_model() -> None:
    assert not fits_gpu(replace(GPU, model="K80", memory_mib=12_000), ROW, Known(), Limits())


def test_what_it_is_charged_counts_more_than_the_estimate() -> None:
    assert not fits_gpu(GPU, ROW, Known(), Limits(), charged_mib=7300)
    gpu = replace(GPU, model="K80", memory_mib=12_000)
    assert fits_gpu(gpu, ROW, Known(), Limits(), charged_mib=7300)
    assert joined(gpu, ROW, Known(), charged_mib=7300).memory_used_mib == 7300


def test_who_joins_is_counted_before_telemetry_shows_it() -> None:
    gpu = joined(joined(GPU, ROW, Known()), ROW, Known())
    assert (gpu.memory_used_mib, gpu.remaining_s, gpu.running) == (6000, 4.0, (ROW, ROW))
    assert gpu.utilisation == pytest.approx(0.8)
    assert joined(gpu, ROW, Known()).utilisation == 1.0


def test_room_shrinks_with_every_start() -> None:
    ready = [
        ReadySubtask(key=SubtaskKey(TaskId(f"t{i}"), "edges"), row=ROW, devices=BOTH, since=0.0)
        for i in range(4)
    ]
    view = NodeView(
        now=0.0,
        ready=ready,
        idle_cores=(0,),
        core_remaining_s=(0.0, 7.0),
        gpus=(GPU,),
        memory_free_mib=3500,
        estimates=Known(),
    )
    room = Room(view, Limits())
    room.take(ready[0], Device.CPU, 0)
    assert not room.fits(ready[1], Device.CPU, 0), "the core is taken"
    assert not room.fits(ready[0], Device.GPU, 3), "it has started"
    assert not room.fits(ready[1], Device.GPU, 0), "there is no GPU 0"
    room.take(ready[1], Device.GPU, 3)
    room.take(ready[2], Device.GPU, 3)
    assert not room.fits(ready[3], Device.GPU, 3)
    assert room.memory_free_mib == 500
    assert room.left() == [ready[3]]
    assert room.starts[2] == Start(ready[2].key, Device.GPU, 3)
