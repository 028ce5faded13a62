"""The oracle judges what takes freed GPUs back by what applications have when it starts.

Two executors of an application that has more are ordered to end for another's, which is
larger than each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from hrm.core.master.entities import Container
from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    ContainerState,
    Resources,
    ResourceUnitId,
)
from hrm.core.vocabulary.transitions import CONTAINER
from hrm.sim.oracle.freed_gpus import FreedGpus
from hrm.sim.run import run_plan
from tests.sim.planted.plans import rivals_of_sizes

GIVES, WAITS = ApplicationId("gives"), ApplicationId("waits")
FREED, OTHER = ResourceUnitId("n1/gpu0"), ResourceUnitId("n1/gpu1")
WHOLE_MIB, SLICE_MIB = 1000, 500
GRACE_S = 15.0


@dataclass
class Scene:
    """``found``: what the oracle has found so far."""

    apps: dict[ApplicationId, list[Container]] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.oracle = FreedGpus(self.found.append)
        self.apps = {GIVES: [], WAITS: []}
        for x in range(2):
            self.add(GIVES, f"victim-{x}", SLICE_MIB, FREED)
            self.add(GIVES, f"keeps-{x}", WHOLE_MIB, OTHER)
        self.add(WAITS, "in-line", WHOLE_MIB)
        victims = {ContainerId("victim-0"), ContainerId("victim-1")}
        self.oracle.ordered(self.apps, victims, self.now)
        self.end(GIVES, "victim-0")

    def add(
        self, app: ApplicationId, name: str, mib: int, unit_id: ResourceUnitId | None = None
    ) -> None:
        """One starts at a unit, or waits for a place."""
        state = ContainerState.PENDING if unit_id is None else ContainerState.RUNNING
        container_id = ContainerId(name)
        request = ContainerRequest(
            executor_id=name, resource_profile_id=0, resources=Resources(1, 10, mib)
        )
        life = Lifecycle("container", container_id, CONTAINER, state)
        container = Container(container_id, app, request, life, self.now)
        if unit_id is not None:
            container.unit_id, container.assigned_at_s = unit_id, self.now
        self.apps[app].append(container)

    def end(self, app: ApplicationId, name: str) -> None:
        self.apps[app] = [x for x in self.apps[app] if x.container_id != name]

    def happened(self) -> list[str]:
        """The oracle sees what has changed."""
        self.oracle.after(self.apps, GRACE_S, self.now)
        self.now += 1.0
        return self.found


def begun() -> Scene:
    """With the order given, and the first victim's part free."""
    scene = Scene()
    assert scene.happened() == []
    return scene


def test_one_with_more_takes_back_what_it_gave() -> None:
    scene = begun()
    scene.add(GIVES, "again", SLICE_MIB, FREED)
    (found,) = scene.happened()
    assert found.startswith("again takes back what was preempted at n1/gpu0")
    assert len(scene.happened()) == 1, "each is judged once"


def test_one_with_less_may_start_there_whatever_the_other_loses_then() -> None:
    scene = begun()
    for x in range(3):
        scene.add(WAITS, f"elsewhere-{x}", WHOLE_MIB, OTHER)
    assert scene.happened() == []
    scene.add(GIVES, "again", SLICE_MIB, FREED)
    assert scene.happened() == []
    for x in range(3):
        scene.end(WAITS, f"elsewhere-{x}")
    assert scene.happened() == [], "it had less when it started"
    scene.add(GIVES, "more", SLICE_MIB, FREED)
    (found,) = scene.happened()
    assert found.startswith("more takes back")


def test_when_the_last_victim_has_ended_it_is_anyones() -> None:
    scene = begun()
    scene.end(GIVES, "victim-1")
    scene.add(GIVES, "again", SLICE_MIB, FREED)
    assert scene.happened() == []


def test_what_is_freed_for_an_executor_that_is_wanted_no_more_is_anyones() -> None:
    """Another of the same application still waits, which is larger than what ends."""
    scene = begun()
    scene.end(WAITS, "in-line")
    scene.add(WAITS, "larger", 2 * WHOLE_MIB)
    scene.add(GIVES, "again", SLICE_MIB, FREED)
    assert scene.happened() == []


@pytest.mark.parametrize("seed", [9, 124, 228])
def test_a_run_in_which_the_one_that_waits_releases_its_own_finds_nothing(seed: int) -> None:
    """Executors that it has, or that it waits for."""
    assert run_plan(rivals_of_sizes(seed, preemption=True)).violations == ()
