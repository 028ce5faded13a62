"""A master's clock only advances with elapsed time."""

from __future__ import annotations

import time

import pytest

from hrm import clock


def test_a_clock_that_is_set_while_a_master_runs_moves_none_of_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, real = clock.now(), time.time()
    assert abs(began - real) < 5.0, "at the start, it is the time of day"
    monkeypatch.setattr(time, "time", lambda: real + 86_400.0)
    assert 0.0 <= clock.now() - began < 60.0
