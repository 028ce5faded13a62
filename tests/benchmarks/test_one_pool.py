"""The parts of ``benchmarks.one_pool`` that need no cluster: load, figures, chaos, the report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from benchmarks import daemons
from benchmarks.one_pool import __main__ as command
from benchmarks.one_pool import measures
from benchmarks.one_pool.arms import Run, figures
from benchmarks.one_pool.chaos import AGENT, MASTER, Chaos, Death
from benchmarks.one_pool.cluster import pool_shape
from benchmarks.one_pool.plan import (
    ALONE,
    CHAOS,
    HALVES,
    PIPELINE_LABEL,
    POOL,
    QUICK,
    SPARK_LABEL,
    Plan,
    Work,
    bound_ratio,
    labels,
    rounds,
    work_list,
)
from benchmarks.one_pool.report import Taken, document, report
from benchmarks.one_pool.tasks import Ended, check, commonest, ends_logged, pipelines
from benchmarks.processes import BenchmarkError
from hrm.agent.containers.shim import start_ticks
from hrm.cli.embedded import Cluster, DaemonProcess
from hrm.pipelines import SubtaskRun, TaskResult
from hrm.pipelines.client.sources import sources_of
from hrm.pipelines.core.model import Device

TEXT = b"The cat, the Dog; the end. A cat of 7 lives" * 50


def ended(number: int = 0, **more: Any) -> Ended:
    given: dict[str, Any] = {
        "number": number, "is_stream": False, "submitted_s": 100.0, "ended_s": 110.0,
        "ok": True, "right": True, "steps": [(104.0, 110.0)], "attempt": 1, "runs": 1, "logged": 1,
    }  # fmt: skip
    return Ended(**{**given, **more})


def run(
    arm: str,
    *,
    makespan_s: float | None = 100.0,
    durations_s: Sequence[float] = (2.0, 2.2),
    **more: Any,
) -> Run:
    given: dict[str, Any] = {
        "spark_slot_s": 600.0, "pipeline_slot_s": 300.0, "backlog_s": 80.0, "tasks": 30,
        "backlog_slot_s": 800.0, "jobs_s": [60.0, 90.0], "tasks_s": 100.0, "machine_busy": 0.5,
        "response_p95_s": {"batch": 50.0, "stream": 3.0},
    }  # fmt: skip
    return Run(arm=arm, makespan_s=makespan_s, durations_s=list(durations_s), **{**given, **more})


def test_tasks_are_the_same_in_every_run_and_of_all_kinds() -> None:
    plan = Plan()
    works = work_list(plan, 1_000_000)
    assert works == work_list(plan, 1_000_000)
    assert sorted(work.number for work in works) == list(range(plan.tasks))
    assert {len(work.seconds) for work in works} == {1, 2, 3}
    assert all(0.2 <= each <= 3.0 for work in works for each in work.seconds)
    assert all(work.offset + plan.block_bytes <= 1_000_000 for work in works)
    assert [work.submit_s for work in works] == sorted(work.submit_s for work in works)


def test_tasks_of_class_batch_come_at_once_and_those_of_a_stream_one_by_one() -> None:
    for plan in (Plan(), QUICK):
        works = work_list(plan, 1_000_000)
        streams = [work for work in works if work.is_stream]
        assert len(streams) == plan.tasks // plan.stream_every
        assert {work.submit_s for work in works if not work.is_stream} == {0.0}
        arrivals = [work.submit_s for work in streams]
        assert arrivals == [plan.stream_arrival_s * each for each in range(len(streams))]
        assert arrivals[-1] < plan.offer.window_s, "they come while the stream's load changes"


def test_a_node_has_memory_for_a_worker_in_each_slot_and_either_kind_has_half_of_the_nodes() -> (
    None
):
    plan = Plan()
    shape = pool_shape(plan)
    assert shape.nodes * shape.cores_per_node == plan.capacity == 18
    assert shape.memory_per_node_mib >= shape.cores_per_node * 1_024
    assert labels(shape.nodes) == {"node-1": SPARK_LABEL, "node-2": PIPELINE_LABEL}
    assert list(labels(4).values()).count(SPARK_LABEL) == 2


def test_arms_take_turns_and_the_one_with_chaos_comes_last_and_once() -> None:
    order = rounds([ALONE, POOL, HALVES, CHAOS], 2)
    assert order == [
        (0, ALONE), (0, POOL), (0, HALVES), (1, HALVES), (1, POOL), (1, ALONE), (0, CHAOS),
    ]  # fmt: skip


def test_halves_lose_by_the_part_of_the_work_that_is_not_a_half() -> None:
    assert bound_ratio(500.0, 500.0) == 1.0
    assert bound_ratio(750.0, 250.0) == bound_ratio(250.0, 750.0) == 1.5


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_pipeline_returns_the_commonest_words_and_leaves_a_line_each_time(
    steps: int, tmp_path: Path
) -> None:
    text, mark = tmp_path / "text", tmp_path / "mark"
    text.write_bytes(TEXT)
    plan = Plan(block_bytes=400)
    work = Work(number=0, seconds=(0.0,) * steps, offset=43, is_stream=False, submit_s=0.0)
    value = {
        "path": str(text), "offset": 43, "bytes": 400, "seconds": [0.0] * steps, "mark": str(mark),
    }  # fmt: skip
    for times in (1, 2):
        result = pipelines()[steps].run_here(value)
        assert result["commonest"] == commonest(TEXT, work, plan)
        assert len(result["ended_s"]) == steps
        assert len(mark.read_text().splitlines()) == times
    assert result["commonest"][0][0] == "the"


def test_what_is_sent_to_the_nodes_is_one_small_file() -> None:
    sources = sources_of(pipelines()[3])
    assert sources.reference == "paced_blocks:three"
    assert [path for path, _ in sources.files] == ["paced_blocks.py"]


def _timing(subtask: str, ran_s: float, outcome: str = "done") -> SubtaskRun:
    return SubtaskRun(
        subtask=subtask, device=Device.CPU, number=0, node="node-1", waited_s=0.0, ran_s=ran_s,
        outcome=outcome,
    )  # fmt: skip


def test_a_result_is_compared_and_its_steps_run_until_they_say_they_have_ended() -> None:
    value = {"commonest": [["a", 2]], "ended_s": [10.0, 15.0]}
    runs = (_timing("read", 2.0), _timing("rank", 9.0, "crashed"), _timing("rank", 4.0))
    result = TaskResult(task_id="x", value=value, attempt=1, runs=runs)
    assert check(result, [["a", 2]]) == (True, [(8.0, 10.0), (11.0, 15.0)])
    assert check(result, [["a", 3]])[0] is False
    assert check(TaskResult(task_id="x", value=value, runs=runs[:2]), [["a", 2]]) == (False, [])
    assert check(TaskResult(task_id="x", value=None, error="it failed"), []) == (False, [])


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (ended(), ""),
        (ended(attempt=2, runs=2), ""),
        (ended(right=False), "another result"),
        (ended(runs=0), "without its last step"),
        (ended(ok=False, right=False, error="no memory"), "failed: no memory"),
        (ended(ended_s=None, ok=False, right=False), "has not ended"),
        (ended(runs=2), "its last step 2 times, in placement 1"),
        (ended(logged=2), "ended 2 times"),
        (ended(runs=3, attempt=2), "its last step 3 times"),
    ],
)
def test_a_task_that_is_not_right_says_why(task: Ended, words: str) -> None:
    assert (words in task.complaint()) if words else not task.complaint()
    assert bool(words) == any((task.is_wrong, task.is_failed, task.is_lost, task.is_twice))


def test_ends_are_counted_in_the_log_of_all_masters(tmp_path: Path) -> None:
    log = tmp_path / "master.log"
    line = "2026-01-01 [info     ] task ended                     outcome=done task={} why=\n"
    log.write_text(line.format("blocks-1-a") + "other task=b\n" + 2 * line.format("blocks-2-b"))
    assert ends_logged(log) == {"blocks-1-a": 1, "blocks-2-b": 2}


def test_spans_are_merged_and_measured_within_windows() -> None:
    assert measures.union([(5, 6), (1, 3), (2, 4), (4, 4.5), (9, 9)]) == [(1, 4.5), (5, 6)]
    assert measures.covered_s([(0, 4), (2, 4), (9, 12)], (3, 10)) == 1 + 1 + 1
    assert measures.overlap_s([(0, 10), (4, 6)], [(0, 1), (5, 7)]) == 1 + 2 + 1


def test_a_stage_waits_until_its_last_task_is_launched(tmp_path: Path) -> None:
    def task(stage: int, launch_ms: int) -> dict[str, Any]:
        return {
            "Event": "SparkListenerTaskEnd", "Stage ID": stage, "Stage Attempt ID": 0,
            "Task Info": {"Launch Time": launch_ms},
        }  # fmt: skip

    def stage(number: int, at_ms: int) -> dict[str, Any]:
        info = {"Stage ID": number, "Stage Attempt ID": 0, "Submission Time": at_ms}
        return {"Event": "SparkListenerStageSubmitted", "Stage Info": info}

    events = [stage(0, 1_000), task(0, 1_500), stage(1, 4_000), task(0, 3_000), stage(2, 9_000)]
    lines = [json.dumps(each, separators=(",", ":")) for each in [*events, task(1, 4_000)]]
    (tmp_path / "app").write_text("\n".join(lines) + "\n")
    assert measures.stage_waits(tmp_path) == [(1.0, 3.0), (4.0, 4.0)]


def test_a_runs_figures_are_of_the_time_until_the_last_end() -> None:
    found = Run(arm=POOL)
    tasks = [ended(0), ended(1, ended_s=140.0, steps=[(120.0, 125.0), (130.0, 140.0)])]
    of_spark = [(90.0, 105.0), (110.0, 200.0)]
    figures(found, 100.0, [150.0, 120.0], of_spark, [(100.0, 102.0), (145.0, 148.0)], tasks)
    assert (found.makespan_s, found.tasks_s) == (50.0, 40.0)
    assert (found.spark_slot_s, found.pipeline_slot_s) == (5.0 + 40.0, 6.0 + 5.0 + 10.0)
    assert found.utilisation(2) == pytest.approx(66.0 / 50.0 / 2)
    assert found.backlog_s == 20.0 + 3.0, "until the last task has begun, and as a stage waits"
    assert found.backlog_slot_s == (5.0 + 10.0 + 6.0) + 3.0


def test_what_has_not_ended_has_no_makespan() -> None:
    found = Run(arm=POOL)
    figures(found, 100.0, [150.0], [], [], [ended(0), ended(1, ended_s=None, steps=[])])
    assert found.makespan_s is None
    assert found.utilisation(18) is None


class _FakeDaemons:
    """Records what is killed and started."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def kill(self, name: str) -> str:
        self.calls.append(f"kill {name}")
        return name

    def start(self, killed: str) -> None:
        self.calls.append(f"start {killed}")


