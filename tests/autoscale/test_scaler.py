"""How many nodes there should be, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.pool.scaler import (
    NOTHING,
    Amount,
    CallHook,
    DrainNodes,
    NodeSample,
    PoolSample,
    ReturnNodes,
    Scaler,
    ScalerBounds,
)

BOUNDS = ScalerBounds(nodes_min=2, nodes_max=20, down_after_s=600, cooldown_s=300)
STEP_S = 30.0


@dataclass
class Pool:
    """Nodes that come and go as the hook says, some steps later."""

    scaler: Scaler
    nodes: dict[str, NodeSample] = field(default_factory=dict)
    now: float = 0.0
    calls: list[CallHook] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    hook_works: bool = True
    boots: bool = True
    ends: bool = True
    ending: set[str] = field(default_factory=set)
    count: int = 0

    def add(self, count: int, **more: Any) -> None:
        for _ in range(count):
            self.count += 1
            name = f"n{self.count:03}"
            self.nodes[name] = NodeSample(name=name, **more)

    def step(
        self,
        needed: int,
        forecast: int | None = None,
        guaranteed: int = 0,
        needed_amounts: Amount = NOTHING,
        **more: Any,
    ) -> None:
        self.now += STEP_S
        sample = PoolSample(
            now=self.now, nodes=tuple(self.nodes.values()), needed_nodes=needed,
            guaranteed_nodes=guaranteed, forecast_nodes=forecast, needed=needed_amounts, **more,
        )  # fmt: skip
        for order in self.scaler.sampled(sample):
            self._carry_out(order)

    def _carry_out(self, order: DrainNodes | ReturnNodes | CallHook) -> None:
        match order:
            case DrainNodes(names=names):
                self.drained += names
                for name in names:
                    assert not self.nodes[name].is_protected
                    self.nodes[name] = replace(self.nodes[name], is_open=False)
            case ReturnNodes(names=names):
                for name in names:
                    self.nodes[name] = replace(self.nodes[name], is_open=True)
            case CallHook():
                self.calls.append(order)
                for name in order.remove:
                    assert not self.nodes[name].containers and not self.nodes[name].is_open
                if self.hook_works:
                    self.ending |= set(order.remove)
                    if self.ends:
                        for name in order.remove:
                            del self.nodes[name]
                    if self.boots:
                        stay = len(self.nodes.keys() - self.ending)
                        self.add(max(0, order.wanted_nodes - stay))
                for following in self.scaler.hook_ended(self.hook_works, self.now):
                    self._carry_out(following)

    @property
    def open(self) -> int:
        return sum(node.is_open for node in self.nodes.values())


def pool(nodes: int = 5, bounds: ScalerBounds = BOUNDS) -> Pool:
    made = Pool(Scaler(bounds))
    made.add(nodes)
    return made


def test_what_waits_is_served_at_once() -> None:
    subject = pool()
    subject.step(needed=9)
    assert subject.calls == [
        CallHook(
            wanted_nodes=9, present_nodes=5, remove=(),
            reason="9 needed now, no forecast, 0 guaranteed",
        )
    ]  # fmt: skip
    assert subject.open == 9


def test_the_forecast_is_provided_for_before_it_waits_and_the_bounds_hold() -> None:
    subject = pool()
    subject.step(needed=3, forecast=12)
    assert subject.open == 12
    subject.step(needed=3, forecast=500)
    assert subject.open == 20


def test_a_short_drop_removes_nothing() -> None:
    subject = pool(10)
    for tick in range(200):
        subject.step(needed=10 if tick % 15 == 0 else 2)
    assert subject.calls == [] and subject.drained == []


def test_nodes_go_by_a_fifth_after_it_was_quiet_and_never_below_the_least() -> None:
    subject = pool(10)
    sizes = []
    for _ in range(200):
        subject.step(needed=0)
        sizes.append(subject.open)
    assert sizes[:20] == [10] * 20  # down_after_s
    assert min(sizes) == sizes[-1] == 2
    assert max(a - b for a, b in pairwise(sizes)) <= 2


def test_what_queues_are_guaranteed_stays() -> None:
    subject = pool(10)
    for _ in range(200):
        subject.step(needed=0, guaranteed=6)
    assert subject.open == 6


def test_a_protected_node_stays_and_busy_ones_are_drained_and_named_once_empty() -> None:
    subject = pool(0)
    subject.add(3, is_protected=True, containers=1)
    subject.add(3, containers=2)
    for _ in range(40):
        subject.step(needed=3)
    assert subject.drained and not {"n001", "n002", "n003"} & set(subject.drained)
    assert subject.calls == []  # what is drained is busy still
    first = subject.drained[0]
    subject.nodes[first] = replace(subject.nodes[first], containers=0)
    subject.step(needed=3)
    assert [call.remove for call in subject.calls] == [(first,)]
    assert first not in subject.nodes


def test_a_stream_keeps_a_node_in_service_however_many_go() -> None:
    bounds = replace(BOUNDS, shrink_part=1.0, nodes_min=0)
    subject = pool(0, bounds)
    subject.add(2, streams=frozenset({"s"}), containers=1)
    subject.add(1, streams=frozenset({"s", "t"}), containers=1)
    subject.add(2, containers=1)
    for _ in range(100):
        subject.step(needed=0)
    # n003 has the only executors of t, and those of s: the others may go.
    assert [node.name for node in subject.nodes.values() if node.is_open] == ["n003"]


def test_nodes_that_leave_come_back_before_new_ones_are_asked_for() -> None:
    subject = pool(0)
    subject.add(5, containers=1)
    for _ in range(25):
        subject.step(needed=2)
    assert subject.open == 4 and subject.calls == []
    subject.step(needed=5)
    assert subject.open == 5 and subject.calls == []
    subject.step(needed=6)
    assert [call.wanted_nodes for call in subject.calls] == [6]


def test_a_hook_that_fails_changes_nothing_and_is_called_again_less_and_less() -> None:
    subject = pool()
    subject.hook_works = False
    for _ in range(240):
        subject.step(needed=9)
    assert subject.open == 5 and subject.scaler.target == 5
    assert 4 <= len(subject.calls) <= 9  # pauses of 30, 60, ... 1800 s in two hours
    subject.hook_works = True
    for _ in range(61):
        subject.step(needed=9)
    assert subject.open == 9


def test_a_hook_that_fails_to_remove_leaves_nodes_in_service() -> None:
    subject = pool(10)
    subject.hook_works = False
    for _ in range(24):
        subject.step(needed=0)
    assert subject.calls and subject.calls[0].remove
    assert subject.open == 10
    assert subject.scaler.leaving == {}


def test_nodes_that_do_not_come_are_asked_for_again_after_a_while() -> None:
    subject = pool()
    subject.boots = False
    for _ in range(41):
        subject.step(needed=9)
    assert [call.wanted_nodes for call in subject.calls] == [9, 9, 9]


def test_what_waits_for_a_place_gets_one_node_after_the_other_and_then_no_more() -> None:
    """Executors of 3 cores on nodes of 4: in sum five nodes suffice, and one waits all the same."""
    subject = pool()
    sizes = []
    for _ in range(60):
        subject.step(needed=5, is_without_place=True, waiting=(3.0, 1024.0, 0.0))
        sizes.append(subject.open)
    assert sizes[:8] == [5, 5, 6, 6, 7, 7, 8, 8]  # each time a minute after all have come
    assert max(sizes) == 8 and sizes[-1] == 5  # it helped nobody, and they have gone again
    first = subject.calls[0]
    assert "waits for a place that none of 5 has" in first.reason
    assert (first.waiting_cores, first.waiting_memory_mib) == (3.0, 1024.0)
    subject.step(needed=5)
    for _ in range(3):
        subject.step(needed=5, is_without_place=True)
    assert subject.open == 6  # a wait that has ended is forgotten


def test_while_a_node_more_may_help_none_goes() -> None:
    subject = pool(6, replace(BOUNDS, down_after_s=0, cooldown_s=0))
    for _ in range(3):
        subject.step(needed=3, is_without_place=True)
    assert subject.open == 7 and subject.drained == []
    subject.step(needed=3)
    assert subject.drained == ["n001"]


def test_nodes_that_were_asked_for_and_have_not_come_are_waited_for_first() -> None:
    subject = pool()
    subject.boots = False
    for _ in range(15):
        subject.step(needed=8, is_without_place=True)
    assert [call.wanted_nodes for call in subject.calls] == [8]


def test_a_node_that_the_hook_is_ending_does_not_come_back_with_the_demand() -> None:
    subject = pool(5)
    subject.ends = False  # machines take a while to end
    for _ in range(25):
        subject.step(needed=2)
    (going,) = subject.calls[0].remove
    subject.step(needed=6)
    assert not subject.nodes[going].is_open
    assert subject.calls[-1].wanted_nodes == 6 and subject.open == 6


def test_a_machine_that_comes_under_the_name_of_one_that_was_removed_gets_containers() -> None:
    """A drain holds for a name; without it the new machine would stand drained for ever."""
    subject = pool(5)
    for _ in range(25):
        subject.step(needed=2)
    (gone,) = subject.calls[0].remove
    subject.boots = False
    subject.step(needed=5)
    subject.nodes[gone] = NodeSample(name=gone, is_open=False)
    subject.step(needed=5)
    assert subject.open == 5 and subject.nodes[gone].is_open


def test_nodes_that_leave_are_known_again_after_the_master_has_not_known_them() -> None:
    """While a master recovers, nodes come one by one."""
    subject = pool(0)
    subject.add(5, containers=1)
    for _ in range(25):
        subject.step(needed=2)
    (drained,) = subject.drained
    nodes, subject.nodes = subject.nodes, {}
    subject.boots = False
    subject.step(needed=2)
    subject.nodes = nodes
    subject.step(needed=2)
    assert list(subject.scaler.leaving) == [drained]


def test_one_that_comes_back_unasked_leaves_again() -> None:
    subject = pool(5)
    for _ in range(25):
        subject.step(needed=2)
    (gone,) = subject.calls[0].remove
    subject.nodes[gone] = NodeSample(name=gone, is_open=False)
    subject.step(needed=2)
    assert subject.calls[-1].remove == (gone,) and gone not in subject.nodes


def test_a_hook_that_says_that_it_removed_and_has_not_is_called_again_after_a_while() -> None:
    subject = pool(5)
    subject.ends = False
    for _ in range(80):
        subject.step(needed=2)
    calls = [call.remove for call in subject.calls]
    assert calls[0][0] in calls[-1]
    assert len(calls) <= 6  # three nodes, one after the other, and again each ten minutes


def test_what_an_administrator_returns_to_service_stays_there_for_a_while() -> None:
    subject = pool(0)
    subject.add(5, containers=1)
    for _ in range(25):
        subject.step(needed=2)
    (drained,) = subject.drained
    subject.nodes[drained] = replace(subject.nodes[drained], is_open=True)
    subject.step(needed=2)
    assert subject.nodes[drained].is_open and subject.scaler.leaving == {}


def test_nodes_that_others_have_added_go_too() -> None:
    subject = pool(3)
    subject.step(needed=3)
    subject.add(4)
    for _ in range(60):
        subject.step(needed=3)
    assert subject.open == 3


def test_drains_of_an_administrator_are_left_alone() -> None:
    subject = pool(4)
    subject.nodes["n001"] = replace(subject.nodes["n001"], is_open=False)
    for _ in range(100):
        subject.step(needed=0)
    assert "n001" in subject.nodes
    assert not subject.nodes["n001"].is_open
    last = subject.calls[-1]
    assert (last.wanted_nodes, last.present_nodes) == (3, 4)  # two in service, and the drained one


def test_another_process_goes_on_with_what_was_begun() -> None:
    subject = pool(0)
    subject.add(5, containers=1)
    for _ in range(25):
        subject.step(needed=2)
    again = Scaler(BOUNDS)
    again.restore(subject.scaler.as_json())
    assert (again.target, again.leaving) == (subject.scaler.target, subject.scaler.leaving)
    with pytest.raises(ValueError, match="no state"):
        again.restore({"target": "many"})


def test_a_process_that_dies_while_it_carries_orders_out_leaves_no_drain_behind() -> None:
    """What is written before the first order holds both nodes that go and those that come back."""
    subject = pool(0)
    subject.add(5, containers=1)
    for _ in range(25):
        subject.step(needed=2)
    (drained,) = subject.drained
    sample = PoolSample(now=subject.now + 30, nodes=tuple(subject.nodes.values()), needed_nodes=5)
    (order,) = subject.scaler.sampled(sample)
    assert order == ReturnNodes(names=(drained,), reason="5 needed now, no forecast, 0 guaranteed")
    again = Scaler(BOUNDS)
    again.restore(subject.scaler.as_json())
    (order,) = again.sampled(replace(sample, now=sample.now + 30))
    assert isinstance(order, ReturnNodes) and order.names == (drained,)


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    subject = pool(10)
    subject.now = 1e9
    for _ in range(30):
        subject.step(needed=10)
    subject.now = 0.0
    for _ in range(25):
        subject.step(needed=2)
    assert subject.open < 10


@pytest.mark.parametrize("how", ["not seen", "incomplete"])
def test_a_time_in_which_the_pool_was_not_seen_counts_as_no_calm(how: str) -> None:
    """The master was away, or its clock or this one's jumped ahead."""
    subject = pool(10)
    for _ in range(120):
        subject.step(needed=10)
    if how == "not seen":
        subject.now += 15 * 60.0
    else:
        for _ in range(30):
            subject.step(needed=2, is_complete=False)
    for _ in range(20):
        subject.step(needed=2)
    assert subject.drained == []
    subject.step(needed=2)
    assert subject.drained == ["n001", "n002"]


