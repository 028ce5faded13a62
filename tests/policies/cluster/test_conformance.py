"""The contract of every cluster policy, heuristic or learned, under its guard or alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import ClusterPolicy, TaskId
from hrm.pipelines.policies.cluster import HEURISTICS, LEARNED, load
from hrm.pipelines.policies.cluster.features import Layout
from hrm.policies.guard import GuardMode
from tests.policies.cluster.views import all_fit, mlp_model, set_model, task_of, view_of

Make = Callable[[int], ClusterPolicy]


def _heuristic(name: str) -> Make:
    return lambda seed: load(name, rng=np.random.default_rng(seed))


def _learned(name: str, **options: Any) -> Make:
    model = set_model() if name == "ldwp-set" else mlp_model()
    return lambda seed: load(name, rng=np.random.default_rng(seed), model=model, **options)


def _with_history(seed: int) -> ClusterPolicy:
    model = mlp_model(layout=Layout("paper", history=4))
    return load("ldwp", rng=np.random.default_rng(seed), model=model, guarded=False)


POLICIES: dict[str, Make] = {
    **{name: _heuristic(name) for name in HEURISTICS},
    **{f"{name} alone": _learned(name, guarded=False) for name in LEARNED},
    **{
        f"{name} {mode.value}": _learned(name, mode=mode, clock_s=lambda: 0.0)
        for name in LEARNED
        for mode in GuardMode
    },
    "ldwp with a history": _with_history,
}
every = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


@every
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_only_nodes_that_fit_are_chosen_and_why_is_one_line(make: Make, data: Any) -> None:
    policy = make(0)
    for number in range(data.draw(st.integers(1, 4))):
        nodes = data.draw(st.integers(1, 130))
        view = view_of(nodes, data.draw(st.integers(0, 99)))
        fits = np.zeros(nodes, dtype=np.bool_)
        fits[list(data.draw(st.sets(st.integers(0, nodes - 1), min_size=1)))] = True
        choice = policy.choose(task_of(number), view, fits)
        assert fits[choice.node] or (choice.node == -1 and policy.name == "demand")
        assert choice.why
        assert choice.why.splitlines() == [choice.why]


@every
def test_one_seed_is_one_sequence_of_choices(make: Make) -> None:
    def choices(seed: int) -> list[int]:
        policy, found = make(seed), []
        for number in range(30):
            view = view_of(11, number)
            found.append(policy.choose(task_of(number), view, all_fit(view)).node)
            ended_id = TaskId(f"task-{number - 5}")
            policy.ended(ended_id, now=float(number), response_s=3.0, ok=number % 7 > 0)
        return found

    assert choices(1) == choices(1)


@every
def test_a_column_of_nan_stops_nothing(make: Make) -> None:
    columns = [
        field.name
        for field in dataclasses.fields(view_of(1))
        if getattr(view_of(1), field.name) is not None
        and getattr(getattr(view_of(1), field.name), "dtype", None) == np.float32
    ]
    assert len(columns) > 15
    for number, column in enumerate(columns):
        for rows in ([0], [1, 3], list(range(11))):
            bad = getattr(view_of(11), column).copy()
            bad[rows] = np.nan
            view = view_of(11, **{column: bad})
            fits = all_fit(view)
            fits[5] = False
            policy = make(0)
            choice = policy.choose(task_of(number), view, fits)
            assert fits[choice.node] or (choice.node == -1 and policy.name == "demand"), column


@every
def test_nodes_that_are_away_get_nothing(make: Make) -> None:
    policy = make(0)
    view = view_of(11)
    alive = all_fit(view)
    alive[[0, 4, 7]] = False
    for number in range(20):
        away = dataclasses.replace(view, alive=alive)
        assert alive[policy.choose(task_of(number), away, all_fit(view)).node]


@every
def test_nodes_come_and_go(make: Make) -> None:
    policy = make(0)
    for number, nodes in enumerate((11, 14, 9, 14, 3, 1, 11)):
        view = view_of(nodes, number)
        assert policy.choose(task_of(number), view, all_fit(view)).node < nodes


@every
def test_the_end_of_a_task_that_nothing_knows_is_let_pass(make: Make) -> None:
    make(0).ended(TaskId("never-seen"), now=1.0, response_s=1.0, ok=True)


def test_an_unknown_name_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(InvalidConfig, match="ect"):
        load("ects", rng=np.random.default_rng(0))
