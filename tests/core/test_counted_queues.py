"""The work of showing and changing queues is counted: it must not grow with their square."""

from __future__ import annotations

import pytest

from hrm.core.master.queue_report import QueueReport
from hrm.core.master.queue_whatif import what_if
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
from hrm.core.tenancy.queue_status import Supposed, Supposition
from hrm.core.vocabulary.model import Resources
from hrm.testing import VirtualCluster, virtual
from tests.core.test_counted_work import calls_of


def many_specs(queues: int) -> list[QueueSpec]:
    return [spec_from(f"root.team{x % 10}.q{x}", {"weight": 1.0 + x % 3}) for x in range(queues)]


def cluster_of(queues: int, monkeypatch: pytest.MonkeyPatch) -> VirtualCluster:
    monkeypatch.setattr(virtual, "master_violations", lambda _: [])
    units = [virtual.unit("n1", 4)]
    return VirtualCluster(units, schedulers=1, queues=many_specs(queues))


def list_calls(queues: int, shown: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Calls for each of so many queues, with an application in each, where ``shown`` are shown."""
    cluster = cluster_of(queues, monkeypatch)
    names = [spec.name for spec in many_specs(queues)]
    for name in names:
        cluster.submit(1, queue=name)
    master = cluster.master

    def work() -> None:
        report = QueueReport(master.master_state, master.placement.queues)
        for name in names[:shown]:
            report.status(name)

    work()
    return calls_of(work) / queues


def test_a_list_costs_the_same_for_each_queue_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (list_calls(x, x, monkeypatch) for x in (100, 1_000))

    assert many <= 1.1 * few


def test_a_page_says_of_no_other_queue_why_its_applications_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list_calls(300, 10, monkeypatch) <= 0.4 * list_calls(300, 300, monkeypatch)


def test_making_queues_costs_the_same_for_each_however_many_are_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cost(queues: int) -> float:
        cluster = cluster_of(1, monkeypatch)
        stated = tuple(many_specs(queues + 1)[1:])
        event = e.QueuesChanged(now=cluster.now, call_id=7, stated=stated, create=True)
        state = cluster.master.master_state
        calls = calls_of(lambda: cluster.master.queues.changed(event))
        (made,) = [x.result for x in state.out if isinstance(x, c.Reply) and x.call_id == 7]
        assert isinstance(made, c.QueueChangeCost)
        return calls / queues

    few, many = cost(100), cost(1_000)

    assert many <= 1.2 * few


def halves(monkeypatch: pytest.MonkeyPatch, executors: int) -> VirtualCluster:
    """One of two queues has borrowed the whole cluster."""
    monkeypatch.setattr(virtual, "master_violations", lambda _: [])
    specs = [spec_from(f"root.{x}", {"guaranteed": "50%"}) for x in "ab"]
    units = [virtual.unit(f"n{x}", 4) for x in range(10)]
    cluster = VirtualCluster(units, schedulers=1, queues=specs)
    cluster.submit(executors, queue="a")
    cluster.advance(5)
    return cluster


def test_what_if_of_many_costs_as_much_as_of_those_for_which_others_are_preempted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = halves(monkeypatch, 40)
    master, small = cluster.master, Resources(1, 1024)

    def ask(executors: int) -> Supposed:
        state, placement = master.master_state, master.placement
        asked = Supposition(queue="b", executors=executors, resources=small)
        return what_if(state, placement, asked, cluster.now)

    assert (ask(30).by_preemption, ask(10_000).by_preemption) == (20, 20)
    assert calls_of(lambda: ask(10_000)) <= calls_of(lambda: ask(21)) + 10


def test_the_cost_of_a_change_looks_once_for_victims_of_claims_of_one_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cost(waiting: int) -> int:
        cluster = halves(monkeypatch, 40)
        cluster.submit(waiting, queue="b")
        stated = (spec_from("root.c", {"guaranteed": {"cores": 0}}),)
        event = e.QueuesChanged(
            now=cluster.now, call_id=7, stated=stated, create=True, dry_run=True
        )
        return calls_of(lambda: cluster.master.queues.changed(event))

    assert cost(400) - cost(40) <= 360 * 30
