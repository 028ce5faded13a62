"""What preemption must survive: new sessions, restarts, other units, class or partitioning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.messages import appmaster as m
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.model import (
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
    container_id_of,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster, VirtualNode, unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
BIG = Resources(4, 1024)
MACHINE = Hardware(
    cores=tuple(Core(number) for number in range(8)),
    memory_mib=8192,
    gpus=(Gpu(index=0, memory_mib=1000), Gpu(index=1, memory_mib=1000)),
)


def spec(
    name: str, workload_class: WorkloadClass, vcores: int, unit_id: str, gpu_memory_mib: int = 0
) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId(f"app-of-{name}"),
        executor_id="1",
        resource_profile_id=0,
        workload_class=workload_class,
        resources=Resources(vcores, 256, gpu_memory_mib),
        unit_id=ResourceUnitId(unit_id),
    )


class Node:
    """A node's core, and the containers started and preempted there, in order."""

    def __init__(self, mode: BindingMode, cores: int = 8) -> None:
        hardware = replace(MACHINE, cores=MACHINE.cores[:cores])
        binding = Partitioning(mode=mode, bound_cores=2, reserve_cores=2)
        units = partition(NodeName("n1"), hardware, binding)
        self.core = NodeCore(NodeName("n1"), units, hardware=hardware, binding=binding)
        self.now = 0.0
        self.started: list[str] = []
        self.preempted: list[str] = []

    def assign(self, assigned: ContainerSpec) -> None:
        self.feed(e.AssignReceived(now=self.now, epoch=1, spec=assigned))

    def ends(self, name: str) -> None:
        end = ContainerEnd(cause=EndCause.PREEMPTED)
        self.feed(e.ProcessEnded(now=self.now, container_id=ContainerId(name), end=end))

    def feed(self, event: e.NodeEvent) -> None:
        self.now += 1.0
        for command in self.core.handle(event):
            if isinstance(command, c.StartProcess):
                self.started.append(command.spec.container_id)
            elif isinstance(command, c.StopProcess):
                self.preempted.append(command.container_id)


def test_a_new_session_does_not_shorten_the_grace_period_of_a_preemption() -> None:
    def seen(phase: m.Phase) -> m.ContainerSeen:
        return m.ContainerSeen(executor_id="1", profile=0, phase=phase, node="n1")

    core = AppMasterCore()
    target = m.ProfileTarget(profile=0, count=1, vcores=1, heap_mib=1, memory_mib=1)
    core.handle(m.TargetsChanged(now=0.0, targets=(target,)))
    core.handle(m.SessionOpened(now=1.0, epoch=1, containers=(), last_executor_number=0))
    core.handle(m.ContainerListed(now=2.0, container=seen(m.Phase.RUNNING)))
    (ask,) = core.handle(m.ContainerListed(now=3.0, container=seen(m.Phase.STOPPING)))
    assert isinstance(ask, m.RequestContainers), "another is asked for at once"
    core.handle(m.SessionLost(now=4.0))
    listed = (seen(m.Phase.STOPPING),)
    resumed = core.handle(
        m.SessionOpened(now=5.0, epoch=1, containers=listed, last_executor_number=2)
    )
    assert not [x for x in resumed if isinstance(x, m.ReleaseContainers)]
    core.handle(m.ExecutorsKilled(now=6.0, executor_ids=("1",)))
    core.handle(m.SessionLost(now=7.0))
    resumed = core.handle(
        m.SessionOpened(now=8.0, epoch=1, containers=listed, last_executor_number=2)
    )
    releases = [x for x in resumed if isinstance(x, m.ReleaseContainers)]
    assert [x.executor_ids for x in releases] == [("1",)], "what Spark let go of is said again"


def restart_agent(
    cluster: VirtualCluster, node: VirtualNode, *, orders_written: bool = True
) -> None:
    """The agent dies, and its successor adopts what runs, according to its directory."""
    old = node.core
    units = tuple(queue.unit for queue in old.units.values())
    node.core = NodeCore(node.name, units, preemption_grace_s=cluster.preemption_grace_s)
    node.incarnation, node.sequence = node.incarnation + 1, 0
    for container in old.containers.values():
        if container.life.state in (ContainerState.RUNNING, ContainerState.STOPPING):
            stopping = container.life.state is ContainerState.STOPPING
            adopted = e.ContainerAdopted(
                now=cluster.now,
                spec=container.spec,
                started_at_s=container.started_at_s,
                stopping="ordered" if orders_written and stopping else "",
                decommissioning=orders_written and container.decommissioning,
            )
            cluster.submit_to_node(node, adopted)
    cluster.register(node)


def test_an_agents_restart_does_not_shorten_the_grace_period_of_a_preemption() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=300.0, drain_s=200.0)
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(30.0)
    restart_agent(cluster, cluster.nodes[NodeName("n1")])
    cluster.settle()
    cluster.request(stream, [2])  # the first waited, and is forgotten there
    cluster.advance(60.0)
    assert cluster.states(batch) == {"running": 3, "stopping": 1}, "no second one goes"
    assert cluster.states(stream) == {"waiting": 1}
    cluster.advance(200.0)
    assert cluster.states(stream) == {"running": 1}
    assert [x.end.cause for x in cluster.app(batch).ended if x.end] == [EndCause.PREEMPTED]


