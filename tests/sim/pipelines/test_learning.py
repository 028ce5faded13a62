"""The training environment: seeds, decisions, ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidConfig
from hrm.learn.environment import drive, evaluate
from hrm.pipelines.core.model import Choice, Device
from hrm.pipelines.policies.cluster.heuristics import Demand, Ect
from hrm.pipelines.sim.learning import (
    GPUS_MOST,
    LOAD_LEAST,
    LOAD_MOST,
    NODES_LEAST,
    LearningEnvironment,
    capacity_per_min,
    draw,
    environment,
)
from hrm.pipelines.sim.scenario import arrivals
from hrm.pipelines.sim.simulated_machine import LINK_MB_PER_S
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


def test_random_clusters_differ_in_all_that_a_policy_must_not_depend_on_and_repeat() -> None:
    table = sample()
    drawn = [draw(seed, table=table, nodes=None, tasks=50, world=None) for seed in range(60)]
    counts = [len(one.workers) for one in drawn]
    assert min(counts) == NODES_LEAST and max(counts) > 10
    types = [worker.type for one in drawn for worker in one.workers]
    assert {one.gpus for one in types} == set(range(GPUS_MOST + 1))
    assert min(one.cores for one in types) == 1 and max(one.cores for one in types) > 20
    assert all(one.workers[0].type.gpus for one in drawn), "some steps need a GPU"
    kind = next(name for name, one in table.kinds.items() if one.log_cpu_s)
    lengths = [one.profiles.kinds[kind].run_s(Device.CPU, 60.0) for one in drawn]
    assert max(lengths) > 20 * min(lengths)
    assert {one.world for one in drawn} == {"measured", "overload", "none"}
    assert 0.1 < np.mean([bool(one.changes) for one in drawn]) < 0.5
    again = draw(3, table=table, nodes=None, tasks=50, world=None)
    assert (again.workers, again.changes) == (drawn[3].workers, drawn[3].changes)


def test_the_rate_is_a_share_of_what_the_cluster_can_do() -> None:
    table = sample()
    for seed in range(5):
        one = draw(seed, table=table, nodes=None, tasks=50, world="none")
        share = one.rate_per_min / capacity_per_min(replace(one, tasks=200))
        assert LOAD_LEAST - 0.1 < share < LOAD_MOST + 0.1
        longer = replace(one, profiles=one.profiles.scaled(1e3), tasks=200)
        longest = replace(one, profiles=one.profiles.scaled(1e4), tasks=200)
        assert capacity_per_min(longest) == pytest.approx(capacity_per_min(longer) / 10, rel=0.01)


def test_short_tasks_arrive_as_fast_as_links_carry_their_inputs() -> None:
    one = draw(0, table=sample(), nodes=None, tasks=50, world="none")
    shorter = replace(one, profiles=one.profiles.scaled(1e-4), tasks=200)
    megabytes = np.mean([task.size_mb for task in arrivals(shorter).tasks])
    carried = 60.0 * len(one.workers) * LINK_MB_PER_S / megabytes
    assert capacity_per_min(shorter) == pytest.approx(carried)


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