def test_the_agent_dies_then_the_master_and_both_come_back() -> None:
    fake, now = _FakeDaemons(), [0.0]
    plan = Plan(down_s=3.0, kill_in_order_s=10.0)
    chaos = Chaos(plan, cast(daemons.Daemons, fake), lambda: now[0])
    seen: list[tuple[float, int]] = []
    for at_s, part in [(0, 0.1), (5, 0.3), (7, 0.6), (8, 0.6), (12, 0.7), (18, 0.8), (21, 1.0)]:
        now[0] = at_s
        chaos.turn(part)
        seen.append((at_s, len(fake.calls)))
    assert fake.calls == [f"kill {AGENT}", f"start {AGENT}", f"kill {MASTER}", f"start {MASTER}"]
    assert seen == [(0, 0), (5, 1), (7, 1), (8, 2), (12, 2), (18, 3), (21, 4)]
    assert chaos.is_over
    assert [(death.died_s, death.back_s) for death in chaos.deaths] == [(5, 8), (18, 21)]


def test_a_daemon_that_is_dead_when_the_run_ends_is_started_again() -> None:
    fake = _FakeDaemons()
    chaos = Chaos(Plan(), cast(daemons.Daemons, fake), lambda: 0.0)
    chaos.turn(1.0)
    assert not chaos.is_over
    chaos.finish()
    assert fake.calls == [f"kill {AGENT}", f"start {AGENT}"]


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[Cluster]:
    """The record of a cluster whose one daemon sleeps."""
    arguments = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(arguments, env={"COLOUR": "blue"}, cwd=tmp_path)
    record = DaemonProcess(
        role="agent", name="node-1", pid=process.pid, start_ticks=start_ticks(process.pid) or 0,
        log=str(tmp_path / "logs" / "node-1.log"),
    )  # fmt: skip
    cluster = Cluster(
        directory=tmp_path, host="127.0.0.1", port=1, nodes=1, cores=1, memory_mib=1,
        processes=[record],
    )  # fmt: skip
    cluster.save()
    try:
        yield cluster
    finally:
        process.kill()
        process.wait(10)


