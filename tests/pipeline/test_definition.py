"""Pipelines as users write them, and the errors of those that cannot work."""

from __future__ import annotations

import pytest

from hrm.errors import InvalidConfig
from hrm.pipelines import Pipeline
from hrm.pipelines.core.model import Device, row_of, size_bucket


def double(value: int) -> int:
    return 2 * value


def same(value: int) -> int:
    return value


def test_steps_run_in_order_and_the_last_one_gives_the_result() -> None:
    pipeline = Pipeline("sums")
    twice = pipeline.subtask("twice", gpu_memory_mib=10)(double)
    negative = pipeline.subtask(name="negative", gpu_only=True)(lambda value: -value)

    @pipeline.subtask(after=(twice, "negative"), kind="joining")
    def join(doubled: int, negated: int) -> tuple[int, int]:
        return doubled, negated

    twice.gpu(double)

    assert pipeline.run_here(21) == (42, -21)
    spec = pipeline.spec("here:pipeline")
    assert [one.name for one in spec.subtasks][-1] == "join"
    by_name = {one.name: one for one in spec.subtasks}
    assert by_name["twice"].devices == {Device.CPU, Device.GPU}
    assert by_name["negative"].devices == {Device.GPU}
    assert by_name["join"].after == ("twice", "negative")
    assert by_name["join"].kind == "joining"
    assert by_name["twice"].kind == "sums/twice"
    assert negative.spec() == by_name["negative"]


def test_a_step_without_options_needs_no_parentheses() -> None:
    pipeline = Pipeline("plain")

    @pipeline.subtask
    def first(value: int) -> int:
        return value + 1

    @pipeline.subtask()
    def unused(value: int) -> int:
        return value

    del pipeline.steps["unused"]
    assert pipeline.run_here(1) == 2
    assert (first.name, unused.name) == ("first", "unused")


def test_a_pipeline_that_cannot_work_states_which_subtask_and_why() -> None:
    cycle = Pipeline("cycle")
    cycle.subtask("a", after="c")(same)
    cycle.subtask("b", after="a")(same)
    cycle.subtask("c", after="b")(same)
    with pytest.raises(InvalidConfig, match=r"'cycle' has a cycle: .*a -> b.*`after`"):
        cycle.spec("m:cycle")

    unknown = Pipeline("unknown")
    unknown.subtask("a", after="z")(same)
    with pytest.raises(InvalidConfig, match="'a' comes after 'z', which it does not have"):
        unknown.run_here(1)

    ends = Pipeline("ends")
    ends.subtask("a")(same)
    ends.subtask("b")(same)
    with pytest.raises(InvalidConfig, match="several last subtasks, a, b"):
        ends.spec("m:ends")

    empty = Pipeline("empty")
    with pytest.raises(InvalidConfig, match="'empty' has no subtask"):
        empty.spec("m:empty")

    bare = Pipeline("bare")
    bare.subtask("a")(same).versions.clear()
    with pytest.raises(InvalidConfig, match="'a' has neither a CPU nor a GPU version"):
        bare.spec("m:bare")
    with pytest.raises(InvalidConfig, match="'a' has neither a CPU nor a GPU version"):
        bare.run_here(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"attempts": 0}, "attempts is 0, it must be 1 to 10"),
        ({"attempts": 11}, "attempts is 11, it must be 1 to 10"),
        ({"memory_mib": -1}, "must not be below 0"),
        ({"name": "has space"}, "a name has letters"),
    ],
)
def test_limits_are_checked_where_they_are_written(options: dict[str, object], words: str) -> None:
    pipeline = Pipeline("limits")
    with pytest.raises(InvalidConfig, match=words):
        pipeline.subtask(**options)(same)  # type: ignore[call-overload]


def test_a_name_and_a_version_are_there_once() -> None:
    pipeline = Pipeline("twice")
    step = pipeline.subtask("a")(same)
    with pytest.raises(InvalidConfig, match="subtask 'a' is there twice"):
        pipeline.subtask("a")(same)
    with pytest.raises(InvalidConfig, match=r"two cpu versions, .*same and .*double"):
        step.cpu(double)
    with pytest.raises(InvalidConfig, match="no name for a pipeline"):
        Pipeline("")


def test_rows_are_kept_by_kind_size_and_model() -> None:
    assert [size_bucket(mb) for mb in (0, 20, 20.1, 60, 120, 200, 400, 401)] == [
        0, 0, 1, 1, 2, 3, 4, 5,
    ]  # fmt: skip
    pipeline = Pipeline("rows")
    spec = pipeline.subtask("a")(same).spec()
    assert row_of(spec, 60.0, "P4") == ("rows/a", 1, "P4")
