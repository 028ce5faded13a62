"""May it wait there? The policies' masks and the negotiator, which has the last word, agree.

The rule is written three times: for one claim (``Negotiator.may_wait``), for all rows at once
(``queueable``) and for one row of a view (``may_still_wait``). Where they differ, a scheduler
proposes what is refused, again and again, or nothing although it could wait.

One difference is known, and on the safe side: at a unit that shares its cores policies count the
streams that wait at its siblings towards the bound as well, the negotiator only the unit's own.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import duration_s
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import fits
from hrm.core.vocabulary.model import ContainerId, Gpu, NodeName
from hrm.core.vocabulary.partitioning import Core, Hardware, Partitioning, partition
from hrm.policies.placement_helpers import may_still_wait, queueable
from tests.policies.states import CLASSES, DEMANDS, NOW, PLACEMENTS, states

SHARING = Hardware(
    cores=tuple(Core(number) for number in range(4)),
    memory_mib=100,
    gpus=(Gpu(index=0, memory_mib=40),),
)
GPU_DEMANDS = st.sampled_from([(1, 10, 0, 1), (2, 10, 20, 1), (1, 40, 40, 1)])


@st.composite
def sharing_nodes(draw: st.DrawFn) -> list[UnitQueue]:
    """The units of one node with a GPU, which share its cores, and what is there."""
    name = NodeName("sharing")
    queues: list[UnitQueue] = []
    for unit in partition(name, SHARING, Partitioning()):
        queue = UnitQueue(unit)
        if queues:
            queue.join(queues[0])
        queues.append(queue)
    for number in range(draw(st.integers(0, 6))):
        queue, demand = draw(st.sampled_from(queues)), draw(GPU_DEMANDS)
        if queue.could_hold(demand) and fits(demand, queue.capacity):
            container_id = ContainerId(f"sharing-{number}")
            queue.enqueue(Entry(container_id, draw(CLASSES), demand, 10.0))
            if draw(st.booleans()):
                queue.start_all(5.0)
    return queues


@st.composite
def bounded_states(draw: st.DrawFn) -> SharedState:
    """With units that share their cores, and with bounds of single units."""
    state = draw(states())
    for queue in draw(st.one_of(st.just([]), sharing_nodes())):
        state.add(NodeName("sharing"), queue)
    for unit_id in list(state.rows):
        if draw(st.integers(0, 3)) == 0:
            state.limit_waiting(unit_id, draw(st.integers(0, 3)))
    return state


@settings(max_examples=300, deadline=None)
@given(
    bounded_states(),
    PLACEMENTS,
    st.one_of(DEMANDS, GPU_DEMANDS),
    st.sampled_from(["app-1-x1", "driver-1-x1"]),
)
def test_the_three_forms_of_may_it_wait_there_agree(
    state: SharedState, like: Placement, demand: tuple[int, int, int, int], name: str
) -> None:
    entry = Entry(ContainerId(name), like.workload_class, demand, 20.0)
    placement = replace(like, demand=demand, entries=(entry,), run_s=duration_s(entry))
    bounds = Bounds(waiting_limit=placement.waiting_limit, wait_max_s=placement.wait_max_s)
    negotiator, view = Negotiator(state, bounds), ClusterView(state)
    view.open_to(demand)
    open_to_it = [
        row for row in state.rows.values() if state.open[row] and not state.refusal(row, demand)
    ]
    rows, waits_s = queueable(view, placement, NOW)
    assert set(rows.tolist()) <= set(open_to_it)
    for row in open_to_it:
        refusal = negotiator.may_wait(state.queue(row), entry, NOW)
        admitted = refusal == ""
        may, wait_s = may_still_wait(view, placement, row, NOW)
        where = f"row {row}: the negotiator's refusal is {refusal!r}"
        assert may == admitted, where
        assert (row in rows) == admitted, where
        if may:
            assert wait_s == waits_s[rows.tolist().index(row)], row
