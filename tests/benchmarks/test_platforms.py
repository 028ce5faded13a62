"""The parts of ``benchmarks.platforms`` that need no cluster: load, figures, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from benchmarks.apps.tenant import computed, result_of
from benchmarks.platforms import __main__ as command
from benchmarks.platforms import inputs as inputs_module
from benchmarks.platforms.arms import Alone, PlatformTasks, TenantRun, Together
from benchmarks.platforms.cluster import shape_of
from benchmarks.platforms.plan import ARMS, FAST, SIMPLE, SLOW, Plan
from benchmarks.platforms.report import (
    Outcome,
    fairness,
    normalised,
    outcome_document,
    outcome_report,
)


def tenant_run(name: str, seconds: float, *, slow: int = 0, begun_s: float = 0.0) -> TenantRun:
    parts = {FAST: PlatformTasks(100 - slow, 3.0), SLOW: PlatformTasks(slow, 6.0)}
    return TenantRun(
        tenant=name,
        begun_s=begun_s,
        ended_s=begun_s + seconds,
        tasks=100,
        by_platform={platform: part for platform, part in parts.items() if part.tasks},
        complaints=[],
    )


def together(arm: str, *seconds: float) -> Together:
    names = [tenant.name for tenant in Plan().tenants]
    return Together(
        arm=arm,
        runs=[tenant_run(name, each, slow=50) for name, each in zip(names, seconds, strict=True)],
        preempted=(2, 0),
        machine_busy=0.5,
    )


def alone(name: str, platform: str, seconds: float) -> Alone:
    return Alone(
        platform=platform,
        executors=4,
        run=tenant_run(name, seconds, slow=100 if platform == SLOW else 0),
        machine_busy=0.2,
    )


def outcome() -> Outcome:
    names = [tenant.name for tenant in Plan().tenants]
    return Outcome(
        alone=[
            *(alone(name, FAST, 100.0) for name in names),
            alone(names[0], SLOW, 300.0), alone(names[1], SLOW, 120.0), alone(names[2], SLOW, 80.0),
        ],
        together={
            SIMPLE: [together(SIMPLE, 160.0, 110.0, 100.0)] * 3,
            "reciprocal": [together("reciprocal", 100.0, 120.0, 100.0)] * 3,
        },
    )  # fmt: skip


def test_each_tenant_has_a_third_of_all_slots_and_waits_for_most_of_a_task() -> None:
    plan = Plan()
    assert plan.executors * len(plan.tenants) == 2 * plan.slots
    assert shape_of(plan).cores_per_node == plan.slots
    at_work = sum(x.cpu_s / (x.cpu_s + x.wait_s) for x in plan.tenants) * plan.executors
    assert at_work < 1.0, "one core does what all slots of the fast platform would compute"
    assert [x.queue for x in plan.tenants] == ["root.compute", "root.mixed", "root.store"]
    assert ARMS[SIMPLE].policy == "simple-fairness"


def test_what_a_job_must_compute_is_the_sum_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs_module, "steps_per_s", lambda: 1_000.0)
    monkeypatch.setattr(inputs_module, "paced_jar", lambda cache: cache / "paced.jar")
    plan = Plan(tasks=5, warm_up_tasks=2)
    found = inputs_module.prepare(plan, tmp_path / "inputs", tmp_path)
    for tenant in plan.tenants:
        work = found.jobs[tenant.name]
        files = sorted(work.directory.glob("*.txt"))
        sizes = [path.stat().st_size / plan.file_bytes for path in files]
        assert len(set(sizes)) == len(sizes) == plan.tasks
        assert 0.5 <= min(sizes) < max(sizes) < 1.5
        assert sum(sizes) / len(sizes) == pytest.approx(1.0, abs=0.15)
        assert sum(result_of(path.read_text()) for path in files) == work.expected
        assert found.warm_up[tenant.name].tasks == 2
        assert work.name.startswith("paced:///")
    assert computed(0, 1) == 48271


def test_the_ideal_is_the_faster_platform_alone() -> None:
    found = outcome()
    assert found.ideal_per_s("compute") == 1.0
    assert found.ideal_per_s("store") == 1.25, "it is faster on the other one"
    simple = normalised(found, found.together[SIMPLE][0])
    assert simple == pytest.approx({"compute": 0.625, "mixed": 1 / 1.1, "store": 0.8})


def test_fairness_is_one_less_the_coefficient_of_variation() -> None:
    assert fairness([0.5, 0.5, 0.5]) == 1.0
    assert fairness([1.0, 0.5]) == pytest.approx(1 - 0.25 / 0.75)


def test_the_document_compares_divisions_with_simple_fairness() -> None:
    found = outcome_document(outcome(), Plan())
    assert found["reciprocal_makespan_ratio"] == 0.75
    assert found["simple_fairness"] == pytest.approx(fairness([0.625, 1 / 1.1, 0.8]), abs=1e-4)
    assert found["reciprocal_fairness"] > found["simple_fairness"]
    arm = found["arms"]["reciprocal"]
    assert arm["tasks_by_platform"]["compute"] == {FAST: 0.5, SLOW: 0.5}
    assert arm["task_s"]["store"] == {FAST: 3.0, SLOW: 6.0}
    json.dumps(found)
    body = outcome_report(found)
    assert "| `affinity-round-robin`, reciprocal | " in body
    assert "| 0.750 [0.750, 0.750] |" in body
    assert "All right" in body


def test_a_wrong_sum_or_a_failed_run_is_in_the_document() -> None:
    given = outcome()
    given.failures.append("simple, run 2: it ended\nwith more lines")
    given.alone[0].run.complaints.append("compute: a job of 4 tasks computed 1, not 2")
    found = outcome_document(given, Plan())
    assert not found["answers_right"]
    body = outcome_report(found)
    assert "- compute: a job of 4 tasks computed 1, not 2" in body
    assert "with more lines" not in body


def test_a_part_of_the_arms_gives_a_part_of_the_document() -> None:
    given = outcome()
    given.together.clear()
    assert "## Together" not in outcome_report(outcome_document(given, Plan()))
    assert outcome_document(Outcome(together=outcome().together), Plan())["arms"] == {}


def test_the_command_line_chooses_arms_and_flags_win() -> None:
    given = command.parse_arguments(["--quick", "--jobs", "1"])
    assert given.chosen == ["alone", "simple", "reciprocal"]
    assert (command.plan_of(given).jobs, command.plan_of(given).runs) == (1, 1)
    assert command.parse_arguments([]).chosen == ["alone", "crowds", "simple", "reciprocal"]
    for wrong in (["--only", "fair"], ["--runs", "0"], ["--quota-cores", "-1"]):
        with pytest.raises(SystemExit):
            command.parse_arguments(wrong)
