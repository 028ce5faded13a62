"""The parts of ``benchmarks.elastic`` that need no cluster, and a short run of one arm."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from benchmarks.clusters import Hrm
from benchmarks.elastic import __main__ as command
from benchmarks.elastic.arms import Run, Trained, Trainers, delivered, executors_over_time, run_arm
from benchmarks.elastic.inputs import Expected, prepare
from benchmarks.elastic.plan import ARMS, COMPARED, ELASTIC, QUICK, Plan, Training
from benchmarks.elastic.plot import draw
from benchmarks.elastic.report import Outcome, document, mean_executors, report
from hrm.config import hrm_home

NAMES = [training.name for training in Plan().trainings]


def trained(name: str, ended_s: float, accuracy: float = 0.8) -> Trained:
    return Trained(
        name=name,
        ended_s=ended_s,
        delivered_s=ended_s / 2,
        epochs_s=[ended_s / 2, ended_s],
        accuracies=[accuracy, accuracy],
        executors=[(0.0, 3), (ended_s / 2, 1), (ended_s + 1.0, 0)],
        task_s=2 * ended_s,
        failed_tasks=0,
    )


def run(arm: str, *ends_s: float) -> Run:
    each = [trained(name, ended_s) for name, ended_s in zip(NAMES, ends_s, strict=True)]
    return Run(arm=arm, trained=each, machine_busy=0.5)


def outcome() -> Outcome:
    return Outcome(
        expected={name: Expected((0.7, 0.8), 3.5) for name in NAMES},
        runs={
            "static": [run("static", 60.0, 90.0, 240.0)] * 3,
            "dynamic": [run("dynamic", 60.0, 90.0, 150.0)] * 3,
            ELASTIC: [run(ELASTIC, 90.0, 120.0, 120.0)] * 3,
        },
    )


def test_each_training_has_a_third_of_the_slots_and_the_default_policy_is_not_stated(
    tmp_path: Path,
) -> None:
    plan = Plan()
    assert plan.third * len(plan.trainings) == plan.slots
    for name, arm in ARMS.items():
        cluster = Trainers(plan, arm, tmp_path / name)
        cluster.state_dir.mkdir()
        cluster.configure()
        stated = (cluster.state_dir / "hrm.toml").read_text()
        assert stated.count(f"cores = {plan.third}, ") == len(plan.trainings)
        assert ('elasticity_policy = "off"' in stated) == (not arm.elastic)
        assert ("elasticity_policy" in stated) == (name != ELASTIC)
        settings = cluster.settings(plan.trainings[0], tmp_path)
        assert ("spark.dynamicAllocation.enabled" in settings) == arm.dynamic
        asked = settings.get("spark.executor.instances")
        assert asked == (None if arm.dynamic else "9" if arm.whole else "3")


def test_a_model_does_not_depend_on_the_process_and_its_shards_are_all_used(tmp_path: Path) -> None:
    short = replace(QUICK, tasks=3, rows=80, held_out=400, trainings=QUICK.trainings[1:2])
    first, second = (prepare(short, tmp_path / name)["narrow"] for name in ("a", "b"))
    assert first.accuracies == second.accuracies
    assert first.final > 0.6 > first.accuracies[0]
    fewer = prepare(replace(short, tasks=2), tmp_path / "c")["narrow"]
    assert fewer.accuracies != first.accuracies


def test_patience_ends_a_training(tmp_path: Path) -> None:
    training = Training("linear", 0, 0.1, 0.1, 200)
    plan = replace(QUICK, tasks=2, rows=200, held_out=400, patience=5, trainings=(training,))
    found = prepare(plan, tmp_path / "data")["linear"].accuracies
    assert len(found) < 200
    assert max(found[-5:]) < max(found[:-5]) + plan.better


def test_a_model_is_delivered_within_a_hundredth_of_its_best() -> None:
    assert delivered([0.5, 0.785, 0.791, 0.8, 0.79]) == 2


def test_executors_over_time_begin_with_those_of_the_beginning() -> None:
    def event(kind: str, executor: str, at_s: float) -> dict[str, object]:
        event = f"SparkListenerExecutor{kind}"
        return {"Event": event, "Executor ID": executor, "Timestamp": int(1000 * at_s)}

    events = [event("Added", "1", 98.0), event("Added", "2", 99.0)]
    events += [event("Removed", "7", 105.0), event("Removed", "2", 110.5)]  # 7 had only waited
    events += [{"Event": "SparkListenerTaskEnd"}, event("Added", "3", 120.0)]
    steps = executors_over_time(events, 100.0)
    assert steps == [(0.0, 2), (10.5, 1), (20.0, 2)]
    assert mean_executors(steps, 0.0, 21.0) == pytest.approx((21.0 + 9.5 + 2.0) / 21.0)
    assert mean_executors(steps, 15.0, 25.0) == pytest.approx(1.5)
    assert mean_executors([(0.0, 3)], 5.0, 6.0) == 3.0


def test_the_document_compares_elasticity_with_the_others(tmp_path: Path) -> None:
    found = document(outcome(), Plan())
    assert found["makespan_over_static"] == 0.5
    assert found["makespan_over_dynamic"] == 0.8
    assert found["completion_over_dynamic"] == pytest.approx(1.1)
    assert found["arms"]["static"]["slots_used"] == pytest.approx(2 * 390 / 240 / 9, abs=1e-4)
    assert found["answers_right"]
    found = json.loads(json.dumps(found))
    body = report(found, "elastic.svg")
    assert "| all have ended | 0.500 [0.500, 0.500] | 0.800 [0.800, 0.800] |" in body
    assert "emulated device time" in body
    assert draw(tmp_path / "plot.svg", found).read_text().count("static") == 0
    assert "a third of the slots each" in (tmp_path / "plot.svg").read_text()


def test_a_wrong_accuracy_or_a_failed_run_is_in_the_document() -> None:
    given = outcome()
    given.failures.append("static, run 2: it ended\nwith more lines")
    given.runs[ELASTIC][0].trained[1].complaints.append("narrow ended after 3 epochs, not 4")
    found = document(given, Plan())
    assert not found["answers_right"]
    body = report(found, None)
    assert "narrow ended after 3 epochs, not 4" in body
    assert "with more lines" not in body


def test_a_part_of_the_arms_gives_a_part_of_the_document() -> None:
    given = outcome()
    del given.runs[ELASTIC]
    assert "HRM's elasticity over" not in report(document(given, Plan()), None)


def test_the_command_line_chooses_arms() -> None:
    given = command.parse_arguments(["--quick", "--only", "elastic,queues", "--runs", "2"])
    assert given.chosen == ["elastic", "queues"]
    assert (command.plan_of(given).runs, command.plan_of(given).trainings) == (2, QUICK.trainings)
    assert command.parse_arguments([]).chosen == list(COMPARED)
    for wrong in (["--only", "fair"], ["--runs", "0"]):
        with pytest.raises(SystemExit):
            command.parse_arguments(wrong)


class Bare(Trainers):
    """Without archives of classes, which would be made for minutes."""

    def start(self) -> None:
        self.state_dir.mkdir(parents=True)
        (self.state_dir / "plugins").symlink_to(hrm_home() / "plugins")
        self.configure()
        Hrm.start(self)


@pytest.mark.spark
@pytest.mark.extra
@pytest.mark.timeout(900)
def test_on_a_cluster_what_converges_gives_up_executors_and_models_stay_the_same(
    tmp_path: Path,
) -> None:
    trainings = Training("linear", 0, 0.1, 0.1, 45), Training("wide", 64, 0.001, 0.3, 40)
    plan = replace(QUICK, nodes=1, slots_per_node=4, tasks=4, trainings=trainings)
    assert plan.third == 2, "of two trainings it is a half"
    expected = prepare(plan, tmp_path / "data")
    found = run_arm(
        ELASTIC,
        Bare(plan, ARMS[ELASTIC], tmp_path / "run" / "cluster"),
        tmp_path / "data",
        expected,
        tmp_path / "run",
    )
    linear, wide = found.trained
    assert linear.complaints + wide.complaints == []
    assert 1 in [count for at_s, count in linear.executors if at_s > 0.0], "it has given up one"
    assert max(count for _, count in wide.executors) == 3, "and this one has got it"
