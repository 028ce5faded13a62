"""What ``hrm.report`` takes, and that it needs no HRM to be called."""

from __future__ import annotations

from typing import Any

import pytest

import hrm


@pytest.mark.parametrize(
    ("stated", "error", "says"),
    [
        ({"epoch": -1, "loss": 0.5}, ValueError, "must not be negative"),
        ({"epoch": 1.5, "loss": 0.5}, TypeError, "a whole number"),
        ({"epoch": 1, "loss": 0.5, "epochs": 2.5}, TypeError, "epochs must be a whole number"),
        ({"epoch": 1, "loss": 0.5, "epochs": -1}, ValueError, "epochs must not be negative"),
        ({"epoch": True, "loss": 0.5}, TypeError, "a whole number"),
        ({"epoch": 1, "loss": "low"}, TypeError, "loss must be a number"),
        ({"epoch": 1, "loss": None}, TypeError, "loss must be a number"),
        ({"epoch": 1, "loss": 0.5, "accuracy": [0.9]}, TypeError, r"\.item\(\)"),
    ],
)
def test_what_is_no_report_is_an_error_of_its_program(
    stated: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        hrm.report(**stated)


def test_without_an_application_nothing_happens() -> None:
    assert hrm.report(epoch=1, loss=float("nan"), accuracy=0.5) is False
