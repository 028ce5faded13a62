"""What may be stated of a queue, how it is written, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.tenancy.queue_spec import (
    QUEUE_DEPTH_MAX,
    Amount,
    QueueName,
    QueueSpec,
    ancestors,
    name_problem,
    quota_from,
    spec_fields,
    spec_from,
)

PARTS = st.integers(0, 100_000_000).map(lambda n: f"{n / 1e6:.6f}%")
CORES = st.one_of(st.integers(0, 1 << 53), st.integers(0, 1 << 53).map(str), PARTS)
SIZES = st.one_of(
    st.integers(0, 1 << 53),
    st.builds("{}{}".format, st.integers(0, 10_000), st.sampled_from("mgtMG")),
    PARTS,
)  # fmt: skip
QUOTAS = st.one_of(
    PARTS,
    st.fixed_dictionaries({}, optional={"cores": CORES, "memory": SIZES, "gpu_memory": SIZES}),
)  # fmt: skip
USERS = st.lists(
    st.text(min_size=1, max_size=8).filter(lambda x: x.isprintable() and x == x.strip()),
    max_size=3,
)
STATED = st.fixed_dictionaries(
    {},
    optional={
        "guaranteed": QUOTAS,
        "weight": st.floats(1e-6, 1e6),
        "max_running": st.integers(0, 1_000_000),
        "order": st.sampled_from(["fifo", "fair", "priority", "classes"]),
        "preemptible": st.booleans(),
        "maximum_class": st.sampled_from(["normal", "urgent", "highest"]),
        "driver_share": st.floats(0, 1),
        "minimum_user_limit": st.floats(0.001, 1),
        "user_limit_factor": st.floats(0.001, 1e6),
        "submitters": USERS,
        "administrators": USERS,
    },
)


def test_a_queue_is_read_from_a_table() -> None:
    spec = spec_from(
        "root.team",
        {
            "guaranteed": "25%",
            "maximum": {"cores": 64, "memory": "256g", "gpu_memory": "50%"},
            "max_running": 10,
            "order": "fair",
            "submitters": ["ana", "bo", "ana"],
        },
    )
    part = Amount(0.25, is_part=True)
    assert spec == QueueSpec(
        name=QueueName("root.team"),
        guaranteed=(part, part, part),
        maximum=(Amount(64.0), Amount(256 * 1024.0), Amount(0.5, is_part=True)),
        max_running=10,
        order="fair",
        submitters=("ana", "bo"),
    )
    assert spec.parent == "root"


@given(STATED)
def test_what_is_written_is_read_as_it_was(stated: dict[str, Any]) -> None:
    """As a store keeps it; twice, since the first may be written in another way."""
    spec = spec_from("root.team", stated)
    assert spec_from("root.team", spec_fields(spec)) == spec
    assert spec_fields(spec_from("root.team", spec_fields(spec))) == spec_fields(spec)


def test_what_is_as_by_default_is_not_written() -> None:
    assert spec_fields(spec_from("root.a", {"weight": 1, "order": "fifo", "maximum": {}})) == {}


@pytest.mark.parametrize("name", ["root", "root.a", "root.team-1.job_2", "root.0"])
def test_a_name_is_the_whole_path(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "does not begin with root"),
        ("team", "does not begin with root, as in root.team"),
        ("root.", "has the part ''"),
        ("root..a", "has the part ''"),
        ("root.Team", "has the part 'Team': a part is of lower-case letters"),
        ("root.-a", "has the part '-a'"),
        ("root." + "a" * 64, "has at most 63 characters"),
        ("root" + ".a" * QUEUE_DEPTH_MAX, f"is {QUEUE_DEPTH_MAX + 1} queues deep"),
        ("root" + ("." + "a" * 60) * 5, "has 309 characters; 255 are allowed"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_reason(name: str, why: str) -> None:
    assert why in name_problem(name)
    with pytest.raises(ValueError, match="the queue "):
        spec_from(name, {})


def test_the_queues_above_one_begin_with_root() -> None:
    assert ancestors(QueueName("root.a.b")) == ["root", "root.a"]
    assert ancestors(QueueName("root")) == []


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"wieght": 1}, "'wieght' is not known; known are guaranteed, maximum, weight"),
        ({"guaranteed": "a quarter"}, 'a part of all, as "25%", or a table'),
        ({"guaranteed": "101%"}, r"more than all there is \(100%\)"),
        ({"guaranteed": 25}, "a part of all"),
        ({"guaranteed": {"disk": "1g"}}, "'disk' is not governed; cores, memory, gpu_memory are"),
        ({"guaranteed": {"cores": "16g"}}, "cores is a whole number, as 16, or a part"),
        ({"guaranteed": {"cores": 1.5}}, "cores is a whole number"),
        ({"guaranteed": {"cores": True}}, "cores is a whole number"),
        ({"guaranteed": {"memory": "lots"}}, "memory is MiB or a size"),
        ({"guaranteed": {"memory": -1}}, "-1 is not from 0 to"),
        ({"weight": 0}, "above 0, up to 1000000"),
        ({"weight": float("nan")}, "above 0"),
        ({"weight": "2"}, "above 0"),
        ({"max_running": -1}, "a whole number from 0 to 1000000"),
        ({"max_running": 2.0}, "a whole number"),
        ({"order": "lifo"}, "one of fifo, fair, priority, classes"),
        ({"preemptible": "no"}, "true or false"),
        ({"driver_share": 1.1}, "from 0 to 1"),
        ({"minimum_user_limit": 0}, "from 0.001 to 1"),
        ({"user_limit_factor": 0}, "above 0"),
        ({"submitters": "ana"}, "at most 1000 names"),
        ({"submitters": [""]}, "at most 1000 names"),
        ({"submitters": ["ana\x1b[2J"]}, "a name has no control characters"),
        ({"administrators": ["ana\n"]}, "a name has no control characters"),
        ({"administrators": [" ana"]}, "and no space before or after it"),
        ({"guaranteed": {"cores": 9}, "maximum": {"cores": 8}}, "9 guaranteed, 8 at most"),
        ({"guaranteed": "60%", "maximum": "50%"}, "60% guaranteed, 50% at most"),
    ],
)
def test_what_cannot_be_stated_is_refused_with_what_can(stated: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"^queue root.team: .*{why}"):
        spec_from("root.team", stated)


def test_root_has_the_whole_cluster() -> None:
    with pytest.raises(ValueError, match="state guarantees of the queues below it"):
        spec_from("root", {"guaranteed": "50%"})
    with pytest.raises(ValueError, match="state maxima of the queues below it"):
        spec_from("root", {"maximum": "50%"})
    assert spec_from("root", {"max_running": 3}).max_running == 3


@given(st.integers(0, 100_000_000))
def test_a_part_is_precise_to_a_millionth_of_a_percent(millionths: int) -> None:
    (cores, _, _) = quota_from(f"{millionths / 1e6:.6f}%")
    assert cores is not None
    assert cores.of(1e8) == pytest.approx(millionths, abs=1e-6)
