"""Messages to remote schedulers arrive as sent, GPUs and shared cores included, and each unit in
them is encoded once for all."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.model import ContainerEnd, EndCause, Gpu, NodeName, WorkloadClass
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.testing.virtual import SMALL, VirtualCluster, unit
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

    def __init__(
        self, cluster: VirtualCluster, name: str, encoder: state_wire.ChangeEncoder
    ) -> None:
        self.encoder = encoder
        super().__init__(cluster, name)

    def receive(self, message: StateChanged) -> None:
        self.avoided |= {job.avoid for job in message.jobs}
        sent = pb.SchedulerMessage.FromString(self.encoder.encode(message)).change
        assert state_wire.to_change(sent) == message
        self.received += 1
        super().receive(state_wire.to_change(sent))


@pytest.mark.parametrize("mode", BindingMode)
def test_changes_survive_the_wire(mode: BindingMode) -> None:
    cluster = VirtualCluster(schedulers=1)
    cluster.add_hardware("g1", MACHINE, Partitioning(mode=mode, bound_cores=1, reserve_cores=1))
    encoder = state_wire.ChangeEncoder()
    outside = OverTheWire(cluster, "outside", encoder)
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


@pytest.mark.parametrize("schedulers", [1, 4])
def test_a_change_is_encoded_once_for_all_schedulers(schedulers: int) -> None:
    cluster = VirtualCluster([unit(f"n{number}") for number in range(5)], schedulers=0)
    encoder = state_wire.ChangeEncoder()
    outside = [OverTheWire(cluster, f"s{number}", encoder) for number in range(schedulers)]
    cluster.advance(1)
    assert encoder.encoded == 5

    drained = e.DrainRequested(
        now=cluster.now, call_id=cluster.next_call(), nodes=(NodeName("n1"),)
    )
    cluster.submit_to_master(drained)
    cluster.advance(1)

    assert encoder.encoded == 6
    for each in outside:
        state = each.replica.state
        assert [node for row, node in enumerate(state.nodes) if node and not state.open[row]] == [
            "n1"
        ]


def test_a_scheduler_that_comes_later_gets_what_is_encoded_already() -> None:
    cluster = VirtualCluster([unit(f"n{number}") for number in range(5)], schedulers=0)
    encoder = state_wire.ChangeEncoder()
    OverTheWire(cluster, "first", encoder)
    cluster.advance(1)
    second = OverTheWire(cluster, "second", encoder)
    cluster.advance(1)
    assert encoder.encoded == 5
    assert len(second.replica.state.rows) == 5

    encoder.forget()
    third = OverTheWire(cluster, "third", encoder)
    cluster.advance(1)
    assert encoder.encoded == 10
    assert len(third.replica.state.rows) == 5


def test_nothing_is_remembered_of_units_that_changed_while_no_scheduler_was_subscribed() -> None:
    cluster = VirtualCluster([unit("n1")], schedulers=1)
    encoder = state_wire.ChangeEncoder()
    first = OverTheWire(cluster, "first", encoder)
    cluster.advance(1)
    first.break_off()
    cluster.submit(1)
    cluster.advance(1)
    second = OverTheWire(cluster, "second", encoder)
    cluster.advance(1)
    (row,) = second.replica.state.rows.values()
    assert len(second.replica.state.queue(row).running) == 1


def test_the_bytes_of_a_unit_are_released_when_it_is_gone() -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2")], schedulers=0)
    encoder = state_wire.ChangeEncoder()
    outside = OverTheWire(cluster, "outside", encoder)
    cluster.advance(1)
    assert encoder.kept() == {"n1/cpu", "n2/cpu"}

    cluster.disconnect(cluster.nodes["n1"])
    cluster.advance(cluster.bounds.node_timeout_s + 2)

    assert outside.replica.state.rows.keys() == {"n2/cpu"}
    assert encoder.kept() == {"n2/cpu"}
