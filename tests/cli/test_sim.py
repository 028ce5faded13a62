"""``hrm sim run``: an experiment on the command line."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from hrm.cli.app import app


def test_an_experiment_as_json() -> None:
    result = CliRunner().invoke(
        app, ["sim", "run", "conflicts", "--quick", "--runs", "1", "--output", "json"]
    )

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    systems = {point["system"]: point["figures"] for point in found["points"]}
    assert set(systems) == {"centralised", "HRM"}
    assert systems["HRM"]["delay_ms"]["mean"] < systems["centralised"]["delay_ms"]["mean"]
    assert systems["centralised"]["stale"]["mean"] < systems["HRM"]["stale"]["mean"]


def test_an_unknown_experiment() -> None:
    result = CliRunner().invoke(app, ["sim", "run", "speed"])

    assert result.exit_code != 0
    assert "no experiment 'speed'" in str(result.exception) + result.output


def test_sim_pipelines_runs_one_scenario_twice_alike() -> None:
    words = ["sim", "pipelines", "--tasks", "6", "--nodes", "2", "--seed", "3", "-o", "json"]
    first, second = (CliRunner().invoke(app, words) for _ in range(2))
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert found["failed"] == 0 and len(found["log_hash"]) == 64
    assert json.loads(second.stdout)["log_hash"] == found["log_hash"]


def test_sim_pipelines_refuses_what_means_nothing() -> None:
    for words, part in (
        (["--node-policy", "best"], "no node policy"),
        (["--cluster-policy", "best"], "no cluster policy"),
        (["--world", "cosine"], "no world"),
        (["--world", "none", "--pairs", "x"], "only a measured world"),
    ):
        result = CliRunner().invoke(app, ["sim", "pipelines", "--tasks", "1", *words])
        assert result.exit_code != 0
        assert part in str(result.exception) + result.output, words
