"""``benchmarks.connect``: its report follows from its numbers."""

from __future__ import annotations

import pytest

from benchmarks.connect import Seconds, document, parse_arguments, report


def taken(warm_s: float) -> Seconds:
    session = {"warm": [warm_s, warm_s, 9.0], "first": [4.0, 5.0, 6.0], "alone": [7.0, 8.0, 9.0]}
    process = {way: [each + 1.0 for each in values] for way, values in session.items()}
    return Seconds(session=session, process=process, client=[0.1, 0.2, 0.9], server=[0.3])


@pytest.mark.parametrize(("warm_s", "met"), [(0.5, "met"), (1.5, "missed")])
def test_medians_and_whether_the_target_is_met(warm_s: float, met: str) -> None:
    found = document(taken(warm_s), (1.0, 2.5))
    assert found["session_warm_s"] == warm_s
    assert found["medians"]["process"] == {"warm": warm_s + 1.0, "first": 6.0, "alone": 9.0}
    text = report(found)
    assert f"in less than 1 s: {met}." in text
    assert "0.20 s of the client (without imports), 0.30 s of the server" in text
    assert "Load of the machine 1.0 before, 2.5 after" in text
    ratio = (warm_s + 1.0) / 6.0
    assert f"| 3 | 5.000 | 4.000 | 6.000 | 6.000 | {ratio:.3f} |" in text


def test_no_runs_are_no_benchmark() -> None:
    assert parse_arguments(["--runs", "2"]).runs == 2
    with pytest.raises(SystemExit):
        parse_arguments(["--runs", "0"])
