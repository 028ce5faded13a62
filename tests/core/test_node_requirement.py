"""What an application requires of nodes: labels, versions, hosts that Spark has excluded.

The rule, and what keeps it: the shared state, what is known of full units, a scheduler's view, the
negotiator. ``test_suited_nodes`` has whole clusters.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.messages.claims import Claim, Decision, Entry, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import ApplicationId, ContainerId, NodeName, ResourceUnitId
from hrm.core.vocabulary.node_requirement import (
    NodeProperties,
    NodeRequirement,
    Runtime,
    among,
    excluding,
    lasting,
    suits,
    unmet,
)
from hrm.testing.virtual import unit
from tests.core.labelled_nodes import BATCH, LABELS, NEW, OLD, SSD, properties

ONE: Vector = (1, 512, 0, 1)


@pytest.mark.parametrize(
    ("requires", "has", "why"),
    [
        (None, properties(), ""),
        (SSD, properties("ssd", "zone=a"), ""),
        (SSD, properties("zone=a"), "has not the label ssd (its labels: zone=a)"),
        (SSD, properties(), "has not the label ssd (its labels: none)"),
        (NodeRequirement(spark="4.3.0"), properties(runtimes=(OLD, NEW)), ""),
        (
            NodeRequirement(spark="4.3.0"),
            properties(runtimes=(OLD,)),
            "has Spark 3.5.5, Scala 2.12, Java 17, Python 3.11",
        ),
        (NodeRequirement(spark="4.3.0"), properties(runtimes=None), ""),
        (NodeRequirement(spark="4.3.0"), properties(runtimes=()), "has no Spark"),
        (NodeRequirement(spark="4.3.0", scala="2.13"), properties(runtimes=(NEW,)), ""),
        (NodeRequirement(python="3.12"), properties(runtimes=(Runtime(spark="4.3.0"),)), ""),
        (
            excluding(None, frozenset({"h1"})),
            properties(host="h1"),
            "is on h1, which Spark excludes (spark.excludeOnFailure)",
        ),
        (excluding(None, frozenset({"h1"})), properties(host="h2"), ""),
    ],
)
def test_what_a_node_must_meet(
    requires: NodeRequirement | None, has: NodeProperties, why: str
) -> None:
    assert unmet(requires, has) == why


def test_one_installation_must_have_all_versions() -> None:
    mixed = NodeRequirement(spark="4.3.0", python="3.11")
    assert not suits(mixed, properties(runtimes=(OLD, NEW)))
    assert suits(mixed, properties(runtimes=(OLD, replace(NEW, python="3.11"))))


def test_nothing_required_is_none() -> None:
    some = excluding(SSD, frozenset({"h1"}))
    assert excluding(NodeRequirement(), frozenset()) is None
    assert lasting(excluding(None, frozenset({"h1"}))) is None
    assert among(some, frozenset({"h1", "h2"})) is some
    assert among(some, frozenset({"h2"})) == SSD
    assert among(excluding(None, frozenset({"h1"})), frozenset({"h2"})) is None
    assert lasting(some) == SSD
    assert excluding(some, frozenset()) == SSD
    assert str(some) == "the label ssd"


ROWS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), LABELS), max_size=40)


@given(ROWS, st.lists(LABELS, min_size=1, max_size=4))
def test_rows_that_suit_are_kept_up_to_date(
    steps: list[tuple[str, frozenset[str]]], wanted: list[frozenset[str]]
) -> None:
    state = SharedState()
    requirements = [NodeRequirement(labels=labels) for labels in wanted]
    names = (f"n{number}" for number in range(100))
    for step, labels in steps:
        if step == "add":
            name = next(names)
            state.add(NodeName(name), UnitQueue(unit(name)), properties(*labels))
        elif state.rows:
            state.remove(next(iter(state.rows)))
        for requirement in requirements:
            suited = state.suited(requirement)
            assert len(suited) == len(state.open)
            for row in state.rows.values():
                assert suited[row] == (requirement.labels <= state.properties[row].labels)


def labelled(*nodes: tuple[str, ...], vcores: int = 1) -> SharedState:
    """A unit for each of ``nodes``: its labels."""
    state = SharedState()
    for number, labels in enumerate(nodes, 1):
        name = f"n{number}"
        state.add(NodeName(name), UnitQueue(unit(name, vcores=vcores)), properties(*labels))
    return state


def fill(state: SharedState, name: str) -> None:
    row = state.rows[ResourceUnitId(f"{name}/cpu")]
    state.queue(row).run(Entry(ContainerId(f"on-{name}"), BATCH, ONE, 60.0), 0.0)
    state.refresh(row)


def test_that_no_suited_unit_has_capacity_says_nothing_of_the_others() -> None:
    state = labelled(("ssd",), ())
    known = Exhaustion(state, 0)
    fill(state, "n1")
    known.note(ONE, SSD)
    known.note(ONE)
    assert known.holds(ONE, SSD)
    assert not known.holds(ONE)
    fill(state, "n2")
    known.note(ONE)
    assert known.holds(ONE)
    assert known.holds(ONE, NodeRequirement(labels=frozenset({"other"}))), "it has fewer units"
    assert not known.violations()


def test_what_changes_elsewhere_does_not_end_what_is_known_of_suited_units() -> None:
    state = labelled(("ssd",), ())
    known = Exhaustion(state, 0)
    fill(state, "n1")
    known.note(ONE, SSD)
    fill(state, "n2")
    assert known.holds(ONE, SSD)
    state.queue(state.rows[ResourceUnitId("n1/cpu")]).remove(ContainerId("on-n1"))
    state.refresh(state.rows[ResourceUnitId("n1/cpu")])
    assert not known.holds(ONE, SSD)


def test_a_view_is_closed_at_the_others_whatever_is_left() -> None:
    state = labelled(("ssd",), (), vcores=4)
    view = ClusterView(state)
    view.require(SSD)
    view.avoid(frozenset({NodeName("n1")}))
    view.open_to(ONE)
    open_rows = {row for row in state.rows.values() if view.open[row]}
    assert open_rows == {state.rows[ResourceUnitId("n1/cpu")]}, "avoided, and no other suits"
    assert view.refusal(state.rows[ResourceUnitId("n2/cpu")], ONE)
    assert not view.may_propose([state.rows[ResourceUnitId("n2/cpu")]], ONE)
    assert view.startable_count(ONE) == 4
    view.renew()
    view.open_to(ONE)
    assert view.startable_count(ONE) == 8


@pytest.mark.parametrize("gang", [0, 2])
def test_the_negotiator_grants_nothing_elsewhere(gang: int) -> None:
    state = labelled(("ssd",), (), vcores=4)
    subject = Negotiator(state, Bounds())
    claims = tuple(
        Claim(Entry(ContainerId(node), BATCH, ONE, 60.0), ResourceUnitId(f"{node}/cpu"), 0)
        for node in ("n1", "n2")
    )
    proposal = Proposal("s1", ApplicationId("app"), BATCH, claims, gang=gang, requires=SSD)
    outcomes = subject.commit(proposal, 0.0)
    assert outcomes is not None
    by_unit = {x.claim.unit_id: x for x in outcomes}
    refused = by_unit[ResourceUnitId("n2/cpu")]
    assert refused.decision is Decision.ABORT
    assert refused.reason == "n2 has not the label ssd (its labels: none)"
    granted = by_unit[ResourceUnitId("n1/cpu")].decision
    assert granted is (Decision.ABORT if gang else Decision.RUN)
