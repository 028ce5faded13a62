"""A refused stream leaves no trace, an accepted one replaces the one before it."""

from __future__ import annotations

import pytest

from hrm.core.vocabulary.takeover import Takeover


@pytest.mark.parametrize("streams", [{}, {"n1": "old"}, {"n2": "other"}])
def test_what_is_refused_leaves_all_as_it_was(streams: dict[str, str]) -> None:
    before = dict(streams)
    takeover = Takeover(streams, "n1", "new")
    assert streams["n1"] == "new", "the first messages are for it"
    takeover.undo()
    assert streams == before


def test_the_one_before_is_known_so_that_it_can_be_closed() -> None:
    streams = {"n1": "old"}
    assert Takeover(streams, "n1", "new").previous == "old"
    assert Takeover(streams, "n2", "first").previous is None
    assert streams == {"n1": "new", "n2": "first"}