def test_one_to_be_preempted_that_was_not_notified_has_not_done_its_work() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=300.0, drain_s=200.0)
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(30.0)
    cluster.finish(stream)
    cluster.settle()
    restart_agent(cluster, cluster.nodes[NodeName("n1")], orders_written=False)
    cluster.advance(10.0)
    assert cluster.states(batch) == {"running": 3}
    assert [x.end.cause for x in cluster.app(batch).ended if x.end] == [EndCause.PREEMPTED]


def test_a_stream_that_its_node_takes_for_batch_is_not_preempted() -> None:
    cluster = VirtualCluster([unit("n1")])
    filler = cluster.submit(2)
    cluster.advance(10.0)
    old = cluster.submit(1, Resources(2, 1024))  # started last: it would go first
    cluster.settle()
    node = cluster.nodes[NodeName("n1")]
    launched = node.core.containers[container_id_of(old, "1")].spec
    cluster.submit_to_master(
        e.WorkloadClassObserved(
            now=cluster.now, application_id=old, workload_class=STREAM, evidence="a query"
        )
    )
    cluster.settle()
    node.connected = False
    new = cluster.submit(1, Resources(2, 1024), STREAM)
    cluster.settle()
    # The work directory keeps the class that a container was launched with.
    node.core.containers[launched.container_id].spec = launched
    restart_agent(cluster, node)
    cluster.advance(5.0)
    assert cluster.states(old) == {"running": 1}
    assert cluster.states(new) == {"running": 1}
    assert cluster.states(filler) == {}


def test_an_application_that_turns_out_a_stream_does_not_preempt_itself() -> None:
    cluster = VirtualCluster([unit("n1")])
    other = cluster.submit(1, Resources(2, 1024))
    cluster.settle()
    app = cluster.submit(0)
    cluster.request(app, [1], Resources(2, 1024))
    cluster.request(app, [2], Resources(3, 1024))
    cluster.settle()
    assert cluster.states(app) == {"waiting": 1, "running": 1}
    cluster.submit_to_master(
        e.WorkloadClassObserved(
            now=cluster.now, application_id=app, workload_class=STREAM, evidence="a query"
        )
    )
    cluster.advance(3.0)
    assert cluster.states(app) == {"running": 1}, "it is to request the other one again"
    end = cluster.container(app, 2).end
    assert end is not None and end.cause is EndCause.PREEMPTED
    assert cluster.states(other) == {"running": 1}, "its capacity would not be enough"


def test_none_is_started_into_capacity_that_is_being_collected() -> None:
    """A stream lacks cores and device memory. The cores are free first; batch must not take them,
    or it would be preempted in turn, one container after another."""
    node = Node(BindingMode.SHARED, cores=4)
    node.assign(spec("gpu-batch", BATCH, 1, "n1/gpu0", 900))
    for number in (1, 2, 3):
        node.assign(spec(f"b{number}", BATCH, 1, "n1/cpu"))
    for number in (1, 2, 3):
        node.assign(spec(f"w{number}", BATCH, 1, "n1/cpu"))
    node.assign(spec("s", STREAM, 2, "n1/gpu0", 900))
    assert set(node.preempted) == {"gpu-batch", "b3"}
    node.ends("b3")
    assert node.started == ["gpu-batch", "b1", "b2", "b3"]
    node.ends("gpu-batch")
    assert node.started[4:] == ["s"]
    assert len(node.preempted) == 2


def test_a_stream_that_only_other_streams_hold_up_does_not_keep_cores_idle() -> None:
    node = Node(BindingMode.SHARED, cores=4)
    node.assign(spec("first", STREAM, 1, "n1/gpu0", 900))
    node.assign(spec("second", STREAM, 1, "n1/gpu0", 900))
    node.assign(spec("b", BATCH, 1, "n1/cpu"))
    assert node.started == ["first", "b"]
    assert node.preempted == []


@pytest.mark.parametrize(
    ("running", "waiting", "starts", "victims"),
    [
        ([("s0", STREAM, 2)], [("s1", STREAM, 3), ("b1", BATCH, 2)], ["s1"], set()),
        # In six cores all batch containers are enough for the second stream.
        (
            [(f"b{x}", BATCH, 1) for x in range(4)],
            [("s1", STREAM, 2), ("s2", STREAM, 4)],
            ["s1"],
            {"b0", "b1", "b2", "b3"},
        ),
    ],
)
def test_a_unit_that_gets_cores_starts_and_preempts_by_its_rules(
    running: list[tuple[str, WorkloadClass, int]],
    waiting: list[tuple[str, WorkloadClass, int]],
    starts: list[str],
    victims: set[str],
) -> None:
    node = Node(BindingMode.PARTIAL)
    for name, workload_class, vcores in running + waiting:
        node.assign(spec(name, workload_class, vcores, "n1/cpu"))
    assert node.started == [name for name, _, _ in running]
    rebind = e.RebindReceived(
        now=node.now, epoch=1, request_id=1, mode=None, bound_cores=1, reserve_cores=None
    )
    node.feed(rebind)
    assert node.started == [name for name, _, _ in running] + starts
    assert set(node.preempted) == victims


def test_a_stream_runs_with_what_there_is_where_it_says_that_it_may() -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")])
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(10, workload_class=STREAM, stream_min=2)
    cluster.advance(5.0)
    assert cluster.states(stream) == {"running": 8, "pending": 2}
    assert cluster.states(batch) == {}
