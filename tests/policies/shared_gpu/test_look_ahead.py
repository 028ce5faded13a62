"""Looking ahead: what it may choose, what a decision may cost, and how good it is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.policies.shared_gpu import look_ahead
from hrm.policies.shared_gpu.heuristics import FastestTogether, GpuSharingView
from hrm.policies.shared_gpu.imagined import (
    GpuJobKinds,
    ImaginedRun,
    ProfileFit,
    StartsFastestTogether,
)
from hrm.policies.shared_gpu.interference import PairFactors
from hrm.policies.shared_gpu.look_ahead import LENGTH_MAX, LookAhead
from hrm.policies.shared_gpu.profiles import CapacityRule, GpuUseProfile, ProfileTable
from tests.policies.shared_gpu.printed import ALL, P, Q, S, U
from tests.policies.shared_gpu.views import shared_gpu_view, view_at_random

ALIGNED = CapacityRule(memory="aligned")
SEEDS = st.integers(0, 10_000)


def constant(use: float, ticks: int) -> GpuUseProfile:
    return GpuUseProfile(np.full((ticks, 4), use))


def test_what_ends_with_the_other_joins_it_in_place_of_what_slows_it_down() -> None:
    """Two wait next to one that runs; its partner slows neither, the other halves both."""
    half = constant(0.5, 10)
    factors = PairFactors(np.array([[1.0, 1.0, 0.5], [1.0, 1.0, 1.0], [0.5, 1.0, 1.0]]))
    waiting = [GpuUseProfile(half.uses), GpuUseProfile(half.uses)]
    view = shared_gpu_view(waiting, [(half, 0)], factors=factors, kinds=[0, 2, 1])
    assert LookAhead().choose(view) == 1


def test_it_waits_for_a_better_partner() -> None:
    """Together they would take longer than one after the other."""
    half = constant(0.5, 10)
    factors = PairFactors(np.array([[1.0, 0.5], [0.3, 1.0]]))
    view = shared_gpu_view([half], [(half, 2)], factors=factors, kinds=[0, 1])
    assert LookAhead().choose(view) is None


def test_a_least_gain_keeps_out_what_would_be_slowed_down() -> None:
    """Two at three quarters of their speed are done sooner than one after the other."""
    half = constant(0.5, 10)
    factors = PairFactors(np.full((1, 1), 0.75))
    view = shared_gpu_view([half] * 3, [(half, 0)], factors=factors, kinds=[0] * 4)
    assert LookAhead().choose(view) == 0
    assert LookAhead(gain_min=0.5).choose(view) == 0
    assert LookAhead(gain_min=0.51).choose(view) is None
    idle = shared_gpu_view([half] * 3, factors=factors, kinds=[0] * 3)
    assert LookAhead(gain_min=0.9).choose(idle) == 0


def test_of_equal_makespans_the_one_with_the_shorter_responses_is_taken() -> None:
    """Nothing fits together: every order has the same end, and the short one goes first."""
    jobs = [constant(0.9, 8), constant(0.9, 2), constant(0.9, 5)]
    assert LookAhead().choose(shared_gpu_view(jobs)) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_fits_no_idle_card_stays_out(known: bool) -> None:
    """It is imagined to wait for ever, whatever the others do."""
    large = GpuUseProfile(np.full((3, 4), 1.2))
    factors = PairFactors(np.full((3, 3), 0.9)) if known else None
    waiting = [large, constant(0.4, 5), constant(0.4, 3)]
    idle = shared_gpu_view(waiting, factors=factors, kinds=[0, 1, 2])
    assert idle.fits.tolist() == [False, True, True]
    assert LookAhead().choose(idle) in (1, 2)


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.integers(1, 12), st.booleans())
def test_it_starts_what_fits_and_leaves_no_idle_gpu_idle(
    seed: int, waiting: int, known: bool
) -> None:
    view, _ = view_at_random(np.random.default_rng(seed), waiting=waiting, known=known)
    place = LookAhead().choose(view)
    if place is None:
        assert view.running or not view.fits.any()
    else:
        assert view.fits[place]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
def test_one_view_has_one_decision_whatever_was_decided_before(seed: int, known: bool) -> None:
    rng = np.random.default_rng(seed)
    used = LookAhead()
    views = [view_at_random(rng, waiting=6, known=known)[0] for _ in range(3)]
    first = [used.choose(view) for view in views]
    assert [used.choose(view) for view in views] == first
    assert [LookAhead().choose(view) for view in views] == first


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
def test_the_order_of_jobs_that_are_alike_does_not_matter(seed: int, known: bool) -> None:
    """Which job has which place changes; the kinds at the places do not."""
    rng = np.random.default_rng(seed)
    view, numbers = view_at_random(rng, waiting=8, known=known)
    keys = [one.key for one in view.waiting]
    for kind in set(numbers):
        alike = [place for place, number in enumerate(numbers) if number == kind]
        for place, other in zip(alike, rng.permutation(alike), strict=True):
            keys[place] = int(other)
    renamed = [one._replace(key=key) for one, key in zip(view.waiting, keys, strict=True)]
    chosen = LookAhead().choose(view)
    assert LookAhead().choose(dataclasses.replace(view, waiting=renamed)) == chosen
    if chosen is not None:
        kind = numbers[chosen]
        fitting = [place for place, number in enumerate(numbers) if number == kind]
        assert chosen == fitting[0], "the oldest of its kind"


class Counted(ImaginedRun):
    """Counts starts and steps of all runs."""

    __slots__ = ()
    starts = 0
    passed = 0

    def start(self, kind: int) -> None:
        Counted.starts += 1
        super().start(kind)

    def advance(self) -> None:
        Counted.passed += 1
        super().advance()

    def copy(self) -> ImaginedRun:
        other = Counted.__new__(Counted)
        for name in ImaginedRun.__slots__:
            setattr(other, name, getattr(self, name))
        other.running, other.done = self.running.copy(), self.done.copy()
        other.waiting = self.waiting.copy()
        return other


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 300), st.booleans())
def test_what_a_decision_imagines_is_bounded(seed: int, waiting: int, known: bool) -> None:
    view, _ = view_at_random(np.random.default_rng(seed), waiting=waiting, known=known)
    Counted.starts = Counted.passed = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look_ahead, "ImaginedRun", Counted)
        place = LookAhead(starts_max=50, steps_max=200).choose(view)
    assert Counted.starts <= 50 + look_ahead.OPTIONS_MAX
    assert Counted.passed <= 200 + 2 * 8 * (look_ahead.OPTIONS_MAX + 1)
    assert place is None or view.fits[place]


def test_a_backlog_beyond_its_bound_is_decided_alike_by_what_comes_first() -> None:
    """Of five hundred jobs it imagines the first that start, and sees the better pair still."""
    half = [constant(0.5, 10) for _ in range(3)]
    factors = PairFactors(np.array([[1.0, 1.0, 0.4], [1.0, 1.0, 1.0], [0.4, 1.0, 1.0]]))
    many = [half[2], half[1]] * 250
    view = shared_gpu_view(many, [(half[0], 0)], factors=factors, kinds=[0, *[2, 1] * 250])
    assert LookAhead().choose(view) == 1


def test_profiles_that_are_too_long_leave_the_decision_to_the_first_rule() -> None:
    longest = [constant(0.4, LENGTH_MAX + 1), constant(0.4, 3)]
    view = shared_gpu_view(longest, [(constant(0.3, 4), 0)])
    assert LookAhead().choose(view) == FastestTogether().choose(view) == 0


def test_no_more_run_at_once_than_a_node_allows() -> None:
    tenth = constant(0.1, 4)
    kinds = GpuJobKinds(ProfileFit([tenth], CapacityRule()))
    ends = []
    for most in (1, 2, None):
        run = ImaginedRun(kinds, [range(4)], together_max=most)
        run.go_on(StartsFastestTogether(kinds), starts=4, steps=100)
        ends.append(run.last_end)
    assert ends == [16.0, 8.0, 4.0]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(["aligned", "stretched"]))
def test_fitting_over_a_life_is_fitting_after_each_tick(seed: int, memory: str) -> None:
    rng = np.random.default_rng(seed)
    rule = CapacityRule(tuple(rng.uniform(0.7, 1.5, size=4)), memory)  # type: ignore[arg-type]
    profiles = [
        GpuUseProfile(rng.uniform(0.0, 0.8, size=(int(rng.integers(1, 9)), 4))) for _ in range(4)
    ]
    table = ProfileTable(profiles)
    for one in profiles:
        each = np.array([rule.fitting([(one, done)], table) for done in range(len(one))])
        assert (rule.fitting_over_life(one, table) == each).all()


def test_the_printed_jobs_are_started_as_in_the_best_schedule() -> None:
    """S and Q at once, then P, for U fits none of them: 9 ticks, the optimum."""
    view: GpuSharingView = shared_gpu_view(list(ALL.values()), rule=ALIGNED)
    first = LookAhead().choose(view)
    assert first is not None and view.waiting[first].profile in (S, Q)
    left = [P, U, Q if view.waiting[first].profile is S else S]
    begun = shared_gpu_view(left, [(view.waiting[first].profile, 0)], rule=ALIGNED)
    assert LookAhead().choose(begun) == 2
