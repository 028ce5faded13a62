"""Schedulers in other processes: the same decisions and guarantees, and none is indispensable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim, Entry, Proposal
from hrm.core.messages.state_changes import StateChanged
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling import remote_scheduler as remote
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    Gpu,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning
from hrm.errors import AlreadyExists, InvalidRequest, NotFound
from hrm.testing.virtual import SMALL, VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler

BATCH = WorkloadClass.BATCH
STREAM = WorkloadClass.STREAM


def assert_same(copy: SharedState, state: SharedState) -> None:
    assert set(copy.rows) == set(state.rows)
    for unit_id, row in state.rows.items():
        other = copy.rows[unit_id]
        assert copy.queue(other).unit == state.queue(row).unit
        assert copy.queue(other).image() == state.queue(row).image()
        assert copy.node(other) == state.node(row)
        assert copy.open[other] == state.open[row]
        assert copy.properties[other] == state.properties[row]
        assert copy.waiting_limit[other] == state.waiting_limit[row]
        assert copy.free[other].tolist() == state.free[row].tolist()
        assert copy.total[other].tolist() == state.total[row].tolist()
        assert copy.gpu_only[other] == state.gpu_only[row]
        assert copy.waiting_stream[other] == state.waiting_stream[row]
        assert siblings(copy, unit_id) == siblings(state, unit_id)


def deliver_all(cluster: VirtualCluster, schedulers: Iterable[VirtualScheduler]) -> None:
    """Until every change has been sent and taken in: one that comes soon after another waits for
    the next event, at the latest a tick."""
    copies = list(schedulers)
    for _ in range(20):
        cluster.advance(1.1)
        if all(has_all(cluster, copy) for copy in copies):
            return
    raise AssertionError(f"changes do not reach {[x.name for x in copies]}")


def has_all(cluster: VirtualCluster, scheduler: VirtualScheduler) -> bool:
    master_side = cluster.master.placement.schedulers[scheduler.name]
    assert isinstance(master_side, remote.RemoteScheduler)
    if master_side.units or master_side.changed_jobs or master_side.has_freed:
        return False
    return bool(scheduler.replica.sequence == master_side.sequence)


def siblings(state: SharedState, unit_id: ResourceUnitId) -> set[ResourceUnitId]:
    number = state.pool[state.rows[unit_id]]
    by_number = {x for x, row in state.rows.items() if state.pool[row] == number}
    row = state.rows[unit_id]
    assert by_number == {unit_id, *(state.queue(x).unit.unit_id for x in state.siblings(row))}
    return by_number


def cluster_of(*nodes: int, bounds: Bounds | None = None) -> VirtualCluster:
    units = [unit(f"n{index}", vcores=vcores) for index, vcores in enumerate(nodes, 1)]
    return VirtualCluster(units, schedulers=1, bounds=bounds)


def submit_to(
    cluster: VirtualCluster,
    name: str,
    many: int,
    resources: Resources = SMALL,
    **fields: object,
) -> ApplicationId:
    """An application of the scheduler ``name``."""
    while True:
        app = cluster.submit(0, **fields)  # type: ignore[arg-type]
        if cluster.app(app).scheduler == name:
            cluster.request(app, range(1, many + 1), resources)
            return app
        cluster.finish(app)


def test_a_remote_scheduler_places_streams_gangs_and_batch() -> None:
    cluster = cluster_of(4, 4)
    VirtualScheduler(cluster, "outside")
    batch = submit_to(cluster, "outside", 2)
    stream = submit_to(cluster, "outside", 2, workload_class=STREAM)
    gang = submit_to(cluster, "outside", 4, gang_min=3)
    cluster.settle()
    for app in (batch, stream, gang):
        assert "pending" not in cluster.states(app)
        assert "assigned" not in cluster.states(app)
    assert cluster.running() == 8
    master_side = cluster.master.placement.schedulers["outside"]
    assert master_side.placed == 8
    assert master_side.jobs == {}


def test_what_ends_frees_capacity_for_a_remote_scheduler_too() -> None:
    cluster = cluster_of(2, bounds=Bounds(waiting_limit=0))
    VirtualScheduler(cluster, "outside")
    first = submit_to(cluster, "outside", 2)
    cluster.settle()
    second = submit_to(cluster, "outside", 2)
    cluster.advance(30)
    assert cluster.states(second) == {"pending": 2}
    assert "outside" in cluster.master.placement.schedulers, "it backs off, but it is heard"
    cluster.finish(first)
    cluster.settle()
    assert cluster.states(second) == {"running": 2}


def test_ends_are_collected_and_sent_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end as a message of its own to each scheduler was most of what the master did."""
    cluster = cluster_of(8, bounds=Bounds(waiting_limit=0))
    VirtualScheduler(cluster, "outside")
    first = submit_to(cluster, "scheduler-1", 8)
    cluster.settle()
    second = submit_to(cluster, "outside", 1, Resources(8, 512))
    cluster.advance(30)
    freed: list[StateChanged] = []
    send = remote.RemoteScheduler._message

    def counted(self: remote.RemoteScheduler, *given: Any) -> StateChanged:
        message = send(self, *given)
        freed.extend([message] if message.has_freed else [])
        return message

    monkeypatch.setattr(remote.RemoteScheduler, "_message", counted)
    for executor in range(1, 9):
        cluster.end_process(first, executor)
        cluster.advance(0.001)
    assert len(freed) <= 1, "the job needs all eight"
    cluster.advance(0.1)  # less than the pause between two ticks
    assert cluster.states(second) == {"running": 1}
    assert 1 <= len(freed) <= 2


