"""The watchdog: how rarely it is wrong, and how soon it is right.

Ratios are log-normal (0.5), so that their 95th percentile is 2.3 times their median.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hrm.policies.guard import GuardBounds, GuardMode
from hrm.policies.watchdog import Watchdog, rank_p, tail_p

LIVES, ENDS = 200, 3_000
BOUNDS = GuardBounds()
ON = 1.0 - BOUNDS.reference_share
CANARY = GuardMode.CANARY_50.share


def made(**changes: float) -> Watchdog:
    bounds = dataclasses.replace(BOUNDS, **changes)  # type: ignore[arg-type]  # by name
    return Watchdog(
        factor=bounds.watch_factor,
        span=bounds.watch_span,
        every=bounds.watch_every,
        samples_min=bounds.samples_min,
        false_alarms=bounds.watch_false_alarms,
        ratio_max=bounds.failed_ratio,
    )


def found_after(
    seed: int, share: float, *, worse: float = 1.0, loads: Sequence[float] = (1.0,), each: int = 1
) -> int | None:
    """How many ends it took to find a policy that is ``worse`` times as slow; None: it was not.
    ``loads``: of equal parts of the life; ``each``: ends of one draw, which are all alike."""
    random = np.random.default_rng(seed)
    arms = random.random(ENDS) < share
    ratios = random.lognormal(0.0, 0.5, ENDS)
    dog = made()
    for number in range(ENDS):
        draw = number // each
        drawn = bool(arms[draw])
        load = loads[number * len(loads) // ENDS]
        ratio = float(ratios[draw]) * load * (worse if drawn else 1.0)
        if dog.observed(ratio, f"draw-{draw}", drawn=drawn):
            return number + 1
    return None


def lives(share: float, **life: float | Sequence[float]) -> Iterator[int | None]:
    return (found_after(seed, share, **life) for seed in range(LIVES))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize("share", [ON, CANARY])
@pytest.mark.parametrize("loads", [(1.0,), (1.0, 1.5, 3.0, 0.5)])
def test_a_policy_like_the_heuristic_stays_whatever_the_load_does(
    share: float, loads: Sequence[float]
) -> None:
    """The stated rate holds for one that is just within what is tolerated; one that is exactly
    alike is further away from it."""
    wrong = sum(found is not None for found in lives(share, worse=BOUNDS.watch_factor, loads=loads))
    assert wrong <= BOUNDS.watch_false_alarms * LIVES


def test_ends_of_one_draw_are_no_evidence_of_their_own() -> None:
    wrong = sum(found is not None for found in lives(CANARY, each=30))
    assert wrong <= BOUNDS.watch_false_alarms * LIVES


@pytest.mark.parametrize(
    ("share", "worse", "most"),
    [(ON, 2.0, 700), (ON, 1.5, 2_000), (CANARY, 2.0, 200), (CANARY, 1.5, 400)],
)
def test_a_worse_one_is_found(share: float, worse: float, most: int) -> None:
    """In nine lives of ten within this many ends."""
    found = [ENDS + 1 if x is None else x for x in lives(share, worse=worse)]
    assert float(np.percentile(found, 90)) <= most


def users_life(
    seed: int, *, share: float, worse: float, fails: float = 0.0, hostile: bool = False
) -> bool:
    """Four users with tasks of different lengths, one of whom may let his fail as he likes: where
    the learned policy has placed them, and no others. Was it rolled back?"""
    random, dog = np.random.default_rng(seed), made()
    for number in range(ENDS):
        user = int(random.integers(4))
        drawn = bool(random.random() < share)
        ratio = float(random.lognormal(0.4 * user, 0.5)) * (worse if drawn else 1.0)
        failed = drawn and bool(random.random() < fails)
        if hostile and user == 0:
            failed, ratio = drawn, 0.5
        if dog.observed(ratio, str(number), drawn=drawn, user=f"user-{user}", failed=failed):
            return True
    return False


@pytest.mark.parametrize("share", [ON, CANARY])
def test_a_user_who_lies_does_not_raise_the_rate_of_false_alarms(share: float) -> None:
    wrong = sum(
        users_life(seed, share=share, worse=BOUNDS.watch_factor, hostile=True) for seed in range(20)
    )
    assert wrong == 0


@pytest.mark.parametrize(("worse", "fails"), [(1.5, 0.0), (1.0, 0.1)])
def test_what_is_worse_for_several_users_is_found(worse: float, fails: float) -> None:
    found = sum(users_life(seed, share=CANARY, worse=worse, fails=fails) for seed in range(20))
    assert found >= 16


def test_tasks_that_fail_wherever_they_run_do_not_hide_those_of_others() -> None:
    """A fifth of all ends are failures of one user, on both sides alike."""
    random, dog = np.random.default_rng(4), made()
    for number in range(ENDS):
        drawn = bool(random.random() < CANARY)
        by_bob = number % 5 == 0
        if dog.observed(
            float(random.lognormal(0.0, 0.5)),
            str(number),
            drawn=drawn,
            user="bob" if by_bob else f"user-{number % 3}",
            failed=by_bob or (drawn and bool(random.random() < 0.15)),
        ):
            return
    pytest.fail("three users lose a seventh of their tasks to it")


def test_nobody_drives_out_the_ends_of_others() -> None:
    dog = made(watch_span=100)
    for number in range(350):
        dog.observed(2.0, f"a{number}", drawn=number % 2 == 0, user="ada") if number < 40 else None
        dog.observed(1.0, f"b{number}", drawn=number % 2 == 0, user="bob")
    assert dog.means() == pytest.approx((1.4, 1.4))
    for number in range(150):
        dog.observed(1.0, f"c{number}", drawn=number % 2 == 0, user="bob")
    assert dog.means() == (1.0, 1.0), "what is of four spans ago is compared no longer"


def test_one_that_turns_bad_late_is_found() -> None:
    dog, random = made(), np.random.default_rng(1)
    arms = random.random(20_000) < ON
    for number, ratio in enumerate(random.lognormal(0.0, 0.5, 20_000)):
        worse = 2.0 if arms[number] and number > 10_000 else 1.0
        if dog.observed(float(ratio) * worse, str(number), drawn=bool(arms[number])):
            break
    assert 10_000 < number < 14_000


def test_only_the_latest_are_compared() -> None:
    dog = made(watch_span=100)
    for number in range(300):
        dog.observed(1.0 if number < 200 else 3.0, str(number), drawn=number % 2 == 0)
    assert dog.means() == (3.0, 3.0)
    assert (dog.compared, dog.reference_compared) == (150, 150)
    dog.forget()
    assert np.isnan(dog.p95()).all()


@pytest.mark.parametrize(("m", "n"), [(20, 20), (8, 60), (60, 8)])
def test_the_test_by_rank_is_never_bolder_than_the_exact_one_where_it_decides(
    m: int, n: int
) -> None:
    """Below 1e-4, where a life's comparisons are."""
    random, seen = np.random.default_rng(m), 0
    for shift in np.linspace(0.5, 3.0, 60):
        ours, theirs = random.normal(shift, 1.0, m), random.normal(0.0, 1.0, n)
        exact = stats.mannwhitneyu(ours, theirs, alternative="greater", method="exact").pvalue
        if exact < 1e-4:
            seen += 1
            assert rank_p((ours, theirs)) >= exact
    assert seen > 10


SIDE = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.3]), min_size=1, max_size=30)


@given(ours=SIDE, theirs=SIDE)
def test_the_test_by_tail_is_hypergeometric(ours: list[float], theirs: list[float]) -> None:
    one, other = np.array(ours), np.array(theirs)
    both = np.sort(np.concatenate((one, other)))
    border = both[int(np.floor(0.9 * (len(both) - 1)))]
    above = np.greater if border < both[-1] else np.greater_equal
    tail = int(above(both, border).sum())
    expected = stats.hypergeom.cdf(int(above(other, border).sum()), len(both), tail, len(other))
    assert tail_p((one, other)) == pytest.approx(expected, rel=1e-8)


@given(ours=SIDE, theirs=SIDE)
def test_what_is_all_alike_is_no_difference(ours: list[float], theirs: list[float]) -> None:
    one, other = np.full(len(ours), 1.0), np.full(len(theirs), 1.0)
    assert rank_p((one, other)) >= 0.5 and tail_p((one, other)) == pytest.approx(1.0)
    assert 0.0 <= rank_p((np.array(ours), np.array(theirs))) <= 1.0
