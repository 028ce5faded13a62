"""Runs of the simulated cluster: repeatable, nothing lost, truth and estimates separate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.pipelines.measured_run import simulate
from benchmarks.pipelines.run_measures import Result
from hrm.core.vocabulary.gpu_use import USE_PARTS
from hrm.pipelines.core.model import Device, SubtaskKey, row_of
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.priors import PROFILE_ERROR, noise, warm
from hrm.pipelines.sim.profiles import K80, P4
from hrm.pipelines.sim.run import Simulation
from hrm.pipelines.sim.scenario import Change, Scenario, arrivals, workers
from hrm.pipelines.sim.worker import PROFILE_S
from tests.core.pipeline.running_means import RunningMeans
from tests.sim.pipelines.invented import sample

TABLE = sample()
SMALL = Scenario(profiles=TABLE, rate_per_min=40.0, tasks=40, workers=workers(4), seed=7)


def _run(scenario: Scenario, pair: str = "ect+pats", *, known: bool = True) -> Result:
    cluster, _, node = pair.partition("+")
    return simulate(scenario, policies(cluster, node, scenario, known=known))


@pytest.mark.parametrize("pair", ["random+random", "min-wait+mct", "demand+pats", "ect+iawp"])
def test_a_seed_is_one_history(pair: str) -> None:
    first, second = _run(SMALL, pair), _run(SMALL, pair)
    assert first.log_hash == second.log_hash
    assert first.ended == second.ended
    assert _run(replace(SMALL, seed=8), pair).log_hash != first.log_hash


@pytest.mark.parametrize("pair", ["random+random", "ect+min-min", "least-loaded+iawp:cosine"])
def test_every_task_ends_once(pair: str) -> None:
    result = _run(SMALL, pair)
    assert (len(result.ended), result.failed, result.refused) == (40, 0, 0)
    assert all(response_s >= 0.999 * ideal_s for _, _, response_s, ideal_s in result.ended)


def test_policies_meet_the_same_arrivals() -> None:
    first, second = arrivals(SMALL), arrivals(SMALL)
    assert first.arrives_s == second.arrives_s
    assert first.cpu_s == second.cpu_s
    kinds = [task.pipeline.name for task in first.tasks]
    counts = {name: kinds.count(name) for name in set(kinds)}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(10.0 <= task.size_mb <= 400.0 for task in first.tasks)


def test_a_lost_node_loses_no_task() -> None:
    late = workers(5)[4]
    changes = (
        Change(20.0, "fail", SMALL.workers[1]),
        Change(30.0, "join", late),
        Change(40.0, "leave", SMALL.workers[2]),
    )
    result = _run(replace(SMALL, changes=changes))
    assert len(result.ended) == 40
    by_worker = {worker: at_s for at_s, worker, _, _ in result.ended}
    assert str(late.name) in by_worker
    assert by_worker.get(str(SMALL.workers[1].name), 0.0) < 20.0


def test_a_node_that_leaves_finishes_what_it_began() -> None:
    run = Simulation(
        replace(SMALL, changes=(Change(60.0, "leave", SMALL.workers[0]),)),
        policies("random", "pats", SMALL),
    )
    while run.step():
        pass
    assert SMALL.workers[0].name not in run.nodes
    assert len(run.ended) == 40


def test_what_is_known_at_the_start_is_near_the_truth_but_not_it() -> None:
    estimates = RunningMeans()
    warm(estimates, TABLE, P4)
    spec = TABLE.pipelines[0].subtasks[0]
    kind = TABLE.kinds[spec.kind]
    row = row_of(spec, 90.0, P4)
    truth_s = kind.run_s(Device.GPU, 85.0, P4)
    assert estimates.run_s(row, Device.GPU) == pytest.approx(truth_s, rel=0.5)
    assert estimates.run_s(row, Device.GPU) != truth_s
    features = estimates.gpu_features(row)[:7]
    assert features.tolist() == pytest.approx(list(kind.features), rel=0.4)
    assert features.tolist() != pytest.approx(list(kind.features), rel=1e-6)


def test_profiles_err_as_table_3_states() -> None:
    rng = np.random.default_rng(0)
    errors = [abs(noise(rng) - 1.0) for _ in range(4_000)]
    assert np.mean(errors) == pytest.approx(PROFILE_ERROR, rel=0.05)


def test_profiles_are_charged() -> None:
    """A node without history profiles each of its rows once, 8 s longer than the run."""
    one = replace(SMALL, tasks=1, workers=workers(1))
    ((_, _, response_s, ideal_s),) = _run(one, "ect+mct", known=False).ended
    subtasks = len(arrivals(one).tasks[0].pipeline.subtasks)
    assert response_s > ideal_s + PROFILE_S * subtasks
    ((_, _, known_s, _),) = _run(one, "ect+mct").ended
    assert known_s < response_s - PROFILE_S * (subtasks - 1)


def test_faster_hardware_is_kind_by_kind() -> None:
    """A K80 gains on kinds that move memory and loses on kinds that compute."""
    speeds = {name: kind.gpu_speed(K80) for name, kind in TABLE.kinds.items() if kind.log_gpu_s}
    assert min(speeds.values()) < 1.0
    assert all(kind.gpu_speed(P4) == 1.0 for kind in TABLE.kinds.values())
    work = arrivals(SMALL)
    task = work.tasks[0]
    subtask = next(one for one in task.pipeline.subtasks if Device.GPU in one.devices)
    times = work.gpu_s[SubtaskKey(task.task_id, subtask.name)]
    assert times[P4] / times[K80] == pytest.approx(TABLE.kinds[subtask.kind].gpu_speed(K80))


def test_a_simulated_run_alone_on_a_gpu_leaves_its_profile() -> None:
    run = Simulation(SMALL, policies("ect", "mct", SMALL, known=False))
    while run.step():
        pass
    found = {
        row: node.core.estimates.gpu_use(row)
        for node in run.nodes.values()
        for row in node.core.estimates.entries  # type: ignore[attr-defined]
        if node.core.estimates.gpu_use(row)
    }
    assert len(found) > 5
    for row, parts in found.items():
        load = TABLE.kinds[row.kind].features[0]
        assert [part.gpu for part in parts] == pytest.approx([load] * USE_PARTS)
        assert parts[0].memory_mib > 300.0


def test_nodes_profile_no_more_than_one_of_them_has_to() -> None:
    def profiled(*, shared: bool) -> int:
        chosen = policies("ect", "mct", SMALL, known=False, shared=shared)
        run = Simulation(SMALL, chosen)
        while run.step():
            pass
        assert len(run.ended) == SMALL.tasks
        rows = [
            (row.kind, row.bucket, row.gpu_model)
            for node in run.nodes.values()
            for row, entry in node.core.estimates.entries.items()  # type: ignore[attr-defined]
            if entry.runs
        ]
        return len(rows)

    assert profiled(shared=True) > profiled(shared=False), "each has what the others measured"
