"""Profiles of GPU use, their images, and what may run together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.errors import InvalidRequest
from hrm.policies.shared_gpu.profiles import (
    MEMORY,
    CapacityRule,
    GpuUseProfile,
    ProfileTable,
    constant,
    images,
    of_samples,
    units,
)
from tests.policies.shared_gpu.printed import WIDTH, P, Q, S

ALIGNED = CapacityRule(memory="aligned")


def fits(rule: CapacityRule, running: list[tuple[GpuUseProfile, int]], one: GpuUseProfile) -> bool:
    return bool(rule.fitting(running, ProfileTable([one]))[0])


def test_the_images_of_the_printed_job() -> None:
    drawn = images(P.uses, horizon=5, width=WIDTH)
    rows = ["".join("1" if x else "0" for x in row) for resource in drawn for row in resource]
    assert rows == [
        "1000", "1100", "1110", "0000", "0000",
        "1000", "1110", "0000", "0000", "0000",
        "0000", "1100", "1100", "1110", "0000",
        *["1000"] * 5,
    ]  # fmt: skip


def test_an_image_leaves_out_what_is_beyond_its_edges() -> None:
    assert images(P.uses, horizon=2, width=2).shape == (4, 2, 2)
    assert images(3.0 * P.uses, horizon=5, width=WIDTH)[1, 1].all()


def test_what_deeprm_sees_of_a_job() -> None:
    assert units(constant(P, "max").uses, WIDTH).tolist() == [[3, 3, 3, 1]] * 5
    assert P.mean * WIDTH == pytest.approx([1.2, 0.8, 1.4, 1.0])
    assert units(constant(P, "mean", WIDTH).uses, WIDTH).tolist() == [[2, 1, 2, 1]] * 5


def test_memory_in_units_is_rounded_up() -> None:
    held = np.array([363.0, 5_135.0, 8_499.0, 11_755.0]) / 12_288.0
    assert units(held, 10).tolist() == [1, 5, 7, 10]


def test_what_fits_fits_in_every_tick() -> None:
    assert not fits(ALIGNED, [(S, 0)], P)  # tick 1 needs five units of memory
    assert fits(ALIGNED, [(P, 2)], S)
    assert not fits(ALIGNED, [(Q, 0)], P)  # tick 2 needs five units of the GPU


def test_alone_a_job_fits_though_use_times_length_exceeds_the_card() -> None:
    """The condition as it is printed would refuse it."""
    assert float(P.peak[0] * len(P)) > 1.0
    assert fits(ALIGNED, [], P)


def test_a_mean_hides_the_peak_at_which_memory_runs_out() -> None:
    assert fits(ALIGNED, [(constant(P, "mean", WIDTH), 1)], S)
    assert P.uses[1, MEMORY] + S.uses[0, MEMORY] > 1.0


def test_two_jobs_that_would_meet_if_one_were_slower_fit_only_when_aligned() -> None:
    late = GpuUseProfile([(0.1, 0.1, 0.1, 0.1)] * 3 + [(0.1, 0.8, 0.1, 0.1)])
    early = GpuUseProfile([(0.1, 0.5, 0.1, 0.1)] * 3)
    assert fits(ALIGNED, [(early, 0)], late)
    assert not fits(CapacityRule(), [(early, 0)], late)
    assert fits(CapacityRule(), [(early, 2)], late)


def test_greater_limits_are_for_what_only_slows_down() -> None:
    assert fits(CapacityRule((1.25, 1.0, 1.25, 1.25), memory="aligned"), [(Q, 0)], P)


@st.composite
def profiles(draw: st.DrawFn) -> GpuUseProfile:
    ticks = draw(st.integers(1, 6))
    use = st.floats(0.0, 0.6)
    return GpuUseProfile([[draw(use), draw(use), draw(use), draw(use)] for _ in range(ticks)])


@settings(max_examples=200, deadline=None)
@given(st.lists(profiles(), min_size=1, max_size=3), profiles(), profiles())
def test_every_part_of_a_set_that_fits_fits(
    running: list[GpuUseProfile], one: GpuUseProfile, other: GpuUseProfile
) -> None:
    """So that one start after another reaches every set."""
    held = [(each, 0) for each in running]
    for rule in (ALIGNED, CapacityRule()):
        if fits(rule, held, one) and fits(rule, [*held, (one, 0)], other):
            assert fits(rule, held, other)


def test_a_sample_is_the_maximum_within_its_tick_and_a_gap_repeats_what_was_before() -> None:
    made = of_samples(
        [0.0, 4.0, 9.9, 31.0],
        np.array([[10, 100, 1, 0], [50, 300, 0, 2], [20, 200, 0, 0], [80, 400, 0, 0]], float),
        [100.0, 1000.0, 10.0, 10.0],
        tick_s=10.0,
    )
    assert made.uses.tolist() == [
        [0.5, 0.3, 0.1, 0.2], [0.5, 0.3, 0.1, 0.2], [0.5, 0.3, 0.1, 0.2], [0.8, 0.4, 0.0, 0.0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "uses", [np.zeros((0, 4)), np.zeros((3, 3)), np.full((2, 4), np.nan), np.full((2, 4), -0.1)]
)
def test_what_is_no_profile_is_refused(uses: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match="record the job again"):
        GpuUseProfile(uses)


def test_samples_without_a_time_in_the_jobs_life_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="sample the job while it runs"):
        of_samples([], np.zeros((0, 4)), [1.0] * 4, tick_s=10.0)
    for at_s in (-1.0, float("nan"), 1e9):
        with pytest.raises(InvalidRequest):
            of_samples([at_s], np.zeros((1, 4)), [1.0] * 4, tick_s=10.0)
