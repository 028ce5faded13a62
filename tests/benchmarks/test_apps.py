"""The applications themselves, tiny, on Spark's local mode, with their results checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from benchmarks import checks, clusters, inputs, spark
from benchmarks.clusters import Local, Shape
from benchmarks.processes import BenchmarkError
from benchmarks.text import build_text

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SHAPE = Shape(executors=2, executor_cores=1, shuffle_partitions=2)


@pytest.mark.extra
def test_every_workload_gives_the_right_reply(tmp_path: Path) -> None:
    plan = spark.Plan(
        scale_factor=0.001, runs=1, text_mb=0.2, sort_rows=5_000, batches=2, batch_rows=100,
        run_timeout_s=300,
    )  # fmt: skip
    measured = spark.Measurements()
    chosen = spark.workloads(plan, tmp_path / "cache", measured)
    with Local(SHAPE, tmp_path / "cluster") as cluster:
        for workload in chosen.values():
            directory = tmp_path / f"local-{workload.name}-0"
            finished = spark.run_once(cluster, workload, directory, plan.run_timeout_s)
            assert 0 < finished.context_s < finished.first_task_s < finished.total_s
            measured.add(workload.name, "local", finished)
    assert cluster.left_behind == []
    assert measured.tpch_correct == {"local": [22]}
    document = spark.document(measured, list(chosen), ["local"], plan, SHAPE)
    assert document["tpch_correct"] == 22
    assert document["failed_runs"] == 0
    assert set(document["medians"]) == {"wordcount", "sort", "topk", "tpch"}
    json.dumps(document)
    assert "| q22 |" in spark.report(document, measured, ["local"])


@pytest.mark.extra
def test_wordcount_by_python_workers_and_the_rate_source(tmp_path: Path) -> None:
    text = Path(build_text(tmp_path / "cache", 0.2).path)
    expected = checks.expected_words(text.read_text().split("\n"))
    with Local(SHAPE, tmp_path / "cluster") as cluster:
        counting = cluster.submit(
            spark.APPS / "wordcount.py", ["--input", text, "--api", "rdd"], tmp_path / "words"
        )
        assert checks.wordcount_complaints(counting.result(200), expected) == []
        stream = cluster.submit(
            spark.APPS / "topk_stream.py",
            ["--source", "rate", "--rate", 500, "--seconds", 8, "--trigger-s", 1, "--k", 50,
             "--checkpoint", tmp_path / "checkpoint"],
            tmp_path / "stream",
        )  # fmt: skip
        assert checks.rate_complaints(stream.result(200)) == []


def test_a_failing_application_is_reported_with_its_own_words(tmp_path: Path) -> None:
    with Local(SHAPE, tmp_path / "cluster") as cluster:
        submission = cluster.submit(
            spark.APPS / "wordcount.py", ["--input", tmp_path / "no-such-file"], tmp_path / "run"
        )
        with pytest.raises(BenchmarkError, match="PATH_NOT_FOUND"):
            submission.finish(200)


def test_one_command_line_for_every_manager(tmp_path: Path) -> None:
    for kind in clusters.CLUSTERS.values():
        cluster = kind(SHAPE, tmp_path / kind.name)
        command = cluster.submit_command(Path("app.py"), ["--x", 1], cluster.submit_settings())
        assert command[1:3] == ["--master", cluster.master]
        assert command[-3:] == ["app.py", "--x", "1"]
        assert "spark.sql.shuffle.partitions=2" in command


def test_stream_inputs_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    first = inputs.stream_files(tmp_path / "a", batches=2, rows=10)
    second = inputs.stream_files(tmp_path / "b", batches=2, rows=10)
    for path in first.glob("*.txt"):
        assert (second / path.name).read_bytes() == path.read_bytes()
