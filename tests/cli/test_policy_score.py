"""hrm policy score: a table of measured co-runs in, what each score is worth out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hrm.cli import policy
from hrm.cli.corun_scores import document
from hrm.pipelines.policies.corun import SCORES, corun_table
from hrm.pipelines.policies.corun.corun_table import read_table
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.score_quality import Figure, ScoreQuality, qualities

Run = Callable[..., Result]

JOBS = "job,sm\na,0.9\nb,0.8\nc,0.3\nd,0.1\n"
PAIRS = {"ab": (1.7, 1.6), "ac": (1.2, 1.3), "ad": (1.0, 1.1), "bc": (1.1, 1.2), "bd": (1.0, 1.0)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = ["run,sharing,job,slowdown"]
    for pair, slowdowns in PAIRS.items():
        lines += [f"{pair},time-slicing,{j},{s}" for j, s in zip(pair, slowdowns, strict=True)]
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_row_for_each_score(hrm: Run, data: Path) -> None:
    result = hrm("policy", "score", str(data), "--resamples", "20")
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert {row[1] for row in rows} == {"cosine", "overload", "learned", "sensitivity"}
    assert all(row[0] == "time-slicing" for row in rows)
    assert sum("(default)" in row for row in rows) == 2


@pytest.mark.parametrize("wanted", [("--json",), ("--output", "json")])
def test_as_json(hrm: Run, data: Path, wanted: tuple[str, ...]) -> None:
    held = json.loads(hrm("policy", "score", str(data), "--resamples", "20", *wanted).stdout)
    assert (held["jobs"], held["runs"], held["features"]) == (4, 5, ["sm"])
    overload = next(one for one in held["scores"] if one["score"] == "overload")
    assert overload["regret"]["value"] < 0.1
    assert overload["rank_set"]["value"] > 0.7
    cosine = next(one for one in held["scores"] if one["score"] == "cosine")
    assert cosine["rank_set"] is None, "with one feature all are alike to it"


def test_a_hole_is_an_error_that_names_the_line(hrm: Run, data: Path) -> None:
    (data / "jobs.csv").write_text("job,sm\na,0.9\nb,\n")
    result = hrm("policy", "score", str(data))
    assert result.exit_code == 1
    assert "jobs.csv, line 3: sm is empty" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_table_that_would_take_hours_is_refused_at_once(
    hrm: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = len((data / "runs.csv").read_text().splitlines())
    monkeypatch.setattr(corun_table, "LINES_MAX", lines)
    assert hrm("policy", "score", str(data), "--resamples", "20").exit_code == 0
    monkeypatch.setattr(corun_table, "LINES_MAX", lines - 1)
    result = hrm("policy", "score", str(data), "--resamples", "20")
    assert result.exit_code == 1
    assert f"runs.csv, line {lines}: a file may have {lines - 1} lines" in result.stderr
    assert "draw some of the sets" in result.stderr


def test_a_long_table_says_so_before_it_is_ranked(
    hrm: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_MANY_RUNS", 6)
    assert "takes a while" not in hrm("policy", "score", str(data), "--resamples", "20").stderr
    monkeypatch.setattr(policy, "_MANY_RUNS", 5)
    said = hrm("policy", "score", str(data), "--resamples", "20").stderr
    assert "5 sets of jobs: this takes a while" in said


def test_what_is_ranked_is_reported_as_it_goes_on(data: Path) -> None:
    seen: list[tuple[float, str]] = []
    qualities(read_table(data), SCORES, resamples=1, on_progress=lambda *one: seen.append(one))
    assert [share for share, _ in seen] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert seen[1][1] == "time-slicing, overload"


def test_an_interval_without_bounds_is_null_as_json_has_no_infinity(data: Path) -> None:
    unbounded = Figure(0.5, -math.inf, math.inf)
    one = ScoreQuality(
        score="overload",
        sharing=GpuSharing.MPS,
        seen=False,
        each=unbounded,
        joint=None,
        regret=Figure(0.1, 0.0, 0.2),
        runs=2,
        choices=1,
    )
    (shown,) = document(read_table(data), [one])["scores"]
    assert shown["rank_each"] == {"value": 0.5, "low": None, "high": None}
    assert shown["rank_set"] is None
    assert shown["regret"] == {"value": 0.1, "low": 0.0, "high": 0.2}
    json.dumps(shown, allow_nan=False)
