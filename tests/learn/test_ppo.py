"""PPO with an adaptive KL penalty: its environment, its vectors, and that it learns."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from hrm.errors import InvalidConfig, InvalidRequest  # noqa: E402
from hrm.learn import ppo  # noqa: E402
from hrm.learn.elasticity_batches import batch_logits, padded, state_batch  # noqa: E402
from hrm.learn.elasticity_env import (  # noqa: E402
    JOBS_MAX,
    KW,
    ElasticityEnv,
    drawn_cluster,
    reward_of_job,
)
from hrm.learn.ppo import PpoArgs, SampledDecision, adapted, advantages, divergence, train  # noqa: E402
from hrm.learn.training_cluster import run_policy  # noqa: E402
from hrm.policies import model_files  # noqa: E402
from hrm.policies.elasticity.features import RULE, ElasticityState  # noqa: E402
from hrm.policies.elasticity.learned import LearnedElasticity  # noqa: E402
from hrm.policies.elasticity.network import action_logits, elastic_shapes, state_value  # noqa: E402
from tests.policies.elasticity.views import flat, job, view  # noqa: E402

SMALL: dict[str, Any] = {
    "decisions": 512,
    "round": 256,
    "epochs": 2,
    "batch": 64,
    "validate_every": 2,
}


def played(env: ElasticityEnv, seed: int, choose: Any) -> list[dict[str, Any]]:
    """The infos of an episode; ``choose`` gets each and returns an action."""
    _, info = env.reset(seed=seed)
    infos = []
    over = False
    while not over:
        infos.append(info)
        _, reward, over, _, info = env.step(choose(info))
        infos[-1]["reward"] = reward
    return infos


def ruled(info: dict[str, Any]) -> int:
    state: ElasticityState = info["state"]
    return padded(state.rule, len(state.jobs), JOBS_MAX)


def test_the_environment_keeps_to_the_interface_of_gymnasium() -> None:
    env = ElasticityEnv()
    seen = []
    for _ in range(2):
        observation, info = env.reset(seed=3)
        rows, over = [], False
        while not over:
            assert env.observation_space.contains(observation)
            assert info["action_mask"][0] == 1
            assert info["action_mask"].sum() == info["state"].mask.sum() > 1
            rows.append(observation["jobs"])
            observation, reward, over, truncated, info = env.step(ruled(info))
            assert math.isfinite(reward)
            assert not truncated
        assert not info["action_mask"].any()
        seen.append(np.stack(rows))
    assert np.array_equal(seen[0], seen[1]), "one seed is one episode"


def test_playing_the_rule_is_the_rule() -> None:
    env = ElasticityEnv()
    played(env, 3, ruled)
    assert env.cluster.log == run_logged(3)


def run_logged(seed: int) -> list[tuple[float, Any, int]]:
    held = drawn_cluster(seed)
    run_policy(held, RULE)
    return held.log


def test_an_action_outside_of_the_mask_and_one_after_the_end_are_errors() -> None:
    env = ElasticityEnv()
    _, info = env.reset(seed=0)
    wrong = int(np.flatnonzero(info["action_mask"] == 0)[0])
    for action in (wrong, 2 * JOBS_MAX + 1, -1):
        with pytest.raises(InvalidRequest, match="action_mask"):
            env.step(action)
    played(env, 0, ruled)
    with pytest.raises(InvalidRequest, match="reset"):
        env.step(0)


def test_what_is_delivered_sooner_is_rewarded_more() -> None:
    """Over whole episodes, and whatever decides: the return falls with the time to delivery."""
    found = []
    for number in range(6):
        rng = np.random.default_rng(number)
        env = ElasticityEnv(reward="delivered")

        def choose(info: dict[str, Any], rng: np.random.Generator = rng) -> int:
            return int(rng.choice(np.flatnonzero(info["action_mask"])))

        total = sum(info["reward"] for info in played(env, 11, choose if number else ruled))
        figures = env.result().figures()
        found.append((total, 0.9 * figures["delivery_s"]))
    returns, times = zip(*found, strict=True)
    assert np.corrcoef(returns, times)[0, 1] < -0.8


REWARDS = [
    (0.02, 0.0001, 4, 0.0225), (0.0005, 0.0001, 4, 0.003), (0.0001, 0.0001, 4, 0.0001),
    (0.00005, 0.0001, 4, -0.00245), (0.00005, 0.0001, 1, -0.000575), (-0.002, 0.0001, 4, -0.0045),
    (0.0002, 0.0003, 3, -0.001675), (0.0004, 0.0003, 3, 0.002275),
]  # fmt: skip


@pytest.mark.parametrize(("change", "beta", "workers", "wanted"), REWARDS)
def test_the_printed_reward_is_that_of_the_source(
    change: float, beta: float, workers: int, wanted: float
) -> None:
    assert reward_of_job("printed", change, beta, workers) == pytest.approx(wanted)


def test_the_other_rewards_do_not_jump_and_charge_for_power() -> None:
    smooth = [reward_of_job("smooth", x, 0.0003, 4) for x in (0.0002999, 0.0003001)]
    assert smooth[0] == pytest.approx(smooth[1], abs=1e-5)
    assert reward_of_job("net", 0.0003, 0.0003, 1, 40.0) == pytest.approx(0.0)
    assert reward_of_job("net", 0.0, 0.0003, 3) == pytest.approx(-3 * KW)


@pytest.mark.parametrize("reward", ["printed", "smooth", "net", "progress"])
def test_every_reward_is_finite(reward: Any) -> None:
    rewards = [info["reward"] for info in played(ElasticityEnv(reward=reward), 5, ruled)]
    assert np.isfinite(rewards).all()
    assert np.std(rewards) > 0.0


def test_divergences_by_hand() -> None:
    one, other = (
        torch.tensor([[0.5, 0.3, 0.2, 0.0]]).log(),
        torch.tensor([[0.4, 0.4, 0.2, 0.0]]).log(),
    )
    assert float(divergence(one, other)) == pytest.approx(0.025267, abs=1e-6)
    assert float(divergence(other, one)) == pytest.approx(0.025815, abs=1e-6)
    new = torch.tensor([[0.1, 0.2, -torch.inf]], requires_grad=True)
    old = torch.log_softmax(new.detach() + 0.1, 1)
    torch.autograd.backward(divergence(old, torch.log_softmax(new, 1)).sum())
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


def test_the_penalty_follows_the_divergence() -> None:
    assert adapted(1.0, 0.025267, 0.01) == 2.0
    assert adapted(1.0, 0.01, 0.01) == 1.0
    assert adapted(1.0, 0.001, 0.01) == 0.5
    assert adapted(100.0, 1.0, 0.01) == 100.0
    assert adapted(0.001, 0.0, 0.01) == 0.001


def _decision(reward: float, value: float, *, last: bool = False) -> SampledDecision:
    state: Any = None
    return SampledDecision(state, 0, np.zeros(1, np.float32), value, reward, last, 1.0)


def test_advantages_by_hand() -> None:
    gains, _ = advantages([_decision(0.003, 0.04)], 0.05, 0.99, 0.95)
    assert gains[0] == pytest.approx(0.0125)
    rewards = (0.0225, 0.0125, 0.003, -0.00245)
    chain = [_decision(r, 0.0, last=n == 3) for n, r in enumerate(rewards)]
    gains, returns = advantages([*chain, _decision(9.0, 0.0)], 7.0, 0.99, 1.0)
    assert gains[0] == pytest.approx(0.035438, abs=1e-6)
    assert (gains == returns).all()
    assert returns[4] == pytest.approx(9.0 + 0.99 * 7.0)


def test_torch_and_numpy_have_the_same_logits_and_values() -> None:
    rng = np.random.default_rng(4)
    weights = {n: rng.normal(0.0, 0.3, s).astype(np.float32) for n, s in elastic_shapes().items()}
    infos = played(ElasticityEnv(), 2, ruled)
    states = [info["state"] for info in infos[:: len(infos) // 20]]
    assert len({len(state.jobs) for state in states}) > 1
    batch = state_batch(states)
    logits, values = batch_logits({n: torch.from_numpy(w) for n, w in weights.items()}, batch)
    longest = batch.jobs.shape[1]
    for row, state in enumerate(states):
        ours = action_logits(weights, state)
        places = [padded(n, len(state.jobs), longest) for n in range(len(ours))]
        assert np.allclose(logits[row, places].numpy(), ours, atol=1e-4)
        assert int(torch.isfinite(logits[row]).sum()) == int(state.mask.sum())
        assert float(values[row]) == pytest.approx(state_value(weights, state), abs=1e-4)


def _trained(path: Path, **changes: Any) -> tuple[model_files.Model, dict[str, Any]]:
    args = dataclasses.replace(PpoArgs(out=path / "rlpto-1.npz", **SMALL), **changes)
    found = train(args)
    return model_files.read(path / "rlpto-1.npz", kind="rlpto"), found


@pytest.fixture
def few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "VALIDATION_EPISODES", range(900_000, 900_001))


@pytest.mark.usefixtures("few_episodes")
def test_one_seed_is_one_model_that_can_be_used(tmp_path: Path) -> None:
    (one, found), (other, _) = _trained(tmp_path), _trained(tmp_path)
    assert all((one.arrays[name] == other.arrays[name]).all() for name in one.arrays)
    assert found["best"]["delivery"] <= 1.0
    seen = view(flat("a"), job("b"))
    allowed = LearnedElasticity(one).propose(seen)
    assert allowed is None or abs(allowed.delta) == 1


@pytest.mark.usefixtures("few_episodes")
@pytest.mark.parametrize("changes", [{"penalty": "clip"}, {"reward": "net"}, {"masked": 0}])
def test_every_variant_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    model, _ = _trained(tmp_path, **changes)
    assert all(np.isfinite(array).all() for array in model.arrays.values())
    assert f"--{next(iter(changes))}" in model.meta["command"]


def test_it_learns_what_a_reward_pays_for() -> None:
    """Paid by a reward of its own, for each question without a change, it comes to make none."""
    args = PpoArgs(decisions=1, lr=3e-3, epochs=10, kl_target=0.01)
    learner = ppo._Learner(args)
    with torch.no_grad():
        learner.weights["rule"].fill_(0.0)
    sampler = ppo._Sampler(args, learner.rng)
    shares = []
    for _ in range(10):
        sampled, after = sampler.sample(learner.arrays(), 512)
        shares.append(float(np.mean([decision.action == 0 for decision in sampled])))
        learner.update([d._replace(reward=float(d.action == 0)) for d in sampled], after)
    assert float(np.mean(shares[-2:])) > shares[0] + 0.25


def test_training_never_touches_the_episodes_of_validation() -> None:
    for seed in (0, 5, 89, 90, 12_345):
        first = seed * ppo.EPISODES_OF_SEED % ppo.VALIDATION_EPISODES.start
        assert first + ppo.EPISODES_OF_SEED <= ppo.VALIDATION_EPISODES.start


def test_parameters_that_cannot_be_are_refused() -> None:
    for wrong in ({"decisions": 0}, {"gamma": 1.0}, {"reward": "much"}, {"penalty": "none"},
                  {"lr": math.nan}):  # fmt: skip
        with pytest.raises(InvalidConfig, match="--"):
            PpoArgs(**wrong)
