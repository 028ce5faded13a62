"""What the benchmark of first results makes of its times, and what it starts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from benchmarks import client_start
from benchmarks.client_start import PEER, ColdDrivers, PlainStandalone, Plan, WarmDrivers
from benchmarks.clusters import Shape
from benchmarks.startup import Taken

WAITING = {"idle_mib": 440.0, "idle_cpu": 0.002}


def taken(warm_s: float) -> Taken:
    found = Taken()
    for system, seconds in ((PEER, 8.0), (ColdDrivers.name, 6.0), (WarmDrivers.name, warm_s)):
        found.add("first_task", system, seconds, seconds + 0.1, seconds - 0.1)
        found.add("short_sql", system, seconds, seconds, seconds)
    return found


@pytest.mark.parametrize(("warm_s", "met"), [(1.6, "met"), (4.0, "missed")])
def test_ratios_are_of_medians_and_compared_with_their_targets(warm_s: float, met: str) -> None:
    document = client_start.document(taken(warm_s), WAITING, Plan(), Shape())
    assert document["first_task_client_ratio"] == pytest.approx(warm_s / 8.0)
    assert document["short_sql_ratio"] == pytest.approx(warm_s / 8.0)
    text = client_start.report(document)
    assert text.count(f"| {met}") == 2
    assert "takes 440 MiB" in text


def test_an_application_is_plain_python_with_its_master_in_the_environment(tmp_path: Path) -> None:
    for make in (PlainStandalone, WarmDrivers):
        cluster = make(Shape(), tmp_path / make.__name__)
        command = cluster.submit_command(client_start.APP, [], {})
        assert "spark-submit" not in " ".join(command)
        words = shlex.split(cluster.environment()["PYSPARK_SUBMIT_ARGS"])
        assert f"spark.master={cluster.master}" in words
        assert words[-1] == "pyspark-shell"


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--runs", "-1"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        client_start.parse_arguments(arguments)
