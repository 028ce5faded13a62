"""Load balance by the paper's equations, and the values of a result."""

from __future__ import annotations

import pytest

from benchmarks.pipelines.run_measures import Result, Span, balance, load_of
from benchmarks.simulation.figures import interval

USES = [(0.9, 0.5, 0.8, 0.6), (0.3, 0.2, 0.4, 0.1), (0.6, 0.4, 0.7, 0.3)]


def test_the_papers_load_balance() -> None:
    loads = load_of(USES)
    assert loads.tolist() == pytest.approx([0.70, 0.25, 0.50])
    assert loads.mean() == pytest.approx(0.483333, abs=5e-7)
    assert loads.std() == pytest.approx(0.184089, abs=5e-7)
    assert balance(loads) == pytest.approx(0.815911, abs=5e-7)


def test_the_ends_of_the_scale() -> None:
    assert balance([0.0, 1.0]) == 0.5
    assert balance([0.0, 0.0, 0.0]) == 1.0


def test_percent_are_no_shares() -> None:
    with pytest.raises(AssertionError):
        balance([70.0, 25.0, 50.0])


def test_the_interval_of_the_note() -> None:
    found = interval([2.0, 4.0, 3.0, 5.0, 1.0])
    assert found.mean == 3.0
    assert found.high - found.mean == pytest.approx(1.963, abs=5e-4)


def _result(**changes: object) -> Result:
    given: dict[str, object] = {
        "cluster_policy": "ect", "node_policy": "pats", "seed": 0, "rate_per_min": 60.0,
        "tasks": 4, "arrived_s": 90.0,
        "ended": [(20.0, "a", 5.0, 5.0), (40.0, "a", 8.0, 4.0), (80.0, "b", 6.0, 3.0),
                  (120.0, "b", 30.0, 10.0)],
        "failed": 0, "spans": [Span("a", "1", 30.0, 40.0, 50.0, 120.0),
                               Span("b", "2", 10.0, 20.0, 22.0, 60.0)],
        "balance": [(10.0, 0.9, 0.2), (60.0, 0.7, 0.4)], "decision_us": [10.0, 20.0],
        "fallbacks": 0, "refused": 0, "retries": 0, "events": 9, "log_hash": "",
    }  # fmt: skip
    return Result(**{**given, **changes})  # type: ignore[arg-type]


def test_throughput_counts_what_ends_in_the_window() -> None:
    result = _result()
    assert result.window == (30.0, 90.0)
    assert result.throughput() == 2.0
    assert result.throughput("a") == 1.0
    assert result.whole == 2.0
    assert result.arrival_cap == pytest.approx(60.0 * 4 / 90.0)


def test_gpu_figures_are_of_all_one_node_or_one_type() -> None:
    result = _result()
    assert result.gpu() == pytest.approx((40 / 180, 60 / 180, 72 / 60))
    assert result.gpu(worker="b") == pytest.approx((1 / 6, 1 / 3, 1.1))
    assert result.gpu(kind="1") == pytest.approx((0.25, 1 / 3, 1.25))


def test_balance_up_to_a_moment() -> None:
    result = _result()
    assert result.balance_until(30.0) == (0.9, 0.2)
    assert result.balance_until(90.0) == pytest.approx((0.8, 0.3))
    assert result.balance_until(5.0) == (1.0, 0.0)
