"""Batch that waits for a shared GPU starts as a policy says, within bounds that hold for any.

The policy here names whom a test tells it to name, so that each bound is tried by itself; the one
that looks ahead has tests of its own (``tests/learn/test_gpu_waiters.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.invariants import node_violations
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.node.gpu_waiters import SharedGpuView
from hrm.core.vocabulary.bounds import GpuWaiterBounds
from hrm.core.vocabulary.model import (
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from tests.core.test_lasting_preemption import spec

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
GPU = "n1/gpu0"
BOUNDS = GpuWaiterBounds(passes_max=2, ageing_factor=10.0, kept_max_s=30.0)


class Names:
    """Prefers the first of ``order`` that may start; ``peaks``: MiB, of all that have profiles."""

    def __init__(self, peaks: Mapping[str, int], order: Sequence[str]) -> None:
        self.peaks = peaks
        self.order = list(order)
        self.seen: list[tuple[list[str], list[str]]] = []
        self.passed: Counter[str] = Counter()

    def peak_mib(self, container: ContainerSpec) -> int | None:
        return self.peaks.get(container.container_id)

    def choose(self, view: SharedGpuView) -> int | None:
        names = [x.spec.container_id for x in view.waiting]
        self.seen.append(([x.spec.container_id for x in view.running], [*names]))
        place = next((names.index(x) for x in map(ContainerId, self.order) if x in names), None)
        self.passed.update(names[:place] if place is not None else ())
        return place


class Node:
    """One GPU of 8,000 MiB that four may share, with 4 cores; what it starts and ends, in order."""

    def __init__(self, policy: Names, *units: ResourceUnit) -> None:
        own = ResourceUnit(
            unit_id=ResourceUnitId(GPU),
            capacity=Resources(4, 8_000, 8_000),
            run_limit=4,
            gpu=Gpu(index=0, memory_mib=8_000),
        )
        self.core = NodeCore(
            NodeName("n1"), units or (own,), gpu_waiters=policy, gpu_waiter_bounds=BOUNDS
        )
        self.now = 0.0
        self.started: list[str] = []
        self.returned: dict[str, str] = {}

    def comes(
        self, name: str, gpu_mib: int, *, run_s: float = 100.0, cores: int = 1,
        cls: WorkloadClass = BATCH, unit: str = GPU,
    ) -> None:  # fmt: skip
        made = spec(name, cls, cores, unit, gpu_mib)
        made = replace(made, expected_duration_s=run_s)
        self.feed(e.AssignReceived(now=self.now, epoch=1, spec=made))

    def ends(self, name: str) -> None:
        end = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
        self.feed(e.ProcessEnded(now=self.now, container_id=ContainerId(name), end=end))

    def beats(self) -> None:
        self.feed(e.HeartbeatDue(now=self.now))

    def feed(self, event: e.NodeEvent) -> None:
        for command in self.core.handle(event):
            if isinstance(command, c.StartProcess):
                self.started.append(command.spec.container_id)
            elif isinstance(command, c.ReportContainer) and command.status.end is not None:
                self.returned[command.status.container_id] = command.status.end.message
        assert node_violations(self.core) == []


def known(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1_000)


def test_of_those_that_may_start_the_policy_names_the_next() -> None:
    policy = Names(known("runs", "a", "b", "c"), ["c", "b"])
    node = Node(policy)
    node.comes("runs", 8_000)
    for name in ("a", "b", "c"):
        node.comes(name, 4_000)
    assert node.started == ["runs"]
    node.ends("runs")
    # 8,000 MiB are free: two of 4,000. The line's order would have started a and b.
    assert node.started == ["runs", "c", "b"]
    assert policy.seen == [([], ["a", "b", "c"]), (["c"], ["a", "b"])]


def test_all_that_may_start_does_whatever_the_policy_names() -> None:
    node = Node(Names(known("runs", "a", "b", "c"), []))
    node.comes("runs", 8_000)
    for name in ("a", "b", "c"):
        node.comes(name, 2_000)
    node.ends("runs")
    assert node.started[1:] == ["a", "b", "c"]


def test_what_has_no_profile_keeps_its_turn_and_takes_no_others() -> None:
    node = Node(Names(known("runs", "a", "b", "d"), ["d", "b"]))
    node.comes("runs", 8_000)
    for name in ("a", "b", "unknown", "d"):
        node.comes(name, 2_000)
    node.ends("runs")
    # d may not pass what has no profile, b may pass a; once unknown runs, nothing is named.
    assert node.started[1:] == ["b", "a", "unknown", "d"]


def test_next_to_what_has_no_profile_the_line_decides() -> None:
    policy = Names(known("a", "b", "runs"), ["b"])
    node = Node(policy)
    node.comes("unknown", 2_000)
    node.comes("runs", 6_000)
    node.comes("a", 3_000)
    node.comes("b", 3_000)
    node.ends("runs")
    assert node.started == ["unknown", "runs", "a", "b"]
    assert policy.seen == []


def test_one_is_passed_so_often_and_not_more() -> None:
    names = [f"n{n}" for n in range(6)]
    node = Node(Names(known("runs", "first", *names), names[::-1]))
    node.comes("runs", 8_000)
    node.comes("first", 8_000)
    for name in names:
        node.comes(name, 8_000)
    for _ in range(4):
        node.ends(node.started[-1])
    assert node.started == ["runs", "n5", "n4", "first", "n0"], "n0 to n3 have been passed twice"


def test_one_that_has_waited_ten_times_its_run_time_goes_first() -> None:
    node = Node(Names(known("runs", "a", "short", "c"), ["c"]))
    node.comes("runs", 8_000)
    node.comes("a", 8_000)
    node.comes("short", 8_000, run_s=5.0)
    node.comes("c", 8_000)
    node.now = 50.0
    node.ends("runs")
    assert node.started[1:] == ["c"], "50 s are not more than ten times 5 s"
    node.now = 51.0
    node.ends("c")
    assert node.started[2:] == ["short"]


def test_one_whose_profile_does_not_fit_next_to_what_runs_is_kept_back() -> None:
    """It declares 2,000 MiB and has been seen with 6,000: with 3,000 that run, too much."""
    node = Node(Names({"runs": 3_000, "greedy": 6_000, "small": 1_000}, []))
    node.comes("runs", 3_000)
    node.comes("greedy", 2_000)
    node.comes("small", 1_000)
    assert node.started == ["runs", "small"]
    node.ends("small")
    assert node.started == ["runs", "small"]
    node.ends("runs")
    assert node.started[2:] == ["greedy"]


def test_on_an_idle_gpu_a_profile_keeps_nothing_back() -> None:
    node = Node(Names({"greedy": 9_000}, []))
    node.comes("greedy", 2_000)
    assert node.started == ["greedy"]


def test_what_runs_counts_with_its_profile_and_without_one_as_declared() -> None:
    node = Node(Names({"grows": 7_000, "small": 1_500}, []))
    node.comes("grows", 2_000)
    node.comes("small", 500)
    assert node.started == ["grows"], "7,000 and 1,500 are more than 8,000"
    node.comes("unknown", 1_000)
    assert node.started == ["grows", "unknown"], "7,000 and what it declares are not"


def test_others_pass_what_is_kept_back_only_so_often() -> None:
    node = Node(Names({"runs": 3_000, "greedy": 6_000}, []))
    node.comes("runs", 3_000)
    node.comes("greedy", 2_000)
    for number in range(4):
        node.comes(f"n{number}", 100)
    assert node.started == ["runs", "n0", "n1"]
    for name in ("n0", "n1", "runs"):
        node.ends(name)
    assert node.started[3:] == ["greedy", "n2", "n3"]


def test_what_streams_keep_back_for_good_holds_up_none() -> None:
    node = Node(Names({"stream": 3_000, "greedy": 6_000}, []))
    node.comes("stream", 3_000, cls=STREAM)
    node.comes("greedy", 2_000)
    for number in range(4):
        node.comes(f"n{number}", 100)
        node.ends(f"n{number}")
    assert node.started == ["stream", "n0", "n1", "n2", "n3"]


def test_what_is_kept_back_for_long_is_returned() -> None:
    node = Node(Names({"runs": 3_000, "greedy": 6_000}, []))
    node.comes("runs", 3_000)
    node.comes("greedy", 2_000)
    node.beats()
    node.now = 29.9
    node.beats()
    assert node.returned == {}
    node.now = 30.0
    node.beats()
    assert node.returned["greedy"].startswith("next to what runs at n1/gpu0 it is expected to need")
    end = node.core.containers[ContainerId("greedy")].end
    assert end is not None and end.cause is EndCause.PREEMPTED


def test_streams_go_first_whatever_the_policy_names() -> None:
    node = Node(Names(known("runs", "a", "b", "s"), ["b", "a"]))
    node.comes("runs", 8_000, cls=STREAM)
    node.comes("a", 4_000)
    node.comes("b", 4_000)
    node.comes("s", 8_000, cls=STREAM)
    node.ends("runs")
    assert node.started == ["runs", "s"]
    node.ends("s")
    assert node.started[2:] == ["b", "a"]


def test_a_reservation_binds_the_policy() -> None:
    """The first does not fit until 100 s; of the later ones only what ends by then may start."""
    node = Node(Names(known("runs", "large", "long", "short"), ["long"]))
    node.comes("runs", 4_000, run_s=100.0)
    node.comes("large", 8_000)
    node.comes("long", 4_000, run_s=101.0)
    node.comes("short", 4_000, run_s=99.0)
    assert node.started == ["runs", "short"]


def test_units_that_share_cores_take_turns_in_the_line() -> None:
    """In shared mode a CPU container that may start is not passed by what is behind it."""
    hardware = Hardware(
        cores=tuple(Core(n) for n in range(4)),
        memory_mib=8_000,
        gpus=(Gpu(index=0, memory_mib=8_000),),
        pins=False,
    )
    units = partition(NodeName("n1"), hardware, Partitioning(mode=BindingMode.SHARED))
    node = Node(Names(known("all", "a", "b", "d"), ["d", "b"]), *units)
    node.comes("all", 8_000, cores=4)
    for name, where, gpu_mib in (
        ("a", GPU, 1_000), ("b", GPU, 1_000), ("cpu", "n1/cpu", 0), ("d", GPU, 1_000),
    ):  # fmt: skip
        node.comes(name, gpu_mib, unit=where)
    node.ends("all")
    assert node.started[1:] == ["b", "a", "cpu", "d"]


def test_a_node_without_a_policy_has_the_order_of_the_line() -> None:
    node = Node(Names({}, []))
    node.core.gpu_waiters = None
    node.comes("runs", 8_000)
    for name in ("a", "b", "c"):
        node.comes(name, 4_000)
    node.ends("runs")
    assert node.started[1:] == ["a", "b"]


@pytest.mark.parametrize("wrong", [{"passes_max": -1}, {"passes_max": 65}, {"kept_max_s": 0.0}])
def test_bounds_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        GpuWaiterBounds(**wrong)  # type: ignore[arg-type]
    assert GpuWaiterBounds(passes_max=64) and GpuWaiterBounds(passes_max=0)


ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 8), st.integers(1, 3), st.sampled_from([1.0, 5.0, 60.0]),
        st.sampled_from([0, 500, 3_000, 9_000]), st.booleans(),
    ),
    max_size=16,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(ARRIVALS, st.randoms(use_true_random=False))
def test_all_start_in_the_end_and_none_is_passed_beyond_its_bound(
    arrivals: list[tuple[int, int, float, int, bool]], chance: Random
) -> None:
    """With any policy and any profiles. No time passes, so that none has waited for long."""
    names = [f"c{n}" for n in range(len(arrivals))]
    peaks = {x: peak for x, (_, _, _, peak, _) in zip(names, arrivals, strict=True) if peak}
    policy = Names(peaks, chance.sample(names, len(names)))
    node = Node(policy)
    (queue,) = node.core.units.values()
    for name, (gpu, cores, run_s, _, is_stream) in zip(names, arrivals, strict=True):
        cls = STREAM if is_stream and gpu == 1 else BATCH
        node.comes(name, 1_000 * gpu, run_s=run_s, cores=cores, cls=cls)
        if len(queue.running) > 1 and chance.random() < 0.6:
            node.ends(chance.choice(list(queue.running)))
    while queue.running:
        node.ends(next(iter(queue.running)))
    assert sorted(node.started) == sorted(names)
    assert max(policy.passed.values(), default=0) <= BOUNDS.passes_max
