"""The contract of every node policy, for any view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from hrm.errors import InvalidConfig
from hrm.pipelines.core.feasibility import refusal
from hrm.pipelines.core.model import Device, NodePolicy, NodeView
from hrm.pipelines.policies.corun import known, load
from tests.policies.corun.worlds import Known, gpu, node_view, run_all, started, subtask, views

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in known()},
    "dqngpu tetris": ("dqngpu", {"sharing": "tetris"}),
    "iawp cosine": ("iawp", {"score": "cosine"}),
    "iawp overload": ("iawp", {"score": "overload"}),
    "iawp learned": ("iawp", {"score": "learned"}),
    "iawp guarded": ("iawp", {"tail_guard": True, "steal": True, "queue_length": 2}),
}

every = pytest.mark.parametrize("variant", sorted(VARIANTS))


def policy_of(variant: str, seed: int = 1) -> NodePolicy:
    name, options = VARIANTS[variant]
    return load(name, rng=np.random.default_rng(seed), **options)


@every
@settings(max_examples=40, deadline=None)
@given(view=views())
def test_what_it_starts_is_ready_and_fits(variant: str, view: NodeView) -> None:
    for start in policy_of(variant).dispatch(view):
        one = {one.key: one for one in view.ready}[start.key]
        assert refusal(view, one, start.device, start.number) == ""
        view = started(view, start)


@every
@settings(max_examples=15, deadline=None)
@given(view=views())
def test_the_same_seed_and_views_give_the_same_starts(variant: str, view: NodeView) -> None:
    one, other = policy_of(variant), policy_of(variant)
    assert [one.dispatch(view), one.dispatch(view)] == [other.dispatch(view), other.dispatch(view)]


@every
def test_work_for_one_device_alone_goes_there(variant: str) -> None:
    ready = [subtask("track"), subtask("batch")]
    view = node_view(ready, Known(), idle=[2], cores=4, gpus=[gpu(1)])
    found = {start.key: (start.device, start.number) for start in policy_of(variant).dispatch(view)}
    assert found == {ready[0].key: (Device.CPU, 2), ready[1].key: (Device.GPU, 1)}


@every
def test_everything_ends(variant: str) -> None:
    ready = [subtask(kind, task=f"t{n}") for n in range(9) for kind in ("edges", "track", "batch")]
    features = {"edges": [0.6] * 8, "batch": [0.8] * 8}
    makespan_s, _ = run_all(policy_of(variant), ready, Known(features=features), cores=2, gpus=2)
    assert makespan_s <= 4.0 * len(ready)


@every
def test_a_node_without_gpus_runs_what_it_can(variant: str) -> None:
    ready = [subtask("edges"), subtask("batch")]
    starts = policy_of(variant).dispatch(node_view(ready, Known(), idle=[0, 1]))
    assert [(start.key, start.device) for start in starts] == [(ready[0].key, Device.CPU)]


@every
def test_what_can_never_fit_delays_nothing(variant: str) -> None:
    huge, small = subtask("batch"), subtask("edges", since=1.0)
    estimates = Known(gpu_memory_mib={"batch": 9000.0})
    policy = policy_of(variant)
    for now in (0.0, 1000.0):
        view = node_view([huge, small], estimates, now=now, gpus=[gpu(0)])
        assert [start.key for start in policy.dispatch(view)] == [small.key]


def test_a_wrong_name_or_option_is_named() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidConfig, match=r"'best'.*iawp, mct, min-min, pats, random"):
        load("best", rng=rng)
    with pytest.raises(InvalidConfig, match=r"'sine'.*cosine, learned, overload"):
        load("iawp", rng=rng, score="sine")
    with pytest.raises(InvalidConfig, match=r"'pats'.*queue_length"):
        load("pats", rng=rng, queue_length=3)
