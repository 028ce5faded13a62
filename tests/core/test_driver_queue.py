"""Lines of drivers lead to the same as a look at each driver that waits, one after another."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.master import driver_queue
from hrm.core.master.driver_places import DriverPlaces
from hrm.core.master.driver_queue import DriverQueue, holds_up
from hrm.core.master.entities import Container
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import demand_vector, plus
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    FirstExecutors,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.testing.virtual import VirtualCluster, VirtualNode, unit


class Walk(NamedTuple):
    """What one ``take`` decides. ``reasons``: of those that go on waiting."""

    taken: list[ContainerId]
    hopeless: list[tuple[ContainerId, str]]
    reasons: dict[ContainerId, str]
    first: ContainerId | None


def walk(queue: DriverQueue, now: float) -> Walk:
    """The rule itself: every driver is looked at, in order of request."""
    state = queue._master_state
    places, endless = DriverPlaces(state), DriverPlaces(state, endless=True)
    found, reserved = Walk([], [], {}, None), (0, 0, 0, 0)
    turn, first = "", None
    for container in state.drivers.values():
        if container.state is not ContainerState.PENDING or container.held:
            continue
        name, waits = container.container_id, container.container_id in queue.waiting
        if waits and turn:
            found.reasons[name] = turn
            continue
        verdict = queue._verdict(places, container, reserved)
        if not waits or not verdict.why:
            if waits:
                found.taken.append(name)
            if queue._could_get_a_place(places, container, verdict):
                reserved = plus(reserved, demand_vector(container.request.resources))
            continue
        if verdict.lacks_node:
            never = queue._no_node_ever(container)
            if never and queue._is_overdue(container, now):
                found.hopeless.append((name, never))
            else:
                found.reasons[name] = verdict.why
            continue
        if not places.held and (never := queue._never(container)):
            found.hopeless.append((name, never))
            continue
        found.reasons[name] = verdict.why
        if first is None and queue._waits_for_batch(endless, container):
            first = queue._first
            if first is None or first[0] != name:
                first = name, now
            if holds_up(now - first[1]):
                turn = f"{container.application_id} came before it, and waits: {verdict.why}"
    return found._replace(first=first and first[0])


def _without_sum(why: str) -> str:
    """What others of its line will hold is not counted anew for each of them."""
    return re.sub(r"drivers hold \d+ of", "drivers hold some of", why)


class Checked:
    """Compares every ``take`` with ``walk``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.takes = self.taken = self.held_up = self.hopeless = 0
        take = DriverQueue.take

        def checked(
            queue: DriverQueue, now: float
        ) -> tuple[list[Container], list[tuple[Container, str]]]:
            if queue._master_state.recovering:
                return take(queue, now)
            expected = walk(queue, now) if queue.waiting else Walk([], [], {}, None)
            before = queue._first
            taken, hopeless = take(queue, now)
            refused = [(x.container_id, why) for x, why in hopeless]
            waits = queue.waiting.keys() - {x for x, _ in refused}
            reasons = {x: _without_sum(queue.waiting[x].why) for x in waits}
            assert [x.container_id for x in taken] == expected.taken
            assert refused == expected.hopeless
            assert reasons == {x: _without_sum(why) for x, why in expected.reasons.items()}
            first = queue._first if waits else None
            assert (first and first[0]) == expected.first
            if first and before and first[0] == before[0]:
                assert first == before
            self.takes += 1
            self.taken += len(taken)
            self.held_up += any("came before it" in why for why in reasons.values())
            self.hopeless += len(refused)
            return taken, hopeless

        patch.setattr(DriverQueue, "take", checked)


SIZES = [(1, 1), (2, 1), (3, 2), (6, 4)]
"""Vcores of a driver and of its executors."""
KINDS = ["batch", "batch", "stream", "labelled", "gang"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(KINDS), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(
            st.sampled_from(["end", "end", "register", "exclude", "lose", "fill"]),
            st.just(""),
            st.integers(0, 7),
            st.just(0),
        ),
        st.tuples(st.just("node"), st.just(""), st.sampled_from([4, 10, 16]), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 5), st.just(0)),
    ),
    max_size=30,
)
SSD = NodeRequirement(labels=frozenset({"ssd"}))


