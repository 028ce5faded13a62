"""Another layout while containers run: what is idle moves at once, what runs keeps its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.invariants import master_violations, node_violations
from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.node.layout import settle
from hrm.core.vocabulary.model import (
    NOTHING,
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.errors import InvalidRequest
from hrm.testing.virtual import VirtualCluster

NAME = NodeName("n1")
CPU, GPU0, GPU1 = (ResourceUnitId(f"n1/{name}") for name in ("cpu", "gpu0", "gpu1"))
MACHINE = Hardware(
    cores=tuple(Core(number, numa=number // 8) for number in range(16)),
    memory_mib=16_000,
    gpus=(Gpu(index=0, memory_mib=1000, numa=0), Gpu(index=1, memory_mib=1000, numa=1)),
)
SHARED = Partitioning()
EVEN = Partitioning(mode=BindingMode.EVEN)
PARTIAL = Partitioning(mode=BindingMode.PARTIAL, bound_cores=4, reserve_cores=1)


def core_of(binding: Partitioning, hardware: Hardware = MACHINE) -> NodeCore:
    units = partition(NAME, hardware, binding)
    core = NodeCore(NAME, units, hardware=hardware, binding=binding)
    core.handle(e.MasterConnected(now=0.0, epoch=1))
    return core


def spec(
    name: str,
    unit_id: ResourceUnitId,
    resources: Resources,
    workload_class: WorkloadClass = WorkloadClass.BATCH,
) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId("app"),
        executor_id=name,
        resource_profile_id=0,
        workload_class=workload_class,
        resources=resources,
        unit_id=unit_id,
    )


def assign(
    core: NodeCore, name: str, unit_id: ResourceUnitId, resources: Resources
) -> list[c.NodeCommand]:
    order = e.AssignReceived(now=1.0, epoch=1, spec=spec(name, unit_id, resources))
    return core.handle(order)


def rebind(core: NodeCore, **changes: Any) -> list[c.NodeCommand]:
    return core.handle(e.RebindReceived(now=2.0, epoch=1, request_id=1, **changes))


def replies(commands: list[c.NodeCommand]) -> list[c.ReplyToRebinding]:
    return [x for x in commands if isinstance(x, c.ReplyToRebinding)]


def end(core: NodeCore, name: str) -> list[c.NodeCommand]:
    ended = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
    return core.handle(e.ProcessEnded(now=3.0, container_id=ContainerId(name), end=ended))


def vcores(core: NodeCore) -> dict[ResourceUnitId, int]:
    """What each unit may use now."""
    return {unit_id: queue.capacity[0] for unit_id, queue in core.units.items()}


def states_of(core: NodeCore) -> dict[str, ContainerState]:
    return {x.container_id: x.state for x in core.statuses()}


def pins(commands: list[c.NodeCommand]) -> dict[str, tuple[int, ...]]:
    return {x.container_id: x.cpus for x in commands if isinstance(x, c.PinProcess)}


def test_one_executor_of_one_core_holds_one_core_and_nothing_else() -> None:
    core = core_of(PARTIAL)
    assign(core, "x", CPU, Resources(1, 500))
    held_on = core.units[CPU].unit.cpus
    out = rebind(core, mode=BindingMode.EVEN)
    assert vcores(core) == {GPU0: 7, GPU1: 8, CPU: 1}
    (cpu,) = core.units[CPU].unit.cpus
    assert cpu in held_on, "it stays on a core of its own"
    assert pins(out) == {"x": (cpu,)}
    assert [x.binding for x in out if isinstance(x, c.RegisterAgain)] == [core.binding]
    for name, unit_id, resources in (
        ("a", GPU0, Resources(7, 7000, 1000)),
        ("b", GPU1, Resources(8, 7000, 1000)),
    ):
        started = [x for x in assign(core, name, unit_id, resources) if type(x) is c.StartProcess]
        assert started, "15 cores and both GPUs take work"
    assert node_violations(core) == []
    out = end(core, "x")
    assert vcores(core) == {GPU0: 8, GPU1: 8}, "and the last core follows"
    assert [x.binding for x in out if isinstance(x, c.RegisterAgain)] == [None]
    assert core.settled and node_violations(core) == []


@pytest.mark.parametrize("gpu_limit", [None, 0])
@pytest.mark.parametrize("mode", BindingMode)
def test_a_node_without_gpus_keeps_its_binding(mode: BindingMode, gpu_limit: int | None) -> None:
    """A change would have no effect, be there for good, and outlast the lack of GPUs."""
    hardware = replace(MACHINE, gpus=() if gpu_limit is None else MACHINE.gpus)
    first = Partitioning(mode=mode, gpu_limit=gpu_limit)
    core = core_of(first, hardware)
    events = [
        e.RebindReceived(now=2.0, epoch=1, request_id=1, mode=BindingMode.SHARED),
        e.RebindReceived(now=2.0, epoch=1, request_id=2, mode=BindingMode.EVEN),
        e.RebindReceived(now=2.0, epoch=1, request_id=3, reserve_cores=2),
        e.RebindReceived(now=2.0, epoch=1, request_id=4),
    ]
    out = [command for event in events for command in core.handle(event)]
    assert core.binding == first
    assert {x.binding for x in out if isinstance(x, c.RegisterAgain)} == {first}
    accepted = {x.request_id for x in replies(out) if x.accepted}
    assert accepted == ({1, 4} if mode is BindingMode.SHARED else {4})
    refused = [x.message for x in replies(out) if not x.accepted]
    assert len(refused) + len(accepted) == len(events)
    assert all("it offers no GPU" in x and f"keeps its binding ({first})" in x for x in refused)


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_a_cluster_uses_what_is_idle_of_a_node_that_works(schedulers: int) -> None:
    """One executor of one core on a machine of 16 cores and 2 GPUs holds no more than that."""
    cluster = VirtualCluster(schedulers=schedulers)
    cluster.add_hardware("n1", MACHINE, Partitioning(mode=BindingMode.PARTIAL, bound_cores=1))
    cluster.settle()
    first = cluster.submit(1, Resources(1, 500))
    cluster.settle()
    early = cluster.submit(3, Resources(1, 500, 100))
    cluster.settle()
    assert cluster.states(early) == {"running": 2, "waiting": 1}, "a GPU has one core"
    cluster.rebind("n1", mode=BindingMode.EVEN)
    cluster.settle()
    wide = cluster.submit(12, Resources(1, 500, 100))
    cluster.settle()
    assert (cluster.states(early), cluster.states(wide)) == ({"running": 3}, {"running": 12})
    assert cluster.states(first) == {"running": 1}
    assert not any(cluster.app(app).ended for app in (first, early, wide)), "nothing was ended"
    cluster.end_process(first, 1)
    cluster.settle()
    assert cluster.nodes["n1"].core.settled
    assert master_violations(cluster.master) == []


def test_what_a_restarted_master_learns_is_what_there_is() -> None:
    cluster = VirtualCluster()
    cluster.add_hardware("n1", MACHINE, PARTIAL)
    cluster.settle()
    app = cluster.submit(8, Resources(1, 500))
    cluster.settle()
    cluster.rebind("n1", mode=BindingMode.EVEN)
    cluster.settle()
    cluster.restart_master()
    cluster.attach(app)
    for node in cluster.nodes.values():
        node.register()
    cluster.settle()
    state = cluster.master.master_state.state
    assert {unit_id: state.queue(row).capacity[0] for unit_id, row in state.rows.items()} == {
        GPU0: 4, GPU1: 4, CPU: 8,
    }  # fmt: skip
    late = cluster.submit(1, Resources(8, 4000, 100))
    cluster.settle()
    assert cluster.states(late) == {"pending": 1}, "not refused: a GPU will have eight cores"
    for executor in range(1, 9):
        cluster.end_process(app, executor)
    cluster.advance(3.0)
    assert cluster.states(late) == {"running": 1}
    assert master_violations(cluster.master) == []


def test_what_waits_where_it_can_still_be_held_keeps_its_place() -> None:
    core = core_of(PARTIAL)
    assign(core, "a", CPU, Resources(8, 500))
    assign(core, "b", CPU, Resources(1, 500))
    assign(core, "c", CPU, Resources(7, 500))
    assign(core, "d", GPU0, Resources(4, 500, 100))
    assign(core, "e", GPU0, Resources(4, 500, 100))
    rebind(core, bound_cores=5)
    states = states_of(core)
    assert states["c"] is ContainerState.ENDED, "six cores will never hold seven"
    assert states["b"] is states["e"] is ContainerState.WAITING
    end(core, "a")
    states = states_of(core)
    assert states["b"] is ContainerState.RUNNING
    assert vcores(core) == {CPU: 6, GPU0: 5, GPU1: 5}


def test_an_agent_that_restarts_with_another_binding_ends_nothing() -> None:
    core = core_of(EVEN)
    adopted = e.ContainerAdopted(now=1.0, spec=spec("x", CPU, Resources(10, 500)), started_at_s=0.5)
    out = core.handle(adopted)
    (status,) = core.statuses()
    assert status.state is ContainerState.RUNNING
    assert vcores(core) == {GPU0: 3, GPU1: 3, CPU: 10}
    assert pins(out) == {"x": core.units[CPU].unit.cpus}
    assert node_violations(core) == []
    too_much = spec("y", GPU0, Resources(7, 500))
    core.handle(e.ContainerAdopted(now=1.0, spec=too_much, started_at_s=0.5))
    assert core.statuses()[1].end is not None, "the node never had 17 cores"


def test_units_that_share_and_units_that_do_not_follow_each_other() -> None:
    core = core_of(SHARED)
    assign(core, "x", CPU, Resources(10, 500))
    assign(core, "y", GPU1, Resources(2, 500, 100))
    out = rebind(core, mode=BindingMode.PARTIAL, bound_cores=4)
    assert vcores(core) == {CPU: 10, GPU0: 3, GPU1: 3}
    held = pins(out)
    assert len(held["x"]) == 10 and len(held["y"]) == 3, "what was not pinned is now"
    out = rebind(core, mode=BindingMode.SHARED)
    assert vcores(core) == {CPU: 16, GPU0: 16, GPU1: 16}
    assert pins(out) == {"x": (), "y": ()}
    assert core.settled and core.units[CPU].free[0] == 4


def test_a_node_cannot_lend_what_it_does_not_have() -> None:
    units = partition(NAME, MACHINE, EVEN)
    assert settle(units, units, {GPU0: (9, 0, 0, 1), GPU1: (8, 0, 0, 1)}) is None
    assert settle(units, units, {GPU0: (1, 9000, 0, 1), GPU1: (1, 8000, 0, 1)}) is None
    assert settle(units, units, {GPU0: (1, 1, 1001, 1)}) is None, "a GPU lends nothing"
    assert settle(units, units, {CPU: (1, 1, 1, 1)}) is None, "there is no such GPU"
    assert settle(units, units, {}) == units


@pytest.mark.parametrize("restarted", [False, True])
def test_an_order_on_units_of_before_is_no_failure(restarted: bool) -> None:
    """It never arrived; the master learns of the new units and gives it up."""
    cluster = VirtualCluster()
    cluster.add_hardware("n1", MACHINE, PARTIAL)
    cluster.settle()
    node = cluster.nodes["n1"]
    cluster.disconnect(node)
    app = cluster.submit(1, Resources(1, 500))
    cluster.settle()
    assert cluster.states(app) == {"assigned": 1}
    if restarted:
        node.core = core_of(EVEN)
    else:
        even = e.RebindReceived(
            now=cluster.now, epoch=cluster.epoch, request_id=9, mode=BindingMode.EVEN
        )
        cluster.submit_to_node(node, even)
    node.register()
    cluster.settle()
    (given_up,) = cluster.app(app).ended
    assert given_up.end is not None and given_up.end.cause is EndCause.PREEMPTED
    assert given_up.end.message == "n1 was partitioned again before it arrived there"


def test_only_what_an_earlier_binding_could_hold_was_granted_in_good_faith() -> None:
    core = core_of(PARTIAL)
    rebind(core, mode=BindingMode.EVEN)
    for name, vcores_wanted, cause in (
        ("late", 8, EndCause.PREEMPTED),
        ("never", 9, EndCause.LAUNCH_FAILED),
    ):
        assign(core, name, CPU, Resources(vcores_wanted, 500))
        ended = core.containers[ContainerId(name)].end
        assert ended is not None and ended.cause is cause


# --- properties -----------------------------------------------------------------------------------

hardwares = st.builds(
    lambda cores, gpus, memory_mib, run_limit, pins: Hardware(
        cores=tuple(Core(number, number % 2) for number in range(cores)),
        memory_mib=memory_mib,
        gpus=tuple(Gpu(index=x, memory_mib=1000, numa=x % 2) for x in range(gpus)),
        run_limit=run_limit,
        pins=pins,
    ),
    st.integers(3, 12),
    st.integers(1, 3),
    st.integers(3000, 9000),
    st.sampled_from([0, 0, 2]),
    st.booleans(),
)
bindings = st.builds(
    Partitioning,
    mode=st.sampled_from(BindingMode),
    bound_cores=st.integers(1, 4),
    reserve_cores=st.integers(0, 2),
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("assign"),
            st.integers(0, 5),
            st.builds(
                Resources, st.integers(1, 5), st.integers(1, 3000), st.sampled_from([0, 0, 300])
            ),
            st.sampled_from(WorkloadClass),
        ),
        st.tuples(st.just("rebind"), bindings),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("restart"), bindings),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(hardwares, bindings, steps)
def test_whatever_runs_nothing_is_preempted_over_committed_or_held_back(
    hardware: Hardware, binding: Partitioning, steps: list[Any]
) -> None:
    try:
        core = core_of(binding, hardware)
    except InvalidRequest:
        return
    held_on: dict[str, tuple[int, ...]] = {}
    for number, (what, *of) in enumerate(steps):
        running = _running(core)
        out: list[c.NodeCommand] = []
        if what == "assign":
            unit_id = list(core.units)[of[0] % len(core.units)]
            order = spec(f"c{number}", unit_id, of[1], of[2])
            out = core.handle(e.AssignReceived(now=number, epoch=1, spec=order))
        elif what == "rebind":
            changes = {x: getattr(of[0], x) for x in ("mode", "bound_cores", "reserve_cores")}
            out = rebind(core, **changes)
            _runs_on(core, running, out)
        elif what == "end" and running:
            name = running[of[0] % len(running)]
            out = end(core, name)
            held_on.pop(name)
        elif what == "restart":
            core, out = _restarted(core, of[0], hardware)
            assert set(running) == set(_running(core)), "what runs is adopted"
        for command in out:
            if isinstance(command, c.StartProcess):
                unit = core.units[command.spec.unit_id].unit
                held_on[command.spec.container_id] = unit.cpus
            elif isinstance(command, c.PinProcess):
                held_on[command.container_id] = command.cpus
        _check(core, hardware, held_on)


def _restarted(
    core: NodeCore, binding: Partitioning, hardware: Hardware
) -> tuple[NodeCore, list[c.NodeCommand]]:
    """The agent dies, and the next one has another binding, if that is possible."""
    try:
        after = core_of(binding, hardware)
    except InvalidRequest:
        after = core_of(core.binding, hardware)
    out: list[c.NodeCommand] = []
    for container_id in _running(core):
        adopted = core.containers[ContainerId(container_id)].spec
        out += after.handle(e.ContainerAdopted(now=0.0, spec=adopted, started_at_s=0.0))
    return after, out


def _running(core: NodeCore) -> list[str]:
    holding = (ContainerState.RUNNING, ContainerState.STOPPING)
    return [x.container_id for x in core.statuses() if x.state in holding]


def _runs_on(core: NodeCore, before: list[str], out: list[c.NodeCommand]) -> None:
    assert set(before) <= set(_running(core))
    stops = [x.reason for x in out if isinstance(x, c.StopProcess)]
    assert all("preempted for the stream" in reason for reason in stops)


def _check(core: NodeCore, hardware: Hardware, held_on: dict[str, tuple[int, ...]]) -> None:
    """The invariants of the core; and, from outside, where the processes are and what is idle."""
    assert node_violations(core) == []
    final = {x.unit_id: x for x in partition(NAME, hardware, core.binding)}
    excess = [0, 0]
    for unit_id, queue in core.units.items():
        target = final[unit_id].capacity if unit_id in final else NOTHING
        for place, wanted in enumerate((target.vcores, target.memory_mib)):
            if queue.capacity[place] > wanted:
                assert queue.free[place] == 0, "nothing idle is held back"
                excess[place] += queue.capacity[place] - wanted
    for place, name in enumerate(("vcores", "memory_mib")):
        lacks = sum(
            getattr(unit.capacity, name) - core.units[unit_id].capacity[place]
            for unit_id, unit in final.items()
            if not unit.pool and core.units[unit_id].capacity[place] < getattr(unit.capacity, name)
        )
        assert lacks == excess[place], "no unit lacks more than others' containers hold"
    if not hardware.pins:
        assert not any(held_on.values())
        return
    assert set(held_on) == set(_running(core))
    owner: dict[int, ResourceUnitId] = {}
    for container_id, cpus in held_on.items():
        unit_id = core.containers[ContainerId(container_id)].spec.unit_id
        assert cpus == core.units[unit_id].unit.cpus
        for cpu in cpus:
            assert owner.setdefault(cpu, unit_id) == unit_id, "a core of two units"


def test_slots_that_a_smaller_unit_does_not_have_are_kept_until_containers_end() -> None:
    core = core_of(PARTIAL)
    for number in range(8):
        assign(core, f"x{number}", CPU, Resources(1, 100))
    rebind(core, bound_cores=7)
    assert core.units[CPU].unit.run_limit == 8
    for number in range(7):
        end(core, f"x{number}")
    assert core.units[CPU].unit == partition(NAME, MACHINE, core.binding)[0]


def test_what_waits_for_cores_that_are_lent_is_told_so() -> None:
    cluster = VirtualCluster()
    cluster.add_hardware("n1", MACHINE, Partitioning(mode=BindingMode.PARTIAL, bound_cores=2))
    cluster.settle()
    batch = cluster.submit(12, Resources(1, 512))
    cluster.settle()
    cluster.rebind("n1", bound_cores=6)
    cluster.advance(5)
    stream = cluster.submit(2, Resources(4, 512, 1000), WorkloadClass.STREAM, stream_min=1)
    cluster.advance(30)
    assert cluster.states(stream)["pending"]
    summary, _ = explain(cluster.master.master_state, cluster.app(stream), cluster.now)
    assert "has lent 4 vcores" in summary and "to other units of n1" in summary, summary
    for number in range(1, 13):
        cluster.end_process(batch, number)
    cluster.advance(5)
    assert cluster.states(stream) == {"running": 2}
