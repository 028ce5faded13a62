"""What an AppMaster says of a driver that no longer responds."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from hrm.spark.bridge import _why_lost


def _timed_out() -> Exception:
    error: Exception = Py4JNetworkError("Error while sending or receiving")
    error.__cause__ = TimeoutError("timed out")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Py4JError("An error occurred while calling t.nextEvents"), "it was killed or crashed"),
        (ConnectionResetError(104, "reset"), "the connection to it broke"),
        (_timed_out(), "it has not responded for 60 s"),
    ],
)
def test_the_reason_is_in_words_of_spark_and_not_of_py4j(error: Exception, expected: str) -> None:
    assert expected in _why_lost(error)
    assert "calling" not in _why_lost(error)