def test_a_daemon_starts_again_as_it_was_and_its_cluster_knows_it(sleeping: Cluster) -> None:
    subject = daemons.Daemons(sleeping.directory)
    killed = subject.kill("node-1")
    assert not sleeping.processes[0].alive()
    with pytest.raises(BenchmarkError, match="no daemon node-1 runs"):
        subject.kill("node-1")
    subject.start(killed, ("more",))
    (again,) = (Cluster.read(sleeping.directory) or sleeping).processes
    assert again.alive()
    assert again.pid != killed.record.pid
    second = subject.kill("node-1")
    assert second.command == [*killed.command, "more"]
    assert second.environment["COLOUR"] == "blue"
    assert second.directory == sleeping.directory
    with pytest.raises(BenchmarkError, match="no daemon node-7 runs"):
        subject.kill("node-7")


def _taken() -> Taken:
    deaths = [Death(name=AGENT, died_s=30.0, back_s=33.0), Death(name=MASTER, died_s=50.0)]
    return Taken(
        runs={
            ALONE: [run(ALONE, makespan_s=None, durations_s=(2.0, 2.0), tasks=0)],
            POOL: [run(POOL), run(POOL, makespan_s=120.0), run(POOL, makespan_s=110.0)],
            HALVES: [run(HALVES, makespan_s=each) for each in (140.0, 154.0, 160.0)],
            CHAOS: [run(CHAOS, makespan_s=300.0, again=4, deaths=deaths)],
        }
    )


