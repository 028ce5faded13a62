"""Drivers on nodes: how much they may hold, in which order they start, what they leave."""

from __future__ import annotations

import pytest

from hrm.core.master.driver_queue import holds_up
from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    FirstExecutors,
    Gpu,
    NodeName,
    Resources,
    WorkloadClass,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.policies.fifo import Fifo
from hrm.policies.worst_fit import WorstFit
from hrm.testing.virtual import VirtualCluster, unit
from tests.core import labelled_nodes as suited

EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])
CORE = Resources(1, 1024)


def cores(many: int) -> Resources:
    return Resources(many, 1024 * many)


def cluster_of(nodes: int, vcores: int, schedulers: int = 2, **settings: object) -> VirtualCluster:
    units = [unit(f"n{x}", vcores, 1024 * vcores) for x in range(nodes)]
    return VirtualCluster(units, schedulers=schedulers, **settings)  # type: ignore[arg-type]


class Submitters:
    """Submissions of a cluster, each with the application that its driver registers once it runs,
    which ends when its executors have run for a second."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.drivers: list[ApplicationId] = []
        self.apps: dict[ApplicationId, ApplicationId] = {}
        self.executors: dict[ApplicationId, tuple[int, Resources, int]] = {}
        self.ended: list[ApplicationId] = []

    def submit(
        self,
        driver: Resources = CORE,
        executor: Resources = CORE,
        executors: int = 1,
        gang: int = 0,
        stream: bool = False,
        requires: NodeRequirement | None = None,
    ) -> ApplicationId:
        name = ApplicationId(f"driver-20260101000000-{len(self.drivers) + 1:04d}")
        self.drivers.append(name)
        self.executors[name] = executors, executor, gang
        first = FirstExecutors(count=gang or 1, resources=executor, stated=gang > 0)
        kind = WorkloadClass.STREAM if stream else WorkloadClass.BATCH
        self.cluster.submit(1, driver, kind, new_id=name, first_executors=first, requires=requires)
        return name

    def second(self) -> None:
        """Drivers that run request executors; those whose executors all run end."""
        for name in self.running():
            executors, resources, gang = self.executors[name]
            if name not in self.apps:
                self.apps[name] = self.cluster.submit(
                    executors, resources, gang_min=gang, driver=name
                )
                continue
            app = self.cluster.app(self.apps[name])
            if self.cluster.states(self.apps[name]) == {"running": executors}:
                self.end(name)
            elif len(app.containers) < executors:  # one was sent back, to be placed elsewhere
                first = app.last_executor_number + 1
                missing = executors - len(app.containers)
                self.cluster.request(self.apps[name], range(first, first + missing), resources)
        self.cluster.advance(1)

    def end(self, name: ApplicationId) -> None:
        if name in self.apps:
            self.cluster.finish(self.apps[name])
        self.cluster.end_process(name, 1)
        self.cluster.finish(name)
        self.ended.append(name)

    def running(self) -> list[ApplicationId]:
        states = {x: self.cluster.states(x) for x in self.drivers if x not in self.ended}
        return [x for x, state in states.items() if state == {"running": 1}]

    def why(self, name: ApplicationId) -> str:
        state, app = self.cluster.master.master_state, self.cluster.app(name)
        summary, details = explain(state, app, self.cluster.now)
        return "\n".join([summary, *details])


def test_a_driver_is_not_said_to_have_declared_a_class() -> None:
    submitters = Submitters(cluster_of(1, 4))
    driver = submitters.submit()
    submitters.second()
    assert "it is of class batch: that of its submission" in submitters.why(driver)
    assert "it waits for nothing: 1 container runs" in submitters.why(driver)


@EACH
def test_many_submissions_to_small_nodes_all_come_to_their_end(schedulers: int) -> None:
    submitters = Submitters(cluster_of(5, 2, schedulers))
    for _ in range(30):
        submitters.submit(executor=cores(2), executors=2)
    seen: list[int] = []
    for _ in range(120):
        submitters.second()
        seen.append(len(submitters.running()))
    assert len(submitters.ended) == 30
    assert max(seen) == 2, "20 % of ten cores"


@EACH
def test_without_a_share_drivers_still_leave_capacity_for_executors(schedulers: int) -> None:
    """The policy spreads what it places: drivers on every node would leave none of them whole."""
    cluster = cluster_of(
        4, 4, schedulers, policy=lambda _: WorstFit(), bounds=Bounds(driver_share=1.0)
    )
    submitters = Submitters(cluster)
    for _ in range(16):
        submitters.submit(executor=cores(4))
    most = 0
    for _ in range(120):
        submitters.second()
        most = max(most, len(submitters.running()))
    assert len(submitters.ended) == 16
    assert most > 4, "several drivers share a node where executors need whole ones"


@EACH
def test_drivers_start_in_order_and_hold_their_share_together(schedulers: int) -> None:
    submitters = Submitters(cluster_of(2, 10, schedulers))
    names = [submitters.submit() for _ in range(8)]
    submitters.cluster.advance(5)
    assert submitters.running() == names[:4]
    assert "drivers hold 4 of the 20 vcores" in submitters.why(names[4])
    assert "20 % (driver_share)" in submitters.why(names[4])
    assert "raise driver_share in hrm.toml [master]" in submitters.why(names[4])
    assert f"{names[4]} came before it" in submitters.why(names[5])
    submitters.end(names[1])
    submitters.cluster.advance(5)
    assert submitters.running() == [names[0], *names[2:5]]
    submitters.cluster.add_node(unit("n9", 10, 10240))
    submitters.cluster.advance(5)
    assert submitters.running() == [names[0], *names[2:7]]


@EACH
def test_one_driver_may_start_whatever_the_share(schedulers: int) -> None:
    submitters = Submitters(cluster_of(1, 4, schedulers))
    large, small = submitters.submit(cores(3)), submitters.submit()
    submitters.cluster.advance(5)
    assert submitters.running() == [large]
    submitters.end(large)
    submitters.cluster.advance(5)
    assert submitters.running() == [small]


@EACH
def test_a_large_driver_is_not_passed_for_ever_by_small_ones(schedulers: int) -> None:
    submitters = Submitters(cluster_of(1, 20, schedulers))
    first = [submitters.submit() for _ in range(4)]
    large = submitters.submit(cores(3))
    later = [submitters.submit() for _ in range(6)]
    submitters.cluster.advance(5)
    for name in first[:3]:
        assert submitters.running()[-1] == first[-1]
        submitters.end(name)
        submitters.cluster.advance(5)
    assert submitters.running() == [first[-1], large]
    submitters.end(large)
    submitters.cluster.advance(5)
    assert submitters.running() == [first[-1], *later[:3]]


@EACH
def test_small_drivers_pass_a_large_one_that_waits_for_a_server(schedulers: int) -> None:
    """Nothing says that the server never ends, so it holds them up, and not for ever."""
    submitters = Submitters(cluster_of(1, 20, schedulers))
    server = submitters.submit(cores(2))
    large = submitters.submit(cores(3))
    small = [submitters.submit() for _ in range(5)]
    submitters.cluster.advance(50)
    assert submitters.running() == [server]
    submitters.cluster.advance(20)
    assert submitters.running() == [server, *small[:2]]
    assert "driver_share" in submitters.why(large)
    for name in small[:2]:
        submitters.end(name)
    submitters.cluster.advance(20)
    assert submitters.running() == [server, *small[2:4]]
    submitters.cluster.advance(50)
    for name in (server, *small[2:4]):  # within the turn of the large one
        submitters.end(name)
        submitters.cluster.advance(5)
    assert submitters.running() == [large, small[4]]


def test_turns_of_the_first_driver_grow_and_passes_do_not() -> None:
    held = [holds_up(float(at_s)) for at_s in range(1_200)]
    changes = [at_s for at_s in range(1, 1_200) if held[at_s] is not held[at_s - 1]]
    assert held[0]
    assert changes == [60, 120, 240, 300, 540, 600, 1_080, 1_140]
    later = [holds_up(100_000.0 + at_s) for at_s in range(3_660)]
    assert later.count(False) == 60


@EACH
def test_a_driver_that_waits_for_a_streamholds_up_no_other(schedulers: int) -> None:
    submitters = Submitters(cluster_of(1, 20, schedulers))
    stream = submitters.submit(cores(2), stream=True)
    large, small = submitters.submit(cores(3)), submitters.submit()
    submitters.cluster.advance(5)
    assert submitters.running() == [stream, small]
    assert "driver_share" in submitters.why(large)


@EACH
def test_two_gangs_do_not_prevent_each_other(schedulers: int) -> None:
    """Each driver fits with its three executors, both fit without: only one may start."""
    cluster = cluster_of(1, 4, schedulers, bounds=Bounds(driver_share=0.5))
    submitters = Submitters(cluster)
    first = submitters.submit(executors=3, gang=3)
    second = submitters.submit(executors=3, gang=3)
    cluster.advance(5)
    assert submitters.running() == [first]
    assert "its first 3 executors (1 vcore, 1024 MiB each)" in submitters.why(second)
    for _ in range(6):
        submitters.second()
    assert submitters.ended == [first, second]


@EACH
def test_a_gang_that_never_fits_next_to_its_driver_is_refused_at_once(schedulers: int) -> None:
    submitters = Submitters(cluster_of(2, 4, schedulers))
    name = submitters.submit(executor=cores(4), executors=2, gang=2)
    submitters.cluster.settle()
    refused = [x for x in submitters.cluster.notices[name] if isinstance(x, c.RequestRefused)]
    assert len(refused) == 1
    assert "the whole cluster holds 1 of them next to it" in refused[0].message
    assert "spark.hrm.gang.min" in refused[0].message
    fits = submitters.submit(executor=cores(4), executors=1, gang=1)
    submitters.cluster.advance(5)
    assert submitters.running() == [fits]


@EACH
def test_a_driver_alone_starts_though_nothing_fits_next_to_it(schedulers: int) -> None:
    submitters = Submitters(cluster_of(1, 1, schedulers))
    name = submitters.submit()
    submitters.cluster.advance(5)
    assert submitters.running() == [name]
    app = submitters.cluster.submit(1, CORE, driver=name)
    submitters.cluster.advance(5)
    assert "drivers hold 1 vcore, 1024 MiB of 1 vcore, 1024 MiB" in submitters.why(app)


@EACH
def test_drivers_keep_their_places_when_nodes_leave(schedulers: int) -> None:
    cluster = cluster_of(20, 1, schedulers)
    submitters = Submitters(cluster)
    for _ in range(5):
        submitters.submit()
    cluster.advance(5)
    before = submitters.running()
    assert len(before) == 4
    for node in list(cluster.nodes.values()):
        if not any(is_driver(ApplicationId(x)) for x in node.processes):
            cluster.disconnect(node)
    cluster.advance(30)
    assert submitters.running() == before


def test_a_waiting_driverholds_up_no_executor_of_a_policy_with_a_strict_order() -> None:
    submitters = Submitters(cluster_of(1, 4, 1, policy=lambda _: Fifo()))
    for _ in range(6):
        submitters.submit(executors=2)
    for _ in range(30):
        submitters.second()
    assert len(submitters.ended) == 6


def test_after_a_restart_no_driver_starts_before_the_nodes_are_back() -> None:
    cluster = cluster_of(2, 4, 2)
    submitters = Submitters(cluster)
    first = submitters.submit()
    cluster.advance(5)
    assert submitters.running() == [first]
    cluster.restart_master()
    host = NodeName(next(x for x, node in cluster.nodes.items() if node.processes))
    for name, node in cluster.nodes.items():
        if name != host:
            cluster.register(node)
    second = submitters.submit()
    cluster.advance(1)
    assert "the master has restarted" in submitters.why(second)
    cluster.register(cluster.nodes[host])
    cluster.advance(20)
    assert submitters.running() == [first], "the share is one driver"


def test_a_driver_leaves_the_cores_that_units_share() -> None:
    """A node with a GPU and one pool of cores: the driver takes from both of its units."""
    cluster = VirtualCluster(schedulers=2, bounds=Bounds(driver_share=1.0))
    hardware = Hardware(
        cores=tuple(Core(number) for number in range(6)),
        memory_mib=6144,
        gpus=(Gpu(index=0, memory_mib=8192),),
    )
    cluster.add_hardware("n1", hardware, Partitioning(mode=BindingMode.SHARED))
    cluster.settle()
    submitters = Submitters(cluster)
    on_gpu = Resources(2, 2048, 8192)
    first = submitters.submit(executor=on_gpu, gang=1)
    second = submitters.submit(executor=cores(4), gang=1)
    third = submitters.submit(executor=cores(4), gang=1)
    cluster.advance(5)
    assert submitters.running() == [first, second]
    assert "its first executor (4 vcores, 4096 MiB)" in submitters.why(third)


def test_a_driver_waits_for_the_node_next_to_which_it_can_begin() -> None:
    cluster = cluster_of(1, 2)
    large = cluster.add_node(unit("large", 4, 4096))
    cluster.settle()
    cluster.disconnect(large)
    cluster.advance(20)
    submitters = Submitters(cluster)
    name = submitters.submit(cores(2), executor=cores(2))
    cluster.advance(5)
    assert submitters.running() == []
    assert "its first executor (2 vcores, 2048 MiB) would not fit" in submitters.why(name)
    cluster.register(large)
    cluster.advance(5)
    assert submitters.running() == [name]


def drain(cluster: VirtualCluster, *names: NodeName, undo: bool = False) -> None:
    """These nodes, or all."""
    call_id, nodes = cluster.next_call(), names or tuple(map(NodeName, cluster.nodes))
    cluster.submit_to_master(
        e.DrainRequested(now=cluster.now, call_id=call_id, nodes=nodes, undo=undo)
    )
    cluster.settle()


@EACH
def test_drivers_that_no_open_node_could_hold_wait_in_line(schedulers: int) -> None:
    """With its scheduler each would be tried, in turn, for as long as the nodes are drained."""
    cluster = cluster_of(2, 8, schedulers)
    drain(cluster)
    submitters = Submitters(cluster)
    for _ in range(50):
        submitters.submit()
    cluster.advance(60)
    why = submitters.why(submitters.drivers[49])
    assert "nothing new starts, since all 2 nodes are drained (n0, n1)" in why
    assert not cluster.master.master_state.unqueued_drivers
    drain(cluster, undo=True)
    cluster.advance(2)
    assert submitters.running() == submitters.drivers[:3], "a fifth of 16 cores"


@EACH
def test_a_driver_that_no_node_could_hold_is_refused_once_nodes_have_come(schedulers: int) -> None:
    submitters = Submitters(cluster := VirtualCluster(schedulers=schedulers))
    large, small = submitters.submit(cores(9)), submitters.submit()
    cluster.advance(5)
    cluster.add_node(unit("n1", 8, 8192))
    cluster.advance(cluster.bounds.retry_delay_max_s + 2)
    assert submitters.running() == [small]
    assert not cluster.states(large)
    (refused,) = [x for x in cluster.notices[large] if isinstance(x, c.RequestRefused)]
    assert "the driver requests 9 vcores" in refused.message


def test_a_driver_whose_label_no_open_node_has_is_told_so() -> None:
    submitters = labelled()
    drain(submitters.cluster, NodeName("n0"))
    name = submitters.submit(requires=suited.SSD)
    submitters.cluster.settle()
    assert "no node that is large enough and open is for it" in submitters.why(name)


def labelled(schedulers: int = 2) -> Submitters:
    """A node with a label, and two without, of eight cores each."""
    has, none = suited.properties("ssd"), suited.properties()
    nodes = ("n0", has), ("n1", none), ("n2", none)
    return Submitters(suited.cluster_of(*nodes, vcores=8, inside=schedulers))


@EACH
def test_one_that_waits_for_a_labelled_node_takes_no_share_from_others(schedulers: int) -> None:
    """A stream fills the node, so its driver waits with its scheduler, with nothing in view."""
    submitters = labelled(schedulers)
    cluster = submitters.cluster
    cluster.submit(8, CORE, WorkloadClass.STREAM, requires=suited.SSD)
    cluster.settle()
    behind = submitters.submit(cores(4), requires=suited.SSD)
    cluster.settle()
    others = [submitters.submit(cores(2)), submitters.submit(CORE)]
    cluster.advance(5)
    assert submitters.running() == others
    drain(cluster, NodeName("n0"))
    cluster.advance(5)
    assert "open is for it" in submitters.why(behind)


def test_one_that_waits_for_a_stream_holds_up_none_whatever_others_hold() -> None:
    submitters = labelled()
    cluster = submitters.cluster
    cluster.submit(8, CORE, WorkloadClass.STREAM, requires=suited.SSD)
    there = submitters.submit(cores(2))
    cluster.settle()
    submitters.submit(cores(3), requires=suited.SSD)  # the share is too small for both
    later = submitters.submit()
    cluster.settle()
    assert submitters.running() == [there, later]


def test_small_drivers_do_not_keep_the_place_of_the_first_executors_of_a_large_one() -> None:
    submitters = Submitters(cluster_of(1, 10))
    small = [submitters.submit()]
    submitters.cluster.settle()
    large = submitters.submit(executor=cores(9))
    for _ in range(6):
        small.append(submitters.submit())
        submitters.cluster.advance(5)
        if large in submitters.running():
            break
        submitters.end(next(x for x in small if x in submitters.running()))
        submitters.cluster.advance(1)
    assert submitters.running() == [large]


def test_one_that_no_node_could_hold_is_not_told_of_the_share() -> None:
    submitters = labelled()
    cluster = submitters.cluster
    drain(cluster, NodeName("n0"))
    submitters.submit(cores(3))
    cluster.settle()
    name = submitters.submit(CORE, requires=suited.SSD)
    cluster.settle()
    assert "no node that is large enough and open is for it" in submitters.why(name)
    assert "n0 is for it, and draining" in submitters.why(name)


def test_one_that_is_too_large_for_all_is_refused_though_drivers_hold_their_share() -> None:
    cluster = cluster_of(1, 8, bounds=Bounds(lost_nodes_kept=0))
    large_node = cluster.add_node(unit("large", 16, 16_384))
    submitters = Submitters(cluster)
    there = submitters.submit(cores(4))
    cluster.settle()
    name = submitters.submit(cores(9))
    cluster.settle()
    assert "driver_share" in submitters.why(name)
    cluster.disconnect(large_node)
    cluster.advance(20)
    assert submitters.running() == [there]
    assert not cluster.states(name)


def test_one_whose_first_executor_only_a_drained_node_could_hold_is_told_so() -> None:
    cluster = cluster_of(1, 4)
    cluster.add_node(unit("large", 8))
    cluster.settle()
    submitters = Submitters(cluster)
    drain(cluster, NodeName("large"))
    name = submitters.submit(cores(2), executor=cores(4))
    cluster.settle()
    assert "would not fit next to it at any open node" in submitters.why(name)
    drain(cluster, NodeName("large"), undo=True)
    cluster.settle()
    assert submitters.running() == [name]
