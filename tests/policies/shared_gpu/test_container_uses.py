"""What a node records of containers that use a GPU, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    EndCause,
    LaunchContext,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.errors import InvalidRequest
from hrm.policies.shared_gpu import container_uses
from hrm.policies.shared_gpu.container_uses import ContainerKind, ContainerUses, kind_of
from hrm.policies.shared_gpu.recorded_use import RecordedUse

DONE = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
RELEASED = ContainerEnd(cause=EndCause.RELEASED)


def spec(name: str = "c1", application: str = "train", gpu_mib: int = 2_000) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId(f"app-of-{name}"),
        executor_id="1",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=Resources(1, 512, gpu_mib),
        unit_id=ResourceUnitId("n1/gpu0"),
        user="ann",
        application_name=application,
    )


def use(memory_mib: float, gpu: float = 0.5) -> GpuUsePart:
    return GpuUsePart(gpu, memory_mib, gpu, 0.0)


def live(uses: ContainerUses, name: str, mibs: list[float], end: ContainerEnd = DONE) -> str:
    """A container that is sampled every second, and ends a second after the last sample."""
    uses.began(spec(name), 100.0)
    for second, mib in enumerate(mibs):
        assert uses.sampled(ContainerId(name), use(mib), 100.0 + second) == ""
    return uses.ended(ContainerId(name), end, 100.0 + len(mibs))


def test_a_life_becomes_as_many_parts_whatever_it_took() -> None:
    uses = ContainerUses()
    assert live(uses, "c1", [0.0] * 8 + [1_600.0] * 8, RELEASED) == ""
    parts = uses.get(spec("another"))
    assert len(parts) == USE_PARTS
    # A part has the sample at its end, too: the growth after eight seconds shows in the eighth.
    assert [part.memory_mib for part in parts] == [0.0] * 7 + [1_600.0] * 9
    assert {part.gpu for part in parts} == {0.5}


def test_of_several_runs_memory_rises_at_once_and_falls_slowly() -> None:
    uses = ContainerUses()
    for name, mib in (("c1", 1_000.0), ("c2", 2_000.0), ("c3", 1_000.0)):
        live(uses, name, [mib] * 16)
    assert {part.memory_mib for part in uses.get(spec())} == {1_950.0}
    ((_, recorded),) = uses
    assert recorded.runs == 3


def test_kinds_are_told_apart_by_user_name_part_profile_and_size() -> None:
    uses = ContainerUses()
    live(uses, "c1", [1_000.0] * 16)
    others = (
        replace(spec(), user="bob"),
        replace(spec(), application_name="other"),
        replace(spec(), resource_profile_id=1),
        replace(spec(), resources=Resources(1, 512, 3_000)),
        replace(spec(), launch=LaunchContext(worker="{}")),
        replace(spec(), launch=LaunchContext(driver="{}")),
    )
    assert [uses.get(other) for other in others] == [()] * len(others)
    assert uses.get(replace(spec(), unit_id=ResourceUnitId("n2/gpu3"))) != ()
    assert kind_of(spec(gpu_mib=0)) is None
    assert kind_of(spec(application="")) is None


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        (use(math.nan), "memory_mib is nan, no number"),
        (use(-1.0), "memory_mib is -1, less than nothing"),
        (use(math.inf), "memory_mib is inf, no number"),
        (use(1.0, gpu=1.5), "gpu is 1.5, more than the whole"),
    ],
)
def test_a_sample_that_is_no_use_is_left_out_with_the_reason(
    sample: GpuUsePart, fault: str
) -> None:
    uses = ContainerUses()
    uses.began(spec(), 0.0)
    assert uses.sampled(ContainerId("c1"), use(5.0), 0.0) == ""
    assert uses.sampled(ContainerId("c1"), sample, 1.0) == fault
    assert uses.sampled(ContainerId("c1"), use(7.0), 2.0) == ""
    assert uses.ended(ContainerId("c1"), DONE, 3.0) == ""
    assert max(part.memory_mib for part in uses.get(spec())) == 7.0


def test_a_clock_that_goes_back_leaves_a_sample_out() -> None:
    uses = ContainerUses()
    uses.began(spec(), 10.0)
    fault = "its time is before that of the one before it"
    assert uses.sampled(ContainerId("c1"), use(1.0), 9.0) == fault
    assert uses.sampled(ContainerId("c1"), use(1.0), 11.0) == ""
    assert uses.sampled(ContainerId("c1"), use(1.0), 10.5) == fault


def test_a_life_that_says_little_leaves_no_record_and_says_why() -> None:
    uses = ContainerUses()
    assert live(uses, "c1", [1.0]) == "fewer than two samples were taken of it"
    failed = ContainerEnd(cause=EndCause.EXITED, exit_code=1)
    assert live(uses, "c2", [1.0] * 16, failed) == "its life was cut short: exited"
    preempted = ContainerEnd(cause=EndCause.PREEMPTED)
    assert live(uses, "c3", [1.0] * 16, preempted) == "its life was cut short: preempted"
    uses.began(spec("c4"), 0.0)
    for second in (50.0, 60.0):
        assert uses.sampled(ContainerId("c4"), use(1.0), second) == ""
    assert uses.ended(ContainerId("c4"), DONE, 100.0) == "its first samples are missing"
    assert list(uses) == []


def test_one_that_had_more_than_it_held_is_recorded_as_far_as_it_came() -> None:
    uses = ContainerUses()
    over = ContainerEnd(cause=EndCause.GPU_MEMORY_LIMIT)
    assert live(uses, "c1", [500.0, 2_500.0], over) == ""
    assert max(part.memory_mib for part in uses.get(spec())) == 2_500.0


def test_what_is_kept_of_one_container_is_bounded_and_keeps_its_peak() -> None:
    uses = ContainerUses()
    count = 10 * container_uses.SAMPLES_MAX
    mibs = [9_000.0 if second == 777 else 1.0 for second in range(count)]
    live(uses, "c1", mibs)
    parts = uses.get(spec())
    # 777 of 2,560; 16 samples are one then, so that the fifth part touches it, and no other.
    assert [n for n, part in enumerate(parts) if part.memory_mib == 9_000.0] == [4]


def test_the_kind_observed_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_uses, "KINDS_MAX", 2)
    uses = ContainerUses()
    for name in ("a", "b", "a", "c"):
        uses.began(spec(name, application=name), 0.0)
        for second in range(3):
            uses.sampled(ContainerId(name), use(1.0), float(second))
        assert uses.ended(ContainerId(name), DONE, 3.0) == ""
    assert [kind.name for kind, _ in uses] == ["a", "c"]


def test_what_is_known_from_before_is_checked() -> None:
    kind = ContainerKind("ann", "train", "executor", 0, 2_000)
    sound = (use(1_000.0),) * USE_PARTS
    assert ContainerUses([(kind, RecordedUse(sound))]).get(spec()) == sound
    for parts in (sound[:3], (use(math.nan),) * USE_PARTS, ()):
        with pytest.raises(InvalidRequest, match="profile"):
            ContainerUses([(kind, RecordedUse(parts))])
