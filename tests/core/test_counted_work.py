"""The work of a placement is counted, not timed: it must not grow with the cluster.

Seconds mean little on a machine with other load. The number of calls that Python and its C
functions make for one container is the same in every run, and shows a loop over nodes, waiting jobs
or applications where there must be none. So do the events and commands of a round, the blocks of
memory that a placement leaves behind, and the peak of its memory, which shows a copy of the state.
Bounds have some margin over what was counted when they were written, so that a change of a few
calls passes and a loop does not.
"""

from __future__ import annotations

import gc
import itertools
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from benchmarks.scheduling import backlog
from benchmarks.scheduling.backlog import FullCluster
from hrm import policies
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    EndCause,
    FirstExecutors,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.testing import VirtualCluster, virtual

TASK = Resources(1, 1024)
SSD = NodeRequirement(labels=frozenset({"ssd"}))
CLASSES = [WorkloadClass.BATCH, WorkloadClass.STREAM]
NOW = 1_000.0


def calls_of(work: Callable[[], object]) -> int:
    """How many functions, of Python or C, are called while ``work`` runs."""
    count = 0

    def seen(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def blocks_of(work: Callable[[], object]) -> int:
    """How many blocks of memory are in use after ``work`` that were not before."""
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        work()
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


def peak_bytes_of(work: Callable[[], object]) -> int:
    """The most bytes, numpy's among them, that ``work`` has in use at once."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        _, peak = tracemalloc.get_traced_memory()
        return peak - before
    finally:
        tracemalloc.stop()


class Master:
    """A master's core over like nodes; commands that stay inside are carried out at once."""

    def __init__(self, nodes: int, policy: str = "min-wait", *, labelled: bool = False) -> None:
        self.core = MasterCore(1, [policies.load(policy, 0)], Bounds(node_timeout_s=1e9))
        self.calls = itertools.count(1)
        self.sequence = itertools.count(2)
        self.reported: list[tuple[NodeName, c.AssignContainer]] = []
        self.events = self.commands = 0
        for number in range(nodes):
            name = NodeName(f"n{number:06d}")
            unit_id = ResourceUnitId(f"{name}/cpu")
            unit = ResourceUnit(unit_id=unit_id, capacity=Resources(16, 65_536), run_limit=16)
            self.core.handle(
                e.NodeRegistered(
                    now=NOW, call_id=next(self.calls), node=name, identity=name, incarnation="1",
                    sequence=1, host="h", endpoint="h:1", units=(unit,),
                    labels=SSD.labels if labelled and number % 2 else frozenset(),
                )
            )  # fmt: skip

    def handle(self, event: e.MasterEvent) -> list[c.MasterCommand]:
        commands = self.core.handle(event)
        self.events += 1
        self.commands += len(commands)
        return commands

    def carry_out(self, event: e.MasterEvent) -> list[c.MasterCommand]:
        todo = self.handle(event)
        done = []
        while todo:
            command = todo.pop()
            done.append(command)
            if isinstance(command, c.WakeScheduler):
                todo += self.handle(e.SchedulerWoken(now=NOW, scheduler=command.scheduler))
            elif isinstance(command, c.ProposeClaims):
                todo += self.handle(e.ClaimsProposed(now=NOW, proposal=command.proposal))
            elif isinstance(command, c.SendToNode) and isinstance(
                command.message, c.AssignContainer
            ):
                self.reported.append((command.node, command.message))
        return done

    def register(
        self,
        workload_class: WorkloadClass = WorkloadClass.BATCH,
        requires: NodeRequirement | None = None,
    ) -> ApplicationId:
        call_id = next(self.calls)
        done = self.carry_out(
            e.ApplicationRegistered(
                now=NOW, call_id=call_id, application_id=ApplicationId(""),
                submission_key=f"key-{call_id}", name="app", user="user",
                declared_class=workload_class, gang_min=0, requires=requires,
            )
        )  # fmt: skip
        (result,) = [x.result for x in done if isinstance(x, c.Reply)]
        assert isinstance(result, c.ApplicationAdmitted)
        return result.application_id

    def ask(self, app: ApplicationId, tasks: int, vcores: int = 1, first: int = 1) -> None:
        requests = tuple(
            ContainerRequest(
                executor_id=str(number), resource_profile_id=0, resources=Resources(vcores, 1024)
            )
            for number in range(first, first + tasks)
        )
        self.carry_out(e.ContainersRequested(now=NOW, application_id=app, requests=requests))

    def report(self, number: int, state: ContainerState) -> None:
        """Report the node's state of the container that was ordered as number ``number``."""
        node, message = self.reported[number]
        spec = message.spec
        end = ContainerEnd(cause=EndCause.EXITED) if state is ContainerState.ENDED else None
        status = ContainerStatus(
            container_id=ContainerId(spec.container_id), application_id=spec.application_id,
            executor_id=spec.executor_id, resource_profile_id=0,
            workload_class=spec.workload_class, resources=TASK, state=state, node=node,
            unit_id=spec.unit_id, started_at_s=NOW, end=end,
        )  # fmt: skip
        self.carry_out(
            e.ContainerReported(
                now=NOW, node=node, incarnation="1", sequence=next(self.sequence), container=status
            )
        )


def placement_calls(nodes: int, tasks: int, workload_class: WorkloadClass, policy: str) -> float:
    """Calls per container, from the request to the message for its node, once all is warm."""
    master = Master(nodes, policy)
    master.ask(master.register(workload_class), tasks)
    app = master.register(workload_class)
    before = len(master.reported)
    calls = calls_of(lambda: master.ask(app, tasks))
    assert len(master.reported) - before == tasks
    return calls / tasks


@pytest.mark.parametrize("workload_class", CLASSES)
@pytest.mark.parametrize("policy", ["min-wait", "best-fit", "worst-fit", "round-robin"])
def test_a_placement_costs_the_same_on_ten_times_the_nodes(
    policy: str, workload_class: WorkloadClass
) -> None:
    few, many = (placement_calls(nodes, 40, workload_class, policy) for nodes in (300, 3_000))

    assert many <= 1.1 * few


@pytest.mark.parametrize(("tasks", "bound"), [(1, 350.0), (40, 70.0), (400, 64.0)])
def test_calls_a_placement_by_job_size(tasks: int, bound: float) -> None:
    assert placement_calls(1_000, tasks, WorkloadClass.BATCH, "min-wait") <= bound


@pytest.mark.parametrize("tasks", [1, 40, 400])
def test_a_round_is_three_events_whatever_the_size_of_the_job(tasks: int) -> None:
    master = Master(100)
    app = master.register()
    events, commands = master.events, master.commands

    master.ask(app, tasks)

    wrote = tasks > 100  # more numbers of executors are reserved
    assert master.events - events == 3, "asked, woken, proposed"
    assert master.commands - commands == tasks + 2 + wrote, "each node told; woken, proposed once"


def blocks_left(nodes: int, tasks: int, workload_class: WorkloadClass) -> float:
    """Blocks of memory that one container's placement leaves behind, once all is warm."""
    master = Master(nodes)
    master.ask(master.register(workload_class), tasks)
    app = master.register(workload_class)
    return blocks_of(lambda: master.ask(app, tasks)) / tasks


@pytest.mark.parametrize("workload_class", CLASSES)
def test_a_placement_leaves_as_much_behind_on_ten_times_the_nodes(
    workload_class: WorkloadClass,
) -> None:
    few, many = (blocks_left(nodes, 40, workload_class) for nodes in (300, 3_000))

    assert many <= 1.1 * few


@pytest.mark.parametrize(("tasks", "bound"), [(1, 70.0), (40, 20.0), (400, 20.0)])
def test_blocks_a_placement_leaves_by_job_size(tasks: int, bound: float) -> None:
    assert blocks_left(1_000, tasks, WorkloadClass.BATCH) <= bound


@pytest.mark.parametrize("policy", ["min-wait", "round-robin"])
def test_a_round_has_no_more_memory_in_use_on_three_times_the_nodes(policy: str) -> None:
    def peak_bytes(nodes: int) -> int:
        master = Master(nodes, policy)
        master.ask(master.register(), 40)
        app = master.register()
        return peak_bytes_of(lambda: master.ask(app, 40))

    assert peak_bytes(6_000) <= 1.1 * peak_bytes(2_000)


def test_a_report_costs_the_same_in_a_larger_cluster() -> None:
    def cost(nodes: int) -> int:
        master = Master(nodes)
        master.ask(master.register(), 40)
        master.report(0, ContainerState.RUNNING)
        master.report(0, ContainerState.ENDED)

        def both() -> None:
            master.report(1, ContainerState.RUNNING)
            master.report(1, ContainerState.ENDED)

        return calls_of(both)

    assert cost(3_000) <= 1.1 * cost(300)


def ends_calls(jobs: int, schedulers: int) -> int:
    """Calls of one container's end in a full cluster, with the rounds that follow."""
    cluster = FullCluster(4, jobs, schedulers)
    for _ in range(8):
        cluster.end_one()
    return max(calls_of(cluster.end_one) for _ in range(4))


@pytest.mark.parametrize(("schedulers", "jobs"), [(1, 10_000), (2, 1_200), (6, 1_200)])
def test_an_end_costs_the_same_however_many_jobs_wait(schedulers: int, jobs: int) -> None:
    many = ends_calls(jobs, schedulers)

    assert many <= 1.02 * ends_calls(120, schedulers)
    assert many <= {1: 740, 2: 870, 6: 1_720}[schedulers]


class GangsOfSizes(FullCluster):
    """Gangs or streams of 20 sizes wait, one after the other."""

    def _wait(self, jobs: int, tasks: int, kind: str) -> None:
        for number in range(jobs):
            size = 2 + number % 20
            if kind == "stream":
                app = self.register(WorkloadClass.STREAM)
            else:
                app = self.register(gang_min=size)
            self.request(app, size, TASK)


@pytest.mark.parametrize("kind", ["gang", "stream"])
def test_an_end_costs_one_round_however_many_sizes_of_gangs_wait(kind: str) -> None:
    cluster = GangsOfSizes(4, 200, 1, kind=kind)
    for _ in range(8):
        cluster.end_one()
    before = cluster.rounds
    for _ in range(10):
        cluster.end_one()

    assert cluster.rounds - before <= 30


class ExcludedHosts(FullCluster):
    """Each of those that wait has excluded a host on which there is no node."""

    def _wait(self, jobs: int, tasks: int, kind: str) -> None:
        for number in range(jobs):
            app = self.register()
            hosts = frozenset({f"gone-{number}"})
            self.submit(e.HostsExcluded(now=self.now, application_id=app, hosts=hosts))
            self.request(app, tasks, TASK)


def test_an_end_costs_one_round_whatever_hosts_without_a_node_are_excluded() -> None:
    cluster = ExcludedHosts(4, 200, 1)
    for _ in range(8):
        cluster.end_one()
    before = cluster.rounds
    for _ in range(10):
        cluster.end_one()

    assert cluster.rounds - before <= 20


@pytest.mark.parametrize("kind", backlog.KINDS)
def test_an_end_costs_the_same_whatever_kind_of_jobs_wait(kind: str) -> None:
    def cost(jobs: int) -> tuple[int, int]:
        cluster = FullCluster(4, jobs, 1, kind=kind)
        for _ in range(8):
            cluster.end_one()
        before = cluster.rounds
        return max(calls_of(cluster.end_one) for _ in range(4)), cluster.rounds - before

    (few, few_rounds), (many, many_rounds) = cost(100), cost(1_000)

    assert many_rounds <= few_rounds <= 8
    assert many <= 1.02 * few
    assert many <= (10_500 if kind == "gpu" else 1_200), "for GPUs some for each of the 16"


@pytest.mark.parametrize("workload_class", CLASSES)
def test_an_end_and_a_tick_cost_the_same_however_many_drivers_wait(
    workload_class: WorkloadClass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers of this class hold their share. Those that wait are of four sizes."""
    monkeypatch.setattr(virtual, "master_violations", lambda _: [])
    first = FirstExecutors(count=1, resources=TASK)

    def cost(drivers: int) -> list[int]:
        cluster = VirtualCluster([virtual.unit(f"n{x}", 10, 10_240) for x in range(10)])
        for x in range(drivers + 10):
            name = ApplicationId(f"driver-20260101000000-{x:04d}")
            kind, vcores = (workload_class, 2) if x < 10 else (WorkloadClass.BATCH, 1 + x % 4)
            cluster.submit(1, Resources(vcores, 10), kind, new_id=name, first_executors=first)
            if x == 10:
                cluster.advance(2)
        placement, now = cluster.master.placement, cluster.now
        assert len(placement.drivers.waiting) == drivers
        works = (placement.capacity_freed, placement.tick)
        return [max(calls_of(partial(work, now)) for _ in range(2)) for work in works]

    few, many = cost(100), cost(1_000)

    assert many == few
    assert max(many) <= 1_000


def test_an_end_costs_no_look_at_each_container_that_jobs_in_vain_request() -> None:
    """But for the one job that gets the place: a list of what it requests."""

    def cost(tasks: int) -> int:
        cluster = FullCluster(4, 30, 2, tasks=tasks)
        for _ in range(8):
            cluster.end_one()
        return max(calls_of(cluster.end_one) for _ in range(4))

    assert cost(40) <= 1_020
    assert cost(400) <= cost(40) + 400


def test_shares_of_gpus_cost_the_same_however_many_containers_use_some() -> None:
    def cost(gpus: int) -> int:
        part = Resources(1, 10, 1_000)
        whole = Resources(2 * gpus, 100_000, gpus * part.gpu_memory_mib)
        unit = ResourceUnit(unit_id=ResourceUnitId("n1/gpu"), capacity=whole, run_limit=2 * gpus)
        cluster = VirtualCluster([unit])
        for _ in range(2):
            cluster.request(cluster.submit(0), range(1, gpus), part)
        cluster.settle()
        shares = cluster.master.placement.gpu_shares
        (first, *_) = cluster.master.placement.schedulers.values()
        assert first.backlog.gpu_jobs, "one waits"
        return calls_of(lambda: shares.update(first.backlog.gpu_jobs, cluster.now))

    assert cost(60) <= 1.1 * cost(20)


def restricted_calls(nodes: int, tasks: int) -> float:
    """Calls per container of an application that half of the nodes are for."""
    master = Master(nodes, labelled=True)
    master.ask(master.register(requires=SSD), tasks)
    app = master.register(requires=SSD)
    return calls_of(lambda: master.ask(app, tasks)) / tasks


def test_what_is_required_of_nodes_costs_the_same_on_ten_times_the_nodes() -> None:
    assert restricted_calls(3_000, 40) <= 1.1 * restricted_calls(300, 40)


def test_what_every_node_meets_costs_next_to_nothing() -> None:
    """As the version of Spark, where the cluster has one."""

    def cost(requires: NodeRequirement | None) -> int:
        master = Master(1_000)
        master.ask(master.register(requires=requires), 40)
        app = master.register(requires=requires)
        return calls_of(lambda: master.ask(app, 40))

    assert cost(NodeRequirement(spark="4.3.0")) <= cost(None) + 40


def test_what_is_required_of_nodes_costs_a_few_calls_a_round() -> None:
    for tasks in (1, 40, 400):
        more = restricted_calls(1_000, tasks) - placement_calls(
            1_000, tasks, WorkloadClass.BATCH, "min-wait"
        )
        assert more * tasks <= 60 + tasks, "and one for each claim"


def test_registering_costs_the_same_with_many_applications() -> None:
    def cost(applications: int) -> int:
        master = Master(10)
        for _ in range(applications):
            master.register()
        return calls_of(master.register)

    assert cost(500) <= 1.1 * cost(50)


def test_a_heartbeat_costs_the_same_while_all_nodes_run_what_the_store_has_forgotten() -> None:
    def cost(nodes: int) -> int:
        master = Master(nodes)
        beats = [_unclaimed(number) for number in range(nodes)]
        for beat in beats:
            master.handle(beat)
        assert sum(map(len, master.core.nodes.reconciler.unclaimed.values())) == nodes
        return calls_of(lambda: master.handle(replace(beats[0], sequence=3)))

    assert cost(1_000) <= 1.1 * cost(100)


def _unclaimed(number: int) -> e.NodeReported:
    """A heartbeat of a node that runs a container of an unknown application."""
    node, app = NodeName(f"n{number:06d}"), ApplicationId(f"app-{number % 300}")
    status = ContainerStatus(
        container_id=ContainerId(f"{app}-{number}"), application_id=app, executor_id=str(number),
        resource_profile_id=0, workload_class=WorkloadClass.BATCH, resources=TASK,
        state=ContainerState.RUNNING, node=node, unit_id=ResourceUnitId(f"{node}/cpu"),
    )  # fmt: skip
    return e.NodeReported(now=1.0, node=node, incarnation="1", sequence=2, containers=(status,))


def test_most_ticks_examine_no_node() -> None:
    master = Master(1_000)
    master.core.handle(e.Ticked(now=NOW))

    assert calls_of(lambda: master.core.handle(e.Ticked(now=NOW + 1))) < 100


def test_the_state_is_copied_once_and_renewed_by_what_has_changed() -> None:
    """Rows that a renewed view copies: those that changed, and none of the others."""
    master = Master(2_000)
    master.ask(master.register(), 40)
    (view,) = master.core.placement._views.values()
    table = view._table
    master.ask(master.register(), 40)

    assert view._table is table, "a round must not copy the whole table"
