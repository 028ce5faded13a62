"""Runs in which one application comes back, now a stream and now batch: nothing is found."""

from __future__ import annotations

import pytest

from hrm.sim.world import World
from tests.sim.planted.plans import recurring


@pytest.mark.parametrize("seed", [1, 5, 15, 16, 24, 27, 29])
def test_an_application_begins_as_what_its_last_run_was(seed: int) -> None:
    world = World(recurring(seed))
    world.run()
    assert world.oracle.found == []
    assert world.oracle.classes.seen["guessed"] and world.oracle.classes.seen["corrected"]
