"""The trainer, from its command line to a model that beats chance on unseen seeds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hrm.errors import InvalidConfig  # noqa: E402
from hrm.learn import environment  # noqa: E402
from hrm.learn.arguments import words_of  # noqa: E402
from hrm.learn.environment import evaluate, load, options_of  # noqa: E402
from hrm.learn.ldwp import Args, main, parse, train  # noqa: E402
from hrm.pipelines.policies.cluster import load as load_policy  # noqa: E402
from hrm.policies import model_files  # noqa: E402
from tests.learn.queueing import Queueing  # noqa: E402

HERE = "tests.learn.queueing:Queueing"
SMALL: dict[str, Any] = {
    "environment": HERE, "pretrain_decisions": 1_500, "pretrain_rounds": 6, "decisions": 600,
    "validate_every": 300, "validation_seeds": 2,
}  # fmt: skip


def _trained(tmp_path: Path, **changes: Any) -> tuple[model_files.Model, dict[str, Any]]:
    args = Args(**{**SMALL, "out": tmp_path / "model.npz", **changes})
    shares: list[float] = []
    result = train(args, lambda share, doing: shares.append(share))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    return model_files.read(args.out, kind="ldwp"), result


def _slowdown(name: str, model: model_files.Model | None = None) -> float:
    rng = np.random.default_rng(0)
    world = Queueing("200")

    def make() -> Any:
        if model is None:
            return load_policy(name, rng=rng)
        return load_policy(name, rng=rng, model=model, guarded=False)

    return evaluate(world, make, environment.TEST[:4]).log_slowdown


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"features": "paper", "history": 2},
    ],
    ids=["mlp", "paper"],
)
def test_what_is_learned_beats_chance_on_unseen_seeds(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    model, result = _trained(tmp_path, **changes)
    learned, chance = _slowdown("ldwp", model), _slowdown("random")
    assert learned < chance - 0.2
    assert result["best"]["log_slowdown"] <= result["trials"][0]["log_slowdown"]
    assert model.meta["q_abs_max"] > 0


@pytest.mark.parametrize("reward", ["delta", "smdp"])
def test_the_papers_rewards_and_losses_run_to_a_model(tmp_path: Path, reward: str) -> None:
    small = {"pretrain_decisions": 300, "pretrain_rounds": 2, "decisions": 300}
    model, _ = _trained(tmp_path, reward=reward, target="dqn", loss="squared", **small)
    assert all(np.isfinite(array).all() for array in model.arrays.values())
    assert model.meta["reward"] == reward


def test_without_pre_training_the_first_trial_is_of_a_network_that_knows_nothing(
    tmp_path: Path,
) -> None:
    small = {"decisions": 600, "validate_every": 600}
    _, without = _trained(tmp_path, pretrain_decisions=0, **small)
    _, pretrained = _trained(tmp_path, **small)
    first, last = without["trials"]
    assert first["decisions"] == 0
    assert first["log_slowdown"] > pretrained["trials"][0]["log_slowdown"]
    assert first["log_slowdown"] > last["log_slowdown"]


def test_training_goes_on_to_other_traces_and_never_touches_those_of_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    reset = Queueing.reset

    def noted(self: Queueing, seed: int) -> Any:
        seeds.append(seed)
        return reset(self, seed)

    monkeypatch.setattr(Queueing, "reset", noted)
    _trained(tmp_path, pretrain_decisions=600, pretrain_rounds=1, decisions=600)
    learned_on = [seed for seed in seeds if seed in environment.TRAINING]
    # Two show whether nodes differ; 1,000, 600 and twice 300 decisions, 200 a trace.
    assert learned_on == [0, 1, *range(12)]
    assert set(seeds) - set(learned_on) == set(environment.VALIDATION[:2])


def test_one_seed_is_one_model(tmp_path: Path) -> None:
    small = {"pretrain_decisions": 300, "pretrain_rounds": 2, "decisions": 250}
    first, _ = _trained(tmp_path, **small)
    again, _ = _trained(tmp_path, **small)
    assert all(np.array_equal(first.arrays[n], again.arrays[n]) for n in first.arrays)


def test_the_command_writes_a_model_that_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ldwp-2.npz"
    words = ["--environment", HERE, "--version", "2", "--pretrain-decisions", "300",
             "--pretrain-rounds", "2", "--decisions", "100", "--validation-seeds", "1"]  # fmt: skip
    assert main([*words, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["out"] == str(out)
    assert "pre-training" in shown.err
    model = model_files.find("ldwp", state_dir=tmp_path)
    command = model.meta["command"]
    assert re.match("python -m hrm.learn.ldwp --environment", command)
    assert parse(command.split()[3:]) == parse(words)
    assert load_policy("ldwp", rng=np.random.default_rng(0), model=model).name == "ldwp"


def test_arguments_survive_as_words() -> None:
    args = Args(history=4, reward="delta", lr=0.05)
    assert parse(words_of(args)) == args
    assert words_of(Args()) == []


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"reward": "fun"}, "slowdown"),
        ({"batch": 0}, "--batch: give at least 1"),
        ({"history": 0}, "--history"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidConfig, match=part):
        Args(**wrong)


def test_the_papers_network_wants_one_cluster(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="other nodes at every seed"):
        _trained(tmp_path, options="fixed=false")


@pytest.mark.parametrize("reference", ["nowhere:x", "tests.learn.queueing:Nothing", "json:dumps"])
def test_an_environment_that_is_none_is_refused(reference: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(reference)):
        load(reference)


def test_options_are_names_and_values() -> None:
    assert options_of("a=1, b=x,") == {"a": "1", "b": "x"}
    with pytest.raises(InvalidConfig, match="name=value"):
        options_of("a")
