"""Co-run scores against numbers by hand, and the regression on what was observed."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.pipelines.core.model import Row, Vector
from hrm.pipelines.policies.corun.metrics import scaled_size
from hrm.pipelines.policies.corun.scores import (
    Cosine,
    LearnedLoss,
    Overload,
    cosine,
    joint_excess,
)
from hrm.pipelines.policies.corun.slowdowns import LOADS, Slowdowns
from tests.policies.corun.test_dispatch import BUSY
from tests.policies.corun.test_dispatch import LOADS as KNOWN
from tests.policies.corun.worlds import Known

A, B, C, D = (np.array(BUSY[name]) for name in "ABCD")
ROWS = {name: Row(name, 1, "P4") for name in "ABCD"}


def test_cosines_by_hand() -> None:
    assert [cosine(A, B), cosine(A, C), cosine(B, C)] == pytest.approx(
        [0.994748, 0.431035, 0.418505], abs=5e-7
    )


def test_raw_sizes_make_all_alike_and_scaled_ones_do_not() -> None:
    raw = [np.append(loads, size) for loads, size in ((A, 200), (B, 180), (C, 220))]
    assert cosine(raw[0], raw[1]) == pytest.approx(0.9999995, abs=5e-8)
    assert cosine(raw[0], raw[2]) == pytest.approx(0.9999818, abs=5e-8)
    scaled = [np.append(loads, scaled_size(s)) for loads, s in ((A, 200), (B, 180), (C, 220))]
    assert cosine(scaled[0], scaled[1]) == pytest.approx(0.996377, abs=5e-7)
    assert cosine(scaled[0], scaled[2]) == pytest.approx(0.645867, abs=5e-7)


def test_cosine_does_not_see_magnitude_and_overload_does() -> None:
    assert cosine(A, 0.1 * A) == pytest.approx(cosine(A, A)) == pytest.approx(1.0)
    small = Known(features={"A": [*A, 0.5], "small": [*(0.1 * A), 0.5]})
    co_runners = [ROWS["A"]]
    assert Overload().score(Row("small", 1, "P4"), co_runners, small) == 0.0
    assert Overload().score(ROWS["A"], co_runners, small) == pytest.approx(0.8)
    assert Overload().score(ROWS["C"], co_runners, KNOWN) == 0.0


def test_the_mean_over_all_that_run_there() -> None:
    co_runners = [ROWS["A"], ROWS["C"]]
    assert Cosine().score(ROWS["B"], co_runners, KNOWN) == pytest.approx(0.706626, abs=5e-7)
    assert Cosine().score(ROWS["D"], co_runners, KNOWN) == pytest.approx(0.527162, abs=5e-7)


@pytest.mark.parametrize("score", [Cosine(), Overload(), LearnedLoss()])
def test_an_idle_gpu_scores_nothing(score: Cosine | Overload | LearnedLoss) -> None:
    assert score.score(ROWS["A"], [], KNOWN) == 0.0


def test_what_is_assumed_before_anything_was_seen() -> None:
    model = Slowdowns()
    idle = np.zeros(LOADS)
    heavy = np.array([0.9, 0, 0, 0, 0, 0, 0])
    assert model.slowdown(heavy, np.empty((0, LOADS))) == 1.0
    assert model.slowdown(heavy, idle[None]) == 1.0
    assert model.slowdown(heavy, heavy[None]) == pytest.approx(1 + 0.6 * 0.8)
    three = np.stack([heavy, heavy])
    assert model.slowdown(heavy, three) > model.slowdown(heavy, heavy[None])


def test_observations_win_over_the_prior() -> None:
    rng = np.random.default_rng(0)
    model = Slowdowns()

    def truth(own: np.ndarray, co_runners: np.ndarray) -> float:
        return float(1.05 + 0.8 * own[4] * co_runners[4] + 0.3 * co_runners[2])

    def error() -> float:
        cases = rng.random((50, 2, LOADS)) * 0.5
        return float(np.mean([abs(model.slowdown(a, b[None]) - truth(a, b)) for a, b in cases]))

    before = error()
    for own, co_runners in rng.random((300, 2, LOADS)) * 0.5:
        model.observe(own, co_runners, truth(own, co_runners))
    assert model.observed == 300
    assert error() < 0.2 * before


def test_one_that_hung_does_not_rule() -> None:
    model = Slowdowns()
    own, co_runners = np.full(LOADS, 0.3), np.full(LOADS, 0.3)
    for _ in range(50):
        model.observe(own, co_runners, 1.1)
    model.observe(own, co_runners, 10_000.0)
    assert model.slowdown(own, co_runners[None]) < 1.5


def test_the_joint_score_counts_what_the_others_lose() -> None:
    model = Slowdowns()
    loads = np.stack([A, B, C])
    alone = [np.stack([A]), np.stack([B])]
    expected = (
        (model.excess(A[None], (B + C)[None]) + model.excess(B[None], (A + C)[None]))
        + model.excess(C[None], (A + B)[None])
        - model.excess(B[None], C[None])
        - model.excess(C[None], B[None])
    )
    assert joint_excess(model, loads) == pytest.approx(float(expected[0]))
    pair = model.excess(alone[0], alone[1]) + model.excess(alone[1], alone[0])
    assert joint_excess(model, np.stack([A, B])) == pytest.approx(float(pair[0]))


class _Learning(Known):
    """Loads that are known, slow-downs that were learned."""

    def __init__(self, slowdowns: Slowdowns) -> None:
        super().__init__()
        self.slowdowns = slowdowns

    def gpu_features(self, row: Row) -> Vector:
        return KNOWN.gpu_features(row)


def test_learned_prefers_what_was_seen_to_go_well() -> None:
    model = Slowdowns()
    for _ in range(40):
        model.observe(B, A, 1.9)
        model.observe(A, B, 1.9)
        model.observe(D, A, 1.02)
        model.observe(A, D, 1.02)
    learning = _Learning(model)
    co_runners = [ROWS["A"]]
    worse = LearnedLoss().score(ROWS["B"], co_runners, learning)
    assert LearnedLoss().score(ROWS["D"], co_runners, learning) < worse


def test_state_of_other_shapes_is_refused() -> None:
    model = Slowdowns()
    state = Slowdowns(overload=(1.0,), partner=(0.0,)).state()
    with pytest.raises(ValueError, match="squares"):
        model.restore(state)
