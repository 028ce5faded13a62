"""``python -m benchmarks.traces.show`` as people and scripts see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.traces import FORMATS
from benchmarks.traces.show import main
from tests.benchmarks.traces.samples import SAMPLES, write


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command wrote, and its exit status."""

    status: int
    stdout: str
    stderr: str


Show = Callable[..., Shown]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """The command, run in this process."""

    def run(*arguments: str | Path) -> Shown:
        status = main([str(x) for x in arguments])
        written = capsys.readouterr()
        return Shown(status, written.out, written.err)

    return run


def test_a_summary_counts_jobs_work_and_bad_rows(show: Show, tmp_path: Path) -> None:
    path = write(tmp_path, "philly", extra=["bad"])
    result = show("philly", path, "--output", "json")
    measured_spread = json.loads(result.stdout)
    assert (
        measured_spread["jobs"],
        measured_spread["span_s"],
        measured_spread["instances"],
        measured_spread["users"],
    ) == (2, 20.0, 5, 2)
    assert measured_spread["work_gpu_s"] == 4 * 100 + 66
    assert measured_spread["rows"]["rows_bad"] == 1
    assert f"{path}:5" in result.stderr


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_has_a_table(name: str, show: Show, tmp_path: Path) -> None:
    write(tmp_path, "gavel-pairs")
    result = show(name, write(tmp_path, name))
    assert result.status == 0
    assert name in result.stdout
    assert FORMATS[name].origin in result.stdout


def test_without_a_format_all_are_listed_and_without_a_path_the_origin_is_reported(
    show: Show,
) -> None:
    listed = show("-o", "json")
    assert [each["format"] for each in json.loads(listed.stdout)] == list(FORMATS)
    assert "Rivendile/Muri" in show("muri").stderr
    unknown = show("nothing")
    assert unknown.status == 1
    assert "no trace format" in unknown.stderr
