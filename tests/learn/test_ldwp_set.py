"""The trainer of ``ldwp-set``: its environment, its ensemble, and models that beat chance."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from hrm.errors import InvalidConfig, InvalidRequest, NotFound  # noqa: E402
from hrm.learn import environment  # noqa: E402
from hrm.learn.arguments import words_of  # noqa: E402
from hrm.learn.environment import evaluate  # noqa: E402
from hrm.learn.ldwp_set import (  # noqa: E402
    EnsembleArgs,
    PlacementSample,
    batch_of,
    fit,
    fresh,
    main,
    no_wider,
    of_no_user_most,
    parse,
    q_values,
    returns_of,
    train,
)
from hrm.learn.placement_env import REWARD_LEAST, PlacementEnv, reward_of  # noqa: E402
from hrm.pipelines.core.model import TaskId  # noqa: E402
from hrm.pipelines.policies.cluster import load as load_policy  # noqa: E402
from hrm.pipelines.policies.cluster.networks import set_q  # noqa: E402
from hrm.pipelines.policies.cluster.placement_log import PlacementLog, PlacementRecord  # noqa: E402
from hrm.pipelines.policies.cluster.scale_free import observe_set  # noqa: E402
from hrm.policies import model_files  # noqa: E402
from tests.learn.queueing import Queueing  # noqa: E402
from tests.policies.cluster.views import all_fit, set_model, task_of, view_of  # noqa: E402

HERE = "tests.learn.queueing:Queueing"
SMALL: dict[str, Any] = {
    "environment": HERE, "options": "tasks=100,fixed=false", "rounds": 2, "traces": 4,
    "epochs": 6, "validation_seeds": 2,
}  # fmt: skip


def _trained(tmp_path: Path, **changes: Any) -> tuple[model_files.Model, dict[str, Any]]:
    args = EnsembleArgs(**{**SMALL, "out": tmp_path / "ldwp-set-2.npz", **changes})
    shares: list[float] = []
    result = train(args, lambda share, doing: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1.0
    return model_files.read(args.out, kind="ldwp-set"), result


def test_the_environment_keeps_to_the_interface_of_gymnasium() -> None:
    env = PlacementEnv(Queueing("20", "false"))
    traces = []
    for _ in range(2):
        seen, (observation, info) = [], env.reset(seed=3)
        over = False
        while not over:
            assert env.observation_space.contains(observation)
            allowed = np.flatnonzero(info["action_mask"])
            assert len(allowed) == len(info["state"].rows)
            seen.append(observation["nodes"])
            observation, reward, terminated, over, info = env.step(int(allowed[0]))
            assert np.isfinite(float(reward)) and not terminated
        assert not info["action_mask"].any()
        traces.append(np.stack(seen))
    assert np.array_equal(traces[0], traces[1]), "one seed is one trace"


def test_every_task_is_credited_to_its_own_decision_also_those_that_end_late() -> None:
    env = PlacementEnv(Queueing("40"))
    _, info = env.reset(seed=1)
    seen: dict[int, float] = {}
    total, steps, over = 0.0, 0, False
    while not over:
        _, reward, terminated, over, info = env.step(int(np.flatnonzero(info["action_mask"])[-1]))
        seen |= dict(info["ended"])
        total, steps = total + float(reward), steps + 1
        assert not terminated
    assert set(seen) == set(range(40)) and steps == 40
    assert total == pytest.approx(sum(seen.values()))


def test_a_masked_action_and_one_after_the_end_are_errors() -> None:
    env = PlacementEnv(Queueing("1"))
    env.reset(seed=0)
    with pytest.raises(InvalidRequest, match="action 6 is not among the 6"):
        env.step(6)
    env.step(0)
    with pytest.raises(InvalidRequest, match="reset"):
        env.step(0)


def test_a_reward_is_bounded_and_failure_is_the_worst() -> None:
    assert reward_of(1.0) == 0.0
    assert reward_of(np.e) == pytest.approx(-1.0)
    assert reward_of(1e9) == reward_of(np.inf) == reward_of(-1.0) == REWARD_LEAST


def test_returns_by_hand() -> None:
    rewards = np.array([1.0, 2.0, 4.0, 8.0], dtype=np.float32)
    assert returns_of(rewards, 0.0, 3).tolist() == [1, 2, 4, 8]
    assert returns_of(rewards, 0.5, 2).tolist() == [3, 6, 8, 8]


def test_torch_and_numpy_have_the_same_values_and_none_where_no_candidate_is() -> None:
    weights = fresh(torch.Generator().manual_seed(0))
    states = [observe_set(task_of(), view_of(n, n), all_fit(view_of(n))) for n in (3, 17, 1, 200)]
    found = q_values(weights, batch_of(states)).detach().numpy()
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    for number, state in enumerate(states):
        expected = set_q(arrays, state.nodes, state.task)
        assert found[:, number, : len(state.rows)] == pytest.approx(expected, abs=1e-5)
        assert np.isneginf(found[:, number, len(state.rows) :]).all()


def test_members_agree_where_there_are_data_and_less_elsewhere() -> None:
    rng = np.random.default_rng(0)
    weights = fresh(torch.Generator().manual_seed(0))

    def sample(seed: int, **columns: Any) -> PlacementSample:
        view = view_of(5, seed, **columns)
        state = observe_set(task_of(), view, all_fit(view))
        action = int(rng.integers(5))
        return PlacementSample(state, action, -float(state.nodes[action, 9]))

    known = [sample(seed) for seed in range(300)]
    strange = [
        sample(seed, expected_wait_s=np.full(5, 900.0, np.float32),
               task_s=np.linspace(1, 900, 5, dtype=np.float32))
        for seed in range(40)
    ]  # fmt: skip
    first = fit(weights, known, epochs=1, batch=50, lr=1e-3, rng=rng)
    last = fit(weights, known, epochs=25, batch=50, lr=3e-3, rng=rng)
    assert last < 0.5 * first
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}

    def spread(samples: list[PlacementSample]) -> float:
        each = [set_q(arrays, one.state.nodes, one.state.task).std(axis=0) for one in samples]
        return float(np.mean(each))

    assert spread(strange) > 2.0 * spread(known)


def test_what_is_learned_beats_chance_on_unseen_seeds(tmp_path: Path) -> None:
    model, result = _trained(tmp_path, traces=8)

    def log_slowdown(make: Any) -> float:
        world = Queueing("100", "false")
        return evaluate(world, make, environment.TEST[:4]).log_slowdown

    rng = np.random.default_rng(0)
    learned = log_slowdown(lambda: load_policy("ldwp-set", rng=rng, model=model, guarded=False))
    assert learned < log_slowdown(lambda: load_policy("random", rng=rng)) - 0.2
    assert result["best"]["log_slowdown"] == min(t["log_slowdown"] for t in result["trials"])
    assert set(result["heuristics"]) == {"ect", "min-wait", "least-loaded"}
    assert model.meta["spread_max"] > 0 and model.meta["q_abs_max"] > 0


def test_training_never_touches_the_seeds_of_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    reset = Queueing.reset

    def noted(self: Queueing, seed: int) -> Any:
        seeds.append(seed)
        return reset(self, seed)

    monkeypatch.setattr(Queueing, "reset", noted)
    _trained(tmp_path, epochs=1)
    assert [seed for seed in seeds if seed in environment.TRAINING] == list(range(8))
    assert set(seeds) - set(range(8)) == set(environment.VALIDATION[:2])


def test_one_seed_is_one_model(tmp_path: Path) -> None:
    first, _ = _trained(tmp_path, epochs=1)
    again, _ = _trained(tmp_path, epochs=1)
    assert all(np.array_equal(first.arrays[n], again.arrays[n]) for n in first.arrays)


def test_a_discount_counts_what_follows(tmp_path: Path) -> None:
    bandit, _ = _trained(tmp_path, epochs=1)
    far, _ = _trained(tmp_path, epochs=1, gamma=0.9)
    assert not np.array_equal(bandit.arrays["w"], far.arrays["w"])
    assert "--gamma 0.9" in far.meta["command"]


def _log(path: Path, records: int, value: float) -> Path:
    log = PlacementLog()
    for number in range(records):
        view = view_of(5, number)
        state = observe_set(task_of(), view, all_fit(view))
        log.placed(TaskId(str(number)), state, number % 5, 1.0)
        log.ended(TaskId(str(number)), response_s=value, ok=True)
    path.write_bytes(log.dump())
    return path


def test_it_is_fine_tuned_by_what_a_master_has_logged(tmp_path: Path) -> None:
    models = tmp_path / "models"
    newest = dataclasses.replace(set_model(), version=99)
    model_files.write(newest, models / "ldwp-set-99.npz")
    log = _log(tmp_path / "log.npz", 200, 3.0)
    args = EnsembleArgs(from_shadow=str(log), models=str(models), out=tmp_path / "ldwp-set-100.npz",
                version=100, batch=32, epochs=3)  # fmt: skip
    result = train(args)
    assert result["tuned"]["after"] < 0.7 * result["tuned"]["before"]
    model = model_files.read(tmp_path / "ldwp-set-100.npz", kind="ldwp-set")
    assert model.meta["tuned"]["placements"] == 200
    assert load_policy("ldwp-set", rng=np.random.default_rng(0), model=model).name == "ldwp-set"


def test_a_log_widens_no_guard_unless_asked(tmp_path: Path) -> None:
    """What is in it is the word of users' workers."""
    models = tmp_path / "models"
    narrow = set_model(nodes_min=4, nodes_max=4, q_abs_max=0.01, spread_max=0.01)
    narrow.arrays["low"][:], narrow.arrays["high"][:] = -0.1, 0.1
    model_files.write(dataclasses.replace(narrow, version=99), models / "ldwp-set-99.npz")
    log = _log(tmp_path / "log.npz", 200, 3.0)

    def tuned(**more: Any) -> model_files.Model:
        out = tmp_path / "ldwp-set-100.npz"
        train(
            EnsembleArgs(from_shadow=str(log), models=str(models), out=out, version=100, batch=32,
                         epochs=3, **more)
        )  # fmt: skip
        return model_files.read(out, kind="ldwp-set")

    bound = tuned()
    assert bound.arrays["low"].min() >= -0.1 and bound.arrays["high"].max() <= 0.1
    names = ("nodes_min", "nodes_max", "q_abs_max", "spread_max")
    assert [bound.meta[name] for name in names] == [4, 4, 0.01, 0.01]
    wide = tuned(widen_guards=1)
    assert wide.arrays["high"].max() > 0.1
    assert (wide.meta["nodes_min"], wide.meta["q_abs_max"] > 0.01) == (5, True)
    assert no_wider(bound, wide).meta["q_abs_max"] == 0.01, "what is narrower stays"