def test_samples_that_are_rare_by_the_settings_are_no_gap() -> None:
    subject = pool(5, replace(BOUNDS, gap_s=3 * 3600.0))
    for _ in range(3):
        subject.now += 3600.0 - STEP_S
        subject.step(needed=2)
    assert subject.drained == ["n001", "n002"]


@pytest.mark.parametrize("kept", [40, 10**9])
def test_a_target_that_was_kept_is_within_bounds_that_have_changed(kept: int) -> None:
    subject = pool(2, ScalerBounds(nodes_min=1, nodes_max=3))
    subject.scaler.restore({"target": kept})
    subject.step(needed=2)
    assert [call.wanted_nodes for call in subject.calls] == [3]


@pytest.mark.parametrize("target", [-1, True, 2.5, "3"])
def test_a_kept_target_that_is_no_number_of_nodes_is_refused(target: object) -> None:
    with pytest.raises(ValueError, match="no state of a scaler"):
        Scaler(BOUNDS).restore({"target": target})


def test_so_many_names_as_a_program_can_be_started_with_are_in_one_call() -> None:
    subject = pool(0, ScalerBounds(nodes_min=0, nodes_max=5000, down_after_s=0, cooldown_s=0,
                                   shrink_part=1.0))  # fmt: skip
    for number in range(4000):
        name = f"{number:04}.a-long-name-of-a-node.example.com"
        subject.nodes[name] = NodeSample(name=name)
    subject.ends = False  # machines take a while to end, and are listed until then
    for _ in range(8):
        subject.step(needed=0)
    named = [name for call in subject.calls for name in call.remove]
    assert len(named) == len(set(named)) == 4000
    assert max(len(",".join(call.remove)) for call in subject.calls) < 128 * 1024 / 4
    left = [call.wanted_nodes for call in subject.calls]
    assert left == sorted(left, reverse=True) and left[-1] == 0
    assert len(subject.scaler.removed) == 4000


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans()),
        max_size=120,
    ),
    st.integers(0, 3),
)
def test_whatever_happens_bounds_and_protected_nodes_hold(
    ticks: list[tuple[int, int, bool, bool]], protected: int
) -> None:
    subject = pool(4, replace(BOUNDS, gap_s=300.0))
    subject.add(protected, is_protected=True, containers=1)
    began = set(list(subject.nodes)[4:])
    for needed, forecast, works, unplaced in ticks:
        subject.hook_works = works
        subject.now += 200  # time for every rule
        before = len(subject.calls)
        subject.step(needed=needed, forecast=forecast, is_without_place=unplaced)
        assert len(subject.calls) <= before + 1
        assert subject.open >= BOUNDS.nodes_min
        assert len(subject.nodes) <= BOUNDS.nodes_max
        assert began <= {name for name, node in subject.nodes.items() if node.is_open}


