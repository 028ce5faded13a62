"""Quantiles of run times and of device memory: what is learned, bounded, shared and refused."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.errors import InvalidRequest
from hrm.pipelines.core.device_memory import OUT_OF_MEMORY_FACTOR
from hrm.pipelines.core.model import Device, Row, SubtaskSpec
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.estimate_entry import EstimateEntry
from hrm.pipelines.policies.corun.run_spreads import (
    BINS_MAX,
    PeakSpread,
    TimeSpread,
)
from hrm.pipelines.policies.corun.store import dump_estimates, load_estimates, merge_estimates
from hrm.pipelines.policies.corun.stored_spreads import add_spreads, spread_arrays

ROW = Row("edges", 1, "P4")
AS_FAST = dict.fromkeys(Device, 1.0)


def of_times(times_s: list[float]) -> TimeSpread:
    spread = TimeSpread()
    for time_s in times_s:
        spread = spread.observed(time_s)
    return spread


def of_peaks(peaks_mib: list[float]) -> PeakSpread:
    spread = PeakSpread()
    for peak_mib in peaks_mib:
        spread = spread.observed(peak_mib)
    return spread


def stdm() -> Stdm:
    made = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    made.declare(ROW, SubtaskSpec(name="a", kind=ROW.kind, devices=frozenset(Device)))
    return made


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_cover_what_they_state(share: float) -> None:
    """Also of times with a long tail that are not log-normal."""
    rng = np.random.default_rng(3)
    times_s = np.where(rng.random(600) < 0.85, rng.uniform(1, 2, 600), rng.uniform(8, 12, 600))
    at_most_s = of_times(times_s[:300].tolist()).quantile_s(share)
    assert np.mean(times_s[300:] <= at_most_s) == pytest.approx(share, abs=0.05)


def test_one_run_has_quantiles_around_it_and_many_like_it_narrow_them() -> None:
    once, often = of_times([10.0]), of_times([10.0] * 50)
    assert once.quantile_s(0.5) == pytest.approx(10.0)
    assert 12.0 < once.quantile_s(0.9) < 30.0
    assert 10.0 <= often.quantile_s(0.9) < 12.0
    assert often.deviation() < 0.2 < once.deviation()


def test_what_was_measured_long_ago_counts_no_more() -> None:
    spread = of_times([1.0] * 200 + [20.0] * 600)
    assert spread.quantile_s(0.5) == pytest.approx(20.0, rel=0.15)


def test_a_faster_device_shifts_all_quantiles() -> None:
    spread = of_times([8.0, 9.0, 7.5, 12.0, 8.5, 8.1, 30.0])
    for share in (0.1, 0.9):
        faster_s = spread.at_speed(4.0).quantile_s(share)
        assert faster_s == pytest.approx(spread.quantile_s(share) / 4.0)


@given(times_s=st.lists(st.floats(0.0, 1e9), min_size=1, max_size=200))
def test_any_times_give_bounded_spreads_whose_quantiles_rise(times_s: list[float]) -> None:
    spread = of_times(times_s)
    assert len(spread.bins) <= BINS_MAX and spread.runs == len(times_s)
    quantiles = [spread.quantile_s(share) for share in (0.01, 0.5, 0.9, 0.99)]
    assert quantiles == sorted(quantiles) and all(map(math.isfinite, quantiles))
    assert spread == of_times(times_s), "the same for the same runs"


def test_too_few_peaks_are_no_spread() -> None:
    assert of_peaks([500.0] * 4).peak() is None
    peak = of_peaks([450.0, 500.0, 550.0, 500.0, 480.0]).peak()
    assert peak is not None and peak.mean_mib == pytest.approx(500.0, rel=0.03)
    assert peak.most_mib == math.inf


def test_many_peaks_have_an_end() -> None:
    peak = of_peaks([400.0, 500.0, 600.0] * 10).peak()
    assert peak is not None and peak.most_mib == 600.0
    assert peak.exceeds(599.0) > 0.01 and peak.exceeds(600.0) == 0.0


@pytest.mark.parametrize("runs", [0, 1, 30, 300])
def test_running_out_of_memory_makes_it_more_probable(runs: int) -> None:
    before = of_peaks([500.0, 520.0, 480.0][:runs] * max(1, runs // 3))
    peak, after = before.peak(), before.ran_out(540.0).peak()
    assert after is not None, "one failure is reason enough"
    limit_mib = 560.0
    assert after.exceeds(limit_mib) > (0.0 if peak is None else peak.exceeds(limit_mib))
    assert after.most_mib >= 540.0 * OUT_OF_MEMORY_FACTOR
    assert before.ran_out(540.0).out_of_memory == 1


def test_the_table_learns_both_from_runs() -> None:
    known = stdm()
    assert known.gpu_memory_peak(ROW) is None and known.run_deviation_s(ROW, Device.GPU) == 0.0
    for peak_mib in (700.0, 800.0, 900.0, 750.0, 850.0):
        known.observe_run(ROW, Device.GPU, peak_mib / 100, 50.0, peak_mib)
    peak = known.gpu_memory_peak(ROW)
    assert peak is not None and peak.mean_mib == pytest.approx(800.0, rel=0.03)
    assert 0.5 < known.run_deviation_s(ROW, Device.GPU) < 3.0
    known.observe_run(ROW, Device.GPU, 90.0, 50.0, 800.0, (ROW,))
    spread = known.entries[ROW].spreads[Device.GPU]
    assert spread.runs == 5, "next to others its time says nothing"
    changes = known.changes
    known.observe_out_of_gpu_memory(ROW, 900.0)
    raised = known.gpu_memory_peak(ROW)
    assert known.changes > changes and raised is not None
    assert raised.exceeds(1000.0) > peak.exceeds(1000.0)


def test_nodes_share_them_at_their_own_speed() -> None:
    there, here = stdm(), stdm()
    for number in range(12):
        there.observe_run(ROW, Device.GPU, 4.0 + number % 3, 50.0, 800.0 + number)
    there.observe_out_of_gpu_memory(ROW, 900.0)
    merge_estimates(dump_estimates(there), here, {Device.CPU: 1.0, Device.GPU: 2.0})
    own, theirs = here.entries[ROW], there.entries[ROW]
    assert own.spreads[Device.GPU].quantile_s(0.9) == pytest.approx(
        theirs.spreads[Device.GPU].quantile_s(0.9) / 2.0, rel=1e-3
    )
    assert own.peak is not None and theirs.peak is not None
    assert astuple(own.peak) == pytest.approx(astuple(theirs.peak), rel=1e-6)
    assert own.peak.out_of_memory == 1


def test_of_two_the_one_of_more_runs_counts_and_is_sent_on() -> None:
    few, many = stdm(), stdm()
    for known, runs in ((few, 6), (many, 30)):
        for _ in range(runs):
            known.observe_run(ROW, Device.GPU, 4.0, 50.0, 100.0 * runs)
    before = many.entries[ROW]
    spread, peak = before.spreads[Device.GPU], before.peak
    merge_estimates(dump_estimates(few), many, AS_FAST)
    assert many.entries[ROW].peak == peak and many.entries[ROW].spreads[Device.GPU] == spread
    merge_estimates(dump_estimates(many), few, AS_FAST)
    taken = few.entries[ROW].peak
    assert taken is not None and peak is not None
    assert astuple(taken) == pytest.approx(astuple(peak), rel=1e-6)
    mark = few.changes
    few.observe_out_of_gpu_memory(ROW, 900.0)
    assert list(few.since(mark)) == [ROW]


def test_a_single_run_is_not_sent_but_one_that_ran_out_of_memory_is() -> None:
    there, here = stdm(), stdm()
    there.observe_run(ROW, Device.GPU, 4.0, 50.0, 800.0)
    merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.entries[ROW].spreads == {} and here.entries[ROW].peak is None
    fresh = stdm()
    fresh.observe_out_of_gpu_memory(ROW, 900.0)
    merge_estimates(dump_estimates(fresh), here, AS_FAST)
    assert here.gpu_memory_peak(ROW) is not None


def test_what_an_older_version_wrote_has_none_and_is_taken() -> None:
    there, here = stdm(), stdm()
    there.observe_run(ROW, Device.GPU, 4.0, 50.0, 800.0)
    there.entries[ROW].spreads.clear()
    there.entries[ROW].peak = None
    load_estimates(dump_estimates(there), here)
    assert here.run_s(ROW, Device.GPU) == pytest.approx(4.0)
    assert here.entries[ROW].spreads == {} and here.entries[ROW].peak is None


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    entry = EstimateEntry()
    for number in range(30):
        entry.ran_alone(Device.GPU, 2.0 + number % 7)
        entry.reached(500.0 + number)
    return spread_arrays([EstimateEntry(), entry])


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("spreads", 0, 2.0),
        ("spreads", 0, math.nan),
        ("spreads", 0, 0.5),
        ("spreads", 1, 7.0),
        ("spreads", 2, 0.0),
        ("spreads", 3, 1e9),
        ("spreads", 4, -1.0),
        ("spreads", 5, 1e6),
        ("spreads", 5, 45.0),
        ("spreads", 11, math.inf),
        ("spreads", 12, 99.0),
        ("spreads", 13, -5.0),
        ("spread_bins", 0, 200.0),
        ("spread_bins", 1, 0.0),
    ],
)
def test_what_cannot_have_been_written_is_refused(name: str, place: int, value: float) -> None:
    stored = arrays()
    good = [EstimateEntry(), EstimateEntry()]
    add_spreads(good, stored)
    assert good[1].spreads and good[1].peak
    stored[name].flat[place] = value
    with pytest.raises(ValueError, match="spread"):
        add_spreads([EstimateEntry(), EstimateEntry()], stored)


def test_a_message_that_is_cut_short_adds_nothing() -> None:
    there, here = stdm(), stdm()
    there.observe_run(ROW, Device.GPU, 4.0, 50.0, 800.0)
    there.entries[ROW].spreads[Device.GPU] = TimeSpread(1.0, 0.1, ((0, 1.0),) * (BINS_MAX + 1), 60)
    with pytest.raises(InvalidRequest, match="of which not all are there"):
        merge_estimates(dump_estimates(there), here, AS_FAST)
    assert here.entries == {}