@pytest.mark.parametrize("how", ["break", "hang"])
def test_the_jobs_of_a_lost_scheduler_go_to_another(how: str) -> None:
    cluster = cluster_of(2, bounds=Bounds(scheduler_timeout_s=5.0))
    outside = VirtualScheduler(cluster, "outside")
    outside.hangs = True
    app = submit_to(cluster, "outside", 2, workload_class=STREAM)
    cluster.settle()
    assert cluster.states(app) == {"pending": 2}
    if how == "break":
        outside.break_off()
    else:
        cluster.advance(7)
        assert outside.dropped
    cluster.settle()
    assert cluster.states(app) == {"running": 2}
    assert list(cluster.master.placement.schedulers) == ["scheduler-1"]
    VirtualScheduler(cluster, "outside")


def test_a_scheduler_that_dies_with_the_lease_gives_it_back() -> None:
    cluster = cluster_of(2)
    outside = VirtualScheduler(cluster, "outside")
    outside.hangs = True
    app = submit_to(cluster, "outside", 1, workload_class=STREAM)
    cluster.submit_to_master(lease_request(cluster, outside, app, 900))
    assert cluster.master.negotiator.lease.holder == "outside"
    other = submit_to(cluster, "scheduler-1", 1, workload_class=STREAM)
    cluster.at(cluster.now + 0.5, outside.break_off)
    cluster.advance(0.6)
    assert cluster.states(other) == {"running": 1}
    assert cluster.states(app) == {"running": 1}


def lease_request(
    cluster: VirtualCluster, scheduler: VirtualScheduler, app: ApplicationId, call_id: int
) -> e.LeaseRequested:
    return e.LeaseRequested(
        now=cluster.now,
        call_id=call_id,
        scheduler=scheduler.name,
        session=scheduler.session,
        application_id=app,
    )


def test_a_lease_is_given_back_once_and_stale_tokens_commit_nothing() -> None:
    cluster = cluster_of(2)
    outside = VirtualScheduler(cluster, "outside")
    outside.hangs = True
    app = submit_to(cluster, "outside", 1, workload_class=STREAM)
    cluster.submit_to_master(lease_request(cluster, outside, app, 900))
    reply = cluster.replies[900]
    assert isinstance(reply, c.Reply)
    assert isinstance(reply.result, c.LeaseGranted)
    token = reply.result.token
    for call_id, good in ((901, True), (902, False)):
        event = e.LeaseReturned(
            now=cluster.now,
            call_id=call_id,
            scheduler="outside",
            session=outside.session,
            token=token,
        )
        cluster.submit_to_master(event)
        result = cluster.replies[call_id]
        assert isinstance(result, c.Reply) is good
        assert good or (isinstance(result, c.Refuse) and isinstance(result.error, InvalidRequest))
    propose(cluster, outside, app, [claim(app, 1, STREAM)], 903, token=token)
    settled = cluster.replies[903]
    assert isinstance(settled, c.Reply)
    assert isinstance(settled.result, c.ClaimsSettled)
    assert ["lease" in x.reason for x in settled.result.outcomes] == [True]
    assert cluster.states(app) == {"pending": 1}


def claim(app: ApplicationId, executor: int, workload_class: WorkloadClass, node: int = 1) -> Claim:
    demand: Vector = (0, 0, 0, 0)  # wrong: the master uses the request's
    entry = Entry(ContainerId(f"{app}-x{executor}"), workload_class, demand, 1.0)
    return Claim(entry, ResourceUnitId(f"n{node}/cpu"), 0)


