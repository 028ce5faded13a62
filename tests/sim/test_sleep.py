"""A master that sleeps, while nothing else fails: it is only noticeable by the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master.entities import Container
from hrm.core.master.node_registry import NodeRegistry
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.model import ContainerEnd, ContainerState, EndCause
from hrm.sim.faults.plan import KINDS, Limits, TimedFault
from hrm.sim.faults.plan_generator import draw
from hrm.sim.run import run_plan

SEEDS = range(60)
CHUNKS = 4
OTHERS = frozenset(KINDS) - {"sleep"} | {"scaling"}
"""A pool that is scaled loses nodes."""
MASTER_S = 12.0


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_master_that_sleeps_costs_no_node_no_executor_and_no_application(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    lose, end = NodeRegistry._lose, MasterState.end_container

    def node_lost(self: NodeRegistry, node: Any, now: float, why: str) -> None:
        lost.append(f"{node.name}: {why}")
        lose(self, node, now, why)

    def ended(
        self: MasterState, container: Container, by: Any, how: ContainerEnd, now: float
    ) -> None:
        is_loss = how.cause in (EndCause.LOST, EndCause.NODE_LOST)
        if is_loss and container.state is ContainerState.RUNNING:
            lost.append(f"{container.container_id}: {how.message}")
        end(self, container, by, how, now)

    monkeypatch.setattr(NodeRegistry, "_lose", node_lost)
    monkeypatch.setattr(MasterState, "end_container", ended)
    sleeps = 0
    seeds = SEEDS[chunk::CHUNKS]
    for seed in seeds:
        plan = draw(seed, Limits(without=OTHERS))
        faults = tuple(TimedFault(at_s, "sleep", 0.0, 0.99) for at_s in (2.0, 2.0 + 1.5 * MASTER_S))
        result = run_plan(replace(plan, faults=faults, horizon_s=4 * MASTER_S))
        sleeps += result.faults["sleep"]
        assert not result.violations, (seed, result.violations)
        ends = {why for why in result.outcomes.values() if "did not come back" in why}
        assert not ends, (seed, ends)
    assert sleeps == 2 * len(seeds)
    assert lost == []
