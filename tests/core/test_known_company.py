"""What placement policies are given of affinities, and that it changes where containers go."""

from __future__ import annotations

import pytest

from hrm.core.master.known_company import KnownCompany
from hrm.core.scheduling.co_running import CoRunning
from hrm.core.tenancy.affinities import Affinities, ApplicationKind
from hrm.core.tenancy.queue_spec import DEFAULT_QUEUE
from hrm.core.vocabulary.model import ApplicationId, Resources
from hrm.policies.corunning import PlaceInTurn, PlaceMostAffectedFirst
from hrm.testing.virtual import VirtualCluster, unit

POLICIES = [PlaceMostAffectedFirst, PlaceInTurn]


def learn(affinities: Affinities, name: str, other: str, slowdown: float) -> None:
    """That tasks of ``name`` run so many times as long with ``other``, from many runs."""
    for load, run_s in [(0.0, 10.0), (1.0, 10.0 * slowdown)] * 40:
        company = {ApplicationKind(DEFAULT_QUEUE, other): load} if load else {}
        affinities.observe(DEFAULT_QUEUE, name, "stage", "x86", 8, run_s, load, company)


def nodes_of(cluster: VirtualCluster, application_id: ApplicationId) -> set[str]:
    return {
        name
        for name, node in cluster.nodes.items()
        if any(x.startswith(f"{application_id}-x") for x in node.processes)
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_tenants_that_hurt_each_other_are_kept_apart_once_that_is_known(
    policy: type[PlaceInTurn],
) -> None:
    """Two executors of each of two applications fit one node of four."""
    for known in (False, True):
        cluster = VirtualCluster([unit("n1"), unit("n2")], schedulers=1, policy=policy)
        if known:
            affinities = cluster.master.master_state.affinities
            learn(affinities, "scan", "sort", 2.0)
            learn(affinities, "sort", "scan", 1.5)
            learn(affinities, "scan", "scan", 1.0)
            learn(affinities, "sort", "sort", 1.0)
        scan, sort = cluster.submit(2, name="scan"), cluster.submit(2, name="sort")
        cluster.settle()
        together = nodes_of(cluster, scan) == nodes_of(cluster, sort)
        assert together != known
        assert cluster.states(scan) == cluster.states(sort) == {"running": 2}


def test_a_tenant_is_a_queue_and_a_name_but_for_its_numbers() -> None:
    cluster = VirtualCluster([unit("n1")])
    known: CoRunning = KnownCompany(cluster.master.master_state)
    monday = cluster.submit(3, Resources(2, 1024), name="report-0101")
    tuesday = cluster.submit(4, Resources(1, 2048), name="report-0102")
    other = cluster.submit(1, name="other")
    assert known.tenant_of(monday) == known.tenant_of(tuesday) != known.tenant_of(other)
    assert known.tenant_of(ApplicationId("gone")) == ("gone",)
    assert known.wanted() == {
        (DEFAULT_QUEUE, "report-#"): (10, 3 * 1024 + 4 * 2048, 0, 7),
        (DEFAULT_QUEUE, "other"): (1, 1024, 0, 1),
    }


def test_of_what_was_never_seen_the_slowdown_is_that_of_any() -> None:
    master_state = VirtualCluster([]).master.master_state
    known = KnownCompany(master_state)
    any_company = master_state.affinities.sensitivity(ApplicationKind("", "x")).factor
    assert known.slowdown(("gone",), ("q", "name")) == any_company


def test_the_revision_rises_at_once_and_then_the_more_seldom() -> None:
    master_state = VirtualCluster([]).master.master_state
    known = KnownCompany(master_state)
    assert known.revision == 0
    seen = []
    for _ in range(1_000):
        master_state.affinities.observe(DEFAULT_QUEUE, "a", "stage", "x86", 1, 10.0, 0.0, {})
        seen.append(known.revision)
    assert seen[0] == 1
    assert seen == sorted(seen)
    assert 20 < seen[-1] < 60, "of one kind, every 50 observations"