# --- nodes that are unlike ----------------------------------------------------------------------


def capacity_of(nodes: dict[str, NodeSample]) -> list[float]:
    return [sum(node.capacity[which] for node in nodes.values()) for which in range(3)]


CPU, GPU = (8.0, 16_384.0, 0.0), (8.0, 16_384.0, 24_576.0)
AT_ONCE = ScalerBounds(nodes_min=0, nodes_max=20, down_after_s=0, cooldown_s=0, shrink_part=1.0)


def unlike(bounds: ScalerBounds = AT_ONCE) -> Pool:
    """Two idle nodes with GPUs, and four without that hold something each."""
    made = Pool(Scaler(bounds))
    made.add(2, capacity=GPU)
    made.add(4, capacity=CPU, containers=1)
    return made


def test_idle_nodes_with_gpus_stay_as_far_as_gpus_are_needed() -> None:
    subject = unlike()
    subject.step(needed=3, needed_amounts=(10.0, 4_096.0, 30_000.0))
    assert subject.drained == ["n003", "n004", "n005"]


def test_what_was_needed_lately_counts_of_each_resource() -> None:
    subject = unlike(replace(AT_ONCE, down_after_s=60.0))
    subject.step(needed=3, needed_amounts=(10.0, 4_096.0, 30_000.0))
    subject.step(needed=3, needed_amounts=(20.0, 4_096.0, 0.0))
    subject.step(needed=3, needed_amounts=(20.0, 4_096.0, 0.0))
    assert subject.drained == ["n003", "n004", "n005"]
    for _ in range(3):
        subject.step(needed=2, needed_amounts=(10.0, 4_096.0, 0.0))
    assert subject.drained[3:] == ["n001"]


