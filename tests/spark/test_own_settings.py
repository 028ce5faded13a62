"""Names of HRM's settings that are none."""

from __future__ import annotations

import pytest

from hrm.spark.own_settings import SPARK_SETTINGS, unknown


def test_what_is_in_the_table_or_not_meant_for_hrm_gets_no_warning() -> None:
    others = ("spark.executor.cores", "spark.hrm.driverEnv.PATH", "spark.hrmx.class")
    assert unknown([*SPARK_SETTINGS, *others]) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("spark.hrm.gang.mim", "spark.hrm.gang.min"),
        ("spark.hrm.gangMin", "spark.hrm.gang.min"),
        ("spark.hrm.executor.maxfailures", "spark.hrm.executor.maxFailures"),
        ("spark.hrm.stop.timeOut", "spark.hrm.stop.timeout"),
    ],
)
def test_a_mistyped_name_is_reported_with_the_nearest(name: str, nearest: str) -> None:
    assert unknown([name]) == [
        f"{name} is no setting of HRM and has no effect; the nearest is {nearest} "
        "(docs/configuration.md has all)"
    ]
