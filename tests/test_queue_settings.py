"""The queue, the tags and the priority in Spark's configuration."""

from __future__ import annotations

import pytest

from hrm.errors import InvalidRequest
from hrm.queue_settings import TAGS_MAX, QueueSettings, queue_settings_of


def test_settings_of_hrm_come_before_those_of_yarn() -> None:
    yarn = {"spark.yarn.queue": "q", "spark.yarn.tags": "a,b", "spark.yarn.priority": "3"}
    assert queue_settings_of(yarn) == QueueSettings("q", ("a", "b"), 3)
    own = {
        "spark.hrm.queue": "root.x",
        "spark.hrm.tags": " c , ,d,c",
        "spark.hrm.priority": " -7 ",
    }
    assert queue_settings_of(yarn | own) == QueueSettings("root.x", ("c", "d"), -7)
    assert queue_settings_of(yarn | {"spark.hrm.queue": " "}).queue == "q"
    assert queue_settings_of({}) == QueueSettings()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("spark.hrm.queue", "q" * 256, "spark.hrm.queue has 256 characters; at most 255"),
        ("spark.hrm.tags", ",".join(map(str, range(TAGS_MAX + 1))), "has 65 tags; at most 64"),
        ("spark.yarn.tags", "t" * 256, "spark.yarn.tags has 1 tags; .* of at most 255"),
        ("spark.yarn.priority", "high", "spark.yarn.priority is 'high'; give a whole number"),
        ("spark.hrm.priority", "1.5", "give a whole number"),
        ("spark.hrm.priority", "9999999999", "give a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, value: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        queue_settings_of({name: value})
