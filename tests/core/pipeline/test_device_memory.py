"""What the probability of too little device memory is, and what nodes do with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.pipelines.core.device_memory import PeakMemory, certain
from hrm.pipelines.core.dispatch import NodeBounds
from hrm.pipelines.core.feasibility import refusal
from hrm.pipelines.core.model import Device
from hrm.pipelines.core.node_messages import RunOutcome
from tests.core.pipeline.building import BOTH, GPU, Node, capacity, pipeline, subtask, task

PEAKS = st.builds(PeakMemory, st.floats(1, 1e5), st.floats(0, 1e8), st.floats(1, 1e6))


def test_the_probability_is_that_of_sums_drawn_at_random() -> None:
    one, other = PeakMemory(1000.0, 200.0**2), PeakMemory(3000.0, 100.0**2)
    rng = np.random.default_rng(1)
    sums = rng.normal(1000, 200, 200_000) + rng.normal(3000, 100, 200_000)
    for limit_mib in (3800.0, 4000.0, 4300.0):
        found = one.plus(other).exceeds(limit_mib)
        assert found == pytest.approx(float(np.mean(sums > limit_mib)), abs=0.005)


def test_what_is_certain_fits_or_does_not() -> None:
    assert [certain(500.0).exceeds(limit) for limit in (499.0, 500.0)] == [1.0, 0.0]


def test_nothing_is_expected_beyond_the_end_of_a_distribution() -> None:
    ends = PeakMemory(1000.0, 500.0**2, 1200.0)
    assert ends.exceeds(1199.0) > 0.3
    assert ends.exceeds(1200.0) == 0.0
    assert ends.plus(PeakMemory(1000.0, 500.0**2)).exceeds(2400.0) > 0.2, "the other has no end"


@given(one=PEAKS, other=PEAKS, limit=st.floats(0, 1e6), more=st.floats(0, 1e5))
def test_it_is_a_probability_that_falls_with_memory(
    one: PeakMemory, other: PeakMemory, limit: float, more: float
) -> None:
    both = one.plus(other)
    assert 0.0 <= both.exceeds(limit + more) <= both.exceeds(limit) <= 1.0
    raised = one.at_least(one.mean_mib + more)
    assert raised.mean_mib >= one.mean_mib and raised.exceeds(limit) >= one.exceeds(limit)


def two_on(peak: PeakMemory | None, *, greatest_mib: float, risk: float = 0.01) -> Node:
    """A node with a GPU that offers 7,200 MiB, after two tasks of one step have come."""
    bounds = NodeBounds(profiling=False, device_memory_risk=risk)
    node = Node(capacity(cores=0, gpus=1, gpu_memory_mib=8000.0), bounds=bounds)
    spec = pipeline(subtask("a", on=GPU))
    kind = spec.subtasks[0].kind
    node.estimates.gpu_memory_of_kind[kind] = greatest_mib
    if peak is not None:
        node.estimates.gpu_peaks[kind] = peak
    for name in ("one", "two"):
        node.place(task(name, spec))
    return node


def test_what_hardly_ever_peaks_together_runs_together() -> None:
    """Its greatest peaks do not fit twice; that both reach as much has a probability of 1e-6."""
    rare = PeakMemory(3000.0, 180.0**2)
    assert len(two_on(rare, greatest_mib=4000.0).running) == 2
    assert len(two_on(rare, greatest_mib=4000.0, risk=0.0).running) == 1
    assert len(two_on(None, greatest_mib=4000.0).running) == 1, "without a spread, as ever"


def test_what_may_well_run_out_of_memory_does_not_run_together() -> None:
    """The greatest peaks of a few runs fit twice; the next ones do not with 8 %."""
    spread = PeakMemory(3300.0, 300.0**2)
    node = two_on(spread, greatest_mib=3550.0)
    assert len(node.running) == 1
    (waiting,) = node.core.view(0.0).ready
    why = refusal(node.core.view(0.0), waiting, Device.GPU, 0)
    assert "7200 MiB with a probability of 7.9%, and 1.0% is allowed" in why
    assert len(two_on(spread, greatest_mib=3550.0, risk=0.1).running) == 2
    assert len(two_on(None, greatest_mib=3550.0).running) == 2


def test_an_estimate_keeps_nothing_from_an_idle_gpu() -> None:
    node = two_on(PeakMemory(9000.0, 3000.0**2), greatest_mib=9000.0)
    assert list(node.running) == ["one.a"]


def test_what_runs_counts_with_at_least_what_it_uses() -> None:
    node = two_on(PeakMemory(3300.0, 10.0**2), greatest_mib=3300.0)
    card = node.core.resources.cards[0]
    assert card.peaks().mean_mib == pytest.approx(6600.0)
    card.measured_mib = 7000.0
    assert card.peaks() == replace(card.peaks(), mean_mib=7000.0)


def test_a_run_that_ran_out_is_learned_with_what_it_had() -> None:
    node = Node(capacity(gpus=1))
    node.place(task("t", pipeline(subtask("a", on=BOTH, gpu_memory_mib=1000))))
    node.end("t.a", 1.0, RunOutcome.OUT_OF_GPU_MEMORY, "CUDA out of memory")
    ((row, had_mib),) = node.estimates.out_of_memory
    assert (row.kind, had_mib) == ("kind/a", 1000.0)
    reports = [one.timing for one in node.reports]
    assert [one.gpu_memory_reserved_mib for one in reports] == [1000.0]


def test_the_wait_of_a_node_has_a_high_quantile() -> None:
    node = Node(capacity(cores=1))
    node.place(task("t", pipeline(subtask("a"))))
    assert node.core.load(0.0).expected_wait_p90_s == node.core.load(0.0).expected_wait_s == 1.0
    node.estimates.deviation_s = 0.5
    node.place(task("u", pipeline(subtask("a"))))
    load = node.core.load(0.0)
    assert load.expected_wait_s == pytest.approx(2.0)
    assert load.expected_wait_p90_s == pytest.approx(2.0 + 1.2816 * 0.5 * math.sqrt(2.0))
    assert "2.0 s is there, nine times in ten for at most 2.9 s" in load.wait_in_words()
    assert replace(load, expected_wait_p90_s=0.0).wait_in_words() == "", "an older worker"
