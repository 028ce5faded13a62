"""The state diagrams in the docs are those of the tables."""

from __future__ import annotations

import enum
from pathlib import Path

from docs.generate.states import diagram, document

ROOT = Path(__file__).resolve().parents[2]


class Light(enum.Enum):
    RED = "red"
    GREEN = "green"


def test_a_diagram_has_every_move_its_beginning_and_its_end() -> None:
    table = {Light.RED: frozenset({Light.GREEN}), Light.GREEN: frozenset()}
    assert diagram(table).splitlines()[1:] == [
        "    [*] --> red",
        "    red --> green",
        "    green --> [*]",
    ]


def test_the_committed_file_is_fresh() -> None:
    assert (ROOT / "docs/states.md").read_text() == document(), "make docs"
