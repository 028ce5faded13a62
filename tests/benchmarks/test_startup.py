"""The start-up benchmark's handling of its command line, of event logs and of its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from benchmarks import startup
from benchmarks.clusters import Finished, Shape, Standalone
from benchmarks.processes import BenchmarkError
from benchmarks.startup import PEER, Plan, Taken


def taken() -> Taken:
    found = Taken()
    for system, scale in ((PEER, 1.0), ("archive", 0.6), ("warm", 0.1)):
        found.add("launch", system, 2.0 * scale, 4.0 * scale)
        found.add("first_task", system, 10.0 * scale)
    for system, scale in ((PEER, 1.0), ("warm", 0.5)):
        found.add("wordcount", system, 20.0 * scale)
    return found


def test_ratios_are_ours_over_the_peers() -> None:
    document = startup.document(taken(), Plan(), Shape())
    ratios = {name: document[name] for name in startup.TARGETS}
    assert ratios == {
        "launch_archive_ratio": 0.6,
        "launch_warm_ratio": 0.1,
        "first_task_ratio": 0.6,
        "wordcount_warm_ratio": 0.5,
    }
    assert document["medians"]["launch"] == pytest.approx({PEER: 3.0, "archive": 1.8, "warm": 0.3})
    json.dumps(document)


def test_the_table_has_every_target_and_whether_it_was_met() -> None:
    slow = taken()
    slow.values["first_task"]["archive"] = [9.0]
    rows = startup.report(startup.document(slow, Plan(), Shape())).splitlines()[-4:]
    output = [row.rsplit("|", 2)[1].strip() for row in rows]
    across = "met by the median; the interval reaches across"  # of 1 and 2 over 2 and 4, say
    assert output == [across, across, "missed", "met"]
    assert "| submit → first task, default settings | 10.000 | 9.000 | 0.900 [" in rows[2]


def events(directory: Path, *lines: dict[str, object]) -> None:
    (directory / "events").mkdir(parents=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (directory / "events" / "app-1").write_text(text)


def finished(executors: dict[str, float]) -> Finished:
    result = {"executors": executors, "elapsed_s": 1.0}
    return Finished(
        result=result, context_s=1.0, first_executor_s=2.0, first_task_s=3.0, total_s=4.0
    )


def test_a_launch_is_from_the_start_of_the_process_to_the_drivers_record(tmp_path: Path) -> None:
    events(
        tmp_path,
        {"Event": "SparkListenerApplicationStart", "App ID": "app-1", "Timestamp": 1},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 12_500, "Executor ID": "0"},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 13_000, "Executor ID": "1"},
    )
    cluster = Standalone(Shape(), tmp_path / "cluster")
    found = startup.launches(cluster, finished({"0": 10.0, "1": 11.5}), tmp_path)
    assert found == [2.5, 1.5]
    with pytest.raises(BenchmarkError, match="no start of an executor is known"):
        startup.launches(cluster, finished({"7": 10.0}), tmp_path)


def test_a_warm_launch_is_from_the_order(tmp_path: Path) -> None:
    events(
        tmp_path,
        {"Event": "SparkListenerApplicationStart", "App ID": "app-1", "Timestamp": 1},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 12_500, "Executor ID": "1"},
    )
    cluster = startup.Warm(Shape(), tmp_path / "cluster")
    container = cluster.state_dir / "nodes" / "node-1" / "containers" / "c1"
    container.mkdir(parents=True)
    spec = {"applicationId": "app-1", "executorId": "1"}
    (container / "container.json").write_text(json.dumps({"spec": spec}))
    (container / "process.json").write_text(json.dumps({"started_at_s": 12.25}))
    assert startup.launches(cluster, finished({"1": 3.0}), tmp_path) == [0.25]


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--runs", "-1"], ["--what"]])
def test_bad_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        startup.parse_arguments(arguments)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err
