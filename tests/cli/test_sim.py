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
