"""The Spark benchmark's handling of its command line and of its measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from benchmarks import clusters, spark
from benchmarks.clusters import Finished, Shape
from benchmarks.processes import BenchmarkError


def _finished(first_task_s: float, total_s: float) -> Finished:
    return Finished(
        result={"elapsed_s": total_s - first_task_s},
        context_s=first_task_s / 2,
        first_executor_s=None,
        first_task_s=first_task_s,
        total_s=total_s,
    )


def test_flags_over_quick_over_defaults() -> None:
    assert spark.plan_of(spark.parse_arguments([])) == spark.Plan()
    quick = spark.plan_of(spark.parse_arguments(["--quick", "--runs", "2"]))
    assert (quick.scale_factor, quick.runs) == (0.01, 2)


@pytest.mark.parametrize(
    "arguments",
    [["--runs", "0"], ["--only", "grep"], ["--systems", "mesos"], ["--scale-factor", "-1"]],
)
def test_bad_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        spark.parse_arguments(arguments)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_ratios_are_ours_over_the_peers() -> None:
    measured = spark.Measurements(tpch_correct={"hrm": [22, 21], "standalone": [22]})
    for first, total in ((4.0, 10.0), (6.0, 12.0)):
        measured.add("sort", "hrm", _finished(first, total))
        measured.add("sort", "standalone", _finished(2 * first, 2 * total))
    document = spark.document(measured, ["sort"], ["hrm", "standalone"], spark.Plan(), Shape())
    assert document["ratio_first_task"] == 0.5
    assert document["ratio_total"] == 0.5
    assert document["tpch_correct"] == 21
    assert document["tpch_correct_peer"] == 22
    assert document["medians"]["sort"]["hrm"]["first_task"] == 5.0
    body = spark.report(document, measured, ["hrm", "standalone"])
    assert "| sort | 5.000 | 10.000 | 0.500 [" in body


def test_one_system_alone_has_no_ratio() -> None:
    measured = spark.Measurements()
    measured.add("sort", "standalone", _finished(1.0, 2.0))
    document = spark.document(measured, ["sort"], ["standalone"], spark.Plan(), Shape())
    assert document["ratio_total"] is None
    assert "| sort | 1.000 | - |" in spark.report(document, measured, ["standalone"])


def test_moments_are_read_from_an_event_log(tmp_path: Path) -> None:
    events = [
        {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"},
        {"Event": "SparkListenerApplicationStart", "Timestamp": 1_000},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 3_000},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 2_500},
        {"Event": "SparkListenerTaskStart", "Stage ID": 0, "Task Info": {"Launch Time": 4_000}},
        {"Event": "SparkListenerTaskStart", "Stage ID": 0, "Task Info": {"Launch Time": 3_500}},
    ]
    log = tmp_path / "app-1"
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    log.write_text("\n".join([*lines, '{"Event":"org.apache.spark.sql.Other"}', ""]))
    moments = clusters._moments(tmp_path)
    assert moments == {
        "SparkListenerApplicationStart": 1.0,
        "SparkListenerExecutorAdded": 2.5,
        "SparkListenerTaskStart": 3.5,
    }
    log.write_text(lines[1] + "\n")
    with pytest.raises(BenchmarkError, match="no SparkListenerTaskStart"):
        clusters._moments(tmp_path)
