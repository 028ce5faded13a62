"""The learned policy of elasticity: its inputs, its network, and the guard around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.errors import InvalidConfig
from hrm.policies import model_files
from hrm.policies.elasticity import guarded_elasticity
from hrm.policies.elasticity.features import (
    CLUSTER_FIELDS,
    ELASTIC_FIELDS,
    ELASTICITY_SCHEMA,
    RULE,
    action_number,
    is_due,
    observe_elasticity,
    resize_of,
)
from hrm.policies.elasticity.guarded import GuardedElasticity
from hrm.policies.elasticity.learned import LearnedElasticity
from hrm.policies.elasticity.network import ZERO_ARRAYS, action_logits, elastic_shapes
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import Model
from tests.policies.elasticity.views import cold, flat, job, view

JOBS = (flat("a"), job("b", change=0.002), cold("c"), job("d", seconds=30.0, scale=2))


def model(seed: int = 0, *, zero: bool = False, **meta: object) -> Model:
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(0.0, 0.3, shape).astype(np.float32)
        for name, shape in elastic_shapes().items()
    }
    if zero:
        arrays |= {name: np.zeros_like(arrays[name]) for name in ZERO_ARRAYS}
        arrays["rule"] = np.full(1, 3.0, dtype=np.float32)
    inputs = len(ELASTIC_FIELDS) + len(CLUSTER_FIELDS)
    arrays |= {"low": np.full(inputs, -9.0), "high": np.full(inputs, 9.0)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Model(
        kind="rlpto", version=1, schema=ELASTICITY_SCHEMA, arrays=arrays,
        meta={"logit_abs_max": 100.0, **meta},
    )  # fmt: skip


def test_no_input_is_far_from_one_and_none_is_missing() -> None:
    state = observe_elasticity(view(*JOBS, waiting=100, free=50))
    for inputs in (state.jobs, state.cluster):
        assert np.isfinite(inputs).all()
        assert np.abs(inputs).max() <= 1.0


def test_inputs_have_no_scale() -> None:
    slow = tuple(x._replace(seconds=50 * x.seconds, node_s=50 * x.node_s) for x in JOBS)
    ours, theirs = observe_elasticity(view(*JOBS)), observe_elasticity(view(*slow))
    assert np.allclose(ours.jobs, theirs.jobs)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_jobs_means_nothing(seed: int) -> None:
    weights = model(seed).arrays
    order = np.random.default_rng(seed).permutation(len(JOBS))
    shuffled = view(*(JOBS[n] for n in order), reporter=int(np.flatnonzero(order == 0)[0]))
    ours = action_logits(weights, observe_elasticity(view(*JOBS)))
    theirs = action_logits(weights, observe_elasticity(shuffled))
    count = len(JOBS)
    assert theirs[0] == pytest.approx(ours[0], abs=1e-5)
    assert np.allclose(theirs[1 : count + 1], ours[1 : count + 1][order], atol=1e-5)
    assert np.allclose(theirs[count + 1 :], ours[count + 1 :][order], atol=1e-5)


def test_what_is_not_allowed_has_no_chance() -> None:
    state = observe_elasticity(view(*JOBS))
    logits = action_logits(model().arrays, state)
    assert (np.isfinite(logits) == state.mask).all()
    assert logits[3] == logits[7] == -np.inf, "the cold job may neither grow nor shrink"


def test_untrained_it_is_the_rule_of_speed_ups() -> None:
    learned = LearnedElasticity(model(zero=True))
    for seen in (view(*JOBS), view(*JOBS, steps=1), view(*JOBS, reporter=None), view(job("a"))):
        assert is_due(seen)
        assert learned.propose(seen) == RULE.propose(seen)


def test_actions_are_numbered_both_ways() -> None:
    seen = view(*(flat(name) for name in "abcde"), free=1)
    for resize in (None, Resize(0, 1), Resize(4, 1), Resize(0, -1), Resize(4, -1)):
        assert resize_of(action_number(resize, 5), seen) == resize


def test_a_job_that_grows_gets_all_at_once_that_the_rule_would_give_it() -> None:
    seen = view(*(job(name, workers_max=9) for name in "ab"), free=5)
    gets = [resize_of(action, seen) for action in (1, 2)]
    assert gets == [Resize(0, RULE.grant(seen, 0)), Resize(1, RULE.grant(seen, 1))]
    assert sum(each.delta for each in gets if each) == 5


def test_a_model_for_other_features_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="hrm policy train rlpto"):
        LearnedElasticity(replace(model(), schema="other"))
    with pytest.raises(InvalidConfig, match="logit_abs_max"):
        LearnedElasticity(model(logit_abs_max=float("nan")))


class Clock:
    """Each reading is ``step_s`` later."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def guarded(one: Model | None, mode: GuardMode, step_s: float = 0.0) -> GuardedElasticity:
    learned = None if one is None else LearnedElasticity(one)
    return GuardedElasticity(learned, clock_s=Clock(step_s), mode=mode)


