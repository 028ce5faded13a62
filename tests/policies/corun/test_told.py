"""What cores report to the estimates: any report of a run is taken in."""

from __future__ import annotations

import math

import pytest

from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.policies.corun import Stdm

CPU, GPU = frozenset({Device.CPU}), frozenset({Device.GPU})
ROW = Row("edges", 2, "P4")


def stdm_estimates(*declared: frozenset[Device]) -> Stdm:
    estimates = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    for devices in declared:
        estimates.declare(ROW, SubtaskSpec(name="a", kind=ROW.kind, devices=devices))
    return estimates


@pytest.mark.parametrize("order", [(CPU, GPU), (GPU, CPU)])
def test_pipelines_that_share_a_kind_may_have_other_versions_of_it(
    order: tuple[frozenset[Device], ...],
) -> None:
    estimates = stdm_estimates(*order)
    estimates.observe_run(ROW, Device.GPU, 2.0, 100.0, 800.0, ())
    estimates.observe_run(ROW, Device.CPU, 6.0, 100.0, 0.0, ())
    assert estimates.gpu_memory_mib(ROW) == pytest.approx(800.0)
    assert estimates.speedup(ROW) == pytest.approx(3.0)


def test_a_run_on_a_core_that_used_a_gpu_nevertheless_teaches_no_device_memory() -> None:
    estimates = stdm_estimates(CPU)
    estimates.observe_run(ROW, Device.CPU, 6.0, 100.0, 800.0, ())
    assert estimates.run_s(ROW, Device.CPU) == pytest.approx(6.0)
    assert estimates.run_s(ROW, Device.GPU) == math.inf


def test_kinds_that_went_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrm.pipelines.policies.corun.subtask_estimates.ROWS_MAX", 10)
    stdm = Stdm(memory_mib=32_000)
    for number in range(50):
        stdm.observe(Row(f"k{number}", 0, ""), "cpu", 0.5)
    assert len(stdm.entries) == len(stdm._of_kind) == 10
