"""Every trace format: what a sample becomes, what is counted, what is refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.traces import FORMATS, LoadReport, load, load_jobs
from benchmarks.traces.cluster_traces import ALIBABA_2018_MACHINE_MIB
from benchmarks.traces.trace_records import (
    InferenceInterference,
    JobGenerator,
    KernelProfile,
    PairThroughput,
    PlacementProfile,
    TraceJob,
    TraceNode,
    TrafficSample,
)
from benchmarks.traces.training_traces import deeprm_jobs
from hrm.errors import InvalidRequest, NotFound
from tests.benchmarks.traces.samples import SAMPLES, write

REAL_DATA = os.environ.get("HRM_TRACES", "")
"""Read before a fixture removes every HRM_* variable."""

FOLDERS = {
    "alibaba-gpu": "alibaba_gpu_v2023", "alibaba-v2018": "alibaba_v2018_dag",
    "google": "google_2011_jobs", "philly": "philly", "muri": "muri", "gavel": "gavel",
    "decima": "decima_tpch", "pollux": "pollux", "deeprm": "deeprm",
    "internet": "internet_traffic", "igniter": "igniter", "orion": "orion_kernels",
}  # fmt: skip
CSV_WITH_HEADER = sorted(
    name
    for name, (file, _, _) in SAMPLES.items()
    if file.endswith(".csv") and name != "alibaba-v2018-dag"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where samples are; with the throughputs that Gavel's job traces need."""
    write(tmp_path, "gavel-pairs")
    return tmp_path


def test_a_trace_is_read_and_its_rows_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "philly", extra=["2020-01-01 00:02:00,much,1,1.0,aaa", "gone"])

    jobs, report = load_jobs("philly", path)

    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    first, second = jobs
    assert (first.user, first.instances, first.duration_s, first.together) == ("bbb", 4, 100, True)
    assert (second.instances, second.together) == (1, False)
    assert second.arrival_s - first.arrival_s == 20
    assert report.as_json() == {
        "rows_read": 5,
        "rows_taken": 2,
        "rows_bad": 2,
        "bad": {"5 fields expected": 1, "duration is no number": 1},
        "rows_left_out": 1,
        "left_out": {"ran for no time": 1},
        "messages": [
            f"{path}:5: duration is no number: much",
            f"{path}:6: 5 fields expected: gone",
        ],
    }


def test_there_is_a_sample_of_every_format() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_read_packed_or_not_by_file_or_by_folder(name: str, folder: Path) -> None:
    expected = SAMPLES[name][2]
    packed, report = load(name, write(folder, name))
    deep = folder / "plain" if name == "gavel" else folder / "plain" / "deep"
    plain, _ = load(name, write(deep, name, packed=False))

    assert len(packed) == expected
    assert report.rows_bad == 0, report.messages
    assert report.rows_read == report.rows_taken + report.rows_left_out
    # Where a trace names no job its row does, which is the same in both.
    assert plain == packed
    if name not in ("gavel", "muri-results"):
        assert load(name, folder)[0] == packed


@pytest.mark.parametrize("name", CSV_WITH_HEADER)
def test_bad_rows_are_counted_with_file_and_line(name: str, folder: Path) -> None:
    good = load(name, write(folder / "good", name) if name != "gavel" else write(folder, name))[1]
    path = write(folder, name, extra=["no, such row", "\x00" * 3])
    line = SAMPLES[name][1]().count("\n") + 1

    _, report = load(name, path)

    assert report.rows_bad == 2
    assert report.rows_taken == good.rows_taken
    assert report.messages[0].startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_no_such_file_is_refused_with_the_path(name: str, folder: Path) -> None:
    sample, wrong = write(folder, name), folder / "wrong.csv"
    wrong.write_text("this,is\nsomething,else\n")
    damaged = folder / f"damaged-{sample.name}"
    damaged.write_bytes(sample.read_bytes()[:-9])

    for path in (wrong, damaged):
        with pytest.raises(InvalidRequest, match=str(path)):
            load(name, path)
    with pytest.raises(NotFound, match="nowhere"):
        load(name, folder / "nowhere")
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(NotFound if name != "gavel" else Exception, match="empty"):
        load(name, empty)


def test_unknown_formats_and_formats_without_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="philly"):
        load("phily", tmp_path)
    with pytest.raises(InvalidRequest, match="hold"):
        load_jobs("orion-kernels", write(tmp_path, "orion-kernels"))
    with pytest.raises(InvalidRequest, match="simulation_throughputs"):
        load("gavel", write(tmp_path / "alone", "gavel"))


def test_gpu_pods_keep_their_share_and_those_never_scheduled_are_left_out(tmp_path: Path) -> None:
    jobs, report = load_jobs("alibaba_gpu_v2023", write(tmp_path, "alibaba-gpu-v2023"))
    shared, whole, cpu = (job.tasks[0] for job in jobs)
    assert (shared.vcores, shared.gpus, shared.gpu_share) == (3.152, 1, 0.47)
    assert (shared.duration_s, jobs[0].wait_s) == (570, 30)
    assert (whole.gpus, whole.gpu_share) == (8, 1.0)
    assert cpu.gpus == 0
    assert report.left_out == {"never scheduled": 1}


