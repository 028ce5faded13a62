"""Policies of elasticity that learn nothing: each does what its line in the source says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hrm.core.elasticity.beta_rule import BetaRule, ElasticityPolicy, Resize
from hrm.core.elasticity.elastic_job import EpochSample
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.policies.elasticity.fits import fit_epoch_time, fit_loss, fit_rise
from hrm.policies.elasticity.fixed import (
    ConstantWorkers,
    EqualTenants,
    KeepWorkers,
    RandomResize,
)
from hrm.policies.elasticity.published import Dolphin, Slaq, Tradl
from tests.policies.elasticity.views import cold, flat, job, view


def every_policy() -> list[ElasticityPolicy]:
    return [
        BetaRule(), BetaRule(on_demand=True), SpeedUpRule(), KeepWorkers(), ConstantWorkers(2),
        RandomResize(np.random.default_rng(1)), EqualTenants(), Slaq(), Dolphin(),
        Tradl({0: (0.9, 0.99), 1: (0.9, 0.99), 2: (0.9, 0.99)}),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_every_policy_proposes_only_what_is_allowed(policy: ElasticityPolicy) -> None:
    jobs = [job("a"), flat("b", may_shrink=False), cold("c"), job("d", workers=4, may_grow=False)]
    for free in (0, 3):
        for reporter in (None, 0, 1):
            grown = [each._replace(may_grow=each.may_grow and free > 0) for each in jobs]
            wanted = policy.propose(view(*grown, free=free, reporter=reporter))
            if wanted is not None:
                found = grown[wanted.place]
                assert found.may_grow if wanted.delta > 0 else found.may_shrink


def test_the_beta_rule_takes_from_what_converges_and_gives_to_the_steepest() -> None:
    rule = BetaRule()
    assert rule.propose(view(flat("a"), job("b"))) == Resize(0, -1)
    steep = view(flat("a"), job("b"), job("c", change=0.01), steps=1)
    assert rule.propose(steep) == Resize(2, 1)
    assert rule.propose(steep._replace(waiting=1)) is None
    assert rule.propose(view(flat("a", may_shrink=False), flat("b"))) is None


def test_on_demand_the_beta_rule_takes_only_what_something_wants() -> None:
    rule = BetaRule(on_demand=True)
    assert rule.propose(view(flat("a"), flat("b"), free=0)) is None
    assert rule.propose(view(flat("a"), flat("b"), waiting=1)) == Resize(0, -1)
    full = job("b", may_grow=False)
    assert rule.propose(view(flat("a"), full, free=0)) == Resize(0, -1)
    assert rule.propose(view(flat("a"), full._replace(workers=4), free=0)) is None
    assert rule.propose(view(flat("a"), job("b"), free=1)) == Resize(1, 1)


def test_on_demand_what_nothing_else_wants_goes_back_to_what_converges_in_equal_parts() -> None:
    rule, full = BetaRule(on_demand=True), job("c", workers=4, may_grow=False)
    flats = flat("a", workers=3, workers_max=9), flat("b", workers=1, workers_max=9)
    seen = view(*flats, full, reporter=None, free=5)
    assert rule.propose(seen) == Resize(1, 3)
    assert rule.propose(view(flats[0], full, reporter=None, free=5)) == Resize(0, 5)
    assert rule.propose(view(flat("b"), full, reporter=None, free=5)) == Resize(0, 2), "its most"
    assert rule.propose(seen._replace(waiting=1)) is None
    assert rule.propose(seen._replace(free=0)) is None
    learns = job("c", workers=3, may_grow=False)
    assert rule.propose(view(*flats, learns, reporter=None)) is None, "it may grow soon"
    assert BetaRule().propose(seen) is None, "the source's rule leaves it idle"


def test_a_constant_is_approached_one_worker_at_a_time() -> None:
    one = ConstantWorkers(2)
    assert one.propose(view(job("a", workers=3), job("b", workers=1))) == Resize(0, -1)
    assert one.propose(view(job("a"), job("b", workers=1))) == Resize(1, 1)
    assert one.propose(view(job("a"), job("b"))) is None


def test_drf_gives_the_next_worker_to_the_tenant_with_the_fewest() -> None:
    rich = [job("a", tenant="x"), job("b", tenant="x"), job("c", tenant="y", workers=1)]
    assert EqualTenants().propose(view(*rich, free=1)) == Resize(1, -1), "2, 1 and 3 are equal"
    even = [rich[0], rich[1]._replace(workers=1), rich[2]]
    assert EqualTenants().propose(view(*even, free=2)) == Resize(2, 1)


def test_chance_gives_every_allowed_change_its_turn() -> None:
    chance = RandomResize(np.random.default_rng(3))
    seen = Counter(chance.propose(view(flat("a"), job("b"))) for _ in range(1_000))
    assert len(seen) == 5
    assert min(seen.values()) > 150


def test_slaq_gives_to_the_loss_that_falls_most() -> None:
    falling = job("a", history=[EpochSample(e, 4.0 / e, 0.5, 12.0, 2) for e in range(1, 9)])
    done = job("b", history=[EpochSample(e, 0.5 + 0.001 / e, 0.9, 12.0, 2) for e in range(1, 99)])
    done, falling = done._replace(epoch=98), falling._replace(epoch=8)
    assert Slaq().propose(view(done, falling, free=1)) == Resize(0, -1)
    assert Slaq().propose(view(done._replace(workers=1), falling, free=1)) == Resize(1, 1)


def test_dolphin_moves_a_worker_where_epochs_shorten_most() -> None:
    slow = job(
        "a", history=[EpochSample(e, 1.0, 0.5, 100.0, 2) for e in range(1, 9)], seconds=100.0
    )
    quick = job("b", history=[EpochSample(e, 1.0, 0.5, 1.0, 2) for e in range(1, 9)], seconds=1.0)
    none_free = view(slow._replace(may_grow=False), quick._replace(may_grow=False), free=0)
    assert Dolphin().propose(none_free) == Resize(1, -1)
    given = view(slow, quick._replace(workers=1, may_shrink=False), free=1, steps=1)
    assert Dolphin().propose(given) == Resize(0, 1)
    assert Dolphin().propose(none_free._replace(jobs=(quick, quick))) is None


def test_tradl_serves_what_is_below_its_first_target_first() -> None:
    policy = Tradl({1: (0.9, 0.99)})
    below, above = job("a", accuracy=0.8), job("b", accuracy=0.95)
    assert policy.propose(view(above, below, free=1)) == Resize(0, -1)
    shrunk = view(above._replace(workers=1, may_shrink=False), below, free=2, steps=1)
    assert policy.propose(shrunk) == Resize(1, 1)


def test_times_of_epochs_are_found_again() -> None:
    history = [EpochSample(w, 1.0, 0.5, 30.0 / w + 5.0 + 0.5 * w, w) for w in (1, 2, 3, 4)]
    found = fit_epoch_time(history)
    assert found.seconds(8) == pytest.approx(30.0 / 8 + 5.0 + 4.0)
    one = fit_epoch_time(history[:1])
    assert one.seconds(1) == pytest.approx(35.5)
    assert one.seconds(2) < 35.5


def test_a_loss_is_continued_as_it_fell() -> None:
    history = [EpochSample(k, 1.0 / (0.1 * k + 0.5) + 0.0, 0.5, 1.0, 1) for k in range(1, 15)]
    found = fit_loss(history)
    assert found is not None
    assert found.loss(30) == pytest.approx(1.0 / 3.5, rel=0.05)
    assert fit_loss(history[:3]) is None


def test_a_power_law_says_when_a_target_is_reached() -> None:
    history = [EpochSample(k, 1.0, 1.0 - 0.8 * k**-0.5, 1.0, 1) for k in range(1, 20)]
    assert fit_rise(history, 0.92) == pytest.approx(100.0, rel=1e-6)
    assert fit_rise(history[:2], 0.92) == np.inf
    assert fit_rise(history, 1.0) == np.inf
