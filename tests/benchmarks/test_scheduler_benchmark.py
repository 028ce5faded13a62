"""The scheduler's benchmark on clusters of a few nodes counts correctly."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks import scheduler
from benchmarks.scheduling import backlog, decisions, durable, live, streams
from benchmarks.scheduling.cells import BATCH, NODE_SLOTS, STREAM, Cell, matrix, percentile
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import WorkloadClass

SMALL = Cell(50, 10)


def test_the_matrix_has_every_combination_smallest_clusters_first() -> None:
    cells = matrix([100, 10], [1, 40], [BATCH, STREAM], ["min-wait"])

    assert len(cells) == len(set(cells)) == 8
    assert [cell.nodes for cell in cells] == [10] * 4 + [100] * 4


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]

    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@pytest.mark.parametrize("workload_class", [BATCH, STREAM])
def test_rounds_leave_the_cluster_as_full_as_it_was(workload_class: WorkloadClass) -> None:
    cluster = decisions.HalfFull(50)
    rounds = decisions.Rounds(cluster, Cell(50, 10, workload_class))
    _, _, stages_us = rounds.run(100)

    running = sum(len(cluster.state.queue(row).running) for row in cluster.state.rows.values())
    assert rounds.decided == 100
    assert running == len(cluster.live) == cluster.size
    assert 0.3 < running / (50 * NODE_SLOTS) < 0.7
    assert min(stages_us.values()) > 0


def test_more_schedulers_conflict_more_where_there_is_little_capacity() -> None:
    alone = decisions.measure_conflicts(SMALL, 1, rounds=5, filled=0.8)
    many = decisions.measure_conflicts(SMALL, 12, rounds=5, filled=0.8)

    assert alone.rate == 0
    assert many.rate > 0
    assert many.run + many.queued + many.aborted == many.claims


def test_every_durable_commit_is_counted() -> None:
    samples = durable.measure_durable([SMALL], 2, containers=200, clients=4)

    commits, applications = samples[SMALL].commits.values, samples[SMALL].applications.values
    assert len(commits) == 2
    assert [a / b for a, b in zip(commits, applications, strict=True)] == pytest.approx([10, 10])


def test_fairness_is_1_where_all_get_as_much_and_less_where_one_gets_more() -> None:
    assert live.jain_index([3, 3, 3, 3]) == 1.0
    assert live.jain_index([8, 0, 0, 0]) == 0.25
    assert live.jain_index([4, 2, 2]) == pytest.approx(64 / 72)
    assert live.jain_index([]) == 1.0


def test_each_end_in_a_full_cluster_serves_one_of_the_jobs_that_wait() -> None:
    cluster = backlog.FullCluster(3, 80, schedulers=2)
    slots = len(cluster.running)

    ends = backlog.measure_ends(cluster, 10)

    assert slots == 3 * NODE_SLOTS == len(cluster.running)
    assert (ends.placed, len(ends.ms), ends.jobs) == (10, 10, 70)
    assert backlog.measure_requests(cluster, 3) > 0
    assert sum(len(x.jobs) for x in cluster.core.placement.schedulers.values()) == 60


def test_where_they_may_containers_wait_at_units_of_a_full_cluster() -> None:
    cluster = backlog.FullCluster(3, 0, schedulers=2, waiting_limit=8)
    slots = len(cluster.running)

    ms = backlog.measure_queued(cluster, 4)

    assert len(ms) == 12 == len(cluster.running) - slots, "each was sent to a node, to wait there"
    assert min(ms) > 0
    assert not any(x.jobs for x in cluster.core.placement.schedulers.values())


def test_an_ends_time_is_that_of_all_the_rounds_that_follow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that each round moves on by a second."""
    cluster = backlog.FullCluster(3, 80, schedulers=2)
    monkeypatch.setattr(time, "process_time", lambda: float(cluster.rounds))

    ends = backlog.measure_ends(cluster, 10)

    assert ends.rounds >= 10
    assert sum(ends.ms) == 1e3 * ends.rounds
    assert min(ends.ms) >= 1e3, "each end is followed by a round at least"
    assert ends.median_ms == 1e3 * statistics.median(x / 1e3 for x in ends.ms)


def test_a_requests_time_is_that_of_the_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a request moves on by a second, what comes before and after by an hour."""
    seconds = {e.ContainersRequested: 1, e.ApplicationRegistered: 3600, e.ApplicationFinished: 3600}
    passed_s, handle = [0], MasterCore.handle

    def counted(self: MasterCore, event: e.MasterEvent) -> list[c.MasterCommand]:
        passed_s[0] += seconds.get(type(event), 0)
        return handle(self, event)

    monkeypatch.setattr(MasterCore, "handle", counted)
    monkeypatch.setattr(time, "process_time", lambda: float(passed_s[0]))

    assert backlog.measure_requests(backlog.FullCluster(3, 0, schedulers=2), 5) == 1e3

    cluster = backlog.FullCluster(3, 0, schedulers=2, waiting_limit=8)
    assert backlog.measure_queued(cluster, 4) == [1e3] * 12


def test_a_streams_delay_is_by_the_clock_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """By clocks that each look at moves on by a second: one look when the stream requests, and one
    when the last of its nodes has the order."""
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(time, clock, partial(next, itertools.count(0.0, 1.0)))

    delays = streams.measure_streams(Cell(100, 10), requests=5)

    assert 1e3 <= delays.p50_ms <= delays.p99_ms <= delays.max_ms
    assert delays.p99_cpu_ms >= 1e3
    assert delays.p50_ms % 1e3 == delays.p99_ms % 1e3 == 0


def test_a_stream_is_served_together_with_batch() -> None:
    delays = streams.measure_streams(Cell(100, 10), requests=5)

    assert 0 < delays.p50_ms <= delays.p99_ms <= delays.max_ms
    assert delays.batch_containers_per_s > 0


def test_end_to_end_and_the_return_of_nodes(tmp_path: Path) -> None:
    """In a process of its own: gRPC stays with the first loop that it has used."""
    script = tmp_path / "run.py"
    script.write_text(
        "import json\n"
        "from dataclasses import asdict\n"
        "from benchmarks.scheduling import live\n"
        "from benchmarks.scheduling.cells import Cell\n"
        "run = live.measure_end_to_end(Cell(10, 5), 1.0, clients=2)\n"
        "memory, returned = live.measure_memory(10, 50)\n"
        "print(json.dumps([run.as_json(), asdict(memory), asdict(returned)]))\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    run, memory, returned = json.loads(done.stdout.splitlines()[-1])
    assert run["containers_per_s"] > 0
    assert run["p50_ms"] <= run["p99_ms"]
    assert memory["containers"] == returned["containers"] == 50
    assert memory["rss_mib"] > 0
    assert 0 < returned["serving_s"] <= returned["all_s"]


def test_a_mistyped_part_is_refused_with_the_parts_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        scheduler.parse_arguments(["--only", "desisions"])
    assert "decisions, durable" in capsys.readouterr().err


def test_flags_go_over_the_quick_plan() -> None:
    given = scheduler.parse_arguments(["--quick", "--repetitions", "7", "--policies", "best-fit"])
    plan = scheduler.plan_of(given)

    assert (plan.repetitions, plan.policies) == (7, ("best-fit",))
    assert plan.decisions == scheduler.QUICK.decisions
