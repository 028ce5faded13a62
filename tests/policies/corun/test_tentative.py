"""What is chosen counts immediately, and what fits agrees with the core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from hrm.pipelines.core.feasibility import CAPS, Caps, refusal
from hrm.pipelines.core.model import Device, NodeView, StartDecision
from hrm.pipelines.policies.corun.tentative import Tentative
from tests.policies.corun.worlds import Known, gpu, node_view, subtask, views

LOADED = Known(features={"edges": [0.4] * 8}, gpu_memory_mib={"edges": 3000.0}, memory_mib=1000.0)


@settings(max_examples=100, deadline=None)
@given(view=views())
def test_it_is_the_cores_rule(view: NodeView) -> None:
    free = Tentative(view, CAPS)
    for one in view.ready:
        for device, numbers in ((Device.CPU, range(5)), (Device.GPU, range(6))):
            for number in numbers:
                assert free.fits(one, device, number) == (not refusal(view, one, device, number))


def test_what_is_left_shrinks_with_every_start() -> None:
    ready = [subtask("edges", task=f"t{n}") for n in range(4)]
    view = node_view(ready, LOADED, idle=[0], cores=2, gpus=[gpu(3)], memory_free_mib=3500)
    free = Tentative(view, CAPS)
    free.take(ready[0], Device.CPU, 0)
    assert not free.fits(ready[1], Device.CPU, 0), "the core is taken"
    assert not free.fits(ready[0], Device.GPU, 3), "it has started"
    assert not free.fits(ready[1], Device.GPU, 0), "there is no GPU 0"
    free.take(ready[1], Device.GPU, 3)
    free.take(ready[2], Device.GPU, 3)
    assert not free.fits(ready[3], Device.GPU, 3), "its memory"
    assert (free.gpus[0].memory_used_mib, free.gpus[0].remaining_s) == (6000.0, 4.0)
    assert free.gpus[0].utilisation == pytest.approx(0.8)
    assert free.memory_free_mib == 500
    assert free.left() == [ready[3]]
    assert free.starts[2] == StartDecision(ready[2].key, Device.GPU, 3)


def test_one_that_needed_more_than_estimated_is_charged_more() -> None:
    one = replace(subtask("edges"), gpu_memory_mib=7000.0)
    free = Tentative(node_view([one], LOADED, gpus=[gpu(0), gpu(1, running=["edges"])]), CAPS)
    assert free.fits(one, Device.GPU, 0)
    assert not free.fits(one, Device.GPU, 1)
    free.take(one, Device.GPU, 0)
    assert free.gpus[0].memory_used_mib == 7000.0


def test_waits_count_loads_and_slots() -> None:
    one = subtask("edges")
    full = gpu(0, running=["edges"])
    single = Tentative(node_view([one], LOADED, gpus=[full]), Caps(co_runners_max=1))
    assert (single.wait_s(one, full), single.work_s(one.row, full)) == (4.0, 4.0)
    shared = Tentative(node_view([one], LOADED, gpus=[full]), CAPS)
    assert shared.wait_s(one, full) == 0.0
    assert shared.work_s(one.row, full) == pytest.approx(0.4 * 4.0)
