"""Messages to a remote scheduler arrive as sent, GPUs and shared cores included."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.model import ContainerEnd, EndCause, Gpu, NodeName, WorkloadClass
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.testing.virtual import SMALL, VirtualCluster
from hrm.v1 import scheduler_pb2 as pb
from hrm.wire import shared_state as state_wire
from tests.virtual_scheduler import VirtualScheduler

MACHINE = Hardware(
    cores=tuple(Core(number) for number in range(4)),
    memory_mib=65_536,
    gpus=(Gpu(index=0, memory_mib=1000, numa=0, uuid="GPU-0", name="a", declared=True),),
)


class OverTheWire(VirtualScheduler):
    """Takes in every message after a round trip through its bytes."""

    received = 0
    avoided: frozenset[tuple[NodeName, ...]] = frozenset()

    def receive(self, message: StateChanged) -> None:
        self.avoided |= {job.avoid for job in message.jobs}
        sent = pb.StateChange.FromString(state_wire.from_change(message).SerializeToString())
        assert state_wire.to_change(sent) == message
        self.received += 1
        super().receive(state_wire.to_change(sent))


@pytest.mark.parametrize("mode", BindingMode)
def test_changes_survive_the_wire(mode: BindingMode) -> None:
    cluster = VirtualCluster(schedulers=1)
    cluster.add_hardware("g1", MACHINE, Partitioning(mode=mode, bound_cores=1, reserve_cores=1))
    outside = OverTheWire(cluster, "outside")
    on_gpu = replace(SMALL, gpu_memory_mib=600)
    apps = [
        cluster.submit(2, resources, workload_class=workload_class)
        for resources in (on_gpu, SMALL)
        for workload_class in WorkloadClass
    ]
    crash = ContainerEnd(cause=EndCause.EXITED, exit_code=1)
    for app, node, _ in itertools.product(apps, ("g1", "g2"), range(2)):
        cluster.master.master_state.exclusions.failed(app, NodeName(node), crash, cluster.now)
    for app in apps:
        cluster.request(app, [7], on_gpu)
    cluster.advance(3)
    assert ("g1", "g2") in outside.avoided
    cluster.rebind("g1", mode=BindingMode.SHARED)
    for app in apps:
        cluster.finish(app)
        cluster.advance(3)
    assert outside.received > 2
    units = [outside.replica.state.queue(row).unit for row in outside.replica.state.rows.values()]
    assert sorted(units, key=lambda unit: unit.unit_id) == sorted(
        cluster.master.master_state.nodes[cluster.nodes["g1"].core.name].units,
        key=lambda unit: unit.unit_id,
    )
    assert {unit.gpu_only for unit in units} == {False, True}
