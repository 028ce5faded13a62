"""The border between GPU and CPU jobs moves with the load, and only where that is worth it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.invariants import node_violations
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node.auto_partitioning import (
    AutoBinding,
    AutoBindingRules,
    ChangePartitioning,
    UtilizationSample,
    sample_utilization,
)
from hrm.core.node.core import NodeCore
from hrm.core.queue.pools import queues_of
from hrm.core.vocabulary.feasibility import demand_vector
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
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster, VirtualNode

NAME = NodeName("n1")
GPU0, GPU1 = ResourceUnitId("n1/gpu0"), ResourceUnitId("n1/gpu1")
MACHINE = Hardware(
    cores=tuple(Core(number) for number in range(8)),
    memory_mib=8000,
    gpus=(Gpu(index=0, memory_mib=1000), Gpu(index=1, memory_mib=1000)),
)
ON_GPU, CPU_ONLY = Resources(1, 100, 100), Resources(1, 100)
RULES = AutoBindingRules(window=3, pause_s=100.0)
PARTIAL = Partitioning(mode=BindingMode.PARTIAL, bound_cores=2, reserve_cores=2)


def sample(gpu0: float = 0.0, gpu1: float = 0.0, **more: Any) -> UtilizationSample:
    """Cores used at each GPU; there is one container of one core where anything is used."""
    some = gpu0 + gpu1 > 0
    more = {"gpu_largest": (1, 100) if some else (0, 0), **more}
    return UtilizationSample(cores=8, used={GPU0: gpu0, GPU1: gpu1}, **more)


def units_under(binding: Partitioning) -> tuple[ResourceUnit, ...]:
    return partition(NAME, MACHINE, binding)


class Script:
    """Measurements per second, and a node that immediately executes decisions."""

    def __init__(self, binding: Partitioning = PARTIAL, rules: AutoBindingRules = RULES) -> None:
        self.auto, self.binding, self.now = AutoBinding(rules, units_under), binding, 0.0
        self.whys: list[str] = []

    def feed(self, samples: Iterable[UtilizationSample], *, may_begin: bool = True) -> list[int]:
        """The bound cores after each measurement."""
        after = []
        for each in samples:
            self.now += 1
            decision = self.auto.measured(self.now, self.binding, each, may_begin=may_begin)
            if isinstance(decision, ChangePartitioning):
                self.binding = decision.binding
                self.whys.append(decision.why)
            after.append(self.binding.bound_cores)
        return after


def test_a_gpu_short_of_cores_gets_one_more_and_gives_it_back_when_others_wait() -> None:
    script = Script()
    assert script.feed([sample(1.9)] * 3) == [2, 2, 3]
    assert script.whys == ["containers at n1/gpu0 used 1.9 of its 2 cores"]
    script.feed([sample(1.9)])
    script.now += 100
    assert script.feed([sample(0.3, 0.1, cpu_short=True)] * 4) == [3, 3, 2, 2]
    assert script.whys[1] == (
        "containers at n1/gpu0 used 0.3 of its 3 cores, while others waited for cores"
    )


def test_bound_cores_without_containers_are_given_back_down_to_the_least() -> None:
    script = Script(replace(PARTIAL, bound_cores=3), replace(RULES, cores_min=2, idle_percent=0.0))
    script.feed([sample(cpu_short=True)] * 500)
    assert script.binding.bound_cores == 2
    assert script.whys == ["no container was at a GPU, while others waited for cores"]


STILL = {
    "a window that is not full": [sample(2.0)] * 2,
    "one peak": [sample(), sample(), sample(2.0)],
    "busy, but not enough": [sample(1.8)] * 50,
    "idle, but nobody waits": [sample(0.1)] * 50,
    "nobody there, and nobody waits": [sample()] * 50,
    "idle, and somebody waits now and then": [sample(0.1, cpu_short=i % 3 > 0) for i in range(50)],
    "one GPU idle, the other not": [sample(0.1, 0.5, cpu_short=True)] * 50,
    "a GPU job that needs all its cores": [sample(0.1, cpu_short=True, gpu_largest=(2, 9))] * 50,
    "a GPU job that needs all its memory": [sample(0.1, cpu_short=True, gpu_largest=(1, 1500))]
    * 50,
    "a stream that waits for the cores": [sample(2.0, cpu_stream=True)] * 50,
    "a stream that waits at a GPU": [sample(0.1, cpu_short=True, gpu_stream=True)] * 50,
    "somebody who waits at a GPU now and then": [
        sample(0.1, needed=3 * (i % 2)) for i in range(50)
    ],
    "more cores needed than the reserve leaves": [sample(0.1, needed=4)] * 50,
    "a CPU job that needs the cores": [sample(2.0, cpu_largest=(4, 9))] * 50,
    "a CPU job that needs the memory": [sample(2.0, cpu_largest=(1, 2500))] * 50,
}


@pytest.mark.parametrize("case", STILL)
def test_the_border_stays_where_it_is(case: str) -> None:
    script = Script()
    assert set(script.feed(STILL[case])) == {2}


def test_it_never_goes_below_the_reserve_nor_below_one_core_without_a_gpu() -> None:
    rules = replace(RULES, pause_s=1.0)
    for reserve_cores, most in ((6, 1), (5, 1), (4, 2), (2, 3), (0, 3)):
        binding = replace(PARTIAL, bound_cores=1, reserve_cores=reserve_cores)
        for each in (sample(8.0, 8.0), sample(0.1, needed=most + 1)):
            script = Script(binding, rules)
            script.feed([each] * 50)
            reached = most if each.used[GPU0] > 1 else 1
            assert script.binding.bound_cores == reached, reserve_cores


def test_one_that_waits_for_cores_alone_gets_as_many_as_needed_and_they_stay() -> None:
    """Otherwise the same two jobs would move the border back and forth without end."""
    rules = replace(RULES, pause_s=10.0)
    script = Script(replace(PARTIAL, bound_cores=1), rules)
    assert script.feed([sample(0.1, needed=3, needed_at="n1/gpu0")] * 3) == [1, 1, 3]
    assert script.whys == ["a container at n1/gpu0 waits for nothing but cores"]
    script.feed([sample(0.1, cpu_short=True)] * 50)
    assert script.binding.bound_cores == 3
    script.feed([sample(cpu_short=True)] * 5)
    assert script.binding.bound_cores == 2, "the GPUs were empty: other jobs, other needs"


def test_between_two_changes_lies_a_pause_and_an_operator_starts_one_too() -> None:
    script = Script(replace(PARTIAL, bound_cores=1))
    script.feed([sample(3.0)] * 3)
    assert script.feed([sample(3.0)] * 100)[-1] == 2
    assert script.feed([sample(3.0)] * 2) == [3, 3]
    script.now += 200
    script.binding = replace(PARTIAL, bound_cores=1)
    assert script.feed([sample(3.0)] * 100) == [1] * 100


def test_nothing_begins_while_the_master_is_away() -> None:
    script = Script()
    assert script.feed([sample(2.0)] * 10, may_begin=False) == [2] * 10
    assert script.feed([sample(2.0)]) == [3]


@given(
    st.lists(st.floats(0, 8), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_a_steady_load_moves_the_border_one_way_at_most(
    used: list[float], cpu_short: bool, bound_cores: int, reserve_cores: int
) -> None:
    """``used`` repeats with every window; containers use no more than the cores they have."""
    rules = replace(RULES, window=len(used), pause_s=1.0)
    binding = Partitioning(
        mode=BindingMode.PARTIAL, bound_cores=bound_cores, reserve_cores=reserve_cores
    )
    script = Script(binding, rules)
    seen = [bound_cores]
    for _ in range(60):
        seen += script.feed(
            sample(min(x, script.binding.bound_cores), 0.01, cpu_short=cpu_short) for x in used
        )
    assert seen in (sorted(seen), sorted(seen, reverse=True))


# --- what a node sees -----------------------------------------------------------------------------


def test_a_sample_shows_what_waits_for_cores_alone() -> None:
    binding = replace(PARTIAL, bound_cores=1)
    queues = queues_of(partition(NAME, MACHINE, binding))

    def put(name: str, unit_id: ResourceUnitId, resources: Resources) -> None:
        demand = demand_vector(resources)
        queue = queues[unit_id]
        queue.enqueue(Entry(ContainerId(name), WorkloadClass.BATCH, demand, 60.0))
        queue.start_all(0.0)

    def seen() -> UtilizationSample:
        percents = {ContainerId("a"): 60.0, ContainerId("b"): 70.0}
        return sample_utilization(NAME, MACHINE, binding, queues.values(), percents)

    put("a", GPU0, ON_GPU)
    assert seen() == sample(0.6)
    put("b", GPU1, replace(ON_GPU, gpu_memory_mib=1000))
    put("c", GPU1, ON_GPU)
    assert seen().needed == 0, "it lacks device memory as well"
    put("d", GPU0, replace(ON_GPU, memory_mib=1000))
    assert (seen().needed, seen().needed_at) == (2, GPU0), "memory comes with the cores"
    put("e", ResourceUnitId("n1/cpu"), replace(CPU_ONLY, vcores=5))
    assert not seen().cpu_short
    put("f", ResourceUnitId("n1/cpu"), replace(CPU_ONLY, vcores=2))
    assert seen().cpu_short
    assert (seen().cpu_largest, seen().gpu_largest) == ((5, 100), (1, 1000))
    assert not seen().gpu_stream and not seen().cpu_stream
    stream = Entry(ContainerId("s"), WorkloadClass.STREAM, demand_vector(CPU_ONLY), 60.0)
    queues[ResourceUnitId("n1/cpu")].enqueue(stream)
    assert seen().cpu_stream and not seen().gpu_stream


# --- a node in a cluster --------------------------------------------------------------------------


class Cluster(VirtualCluster):
    """One node that binds by itself; ``percents`` is what each container uses, by executor."""

    def __init__(self, rules: AutoBindingRules = RULES, **binding: int) -> None:
        super().__init__()
        self.whys: list[str] = []
        settings = replace(PARTIAL, **binding)  # type: ignore[arg-type]
        core = NodeCore(
            NAME, partition(NAME, MACHINE, settings), hardware=MACHINE, binding=settings,
            auto_binding=rules,
        )  # fmt: skip
        self.node = self.add_core(core)
        self.node.register_again = self.registered_again  # type: ignore[method-assign]
        self.settle()

    def measure(self, percent: float, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.advance(1.0)
            used = tuple((x, percent) for x in self.node.processes)
            self.submit_to_node(self.node, e.UsageMeasured(now=self.now, cpu_percent=used))

    def registered_again(self, command: c.RegisterAgain) -> None:
        self.whys.append(command.why)
        VirtualNode.register_again(self.node, command)

    @property
    def bound_cores(self) -> int:
        """What the master believes; it must be what the node reports."""
        self.advance(1.0)
        units_at_master = self.master.master_state.nodes[NAME].units
        assert units_at_master == tuple(queue.unit for queue in self.node.core.units.values())
        (cores,) = {unit.capacity.vcores for unit in units_at_master if unit.gpu is not None}
        assert cores == self.node.core.binding.bound_cores
        return cores


def test_a_node_that_works_is_bound_otherwise_and_serves_on() -> None:
    cluster = Cluster()
    app = cluster.submit(3, ON_GPU)
    cluster.settle()
    cluster.measure(100.0, 3)
    assert cluster.whys == [
        "rebound (partial, 3 cores a GPU, at least 2 kept): "
        "containers at n1/gpu0 used 2.0 of its 2 cores"
    ]
    assert cluster.bound_cores == 3
    late = cluster.submit(1, CPU_ONLY)
    more = cluster.submit(2, ON_GPU)
    cluster.settle()
    assert cluster.states(late) == {"running": 1}
    assert cluster.states(more) == {"running": 2}, "in the core that each GPU has got"
    assert cluster.states(app) == {"running": 3}


def test_cores_in_use_follow_when_their_containers_end() -> None:
    cluster = Cluster()
    here = cluster.submit(4, CPU_ONLY)
    app = cluster.submit(3, ON_GPU)
    cluster.settle()
    cluster.measure(100.0, 3)
    assert cluster.bound_cores == 3
    more = cluster.submit(2, ON_GPU)
    cluster.settle()
    assert cluster.states(more) == {"running": 1, "waiting": 1}, "two cores are lent"
    cluster.measure(100.0, 300)
    assert cluster.bound_cores == 3, "what is lent comes back, and is nothing to move for"
    cluster.end_process(here, 1)
    cluster.end_process(here, 2)
    cluster.settle()
    assert cluster.states(more) == {"running": 2}
    assert cluster.states(here) == {"running": 2}
    assert cluster.states(app) == {"running": 3}
    assert cluster.node.core.settled


def test_a_stream_that_runs_keeps_its_cores() -> None:
    cluster = Cluster()
    stream = cluster.submit(2, replace(CPU_ONLY, vcores=2), WorkloadClass.STREAM)
    app = cluster.submit(3, ON_GPU)
    cluster.settle()
    cluster.measure(100.0, 3)
    assert cluster.bound_cores == 3
    assert cluster.states(stream) == {"running": 2}
    assert cluster.states(app) == {"running": 3}
    assert not cluster.node.core.settled, "its four cores are not given up"


def test_an_operator_overrules_the_node() -> None:
    cluster = Cluster()
    cluster.submit(1, replace(ON_GPU, vcores=2))
    cluster.settle()
    cluster.measure(200.0, 3)
    assert cluster.node.core.binding == replace(PARTIAL, bound_cores=3)
    call = cluster.rebind("n1", bound_cores=1, reserve_cores=3)
    cluster.settle()
    assert isinstance(cluster.replies[call], c.Reply)
    cluster.measure(200.0, 50)
    assert cluster.node.core.binding == replace(PARTIAL, bound_cores=1, reserve_cores=3)


def test_only_a_partial_binding_moves_and_only_where_there_are_gpus() -> None:
    for change in ({"mode": BindingMode.EVEN}, {"gpu_limit": 0}):
        cluster = Cluster(**change)
        cluster.submit(3, CPU_ONLY)
        cluster.settle()
        cluster.measure(100.0, 50)
        assert cluster.whys == []


# --- properties -----------------------------------------------------------------------------------

SMALL = (CPU_ONLY, WorkloadClass.BATCH)

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("assign"),
            st.sampled_from(["cpu", "gpu0", "gpu1"]),
            st.builds(Resources, st.integers(1, 3), st.integers(1, 1500)),
            st.sampled_from([WorkloadClass.BATCH] * 4 + [WorkloadClass.STREAM]),
        ),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("measure"), st.sampled_from([0.0, 30.0, 300.0]), st.integers(3, 8)),
        st.tuples(st.just("rebind"), st.integers(1, 3), st.integers(0, 6)),
        st.tuples(st.just("class"), st.integers(0, 20)),
        st.tuples(st.just("rush")),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_whatever_happens_nothing_is_lost_and_the_reserve_stays(steps: list[Any]) -> None:
    """Conservation, reserve, nothing ended, and no container without its granted capacity, at
    every step."""
    rules = AutoBindingRules(window=2, pause_s=2.0)
    core = NodeCore(
        NAME,
        partition(NAME, MACHINE, PARTIAL),
        hardware=MACHINE,
        binding=PARTIAL,
        auto_binding=rules,
    )
    core.handle(e.MasterConnected(now=0.0, epoch=1))
    now = 0.0
    for number, (what, *of) in enumerate(steps):
        now += 1
        live = [x for x in core.statuses() if x.state is not ContainerState.ENDED]
        running = _running(core)
        if what == "assign":
            spec = _spec(number, *of)
            core.handle(e.AssignReceived(now=now, epoch=1, spec=spec))
        elif what == "end" and running:
            _end(core, running[of[0] % len(running)], now)
        elif what == "measure":
            for _ in range(of[1]):
                now += 1
                _measure(core, now, of[0])
        elif what == "rebind":
            chosen = {"mode": BindingMode.PARTIAL, "bound_cores": of[0], "reserve_cores": of[1]}
            core.handle(e.RebindReceived(now=now, epoch=1, request_id=number, **chosen))
        elif what == "rush":
            while running := _running(core):
                _end(core, running[0], now)
            core.handle(e.AssignReceived(now=now, epoch=1, spec=_spec(number, "gpu0", *SMALL)))
            for _ in range(4):
                now += 1
                _measure(core, now, 300.0)
        elif what == "class" and live:
            container_id = live[of[0] % len(live)].container_id
            core.handle(
                e.ContainerClassSet(
                    now=now, epoch=1, container_id=container_id,
                    workload_class=WorkloadClass.STREAM,
                )
            )  # fmt: skip
        _check(core)


def _spec(
    number: int, unit: str, resources: Resources, workload_class: WorkloadClass
) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(f"c{number}"),
        application_id=ApplicationId("app"),
        executor_id=str(number),
        resource_profile_id=0,
        workload_class=workload_class,
        resources=replace(resources, gpu_memory_mib=100 if unit.startswith("gpu") else 0),
        unit_id=ResourceUnitId(f"n1/{unit}"),
    )


def _running(core: NodeCore) -> list[ContainerId]:
    return [x.container_id for x in core.statuses() if x.state is ContainerState.RUNNING]


def _end(core: NodeCore, container_id: ContainerId, now: float) -> None:
    end = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
    core.handle(e.ProcessEnded(now=now, container_id=container_id, end=end))


def _measure(core: NodeCore, now: float, percent: float) -> None:
    running = _running(core)
    waits = [x for x in core.units.values() if x.stream_waiting]
    before = core.binding
    used = tuple((container_id, percent) for container_id in running)
    out = core.handle(e.UsageMeasured(now=now, cpu_percent=used))
    assert set(running) <= set(_running(core)), "what runs, runs on"
    victims = [x.reason for x in out if isinstance(x, c.StopProcess)]
    assert all("preempted for the stream" in reason for reason in victims)
    more = core.binding.bound_cores - before.bound_cores
    lose = [x.unit.unit_id for x in waits if (more < 0 if x.unit.gpu else more > 0)]
    assert not lose, "a stream waits where cores are taken"


def _check(core: NodeCore) -> None:
    assert node_violations(core) == []
    units = [queue.unit for queue in core.units.values()]
    assert sum((unit.own_capacity for unit in units), NOTHING) == Resources(8, 8000, 2000)
    pinned = [cpu for unit in units for cpu in unit.cpus]
    assert sorted(pinned) == list(range(8)), "each core belongs to one unit"
    kept = sum(unit.target.vcores for unit in units if unit.gpu is None)
    assert kept >= core.binding.reserve_cores
    assert all(unit.target.vcores >= 1 for unit in units)
    for status in core.statuses():
        if status.state in (ContainerState.WAITING, ContainerState.RUNNING):
            assert status.container_id in core.units[status.unit_id]


def test_such_traffic_does_move_the_border() -> None:
    """The property above would also hold for a node that never changes anything."""
    core = NodeCore(
        NAME,
        partition(NAME, MACHINE, PARTIAL),
        hardware=MACHINE,
        binding=PARTIAL,
        auto_binding=AutoBindingRules(window=2, pause_s=2.0),
    )
    core.handle(e.MasterConnected(now=0.0, epoch=1))
    core.handle(e.AssignReceived(now=1.0, epoch=1, spec=_spec(1, "gpu0", *SMALL)))
    for now in (2.0, 3.0):
        _measure(core, now, 300.0)
    _check(core)
    assert core.binding.bound_cores == 3
