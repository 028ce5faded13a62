"""The model of ``ldwp-set`` that ships, on simulated clusters that it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.learn.environment import TRAINING
from hrm.pipelines.core.model import Choice, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.policies import cluster
from hrm.pipelines.policies.cluster.features import Bools
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.pipelines.sim import profiles as tables
from hrm.pipelines.sim.learning import draw
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.run import Simulation
from hrm.policies import model_files
from hrm.policies.guard import GuardMode

UNSEEN = 1_042
TASKS = 120


def shipped(mode: GuardMode = GuardMode.ON) -> GuardedClusterPolicy:
    rng = np.random.default_rng(0)
    policy = cluster.load("ldwp-set", rng=rng, mode=mode, heartbeat_s=4.0, clock_s=lambda: 0.0)
    assert isinstance(policy, GuardedClusterPolicy)
    return policy


class _Seen:
    """A ``ClusterPolicy`` that shows another one what ``changed`` makes of a view, and keeps it."""

    name = "seen"

    def __init__(
        self,
        inner: GuardedClusterPolicy,
        changed: Callable[[PipelineClusterView], PipelineClusterView] = lambda view: view,
    ) -> None:
        self.inner = inner
        self.changed = changed
        self.questions: list[tuple[TaskSpec, PipelineClusterView, Bools]] = []

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> Choice:
        self.questions.append((task, view, fits))
        return self.inner.choose(task, self.changed(view), fits)

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        self.inner.ended(task_id, now=now, response_s=response_s, ok=ok)


def ran(policy: _Seen) -> Simulation:
    assert UNSEEN not in TRAINING
    scenario = draw(UNSEEN, table=tables.load(), nodes=None, tasks=TASKS, world="measured")
    run = Simulation(scenario, policies("random", "mct", scenario, policy=policy))
    while run.step():
        pass
    assert len(run.ended) + run.failed == TASKS
    return run


@pytest.fixture(scope="module")
def seen() -> _Seen:
    policy = _Seen(shipped())
    ran(policy)
    return policy


def test_it_decides_on_a_cluster_that_it_has_never_seen(seen: _Seen) -> None:
    status = seen.inner.guard.status(0.0)
    assert status.learned >= 0.8 * status.asked, status.fallbacks
    assert model_files.find("ldwp-set").meta["command"].startswith("python -m hrm.learn.ldwp_set")


def test_telemetry_that_is_no_number_leaves_the_choice_to_the_heuristic() -> None:
    """Every third view has a node that reports nonsense; all tasks end."""
    count = 0

    def lying(view: PipelineClusterView) -> PipelineClusterView:
        nonlocal count
        count += 1
        cpu = view.cpu.copy()
        cpu[0] = np.nan if count % 3 == 0 else cpu[0]
        return replace(view, cpu=cpu)

    policy = _Seen(shipped(), lying)
    ran(policy)
    status = policy.inner.guard.status(0.0)
    assert status.fallbacks["not-finite"] >= 0.25 * status.asked
    assert status.learned >= 0.4 * status.asked


def test_inputs_that_never_come_together_are_left_to_the_heuristic(seen: _Seen) -> None:
    """Every column is within its range, but each comes from another moment and node."""
    rng = np.random.default_rng(3)
    task, _, fits = seen.questions[0]
    views = [view for _, view, _ in seen.questions if len(view.names) == len(fits)]
    columns = ("cpu", "gpu", "memory", "gpu_memory", "running", "waiting_batch", "free_cores",
               "expected_wait_s", "task_s", "report_age_s")  # fmt: skip
    usual, mixed = shipped(), shipped()
    for number in range(300):
        one = views[int(rng.integers(len(views)))]
        drawn: dict[str, Any] = {
            name: rng.permutation(getattr(views[int(rng.integers(len(views)))], name))
            for name in columns
        }
        usual.choose(replace(task, task_id=TaskId(f"usual-{number}")), one, fits)
        view = replace(one, **drawn)
        mixed.choose(replace(task, task_id=TaskId(f"mixed-{number}")), view, fits)
    usually, now = (policy.guard.status(0.0) for policy in (usual, mixed))
    assert now.learned < 0.1 * usually.learned
    assert set(now.fallbacks) == {"disagreement"}
