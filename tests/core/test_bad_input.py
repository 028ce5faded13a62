"""Invalid requests: the core refuses them with the reason, and nothing changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim, Decision, Entry, Proposal
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerSpec,
    ContainerState,
    EndCause,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.errors import InvalidRequest, NotFound, StaleEpoch
from hrm.testing.virtual import SMALL, VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler

NAN = math.nan
NOW = 1000.0


def picture(cluster: VirtualCluster) -> Any:
    """All of the state that a request could change."""
    state, master = cluster.master.master_state.state, cluster.master
    return (
        {unit_id: state.queue(row).image() for unit_id, row in state.rows.items()},
        {
            app.application_id: {x: k.state for x, k in app.containers.items()}
            for app in master.master_state.applications.values()
        },
        {name: scheduler.placed for name, scheduler in master.placement.schedulers.items()},
        (master.negotiator.lease.holder, master.negotiator.lease.token),
    )


def asked(resources: Resources, duration_s: float = 0.0, gpus: int = 0) -> ContainerRequest:
    return ContainerRequest(
        executor_id="7",
        resource_profile_id=0,
        resources=resources,
        expected_duration_s=duration_s,
        gpus=gpus,
    )


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(Resources(-1, 10)), "vcores is -1"),
        (asked(Resources(0, 10)), "vcores is 0"),
        (asked(Resources(1, -5)), "memory_mib is -5"),
        (asked(Resources(1, 10, -2)), "gpu_memory_mib is -2"),
        (asked(Resources(NAN, 10)), "vcores is nan"),  # type: ignore[arg-type]
        (asked(Resources(1, NAN)), "memory_mib is nan"),  # type: ignore[arg-type]
        (asked(SMALL, gpus=-1), "gpus is -1"),
        (asked(SMALL, -3.0), "expected_duration_s is -3.0"),
        (asked(SMALL, NAN), "expected_duration_s is nan"),
        (asked(SMALL, math.inf), "expected_duration_s is inf"),
    ],
)
def test_a_request_for_no_quantity_is_refused(request_: ContainerRequest, reason: str) -> None:
    cluster = VirtualCluster([unit("n1")])
    app = cluster.submit(1)
    cluster.settle()
    before = picture(cluster)
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=(request_,))
    )
    cluster.settle()
    refused = [x for x in cluster.notices[app] if isinstance(x, c.RequestRefused)]
    assert [x.executor_ids for x in refused] == [("7",)]
    assert reason in refused[0].message
    assert picture(cluster) == before


def stuck(
    *, workload_class: WorkloadClass | None = None
) -> tuple[VirtualCluster, VirtualScheduler, ApplicationId]:
    """A remote scheduler that does nothing by itself, with one job of two containers."""
    cluster = VirtualCluster([unit("n1", vcores=4)], schedulers=1)
    outside = VirtualScheduler(cluster, "outside")
    outside.hangs = True
    for _ in range(2):
        app = cluster.submit(2, workload_class=workload_class)
        if cluster.app(app).scheduler == "outside":
            break
    cluster.settle()
    assert cluster.states(app) == {"pending": 2}
    return cluster, outside, app


def propose(
    cluster: VirtualCluster,
    app: ApplicationId,
    containers: dict[str, str],
    *,
    session: int,
    token: int = 0,
    demand: tuple[int, int, int, int] = (-5, -5, -5, -5),
) -> c.Reply | c.Refuse:
    """Bring claims (container to unit) as the scheduler ``outside``, with a demand of its own."""
    claims = tuple(
        Claim(Entry(ContainerId(x), WorkloadClass.BATCH, demand, NAN), ResourceUnitId(unit_id), -1)
        for x, unit_id in containers.items()
    )
    call_id = cluster.next_call()
    proposal = Proposal("outside", app, WorkloadClass.BATCH, claims, token)
    cluster.submit_to_master(
        e.ClaimsProposed(now=cluster.now, proposal=proposal, call_id=call_id, session=session)
    )
    return cluster.replies[call_id]


def test_a_claim_on_an_unknown_unit_is_refused_by_itself() -> None:
    cluster, outside, app = stuck()
    before = picture(cluster)
    result = propose(cluster, app, {f"{app}-x1": "n9/cpu"}, session=outside.session)
    assert isinstance(result, c.Reply)
    assert isinstance(result.result, c.ClaimsSettled)
    (outcome,) = result.result.outcomes
    assert (outcome.decision, outcome.reason) == (
        Decision.ABORT,
        "the resource unit no longer exists",
    )
    assert picture(cluster) == before


def test_a_claim_for_a_container_that_nothing_asked_for_is_nothing() -> None:
    cluster, outside, app = stuck()
    before = picture(cluster)
    for application_id in (app, ApplicationId("app-nowhere")):
        result = propose(cluster, application_id, {"x-x99": "n1/cpu"}, session=outside.session)
        assert isinstance(result, c.Reply)
        assert isinstance(result.result, c.ClaimsSettled)
        assert result.result.outcomes == ()
    assert picture(cluster) == before


@pytest.mark.parametrize("demand", [(-5, -5, -5, -5), (0, 0, 0, 0), (9999, 9999, 9999, 9999)])
def test_a_claim_takes_what_was_asked_for_whatever_it_reports(
    demand: tuple[int, int, int, int],
) -> None:
    cluster, outside, app = stuck()
    before = cluster.master.master_state.state.free.copy()
    propose(cluster, app, {f"{app}-x1": "n1/cpu"}, session=outside.session, demand=demand)
    cluster.settle()
    assert cluster.states(app) == {"running": 1, "pending": 1}
    taken = before - cluster.master.master_state.state.free
    assert taken[0].tolist() == [SMALL.vcores, SMALL.memory_mib, 0, 1]


def test_a_commit_of_a_session_that_is_over_is_refused() -> None:
    cluster, outside, app = stuck()
    before = picture(cluster)
    result = propose(cluster, app, {f"{app}-x1": "n1/cpu"}, session=outside.session - 1)
    assert isinstance(result, c.Refuse)
    assert isinstance(result.error, NotFound)
    assert "subscribe again" in result.error.message
    assert picture(cluster) == before


@pytest.mark.parametrize("token", [0, -1, 99])
def test_a_stream_is_not_committed_under_a_token_that_never_was(token: int) -> None:
    cluster, outside, app = stuck(workload_class=WorkloadClass.STREAM)
    before = picture(cluster)
    claims = {f"{app}-x1": "n1/cpu", f"{app}-x2": "n1/cpu"}
    result = propose(cluster, app, claims, session=outside.session, token=token)
    assert isinstance(result, c.Reply)
    assert isinstance(result.result, c.ClaimsSettled)
    reasons = [outcome.reason for outcome in result.result.outcomes]
    assert reasons == ["the stream's lease has ended"] * 2
    assert picture(cluster) == before


@pytest.mark.parametrize("token", [0, -1, 99])
def test_a_lease_that_is_not_held_cannot_be_given_back(token: int) -> None:
    cluster, outside, _ = stuck()
    before = picture(cluster)
    call_id = cluster.next_call()
    cluster.submit_to_master(
        e.LeaseReturned(
            now=cluster.now,
            call_id=call_id,
            scheduler="outside",
            session=outside.session,
            token=token,
        )
    )
    result = cluster.replies[call_id]
    assert isinstance(result, c.Refuse)
    assert isinstance(result.error, InvalidRequest)
    assert f"under token {token}" in result.error.message
    assert picture(cluster) == before


def test_an_appmaster_of_an_older_epoch_must_register_again() -> None:
    cluster = VirtualCluster([unit("n1")])
    app = cluster.submit(1)
    cluster.settle()
    cluster.restart_master()
    before = picture(cluster)
    call_id = cluster.next_call()
    cluster.submit_to_master(
        e.ApplicationAttached(
            now=cluster.now, call_id=call_id, application_id=app, session=1, epoch=1
        )
    )
    result = cluster.replies[call_id]
    assert isinstance(result, c.Refuse)
    assert isinstance(result.error, StaleEpoch)
    assert "register again" in result.error.message
    assert picture(cluster) == before


ORDERS: dict[str, Callable[[ContainerSpec], e.NodeEvent]] = {
    "assign": lambda spec: e.AssignReceived(
        now=NOW, epoch=6, spec=replace(spec, container_id=ContainerId("a-x9"))
    ),
    "stop": lambda spec: e.StopReceived(
        now=NOW,
        epoch=6,
        container_id=spec.container_id,
        cause=EndCause.KILLED,
        reason="",
        grace_s=0,
    ),
    "acknowledge": lambda spec: e.EndsAcknowledged(
        now=NOW, epoch=6, container_ids=(ContainerId("a-x2"),)
    ),
    "set class": lambda spec: e.ContainerClassSet(
        now=NOW, epoch=6, container_id=spec.container_id, workload_class=WorkloadClass.STREAM
    ),
    "rebind": lambda spec: e.RebindReceived(now=NOW, epoch=6, request_id=1, reserve_cores=0),
    "files": lambda spec: e.ApplicationEnded(now=NOW, epoch=6, application_id=ApplicationId("a")),
    "connect": lambda spec: e.MasterConnected(now=NOW, epoch=6),
}


def spec_of(name: str) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId("a"),
        executor_id="1",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        resources=SMALL,
        unit_id=ResourceUnitId("n1/cpu"),
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("newest", [6, 7])
def test_a_node_does_nothing_for_an_older_master(order: str, newest: int) -> None:
    """The same order of the newest master has an effect, which makes this a test."""
    core = VirtualCluster([unit("n1", vcores=4)]).nodes["n1"].core
    spec = spec_of("a-x1")
    ended = replace(spec, container_id=ContainerId("a-x2"))
    for each in (spec, ended):
        core.handle(e.AssignReceived(now=NOW, epoch=5, spec=each))
    core.handle(
        e.ProcessEnded(
            now=NOW, container_id=ended.container_id, end=ContainerEnd(cause=EndCause.EXITED)
        )
    )
    core.handle(e.MasterConnected(now=NOW, epoch=newest))
    core.handle(e.MasterDisconnected(now=NOW))
    before = core.statuses()
    commands = core.handle(ORDERS[order](spec))
    obeyed = bool(commands) or core.statuses() != before or core.connected
    assert obeyed is (newest == 6)


def test_an_end_is_forgotten_only_once_its_process_is_gone() -> None:
    """A restarted agent has no capacity for what it finds running: that ends at once, and its
    process later."""
    core = VirtualCluster([unit("n1", vcores=1)]).nodes["n1"].core
    found = spec_of("a-x1")
    too_much = replace(found, resources=replace(SMALL, vcores=2))
    core.handle(e.ContainerAdopted(now=NOW, spec=too_much, started_at_s=NOW))
    acknowledged = e.EndsAcknowledged(now=NOW, epoch=1, container_ids=(found.container_id,))
    assert core.handle(acknowledged) == []
    assert [x.state for x in core.statuses()] == [ContainerState.ENDED]
    end = ContainerEnd(cause=EndCause.EXITED)
    core.handle(e.ProcessEnded(now=NOW, container_id=found.container_id, end=end))
    assert core.handle(acknowledged) == [c.ForgetContainer(container_id=found.container_id)]
    assert core.statuses() == ()
    assert core.handle(acknowledged) == []
