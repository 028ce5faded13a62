"""The benchmark on a real cluster, with few tasks of a tiny pipeline; what counts as a result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pipeline_samples import sample_steps

from benchmarks.pipelines import PIPELINES, cluster, profile
from benchmarks.pipelines.cluster import Job, Pair, run_pair
from benchmarks.pipelines.outputs import OUTPUTS, Output, same
from hrm.pipelines import Pipeline
from hrm.pipelines.core.model import Device

LIMIT_S = 60.0


def _plain(result: object) -> Output:
    return Output((repr(result),))


def _jobs(pipeline: Pipeline, count: int) -> list[Job]:
    return [
        Job(pipeline, value, 1.0, _plain(pipeline.run_here(value)), _plain)
        for value in range(count)
    ]


def test_a_cluster_that_loses_an_agent_finishes_all_once(tmp_path: Path) -> None:
    run = run_pair(tmp_path, Pair("least-loaded", "random"), _jobs(sample_steps.arithmetic, 40))
    assert run.good, run.why
    assert run.tasks == 40
    assert 0 < run.p50_s <= run.p95_s < LIMIT_S
    assert run.tasks_per_min > 0 and 0 < run.gpu_share < 1


def test_wrong_and_failed_tasks_are_found(tmp_path: Path) -> None:
    jobs = _jobs(sample_steps.arithmetic, 6)
    jobs[2] = replace(jobs[2], output=_plain("another"))
    jobs[4] = replace(jobs[4], pipeline=sample_steps.raising)
    run = run_pair(tmp_path, Pair("ect", "pats"), jobs)
    assert (run.wrong, run.failed, run.lost, run.repeated) == (1, 1, 0, 0)
    assert not run.good
    assert any("ZeroDivisionError" in line for line in run.why)
    assert any("another answer" in line for line in run.why)


def test_tasks_that_do_not_end_in_time_are_lost(tmp_path: Path) -> None:
    hanging = sample_steps.slow
    jobs = [Job(hanging, 300.0, 1.0, _plain(None), _plain)]
    run = run_pair(tmp_path, Pair("ect", "pats"), jobs, limit_s=1.0)
    assert run.lost == 1 and not run.good


def test_replies_are_equal_within_the_tolerance_whatever_the_order() -> None:
    table = np.array([[0.0, 10.0, 0.5], [0.0, 40.0, 0.4]])
    one = Output(("a", 2), table, (0.5, 0.5, 0.02))
    moved = table[::-1] + np.array([0.0, 0.3, -0.01])
    assert same(one, replace(one, table=moved)) and same(one, one)
    assert not same(one, replace(one, table=moved + np.array([0.0, 0.3, 0.0])))
    assert not same(one, replace(one, table=table[:1]))
    assert not same(one, replace(one, table=table[[0, 0]]))
    assert not same(one, replace(one, facts=("a", 3)))
    assert one.digest != replace(one, facts=("a", 3)).digest


@pytest.mark.parametrize("name", list(PIPELINES))
def test_the_two_versions_give_the_same_result_and_other_inputs_another(name: str) -> None:
    pipeline = profile.load(name)
    sizes_mb = cluster.SIZES_MB.get(name, cluster.SIZES_ELSE_MB)
    outputs = []
    # The detector's random weights distinguish clips by their lengths only.
    for seed, size_mb in enumerate((max(sizes_mb), min(sizes_mb))):
        value = f"synthetic:mb={size_mb},seed={seed}"
        here = OUTPUTS[name](pipeline.run_here(value))
        on_gpu = OUTPUTS[name](_on_gpu(pipeline, value))
        assert same(here, on_gpu) and here.digest == on_gpu.digest
        outputs.append(here)
    assert not same(*outputs)


def _on_gpu(pipeline: Pipeline, value: object) -> object:
    """As ``run_here``, with the GPU version of every step that has one."""
    results: dict[str, object] = {}
    for spec in pipeline.spec("any:name").subtasks:
        versions = pipeline.steps[spec.name].versions
        inputs = [results[one] for one in spec.after] or [value]
        results[spec.name] = versions.get(Device.GPU, versions.get(Device.CPU))(*inputs)  # type: ignore[misc]
    return results[pipeline.spec("any:name").subtasks[-1].name]


def test_every_job_comes_as_often_as_the_others_in_one_order() -> None:
    jobs = _jobs(sample_steps.arithmetic, 5)
    chosen = cluster.mixed(jobs, 15)
    assert sorted(job.value for job in chosen) == sorted(list(range(5)) * 3)
    assert chosen == cluster.mixed(jobs, 15)
    assert [job.value for job in chosen[:5]] != list(range(5))


def test_pairs_have_every_policy_once() -> None:
    names = [str(pair) for pair in cluster.pairs()]
    assert len(names) == len(set(names))
    for name in (
        "random/mct",
        "ect/mct",
        "min-wait/pats",
        "min-wait/iawp",
        "ldwp-set/iawp:guarded",
    ):
        assert name in names
