"""The choices of each heuristic, on clusters small enough to check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hrm.pipelines.policies.cluster import load
from tests.policies.cluster.views import all_fit, task_of, view_of


def _chosen(name: str, times: int = 1, **columns: Any) -> list[int]:
    arrays: dict[str, Any] = {
        key: np.array(value, dtype=np.float32) for key, value in columns.items()
    }
    view = view_of(len(next(iter(columns.values()))), **arrays)
    policy = load(name, rng=np.random.default_rng(0))
    return [policy.choose(task_of(n), view, all_fit(view)).node for n in range(times)]


def test_ect_adds_what_is_waited_and_what_is_run() -> None:
    assert _chosen("ect", expected_wait_s=[0, 5, 2], task_s=[20, 8, 12]) == [1]


def test_ect_takes_the_lowest_row_of_equals() -> None:
    assert _chosen("ect", expected_wait_s=[9, 5, 3], task_s=[4, 5, 7]) == [1]


def test_ect_avoids_what_can_never_run_the_task_and_what_nothing_knows() -> None:
    inf, nan = float("inf"), float("nan")
    assert _chosen("ect", expected_wait_s=[0, 90, nan], task_s=[inf, 9, 9]) == [1]


def test_min_wait_is_blind_to_speed_and_takes_turns() -> None:
    wait = [3.0, 0.0, 0.0, 5.0]
    assert _chosen("min-wait", 3, expected_wait_s=wait, task_s=[1, 90, 90, 1]) == [1, 2, 1]


def test_least_loaded_counts_tasks_for_each_device_then_compares_load() -> None:
    zero = [0.0] * 3
    waits: dict[str, Any] = {"waiting_batch": zero, "waiting_stream": zero}
    assert _chosen("least-loaded", running=[4, 2, 1], cores=[16, 1, 1], gpus=zero, **waits) == [0]
    load_of: dict[str, Any] = {
        "cpu": [0.9, 0.2, 0.5],
        "gpu": zero,
        "memory": zero,
        "gpu_memory": zero,
    }
    assert _chosen("least-loaded", running=[1, 1, 1], **waits, **load_of) == [1]


def test_demand_lets_the_idle_pull_in_turn_and_else_waits() -> None:
    columns: dict[str, Any] = {"waiting_batch": [0, 0, 2.0], "waiting_stream": [0, 0, 0.0]}
    free: dict[str, Any] = {"free_cores": [4, 1, 3.0], "expected_wait_s": [9, 9, 0.0]}
    assert _chosen("demand", 4, **columns, **free) == [0, 1, 0, 1]
    assert _chosen("demand", 1, **columns, free_cores=[0, 0, 3]) == [-1]


def test_random_reaches_every_node_that_fits() -> None:
    view = view_of(5)
    fits = np.array([True, False, True, True, False])
    policy = load("random", rng=np.random.default_rng(0))
    assert {policy.choose(task_of(n), view, fits).node for n in range(60)} == {0, 2, 3}


@pytest.mark.parametrize("name", ["ect", "min-min"])
def test_of_one_task_min_min_is_ect(name: str) -> None:
    view = view_of(30, 3)
    row = load(name, rng=np.random.default_rng(0)).choose(task_of(), view, all_fit(view)).node
    assert row == int(np.argmin(view.task_s + view.expected_wait_s))
