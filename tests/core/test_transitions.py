"""Every state against every event, for each table; and every state against every state."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import Any, get_args

import pytest

from hrm.core.appmaster.lifecycle import (
    APPMASTER,
    APPMASTER_CONTAINER,
    AppMasterState,
    ExecutorHappening,
)
from hrm.core.messages import appmaster as am
from hrm.core.messages.submissions import SUBMISSION, SubmissionHappening, SubmissionState
from hrm.core.node.container_life import CONTAINER_AT_NODE, NodeContainerHappening
from hrm.core.vocabulary.event_table import (
    EventTable,
    Ignored,
    Impossible,
    Lifecycle,
    Move,
    event_name,
    moves,
    to,
)
from hrm.core.vocabulary.model import ApplicationState, ContainerState, NodeState
from hrm.core.vocabulary.transitions import (
    APPLICATION,
    CONTAINER,
    NODE,
    ApplicationHappening,
    ContainerHappening,
    NodeHappening,
)
from hrm.errors import InvalidTransition
from hrm.pipelines.core.subtasks import SUBTASK, SubtaskHappening, SubtaskState

TABLES: dict[str, tuple[EventTable[Any, Any], type[Enum], set[Any]]] = {
    "application": (APPLICATION, ApplicationState, set(ApplicationHappening)),
    "container": (CONTAINER, ContainerState, set(ContainerHappening)),
    "container-at-node": (CONTAINER_AT_NODE, ContainerState, set(NodeContainerHappening)),
    "node": (NODE, NodeState, set(NodeHappening)),
    "submission": (SUBMISSION, SubmissionState, set(SubmissionHappening)),
    "subtask": (SUBTASK, SubtaskState, set(SubtaskHappening)),
    "appmaster": (APPMASTER, AppMasterState, set(get_args(am.Event))),
    "appmaster-container": (APPMASTER_CONTAINER, am.Phase, set(ExecutorHappening)),
}
PAIRS = [
    pytest.param(name, state, event, id=f"{name}-{state.value}-{event_name(event)}")
    for name, (_, states, events) in TABLES.items()
    for state, event in itertools.product(states, sorted(events, key=event_name))
]
FINAL = {
    # A success may still turn out to be the failure of its driver.
    "application": {ApplicationState.FAILED, ApplicationState.KILLED},
    "container": {ContainerState.ENDED},
    "submission": {state for state in SubmissionState if state.ended},
    "subtask": {SubtaskState.DONE, SubtaskState.FAILED, SubtaskState.DROPPED},
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_its_states_and_events_and_no_others(name: str) -> None:
    table, states, events = TABLES[name]
    assert set(table) == set(states)
    assert all(set(row) == events for row in table.values())
    assert set().union(*moves(table).values()) <= set(states)


@pytest.mark.parametrize("name", TABLES)
def test_each_event_has_an_effect_somewhere(name: str) -> None:
    table, _, events = TABLES[name]
    for event in events:
        assert any(isinstance(row[event], frozenset) for row in table.values()), event


@pytest.mark.parametrize(("name", "state", "event"), PAIRS)
def test_an_entity_moves_only_as_its_table_has_it(name: str, state: Any, event: Any) -> None:
    table, states, _ = TABLES[name]
    led = table[state][event]

    def life() -> Lifecycle[Any, Any]:
        return Lifecycle("thing", "t", table, state)

    legal = led if isinstance(led, frozenset) else frozenset()
    for other in states:
        one = life()
        if other in legal:
            assert one.follow(event, other, 1.0) is (other is not state)
            assert one.state is other
            continue
        with pytest.raises(InvalidTransition, match="cannot go from"):
            one.follow(event, other, 1.0)
        assert one.state is state
    if isinstance(led, Impossible):
        assert led.reason
        for ask in (life().takes, lambda event: life().take(event, 1.0)):
            with pytest.raises(InvalidTransition, match="cannot be"):
                ask(event)
    elif isinstance(led, Ignored):
        assert led.reason
        assert not life().takes(event)
        assert not life().take(event, 1.0)
    else:
        assert led, "nowhere to go: say why"
        assert life().takes(event)
        one = life()
        if len(led) == 1:
            assert one.take(event, 1.0) is (led != {state})
            assert {one.state} == led
        else:
            with pytest.raises(InvalidTransition, match="without a choice"):
                one.take(event, 1.0)


@pytest.mark.parametrize("name", FINAL)
def test_ends_are_final_and_all_others_are_not(name: str) -> None:
    table = TABLES[name][0]
    assert {state for state, led in moves(table).items() if not led} == FINAL[name]


def test_an_illegal_move_reports_the_history() -> None:
    life = Lifecycle("container", "x", CONTAINER, ContainerState.PENDING)
    life.take(ContainerHappening.GRANTED, 1.0, "room at once")
    life.take(ContainerHappening.NODE_LOST, 2.0, "node lost")
    with pytest.raises(InvalidTransition) as caught:
        life.follow(ContainerHappening.SEEN_RUNNING, ContainerState.RUNNING, 3.0, "a late report")
    assert [line.split(": ")[1] for line in caught.value.history] == ["room at once", "node lost"]
    assert "a late report" in str(caught.value)


def test_one_that_watches_is_notified_of_each_move_as_it_is_made_and_of_nothing_else() -> None:
    moves: list[Move] = []
    life = Lifecycle("container", "x", CONTAINER, ContainerState.PENDING, moves.append)
    life.owner = owner = object()
    life.begin(1.0, "asked for")
    assert life.take(ContainerHappening.GRANTED, 2.0, "room")
    assert not life.follow(ContainerHappening.UNLISTED, ContainerState.ASSIGNED, 3.0, "again")
    with pytest.raises(InvalidTransition):
        life.follow(ContainerHappening.UNLISTED, ContainerState.PENDING, 4.0, "back")
    assert moves == [
        ("container", "x", owner, None, ContainerState.PENDING, 1.0, "asked for"),
        ("container", "x", owner, ContainerState.PENDING, ContainerState.ASSIGNED, 2.0, "room"),
    ]


def test_a_move_without_a_reason_is_called_as_its_event() -> None:
    life = Lifecycle("node", "n1", NODE, NodeState.ALIVE)
    assert life.take(NodeHappening.FALLEN_SILENT, 1.0)
    assert life.history == ("1.000 lost: fallen-silent",)
    assert to(NodeState.LOST) == {NodeState.LOST}