def reasons(policy: GuardedElasticity) -> dict[str, int]:
    return policy.guard.status(0.0).fallbacks


def differing() -> tuple[Model, ElasticityView]:
    """A model that decides otherwise than the rule, and where it does."""
    seen = view(*JOBS)
    for seed in range(50):
        if LearnedElasticity(model(seed)).propose(seen) != RULE.propose(seen):
            return model(seed), seen
    raise AssertionError("no network differs from the rule")


def test_by_its_mode_the_rule_or_the_network_decides() -> None:
    one, seen = differing()
    learned = LearnedElasticity(one).propose(seen)
    assert guarded(one, GuardMode.OFF).propose(seen) == RULE.propose(seen)
    shadow = guarded(one, GuardMode.SHADOW)
    assert shadow.propose(seen) == RULE.propose(seen)
    assert shadow.guard.status(0.0).shadowed == 1
    names = [f"job-{n}" for n in range(400)]
    canary = guarded(one, GuardMode.CANARY_10)
    for name in names:
        canary.propose(view(flat(name), *JOBS[1:]))
    assert 15 <= canary.guard.status(0.0).learned <= 80
    on = guarded(one, GuardMode.ON)
    answers = [on.propose(view(flat(name), *JOBS[1:])) for name in names]
    assert answers.count(learned) > 300


@pytest.mark.parametrize(
    ("one", "step_s", "reason"),
    [
        (None, 0.0, "not-loaded"),
        (model(), 0.06, "over-budget"),
        (replace(model(), arrays={**model().arrays, "high": np.full(32, -8.0, np.float32)}), 0.0,
         "out-of-distribution"),
        (model(logit_abs_max=1e-3), 0.0, "value-out-of-range"),
        (replace(model(), arrays={**model().arrays, "bv": np.zeros(1, np.float32),
                                  "b1": np.full(64, np.nan, np.float32)}), 0.0, "not-finite"),
    ],
)  # fmt: skip
def test_where_it_may_not_be_trusted_the_rule_decides(
    one: Model | None, step_s: float, reason: str
) -> None:
    policy = guarded(one, GuardMode.ON, step_s)
    for number in range(3):
        seen = view(flat(f"job-{number}"), *JOBS[1:])
        assert policy.propose(seen) == RULE.propose(seen)
    assert reason in reasons(policy)


def test_without_a_model_it_loads_and_says_what_to_type(tmp_path: Path) -> None:
    policy = guarded_elasticity(clock_s=Clock(), models=tmp_path, mode=GuardMode.ON)
    assert "there are no weights for rlpto" in policy.guard.status(0.0).last, "before any question"
    policy.propose(view(*JOBS))
    assert "hrm policy train rlpto" in policy.guard.status(0.0).last
    model_files.write(model(), tmp_path / "rlpto-1.npz")
    loaded = guarded_elasticity(clock_s=Clock(), models=tmp_path, mode=GuardMode.ON)
    assert loaded.guard.model == "rlpto-1"


def test_a_job_that_takes_far_longer_under_the_network_rolls_it_back() -> None:
    policy = guarded(model(zero=True), GuardMode.CANARY_50)
    for number in range(600):
        name = f"job-{number}"
        seen = view(flat(name), now=float(number))
        before = policy.guard.status(0.0).learned
        policy.propose(seen)
        mine = policy.guard.status(0.0).learned > before
        slow = 3_000.0 if mine else 1_000.0
        policy.ended(seen.jobs[0].job_id, now=number + slow, ok=True)
    assert policy.guard.mode is GuardMode.SHADOW