def test_task_names_give_the_dag_and_tasks_come_after_their_parents(tmp_path: Path) -> None:
    jobs, _ = load_jobs("alibaba-v2018-dag", write(tmp_path, "alibaba-v2018-dag"))
    first = jobs[0]
    assert [(task.name, task.parents) for task in first.tasks] == [
        ("M1", ()),
        ("R2_1", ("M1",)),
        ("J3_1_2", ("M1", "R2_1")),
    ]
    assert first.duration_s == 10 + 7 + 5
    assert first.tasks[0].vcores == 0.5
    assert first.tasks[0].memory_mib == round(0.0025 * ALIBABA_2018_MACHINE_MIB)
    assert jobs[1].tasks[0].parents == ()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (["9,j_9,M1_2,1,100,1,1", "9,j_9,M2_1,1,100,1,1"], "tasks wait for each other in a circle"),
        (["9,j_9,M1_7,1,100,1,1"], "a task waits for one that the job has not"),
        (["9,j_9,M1,1,100,1,1", "9,j_9,R1,1,100,1,1"], "two tasks of a job have one name"),
        (["9,j_1,M1,1,100,1,1"], "the job's rows do not follow each other"),
        (["9,j_9,M1,1,100,1,1", "9,j_9,R2_1,-1,100,1,1"], "duration_s is less than 0"),
        (["9,,M1,1,100,1,1"], "job is empty"),
    ],
)
def test_a_job_with_a_bad_row_is_bad_as_a_whole(
    rows: list[str], reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "alibaba-v2018-dag", extra=rows)
    jobs, report = load("alibaba-v2018-dag", path)
    assert len(jobs) == 3
    assert report.bad == {reason: len(rows)}
    assert report.rows_read == 5 + len(rows)


def test_a_query_is_a_dag_with_the_measured_times_of_its_tasks(tmp_path: Path) -> None:
    path = write(tmp_path, "decima-tpch")
    (job,), _ = load_jobs("decima-tpch", path)
    first, second = job.tasks
    assert (first.name, first.parents, first.measured_s) == ("1", (), (0.009, 0.009))
    assert (second.parents, second.measured_s, second.duration_s) == (("1",), (1.0, 3.0), 2.0)

    result = json.loads(gzip.decompress(path.read_bytes()))
    result["2"] = {"num_stages": 3}
    path.write_bytes(gzip.compress(json.dumps(result).encode()))
    jobs, report = load_jobs("decima-tpch", path)
    assert (len(jobs), report.bad) == (1, {"a query lacks a field": 3})


def test_gavel_steps_become_seconds_by_the_measured_throughputs(folder: Path) -> None:
    jobs, report = load_jobs("gavel", write(folder, "gavel"))
    assert [(job.duration_s, job.instances) for job in jobs] == [(10.0, 1), (20.0, 2)]
    assert report.rows_left_out == 1


def test_tables_have_records_of_their_own(tmp_path: Path) -> None:
    def only(name: str) -> Any:
        return load(name, write(tmp_path, name))[0][0]

    assert load("gavel-pairs", write(tmp_path, "gavel-pairs"))[0][1] == PairThroughput(
        gpu="p100", job="Net (batch size 8)", scale=1, iterations_per_s=6.0,
        other="Net (batch size 8)", other_scale=1, other_per_s=6.0,
    )  # fmt: skip
    assert only("pollux-placements") == PlacementProfile(
        placement=(1, 2, 1), local_batch=32, step_s=0.1, sync_s=0.01
    )
    assert only("igniter-pairs") == InferenceInterference(
        first="net", second="other", first_batch=2, second_batch=7, gpu_percent=10,
        first_latency_ms=9.0, second_latency_ms=11.0,
    )  # fmt: skip
    assert only("orion-kernels") == KernelProfile(
        name="Conv", bound="compute", memory_footprint=0, multiprocessors=49, duration_ns=26688
    )
    assert only("alibaba-gpu-v2023-nodes") == TraceNode(
        name="n-0", vcores=64, memory_mib=262144, gpus=2, model="P100"
    )
    samples = [x for x in load("internet-traffic", write(tmp_path, "internet-traffic"))[0]
               if isinstance(x, TrafficSample)]  # fmt: skip
    assert samples[1].time_s - samples[0].time_s == 3600


def test_the_generator_draws_jobs_within_its_ranges(tmp_path: Path) -> None:
    (generator,), _ = load("deeprm", write(tmp_path, "deeprm"))
    assert isinstance(generator, JobGenerator)
    jobs = list(deeprm_jobs(generator, 2000, seed=1))
    assert jobs == list(deeprm_jobs(generator, 2000, seed=1))
    assert abs(len(jobs) / 2000 - 0.7) < 0.05
    short = [job for job in jobs if job.kind == "short"]
    assert abs(len(short) / len(jobs) - 0.8) < 0.05
    assert {job.duration_s for job in short} == {1.0, 2.0, 3.0}
    assert {job.tasks[0].vcores for job in jobs} <= {1.0, 2.0, *map(float, range(5, 11))}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(alphabet="0123456789-:. ,\"'abc\x00\n", max_size=40), max_size=20))
def test_every_row_is_taken_bad_or_left_out(lines: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "philly", extra=lines)
        jobs, report = load_jobs("philly", path)
    assert report.rows_read == report.rows_taken + report.rows_bad + report.rows_left_out
    assert len(jobs) == report.rows_taken
    assert len(report.messages) == min(report.rows_bad, report.messages_max)


def test_only_the_first_messages_are_kept(tmp_path: Path) -> None:
    report = LoadReport()
    path = write(tmp_path, "philly", extra=["bad"] * 100)
    assert len(list(FORMATS["philly"].read(path, report))) == 2
    assert (report.rows_bad, len(report.messages)) == (100, report.messages_max)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FORMATS)
def test_real_data_is_read_without_a_bad_row(name: str) -> None:
    if not REAL_DATA:
        pytest.skip("HRM_TRACES names no directory with real traces")
    folder = next(v for k, v in FOLDERS.items() if name.startswith(k))
    records, report = load(name, Path(REAL_DATA) / folder)
    assert records
    assert report.rows_bad == 0, report.messages
    for record in records[:1000]:
        if isinstance(record, TraceJob):
            assert record.tasks
            assert record.duration_s >= 0
