"""Job traces that replays use: ill-formed values of each, run times from other files."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.traces import load, load_jobs
from benchmarks.traces.replay_plan import Assumptions, plan_jobs
from hrm.errors import InvalidRequest
from tests.benchmarks.traces.samples import SAMPLES, write

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,1.0,0.0
1,16,2.0,0.0
4,8,1.5,0.5
13,8,9.0,8.0
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
2,8,8,2.0,1.0
4,8,8,7.0,6.0
1,4,8,99.0,0.0
"""
STEPS = """progress,iteration,metric,grad_sqr,grad_var
10.0,10,0.1,1.0,1.0
100.0,50,0.9,1.0,1.0
"""
WORKLOAD = """name,time,application,num_replicas,batch_size
a,0,net,1,12
b,5,net,4,32
c,6,net,4,128
d,7,net,8,64
e,8,net,4,99
f,9,other,1,12
"""


def measured(folder: Path, **changed: str) -> Path:
    """A workload with the measurements of one application; ``changed``: other texts."""
    texts = {"placements": PLACEMENTS, "scalability": SCALABILITY} | changed
    (folder / "net").mkdir()
    for name, text in texts.items():
        (folder / "net" / f"{name}.csv").write_text(text)
    for batch in (12, 32, 64, 128):
        (folder / "net" / f"validation-{batch}.csv").write_text(STEPS)
    (folder / "workloads").mkdir()
    path = folder / "workloads" / "workload-1.csv"
    path.write_text(WORKLOAD)
    return path


def test_a_training_runs_as_long_as_its_steps_were_measured_to_take(tmp_path: Path) -> None:
    jobs, report = load_jobs("pollux", measured(tmp_path))

    assert {job.job_id: job.duration_s for job in jobs} == {
        "a": 50 * 1.5,  # between the two measured batches of one GPU
        "b": 50 * 1.5,  # four GPUs of one node, not spread over two
        "c": 50 * (4 * 1.5 - 3 * 0.5),  # four times what fits a GPU, synchronised once
        "d": 50 * 2.0,  # two full nodes
    }
    assert report.left_out == {
        "no training of net (batch size 99) was measured on 4 GPUs": 1,
        "no training of other (batch size 12) was measured on 1 GPUs": 1,
    }
    assert [job.instances for job in jobs] == [1, 4, 4, 8]


def test_damaged_measurements_are_an_error_with_file_and_line(tmp_path: Path) -> None:
    path = measured(tmp_path, placements=PLACEMENTS + "4,8,soon,0.5\n")
    with pytest.raises(InvalidRequest, match=r"placements.csv:6: step_time is no number: soon"):
        load("pollux", path)


def test_a_workload_without_measurements_states_what_is_missing(tmp_path: Path) -> None:
    jobs, _ = load_jobs("pollux", write(tmp_path, "pollux"))
    assert [job.duration_s for job in jobs] == [0.0]
    with pytest.raises(InvalidRequest, match="beside it"):
        plan_jobs(jobs, Assumptions())


MURI = "{},{},{},10,{},{},{},500,400,1,2,0.5,1"


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("muri", MURI.format(9, 1, 5, "net", 8, -1), "duration is less than 0"),
        ("muri", MURI.format(9, 1, 5, "net", 8, "nan"), "duration is no finite number"),
        ("muri", MURI.format(9, 0, 5, "net", 8, 9), "a training job without a GPU"),
        ("muri", MURI.format(9, 1.5, 5, "net", 8, 9), "num_gpu is no whole number"),
        ("muri", MURI.format(9, 1, "", "net", 8, 9), "submit_time is empty"),
        ("muri", MURI.format(9, 1, 5, "", 8, 9), "model_name is empty"),
        ("muri", MURI.format("", 1, 5, "net", 8, 9), "job_id is empty"),
        ("gavel", "Net (batch size 8),-1,0,1", "total_steps is less than 0"),
        ("gavel", "Net (batch size 8),inf,0,1", "total_steps is no finite number"),
        ("gavel", "Net (batch size 8),5,later,1", "arrival_s is no number"),
        ("gavel", "Net (batch size 8),5,0,-2", "num_gpus is less than 0"),
        ("gavel", ",5,0,1", "job_type is empty"),
        ("pollux", "a,7,net,0,2048", "num_replicas is less than 1"),
        ("pollux", "a,7,net,6,0", "batch_size is less than 1"),
        ("pollux", "a,-7,net,6,2048", "time is less than 0"),
        ("pollux", "a,7,,6,2048", "application is empty"),
    ],
)
def test_an_ill_formed_value_is_a_bad_row_with_file_and_line(
    name: str, row: str, reason: str, tmp_path: Path
) -> None:
    write(tmp_path, "gavel-pairs")
    good = load(name, write(tmp_path, name))[1]
    path = write(tmp_path, name, extra=[row])
    line = SAMPLES[name][1]().count("\n") + 1

    _, report = load(name, path)

    assert report.bad == {reason: 1}
    assert report.messages[0].startswith(f"{path}:{line}: {reason}")
    assert report.rows_taken == good.rows_taken
    assert report.rows_read == good.rows_read + 1


