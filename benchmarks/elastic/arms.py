"""Runs the three trainings at once in one arm, on a cluster of their own.

Each application has a queue that is guaranteed a third of the cluster. All begin to train at one
moment, once each has its third; from then to the end of the last is the makespan. What counts comes
from the applications themselves and from their event logs.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.clusters import Shape, Submission
from benchmarks.elastic.inputs import Expected
from benchmarks.elastic.plan import Arm, Plan, Training
from benchmarks.processes import BenchmarkError, wait_until
from benchmarks.startup import Started

__all__ = ["Run", "Trained", "Trainers", "executors_over_time", "run_arm"]

_APP = Path(__file__).resolve().parent.parent / "apps" / "torch_training.py"
_READY_LIMIT_S = 300.0
_END_LIMIT_S = 1_200.0
_POLL_S = 0.2
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""The second compiler does not pay for itself within minutes, and takes cores from the tasks."""
_DELIVERED = 0.01
"""A model is delivered once its accuracy is within this of its best."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """One application. All ``_s`` are seconds since training began, in all three at once.

    ``executors``: (when, how many are registered), from what it began with. ``epochs_s``: the end
    of each epoch. ``delivered_s``: when accuracy came within a hundredth of its best.
    ``task_s``: slot time of its tasks.
    """

    name: str
    ended_s: float
    delivered_s: float
    epochs_s: list[float]
    accuracies: list[float]
    executors: list[tuple[float, int]]
    task_s: float
    failed_tasks: int
    complaints: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of an arm. ``machine_busy``: part of the machine's processor time that was used."""

    arm: str
    trained: list[Trained]
    machine_busy: float

    @property
    def makespan_s(self) -> float:
        return max(each.ended_s for each in self.trained)


