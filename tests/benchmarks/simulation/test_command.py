"""``python -m benchmarks.simulation``: an experiment on the command line."""

from __future__ import annotations

import json

import pytest

from benchmarks.simulation.__main__ import main


def test_an_experiment_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conflicts", "--quick", "--runs", "1", "--output", "json"]) == 0

    found = json.loads(capsys.readouterr().out)
    systems = {point["system"]: point["figures"] for point in found["points"]}
    assert set(systems) == {"centralised", "HRM"}
    assert all(figures["delay_ms"]["mean"] > 0 for figures in systems.values())
    assert systems["centralised"]["stale"]["mean"] < systems["HRM"]["stale"]["mean"]


def test_an_unknown_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 1
    assert "error: no experiment 'speed'" in capsys.readouterr().err


def test_an_option_out_of_range_is_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["delay", "--runs", "0"]) == 2
    assert "--runs" in capsys.readouterr().err


def test_work_has_the_same_events_in_each_run_whatever_it_took(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = []
    for _ in range(2):
        assert main(["conflicts", "--quick", "--work", "-o", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["work"]
        assert all(row["used_ms"] >= 0 for row in rows)
        found.append({(row["system"], row["x"], row["kind"]): row["events"] for row in rows})
    assert found[0] == found[1]
    assert any(kind == "round" for _, _, kind in found[0])
