"""Runs in which batch is preempted again and again: nothing is found, and places are kept."""

from __future__ import annotations

import pytest

from hrm.sim.world import World
from tests.sim.planted.plans import waves_of_streams


@pytest.mark.parametrize("seed", range(8))
def test_waves_of_streams_cost_batch_no_place(seed: int) -> None:
    world = World(waves_of_streams(seed))
    world.run()
    assert world.oracle.found == []
    assert world.oracle.places.taken["stood first"] > 0
