"""What a submission's settings say of its first executors."""

from __future__ import annotations

import pytest

from hrm.core.vocabulary.model import FirstExecutors, Resources
from hrm.executor_size import first_executors_of

ONE = FirstExecutors(count=1, resources=Resources(1, 1024 + 384))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, ONE),
        (
            {"spark.executor.cores": "4", "spark.executor.memory": "8g"},
            FirstExecutors(count=1, resources=Resources(4, 8192 + 819)),
        ),
        (
            {"spark.executor.memoryOverhead": "1g", "spark.executor.pyspark.memory": "512m"},
            FirstExecutors(count=1, resources=Resources(1, 1024 + 1024 + 512)),
        ),
        (
            {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1073741824"},
            FirstExecutors(count=1, resources=Resources(1, 1024 + 384 + 1024)),
        ),
        (
            {"spark.hrm.gang.min": "3"},
            FirstExecutors(count=3, resources=ONE.resources, stated=True),
        ),
        (
            {"spark.hrm.class": "stream", "spark.hrm.stream.min": "2", "spark.hrm.gang.min": "9"},
            FirstExecutors(count=2, resources=ONE.resources, stated=True),
        ),
        (
            {"spark.executor.resource.gpu.amount": "1", "spark.hrm.executor.gpu.memory": "4g"},
            FirstExecutors(count=1, resources=Resources(1, 1408, 4096), gpus=1),
        ),
        ({"spark.executor.instances": "0", "spark.dynamicAllocation.enabled": "true"}, ONE),
    ],
)
def test_settings_say_what_a_driver_needs(conf: dict[str, str], expected: FirstExecutors) -> None:
    assert first_executors_of(conf) == expected


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.executor.instances": "0"},
        {"spark.executor.memory": "much"},
        {"spark.executor.cores": "0"},
        {"spark.executor.memoryOverheadFactor": "inf"},
        {"spark.hrm.gang.min": "some"},
    ],
)
def test_where_none_are_needed_or_known_there_are_none(conf: dict[str, str]) -> None:
    assert first_executors_of(conf) is None
