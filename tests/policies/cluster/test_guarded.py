"""Learned cluster policies under their guard: each reason for a fallback, and its report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidConfig, NotFound
from hrm.pipelines.core.model import Choice, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.policies.cluster import HEURISTIC, load
from hrm.pipelines.policies.cluster.features import TASK_FIELDS, Layout
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.pipelines.policies.cluster.ldwp import Ldwp, LdwpSet
from hrm.pipelines.policies.cluster.placement_log import PlacementLog, read_records
from hrm.pipelines.policies.cluster.scale_free import NODE_INPUTS, observe_set
from hrm.policies import model_files
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import Model
from tests.policies.cluster.views import all_fit, mlp_model, set_model, task_of, view_of

RNG = np.random.default_rng(0)


def guarded(model: Model, mode: GuardMode = GuardMode.ON, **options: Any) -> GuardedClusterPolicy:
    options.setdefault("clock_s", lambda: 0.0)
    policy = load(model.kind, rng=RNG, model=model, mode=mode, **options)
    assert isinstance(policy, GuardedClusterPolicy)
    return policy


def _chosen(
    policy: GuardedClusterPolicy, view: PipelineClusterView, task: TaskSpec | None = None
) -> Choice:
    return policy.choose(task or task_of(), view, all_fit(view))


def _fell_back(
    policy: GuardedClusterPolicy,
    view: PipelineClusterView,
    reason: str,
    task: TaskSpec | None = None,
) -> str:
    choice = _chosen(policy, view, task)
    heuristic = load(HEURISTIC, rng=RNG).choose(task or task_of(), view, all_fit(view))
    assert choice.node == heuristic.node
    assert f"; {HEURISTIC} decided, not {policy.name}: {reason}: " in choice.why
    assert policy.guard.status(0.0).fallbacks == {reason: 1}
    return choice.why


both = pytest.mark.parametrize("model", [set_model(), mlp_model()], ids=str)


@both
def test_in_its_element_the_learned_policy_decides(model: Model) -> None:
    view = view_of(11)
    choice = _chosen(guarded(model), view)
    alone = load(model.kind, rng=RNG, model=model, guarded=False)
    assert choice.node == alone.choose(task_of(), view, all_fit(view)).node
    assert choice.why.startswith(f"{view.names[choice.node]}: Q ")
    assert f"best of 11 ({model})" in choice.why


@both
def test_not_finite(model: Model) -> None:
    bad = np.full(11, np.nan, dtype=np.float32)
    _fell_back(guarded(model), view_of(11, cpu=bad), "not-finite")


def _with(model: Model, **changes: Any) -> Model:
    meta = {k: v for k, v in changes.items() if k in model.meta}
    arrays = {k: v for k, v in changes.items() if k in model.arrays}
    return dataclasses.replace(
        model, meta={**model.meta, **meta}, arrays={**model.arrays, **arrays}
    )


@both
def test_a_value_ten_times_beyond_training(model: Model) -> None:
    why = _fell_back(guarded(_with(model, q_abs_max=1e-3)), view_of(11), "value-out-of-range")
    assert "in training at most 0.001" in why


@both
def test_out_of_distribution(model: Model) -> None:
    low = model.arrays["low"].copy()
    low[::3] = 3.0  # no input is that large
    why = _fell_back(guarded(_with(model, low=low)), view_of(11), "out-of-distribution")
    if model.kind == "ldwp-set":
        assert ", furthest: " in why and ", in training 3.00 to " in why
        assert "hrm policy train ldwp-set --from-shadow" in why
    few = model.arrays["low"].copy()
    few[-1] = 3.0
    assert "Q " in _chosen(guarded(_with(model, low=few)), view_of(11)).why


@both
def test_a_hundredth_beyond_training_is_not_outside(model: Model) -> None:
    view = view_of(11, cpu=np.ones(11, dtype=np.float32))
    high = model.arrays["high"].copy()
    at = 0 if model.kind == "ldwp-set" else len(TASK_FIELDS)

    def outside(most: float) -> float:
        high[at] = most
        alone = load(model.kind, rng=RNG, model=_with(model, high=high), guarded=False)
        assert isinstance(alone, Ldwp | LdwpSet)
        return alone.propose(task_of(), view, all_fit(view)).outside

    assert outside(0.98) > outside(0.991) == outside(1.0)


def test_an_unknown_type() -> None:
    task = task_of(pipeline="speech")
    assert "never seen speech" in _fell_back(
        guarded(mlp_model()), view_of(11), "unknown-type", task
    )
    assert "Q " in _chosen(guarded(set_model()), view_of(11), task).why, "it knows no types"


@both
def test_a_step_that_never_ran_here(model: Model) -> None:
    """Its time is a guess, and so are the ideal and all that is measured by it."""
    why = _fell_back(guarded(model), view_of(11, unmeasured_steps=1), "unmeasured")
    assert "1 of its 2 steps never ran here" in why


@pytest.mark.parametrize("mode", [GuardMode.ON, GuardMode.SHADOW])
def test_how_a_task_ends_whose_times_were_guesses_is_not_compared(mode: GuardMode) -> None:
    """Neither where the learned policy left it to the heuristic, nor where that was to decide."""
    policy = guarded(set_model(), mode)
    for number, guesses in enumerate((1, 0)):
        _chosen(policy, view_of(11, unmeasured_steps=guesses), task_of(number))
        policy.ended(TaskId(f"task-{number}"), now=1.0, response_s=9.0, ok=False)
    status = policy.guard.status(1.0)
    assert status.compared + status.reference_compared == 1


def test_members_that_are_further_apart_than_ever_in_training() -> None:
    """Every input is within its range; what is strange is how they come together."""
    usual = _with(set_model(), spread_max=1e-4)
    assert "at most 0.0001" in _fell_back(guarded(usual), view_of(11), "disagreement")
    assert "Q " in _chosen(guarded(set_model()), view_of(11)).why


def test_where_members_are_often_too_far_apart_the_heuristic_decides_for_a_while() -> None:
    alone = load("ldwp-set", rng=RNG, model=set_model(), guarded=False)
    assert isinstance(alone, LdwpSet)
    views = [view_of(11, seed) for seed in range(300)]
    spreads = [alone.propose(task_of(), view, all_fit(view)).spread for view in views]
    limit = float(np.percentile(spreads, 90))
    calm = [view for view, spread in zip(views, spreads, strict=True) if spread <= limit]
    policy = guarded(_with(set_model(), spread_max=limit))
    for number, view in enumerate(views):
        _chosen(policy, view, task_of(number))
    assert "of the last 200 tasks" in _chosen(policy, calm[0]).fallback
    for number in range(200):
        _chosen(policy, calm[number % len(calm)], task_of(number))
    assert "Q " in _chosen(policy, calm[0]).why


def test_what_was_placed_and_how_it_ended_is_logged_in_every_mode(tmp_path: Path) -> None:
    view = view_of(11)
    for mode in (GuardMode.SHADOW, GuardMode.ON):
        policy = guarded(set_model(), mode)
        node = _chosen(policy, view, task_of(1)).node
        policy.ended(TaskId("task-1"), now=9.0, response_s=2.0 * float(view.task_s.min()), ok=True)
        _chosen(policy, view, task_of(2))
        policy.ended(TaskId("task-2"), now=9.0, response_s=1.0, ok=False)
        policy.ended(TaskId("never-placed"), now=9.0, response_s=1.0, ok=True)
        (tmp_path / "log.npz").write_bytes(policy.log.dump())
        first, second = read_records(tmp_path / "log.npz")
        assert first.state.rows[first.action] == node
        assert first.slowdown == pytest.approx(2.0)
        assert first.state.nodes.shape == (11, len(NODE_INPUTS))
        assert np.isinf(second.slowdown)


def test_a_log_that_is_damaged_or_of_other_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"ldwp-set\.placements\.npz"):
        read_records(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(InvalidConfig, match="is no log of placements"):
        read_records(tmp_path / "text.npz")
    log = PlacementLog()
    view = view_of(3)
    log.placed(TaskId("a"), observe_set(task_of(), view, all_fit(view)), 1, 1.0)
    log.ended(TaskId("a"), response_s=2.0, ok=True)
    (tmp_path / "log.npz").write_bytes(log.dump())
    with np.load(tmp_path / "log.npz") as held:
        sound = dict(held)
    for changes, what in (
        ({"schema": np.frombuffer(b"old", dtype=np.uint8)}, "features old"),
        ({"actions": np.array([3])}, "damaged"),
        ({"nodes": sound["nodes"][:-1]}, "damaged"),
        ({"users": np.array([0, 1])}, "damaged"),
    ):
        np.savez(tmp_path / "log.npz", **{**sound, **changes})
        with pytest.raises(InvalidConfig, match=what):
            read_records(tmp_path / "log.npz")


def test_a_record_says_whose_it_is_and_whether_it_can_have_been(tmp_path: Path) -> None:
    log, view = PlacementLog(), view_of(3)
    sound = observe_set(task_of(), view, all_fit(view))
    states = {
        "sound": sound,
        "nan": sound._replace(nodes=sound.nodes * np.nan),
        "absurd": sound._replace(nodes=sound.nodes + 1e15),
        "odd task": sound._replace(task=sound.task - 100.0),
        "no time": sound,
        "failed": sound,
    }
    for name, state in states.items():
        log.placed(TaskId(name), state, 1, 1.0, f"user of {name}")
        response_s = 0.0 if name == "no time" else 2.0
        log.ended(TaskId(name), response_s=response_s, ok=name != "failed")
    (tmp_path / "log.npz").write_bytes(log.dump())
    found = read_records(tmp_path / "log.npz")
    good = [one.is_sound for one in found]
    assert dict(zip(states, good, strict=True)) == {n: n in ("sound", "failed") for n in states}
    assert len({one.user for one in found}) == 6
    with np.load(tmp_path / "log.npz") as held:
        older = {name: held[name] for name in held if name != "users"}
    np.savez(tmp_path / "log.npz", **older)
    assert {one.user for one in read_records(tmp_path / "log.npz")} == {""}


@both
@pytest.mark.parametrize(("least", "most", "good"), [(22, 30, True), (23, 30, False),
                                                     (1, 3, True), (1, 2, False)])  # fmt: skip
def test_the_number_of_nodes(model: Model, least: int, most: int, good: bool) -> None:
    policy = guarded(_with(model, nodes_min=least, nodes_max=most))
    if good:
        assert "Q " in _chosen(policy, view_of(11)).why
    else:
        _fell_back(policy, view_of(11), "node-count")


@both
def test_stale_reports(model: Model) -> None:
    def at(*ages: float) -> PipelineClusterView:
        return view_of(11, report_age_s=np.resize(np.array(ages, dtype=np.float32), 11))

    policy = guarded(model, heartbeat_s=2.0)
    assert "Q " in _chosen(policy, at(5.9)).why
    assert "half of the nodes last reported 6.1 s" in _fell_back(policy, at(6.1), "stale-snapshot")
    best = _chosen(policy, at(0.1)).node
    ages = np.full(11, 0.1)
    ages[best] = 7.0
    why = _fell_back(guarded(model, heartbeat_s=2.0), at(*ages), "stale-snapshot")
    assert f"n{best} last reported 7.0 s ago" in why


@both
def test_over_its_budget(model: Model) -> None:
    ticks = iter(range(1_000_000))
    policy = guarded(model, clock_s=lambda: next(ticks) * 0.01)
    assert "10.00 ms of 1 ms" in _fell_back(policy, view_of(11), "over-budget")


@both
def test_features_of_another_hrm_are_never_fed_to_it(model: Model) -> None:
    policy = guarded(dataclasses.replace(model, schema="old"))
    why = _fell_back(policy, view_of(11), "schema")
    assert "hrm policy train" in why
    with pytest.raises(InvalidConfig, match="was trained on features old"):
        load(model.kind, rng=RNG, model=policy_model(model), guarded=False)


def policy_model(model: Model) -> Model:
    return dataclasses.replace(model, schema="old")


@both
def test_a_model_of_another_shape_or_without_its_metadata_is_an_error(model: Model) -> None:
    name = next(iter(model.arrays))
    other = {**model.arrays, name: np.zeros((3, 3), dtype=np.float32)}
    with pytest.raises(InvalidConfig, match="the network needs"):
        guarded(dataclasses.replace(model, arrays=other))
    meta = {key: value for key, value in model.meta.items() if key != "nodes_min"}
    with pytest.raises(InvalidConfig, match="'nodes_min'"):
        guarded(dataclasses.replace(model, meta=meta))
    with pytest.raises(InvalidConfig, match="is of kind"):
        load("ldwp" if model.kind == "ldwp-set" else "ldwp-set", rng=RNG, model=model)


def test_a_model_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(model_files, "PACKAGE_DIR", tmp_path / "shipped")
    with pytest.raises(NotFound, match="hrm policy train ldwp"):
        load("ldwp", rng=RNG, state_dir=tmp_path)
    model_files.write(mlp_model(), tmp_path / "ldwp-1.npz")
    assert load("ldwp", rng=RNG, state_dir=tmp_path).name == "ldwp"
    assert load("ldwp", rng=RNG, model=tmp_path / "ldwp-1.npz").name == "ldwp"


def test_what_the_heuristic_expected_is_what_the_watchdog_measures_by() -> None:
    policy = guarded(set_model(), GuardMode.SHADOW)
    view = view_of(11)
    for number in range(25):
        node = _chosen(policy, view, task_of(number)).node
        expected_s = float(view.expected_wait_s[node] + view.task_s[node])
        policy.ended(
            TaskId(f"task-{number}"), now=float(number), response_s=2.0 * expected_s, ok=True
        )
    assert policy.guard.status(25.0).reference_p95 == pytest.approx(2.0)


def test_the_history_holds_what_was_done_not_what_was_proposed() -> None:
    model = mlp_model(layout=Layout("paper", history=2))
    shadow, alone = (
        guarded(model, GuardMode.SHADOW),
        load("ldwp", rng=RNG, model=model, guarded=False),
    )
    view = view_of(11)
    done = _chosen(shadow, view).node
    assert done != alone.choose(task_of(), view, all_fit(view)).node
    learned: Any = shadow._learned
    state = learned._encoder.observe(task_of(), view, all_fit(view))
    assert np.flatnonzero(state.x[68:79]).tolist() == [done]
