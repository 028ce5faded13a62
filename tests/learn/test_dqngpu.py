"""Training of policies for shared GPUs: the printed numbers, and a small run of each trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from hrm.errors import InvalidConfig  # noqa: E402
from hrm.learn import dqngpu  # noqa: E402
from hrm.learn.dqngpu import (  # noqa: E402
    DqnGpuArgs,
    GpuTransition,
    ddqn_targets,
    transitions,
)
from hrm.learn.dqngpu_pg import (  # noqa: E402
    PolicyGradientArgs,
    baseline_by_tick,
    policy_gradient,
    train_pg,
)
from hrm.learn.gpu_environment import GpuSharingEnv, following, play  # noqa: E402
from hrm.learn.gpu_networks import set_values  # noqa: E402
from hrm.learn.gpu_rollouts import rollout_values  # noqa: E402
from hrm.learn.gpu_workloads import draw_jobs  # noqa: E402
from hrm.learn.q_networks import fresh  # noqa: E402
from hrm.learn.shared_gpu import GpuEpisode, SimulatedGpuJob  # noqa: E402
from hrm.policies import model_files  # noqa: E402
from hrm.policies.shared_gpu.features import GPU_FIELDS, JOB_FIELDS, SharingState  # noqa: E402
from hrm.policies.shared_gpu.heuristics import PackedByLength  # noqa: E402
from hrm.policies.shared_gpu.interference import NoInterference  # noqa: E402
from hrm.policies.shared_gpu.learned import LearnedGpuSharing  # noqa: E402
from hrm.policies.shared_gpu.network import action_values, network_shapes  # noqa: E402
from hrm.policies.shared_gpu.profiles import CapacityRule, GpuUseProfile  # noqa: E402

RULE = CapacityRule(memory="aligned")


def state(legal: list[bool]) -> SharingState:
    rows = len(legal) - 1
    jobs = np.zeros((rows, len(JOB_FIELDS)), np.float32)
    mask = np.array(legal)
    return SharingState(jobs, np.zeros(len(GPU_FIELDS), np.float32), mask, np.arange(rows))


def of_lengths(*ticks: int) -> GpuSharingEnv:
    """Jobs that only fit one after the other, all there at once."""
    jobs = [
        SimulatedGpuJob(str(n), 0, one, one)
        for n, one in enumerate(GpuUseProfile([(0.9, 0.1, 0.1, 0.1)] * each) for each in ticks)
    ]
    return GpuSharingEnv(lambda seed: GpuEpisode(jobs, NoInterference()), RULE, reward="slowdown")


def test_the_reward_of_slowdown_adds_up_to_the_completions() -> None:
    env = of_lengths(2, 4)
    steps = list(play(env, following(env, PackedByLength()), 0))
    rewards = np.concatenate([info["rewards"] for *_, info, _ in steps])
    assert rewards.tolist() == [-0.75, -0.75, *[-0.25] * 4]
    assert rewards.sum() == pytest.approx(-(2 / 2 + 6 / 4))


@pytest.mark.parametrize(("reward", "total"), [("makespan", -6.0), ("saved", 0.0)])
def test_the_other_rewards_add_up_to_the_makespan_and_to_the_time_saved(
    reward: Any, total: float
) -> None:
    env = of_lengths(2, 4)
    env._reward = reward
    assert sum(step[2] for step in play(env, following(env, PackedByLength()), 0)) == total


def test_placing_takes_no_time_and_ticks_are_discounted() -> None:
    env = GpuSharingEnv(draw_jobs(jobs=(6, 6), arriving=0.0), RULE, reward="makespan", gamma=0.9)
    steps = [step for seed in range(6)
             for step in play(env, following(env, PackedByLength()), seed)]  # fmt: skip
    for (_, before), action, reward, info, _ in steps:
        ticks = info["tick"] - before["tick"]
        assert len(info["rewards"]) == ticks
        assert info["discount"] == pytest.approx(0.9**ticks)
        assert reward == pytest.approx(-sum(0.9**n for n in range(ticks)))
        assert action or ticks
    assert any(info["tick"] == before["tick"] for (_, before), _, _, info, _ in steps)


def test_returns_of_three_rewards() -> None:
    """Of the n-step transitions, with a discount that ticks give."""
    env = of_lengths(1, 1, 1)
    env._reward, env._gamma = "makespan", 0.9
    found = list(transitions(env, lambda s: int(np.argmax(s.mask)), 0, 3))
    assert [each.reward for each in found] == pytest.approx([-0.271, -0.19, -0.1])
    returns = [-2.305, -1.45, -0.5]
    value = 0.0
    for reward, wanted in zip((-0.5, -1.0, -1.0), reversed(returns), strict=True):
        value = reward + 0.9 * value
        assert value == pytest.approx(wanted)


def test_an_illegal_action_is_refused() -> None:
    env = of_lengths(2, 4)
    env.reset(seed=0)
    with pytest.raises(AssertionError, match="illegal"):
        env.step(0)


@pytest.mark.parametrize("observed", ["set", "slots", "virtual"])
def test_the_environment_is_gymnasiums(observed: Any) -> None:
    env = GpuSharingEnv(draw_jobs(jobs=(5, 8)), CapacityRule(), observed=observed)
    observation, info = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert info["action_mask"].shape == (env.action_space.n,)
    again, _ = env.reset(seed=1)
    for one, other in zip(np.atleast_1d(observation[0]), np.atleast_1d(again[0]), strict=True):
        assert np.array_equal(one, other)
    for _ in range(20):
        action = env.action_space.sample(info["action_mask"])
        observation, _, done, truncated, info = env.step(int(action))
        assert env.observation_space.contains(observation)
        if done or truncated:
            break


def test_advantages_and_one_step_of_the_policy_gradient() -> None:
    returns = [np.array([-2.0, -1.0]), np.array([-1.0, 0.0])]
    baseline = baseline_by_tick(returns)
    assert baseline.tolist() == [-1.5, -0.5]
    advantages = np.stack(returns) - baseline
    assert advantages.tolist() == [[-0.5, -0.5], [0.5, 0.5]]
    for sign, wanted in (
        (1.0, (0.284763, 0.384390, 0.330847)),
        (-1.0, (0.384390, 0.284763, 0.330847)),  # as printed: the worse action gains
    ):
        # The two episodes share the state, and with it its logits.
        logits = torch.zeros(3, requires_grad=True)
        actions = torch.tensor([0, 1])
        loss = policy_gradient(logits.repeat(2, 1), actions, torch.tensor(sign * advantages[:, 0]))
        loss.backward()  # type: ignore[no-untyped-call]
        moved = torch.softmax(logits.detach() - 0.3 * logits.grad, dim=0)
        assert moved.numpy() == pytest.approx(wanted, abs=1e-6)


def test_a_finished_episode_counts_nothing_in_the_baseline() -> None:
    made = baseline_by_tick([np.array([-4.0]), np.array([-2.0, -1.0, -1.0])])
    assert made.tolist() == [-3.0, -0.5, -0.5]


@pytest.mark.parametrize(
    ("discount", "legal", "wanted"),
    [
        (1.0, [True, True, False, True], -3.15),
        (0.99, [True, True, False, True], -3.126),
        (1.0, [True] * 4, -1.25),
        (0.0, [True, True, False, True], -0.75),
    ],
)
def test_the_target_of_the_double_dqn(
    monkeypatch: pytest.MonkeyPatch, discount: float, legal: list[bool], wanted: float
) -> None:
    q = {"online": [-3.0, -2.0, -1.0, -2.5], "target": [-3.1, -2.4, -0.5, -2.0]}

    def values(weights: dict[str, Any], states: list[SharingState]) -> Any:
        held = torch.tensor([q[next(iter(weights))] for _ in states])
        return held.masked_fill(~torch.tensor([s.mask.tolist() for s in states]), -torch.inf)

    monkeypatch.setattr(dqngpu, "set_values", values)
    after = state(legal)
    batch = [GpuTransition(after, 0, -0.75, after, discount)]
    ones = torch.ones(1)
    made = ddqn_targets(batch, {"online": ones}, {"target": ones})
    assert made.tolist() == pytest.approx([wanted])


def test_the_network_in_training_is_the_one_in_use() -> None:
    weights = fresh(network_shapes(), torch.Generator().manual_seed(1))
    env = GpuSharingEnv(draw_jobs(jobs=(5, 12)), CapacityRule())
    states = [
        dqngpu.state_of(*step[0])
        for seed in range(3)
        for step in play(env, following(env, PackedByLength()), seed)
    ]
    with torch.no_grad():
        batch = set_values(weights, states).numpy()
    arrays = {name: each.detach().numpy() for name, each in weights.items()}
    for row, one in zip(batch, states, strict=True):
        alone = action_values(arrays, one)
        assert row[: len(alone)] == pytest.approx(alone, abs=1e-4)
        assert np.isneginf(row[len(alone) :]).all()


class Valuing:
    """In place of a generator: every decision is valued, and takes the best action."""

    def random(self) -> float:
        return 0.55


def test_rollouts_value_every_legal_action_by_what_the_heuristic_makes_of_it() -> None:
    env = GpuSharingEnv(draw_jobs(jobs=(6, 6), worlds=("none",), arriving=0.0), RULE)
    policy = PackedByLength(longest=True)
    rng: Any = Valuing()
    found = list(rollout_values(env, policy, 2, rng))
    improved = env.result()
    for state, values in found:
        assert np.isfinite(values).tolist() == state.mask.tolist()
    steps = list(play(env, following(env, policy), 2))
    run = env.result()
    first, values = found[0]
    assert np.array_equal(first.jobs, dqngpu.state_of(*steps[0][0]).jobs)
    assert values[steps[0][1]] == pytest.approx(run.work - run.makespan)
    assert improved.makespan <= run.makespan


@pytest.mark.parametrize("start", ["rollouts", "imitate"])
def test_a_small_training_makes_a_model_that_decides(start: str, tmp_path: Path) -> None:
    args = [
        "--start", start, "--start-sets", "2", "--start-steps", "5", "--steps", "20",
        "--validate-every", "10", "--out", str(tmp_path / "dqngpu-ddqn-1.npz"),
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dqngpu, "VALIDATION_SETS", range(20_000, 20_002))
        patch.setattr(dqngpu, "KNOWN_SETS", range(21_000, 21_002))
        patch.setattr(dqngpu, "draw_jobs", lambda **more: draw_jobs(jobs=(5, 6), **more))
        assert dqngpu.main(args) == 0
    model = model_files.find("dqngpu-ddqn", state_dir=tmp_path)
    assert {trial["decisions"] for trial in model.meta["trials"]} == {0, 10, 20}
    best = min(model.meta["trials"], key=lambda trial: trial["makespan_ratio"])
    assert model.meta["margin_known"] in dqngpu.MARGINS_KNOWN
    assert model.meta["margin"] in dqngpu.MARGINS and best["makespan_ratio"] <= 1.2
    env = GpuSharingEnv(draw_jobs(jobs=(6, 6)), CapacityRule())
    for _ in play(env, following(env, LearnedGpuSharing(model)), 20_001):
        pass
    assert env.result().failures == 0


@pytest.mark.parametrize("observed", ["virtual", "slots"])
def test_a_small_training_of_the_policy_gradient_chooses_legal_actions(observed: Any) -> None:
    draw = draw_jobs(jobs=(6, 8), worlds=("none",), arriving=0.0)
    env = GpuSharingEnv(draw, CapacityRule(), reward="slowdown", observed=observed)
    args = PolicyGradientArgs(start_sets=1, start_steps=3, iterations=2, sets=1, episodes=2)
    trained = train_pg(args, env)
    assert len(trained.returns) == 2
    for _ in play(env, trained.choose, 5):
        pass
    assert not env.gpu.truncated


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"batch": 0}, "--batch"), ({"gamma": 0.0}, "--gamma"), ({"start_sets": 0}, "--start-sets")],
)
def test_bad_parameters_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        DqnGpuArgs(**wrong)


def test_what_is_trained_on_is_not_what_is_validated_on() -> None:
    assert max(dqngpu.VALIDATION_SETS) < min(dqngpu.KNOWN_SETS) < max(dqngpu.KNOWN_SETS)
    assert max(dqngpu.VALIDATION_SETS) > min(dqngpu.VALIDATION_SETS) >= dqngpu.TRAINING_SETS