def propose(
    cluster: VirtualCluster,
    scheduler: VirtualScheduler,
    app: ApplicationId,
    claims: list[Claim],
    call_id: int,
    token: int = 0,
    session: int | None = None,
) -> None:
    proposal = Proposal(scheduler.name, app, WorkloadClass.BATCH, tuple(claims), token)
    cluster.submit_to_master(
        e.ClaimsProposed(
            now=cluster.now,
            proposal=proposal,
            call_id=call_id,
            session=scheduler.session if session is None else session,
        )
    )


def test_claims_are_checked_against_what_was_asked_for() -> None:
    cluster = cluster_of(2, 2)
    outside = VirtualScheduler(cluster, "outside")
    outside.hangs = True
    app = submit_to(cluster, "outside", 1)
    foreign = submit_to(cluster, "scheduler-1", 1)
    batch = WorkloadClass.BATCH
    twice = [claim(app, 1, batch, 1), claim(app, 1, batch, 2), claim(foreign, 1, batch)]
    propose(cluster, outside, app, twice, 900)
    assert cluster.states(app) == {"assigned": 1}
    used = sum(queue.capacity[0] - queue.free[0] for queue in queues(cluster, app))
    assert used == 1, "the demand is the application's, and the container is placed once"
    propose(cluster, outside, app, twice, 901, session=outside.session + 1)
    late = cluster.replies[901]
    assert isinstance(late, c.Refuse)
    assert isinstance(late.error, NotFound)


def queues(cluster: VirtualCluster, app: ApplicationId) -> list[UnitQueue]:
    state = cluster.master.master_state.state
    return [
        queue
        for queue in (state.queue(row) for row in state.rows.values())
        if ContainerId(f"{app}-x1") in queue
    ]


def test_a_copy_knows_what_nodes_are_and_what_they_have_become() -> None:
    """It is sent once, not with each change of a unit."""
    cluster = cluster_of(2, 2)
    outside = VirtualScheduler(cluster, "outside")
    ssd = NodeRequirement(labels=frozenset({"ssd"}))
    app = cluster.submit(1)
    cluster.finish(app)
    deliver_all(cluster, [outside])
    sent: list[StateChanged] = []
    receive = outside.receive

    def noted(message: StateChanged) -> None:
        sent.append(message)
        receive(message)

    outside.receive = noted  # type: ignore[method-assign]
    submit_to(cluster, "outside", 2)
    deliver_all(cluster, [outside])
    assert any(message.units for message in sent)
    assert not any(message.properties for message in sent)
    node = cluster.nodes["n2"]
    node.properties = NodeProperties(host="h2", labels=frozenset({"ssd"}))
    cluster.register(node)
    deliver_all(cluster, [outside])
    assert_same(outside.replica.state, cluster.master.master_state.state)
    row = outside.replica.state.rows[ResourceUnitId("n2/cpu")]
    assert np.flatnonzero(outside.replica.state.suited(ssd)).tolist() == [row]


def test_two_of_one_name_are_one_too_many() -> None:
    cluster = cluster_of(2)
    VirtualScheduler(cluster, "outside")
    for name in ("outside", "scheduler-1"):
        with pytest.raises(AlreadyExists, match="--name"):
            VirtualScheduler(cluster, name)


happenings = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "release",
                "end",
                "finish",
                "break",
                "lose",
                "return",
                "join",
                "leave",
                "drain",
                "bind",
            ]
        ),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from(list(WorkloadClass)),
    ),
    max_size=25,
)
scopes: st.SearchStrategy[Literal["global", "candidates"]] = st.sampled_from(
    ["global", "candidates"]
)


MACHINE = Hardware(
    cores=tuple(Core(number) for number in range(4)),
    memory_mib=65_536,
    gpus=(Gpu(index=0, memory_mib=1000), Gpu(index=1, memory_mib=1000)),
)
MODES = (BindingMode.SHARED, BindingMode.EVEN, BindingMode.PARTIAL)
ON_GPU = replace(SMALL, gpu_memory_mib=500)


