"""Containers that yield: they use what is idle, and end as soon as anything else wants it."""

from __future__ import annotations

from hrm.core.messages.claims import Entry
from hrm.core.node.preemption import preemptions
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import YIELD_GRACE_S
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    Resources,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
ONE = Resources(1, 1024)
TWO = Resources(2, 1024)


def entry(name: str, vcores: int, *, yields: bool = False, cls: WorkloadClass = BATCH) -> Entry:
    return Entry(ContainerId(name), cls, (vcores, 512, 0, 1), 60.0, yields=yields)


def full_unit(*running: Entry, vcores: int = 4) -> UnitQueue:
    """A unit where these run, started one second after the other."""
    queue = UnitQueue(unit("n1", vcores=vcores, run_limit=16))
    for number, each in enumerate(running):
        queue.run(each, 10.0 + number)
    return queue


def victims(queue: UnitQueue, *ending: str, preempts_batch: bool = True) -> list[tuple[str, str]]:
    named = set(map(ContainerId, ending))
    found = preemptions(queue, named, {}, 100.0, preempts_batch=preempts_batch)
    return [(x.victim, x.waiter) for x in found]


def yielding(cluster: VirtualCluster, executors: int, size: Resources = ONE) -> ApplicationId:
    app = cluster.submit(0)
    cluster.request(app, range(1, executors + 1), size, yields=True)
    cluster.settle()
    return app


def running(cluster: VirtualCluster, app: ApplicationId) -> int:
    return len(cluster.app(app).in_state(ContainerState.RUNNING))


def test_one_that_yields_uses_what_is_idle() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4)])
    idle = yielding(cluster, 6)
    assert running(cluster, idle) == 4


def test_batch_gets_what_others_yield_within_the_grace_period() -> None:
    cluster = VirtualCluster([unit("n1", vcores=4), unit("n2", vcores=4)])
    idle = yielding(cluster, 20)
    assert running(cluster, idle) == 8
    spark = cluster.submit(4)
    cluster.advance(YIELD_GRACE_S + 1)
    assert running(cluster, spark) == 4
    assert running(cluster, idle) == 4