def test_what_cannot_have_been_is_left_out_and_counted(tmp_path: Path) -> None:
    models = tmp_path / "models"
    model_files.write(dataclasses.replace(set_model(), version=99), models / "ldwp-set-99.npz")
    path = _log(tmp_path / "log.npz", 100, 3.0)
    with np.load(path) as held:
        arrays = dict(held)
    arrays["nodes"][:5] = np.nan
    arrays["nodes"][5:10] = 1e15
    np.savez(path, **arrays)
    args = EnsembleArgs(from_shadow=str(path), models=str(models), version=100, batch=32, epochs=3,
                        out=tmp_path / "ldwp-set-100.npz")  # fmt: skip
    tuned = train(args)["tuned"]
    assert (tuned["placements"], tuned["absurd"], tuned["crowded"]) == (98, 2, 0)
    with pytest.raises(InvalidConfig, match=r"98 placements \(2 absurd ones and 0 of one user"):
        train(dataclasses.replace(args, batch=256))


def test_no_user_has_more_of_a_log_than_all_others_together() -> None:
    view = view_of(3)
    state = observe_set(task_of(), view, all_fit(view))

    def records(users: str) -> list[PlacementRecord]:
        return [PlacementRecord(state, 0, float(n + 1), user) for n, user in enumerate(users)]

    kept = of_no_user_most(records("aabaacaaaa"))
    assert [(one.user, one.slowdown) for one in kept] == [("b", 3), ("c", 6), ("a", 9), ("a", 10)]
    assert len(of_no_user_most(records("aaaa"))) == 4, "there is no one to protect"
    assert len(of_no_user_most(records("aabbc"))) == 5


def test_a_log_that_is_missing_or_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no log of placements"):
        train(EnsembleArgs(from_shadow=str(tmp_path / "none.npz")))
    log = _log(tmp_path / "log.npz", 20, 3.0)
    with pytest.raises(InvalidConfig, match="has 20 placements, fewer than 320"):
        train(EnsembleArgs(from_shadow=str(log)))


def test_the_command_writes_a_model_that_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ldwp-set-9.npz"
    words = ["--environment", HERE, "--options", "tasks=30", "--version", "9", "--rounds", "1",
             "--traces", "1", "--epochs", "1", "--validation-seeds", "1"]  # fmt: skip
    assert main([*words, "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == str(out)
    model = model_files.find("ldwp-set", state_dir=tmp_path)
    command = model.meta["command"].split()
    assert command[:3] == ["python", "-m", "hrm.learn.ldwp_set"]
    assert parse(command[3:]) == parse(words)
    assert words_of(EnsembleArgs()) == []


@pytest.mark.parametrize(
    ("wrong", "part"),
    [({"rounds": 0}, "--rounds"), ({"gamma": 1.0}, "--gamma"), ({"epsilon": 0.9}, "--epsilon")],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidConfig, match=part):
        EnsembleArgs(**wrong)
