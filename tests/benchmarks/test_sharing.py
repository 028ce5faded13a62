"""The parts of ``benchmarks.sharing`` that need no cluster: load, figures from logs, the report."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from benchmarks.apps.elastic_topk import executors_wanted
from benchmarks.processes import BenchmarkError
from benchmarks.sharing import __main__ as command
from benchmarks.sharing import arms as arms_module
from benchmarks.sharing import feedback, load, measures
from benchmarks.sharing.arms import EndedJob, Run, shape_of
from benchmarks.sharing.feedback import Gap, Records, await_queue, gaps_of, read_records
from benchmarks.sharing.machine import application_of
from benchmarks.sharing.measures import MicroBatch, Task, Use
from benchmarks.sharing.plan import (
    ALONE,
    ARMS,
    LOAD,
    QUEUES,
    STREAM_QUEUE,
    Plan,
    files_at,
    guarantees,
    job_name,
    query_groups,
)
from benchmarks.sharing.queue_report import queue_document, queue_report
from benchmarks.sharing.report import Taken, document, report, stretch
from hrm.v1 import common_pb2


def task(launched_s: float, finished_s: float, cpu_s: float = 0.0, ok: bool = True) -> Task:
    return Task(launched_s=launched_s, finished_s=finished_s, cpu_s=cpu_s, succeeded=ok)


def run(
    arm: str,
    *,
    batch_s: float = 500.0,
    durations_s: tuple[float, ...] = (2.0, 2.2),
    jobs: tuple[EndedJob, ...] = (),
    makespan_s: float | None = 100.0,
    complaints: tuple[str, ...] = (),
    wasted_s: float = 20.0,
    machine_cpu_s: float = 120.0,
    preempted: dict[str, int] | None = None,
) -> Run:
    return Run(
        arm=arm,
        window_s=100.0,
        stream=Use(slot_s=200.0, wasted_s=7.0, cpu_s=5.0),
        batch=Use(slot_s=batch_s, wasted_s=wasted_s, cpu_s=batch_s / 20),
        durations_s=list(durations_s),
        delays_s=[3.0, 4.0],
        late=0,
        executors=[(0.0, 1)],
        jobs=list(jobs),
        makespan_s=makespan_s,
        machine_cpu_s=machine_cpu_s,
        complaints=list(complaints),
        at_work_s=[each - 0.5 for each in durations_s],
        preempted=preempted or {},
        cpu_by_role_s={"stream's driver": 25.0},
    )


def test_the_load_rises_once_and_the_pool_is_cut_for_its_peak() -> None:
    plan = Plan()
    loads = [files_at(plan, tick) for tick in range(plan.ticks)]
    assert sum(share for share, _ in LOAD) == pytest.approx(1.0)
    assert files_at(plan, -1) == files_at(plan, plan.ticks + 5) == loads[0] == plan.slots
    assert max(loads) == plan.stream_executors_max * plan.slots == plan.capacity // 2
    assert loads.index(max(loads)) < len(loads) - 1 - loads[::-1].index(max(loads)), "it lasts"
    assert shape_of(plan, plan.nodes).nodes * shape_of(plan, 1).cores_per_node == plan.capacity
    assert sum(loads) / len(loads) < max(loads) / 1.5, "a part for the peak is idle most of it"


def test_the_backlog_alternates_and_every_query_is_in_one_part() -> None:
    names = [f"q{number:02d}" for number in range(1, 23)]
    groups = query_groups(names)
    assert sorted(name for group in groups for name in group) == names
    assert {job_name(number) for number in range(20)} == {
        "wordcount",
        *(f"tpch-{number}" for number in range(len(groups))),
    }


def test_the_streams_queue_is_guaranteed_its_peak_and_batch_queues_share_the_rest() -> None:
    found = guarantees(QUEUES)
    assert found == {STREAM_QUEUE: 50, "root.etl": 16, "root.adhoc": 16}
    assert sum(guarantees(replace(QUEUES, nodes=3)).values()) <= 100
    offered = QUEUES.backlog * QUEUES.batch_executors * QUEUES.slots
    assert offered > QUEUES.capacity, "each batch queue wants more than it may have"
    assert {job_name(number, QUEUES.queries) for number in range(9)} == {"wordcount"}


def test_jobs_go_to_the_queue_with_fewer_live_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[SimpleNamespace] = []

    def submit(_backlog: object, _number: int) -> SimpleNamespace:
        submitted.append(SimpleNamespace(running=True))
        return submitted[-1]

    monkeypatch.setattr(load.Backlog, "_submit", submit)
    monkeypatch.setattr(load.Backlog, "_check", lambda *_: None)
    queues = ("root.etl", "root.adhoc")
    backlog = load.Backlog(cast(Any, None), cast(Any, None), QUEUES, tmp_path, queues)
    backlog.turn()
    assert backlog.queue_of == [*queues, *queues]
    submitted[1].running = submitted[3].running = False
    backlog.turn()
    assert backlog.queue_of[4:] == ["root.adhoc", "root.adhoc"]
    assert [number for number, _ in backlog.ended] == [1, 3]


def test_executors_rise_at_once_and_fall_after_some_micro_batches() -> None:
    def wanted(*files: int) -> int:
        return executors_wanted(files, slots=3, least=1, most=3, hold=3)

    assert wanted() == 1
    assert wanted(3, 3, 6) == 2, "at once"
    assert wanted(6, 3, 3) == 2, "held"
    assert wanted(6, 3, 3, 3) == 1
    assert wanted(40) == 3, "no more than it may have"


def test_slots_are_used_by_what_succeeds_within_the_window() -> None:
    tasks = [task(0, 10, 4.0), task(8, 12, 2.0), task(5, 9, 1.0, ok=False), task(20, 30, 9.0)]
    assert measures.use(tasks, 5, 10) == Use(slot_s=7.0, wasted_s=4.0, cpu_s=3.0)
    assert measures.use(tasks, 40, 50) == Use(slot_s=0.0, wasted_s=0.0, cpu_s=0.0)
    assert measures.slot_seconds(tasks) == 24.0


def test_tasks_are_read_from_event_logs_that_may_be_cut_short(tmp_path: Path) -> None:
    def line(reason: str, launch: int, finish: int) -> str:
        return json.dumps(
            {
                "Event": "SparkListenerTaskEnd",
                "Task End Reason": {"Reason": reason},
                "Task Info": {"Launch Time": launch, "Finish Time": finish},
                "Task Metrics": {"Executor CPU Time": 2_000_000_000},
            },
            separators=(",", ":"),
        )

    log = tmp_path / "app-1.inprogress"
    log.write_text(
        f'{{"Event":"Other"}}\n{line("Success", 1000, 3000)}\n'
        f"{line('TaskKilled', 2000, 2500)}\n{line('Success', 5, 6)[:60]}"
    )
    (tmp_path / ".app-1.crc").write_text(line("Success", 1, 2) + "\n")
    assert measures.read_tasks(tmp_path) == [task(1, 3, 2.0), task(2, 2.5, 2.0, ok=False)]


def _event_log(directory: Path, *tasks: tuple[float, float]) -> None:
    directory.mkdir(parents=True)
    (directory / "app").write_text(
        "".join(
            json.dumps(
                {
                    "Event": "SparkListenerTaskEnd",
                    "Task End Reason": {"Reason": "Success"},
                    "Task Info": {"Launch Time": begun_s * 1000, "Finish Time": ended_s * 1000},
                },
                separators=(",", ":"),
            )
            + "\n"
            for begun_s, ended_s in tasks
        )
    )


def test_a_run_counts_its_window_alone_and_its_makespan_is_that_of_the_last_counted_job(
    tmp_path: Path,
) -> None:
    plan = Plan(jobs_counted=2)
    backlog = load.Backlog(
        cast(Any, None), cast(Any, None), plan, tmp_path,
        ended=[(0, 105.0), (1, 130.0), (2, 190.0)], queue_of=["", "", ""], begun_s=90.0,
    )  # fmt: skip
    for number in range(3):
        _event_log(backlog.place(number) / "events", (95 + number, 105 + number))
    _event_log(tmp_path / "stream" / "events", (119, 121))
    batches = [_batch(99, 1, 1), _batch(100, 2, 2), _batch(110, 7, 3), _batch(120, 1, 4)]
    given = arms_module._measured(
        ARMS["hrm-shared"], plan, tmp_path, (100.0, 120.0), batches, [98, 100, 105, 120], backlog
    )
    assert given.durations_s == [2.0, 7.0], "those that began in the window"
    assert given.late == 1
    assert given.delays_s == [2.0, 12.0]
    assert (given.stream.slot_s, given.batch.slot_s) == (1.0, 5.0 + 6.0 + 7.0)
    assert [job.ended_s for job in given.jobs] == [15.0, 40.0, 100.0]
    assert given.makespan_s == 40.0
    alone = Plan(jobs_counted=4)
    short = arms_module._measured(
        ARMS["hrm-shared"], alone, tmp_path, (100.0, 120.0), batches, [], backlog
    )
    assert short.makespan_s is None, "not as many have ended"


def _batch(begun_s: float, seconds: float, files: int, *keys: str) -> MicroBatch:
    return MicroBatch(begun_s=begun_s, seconds=seconds, files=files, top=[[key, 1] for key in keys])


def test_a_files_delay_includes_the_wait_for_its_trigger() -> None:
    batches = [_batch(10, 2, 1), _batch(13, 4, 3)]
    assert measures.delays(batches, [9.0, 12.5, 12.75, 16.0]) == [3.0, 4.5, 4.25]


def test_every_micro_batch_is_compared_with_the_exact_result() -> None:
    expected = [[["a", 1]], [["b", 1]], [["c", 1]]]
    right = [_batch(0, 1, 1, "a"), _batch(1, 1, 3, "c")]
    assert measures.stream_complaints(right, expected, 3) == []
    assert "2 files" in measures.stream_complaints([_batch(0, 1, 2, "a")], expected, 2)[0]
    assert measures.stream_complaints(right, expected, 4) == ["3 files counted of 4"]
    assert measures.stream_complaints([], expected, 1) == ["0 files counted of 1"]


def test_micro_batches_are_read_from_the_streams_last_line() -> None:
    line = {
        "micro_batches": [
            {"trigger": "2026-01-01T00:00:01.500Z", "ms": 1500, "rows": 20, "top": []},
            {"trigger": "2026-01-01T00:00:04.500Z", "ms": 2500, "rows": 10, "top": None},
        ]
    }
    first, second = measures.micro_batches(line, 10)
    assert (first.files, second.files, second.begun_s - first.begun_s) == (2, 3, 3.0)
    assert (first.seconds, second.top) == (1.5, None)


def test_the_time_with_a_task_at_work_counts_each_moment_once() -> None:
    batch = _batch(10, 5, 2)
    tasks = [task(9, 11), task(10.5, 12), task(11.5, 11.75), task(14, 16), task(20, 21)]
    assert measures.at_work_s(tasks, batch) == 2.0 + 1.0
    assert measures.at_work_s([], batch) == 0.0


def test_an_executor_is_known_by_its_command_line() -> None:
    command_line = ["java", "Backend", "--executor-id", "3", "--app-id", "app-7", "--cores", "1"]
    assert application_of(command_line) == "app-7"
    assert application_of(["java", "--app-id", "app-7"]) == ""
    assert application_of(["--executor-id", "--app-id"]) == ""


def test_a_stream_in_its_queue_is_compared_with_the_stream_alone() -> None:
    lost = [{"root.etl": 2}, {"root.adhoc": 1}, {}]
    taken = Taken(
        runs={
            "hrm-queues": [
                run("hrm-queues", batch_s=800, durations_s=(2.0, 3.2), preempted=each)
                for each in lost
            ],
            "hrm-shared": [run("hrm-shared", batch_s=1_000, durations_s=(3.0, 6.0))] * 3,
            ALONE: [run(ALONE, batch_s=0.0, durations_s=(2.0, 3.0))] * 3,
        }
    )
    found = queue_document(taken, QUEUES)
    assert (found["queues_stream_p50_ratio"], found["queues_stream_p95_ratio"]) == (1.0, 1.0667)
    assert (found["shared_stream_p50_ratio"], found["shared_stream_p95_ratio"]) == (1.5, 2.0)
    assert found["batch_ratio"] == 0.8
    assert found["arms"]["hrm-queues"]["preempted"] == {
        "root.adhoc": [0, 1, 0],
        "root.etl": [2, 0, 0],
    }
    assert found["arms"]["hrm-queues"]["tasks_p50_s"] == 1.5
    assert found["arms"][ALONE]["cores_by_role"] == {"stream's driver": 0.25}
    json.dumps(found)
    body = queue_report(found)
    assert "| micro-batches, p95 | 1.067 | ≤ 1.1: met | 2.000 |" in body
    assert "adhoc 0, 1, 0; etl 2, 0, 0" in body
    assert "All right" in body
    part = queue_document(Taken(runs={"hrm-queues": [run("hrm-queues")]}, failures=["x"]), QUEUES)
    assert part["queues_stream_p50_ratio"] is None
    assert "- x" in queue_report(part)


def test_a_ratio_of_percentiles_has_an_interval() -> None:
    ratio = measures.percentile_ratio([1.0] * 50 + [3.0], [1.0] * 51, 0.99)
    assert (ratio.value, ratio.high) == (3.0, 3.0)
    assert ratio.low == 1.0, "without the one late micro-batch"
    with pytest.raises(ValueError, match="either side"):
        measures.percentile_ratio([], [1.0], 0.99)


def test_a_gap_is_from_the_end_that_freed_the_capacity() -> None:
    records = [
        Records(container="1", decided_s=0.0, launched_s=0.1, runs_s=0.2, gone_s=9.5),
        Records(container="2", decided_s=0.5, launched_s=0.6, runs_s=0.7, gone_s=20.0),
        Records(container="3", decided_s=10.0, launched_s=10.25, runs_s=10.5),
        Records(container="4", decided_s=21.0, launched_s=20.998, runs_s=22.0),
        Records(container="5", launched_s=30.0),
    ]
    first, second = gaps_of(records)
    assert (first.decide_s, first.launch_s, first.start_s) == (0.5, 0.25, 0.25)
    assert first.node_s == 0.75
    assert (second.decide_s, second.start_s) == (1.0, 1.0)
    assert second.launch_s == 0.0, "a stamp of the file system, rounded down"


def _status(state: common_pb2.ContainerState) -> common_pb2.ContainerStatus:
    return common_pb2.ContainerStatus(state=state)


def test_a_gap_with_queues_is_taken_only_where_a_container_waits_at_the_unit() -> None:
    running = _status(common_pb2.CONTAINER_STATE_RUNNING)
    pending = _status(common_pb2.CONTAINER_STATE_PENDING)
    waiting = _status(common_pb2.CONTAINER_STATE_WAITING)
    await_queue(lambda: [running, waiting], queues=True, limit_s=0.0)
    await_queue(lambda: [running, pending], queues=False, limit_s=0.0)
    with pytest.raises(BenchmarkError, match=r"^a container to wait at the unit"):
        await_queue(lambda: [running, pending], queues=True, limit_s=0.0)
    with pytest.raises(BenchmarkError, match="no container to wait at the unit"):
        await_queue(lambda: [running, waiting], queues=False, limit_s=0.0)


@pytest.mark.parametrize(("queues", "limits"), [(True, range(1, 1_000)), (False, range(1))])
def test_the_masters_limit_is_that_of_the_measurement(
    queues: bool, limits: range, tmp_path: Path
) -> None:
    kind = feedback._Queueing if queues else feedback._Direct
    environment = kind(shape_of(Plan(), 1), tmp_path / "cluster").environment()
    assert int(environment["HRM_MASTER_WAITING_LIMIT"]) in limits


def test_gaps_are_summed_up_by_their_median_and_their_greatest() -> None:
    gaps = [Gap(decide_s=0.002 * n, launch_s=0.001 * n, start_s=0.01 * n) for n in (5, 1, 4, 2, 3)]
    found = document(Taken(gaps={True: gaps}), Plan())
    assert found["feedback_gap_ms"] == 9.0
    assert found["feedback"]["queues"] == {
        "count": 5,
        "node_p50_ms": 9.0, "node_p95_ms": 15.0,
        "decide_p50_ms": 6.0, "decide_p95_ms": 10.0,
        "launch_p50_ms": 3.0, "launch_p95_ms": 5.0,
        "start_p50_ms": 30.0, "start_p95_ms": 50.0,
    }  # fmt: skip
    text = report(found)
    assert "| queues: p50, ms | queues: greatest, ms |" in text
    assert "The target of 10 ms is met: with queues 9.0 ms" in text
    late = [Gap(decide_s=0.02, launch_s=0.001, start_s=0.01)] * 3
    assert "10 ms is missed: with queues 21.0" in report(document(Taken(gaps={True: late}), Plan()))


def test_a_nodes_records_are_read_while_it_writes_them(tmp_path: Path) -> None:
    where = tmp_path / "nodes" / "node-1" / "containers" / "a-x1"
    where.mkdir(parents=True)
    (where / "container.json").write_text("{}")
    os.utime(where / "container.json", (5.5, 5.5))
    assert read_records(tmp_path) == [Records(container="a-x1", launched_s=5.5)]
    (where / "process.json").write_text('{"pid": 7, "started_at_s": 6.5}')
    (where / "exit.json").write_text('{"ended_at')
    assert read_records(tmp_path, {"a-x1": 5.0, "a-x2": 6.0}) == [
        Records(container="a-x1", pid=7, decided_s=5.0, launched_s=5.5, runs_s=6.5)
    ]


def _taken() -> Taken:
    jobs = EndedJob(0, "wordcount", 50.0, 120.0), EndedJob(0, "wordcount", 80.0, 100.0)
    return Taken(
        runs={
            "hrm-shared": [run("hrm-shared", batch_s=800, jobs=jobs[:1], makespan_s=60.0)],
            "hrm-split": [run("hrm-split", jobs=jobs[1:])],
            "standalone-shared": [run("standalone-shared", durations_s=(9.0,), makespan_s=None)],
            "standalone-split": [run("standalone-split")],
            ALONE: [run(ALONE, batch_s=0.0, durations_s=(2.0, 2.0), makespan_s=None)],
        },
        gaps={
            True: [Gap(decide_s=0.003, launch_s=0.002, start_s=0.05)],
            False: [Gap(decide_s=0.103, launch_s=0.002, start_s=0.05)],
        },
    )


def test_the_document_compares_shared_with_split_and_with_alone() -> None:
    found = document(_taken(), Plan())
    assert found["utilisation_ratio"] == pytest.approx(1000 / 700, abs=1e-4)
    assert found["cpu_time_ratio"] == pytest.approx(45 / 30)
    assert found["batch_makespan_ratio"] == 0.6
    assert found["stream_p99_ratio"] == 1.1
    assert found["standalone_stream_p99_ratio"] == 4.5
    assert found["standalone_batch_makespan_ratio"] is None, "not all jobs ended"
    assert found["task_stretch"] == 1.2
    assert (found["feedback_gap_ms"], found["feedback_gap_no_queue_ms"]) == (5.0, 105.0)
    assert found["answers_right"]
    shared = found["arms"]["hrm-shared"]
    assert shared["utilisation"] == pytest.approx(10 / 18, abs=1e-4)
    assert shared["wasted"] == pytest.approx(0.27 / 18, abs=1e-4), "the stream's and batch's"
    assert (shared["stream_p50_s"], shared["stream_p99_s"]) == (2.0, 2.2)
    assert (shared["makespan_s"], shared["delay_p99_s"]) == (60.0, 4.0)
    json.dumps(found)
    body = report(found)
    assert "| slot time of tasks that succeeded | 1.429 | 1.000 | ≥ 1.25: met |" in body
    assert "| until 2 batch jobs have ended | 0.600 | - |  |" in body
    assert "| longest micro-batch of 1 to 2, shared over HRM's stream alone | 1.100 [" in body
    assert "| of it: until the node starts the next | 3.000 | 3.000 | 103.000 | 103.000 |" in body
    assert "All right" in body


def test_brackets_of_two_runs_are_called_what_they_are_and_a_disturbed_arm_is_named() -> None:
    busy_s = 0.9 * 100 * (os.cpu_count() or 1)
    taken = Taken(
        runs={
            "hrm-shared": [run("hrm-shared", batch_s=800), run("hrm-shared", batch_s=1_000)],
            "hrm-split": [
                run("hrm-split", machine_cpu_s=busy_s),
                run("hrm-split", batch_s=600, machine_cpu_s=0.0),
            ],
        }
    )
    body = report(document(taken, Plan(runs=2)))
    low, high = 1_000 / 800, 1_200 / 700
    assert f"[{low:.3f}, {high:.3f}] | - | ≥ 1.25: met |" in body
    assert "the least and the greatest ratio" in body
    assert "no 95 % interval" in body
    assert "run by run: hrm-split 0.90, 0.00 (in all others" in body
    assert "longest, s" in body
    many = {"hrm-shared": [run("hrm-shared", durations_s=(2.0,) * 200)] * 3}
    enough = report(document(Taken(runs=many), Plan(runs=3)))
    assert "over 3 runs of each arm, which cover less than 95 %" in enough
    assert "| p99, s |" in enough
    assert "Disturbed" not in enough


def test_a_wrong_answer_or_a_failed_run_is_in_the_document() -> None:
    taken = _taken()
    taken.runs["hrm-split"].append(run("hrm-split", complaints=("stream: 3 files counted of 4",)))
    taken.failures.append("standalone-split, run 2: it ended\nwith more lines")
    found = document(taken, Plan())
    assert not found["answers_right"]
    assert "- hrm-split: stream: 3 files counted of 4" in report(found)
    assert "with more lines" not in report(found)


def test_nothing_that_ended_on_one_side_alone_says_how_long_tasks_took() -> None:
    job = EndedJob(3, "wordcount", 50.0, 120.0)
    assert stretch([run("hrm-shared", jobs=(job,))], [run("hrm-split")]) is None


def test_a_part_of_the_arms_gives_a_part_of_the_document() -> None:
    found = document(Taken(runs={"hrm-split": [run("hrm-split")]}), Plan())
    assert found["utilisation_ratio"] is None
    assert "| hrm-split |" in report(found)


@pytest.mark.parametrize(
    ("arguments", "arms"),
    [
        ([], [name for name in ARMS if name != "hrm-queues"]),
        (["--queues"], ["hrm-shared", ALONE, "hrm-queues"]),
        (["--queues", "--only", "hrm-queues"], ["hrm-queues"]),
        (["--quick"], ["hrm-shared", "hrm-split", ALONE]),
        (["--only", "feedback"], []),
        (["--quick", "--only", "standalone-split"], ["standalone-split"]),
        (["--systems", "standalone"], ["standalone-shared", "standalone-split"]),
        (["--only", "hrm-split,standalone-split"], ["hrm-split", "standalone-split"]),
    ],
)
def test_the_command_line_chooses_arms(arguments: list[str], arms: list[str]) -> None:
    given = command.parse_arguments(arguments)
    assert command.chosen_arms(given) == arms


@pytest.mark.parametrize(
    "arguments",
    [["--systems", "yarn"], ["--only", "hrm-shard"], ["--runs", "0"], ["--window-s", "-1"]],
)
def test_what_does_not_exist_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse_arguments(arguments)


def test_flags_win_over_the_quick_plan() -> None:
    plan = command.plan_of(command.parse_arguments(["--quick", "--runs", "2"]))
    assert (plan.runs, plan.window_s) == (2, 60.0)
