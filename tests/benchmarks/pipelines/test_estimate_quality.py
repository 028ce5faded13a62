"""The benchmark of spreads measures what it states, on data of which the answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pipelines import estimate_quality
from benchmarks.pipelines.estimate_quality import AFTER, CHOSEN_ON, SHARES


def data(directory: Path) -> Path:
    """Queries of three sizes, two stages each, of log-normal times."""
    rng = np.random.default_rng(5)
    (directory / "decima_tpch").mkdir()
    for scale in (*CHOSEN_ON, "tpch_20g"):
        queries = {}
        for query in range(1, 4):
            times = {
                stage: np.exp(rng.normal(7.0 + int(stage), 0.4, 300)).tolist() for stage in "12"
            }
            queries[str(query)] = {
                "num_stages": 2,
                "edges": [["1", "2"]],
                "task_durations_ms": {
                    stage: {"rest_wave": {"2": ms}, "first_wave": {}, "fresh_durations": {}}
                    for stage, ms in times.items()
                },
            }
        (directory / "decima_tpch" / f"{scale}.json").write_text(json.dumps(queries))
    return directory


def test_quantiles_of_held_out_runs_are_what_is_counted(tmp_path: Path) -> None:
    series = estimate_quality.series_of(data(tmp_path), seed=1)
    assert len(series) == 18
    rows = estimate_quality.measure_times(series)
    assert {row["runs"] for row in rows} == set(AFTER)
    found = {(row["method"], row["runs"]): row for row in rows}
    assert found["spread", 100]["stages"] == 6, "of the reported size"
    for method in ("spread", "log-normal"):
        for share in SHARES:
            covered = found[method, 100]["coverage"][str(share)]["mean"]
            assert covered == pytest.approx(share, abs=0.12)
    losses = [found["spread", runs]["loss"]["mean"] for runs in (1, 100)]
    assert losses[1] < losses[0], "more runs are of use"


def test_the_order_of_runs_is_the_seeds(tmp_path: Path) -> None:
    where = data(tmp_path)
    first, again, other = (estimate_quality.series_of(where, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first[0][2], again[0][2])
    assert not np.array_equal(first[0][2], other[0][2])
    assert sorted(first[0][2]) == sorted(other[0][2])


def test_a_distribution_is_better_than_the_greatest_where_peaks_differ() -> None:
    rows = estimate_quality.measure_memory(seeds=2, sets=100)
    hosts = [row for row in rows if row["what"].startswith("host")]
    assert len(hosts) == 3
    for row in hosts:
        scores = {name: row[f"brier_{name}"]["mean"] for name in ("node", "greatest", "never")}
        assert 0.0 < scores["node"] < scores["greatest"] and scores["node"] < scores["never"]
        assert 0.0 <= row["failed_of_admitted_node"]["mean"] <= 0.1


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "out.json"
    given = ["--data", str(data(tmp_path)), "--quick", "--json", str(written)]
    assert estimate_quality.main(given) == 0
    document = json.loads(written.read_text())
    assert 0.7 < document["headline"]["covered_p90"]["mean"] <= 1.0
    assert document["times"] and len(document["memory"]) == 6
    printed = capsys.readouterr().out
    assert "| spread | 1 |" in printed and "host memory, measured" in printed


def test_without_the_data_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert estimate_quality.main(["--data", str(tmp_path), "--quick"]) == 2
    assert "decima_tpch" in capsys.readouterr().err.replace("\n", "")
