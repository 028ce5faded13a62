"""The work of showing and changing queues is counted: it must not grow with their square."""

from __future__ import annotations

import pytest

from hrm.core.master.queue_report import QueueReport
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
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
