"""The simulator can fail: with a bug planted in the core, some seed of the first few finds it.

Each bug is one that a change could introduce. The same seeds find nothing in the core as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hrm.sim.faults.plan import Limits, Plan
from hrm.sim.faults.plan_generator import draw
from hrm.sim.run import run_plan
from tests.sim.planted import masters, nodes, scheduling, turns
from tests.sim.planted.plans import crashing_agents, cut_drivers, hanging_agents

SEEDS = range(150)
LIMITS = (None, Limits(without=frozenset({"submissions"})))
"""One of the bugs is rare if the nodes are full of drivers."""
BUGS = [*scheduling.BUGS, *nodes.BUGS, *masters.BUGS, *turns.BUGS]

CAUGHT_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    scheduling.stale_lease: 73,
    scheduling.locked_units_granted: 19,
    scheduling.jobs_of_a_lost_scheduler: 24,
    scheduling.reply_before_its_changes: 24,
    nodes.cores_in_two_units: 14,
    nodes.rebinding_replied_twice: 11,
    nodes.old_epoch_honoured: 91,
    nodes.drain_that_holds_up_a_stream: 78,
    scheduling.excluded_node_granted: 44,
    masters.lease_for_former_drivers: 44,
    masters.node_taken_by_its_identity: 17,
    masters.callers_wait_for_a_full_disk: 11,
    masters.begun_on_a_full_disk: 10,
    masters.next_driver_too_early: 78,
    masters.lost_driver_taken_for_dead: 82,
    masters.behind_its_nodes: 40,
    masters.unknown_applications_ended: 95,
    turns.orders_for_the_agent_before: 110,
    turns.batch_waits_for_streams: 165,
    turns.round_begun_twice: 9,
    turns.request_of_a_stream_overlooked: 209,
    scheduling.double_commit: 17,
}
"""The seed that has found one that the first few do not; the sweep is used if it no longer does."""
CAUGHT_UNDER: dict[Callable[[pytest.MonkeyPatch], None], Plan] = {
    nodes.dead_agents_units: crashing_agents(152),
    turns.stream_not_ended: crashing_agents(52),
    turns.back_on_a_full_disk: hanging_agents(3),
    masters.lease_that_does_not_run_out: cut_drivers(4),
}


def plans(bug: Callable[[pytest.MonkeyPatch], None]) -> Iterator[Plan]:
    """What to try, the most promising first."""
    if bug in CAUGHT_BY:
        yield draw(CAUGHT_BY[bug])
    if bug in CAUGHT_UNDER:
        yield CAUGHT_UNDER[bug]
    for limits in LIMITS:
        for seed in SEEDS:
            yield draw(seed, limits)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = next((plan for plan in plans(bug) if run_plan(plan).violations), None)
    assert found is not None, f"{len(SEEDS)} seeds found nothing: {bug.__doc__}"
    monkeypatch.undo()
    assert run_plan(found).violations == ()
