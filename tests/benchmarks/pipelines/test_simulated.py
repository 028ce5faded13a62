"""``python -m benchmarks.pipelines.simulated``: one scenario on the command line."""

from __future__ import annotations

import json

import pytest

from benchmarks.pipelines.simulated import main


def test_one_scenario_runs_twice_alike(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tasks", "6", "--nodes", "2", "--seed", "3", "-o", "json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == 0 and len(found["log_hash"]) == 64
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["log_hash"] == found["log_hash"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--node-policy", "best"], "no node policy"),
        (["--cluster-policy", "best"], "no cluster policy"),
        (["--world", "cosine"], "no world"),
        (["--world", "none", "--pairs", "x"], "only a measured world"),
    ],
)
def test_what_means_nothing_is_refused(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--tasks", "1", *words]) == 1
    assert part in capsys.readouterr().err
