"""Every state against every state, for each table."""

from __future__ import annotations

import enum
import itertools
from typing import Any

import pytest

from hrm.core.vocabulary.model import ApplicationState, ContainerState
from hrm.core.vocabulary.transitions import APPLICATION, CONTAINER, NODE, Lifecycle, Move
from hrm.errors import InvalidTransition

TABLES: list[dict[Any, frozenset[Any]]] = [APPLICATION, CONTAINER, NODE]


@pytest.mark.parametrize(
    ("table", "start", "to"),
    [
        pytest.param(table, start, to, id=f"{start}-{to}")
        for table in TABLES
        for start, to in itertools.product(list(table), repeat=2)
    ],
)
def test_only_what_the_table_holds(
    table: dict[enum.Enum, frozenset[enum.Enum]], start: enum.Enum, to: enum.Enum
) -> None:
    life = Lifecycle("thing", "t", table, start)
    if to is start:
        assert not life.move(to, 1.0, "again")
    elif to in table[start]:
        assert life.move(to, 1.0, "because")
        assert life.state is to
    else:
        with pytest.raises(InvalidTransition, match="cannot go from"):
            life.move(to, 1.0, "because")
        assert life.state is start


@pytest.mark.parametrize("table", TABLES, ids=["application", "container", "node"])
def test_tables_are_closed(table: dict[enum.Enum, frozenset[enum.Enum]]) -> None:
    assert set().union(*table.values()) <= set(table)


def test_ends_are_final() -> None:
    assert not CONTAINER[ContainerState.ENDED]
    assert all(not APPLICATION[state] for state in ApplicationState if state.ended)


def test_an_illegal_move_tells_the_history() -> None:
    life = Lifecycle("container", "x", CONTAINER, ContainerState.PENDING)
    life.move(ContainerState.ASSIGNED, 1.0, "room at once")
    life.move(ContainerState.ENDED, 2.0, "node lost")
    with pytest.raises(InvalidTransition) as caught:
        life.move(ContainerState.RUNNING, 3.0, "a late report")
    assert [line.split(": ")[1] for line in caught.value.history] == ["room at once", "node lost"]
    assert "a late report" in str(caught.value)


def test_who_watches_hears_of_each_move_as_it_is_made_and_of_nothing_else() -> None:
    told: list[Move] = []
    life = Lifecycle("container", "x", CONTAINER, ContainerState.PENDING, told.append)
    life.owner = owner = object()
    life.begin(1.0, "asked for")
    assert life.move(ContainerState.ASSIGNED, 2.0, "room")
    assert not life.move(ContainerState.ASSIGNED, 3.0, "again")
    with pytest.raises(InvalidTransition):
        life.move(ContainerState.PENDING, 4.0, "back")
    assert told == [
        ("container", "x", owner, None, ContainerState.PENDING, 1.0, "asked for"),
        ("container", "x", owner, ContainerState.PENDING, ContainerState.ASSIGNED, 2.0, "room"),
    ]
