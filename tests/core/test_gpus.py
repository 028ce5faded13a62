"""Units with GPUs in a whole cluster: what goes where, pools of shared cores, another binding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.invariants import unit_violations
from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.queue.estimate import simulate
from hrm.core.queue.pools import queues_of
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import could_hold, demand_vector, fits
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    ContainerState,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster

MACHINE = Hardware(
    cores=tuple(Core(number, numa=number // 2) for number in range(4)),
    memory_mib=4096,
    gpus=(
        Gpu(index=0, memory_mib=1000, numa=0),
        Gpu(index=1, memory_mib=1000, numa=1),
    ),
)
ON_GPU = Resources(1, 512, 500)
CPU_ONLY = Resources(1, 512)


def cluster_of(
    mode: BindingMode, *, preemption_grace_s: float | None = 15.0, **binding: int
) -> VirtualCluster:
    cluster = VirtualCluster(preemption_grace_s=preemption_grace_s)
    cluster.add_hardware("n1", MACHINE, Partitioning(mode=mode, **binding))
    cluster.settle()
    return cluster


def places(cluster: VirtualCluster, app: ApplicationId) -> list[str]:
    containers = cluster.app(app).containers.values()
    return sorted(x.unit_id for x in containers if x.state is ContainerState.RUNNING)


@pytest.mark.parametrize("mode", BindingMode)
def test_executors_share_gpus_as_far_as_device_memory_goes(mode: BindingMode) -> None:
    cluster = cluster_of(mode, bound_cores=2, reserve_cores=0)
    app = cluster.submit(5, replace(ON_GPU, vcores=1))
    cluster.settle()
    assert places(cluster, app) == ["n1/gpu0", "n1/gpu0", "n1/gpu1", "n1/gpu1"]
    # Where others may take the cores before, nobody can tell which unit is free first.
    where = "pending" if mode is BindingMode.SHARED else "waiting"
    assert cluster.states(app)[where] == 1, "the fifth waits, on the queue of a unit if it can"
    cluster.end_process(app, 1)
    cluster.settle()
    assert cluster.states(app) == {"running": 4}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (BindingMode.SHARED, {"n1/cpu"}),
        (BindingMode.PARTIAL, {"n1/cpu"}),
        (BindingMode.EVEN, {"n1/gpu0", "n1/gpu1"}),
    ],
)
def test_containers_without_need_of_a_gpu_use_one_only_where_there_is_nothing_else(
    mode: BindingMode, expected: set[str]
) -> None:
    cluster = cluster_of(mode)
    app = cluster.submit(2, CPU_ONLY)
    cluster.settle()
    assert set(places(cluster, app)) == expected


def test_shared_cores_are_not_allocated_twice() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    batch = cluster.submit(3, CPU_ONLY)
    cluster.settle()
    gpu = cluster.submit(3, ON_GPU)
    cluster.settle()
    assert len(places(cluster, batch)) == 3
    assert len(places(cluster, gpu)) == 1, "one core is left for all GPUs: they starve"
    state = cluster.master.master_state.state
    assert [int(state.free[row][0]) for row in state.rows.values()] == [0, 0, 0]
    cluster.finish(batch)
    cluster.settle()
    assert len(places(cluster, gpu)) == 3


def test_a_stream_at_a_gpu_goes_before_batch_at_the_cores_they_share() -> None:
    cluster = cluster_of(BindingMode.SHARED, preemption_grace_s=None)
    running = cluster.submit(4, CPU_ONLY)
    cluster.settle()
    waiting = cluster.submit(1, CPU_ONLY)
    cluster.settle()
    stream = cluster.submit(1, Resources(2, 512, 500), WorkloadClass.STREAM)
    cluster.settle()
    cluster.end_process(running, 1)
    cluster.settle()
    assert cluster.states(waiting) == {"pending": 1}, "the core is kept for the stream"
    cluster.end_process(running, 2)
    cluster.settle()
    assert cluster.states(stream) == {"running": 1}
    assert cluster.states(waiting) == {"pending": 1}


def refusal_of(cluster: VirtualCluster, resources: Resources, gpus: int = 1) -> str:
    app = cluster.submit(0)
    request = ContainerRequest(
        executor_id="1", resource_profile_id=0, resources=resources, gpus=gpus
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=(request,))
    )
    cluster.settle()
    refused = [n for n in cluster.notices.get(app, []) if isinstance(n, c.RequestRefused)]
    return refused[0].message if refused else ""


def test_requests_for_gpus_that_cannot_be_are_refused_naming_what_there_is() -> None:
    with_gpus = cluster_of(BindingMode.SHARED)
    assert "the largest GPU, of n1, is GPU 0, unnamed, 1000 MiB" in refusal_of(
        with_gpus, Resources(1, 512, 1001)
    )
    assert "set gpus_per_unit = 2" in refusal_of(with_gpus, Resources(1, 512, 500), gpus=2)
    assert "has 4 vcores, 4096 MiB, 1000 MiB device memory at n1/gpu" in refusal_of(
        with_gpus, Resources(5, 512, 500)
    )
    without = VirtualCluster()
    assert "no node is alive" in refusal_of(without, CPU_ONLY)
    without.add_hardware("n1", replace(MACHINE, gpus=()), Partitioning())
    without.settle()
    for resources in (CPU_ONLY, ON_GPU):
        refusal = refusal_of(without, resources)
        assert "no node of the cluster has one; there are n1 (4 vcores, 4096 MiB)" in refusal


def test_cores_bound_to_gpus_are_no_place_for_cpu_jobs() -> None:
    cluster = cluster_of(BindingMode.PARTIAL, bound_cores=2, reserve_cores=0)
    assert "every core of the cluster is bound" in refusal_of(cluster, CPU_ONLY, gpus=0)


def test_a_gpu_without_a_number_is_a_whole_one() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    app = cluster.submit(0)
    requests = tuple(
        ContainerRequest(executor_id=str(x), resource_profile_id=0, resources=CPU_ONLY, gpus=1)
        for x in range(1, 4)
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=requests)
    )
    cluster.settle()
    assert places(cluster, app) == ["n1/gpu0", "n1/gpu1"]
    assert cluster.states(app) == {"running": 2, "pending": 1}


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_batch_is_bound_to_no_unit_whose_cores_others_may_take(schedulers: int) -> None:
    """Each node has a GPU that is free for want of cores. What waits for one starts at the node
    that has some first, against the expected run times; a stream queues all the same."""
    cluster = VirtualCluster(schedulers=schedulers, preemption_grace_s=None)
    for name in ("n1", "n2"):
        cluster.add_hardware(name, MACHINE, Partitioning(mode=BindingMode.SHARED))
    holding = cluster.submit(0)
    cluster.request(holding, [1, 2], replace(CPU_ONLY, vcores=4), expected_duration_s=30.0)
    cluster.settle()
    waiting = cluster.submit(1, ON_GPU, name="waiting")
    cluster.settle()
    assert cluster.states(waiting) == {"pending": 1}
    stream = cluster.submit(1, replace(ON_GPU, vcores=4), WorkloadClass.STREAM, name="stream")
    cluster.settle()
    assert cluster.states(stream) == {"waiting": 1}
    at_stream = cluster.container(stream, 1).node
    free = next(x for x in (1, 2) if cluster.container(holding, x).node != at_stream)
    cluster.end_process(holding, free)
    cluster.settle()
    assert cluster.states(waiting) == {"running": 1}
    assert cluster.container(waiting, 1).node != at_stream


def test_parts_of_gpus_leave_whole_ones_free() -> None:
    cluster = VirtualCluster()
    for name in ("n1", "n2"):
        cluster.add_hardware(name, MACHINE, Partitioning(mode=BindingMode.SHARED))
    parts = [cluster.submit(1, Resources(1, 256, 500), name=f"part-{x}") for x in range(2)]
    cluster.settle()
    used = {places(cluster, app)[0] for app in parts}
    assert len(used) == 1, "both are at one GPU"
    whole = cluster.submit(3, Resources(1, 256, 1000), name="whole")
    cluster.settle()
    assert cluster.states(whole) == {"running": 3}


# --- another binding ------------------------------------------------------------------------------


def unit_ids(cluster: VirtualCluster) -> list[str]:
    """What the master believes; it must be what the node reports."""
    node = cluster.nodes["n1"].core
    reported = cluster.master.master_state.nodes[NodeName("n1")].units
    assert reported == tuple(queue.unit for queue in node.units.values())
    return [f"{unit.unit_id}:{unit.current.vcores}" for unit in reported]


def test_a_free_node_is_repartitioned_at_once() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    call = cluster.rebind("n1", mode=BindingMode.PARTIAL, bound_cores=1)
    cluster.settle()
    result = cluster.replies[call]
    assert isinstance(result, c.Reply) and isinstance(result.result, c.Rebound)
    assert "n1 is bound: partial, 1 cores a GPU" in result.result.message
    assert unit_ids(cluster) == ["n1/cpu:2", "n1/gpu0:1", "n1/gpu1:1"]
    cluster.rebind("n1", mode=BindingMode.EVEN)
    cluster.settle()
    assert unit_ids(cluster) == ["n1/gpu0:2", "n1/gpu1:2"]
    app = cluster.submit(4, CPU_ONLY)
    cluster.settle()
    assert cluster.states(app) == {"running": 4}


def test_what_is_idle_is_bound_otherwise_at_once_and_the_rest_when_it_ends() -> None:
    cluster = cluster_of(BindingMode.PARTIAL, bound_cores=1)
    app = cluster.submit(3, CPU_ONLY)
    cluster.settle()
    assert cluster.states(app) == {"running": 2, "waiting": 1}
    call = cluster.rebind("n1", mode=BindingMode.EVEN)
    cluster.settle()
    result = cluster.replies[call]
    assert isinstance(result, c.Reply) and isinstance(result.result, c.Rebound)
    assert result.result.message == (
        "n1 is bound: even; running containers keep what they hold until they end: 2 at n1/cpu"
    )
    assert unit_ids(cluster) == ["n1/gpu0:1", "n1/gpu1:1", "n1/cpu:2"]
    waited = cluster.container(app, 3)
    assert waited.end is not None and waited.end.cause is EndCause.PREEMPTED
    assert cluster.states(app) == {"running": 2}, "what runs, runs on"
    late = cluster.submit(1, ON_GPU)
    cluster.settle()
    assert cluster.states(late) == {"running": 1}, "the units go on taking work"
    cluster.end_process(app, 1)
    cluster.settle()
    gpu0, gpu1, cpu = unit_ids(cluster)
    assert cpu == "n1/cpu:1"
    assert {gpu0[-1], gpu1[-1]} == {"1", "2"}
    cluster.end_process(app, 2)
    cluster.settle()
    assert unit_ids(cluster) == ["n1/gpu0:2", "n1/gpu1:2"]
    assert cluster.states(late) == {"running": 1}


def test_units_that_stay_the_same_run_on() -> None:
    cluster = cluster_of(BindingMode.PARTIAL, bound_cores=1)
    app = cluster.submit(1, ON_GPU)
    cluster.settle()
    cluster.rebind("n1", reserve_cores=2)
    cluster.settle()
    assert cluster.states(app) == {"running": 1}, "the units are as before"
    assert cluster.nodes["n1"].core.binding.reserve_cores == 2


def test_a_binding_can_be_taken_back_while_containers_hold_what_others_get() -> None:
    cluster = cluster_of(BindingMode.PARTIAL, bound_cores=1)
    app = cluster.submit(1, CPU_ONLY)
    cluster.settle()
    cluster.rebind("n1", mode=BindingMode.EVEN)
    cluster.settle()
    cluster.rebind("n1", mode=BindingMode.PARTIAL)
    cluster.settle()
    more = cluster.submit(1, CPU_ONLY)
    cluster.settle()
    assert cluster.states(app) == cluster.states(more) == {"running": 1}


@pytest.mark.parametrize(
    ("asked_for", "reason"),
    [
        ({"mode": BindingMode.PARTIAL, "bound_cores": 2}, "fewer than the 1 kept for CPU jobs"),
        ({"mode": BindingMode.PARTIAL, "bound_cores": 9}, "the node offers 4"),
        ({"mode": BindingMode.PARTIAL, "bound_cores": 0}, "bound_cores is 0"),
    ],
)
def test_an_impossible_binding_changes_nothing(asked_for: dict[str, object], reason: str) -> None:
    cluster = cluster_of(BindingMode.SHARED)
    before = unit_ids(cluster)
    call = cluster.rebind("n1", **asked_for)
    cluster.settle()
    result = cluster.replies[call]
    assert isinstance(result, c.Refuse) and reason in result.error.message
    assert unit_ids(cluster) == before


@pytest.mark.parametrize("gpu_limit", [None, 0])
@pytest.mark.parametrize(
    "asked_for",
    [{"mode": BindingMode.PARTIAL}, {"mode": BindingMode.EVEN}, {"bound_cores": 1}],
)
def test_a_node_without_gpus_has_nothing_to_bind(
    asked_for: dict[str, Any], gpu_limit: int | None
) -> None:
    cluster = VirtualCluster()
    gpus = () if gpu_limit is None else MACHINE.gpus
    cluster.add_hardware("n1", replace(MACHINE, gpus=gpus), Partitioning(gpu_limit=gpu_limit))
    cluster.settle()
    call = cluster.rebind("n1", **asked_for)
    cluster.settle()
    result = cluster.replies[call]
    assert isinstance(result, c.Refuse)
    assert "n1 cannot be bound so: it offers no GPU" in result.error.message
    instead = "hrm nodes shows which nodes have GPUs" if gpu_limit is None else "a larger gpu_limit"
    assert instead in result.error.message
    assert cluster.nodes["n1"].core.binding.mode is BindingMode.SHARED
    call = cluster.rebind("n1", mode=BindingMode.SHARED)
    cluster.settle()
    assert isinstance(cluster.replies[call], c.Reply)


def test_a_node_that_is_not_there_is_reported_and_a_silent_one_too() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    call = cluster.rebind("n2", mode=BindingMode.EVEN)
    result = cluster.replies[call]
    assert isinstance(result, c.Refuse) and "no such node: n2" in result.error.message
    cluster.disconnect(cluster.nodes["n1"])
    call = cluster.rebind("n1", mode=BindingMode.EVEN)
    cluster.advance(6.0)
    result = cluster.replies[call]
    assert isinstance(result, c.Refuse) and "n1 has not answered" in result.error.message


# --- properties -----------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["enqueue", "enqueue", "remove", "unrun", "reclassify"]),
        st.integers(0, 12),
        st.integers(0, 2),
        st.builds(Resources, st.integers(1, 4), st.integers(1, 2000), st.integers(0, 700)),
        st.sampled_from(WorkloadClass),
    ),
    max_size=50,
)


@given(st.sampled_from(BindingMode), steps)
def test_no_mode_over_commits_whatever_happens(
    mode: BindingMode, steps: list[tuple[str, int, int, Resources, WorkloadClass]]
) -> None:
    units = partition(NodeName("n1"), MACHINE, Partitioning(mode=mode))
    queues = list(queues_of(units).values())
    state = SharedState()
    for unit, queue in zip(units, queues, strict=True):
        state.add(NodeName("n1"), queue)
        assert queue.unit == unit
    homes: dict[ContainerId, int] = {}
    for what, number, index, resources, workload_class in steps:
        container_id = ContainerId(f"c{number}")
        queue = queues[homes.get(container_id, index % len(queues))]
        demand = demand_vector(resources)
        if what == "enqueue" and container_id not in queue and could_hold(demand, queue.unit):
            homes[container_id] = queues.index(queue)
            queue.enqueue(Entry(container_id, workload_class, demand, 10.0))
            queue.start_all(0.0)
        elif what == "remove" and queue.remove(container_id) is not None:
            del homes[container_id]
            queue.start_all(0.0)
        elif what == "unrun" and container_id in queue.running:
            queue.unrun(container_id)
        elif what == "reclassify" and queue.reclassify(container_id, workload_class):
            queue.start_all(0.0)
        state.refresh(state.rows[queue.unit.unit_id])
        _check(state)


def _check(state: SharedState) -> None:
    used = [0, 0, 0]
    for row in state.rows.values():
        queue = state.queue(row)
        assert unit_violations(queue) == []
        assert tuple(state.free[row]) == queue.free == queue.image().free
        assert min(queue.free) >= 0
        for entry in queue.running.values():
            used = [a + b for a, b in zip(used, entry.demand, strict=False)]
    assert used[0] <= len(MACHINE.cores)
    assert used[1] <= MACHINE.memory_mib
    assert used[2] <= sum(gpu.memory_mib for gpu in MACHINE.gpus)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 40)), max_size=10),
    st.integers(1, 4),
)
def test_the_estimate_counts_what_siblings_give_back(
    running: list[tuple[int, int, int]], vcores: int
) -> None:
    """Without waiters, the estimate for shared cores is the exact time at which it starts."""
    queues = list(queues_of(partition(NodeName("n1"), MACHINE, Partitioning())).values())
    for number, (index, cores, duration_s) in enumerate(running):
        demand = demand_vector(Resources(cores, 1, 1 if index else 0))
        entry = Entry(ContainerId(f"c{number}"), WorkloadClass.BATCH, demand, float(duration_s))
        if fits(demand, queues[index].free):
            queues[index].run(entry, 0.0)
    demand = demand_vector(Resources(vcores, 1))
    expected = simulate(demand, queues[0].image(), 0.0)
    new = Entry(ContainerId("new"), WorkloadClass.BATCH, demand, 1.0)
    queues[0].enqueue(new)
    queues[0].start_all(0.0)
    ends = sorted((x.duration_s, x.container_id, q) for q in queues for x in q.running.values()
                  if x.container_id != "new") if "new" not in queues[0].running else []  # fmt: skip
    started_s = 0.0
    for end_s, container_id, queue in ends:
        queue.remove(container_id)
        queue.start_all(end_s)
        started_s = end_s
        if "new" in queues[0].running:
            break
    assert "new" in queues[0].running
    assert started_s == expected


def test_the_vectorised_estimate_sees_pools_too() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    cluster.submit(2, ON_GPU)
    cluster.submit(2, CPU_ONLY)
    cluster.settle()
    state = cluster.master.master_state.state
    view = ClusterView(state)
    demand = demand_vector(Resources(2, 512))
    rows = [state.rows[unit_id] for unit_id in state.rows]
    waits = view.waits_s(demand, np.array(rows), cluster.now)
    assert waits.tolist() == [view.wait_s(demand, row, cluster.now) for row in rows]
    assert 0 < waits[0] < 60


def test_cores_that_units_share_count_once_for_gangs() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    for resources, most in ((CPU_ONLY, 4), (replace(ON_GPU, vcores=2), 2), (ON_GPU, 4)):
        app = cluster.submit(most + 1, resources, gang_min=most + 1)
        notices = [x for x in cluster.notices[app] if isinstance(x, c.RequestRefused)]
        assert f"holds {most} of them" in notices[0].message
        app = cluster.submit(most, resources, gang_min=most)
        cluster.settle()
        assert cluster.states(app) == {"running": most}
        cluster.finish(app)
        cluster.settle()


def test_why_a_gang_waits_counts_shared_cores_once() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    cluster.submit(1, replace(CPU_ONLY, vcores=2))
    cluster.settle()
    for resources, free_count in ((CPU_ONLY, 2), (replace(ON_GPU, vcores=2), 1)):
        app = cluster.submit(
            4 if free_count == 2 else 2, resources, gang_min=4 if free_count == 2 else 2
        )
        cluster.settle()
        reason = explain(cluster.master.master_state, cluster.app(app), cluster.now)[0]
        assert f"there is capacity for {free_count} of the" in reason


def test_why_it_waits_names_the_device_memory_that_lacks() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    cluster.submit(2, replace(ON_GPU, gpu_memory_mib=1_000))
    cluster.settle()
    app = cluster.submit(1, ON_GPU)
    cluster.settle()
    reason = explain(cluster.master.master_state, cluster.app(app), cluster.now)[0]
    assert "has 2 vcores, 3072 MiB, too little device memory" in reason
    assert "or sooner with less" not in reason, "no smaller executor would find a GPU"


def test_cores_that_units_share_count_once_in_a_view() -> None:
    cluster = cluster_of(BindingMode.SHARED)
    view = ClusterView(cluster.master.master_state.state)
    on_gpu = demand_vector(replace(ON_GPU, vcores=3))
    assert view.startable_count(on_gpu) == 1
    assert view.startable_count(demand_vector(ON_GPU)) == 4
    assert view.startable_count(demand_vector(CPU_ONLY)) == 4
    assert view.startable_count((0, 0, 500, 1)) == 4


def test_a_lease_locks_whole_pools_and_no_gpus_of_others() -> None:
    cluster = cluster_of(BindingMode.PARTIAL, bound_cores=1, reserve_cores=2)
    cluster.add_hardware("n2", MACHINE, Partitioning(mode=BindingMode.SHARED))
    cluster.settle()
    view = ClusterView(cluster.master.master_state.state)
    shared = {"n2/cpu", "n2/gpu0", "n2/gpu1"}
    assert view.candidates({demand_vector(CPU_ONLY): 1}) == {"n1/cpu", *shared}
    on_gpu = demand_vector(ON_GPU)
    assert view.candidates({on_gpu: 1}) == {"n1/gpu0", "n1/gpu1", *shared}
    view.keep_open(view.candidates({demand_vector(replace(CPU_ONLY, vcores=4)): 1}))
    view.open_to(on_gpu)
    assert {view.unit_id(row) for row in np.flatnonzero(view.open).tolist()} == shared
    view.open_to(demand_vector(CPU_ONLY))
    assert {view.unit_id(row) for row in np.flatnonzero(view.open).tolist()} == {"n2/cpu"}