class Trainers(Started):
    """A cluster with a queue for each training."""

    name = "elastic"

    def __init__(self, plan: Plan, arm: Arm, directory: Path) -> None:
        memory_mib = plan.executor_memory_mib + plan.executor_overhead_mib
        shape = Shape(
            nodes=plan.nodes,
            cores_per_node=plan.slots_per_node,
            memory_per_node_mib=plan.slots_per_node * memory_mib,
            executor_memory_mib=plan.executor_memory_mib,
            executor_overhead_mib=plan.executor_overhead_mib,
            executors=plan.slots if arm.whole else plan.third,
            executor_cores=1,
            shuffle_partitions=1,
        )
        super().__init__(shape, directory)
        self.plan = plan
        self.arm = arm

    def configure(self) -> None:
        """Queues of a third each; elasticity as it is by default, by another policy, or off."""
        policy = self.arm.policy if self.arm.elastic else "off"
        parts = [f'[master]\nelasticity_policy = "{policy}"\n'] if policy else []
        memory_mib = self.plan.third * (self.shape.memory_per_node_mib // self.plan.slots_per_node)
        guaranteed = f'{{ cores = {self.plan.third}, memory = "{memory_mib}m" }}'
        parts += [
            f'[queues."{each.queue}"]\nguaranteed = {guaranteed}\n' for each in self.plan.trainings
        ]
        (self.state_dir / "hrm.toml").write_text("\n".join(parts))

    def settings(self, training: Training, events: Path) -> dict[str, str]:
        """Spark's settings of one application."""
        found = {
            **self.submit_settings(),
            "spark.app.name": training.name,
            "spark.eventLog.dir": events.as_uri(),
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.hrm.queue": training.queue,
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        }
        if self.arm.dynamic:
            del found["spark.executor.instances"], found["spark.cores.max"]
            found |= {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.initialExecutors": str(self.plan.third),
                "spark.dynamicAllocation.maxExecutors": str(self.plan.slots),
            }
        return found


@dataclass(slots=True)
class _Submitted:
    training: Training
    submission: Submission
    directory: Path


def run_arm(
    name: str, cluster: Trainers, data: Path, expected: dict[str, Expected], directory: Path
) -> Run:
    """One run of the arm of this name, on a cluster that has not been started.

    Raises:
        BenchmarkError: an application failed, or a limit was exceeded.
    """
    with cluster:
        trainings = cluster.plan.trainings
        submitted = [_submit(cluster, each, data, directory) for each in trainings]
        with _ending(submitted):
            begun_s, busy = _await(submitted, directory)
            results = [each.submission.result(1.0) for each in submitted]
        trained = [
            _trained(each, result, begun_s, expected[each.training.name])
            for each, result in zip(submitted, results, strict=True)
        ]
    return Run(arm=name, trained=trained, machine_busy=round(busy, 4))


def _submit(cluster: Trainers, training: Training, data: Path, directory: Path) -> _Submitted:
    plan, own = cluster.plan, directory / training.name
    events = own / "events"
    events.mkdir(parents=True)
    arguments: list[object] = [
        "--name", training.name, "--data", data, "--hidden", training.hidden,
        "--learning-rate", training.learning_rate, "--epochs", training.epochs,
        "--patience", plan.patience, "--better", plan.better, "--device-s", training.device_s,
        "--executors", plan.third,
        "--ready", own / "ready", "--go", directory / "go",
    ]  # fmt: skip
    submission = cluster.submit(_APP, arguments, own, cluster.settings(training, events))
    return _Submitted(training, submission, own)


@contextlib.contextmanager
def _ending(submitted: Sequence[_Submitted]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in submitted:
            each.submission.stop()


def _await(submitted: Sequence[_Submitted], directory: Path) -> tuple[float, float]:
    """Let all begin at once and wait for their ends: when they began, seconds since the epoch, and
    how busy the machine was."""
    _await_ready(submitted)
    begun_s, before_s = time.time(), _machine_s()
    (directory / "go").touch()
    while any(each.submission.running for each in submitted):
        _check(submitted)
        if time.time() - begun_s > _END_LIMIT_S:
            raise BenchmarkError(f"trainings ran past the limit of {_END_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)
    busy = (_machine_s() - before_s) / (time.time() - begun_s) / (psutil.cpu_count() or 1)
    return begun_s, busy


def _await_ready(submitted: Sequence[_Submitted]) -> None:
    def all_ready() -> bool:
        _check(submitted)
        return all((each.directory / "ready").exists() for each in submitted)

    wait_until(all_ready, _READY_LIMIT_S, "trainings to have what they begin with", _POLL_S)


def _check(submitted: Sequence[_Submitted]) -> None:
    for each in submitted:
        if not each.submission.running:
            each.submission.result(1.0)


def _machine_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _trained(
    each: _Submitted, result: dict[str, Any], begun_s: float, expected: Expected
) -> Trained:
    accuracies = [epoch["accuracy"] for epoch in result["epochs"]]
    epochs_s = [round(epoch["ended_s"] - begun_s, 3) for epoch in result["epochs"]]
    events = _events(each.directory / "events")
    ends = [event for event in events if event["Event"] == "SparkListenerTaskEnd"]
    infos = [e["Task Info"] for e in ends if e["Task Info"]["Launch Time"] / 1000 >= begun_s]
    return Trained(
        name=each.training.name,
        ended_s=round(result["ended_s"] - begun_s, 3),
        delivered_s=epochs_s[delivered(accuracies)],
        epochs_s=epochs_s,
        accuracies=accuracies,
        executors=executors_over_time(events, begun_s),
        task_s=round(sum(i["Finish Time"] - i["Launch Time"] for i in infos) / 1000, 3),
        failed_tasks=sum(bool(info["Failed"]) for info in infos),
        complaints=_complaints(each.training.name, accuracies, expected),
    )


def delivered(accuracies: Sequence[float]) -> int:
    """The first epoch, from 0, whose accuracy is within a hundredth of the best."""
    enough = max(accuracies) - _DELIVERED
    return next(place for place, each in enumerate(accuracies) if each >= enough)


def _complaints(name: str, accuracies: Sequence[float], expected: Expected) -> list[str]:
    if len(accuracies) != len(expected.accuracies):
        return [f"{name} ended after {len(accuracies)} epochs, not {len(expected.accuracies)}"]
    return [
        f"{name} has an accuracy of {found} after epoch {epoch}, not {right}"
        for epoch, (found, right) in enumerate(zip(accuracies, expected.accuracies, strict=True), 1)
        if found != right
    ][:1]


def _events(directory: Path) -> list[dict[str, Any]]:
    """Those of executors and of tasks' ends, in the order of the log."""
    kinds = ("SparkListenerExecutorAdded", "SparkListenerExecutorRemoved", "SparkListenerTaskEnd")
    starts = tuple(f'{{"Event":"{kind}"' for kind in kinds)
    found = []
    for path in sorted(p for p in directory.iterdir() if p.is_file() and p.suffix != ".crc"):
        with path.open() as lines:
            found += [json.loads(line) for line in lines if line.startswith(starts)]
    return found


def executors_over_time(
    events: Sequence[dict[str, Any]], begun_s: float
) -> list[tuple[float, int]]:
    """(seconds since it began, executors registered from then on), the first at 0."""
    held, found = set[str](), [(0.0, 0)]
    for event in events:
        kind, name = event["Event"], event.get("Executor ID", "")
        if kind == "SparkListenerExecutorAdded":
            held.add(name)
        elif kind == "SparkListenerExecutorRemoved" and name in held:
            held.remove(name)  # others have never registered
        else:
            continue
        at_s = round(max(0.0, event["Timestamp"] / 1000 - begun_s), 3)
        if at_s == found[-1][0]:
            found[-1] = (at_s, len(held))
        else:
            found.append((at_s, len(held)))
    return found
