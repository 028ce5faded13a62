"""A node that lacks what every container needs starts none; what waits there goes elsewhere."""

from __future__ import annotations

from typing import Any

from hrm.core.invariants import master_violations, node_violations
from hrm.core.master.explain import explain
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
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster, unit

N1 = NodeName("n1")
FULL = "less than 2048 MiB are free"


def spec(name: str, unit_id: str = "n1/cpu", vcores: int = 1) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId("app"),
        executor_id=name,
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=Resources(vcores, 256),
        unit_id=ResourceUnitId(unit_id),
    )


def assigned(core: NodeCore, name: str, unit_id: str) -> list[c.NodeCommand]:
    return core.handle(e.AssignReceived(now=1.0, epoch=1, spec=spec(name, unit_id)))


def reported(commands: list[c.NodeCommand]) -> list[Any]:
    """What is reported about which container, in order; other commands by their names."""
    return [
        (x.status.container_id, x.status.state, x.status.end)
        if isinstance(x, c.ReportContainer)
        else type(x).__name__
        for x in commands
    ]


def test_a_closed_node_starts_nothing_and_reports_it_once() -> None:
    core = NodeCore(N1, (unit("n1", vcores=1),))
    unit_id = core.offers[0].unit_id
    for name in ("runs", "waits-1", "waits-2"):
        assigned(core, name, unit_id)
    preempted = ContainerEnd(cause=EndCause.PREEMPTED, message=f"n1 takes no containers: {FULL}")
    ended = ContainerState.ENDED
    assert reported(core.handle(e.NodeClosed(now=2.0, why=FULL))) == [
        ("waits-1", ended, preempted), ("waits-2", ended, preempted), "RegisterAgain",
    ]  # fmt: skip
    assert [x.draining for x in core.offers] == [True]
    assert reported(core.handle(e.NodeClosed(now=3.0, why=FULL))) == [], "once"
    assert reported(assigned(core, "late", unit_id)) == [("late", ended, preempted)]
    exited = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
    ends = core.handle(e.ProcessEnded(now=4.0, container_id=ContainerId("runs"), end=exited))
    assert reported(ends) == [("runs", ended, exited)], "it ran on to its own end"
    assert node_violations(core) == []
    assert reported(core.handle(e.NodeOpened(now=5.0))) == ["RegisterAgain"]
    assert reported(core.handle(e.NodeOpened(now=6.0))) == []
    assert [x.draining for x in core.offers] == [False]
    assert "StartProcess" in reported(assigned(core, "next", unit_id))


def test_a_node_may_be_repartitioned_while_it_is_closed() -> None:
    hardware = Hardware(
        cores=tuple(Core(number) for number in range(8)),
        memory_mib=8192,
        gpus=(Gpu(index=0, memory_mib=1000),),
    )
    binding = Partitioning(mode=BindingMode.PARTIAL, bound_cores=2, reserve_cores=2)
    core = NodeCore(N1, partition(N1, hardware, binding), hardware=hardware, binding=binding)
    core.handle(e.NodeClosed(now=1.0, why=FULL))
    asked = e.RebindReceived(now=2.0, epoch=1, request_id=1, bound_cores=4)
    assert "RegisterAgain" in reported(core.handle(asked))
    assert core.binding.bound_cores == 4
    assert all(x.draining for x in core.offers)
    core.handle(e.NodeOpened(now=3.0))
    assert not any(x.draining for x in core.offers)
    assert node_violations(core) == []


def test_what_waits_at_a_closed_node_goes_elsewhere_and_what_runs_there_runs_on() -> None:
    cluster = VirtualCluster([unit("n1", vcores=2)])
    app = cluster.submit(4)
    cluster.settle()
    assert cluster.states(app) == {"running": 2, "waiting": 2}
    cluster.add_node(unit("n2", vcores=4))
    cluster.submit_to_node(cluster.nodes["n1"], e.NodeClosed(now=cluster.now, why=FULL))
    cluster.settle()
    gone = [x.end.cause for x in cluster.app(app).ended if x.end is not None]
    assert gone == [EndCause.PREEMPTED] * 2
    another = cluster.app(app).last_executor_number
    cluster.request(app, [another + 1, another + 2])
    cluster.settle()
    nodes = [x.node for x in cluster.app(app).containers.values()]
    assert sorted(nodes, key=str) == ["n1", "n1", "n2", "n2"]
    assert master_violations(cluster.master) == []

    newcomer = cluster.submit(2)
    cluster.settle()
    assert {x.node for x in cluster.app(newcomer).containers.values()} == {"n2"}
    cluster.submit_to_node(cluster.nodes["n2"], e.NodeClosed(now=cluster.now, why=FULL))
    cluster.settle()
    for number in (1, 2):
        cluster.end_process(newcomer, number, exit_code=0)
    waiting_app = cluster.submit(1)
    cluster.settle()
    assert cluster.states(waiting_app) == {"pending": 1}, "there is room, and it is not offered"
    summary, _ = explain(cluster.master.master_state, cluster.app(waiting_app), cluster.now)
    assert "only nodes that are draining, closed or lost are large enough" in summary
    cluster.submit_to_node(cluster.nodes["n2"], e.NodeOpened(now=cluster.now))
    cluster.settle()
    assert cluster.states(waiting_app) == {"running": 1}
    assert master_violations(cluster.master) == []