def test_the_document_compares_halves_with_the_pool_and_the_stream_with_itself_alone() -> None:
    found = document(_taken(), Plan())
    assert found["makespan_ratio"] == 154 / 110 == 1.4
    assert found["utilisation_ratio"] == pytest.approx(154 / 110, abs=1e-4)
    assert found["backlog_utilisation_ratio"] == 1.0
    assert found["stream_p99_ratio"] == 1.1
    assert found["makespan_bound_ratio"] == pytest.approx(600 / 900 * 2, abs=1e-4)
    assert (found["wrong"], found["lost"], found["twice"], found["failed"]) == (0, 0, 0, 0)
    assert found["answers_right"]
    pool = found["arms"][POOL]
    assert pool["utilisation"] == pytest.approx(900 / 110 / 18, abs=1e-4)
    assert (pool["makespan_s"], pool["jobs_s"], pool["tasks_s"]) == (110.0, 90.0, 100.0)
    assert pool["stream_task_p95_s"] == 3.0
    alone = found["arms"][ALONE]
    assert (alone["makespan_s"], alone["utilisation"]) == (None, None)
    json.dumps(found)
    body = report(found)
    assert "| makespan, halves over pool | 1.400 [" in body
    assert "a makespan's ratio of 1.33" in body
    assert "`node-1`: SIGKILL 30 s after the beginning; started again after 3.0 s" in body
    assert "`master`: SIGKILL 50 s after the beginning; started not again" in body
    assert "4 were placed again. All right" in body


def test_what_went_wrong_in_any_run_is_counted_and_named() -> None:
    taken = _taken()
    taken.runs[POOL].append(run(POOL, wrong=1, lost=2, twice=3, complaints=["task 7 failed: x"]))
    taken.failures.append("halves, run 2: the stream ended\nwith more lines")
    found = document(taken, Plan())
    assert (found["wrong"], found["lost"], found["twice"]) == (1, 2, 3)
    assert not found["answers_right"]
    body = report(found)
    assert "- pool: task 7 failed: x" in body
    assert "with more lines" not in body


def test_a_part_of_the_arms_gives_a_part_of_the_document() -> None:
    found = document(Taken(runs={POOL: [run(POOL)]}), Plan())
    assert found["makespan_ratio"] is None
    assert found["makespan_bound_ratio"] is None
    assert "Killed" not in report(found)


@pytest.mark.parametrize(
    ("arguments", "arms"),
    [
        ([], [ALONE, POOL, HALVES, CHAOS]),
        (["--no-chaos"], [ALONE, POOL, HALVES]),
        (["--only", "pool-chaos"], [CHAOS]),
        (["--quick", "--only", "halves,pool"], [POOL, HALVES]),
    ],
)
def test_the_command_line_chooses_arms(arguments: list[str], arms: list[str]) -> None:
    assert command.chosen_arms(command.parse_arguments(arguments)) == arms


@pytest.mark.parametrize("arguments", [["--only", "thirds"], ["--runs", "0"], ["--tasks", "-1"]])
def test_what_does_not_exist_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse_arguments(arguments)


def test_flags_win_over_the_quick_plan() -> None:
    plan = command.plan_of(command.parse_arguments(["--quick", "--runs", "2", "--tasks", "9"]))
    assert (plan.runs, plan.tasks, plan.offer.window_s) == (2, 9, 60.0)
    assert plan.job_names == ["wordcount", "tpch-0"]
