"""The rule of speed-ups, by examples that are computed by hand.

Where nothing is known of a job's scaling, a fifth of its epoch is serial: its second worker adds
2/3 of the speed of one, its third 10/21, its fourth 5/14.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import (
    PACE_REPORTS,
    PACE_REPORTS_MIN,
    PACES_MAX,
    ElasticityView,
    ElasticJobView,
)
from hrm.core.elasticity.elasticity_core import ElasticityCore
from hrm.core.elasticity.speed_up_rule import SpeedUpRule, has_learned, serial_share, speed_up
from tests.core.test_elasticity import A, report, started
from tests.policies.elasticity.views import cold, flat, job, view

EVEN = {1: 12.0, 2: 6.0, 4: 3.0}
"""Epoch times of a job that scales."""
SAME = {2: 12.0, 4: 12.0}
"""Of one that does not."""


def learns(name: str, **changes: object) -> ElasticJobView:
    return job(name, **{"change": 0.01, **changes})


@pytest.mark.parametrize(
    ("paces", "wanted"),
    [
        ({}, 0.2), ({3: 7.0}, 0.2), (EVEN, 0.0), (SAME, 1.0), ({1: 10.0, 2: 6.0}, 0.2),
        ({1: 10.0, 2: 6.0, 4: 4.0}, 0.2), ({2: 5.0, 4: 6.0}, 1.0), ({2: 10.0, 4: 4.0}, 0.0),
    ],
)  # fmt: skip
def test_the_serial_share_follows_from_epoch_times(paces: dict[int, float], wanted: float) -> None:
    assert serial_share(paces) == pytest.approx(wanted)


def test_a_worker_adds_less_the_more_there_are() -> None:
    unknown = [speed_up({}, n) for n in (1, 2, 3, 4)]
    assert unknown == pytest.approx([1.0, 2 / 3, 10 / 21, 5 / 14])
    assert [speed_up(EVEN, n) for n in (1, 2, 4)] == pytest.approx([1, 1, 1])
    assert [speed_up(SAME, n) for n in (1, 2, 4)] == pytest.approx([1, 0, 0])


@pytest.mark.parametrize(
    ("one", "gives"),
    [
        (learns("a", workers=4), True),  # 5/14 is less than 0.6
        (learns("a", workers=2), False),  # 2/3 is not
        (learns("a", workers=4, paces=EVEN), False),
        (learns("a", workers=2, paces=SAME), True),
        (flat("a", workers=2), True),  # half of 2/3
        (learns("a", workers=4, may_shrink=False), False),
        (learns("a", workers=4, epoch=91), False),  # 9 epochs are left
        (learns("a", workers=4, epoch=90), True),
    ],
)
def test_what_is_hardly_faster_by_a_worker_gives_it_to_what_waits(
    one: ElasticJobView, gives: bool
) -> None:
    wanted = Resize(0, -1) if gives else None
    assert SpeedUpRule().propose(view(one, free=0, waiting=1)) == wanted
    assert SpeedUpRule().propose(view(one, free=1, waiting=1)) is None, "that is free already"


def test_of_several_jobs_the_one_gives_that_loses_least_and_is_waited_for() -> None:
    rule, jobs = SpeedUpRule(), (learns("a", workers=3), learns("b", workers=4), learns("c"))
    assert rule.propose(view(*jobs, free=0, waiting=1)) == Resize(1, -1)
    bound = jobs[1]._replace(may_shrink=False)
    busy = view(jobs[0], bound, jobs[2], free=0, waiting=1)
    assert rule.propose(busy) is None
    assert rule.propose(busy._replace(waiting=2)) == Resize(0, -1)
    silent = view(jobs[0], bound._replace(silent=True), jobs[2], free=0, waiting=1)
    assert rule.propose(silent) == Resize(0, -1), "it might never report again"
    dear = view(jobs[0], jobs[1]._replace(points=40.0), jobs[2], free=0, waiting=1)
    assert rule.propose(dear) == Resize(0, -1), "4.8 points, less than 14.3, and than 0.6 of 20"


def test_what_is_free_goes_where_it_adds_most_points() -> None:
    rule = SpeedUpRule()
    jobs = learns("a", workers=3, epoch=20), learns("b"), flat("c", workers=1)
    assert rule.propose(view(*jobs, free=1)) == Resize(1, 1)
    assert rule.propose(view(jobs[0]._replace(points=20.0), *jobs[1:], free=1)) == Resize(0, 1)
    assert rule.propose(view(flat("a", paces=SAME), free=1)) is None, "it brings nothing"
    assert rule.propose(view(flat("a", paces=SAME, workers=1), free=1)) == Resize(0, 1)
    new = view(learns("a", may_grow=False), jobs[0], free=1)
    assert rule.propose(new) is None, "the job that is worth it most will take it"
    assert rule.propose(new._replace(free=2)) == Resize(1, 1)


def test_a_worker_moves_where_that_pays_for_its_cost() -> None:
    """Epochs of 12 s. One has 12.5 points of speed, of which the fourth worker is worth 1.8, half
    of 5/14; to the other, which has 10, a second one is worth 6.7."""
    rule, full = SpeedUpRule(), flat("a", workers=4, paces={4: 12.0})
    small = learns("b", workers=1)
    assert 9 * (20.0 / 3 - 25.0 / 14) * 12 < 2 * 22.5 * 12 < 10 * (20.0 / 3 - 25.0 / 14) * 12
    assert rule.propose(view(full, small, free=0)) == Resize(0, -1)
    few = full._replace(epoch=9)
    assert rule.propose(view(few, small, free=0)) is None, "it would not pay"
    assert rule.propose(view(few, small, free=0, grow_s=9.0, shrink_s=9.0)) == Resize(0, -1)
    assert rule.propose(view(full._replace(epochs_max=20), small, free=0)) == Resize(0, -1)
    assert rule.propose(view(full._replace(epochs_max=19), small, free=0)) is None
    assert rule.propose(view(full, small, free=0, shrink_s=15.0)) is None
    resized = full._replace(paces={3: 9.0})
    assert rule.propose(view(resized, small, free=0)) is None, "until its epochs have been seen"
    assert rule.propose(view(full, small._replace(since_resize=0), free=0)) is None
    assert rule.propose(view(full._replace(may_shrink=False), small, free=0)) is None
    assert rule.propose(view(full, free=0)) is None
    assert rule.propose(view(cold("a"), free=0)) is None


def test_what_does_not_pay_in_the_time_that_is_left_is_not_done() -> None:
    """A third worker is worth 10/7 of 10/3 * 5 points, and the last of three a third less than the
    first of one that waits."""
    rule, two = SpeedUpRule(), learns("a", workers=2)
    assert rule.propose(view(two, free=2)) == Resize(0, 2)
    assert rule.propose(view(two, free=2, grow_s=300.0)) is None
    assert rule.propose(view(two._replace(workers=1), free=2, grow_s=300.0)) == Resize(0, 2)
    three = learns("a", workers=3)
    assert rule.propose(view(three, waiting=1, free=0)) == Resize(0, -1)
    assert rule.propose(view(three, waiting=1, free=0, shrink_s=300.0)) is None


def test_what_resizes_cost_is_the_median_of_what_the_latest_took_beyond_their_epochs() -> None:
    """Epochs take 12 s with three workers, and 18 s with two; each change stops one for 5 s, and
    the next for 1 s."""
    core = ElasticityCore()
    core.started(started(workers=3, workers_max=3))
    job_of_core, now, epoch = core.jobs[A], 0.0, 0
    for workers in (3, 2, 3, 2, 3, 2, 3):
        if epoch:
            job_of_core.resize(workers)
        for late in (5.0, 1.0, 0.0, 0.0, 0.0) if epoch else (0.0,) * 5:
            seconds = {2: 18.0, 3: 12.0}[workers] + late
            now, epoch = now + seconds, epoch + 1
            core.reported(report(epoch=epoch, seconds=seconds, now=now))
        changes = epoch // 5 - 1
        seen = core.view(now, A)
        assert seen.shrink_s == 6.0 if changes >= 5 else math.isnan(seen.shrink_s)
    assert seen.grow_s == seen.shrink_s == 6.0


def test_a_job_has_learned_once_a_hyperbola_would_gain_less_than_a_hundredth() -> None:
    # 0.001 an epoch, tenth epoch of a hundred: 0.009 are left, of 0.95 and of 0.85.
    assert has_learned(job("a", change=0.001, accuracy=0.95))
    assert not has_learned(job("a", change=0.001, accuracy=0.85))
    assert has_learned(flat("a")), "it converges"
    assert not has_learned(flat("a", warm=False))
    assert not has_learned(cold("a"))


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e6), max_size=6),
    st.integers(1, 63),
)
def test_whatever_epochs_took_no_worker_makes_a_job_slower(
    paces: dict[int, float], workers: int
) -> None:
    assert 0.0 <= serial_share(paces) <= 1.0
    first, second = (speed_up(paces, workers + n) for n in (0, 1))
    assert -1e-9 <= second <= first + 1e-9
    assert math.isfinite(first)


@st.composite
def views(draw: st.DrawFn) -> ElasticityView:
    """Of any jobs, some of which may not grow, are silent, cold, or have few epochs left."""
    jobs = []
    for number in range(draw(st.integers(0, 7))):
        most = draw(st.integers(1, 12))
        one = job(
            f"job-{number}",
            workers=draw(st.integers(1, most)),
            workers_max=most,
            points=draw(st.floats(0.0, 1e3)),
            change=draw(st.sampled_from([math.nan, -0.01, 0.0, 0.0002, 0.001, 0.5])),
            accuracy=draw(st.floats(0.0, 1.0)),
            epoch=draw(st.sampled_from([0, 1, 50, 90, 91, 100])),
            paces=draw(st.dictionaries(st.integers(1, 16), st.floats(1e-3, 1e6), max_size=4)),
            since_resize=draw(st.integers(0, 2)),
            warm=draw(st.booleans()),
            silent=draw(st.booleans()),
        )
        jobs.append(one._replace(may_grow=one.workers < most and draw(st.booleans())))
    return view(*jobs, free=draw(st.integers(0, 40)))


@given(views())
def test_what_is_granted_one_after_the_other_is_within_what_is_free_and_each_maximum(
    begun: ElasticityView,
) -> None:
    rule, now, given_to = SpeedUpRule(), begun, list[int]()
    while now.free and (wanted := rule.propose(now)) is not None:
        one = now.jobs[wanted.place]
        assert one.may_grow
        assert not one.silent
        assert wanted.delta == rule.grant(now, wanted.place) >= 1
        assert one.workers + wanted.delta <= one.workers_max
        assert wanted.place not in given_to, "all at once"
        given_to.append(wanted.place)
        jobs = list(now.jobs)
        jobs[wanted.place] = one._replace(workers=one.workers + wanted.delta, may_grow=False)
        now = now._replace(jobs=tuple(jobs), free=now.free - wanted.delta, steps=now.steps + 1)
        assert now.free >= 0
    granted = sum(y.workers - x.workers for x, y in zip(begun.jobs, now.jobs, strict=True))
    assert granted == begun.free - now.free


@given(views(), st.integers(1, 9), st.data())
def test_nothing_is_given_up_by_what_serves_none_of_the_waiters(
    begun: ElasticityView, waiting: int, data: st.DataObject
) -> None:
    jobs = tuple(
        one._replace(serves=data.draw(st.booleans()), may_shrink=one.workers > 1)
        for one in begun.jobs
    )
    wanted = SpeedUpRule().propose(begun._replace(jobs=jobs, free=0, waiting=waiting))
    assert wanted is None or (wanted.delta == -1 and jobs[wanted.place].serves)


def test_epoch_times_are_of_whole_epochs_with_the_same_workers() -> None:
    core = ElasticityCore()
    core.started(started(workers=3))
    for epoch, seconds in ((1, 90.0), (2, 80.0), (3, 10.0), (4, 40.0)):
        core.reported(report(epoch=epoch, seconds=seconds))
    job_of_core = core.jobs[A]
    assert not job_of_core.paces, "of two, which is right?"
    core.reported(report(epoch=5, seconds=11.0))
    assert job_of_core.paces == {3: 11.0}, "the median, without the two in which it began"
    job_of_core.resize(2)
    for epoch, seconds in ((6, 13.0), (7, 60.0), (8, 15.0), (9, 16.0)):
        core.reported(report(epoch=epoch, seconds=seconds))
        assert job_of_core.paces == {3: 11.0}, "too few, or a part of it ran with three"
    core.reported(report(epoch=10, seconds=17.0))
    assert core.view(110.0, A).jobs[0].paces == {3: 11.0, 2: 16.0}
    for epoch in range(11, 16):
        core.reported(report(epoch=epoch, seconds=30.0, running=1))
    assert job_of_core.paces == {3: 11.0, 2: 16.0, 1: 30.0}, "by what runs, not what it may have"
    for epoch in range(16, 16 + PACE_REPORTS):
        core.reported(report(epoch=epoch, seconds=40.0, running=1))
    assert job_of_core.paces[1] == 40.0, "what was long ago counts no more"


def test_epoch_times_of_few_numbers_of_workers_are_kept() -> None:
    core = ElasticityCore()
    core.started(started(workers=4, workers_max=4))
    held = core.jobs[A]
    reports = PACE_REPORTS_MIN + 2
    for number in range(3 * PACES_MAX):
        held.resize(number + 1)
        for part in range(reports):
            core.reported(report(epoch=reports * number + part + 1))
    assert list(held.paces) == list(range(2 * PACES_MAX + 1, 3 * PACES_MAX + 1)), "the latest"


def test_what_reports_no_more_is_silent() -> None:
    core = ElasticityCore()
    core.started(started(workers=3))
    assert not core.view(120.0, None).jobs[0].silent
    assert core.view(121.0, None).jobs[0].silent
    core.reported(report(epoch=1, seconds=30.0))
    assert not core.view(310.0, None).jobs[0].silent, "ten of its epochs after its report at 10"
    assert core.view(311.0, None).jobs[0].silent