def test_a_remote_scheduler_sees_that_units_share_their_cores() -> None:
    """One container of four cores for each of two GPUs, on four cores: the second waits."""
    cluster = VirtualCluster(schedulers=1, bounds=Bounds(waiting_limit=0))
    cluster.add_hardware("g1", MACHINE, Partitioning(mode=BindingMode.SHARED))
    outside = VirtualScheduler(cluster, "outside")
    app = submit_to(cluster, "outside", 2, resources=replace(ON_GPU, vcores=4))
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "pending": 1}
    assert_same(outside.replica.state, cluster.master.master_state.state)
    assert {row[0] for row in ClusterView(outside.replica.state).free.tolist()} == {0}
    cpu = submit_to(cluster, "outside", 1)
    cluster.settle()
    assert cluster.states(cpu) == {"pending": 1}
    cluster.finish(app)
    cluster.settle()
    assert cluster.states(cpu) == {"running": 1}
    container = cluster.app(cpu).containers[ContainerId(f"{cpu}-x1")]
    assert container.unit_id == "g1/cpu"


def test_units_that_share_cores_are_never_sent_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "UNITS_PER_MESSAGE", 2)
    cluster = VirtualCluster(schedulers=1)
    for number in range(3):
        cluster.add_hardware(f"g{number}", MACHINE, Partitioning(mode=BindingMode.SHARED))
    outside = VirtualScheduler(cluster, "outside")
    apps = [submit_to(cluster, "outside", 4, resources=ON_GPU) for _ in range(3)]
    cluster.settle()
    assert [cluster.states(app) for app in apps] == [{"running": 4}] * 3
    assert_same(outside.replica.state, cluster.master.master_state.state)


@settings(max_examples=60, deadline=None)
@given(happenings, scopes)
@example(
    [("submit", 0, 1, BATCH)] * 3 + [("submit", 0, 4, BATCH), ("submit", 0, 1, STREAM)], "global"
)
def test_snapshot_and_deltas_are_the_state(
    steps: list[tuple[str, int, int, WorkloadClass]], scope: Literal["global", "candidates"]
) -> None:
    """Whenever all messages have arrived, every copy equals the state; and nothing is ever lost."""
    cluster = cluster_of(3, bounds=Bounds(lease_scope=scope))
    cluster.add_hardware("g1", MACHINE, Partitioning(mode=BindingMode.SHARED))
    outside = {0: VirtualScheduler(cluster, "outside-0")}
    apps: dict[ApplicationId, int] = {}
    for what, number, count, workload_class in steps:
        app = list(apps)[number % len(apps)] if apps else None
        node = list(cluster.nodes.values())[number % 2]
        if what == "submit":
            resources = ON_GPU if number % 2 else SMALL
            new = cluster.submit(
                count, resources, workload_class=workload_class, gang_min=number % 3
            )
            apps[new] = count
        elif what == "release" and app is not None:
            cluster.release(app, 1 + number % apps[app])
        elif what == "end" and node.processes:
            application_id, _, executor = next(iter(node.processes)).rpartition("-x")
            cluster.end_process(ApplicationId(application_id), int(executor), number % 2)
        elif what == "finish" and app is not None:
            cluster.finish(app)
        elif what == "break" and node.connected:
            cluster.disconnect(node)
        elif what == "lose":
            if node.connected:
                cluster.disconnect(node)
            cluster.advance(cluster.bounds.node_timeout_s + 1)
        elif what == "return" and not node.connected:
            cluster.register(node)
        elif what == "join" and count not in outside:
            outside[count] = VirtualScheduler(cluster, f"outside-{count}")
        elif what == "leave" and outside:
            outside.pop(sorted(outside)[0]).break_off()
        elif what == "drain":
            call_id = cluster.next_call()
            event = e.DrainRequested(
                now=cluster.now, call_id=call_id, nodes=(node.name,), undo=count % 2 == 0
            )
            cluster.submit_to_master(event)
        elif what == "bind":
            cluster.rebind("g1", mode=MODES[number % 3], bound_cores=1, reserve_cores=1)
        cluster.advance(count if number % 2 else 0.0)
        if number % 3 == 0:
            deliver_all(cluster, outside.values())
            for each in outside.values():
                assert_same(each.replica.state, cluster.master.master_state.state)
                master_side = cluster.master.placement.schedulers[each.name]
                assert {x: list(j.pending) for x, j in each.scheduler.jobs.items()} == {
                    x: list(j.pending) for x, j in master_side.jobs.items()
                }
    for node in cluster.nodes.values():
        if not node.connected:
            cluster.register(node)
    for app in apps:
        cluster.finish(app)
    cluster.advance(30)
    assert cluster.running() == 0
    for each in outside.values():
        assert each.scheduler.jobs == {}
        assert_same(each.replica.state, cluster.master.master_state.state)