@pytest.mark.parametrize("name", ["muri", "gavel", "pollux", "google-2011-jobs"])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(lines=st.lists(st.text(alphabet="0123456789-. ,\"'einf\x00\n", max_size=40), max_size=8))
def test_every_row_is_taken_bad_or_left_out(name: str, lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "gavel-pairs")
        jobs, report = load_jobs(name, write(Path(folder), name, extra=lines))
    assert report.rows_read == report.rows_taken + report.rows_bad + report.rows_left_out
    assert len(jobs) == report.rows_taken


def test_ill_formed_throughputs_count_among_the_rows_of_the_jobs(tmp_path: Path) -> None:
    path = write(tmp_path, "gavel-pairs")
    result = json.loads(gzip.decompress(path.read_bytes()))
    result["p100"]["('Net (batch size 8)', 2)"]["null"] = float("inf")
    path.write_bytes(gzip.compress(json.dumps(result).encode()))

    jobs, report = load_jobs("gavel", write(tmp_path, "gavel"))

    assert len(jobs) == 1
    assert report.bad == {"a throughput is no number from 0 up": 1}
    assert str(path) in report.messages[0]
    assert report.rows_read == report.rows_taken + report.rows_bad + report.rows_left_out


def tpch(path: Path, change: Callable[[Any], None]) -> Path:
    result = json.loads(SAMPLES["decima-tpch"][1]())
    result["2"] = json.loads(json.dumps(result["1"]))
    change(result["2"])
    path.write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q: q["task_durations_ms"]["0"]["rest_wave"].update({"2": [-1]}),
         "a task's time is no number from 0 up"),
        (lambda q: q["task_durations_ms"]["0"]["rest_wave"].update({"2": [float("nan")]}),
         "a task's time is no number from 0 up"),
        (lambda q: q["task_durations_ms"]["0"]["rest_wave"].update({"2": ["x"]}),
         "a query lacks a field"),
        (lambda q: q.update(edges=[[0, 1], [1, 0]]), "tasks wait for each other in a circle"),
        (lambda q: q.update(edges=[[7, 1]]), "a task waits for one that the job has not"),
        (lambda q: q.update(edges=[[0, 7]]), "an edge leads to a stage that the query has not"),
        (lambda q: q.update(edges=3), "a query lacks a field"),
    ],
)  # fmt: skip
def test_an_ill_formed_query_is_bad_with_all_its_stages(
    change: Callable[[Any], None], reason: str, tmp_path: Path
) -> None:
    path = tpch(tmp_path / "tpch_2g.json", change)
    jobs, report = load_jobs("decima-tpch", path)
    assert [job.job_id for job in jobs] == ["tpch_2g-q1"]
    assert report.bad == {reason: 2}
    assert report.messages[0].startswith(f"{path}: query 2: {reason}")


def test_a_folder_of_queries_is_read_whole_and_each_file_must_be_one(tmp_path: Path) -> None:
    for size in (2, 10):
        tpch(tmp_path / f"tpch_{size}g.json", lambda query: None)
    jobs, report = load_jobs("decima-tpch", tmp_path)
    assert [job.job_id for job in jobs] == [
        "tpch_10g-q1", "tpch_10g-q2", "tpch_2g-q1", "tpch_2g-q2",
    ]  # fmt: skip
    assert report.rows_read == report.rows_taken == 8
    (tmp_path / "tpch_5g.json").write_text('{"1": 5}')
    with pytest.raises(InvalidRequest, match=r"tpch_5g.json is no such trace.*lacks a field"):
        load("decima-tpch", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"new_job_rate_bernoulli_per_step": 0},
        {"new_job_rate_bernoulli_per_step": float("nan")},
        {"num_resources": 0},
        {"bimodal_distribution": 5},
        {"bimodal_distribution": {"small_job_chance": 2}},
        {"bimodal_distribution": {"small_len_uniform_int_inclusive": [3, 1]}},
        {"bimodal_distribution": {"other_size_uniform_int_inclusive": [0, 2]}},
    ],
)
def test_parameters_that_no_job_could_be_drawn_from_are_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "params.json"
    result = json.loads(SAMPLES["deeprm"][1]())
    for name, value in change.items():
        result[name] = result[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(result))
    with pytest.raises(InvalidRequest, match=f"{path} holds no parameters"):
        load("deeprm", path)
