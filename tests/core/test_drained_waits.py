"""What waits because nodes are drained says so, and how to undo that."""

from __future__ import annotations

import pytest

from hrm.core.master.explain import explain
from hrm.core.master.queue_report import queue_statuses
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.model import ApplicationId, NodeName, Resources
from hrm.testing.virtual import VirtualCluster, unit


def reasons(cluster: VirtualCluster, app: ApplicationId) -> tuple[str, str]:
    """Those of ``hrm app why`` and of ``hrm queues --waiting``."""
    state = cluster.master.master_state
    line, _ = explain(state, cluster.app(app), cluster.now)
    statuses = queue_statuses(state, cluster.master.placement.queues)
    (wait,) = (x for each in statuses for x in each.waiting if x.application_id == app)
    return line, wait.why


@pytest.mark.parametrize("has_queues", [True, False])
def test_what_waits_for_drained_nodes_says_so_and_how_to_undo_it(has_queues: bool) -> None:
    cluster = VirtualCluster([unit("n0", 2), unit("n1", 2)])
    if has_queues:
        halves = [spec_from(name, {"guaranteed": "50%"}) for name in ("root.a", "root.b")]
        cluster.change_queues(*halves, create=True)
    queue = "root.a" if has_queues else ""

    def drain(*names: str) -> None:
        nodes = tuple(map(NodeName, names))
        cluster.submit_to_master(
            e.DrainRequested(now=cluster.now, call_id=cluster.next_call(), nodes=nodes)
        )
        cluster.settle()

    drain("n0")
    for each in ("root.a", "root.b") if has_queues else ("",):
        cluster.submit(2, Resources(1, 10), queue=each, name=f"first-{each}")
    late = cluster.submit(1, Resources(1, 10), queue=queue, name="late")
    cluster.settle()
    if has_queues:
        for why in reasons(cluster, late):
            assert why.endswith(
                "1 of 2 nodes is drained (n0): hrm node drain --undo n0 takes it back"
            )
    drain("n1")
    last = cluster.submit(1, Resources(1, 10), queue=queue, name="last")
    cluster.settle()
    for why in reasons(cluster, last):
        assert "nothing new starts, since all 2 nodes are drained (n0, n1): hrm node drain" in why