def test_the_last_node_with_gpus_stays_while_any_does() -> None:
    """Without it a request for a GPU would be refused at once."""
    subject = unlike()
    subject.step(needed=1)
    assert subject.drained == ["n001", "n003", "n004", "n005", "n006"]
    subject.step(needed=0)
    assert subject.drained[5:] == ["n002"]


def test_large_nodes_stay_where_small_ones_have_too_little() -> None:
    subject = Pool(Scaler(AT_ONCE))
    subject.add(1, capacity=(32.0, 65_536.0, 0.0))
    subject.add(3, capacity=CPU, containers=1)
    subject.step(needed=2, needed_amounts=(30.0, 1_024.0, 0.0))
    assert subject.drained == ["n002", "n003"]


def test_no_more_nodes_than_the_most_stay_for_what_they_have() -> None:
    subject = unlike(replace(AT_ONCE, nodes_max=3))
    subject.step(needed=9, needed_amounts=(60.0, 4_096.0, 49_152.0))
    assert len(subject.drained) == 3


@given(
    nodes=st.lists(st.tuples(st.sampled_from((CPU, GPU)), st.integers(0, 2)), max_size=8),
    needed=st.tuples(st.floats(0, 80), st.floats(0, 160_000), st.floats(0, 200_000)),
    wanted=st.integers(0, 8),
)
def test_what_stays_has_what_is_needed(
    nodes: list[tuple[Amount, int]], needed: Amount, wanted: int
) -> None:
    subject = Pool(Scaler(AT_ONCE))
    for capacity, containers in nodes:
        subject.add(1, capacity=capacity, containers=containers)
    before = capacity_of(subject.nodes)
    staying = dict(subject.nodes)
    subject.step(needed=wanted, needed_amounts=needed)
    for name in subject.drained:
        del staying[name]
    after = capacity_of(staying)
    for was, left, least in zip(before, after, needed, strict=True):
        assert left == was or left >= least
    assert bool(after[2]) == bool(before[2]) or not staying
