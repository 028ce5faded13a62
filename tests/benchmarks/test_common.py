"""Medians, ratios, intervals, interleaving and the files of results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import common

TIMES = st.lists(st.floats(0.01, 1_000, allow_nan=False), min_size=1, max_size=8)


def test_ratio_of_medians() -> None:
    ratio = common.ratio_of_medians([1.0, 2.0, 9.0], [4.0, 4.0, 4.0])
    assert ratio.value == pytest.approx(0.5)
    assert ratio.low == pytest.approx(0.25)
    assert ratio.high == pytest.approx(2.25)
    assert str(ratio) == "0.500 [0.250, 2.250]"


def test_geometric_ratio_lets_twice_as_fast_and_twice_as_slow_cancel() -> None:
    ratio = common.geometric_ratio([([1.0], [2.0]), ([200.0], [100.0])])
    assert ratio.value == pytest.approx(1.0)
    assert ratio.low == ratio.high == pytest.approx(1.0)


@given(TIMES, TIMES)
def test_the_interval_is_reproducible_and_within_the_extremes(
    ours: list[float], peers: list[float]
) -> None:
    ratio = common.ratio_of_medians(ours, peers)
    assert ratio == common.ratio_of_medians(ours, peers)
    assert ratio.low <= ratio.high
    slack = 1 + 1e-9
    assert min(ours) / max(peers) <= ratio.low * slack
    assert ratio.high <= max(ours) / min(peers) * slack


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        common.median([])
    with pytest.raises(ValueError, match="at least one value"):
        common.ratio_of_medians([], [1.0])
    with pytest.raises(ValueError, match="at least one value"):
        common.geometric_ratio([])


def test_every_second_round_runs_backwards() -> None:
    order = common.interleaved(["a", "b"], 3)
    assert order == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_the_two_options_of_every_benchmark(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    common.add_common_arguments(parser)
    given = parser.parse_args(["--quick", "--json", str(tmp_path / "x.json")])
    assert given.quick
    assert given.json == tmp_path / "x.json"


def test_results_state_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "RESULTS_DIR", tmp_path / "results")
    document: dict[str, Any] = {
        "provenance": common.provenance("benchmarks.x", ("numpy",)),
        "ratio": 0.5,
    }
    report, numbers = common.write_results("x", "X against Y", document, "The body.")
    text = report.read_text()
    assert text.startswith("# X against Y\n")
    assert "python -m benchmarks.x" in text
    assert "numpy" in text
    assert f"loop {document['provenance']['machine']['loop_ms']} ms" in text
    assert text.endswith("The body.\n")
    assert json.loads(numbers.read_text()) == document
    assert document["provenance"]["machine"]["cores"] >= 1


def test_a_table_of_numbers_and_gaps() -> None:
    table = common.table(["name", "s"], [["a", 1.23456], ["b", None]])
    assert table == "| name | s |\n|---|---|\n| a | 1.235 |\n| b | - |"
