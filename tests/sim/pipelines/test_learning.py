"""The training environment: seeds, decisions, ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidConfig
from hrm.learn.environment import drive, evaluate
from hrm.pipelines.core.model import Choice
from hrm.pipelines.policies.cluster.heuristics import Demand, Ect
from hrm.pipelines.sim.learning import TASKS_MOST, LearningEnvironment, draw, environment
from tests.sim.pipelines.invented import sample


def _drive(made: LearningEnvironment, seed: int) -> list[tuple[str, float, bool]]:
    decision = made.reset(seed)
    policy, found, asked = Ect(), [], []
    while decision is not None:
        assert decision.fits.any()
        asked.append(str(decision.task.task_id))
        step = made.step(policy.choose(*decision).node)
        found += [(str(end.task_id), end.response_s, end.ok) for end in step.ended]
        assert not step.terminal
        decision = step.decision  # type: ignore[assignment]
    assert len(asked) >= len(set(asked)) == len({name for name, _, ok in found if ok})
    return found


def test_a_fixed_cluster_has_the_same_nodes_at_every_seed() -> None:
    made = environment(nodes="3", tasks="12", node_policy="pats")
    first = made.reset(1)
    assert first.view.names == made.reset(2).view.names
    assert _drive(made, 1) == _drive(made, 1)
    assert all(ok for _, _, ok in _drive(made, 2))


def test_random_clusters_differ_and_repeat() -> None:
    table = sample()
    drawn = [draw(seed, table=table, nodes=None, tasks=50, world=None) for seed in range(60)]
    counts = [len(one.workers) for one in drawn]
    assert min(counts) < 8 and max(counts) > 30
    assert {one.world for one in drawn} == {"measured", "overload", "none"}
    assert 0.2 < np.mean([bool(one.changes) for one in drawn]) < 0.8
    again = draw(3, table=table, nodes=None, tasks=50, world=None)
    assert (again.workers, again.changes) == (drawn[3].workers, drawn[3].changes)


def test_nodes_that_fail_do_not_end_the_trace() -> None:
    table = sample()
    seed = next(
        seed
        for seed in range(500)
        if len(draw(seed, table=table, nodes=None, tasks=15, world=None).workers) < 8
        and any(
            one.what == "fail"
            for one in draw(seed, table=table, nodes=None, tasks=15, world=None).changes
        )
    )
    found = _drive(environment(tasks="15", node_policy="pats"), seed)
    drawn = draw(seed, table=table, nodes=None, tasks=15, world=None)
    assert len([name for name, _, ok in found if ok]) == drawn.tasks > 0


def test_a_drawn_cluster_has_as_many_tasks_a_node() -> None:
    table = sample()
    drawn = [draw(seed, table=table, nodes=None, tasks=110, world=None) for seed in range(20)]
    assert [one.tasks for one in drawn] == [10 * len(one.workers) for one in drawn]
    whole = draw(1, table=table, nodes=None, tasks=100_000, world=None)
    assert whole.tasks == TASKS_MOST


def test_one_that_pulls_may_leave_tasks_in_the_queue() -> None:
    """``demand`` returns -1 while no node is idle; the task is presented again, and all end."""
    made: Any = environment(nodes="1", tasks="60", node_policy="pats")
    waited = False

    class Watched(Demand):
        def choose(self, *decision: Any) -> Choice:
            nonlocal waited
            choice = super().choose(*decision)
            waited = waited or choice.node < 0
            return choice

    found, terminal = drive(made, Watched(), 2)
    assert waited and not terminal
    assert len({end.task_id for end, _ in found if end.ok}) == 60
    assert all(ideal > 0.0 for end, ideal in found if end.ok)
    assert evaluate(made, Demand, [2]).tasks == 60


@pytest.mark.parametrize(
    "options", [{"node": "3"}, {"nodes": "many"}, {"tasks": "0"}, {"world": "cosine"}]
)
def test_options_that_mean_nothing(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        environment(**options)
