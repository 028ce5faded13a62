"""``hrm sim traces`` as people and scripts see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hrm.cli.app import app
from hrm.sim.traces import FORMATS
from tests.sim.traces.samples import SAMPLES, write


def _hrm(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(x) for x in arguments])


def test_a_summary_counts_jobs_work_and_bad_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "philly", extra=["bad"])
    result = _hrm("sim", "traces", "philly", path, "--output", "json")
    told = json.loads(result.stdout)
    assert (told["jobs"], told["span_s"], told["instances"], told["users"]) == (2, 20.0, 5, 2)
    assert told["work_gpu_s"] == 4 * 100 + 66
    assert told["rows"]["rows_bad"] == 1
    assert f"{path}:5" in result.stderr


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_has_a_table(name: str, tmp_path: Path) -> None:
    write(tmp_path, "gavel-pairs")
    result = _hrm("sim", "traces", name, write(tmp_path, name))
    assert result.exit_code == 0
    assert name in result.stdout
    assert FORMATS[name].origin in result.stdout


def test_without_a_format_all_are_listed_and_without_a_path_the_origin_is_told() -> None:
    listed = _hrm("sim", "traces", "-o", "json")
    assert [each["format"] for each in json.loads(listed.stdout)] == list(FORMATS)
    assert "Rivendile/Muri" in _hrm("sim", "traces", "muri").stderr
    unknown = _hrm("sim", "traces", "nothing")
    assert unknown.exit_code == 1
    assert "no trace format" in unknown.stderr
