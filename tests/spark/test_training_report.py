"""What ``hrm.report`` takes, and that it needs no HRM to be called."""

from __future__ import annotations

import math
from types import SimpleNamespace
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


@pytest.mark.parametrize(
    ("stated", "sent"),
    [
        ({"epoch": 2**63}, (2**63 - 1, 0.5, 0)),
        ({"epochs": 2**70}, (3, 0.5, 2**63 - 1)),
        ({"loss": 10**400}, (3, math.inf, 0)),
        ({"loss": -(10**400)}, (3, -math.inf, 0)),
    ],
)
def test_numbers_that_no_jvm_holds_are_sent_as_ones_that_do_not_count(
    stated: dict[str, Any], sent: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that trains must not end for what its model has come to."""
    pytest.importorskip("pyspark")
    from py4j import java_gateway
    from pyspark import SparkContext

    calls: list[tuple[Any, ...]] = []

    class Reports:
        def report(self, *stated: Any) -> bool:
            calls.append(stated)
            return True

    jvm: Any = SimpleNamespace(TrainingReports=Reports())
    for name in ("hrm", "cluster", "scheduler", "spark", "apache", "org"):
        jvm = SimpleNamespace(**{name: jvm})
    java = SimpleNamespace(sc=lambda: "sc")
    context = SimpleNamespace(_jsc=java, _jvm=jvm, applicationId="app-of-large-numbers")
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(java_gateway, "JavaClass", Reports)

    assert hrm.report(**{"epoch": 3, "loss": 0.5, **stated})
    ((_, epoch, loss, accuracy, _, epochs),) = calls
    assert (epoch, loss, epochs) == sent
    assert math.isnan(accuracy), "it is not stated"