def cores(many: int) -> Resources:
    return Resources(many, 1024 * many)


class Drivers:
    """Drivers of a cluster, and what the steps do with them."""

    def __init__(self) -> None:
        self.cluster = VirtualCluster(
            schedulers=2, bounds=Bounds(node_timeout_s=2.0, lost_nodes_kept=0)
        )
        self.names: list[ApplicationId] = []
        self.nodes: list[VirtualNode] = []
        self.submitted = 0
        self.add(20)

    def step(self, what: str, kind: str, about: int, many: int) -> None:
        if what == "submit":
            for _ in range(many):
                self.submit(SIZES[about], kind)
        elif what == "node":
            self.add(about)
        elif what == "wait":
            self.cluster.advance(about)
        elif what == "lose":
            if self.nodes:
                self.cluster.disconnect(self.nodes.pop(about % len(self.nodes)))
        elif what == "fill":
            self.cluster.submit(1, cores(1 + about), WorkloadClass.STREAM)
        elif self.names:
            getattr(self, what)(self.names[about % len(self.names)])
        self.cluster.advance(1)

    def add(self, vcores: int) -> None:
        name = f"n{self.cluster.next_call()}"
        self.nodes.append(self.cluster.add_node(unit(name, vcores, 1024 * vcores)))

    def submit(self, sizes: tuple[int, int], kind: str) -> None:
        self.submitted += 1
        name = ApplicationId(f"driver-20260101000000-{self.submitted:04d}")
        gang = 4 if kind == "gang" else 0
        self.cluster.submit(
            1,
            cores(sizes[0]),
            WorkloadClass.STREAM if kind == "stream" else WorkloadClass.BATCH,
            new_id=name,
            first_executors=FirstExecutors(
                count=gang or 1, resources=cores(sizes[1]), stated=gang > 0
            ),
            requires=SSD if kind == "labelled" else None,
        )
        self.names.append(name)

    def register(self, name: ApplicationId) -> None:
        """Its application is there, whether it runs or, its node being lost, waits again."""
        self.cluster.submit(1, cores(1), driver=name)

    def exclude(self, name: ApplicationId) -> None:
        self.cluster.exclude(name, "n1")

    def end(self, name: ApplicationId) -> None:
        if self.cluster.states(name) == {"running": 1}:
            self.cluster.end_process(name, 1)
            self.cluster.finish(name)
            self.names.remove(name)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_lines_decide_what_a_walk_past_every_driver_decides(
    steps: list[tuple[str, str, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_queue, "TURN_S", 3.0)
        patch.setattr(driver_queue, "PASS_S", 3.0)
        Checked(patch)
        drivers = Drivers()
        for step in steps:
            drivers.step(*step)


def test_each_of_a_line_that_can_never_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for streams to end; then a node leaves without which they do not fit."""
    checked, drivers = Checked(monkeypatch), Drivers()
    drivers.step("node", "", 10, 0)
    for _ in range(3):
        drivers.step("fill", "", 7, 0)
    drivers.step("submit", "gang", 3, 3)
    assert checked.hopeless == checked.taken == 0
    drivers.step("lose", "", 1, 0)
    drivers.step("wait", "", 5, 0)
    assert checked.hopeless == 3


def test_one_that_holds_up_others_does_so_in_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, drivers = Checked(monkeypatch), Drivers()
    drivers.step("submit", "batch", 0, 3)
    for size in (1, 0, 1):
        drivers.step("submit", "batch", size, 2)
    assert (checked.taken, checked.hopeless) == (3, 0)
    waits = drivers.cluster.master.placement.drivers.waiting.values()
    assert ["came before it" in x.why for x in waits] == [False] + 5 * [True]
    drivers.end(drivers.names[0])
    drivers.cluster.advance(2)
    assert checked.taken == 4
