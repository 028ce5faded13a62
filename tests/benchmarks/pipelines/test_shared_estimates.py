"""The benchmark of the shared table counts what workers are sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pipelines import shared_estimates


def test_changes_are_what_is_counted() -> None:
    found = shared_estimates.measure(120, 20, workers=40, seconds=20)
    assert found["rows"] == 120 and 0 < found["pairs"] <= 40
    assert found["messages_a_minute"] == pytest.approx(6 * 40, rel=0.2)
    assert found["message_kib"] < found["whole_kib"]
    assert found["mib_a_minute"] == pytest.approx(
        found["message_kib"] * found["messages_a_minute"] / 1024
    )
    assert found["mib_a_minute"] < found["whole_mib_a_minute"]


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "out.json"
    given = ["--quick", "--workers", "20", "--json", str(written)]
    assert shared_estimates.main(given) == 0
    document = json.loads(written.read_text())
    assert document["workers"] == 20
    assert document["headline"]["mib_a_minute"] > 0
    assert f"{document['tables'][1]['rows']} |" in capsys.readouterr().out
