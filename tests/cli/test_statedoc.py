"""The state diagrams in the docs are those of the tables."""

from __future__ import annotations

import enum
from pathlib import Path

from docs.generate.states import diagram, document, reasons, table
from hrm.core.vocabulary.event_table import EventTable, Ignored, Impossible, Refused, to

ROOT = Path(__file__).resolve().parents[2]


class Light(enum.Enum):
    RED = "red"
    GREEN = "green"
    DARK = "dark"


GO, STOP, ON = "go", "stop", "on"
TABLE: EventTable[Light, str] = {
    Light.RED: {GO: to(Light.GREEN), STOP: Ignored("it is red"), ON: Refused("it is on")},
    Light.GREEN: {GO: to(Light.GREEN), STOP: Impossible("no brake"), ON: Refused("it is on")},
    Light.DARK: dict.fromkeys((GO, STOP, ON), Impossible("it burns")),
}


def test_a_diagram_has_every_move_its_beginning_and_its_end() -> None:
    assert diagram(TABLE).splitlines()[1:] == [
        "    [*] --> red",
        "    red --> green: go",
        "    green --> [*]",
    ]


def test_a_table_has_every_event_in_every_state_that_is_reached() -> None:
    assert table(TABLE).splitlines() == [
        "| event | red | green |",
        "|---|---|---|",
        "| go | green | stays |",
        "| stop | ignored | impossible |",
        "| on | refused | refused |",
    ]
    assert reasons(TABLE).splitlines()[2:] == [
        "| stop | red | ignored | it is red |",
        "| on | red, green | refused | it is on |",
        "| stop | green | impossible | no brake |",
    ]


def test_the_committed_file_is_fresh() -> None:
    assert (ROOT / "docs/states.md").read_text() == document(), "make docs"
